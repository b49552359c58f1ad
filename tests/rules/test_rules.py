"""Which rules there are: a user's own rule has a name like the library's."""

import ast
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import hogwild
import hogwild_node
from hogwild.errors import ConfigError
from hogwild.problems import FixedPoint
from hogwild.rules import RULES, fitting, fixed_point_rule, gradient_rule, register


@pytest.fixture
def own():
    """Gradient steps under a name of our own."""
    register("ours", gradient_rule)
    yield "ours"
    hogwild.rules._OWN.pop("ours")


PATH = Data(
    x=torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
)


def test_a_rule_of_your_own_runs_by_its_name(own):
    model = hogwild.EnergyGNN(2, out_channels=1).double()
    found = hogwild.simulate(model, PATH, rule=own, runs=2)
    plain = hogwild.simulate(model, PATH, rule="gradient", runs=2)
    assert found.rule == "ours"
    assert torch.equal(found.h, plain.h)
    assert hogwild.simulate(model, PATH).rule == "messages"  # the default stays


def test_nothing_is_proved_of_it(own):
    model = hogwild.GSDGNN(2, out_channels=1).double()
    proved = hogwild.certify(model, PATH, rule=own)
    assert not proved.guaranteed
    assert "a rule of your own" in proved.reason


def test_it_fits_the_problems_of_its_kind(own):
    register("map", fixed_point_rule, FixedPoint)
    try:
        ignn = hogwild.IGNN(2, out_channels=1).double()
        energy = hogwild.EnergyGNN(2, out_channels=1).double()
        inputs = hogwild.Inputs.of(PATH)
        assert list(fitting(ignn.problem(inputs))) == ["fixed-point", "balls", "map"]
        assert list(fitting(energy.problem(inputs))) == [
            "messages", "gradient", "balls", "ours",
        ]  # fmt: skip
        with pytest.raises(ConfigError, match="does not fit this model"):
            hogwild.simulate(ignn, PATH, rule=own)
    finally:
        hogwild.rules._OWN.pop("map")
    with pytest.raises(ConfigError, match=r"expected one of auto, .*ours"):
        hogwild.simulate(energy, PATH, rule="theirs")


@pytest.mark.parametrize("name", ["auto", "messages", "caching", "", 3])
def test_names_of_the_library_stay(name):
    with pytest.raises(ConfigError, match="expected a name other than"):
        register(name, gradient_rule)


def test_what_makes_a_rule_is_a_function_and_its_kind_a_problem():
    with pytest.raises(ConfigError, match="expected a function"):
        register("ours", 3)
    with pytest.raises(ConfigError, match="kind="):
        register("ours", gradient_rule, int)


@pytest.mark.parametrize("package", [hogwild, hogwild_node])
def test_nobody_compares_names_of_rules(package):
    """Who wants to know more about a rule reads what the rule says about itself."""
    for file in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and "kind" not in ast.unparse(node):
                named = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                assert not named & set(RULES), f"{file.name}: {ast.unparse(node)}"
