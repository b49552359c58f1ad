"""A new activation and a new aggregation are one entry of a table each, a rule on agents is two
(docs/extending.md). The rule, the impairment and the energy of that page run with its code
(test_guides.py)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from c_nodes import CC, Library, compiled, filed
from memory_swarm import Swarm
from node.test_c99 import compare, pair
from torch_geometric.data import Data

import hogwild
from hogwild_node import packets
from hogwild_node.activations import ACTIVATIONS, Activation
from hogwild_node.c99 import generate
from hogwild_node.errors import ModelFileError
from hogwild_node.model import DenoisingModel
from hogwild_node.ops import namespace
from hogwild_node.rules import RULES, GradientRule
from hogwild_node.soft import AGGREGATIONS, Aggregation


def value(a):
    return 0.5 * namespace(a).softplus(2.0 * a)


def slope(a):
    return namespace(a).sigmoid(2.0 * a)


def curvature(a, slope):
    return 2.0 * slope * (1.0 - slope)


def majoriser(a, slope):
    xp = namespace(a)
    near = xp.abs(a) < 1e-4
    return xp.where(near, 0.5, (slope - 0.5) / xp.where(near, 1.0, a))


IN_C = (
    """
    hog_real small = HOG_EXP(-2 * HOG_ABS(a));
    *value = (a > 0 ? a : 0) + HOG_LOG1P(small) / 2;
    *slope = (a >= 0 ? 1 : small) / (1 + small);
""",
    "    return HOG_ABS(a) < 1e-4 ? 0.5 : (slope - 0.5) / a;\n",
)
SHARP = Activation("sharp", value, slope, curvature, majoriser, 1.0, 0.5, IN_C)

RING = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 0, 2], [1, 0, 2, 1, 3, 2, 0, 3, 2, 0]])


def check_everywhere(model, rule):
    """Solves, simulated nodes and agents with a model file agree."""
    torch.manual_seed(0)
    model = model.double()
    data = Data(x=torch.randn(4, 3, dtype=torch.float64), edge_index=RING)
    run = hogwild.simulate(model, data, rule=rule, runs=2)
    assert run.converged.all()
    torch.testing.assert_close(run.predictions[0], model.predict(data), rtol=0, atol=1e-5)
    swarm = Swarm(model, RING, 4, rule=rule)
    swarm.run(60)
    assert swarm.error() < 1e-5


def test_an_activation(monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "sharp", SHARP)
    model = hogwild.EnergyGNN(3, out_channels=1, act="sharp", beta=1.0)
    check_everywhere(model, "messages")
    (path,) = model.solver_path(Data(x=torch.randn(4, 3), edge_index=RING))
    assert path.startswith("torch: the activation 'sharp'")
    if CC:
        file = filed(model)
        ours, theirs = pair(file, Library(file), 3, np.random.default_rng(0))
        assert ours.update()
        theirs.update()
        compare(ours, theirs, 1e-12)
    monkeypatch.setitem(ACTIVATIONS, "sharp", replace(SHARP, c=None))
    with pytest.raises(ModelFileError, match="'sharp' has no text in C"):
        generate(filed(model))


def squares(here, there, limit):
    return here, there**2


@pytest.mark.parametrize("condition", [3.0, 30.0])
def test_an_aggregation(monkeypatch, condition):
    """A sum that divides what a node sends by its degree, and what it hears by the root of its."""
    monkeypatch.setitem(AGGREGATIONS, "sent", Aggregation(squares, ("d", "e * e")))
    model = hogwild.SoftEnergyGNN(
        3, out_channels=1, hidden_channels=4, condition=condition, aggr="sent"
    )
    for p in model.conv.parameters():
        p.data.add_(torch.randn_like(p))
    check_everywhere(model, "gradient")
    data = Data(x=torch.randn(4, 3, dtype=torch.float64), edge_index=RING)
    facts = hogwild.certify(model, data, rule="gradient", step="certified")
    assert facts.guaranteed
    assert facts.constants["condition_number"] <= condition
    text = generate(filed(model))
    assert "#define HOG_THERE(d, e) e * e" in " ".join(text.split())
    if CC:
        compiled(text, "-O0", "-shared", "-fPIC")


class HalfSteps(GradientRule):
    """Gradient steps of half the size."""

    def update(self, h, inbox, mail, at):
        new, letters = super().update(h, inbox, mail, at)
        return 0.5 * (h + new), letters


def test_a_rule_on_agents(monkeypatch):
    """A name among the rules, and a place on the wire."""
    monkeypatch.setitem(RULES, "half steps", HalfSteps)
    monkeypatch.setattr(packets, "RULES", (*packets.RULES, "half steps"))
    monkeypatch.setattr(DenoisingModel, "rules", (*DenoisingModel.rules, "half steps"))
    swarm = Swarm(hogwild.GSDGNN(3, out_channels=1), RING, 4, rule="half steps")
    swarm.run(30)
    assert swarm.error() < 1e-5
    assert swarm.agents[0].rule_name == "half steps"
