"""The penalty on stiffness: against dense eigenvalues, finite differences, and what it is for."""

import math

import torch
from helpers import chain, cycle, example
from torch_geometric.data import Batch

from hogwild import EnergyGNN, Inputs
from hogwild.executors.descent import blocks
from hogwild.training import stiffness
from hogwild_node.rules.gradient import DAMPING


def posed():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, replicas=2).double()
    data = Batch.from_data_list([example(cycle(5), 5), example(chain(4), 4)])
    return model, Inputs.of(data), model.embed(Inputs.of(data)).value.mT.detach()


def dense(problem, h, r, g):
    """The updates that the slowest direction of one graph needs, from dense matrices."""
    hessian, (_, block) = problem.evaluate(h).hessian(), blocks(problem, h)
    nodes = (problem.graph.batch == g).nonzero()[:, 0]
    places = [(c, int(n)) for n in nodes for c in range(h.size(1))]
    rows = []
    for c, n in places:
        one = torch.zeros_like(h)
        one[r, c, n] = 1.0
        rows.append(torch.stack([hessian.apply(one)[r, a, b] for a, b in places]))
    d = torch.block_diag(*[block[r, :, :, n] for n in nodes])
    factor = torch.linalg.inv(torch.linalg.cholesky(d))
    least = torch.linalg.eigvalsh(factor @ torch.stack(rows) @ factor.mT)[0]
    return -math.log(stiffness.SHARE) / (DAMPING * float(least))


def test_predicted_updates_are_those_of_the_slowest_direction(monkeypatch):
    monkeypatch.setattr(stiffness, "POWERS", 2000)
    model, inputs, h = posed()
    problem = model.problem(inputs)
    with torch.no_grad():
        found = stiffness.stiffness(problem, h, 1).exp()
        for r in range(2):
            for g in range(2):
                expected = dense(problem.detach(), h, r, g)
                assert abs(float(found[r, g]) / expected - 1.0) < 1e-4


def test_a_deadline_that_is_met_costs_nothing():
    model, inputs, h = posed()
    found = stiffness.stiffness(model.problem(inputs), h, 10**9)
    assert torch.equal(found.detach(), torch.zeros(2, 2, dtype=torch.float64))
    found.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_gradient(monkeypatch):
    """Along a random direction of the parameters, with the answers held fixed."""
    monkeypatch.setattr(stiffness, "POWERS", 2000)
    model, inputs, h = posed()
    given = list(model.conv.parameters())

    def penalty():
        return stiffness.stiffness(model.problem(inputs), h, 1).sum()

    found = torch.autograd.grad(penalty(), given, allow_unused=True)
    along = [torch.randn_like(p) for p in given]
    sides = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            for p, d in zip(given, along, strict=True):
                p += step * d
            sides.append(penalty())
    pairs = zip(found, along, strict=True)
    got = sum((g * d).sum() for g, d in pairs if g is not None)
    assert torch.allclose(got, (sides[0] - sides[1]) / 2e-5, rtol=1e-3)
