"""Compiled models."""

import re
import subprocess
import sys

import pytest
import torch
from helpers import DOUBLE, batch_of, chain, cycle, star
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from hogwild import (
    GCN,
    GSDGNN,
    IGNN,
    EnergyConv,
    EnergyGNN,
    SoftEnergyGNN,
    certify,
    robustness,
    simulate,
    train,
    wrap,
)


class Sandwich(nn.Module):
    """A user's module: a layer, a solve, a layer."""

    def __init__(self):
        super().__init__()
        self.before, self.conv, self.after = (
            nn.Linear(3, 4),
            EnergyConv(4, hidden_channels=2),
            nn.Linear(2, 1),
        )

    def forward(self, x, edge_index, batch):
        return self.after(self.conv(self.before(x).relu(), edge_index, batch=batch))


class Plain(nn.Module):
    """A model of this library, called as :class:`Sandwich` is."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, batch):
        return self.model(x, edge_index, batch=batch)


MODELS = {
    "own module": Sandwich,
    "EnergyGNN": lambda: Plain(EnergyGNN(3, out_channels=1)),
    "pooled": lambda: Plain(EnergyGNN(3, out_channels=1, pool="mean")),
    "stack": lambda: Plain(EnergyGNN(3, out_channels=1, num_layers=2)),
    "IGNN": lambda: Plain(IGNN(3, out_channels=1)),
    "GSDGNN": lambda: Plain(GSDGNN(3, out_channels=1)),
    "soft": lambda: Plain(SoftEnergyGNN(3, out_channels=1, hidden_channels=4, norm="batch")),
}


@pytest.fixture
def fresh():
    """No compiled code, and no counts, of another test."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs(*sizes):
    """A batch of a chain, a cycle and a star."""
    made = zip((chain, cycle, star), sizes, strict=True)
    edge_index, batch = batch_of(*((make(n), n) for make, n in made))
    return torch.randn(batch.numel(), 3, **DOUBLE), edge_index, batch


def same(model, compiled, given):
    """Values and gradients, with gradients and without."""
    expected, found = model(*given), compiled(*given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), expected.detach(), rtol=1e-10, atol=1e-12)
    wanted, got = (
        torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True)
        for y in (expected, found)
    )
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name not in ("own module", "IGNN") else name
        for name in MODELS
    ],
)
@pytest.mark.usefixtures("fresh")
def test_compiled_models_give_the_same_answers(name):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    compiled = torch.compile(model, backend="aot_eager" if name == "own module" else "eager")
    for sizes in ((4, 3, 5), (6, 7, 9)):
        same(model, compiled, graphs(*sizes))
    # What comes before and after a solve, with gradients and without, and again for sizes that
    # vary: a handful of graphs, and none for further sizes.
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert count <= 24
    same(model, compiled, graphs(20, 13, 17))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count


@pytest.mark.usefixtures("fresh")
def test_compiled_layers_give_the_same_answers():
    torch.manual_seed(0)
    model = GCN(3, out_channels=2).double()
    x, edge_index = torch.randn(3, 3, **DOUBLE), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    found = torch.compile(model, backend="aot_eager")(x, edge_index)
    torch.testing.assert_close(found, model(x, edge_index))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_compiled_by_the_default_backend():
    torch.manual_seed(0)
    model = Sandwich().double()
    same(model, torch.compile(model), graphs(4, 3, 5))


REFUSED = """
import warnings
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from hogwild import GSDGNN, IGNN, EnergyGNN
from hogwild.errors import UnsupportedError
from hogwild.solvers import LBFGS

warnings.simplefilter("ignore")
edges = torch.tensor([[0, 1, 2, 2, 1], [1, 0, 1, 2, 2]])
x = torch.randn(3, 2)


def fake(model):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model(mode.from_tensor(x), edges)


def forwards(model):
    with forward_ad.dual_level():
        model(forward_ad.make_dual(x, x), edges)


def parameters(model):
    own = dict(model.named_parameters())
    f = lambda own: torch.func.functional_call(model, own, (x, edges)).sum()
    torch.func.grad(f)(own)


TRANSFORMS = {
    "trace": lambda model: torch.jit.trace(model, (x, edges), check_trace=False),
    "functionalize": lambda model: torch.func.functionalize(lambda x: model(x, edges))(x),
    "vmap": lambda model: torch.func.vmap(lambda x: model(x, edges))(torch.stack([x, x])),
    "grad": lambda model: torch.func.grad(lambda x: model(x, edges).sum())(x),
    "jacrev": lambda model: torch.func.jacrev(lambda x: model(x, edges))(x),
    "jvp": lambda model: torch.func.jvp(lambda x: model(x, edges), (x,), (x,)),
    "parameters": parameters,
    "forwards": forwards,
    "make_fx": lambda model: make_fx(lambda x: model.conv(x, edges))(x),
    "export": lambda model: torch.export.export(model, (x, edges), strict=False),
    "fake": fake,
    "meta": lambda model: model(x.to("meta"), edges),
}
torch.manual_seed(0)
for kind, options in (
    (EnergyGNN, {}), (EnergyGNN, {"heads": 2, "solver": LBFGS()}), (IGNN, {}), (GSDGNN, {})
):
    model = kind(2, out_channels=1, **options)
    expected = model(x, edges)
    for name, transform in TRANSFORMS.items():
        try:
            transform(kind(2, out_channels=1, **options))  # a fresh one looks at its features
        except UnsupportedError as error:
            print(name, error)
    assert torch.equal(model(x, edges), expected)
"""

ADVICE = {
    "trace": "torch.jit.trace cannot record a solve.*torch.save.*hogwild.export",
    "functionalize": "torch.func.*torch.autograd.functional",
    "vmap": "torch.func.vmap.*replicas=R",
    "grad": "torch.func.*torch.autograd.grad",
    "jacrev": "torch.func.*jacobian",
    "jvp": "torch.func.*jvp",
    "parameters": "torch.func.*torch.autograd.grad",
    "forwards": "forward mode.*torch.autograd.functional.jvp",
    "make_fx": "torch.export.*cannot record a solve",
    "export": "torch.export.*cannot record a solve",
    "fake": "torch.export.*cannot record a solve",
    "meta": "meta device",
}


def test_transforms_that_a_solve_refuses():
    """In a process of its own: a wrong address ends a process."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*ADVICE] * 4
    for line in lines:
        name, error = line.split(maxsplit=1)
        assert re.search(ADVICE[name], error), line


COMPILED = {
    "EnergyGNN": lambda: EnergyGNN(3, out_channels=1, beta=1.0),
    "GCN": lambda: GCN(3, out_channels=1),
    "trained": lambda: pyg.GCN(3, 4, 2, 1),
    "wrapped": lambda: wrap(pyg.GCN(3, 4, 2, 1)),
}


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.usefixtures("fresh")
def test_compiled_models_run_asynchronously_as_the_one_that_was_compiled(name):
    torch.manual_seed(0)
    model, data = COMPILED[name]().double(), Data(torch.randn(4, 3, **DOUBLE), cycle(4))
    compiled = torch.compile(model, backend="eager")
    expected = simulate(model, data)
    run = simulate(compiled, data)
    assert run.rule == expected.rule
    assert torch.equal(run.predictions, expected.predictions)
    assert certify(compiled, data).data == certify(model, data).data
    assert robustness(compiled, data, runs=1).model == robustness(model, data, runs=1).model


@pytest.mark.usefixtures("fresh")
def test_certify_takes_a_compiled_layer():
    conv, data = EnergyConv(3), Data(torch.randn(6, 3), cycle(6))
    compiled = torch.compile(conv, backend="eager")
    assert certify(compiled, data).data == certify(conv, data).data


@pytest.mark.usefixtures("fresh")
def test_parts_of_a_trained_model_may_be_compiled():
    torch.manual_seed(0)
    model = pyg.GCN(3, 4, 3, 1).double().eval()
    data = Data(torch.randn(6, 3, **DOUBLE), cycle(6))
    expected = simulate(model, data).predictions
    model.convs[0] = torch.compile(model.convs[0], backend="eager")
    model.convs[1].compile(backend="eager")
    kept = model.convs[0].forward, model.convs[1]._compiled_call_impl
    assert torch.equal(simulate(model, data).predictions, expected)
    assert (model.convs[0].forward, model.convs[1]._compiled_call_impl) == kept


@pytest.mark.usefixtures("fresh")
def test_a_compiled_model_is_trained_in_place():
    model = EnergyGNN(2, out_channels=1)
    before = [p.clone() for p in model.parameters()]
    train("chains", torch.compile(model, backend="eager"), epochs=1, progress=False)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
