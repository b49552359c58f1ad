"""Synchronous updates with gradients: against the simulator, the limit, finite differences."""

import pytest
import torch
from helpers import chain, cycle, example
from torch_geometric.data import Batch

from hogwild import GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild.executors.unrolled import asynchronous_embed, blocks, descended, inverse

MAKE = {
    "energy": lambda **kw: EnergyGNN(3, out_channels=2, **kw),
    "denoising": lambda **kw: GSDGNN(3, out_channels=2, **kw),
    "fixed-point": lambda **kw: IGNN(3, out_channels=2, **kw),
}


def posed(name, **options):
    torch.manual_seed(0)
    model = MAKE[name](**options).double()
    data = Batch.from_data_list([example(cycle(5), 5), example(chain(4), 4)])
    return model, data, model.problem(Inputs.of(data))


@pytest.mark.parametrize("name", MAKE)
def test_many_updates_end_at_the_solution(name):
    model, data, problem = posed(name, replicas=2)
    with torch.no_grad():
        h = descended(problem, 3000)
    assert torch.allclose(h.mT, model.embed(Inputs.of(data)).value, rtol=0, atol=1e-6)


def test_one_update_is_that_of_the_rule():
    """All nodes take the "auto" step, without delay and from the same point."""
    model, data, problem = posed("energy")
    out = asynchronous_embed(model, Inputs.of(data), updates=1, rule="gradient", stagger=1, delay=0)
    h = descended(problem, 1)
    assert torch.allclose(h[0].mT, out, rtol=0, atol=1e-12)


def test_blocks_are_those_of_the_majorised_hessian():
    """They lie above the Hessian's own blocks, and the gradient is the energy's."""
    _, _, problem = posed("energy")
    h = torch.randn(problem.start().shape, dtype=torch.float64)
    gradient, block = blocks(problem, h)
    found = problem.evaluate(h)
    assert torch.allclose(gradient, found.gradient, rtol=0, atol=1e-12)
    above = (block - found.hessian().diagonal()).movedim(-1, 1)
    assert torch.linalg.eigvalsh(above).min() > -1e-10


@pytest.mark.parametrize("k", [1, 2, 3])
def test_inverses_of_blocks(k):
    root = torch.randn(2, 5, k, k, dtype=torch.float64)
    block = (root @ root.mT + torch.eye(k)).movedim(1, -1)
    found = inverse(block).movedim(-1, 1) @ block.movedim(-1, 1)
    assert torch.allclose(found, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAKE)
def test_gradients(name):
    model, data, _ = posed(name)
    given = list(model.conv.parameters())

    def loss():
        return descended(model.problem(Inputs.of(data)), 6).square().sum()

    found = torch.autograd.grad(loss(), given, allow_unused=True)
    along = [torch.randn_like(p) for p in given]
    sides = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for p, d in zip(given, along, strict=True):
                p += step * d
            sides.append(loss())
    pairs = zip(found, along, strict=True)
    got = sum((g * d).sum() for g, d in pairs if g is not None)
    assert torch.allclose(got, (sides[0] - sides[1]) / 2e-6, rtol=1e-6, atol=1e-9)
