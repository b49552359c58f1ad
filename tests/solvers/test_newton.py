"""Newton's method: directions that break, and secant curvature."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, batch_of, chain, cycle, grid, tree

import hogwild
from hogwild import EnergyConv, Inputs
from hogwild.errors import ConvergenceError
from hogwild.models import GSDConv
from hogwild.solvers import LinearSolver, Newton, Status, newton, solve


def problem(weight, seed=0, replicas=3):
    """Energies with random parameters: large ones have steep kinks."""
    torch.manual_seed(seed)
    parts = [(chain(30), 30), (tree(25), 25), (cycle(12), 12), (grid(4, 5), 20), (chain(2), 2)]
    edge_index, batch = batch_of(*parts)
    conv = EnergyConv(2, hidden_channels=2, replicas=replicas).double()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(weight * torch.randn_like(p))
        found = conv.problem(
            Inputs(torch.randn(batch.numel(), 2, **DOUBLE), edge_index, batch=batch)
        )
    return found.detach(), torch.zeros(replicas, 2, batch.numel(), **DOUBLE)


def test_a_nan_direction_moves_no_graph(monkeypatch):
    """A graph that has no direction at all stays where it was, and is said to have failed."""
    energy, h0 = problem(0.0)
    found = newton.LinearSolver.solve

    def broken(self, *args, **kwargs):
        solution = found(self, *args, **kwargs)
        solution.value[0, :, :30] = float("nan")  # the first graph of the first replica
        return solution

    monkeypatch.setattr(newton.LinearSolver, "solve", broken)
    monkeypatch.setattr(Newton, "_downhill", staticmethod(lambda _, g: g * float("nan")))
    ended = solve(energy, Newton(), h0)
    assert ended.status[0, 0] == int(Status.STALLED)
    assert torch.equal(ended.value[0, :, :30], h0[0, :, :30])
    assert int(ended.converged.sum()) == ended.converged.numel() - 1


# -- secant curvature -----------------------------------------------------------------------------


def steep(replicas=None, scale=800.0, weight=0.0, **options):
    """Energies on graphs with heavy-tailed features up to ``scale``, the last graph excepted."""
    torch.manual_seed(5)
    parts = [(grid(3, 5), 15), (tree(20), 20), (cycle(12), 12), (chain(20), 20)]
    edge_index, batch = batch_of(*parts)
    x = torch.randn(batch.numel(), 2, **DOUBLE)
    tail = torch.randn(batch.numel(), **DOUBLE).exp().square()
    tail = tail * (scale / tail.max())
    x[:, 0] = torch.where(batch < 3, tail, x[:, 0])
    conv = EnergyConv(2, hidden_channels=2, replicas=replicas, **options).double()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(weight * torch.randn_like(p))
    return conv, x, edge_index, batch


def test_kinks_are_not_passed_one_by_one():
    """With the Hessian alone some of these graphs take more than 800 iterations. Ordinary graphs
    beside them take the same ones as ever."""
    conv, x, edge_index, batch = steep(replicas=6, weight=0.5)
    energy = conv.problem(Inputs(x, edge_index, batch=batch)).detach()
    h0 = energy.start()
    found = solve(energy, Newton(max_iter=800), h0)
    assert bool(found.converged.all())
    plain = solve(energy, Newton(patience=800, max_iter=800), h0)
    assert not bool(plain.converged.all())
    assert int(found.iterations.sum()) < 0.7 * int(plain.iterations.sum())
    ordinary = plain.iterations <= 20
    assert bool(ordinary[:, 3].any())
    assert torch.equal(found.iterations[ordinary], plain.iterations[ordinary])
    same = (found.value == plain.value).all(1)
    assert bool(same[ordinary[:, batch]].all())


def test_newton_converges_after_a_broken_factorisation(monkeypatch):
    """Where curvatures differ by 10¹⁶ it may end in NaN; the gradient still leads downhill."""
    conv, x, edge_index, batch = steep(replicas=2, weight=0.01)
    energy = conv.problem(Inputs(x, edge_index, batch=batch)).detach()
    expected = solve(energy, Newton(), energy.start())
    honest, calls = LinearSolver.solve, []

    def breaking(self, hessian, rhs, rtol, atol=0.0):
        found = honest(self, hessian, rhs, rtol, atol)
        calls.append(len(calls))
        if calls[-1] in (1, 4):
            found.value[0] = float("nan")
        return found

    monkeypatch.setattr(LinearSolver, "solve", breaking)
    found = solve(energy, Newton(), energy.start())
    assert len(calls) > 5
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, expected.value, rtol=1e-6, atol=1e-6)


def test_a_straggler_does_not_depend_on_its_batch_mates():
    """Every graph has a reach of its own, in every replica."""
    conv, x, edge_index, batch = steep(replicas=2)
    energy = conv.problem(Inputs(x, edge_index, batch=batch)).detach()
    h0 = energy.start()
    together = solve(energy, Newton(), h0)
    assert int(together.iterations.max()) > 25
    for r, g in ((0, 1), (1, 2), (0, 3)):
        alone, nodes = energy.select(torch.tensor([r]), torch.tensor([g]))
        single = solve(alone, Newton(), h0[r : r + 1, :, nodes])
        own = together.value[r : r + 1, :, nodes]
        torch.testing.assert_close(single.value, own, rtol=1e-6, atol=1e-6)
        count = int(together.iterations[r, g])  # rounding is enough to lead past another kink
        assert abs(int(single.iterations) - count) <= (0.5 * count if count > 20 else 0)


@pytest.mark.parametrize("options", [{}, {"message": "node"}, {"heads": 2}, {"normalize": True}])
def test_secant_curvature_bounds_the_true_one(options):
    """vᵀSv ≥ vᵀHv, growing with the reach; and the Hessian, to the bit, on graphs without one."""
    conv, x, edge_index, batch = steep(replicas=2, scale=10.0, **options)
    energy = conv.problem(Inputs(x, edge_index, batch=batch)).detach()
    graph = energy.graph
    h, v = torch.randn(2, 2, 2, batch.numel(), **DOUBLE)
    at = energy.evaluate(h)
    reach = torch.tensor([[1.0, 0.0, 30.0, 0.0], [0.0, 5.0, 2.0, 0.0]], **DOUBLE)
    true, near, far = (
        at.secant(s * reach).apply(v) if s else at.hessian().apply(v) for s in (0.0, 1.0, 4.0)
    )
    none = (reach == 0.0)[:, batch].unsqueeze(1).expand_as(v)
    assert torch.equal(near[none], true[none])
    bounds = [graph.dot(v, image) for image in (true, near, far)]
    rounding = 1e-12 * bounds[0]
    assert bool((bounds[1] >= bounds[0] - rounding).all())
    assert bool((bounds[2] >= bounds[1] - rounding).all())
    assert bool((bounds[1] > bounds[0])[reach > 0.0].all())


def test_secant_curvature_from_the_start():
    """The end is Newton's also where no step is taken with the Hessian, whatever the energy."""
    for conv in (
        EnergyConv(2, hidden_channels=2),
        GSDConv(2, hidden_channels=2),
    ):
        _, x, edge_index, batch = steep(scale=2.0)
        energy = conv.double().problem(Inputs(x, edge_index, batch=batch)).detach()
        secant, plain = (solve(energy, Newton(patience=p), energy.start()) for p in (0, 1000))
        assert bool(secant.converged.all())
        assert int(secant.iterations.max()) <= int(plain.iterations.max()) + 6
        torch.testing.assert_close(secant.value, plain.value, rtol=1e-6, atol=1e-7)


def test_the_error_names_large_features():
    conv, x, edge_index, batch = steep(weight=0.3, edge_dim=1, solver=Newton(max_iter=10))
    attr = torch.full((edge_index.size(1), 1), -3e4, **DOUBLE)
    with pytest.raises(ConvergenceError) as error:
        conv(x, edge_index, attr, batch)
    text = str(error.value)
    assert "x has entries up to 800 and edge_attr has entries up to 3e+04" in text
    assert "model.standardize(data)" in text
    assert text.index("entries up to") < text.index("ran out of iterations")
    assert "no longer moves" not in text
    conv.solver = Newton(max_iter=1)
    with pytest.raises(ConvergenceError, match="no longer moves") as error:
        conv(x.clamp(-1, 1), edge_index, attr / 3e4, batch)
    assert "entries" not in str(error.value)


def test_numpy_integers_are_taken():
    assert hogwild.solvers.Newton(max_iter=np.int64(7)) == hogwild.solvers.Newton(max_iter=7)
