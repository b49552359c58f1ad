"""When a run ends: it has arrived, or it comes no nearer."""

import torch
from helpers import energy, graphs
from torch_geometric.data import Data

import hogwild
from hogwild import EnergyGNN, simulate
from hogwild.executors.simulate import PATIENCE, Stall


def test_a_run_that_still_changes_somewhere_has_not_stalled():
    """The largest distance stays where it was until word has come to the last node; the sum of all
    does not."""
    far, travelling, done = Stall(), Stall(), []
    for t in range(0, 2000, 10):
        flat = torch.ones(1, 1, 1)
        sums = torch.full((1, 1, 1), 1.0 - t / 2000)
        done.append(bool(far.look(t, torch.cat([flat, flat]))))
        assert not bool(travelling.look(t, torch.cat([flat, sums])))
    assert done.index(True) == PATIENCE // 10
    late = Stall()
    for t in range(0, 4000, 10):  # patience grows with the ticks
        distance = torch.full((1, 1, 1), max(1.0 - t / 3000, 0.5))
        if bool(late.look(t, distance)):
            break
    assert 2900 <= t <= 3000


def test_reached_is_the_first_look_within_the_tolerance():
    """And a run with replicas is there when all of them are."""
    torch.manual_seed(0)
    model, data = EnergyGNN(3, out_channels=2, replicas=2, beta=2.0).double(), graphs((5, 12))
    run = simulate(model, data, runs=2, rule="gradient", tol=1e-3, history=1)
    assert run.reached.shape == (2, 2)
    assert bool(run.converged.all())
    there = (run.history <= 1e-3).all(2)  # [T, Q, G]
    first = torch.tensor(run.history_ticks)[there.to(torch.int).argmax(0)]
    assert torch.equal(run.reached, first)
    assert len(run.reached.unique()) > 1
    alone = (run.history <= 1e-3).to(torch.int).argmax(0)  # of each replica
    assert bool((alone[:, 0] != alone[:, 1]).any())


def test_converged_means_within_the_tolerance():
    """And not a little more; distances are relative to the largest entry of each graph."""
    model, data = energy(beta=2.0), graphs((5, 12))
    options = {"rule": "gradient", "runs": 2, "ticks": 41}
    run = simulate(model, data, tol=None, **options)
    largest = run.reference.abs()
    for r in range(2):
        for g in range(2):
            nodes = data.batch == g
            gap = (run.h[r] - run.reference)[nodes].abs().max() / largest[nodes].max()
            torch.testing.assert_close(run.deviation[r, g], gap)
    near = run.deviation
    assert 1e-6 < float(near.min()) < float(near.max()) < 1.0
    assert not bool(run.converged.any())  # without a tolerance, 1e-6 counts
    middle = float((near.min() * near.max()).sqrt())
    some = simulate(model, data, tol=middle, **options)
    assert torch.equal(some.converged, some.deviation <= middle)
    assert torch.equal(some.reached >= 0, some.converged)
    assert bool(some.converged.any())
    assert not bool(some.converged.all())
    assert not bool(simulate(model, data, tol=0.9 * float(near.min()), **options).converged.any())


def test_the_price_does_not_depend_on_history():
    """A run ends when it arrives, to 2 % of its ticks."""
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    data = Data(x=torch.randn(4, 3, dtype=torch.float64), edge_index=path)
    model = hogwild.GCN(3, out_channels=1, num_layers=3).double()
    usual, watched = (
        simulate(model, data, rule="caching", stagger=1, delay=0, history=h) for h in (None, 1)
    )
    assert usual.ticks == watched.ticks <= 5
    assert torch.equal(usual.bytes, watched.bytes)
