"""Newton's method as it runs from recordings, which need no GPU to be checked."""

import pytest
import torch
from helpers import DOUBLE, batch_of, chain, cycle, grid, tree

from hogwild import EnergyConv, Newton
from hogwild.solvers import Status, newton, solve


class Recorder:
    """Runs the body of a recording as it is, and counts."""

    def __init__(self):
        self.calls = self.refused = 0

    def __call__(self, name, body, problem, *inputs):
        found = body(problem, *inputs)
        self.calls += 1
        self.refused += int(found[1].sum())
        return found


def problem(weight, seed=0, replicas=3):
    """Energies with random parameters: large ones have steep kinks."""
    torch.manual_seed(seed)
    parts = [(chain(30), 30), (tree(25), 25), (cycle(12), 12), (grid(4, 5), 20), (chain(2), 2)]
    edge_index, batch = batch_of(*parts)
    conv = EnergyConv(2, 2, replicas=replicas).double()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(weight * torch.randn_like(p))
        found = conv.problem(torch.randn(batch.numel(), 2, **DOUBLE), edge_index, batch=batch)
    return found.detach(), torch.zeros(replicas, 2, batch.numel(), **DOUBLE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_refused_step_stops_nobody_else(weight, seed, monkeypatch):
    """Every graph ends where it ends by steps that are searched one by one."""
    energy, h0 = problem(weight, seed)
    launched = solve(energy, Newton(), h0)
    recorder = Recorder()
    monkeypatch.setattr(newton, "replay", recorder)
    recorded = solve(energy, Newton(), h0)
    assert bool(launched.converged.all())
    assert bool(recorded.converged.all())
    torch.testing.assert_close(recorded.value, launched.value, rtol=1e-7, atol=1e-8)
    assert recorder.calls == int(recorded.iterations.max())
    if weight:
        assert recorder.refused > 0


def test_frozen_graphs_stay_where_they_are(monkeypatch):
    energy, h0 = problem(0.0)
    monkeypatch.setattr(newton, "replay", Recorder())
    solver = Newton()
    state = solver.init(energy, h0 + 1.0)
    active = torch.zeros(3, 5, dtype=torch.bool)
    active[1, 2] = True
    after = solver.step(energy, state, active)
    same = after.nodes["h"] == state.nodes["h"]
    assert torch.equal(same.all(1), ~energy.graph.wide(active)[:, 0])


@pytest.mark.parametrize("most", [1, 2, 6])
def test_a_search_that_fails_is_left_to_the_other_path(most, monkeypatch):
    """Which then says so. A recording may search on for as long again, so fewer graphs stall."""
    energy, h0 = problem(1.0)
    hasty = Newton(max_backtracks=most)
    launched = solve(energy, hasty, h0)
    monkeypatch.setattr(newton, "replay", Recorder())
    recorded = solve(energy, hasty, h0)
    ends = {int(Status.CONVERGED), int(Status.STALLED)}
    assert set(launched.status.unique().tolist()) <= ends
    assert set(recorded.status.unique().tolist()) <= ends
    assert int(recorded.converged.sum()) >= int(launched.converged.sum())
    if most == 1:
        assert not bool(recorded.converged.all())


def test_a_direction_that_is_no_number_moves_nobody(monkeypatch):
    """A graph whose system cannot be solved stays where it was, and is said to have failed."""
    energy, h0 = problem(0.0)
    found = newton.LinearSolver.solve

    def broken(self, *args, **kwargs):
        solution = found(self, *args, **kwargs)
        solution.value[0, :, :30] = float("nan")  # the first graph of the first replica
        return solution

    monkeypatch.setattr(newton.LinearSolver, "solve", broken)
    ended = solve(energy, Newton(), h0)
    assert ended.status[0, 0] == int(Status.STALLED)
    assert torch.equal(ended.value[0, :, :30], h0[0, :, :30])
    assert int(ended.converged.sum()) == ended.converged.numel() - 1
