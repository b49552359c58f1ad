"""What a run reports."""

import pytest
import torch
from helpers import energy, graphs
from torch_geometric.data import Data

from hogwild import GCN, GSDGNN, Inputs, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
)
from hogwild.errors import ConfigError, TraceError
from hogwild.rules import rule_for


def test_history_at_chosen_ticks():
    model, data = energy(), graphs()
    options = {"runs": 2, "ticks": 60, "keep_embeddings": True, "tol": None, "rule": "gradient"}
    every = simulate(model, data, history=1, **options)
    some = simulate(model, data, history=(0, 7, 50, 900), **options)
    assert some.history_ticks == [0, 7, 50]
    assert torch.equal(some.history, every.history[[0, 7, 50]])
    assert torch.equal(some.embeddings, every.embeddings[[0, 7, 50]])
    with pytest.raises(ConfigError, match="history=-1; expected an integer of at least 0"):
        simulate(model, data, history=[-1])


def test_a_run_reports_what_its_trace_shows(tmp_path):
    model, data = energy(beta=1.0), graphs()
    run = simulate(model, data, runs=3, history=10, keep_embeddings=True, record=tmp_path / "t.npz")
    n, q = data.num_nodes, 3
    assert run.predictions.shape == (q, n, 2)
    assert run.h.shape == (q, n, 2)
    assert run.deviation.shape == run.converged.shape == run.reached.shape == (q, 3)
    assert run.history.shape == (len(run.history_ticks), q, 3)
    assert run.embeddings.shape == (len(run.history_ticks), q, n, 2)
    assert float(run.history[0].min()) > float(run.history[-1].max())
    torch.testing.assert_close(run.reference, model.embed(Inputs.of(data)).value)

    # Counts against the trace, which knows who updated.
    problem = model.problem(Inputs.of(data))
    counts = torch.zeros(q * n, dtype=torch.long)
    oldest = 0
    for tick in run.trace.ticks:
        counts[tick.at.nodes] += 1
        oldest = max(oldest, int((tick.time - tick.view).max()) if tick.view.numel() else 0)
    assert torch.equal(run.updates.flatten(), counts)
    degree = problem.graph.in_degree.repeat(q)
    assert torch.equal(run.packets.flatten(), counts * degree)
    assert run.staleness.packet.largest == oldest == 2
    assert run.staleness.bound == 5
    assert run.staleness.content.largest <= 2 * 2 + 5
    assert all(run.assumptions.values())
    assert int(run.saved.sum()) == 0
    assert "within tolerance" in str(run)

    again = simulate(model, data, runs=3, replay=tmp_path / "t.npz")
    assert torch.equal(again.h, run.h)
    assert torch.equal(again.updates, run.updates)
    other = GCN(
        3, out_channels=2
    ).double()  # the schedule is integers only: any model can follow it
    assert simulate(other, data, runs=3, replay=run.trace).h.shape == (q, n, 10)
    with pytest.raises(TraceError, match="another graph"):
        simulate(model, graphs(seed=2), runs=3, replay=run.trace)
    with pytest.raises(TraceError, match="number of runs"):
        simulate(model, data, runs=2, replay=run.trace)


def test_every_packet_is_counted_in_bytes():
    """Against the trace, which knows who sent how often, and the packets written out: k = 2."""
    data, q, k = graphs(), 2, 2
    triangle, vector = k * (2 * k + 1), 2 * k  # of a message, over both ends of its edge
    numbers = {
        ("gradient", 0.01): k + k,
        ("gradient", "auto"): k + k + k * k,
        ("messages", "auto"): k + triangle + vector + k + k * k,
    }
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    for (rule, step), count in numbers.items():
        run = simulate(energy(), data, runs=q, ticks=30, tol=None, rule=rule, step=step)
        assert torch.equal(run.packets, run.updates * degree)
        assert torch.equal(run.bytes, 4 * count * run.packets)
        problem = energy().problem(Inputs.of(data)).detach()
        made, start = rule_for(problem, rule, step), problem.start()
        letters = made.begin(start, problem.graph.everyone.current(start))
        assert letters.size(1) == made.letter_width
    for step in (0.01, "auto", "certified"):  # both sides of every edge: no letters
        model = GSDGNN(3, hidden_channels=k, out_channels=2).double()
        run = simulate(model, data, runs=q, ticks=30, tol=None, rule="gradient", step=step)
        assert torch.equal(run.packets, run.updates * degree)
        assert torch.equal(run.bytes, 4 * k * run.packets)
        row = run.deadlines.at(ticks=29)
        assert row["bytes"] == pytest.approx(4 * k * row["packets"])
    layers = simulate(GCN(3, out_channels=2).double(), data, runs=q, rule="overwriting")
    assert torch.equal(layers.bytes, 4 * 10 * layers.packets)
    price = layers.price
    assert price.updates == 5
    assert price.packets == pytest.approx(5 * float(degree.double().mean()))
    assert price.bytes == pytest.approx(4 * 10 * price.packets)
    assert f"5 updates, {price.packets:.0f} packets, {price.bytes:.0f} B" in str(layers)


@pytest.mark.parametrize("rule", ["overwriting", "resending", "caching"])
def test_nothing_is_sent_along_a_loop(rule):
    x, edge_index = torch.randn(3, 2), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    looped = torch.cat([edge_index, torch.tensor([[0, 1], [0, 1]])], 1)  # links keep their delays
    model = GCN(2, out_channels=1, num_layers=3)
    with_loops, without = (
        simulate(model, Data(x=x, edge_index=edges), rule=rule, ticks=30, tol=None)
        for edges in (looped, edge_index)
    )
    assert torch.equal(with_loops.packets, without.packets)
    assert torch.equal(with_loops.bytes, without.bytes)


def test_a_replay_has_the_bounds_of_what_was_recorded(tmp_path):
    """The certified step depends on them: without them it would not be the same run."""
    model, data, path = energy(), graphs((6,)), tmp_path / "trace"
    run = simulate(
        model, data, stagger=9, delay=6, step="certified", ticks=200, tol=None, record=path,
        impairments=BernoulliLoss(0.3, burst=2),
    )  # fmt: skip
    again = simulate(model, data, step="certified", tol=None, replay=path, record=True)
    assert torch.equal(again.h, run.h)
    assert again.staleness.bound == run.staleness.bound == 6 + 2 * 9 + 1
    assert again.assumptions == run.assumptions == {"a": True, "b": True, "c": True}
    assert again.trace.about["stagger"] == 9


def test_assumptions_that_do_not_hold_are_reported():
    """(a) where nodes sleep through their turns, (b) where packets stay away."""
    model, data = energy(), graphs((6,))
    options = {"rule": "gradient", "stagger": 5, "delay": 0, "ticks": 200, "tol": None}
    lossy = simulate(model, data, impairments=BernoulliLoss(0.3), **options)
    assert lossy.assumptions == {"a": True, "b": False, "c": True}
    assert not lossy.staleness.bounded
    asleep = Crashes(0.9, period=14, downtime=10, until=200)
    sleepy = simulate(model, data, impairments=asleep, **options)
    assert sleepy.assumptions["a"] is False
    # Nodes that are down when a run ends have made no update that could show it.
    down = Crashes(1.0, period=300, downtime=298, until=300)
    assert simulate(model, data, impairments=down, **options).assumptions["a"] is False
    assert all(simulate(model, data, **options).assumptions.values())


def test_content_age_reaches_its_bound_and_not_more():
    model, data = energy(), graphs((20,))
    given = {"stagger": 4, "delay": 3, "ticks": 100, "tol": None, "rule": "gradient"}
    run = simulate(model, data, runs=5, **given)
    assert run.staleness.content.largest == run.staleness.content_bound == 2 * 3 + 4
    assert "D' = 10)" in str(run)
