"""Random energies on random graphs, and both ways to solve them, for the tests of the kernels."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE
from hypothesis import strategies as st

from hogwild import EnergyConv, Inputs, engines
from hogwild.engines import cpu, engine_for
from hogwild.engines.base import TorchEngine
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.cpu_large import LargeCpuEngine
from hogwild.kernels.native import library
from hogwild.solvers import Newton

TIGHT = Newton(atol=1e-11)
needs_library = pytest.mark.skipif(library() is None, reason="there is no compiled library")


@contextmanager
def on_torch():
    """Torch solves within, whatever is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ENGINES", ())
        yield


WAYS = {
    "factors": (CpuEngine, 1e9), "products": (CpuEngine, 0.0), "blocks": (LargeCpuEngine, 0.0),
}  # fmt: skip
"""How linear systems are solved: the engine, and the price below which it factorises."""


@contextmanager
def by(way):
    """Every compiled solve within goes this way."""
    engine, price = WAYS[way]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ENGINES", (engine,))
        patch.setattr(LargeCpuEngine, "fewest", 0)
        patch.setattr(cpu, "PRODUCTS", price)
        patch.setattr(cpu, "ADJOINT_PRODUCTS", price)
        yield


def engine_of(conv, inputs):
    """The engine that solves for these inputs."""
    return engine_for(conv.problem(inputs), conv.solver)


def layer(seed=0, scale=0.0, **options):
    """A layer in float64; ``scale`` > 0 moves it away from its fresh parameters."""
    torch.manual_seed(seed)
    conv = EnergyConv(3, **{"solver": TIGHT} | options).double()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(scale * torch.randn(p.shape, **DOUBLE))
    return conv


NAMED = {
    "edge": {},
    "node": {
        "message": "node",
        "normalize": True,
        "act": "squareplus",
        "gate": "relu",
    },
    "mean": {"aggr": "mean", "hidden_channels": 4},
    "normalize": {"normalize": True},
    "heads": {"heads": 4},
    "averaged": {"heads": 3, "concat": False, "hidden_channels": 1},
    "node-heads": {"message": "node", "heads": 2, "edge_dim": 2},
    "wide": {"hidden_channels": 8, "message_channels": 5, "widths": (7,)},
    "widest": {"hidden_channels": 8, "message_channels": 8, "heads": 2},
    "narrow": {"hidden_channels": 1, "message_channels": 1, "widths": ()},
    "deep": {"widths": (8, 1, 3), "edge_dim": 2, "hidden_channels": 3},
    "squareplus": {"act": "squareplus", "gate": "relu"},
    "replicas": {"replicas": 3, "heads": 2, "edge_dim": 1, "message_channels": 1},
}
"""Options of a layer that every engine for energies takes."""


def odd_graph(seed, sizes, density=1.0, directed=True, edge_dim=None, weighted=False, width=3):
    """A batch of graphs with self-loops, multi-edges, isolated nodes and edges in any order."""
    rng = torch.Generator().manual_seed(seed)
    parts, first = [torch.zeros(2, 0, dtype=torch.long)], 0
    for n in sizes:
        edges = torch.randint(n, (2, int(density * n)), generator=rng)
        parts.append(first + (edges if directed else torch.cat([edges, edges.flip(0)], 1)))
        first += n
    edges = torch.cat(parts, 1)
    edges = edges[:, torch.randperm(edges.size(1), generator=rng)]
    inputs = Inputs(
        torch.randn(first, width, generator=rng, **DOUBLE), edges,
        batch=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
    )  # fmt: skip
    if edge_dim is not None:
        attr = torch.randn(edges.size(1), edge_dim, generator=rng, **DOUBLE)
        inputs = replace(inputs, edge_attr=attr)
    if weighted:
        weight = 2.0 * torch.rand(edges.size(1), generator=rng, **DOUBLE)
        inputs = replace(inputs, edge_weight=weight.masked_fill(weight < 0.5, 0.0))
    return inputs


def variables(inputs):
    """The same inputs with gradients wanted of everything."""
    names = ("x", "edge_attr", "edge_weight", "heard")
    found = {name: getattr(inputs, name) for name in names}
    found = {k: v.detach().clone().requires_grad_() for k, v in found.items() if v is not None}
    return replace(inputs, **found), list(found.values())


def solved(conv, inputs, h0=None):
    """The solution, and the gradients of a loss in everything that it depends on."""
    inputs, given = variables(inputs)
    found = conv.embed(inputs, h0)
    rng = torch.Generator().manual_seed(5)
    wanted = torch.randn(found.value.shape, generator=rng, **DOUBLE).to(found.value)
    over = [*given, *conv.parameters()]
    gradients = torch.autograd.grad((found.value * wanted).sum(), over, allow_unused=True)
    return found, [torch.zeros(()) if g is None else g for g in gradients]


def assert_alike(conv, inputs, h0=None, atol=1e-9, apart=1):
    """Compiled code and torch agree in answers, gradients, statuses and iterations."""
    assert conv.solver_path(inputs)[0].startswith("compiled")
    here, gradients = solved(conv, inputs, h0)
    with on_torch():
        assert isinstance(engine_of(conv, inputs), TorchEngine)
        there, expected = solved(conv, inputs, h0)
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=atol)
    assert torch.equal(here.status, there.status)
    assert int((here.iterations - there.iterations).abs().max()) <= apart
    largest = max(float(g.abs().max()) for g in expected if g.numel())
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=atol * largest)
    return here


@st.composite
def layers(draw):
    """Every option of a layer that the compiled solve takes."""
    heads = draw(st.sampled_from([None, None, 1, 2, 3]))
    message = draw(st.sampled_from(["edge", "node"]))
    found = {
        "message": message, "heads": heads, "concat": draw(st.booleans()),
        "hidden_channels": draw(st.integers(1, 8)), "message_channels": draw(st.integers(1, 4)),
        "widths": tuple(draw(st.lists(st.integers(1, 8), max_size=3))),
        "act": draw(st.sampled_from(["softplus", "squareplus"])),
        "gate": draw(st.sampled_from(["softplus", "relu"])),
        "beta": draw(st.sampled_from([0.04, 0.3, 1.0])),
        "replicas": draw(st.sampled_from([None, 1, 3])),
    }  # fmt: skip
    if heads is None:
        found |= draw(st.sampled_from([{}, {"aggr": "mean"}, {"normalize": True}]))
    if message == "edge" or heads is not None:
        found["edge_dim"] = draw(st.sampled_from([None, 1, 2]))
    return found
