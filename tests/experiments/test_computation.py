"""The computation graph of a run: the arrows that were read, and their picture."""

from collections import Counter
from functools import partial

import helpers
import pytest
import torch
from helpers import ODD, ODD_NODES, chain, cycle, grid
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import SimpleConv

from experiments.computation import ComputationGraph, observe
from hogwild import GCN, EnergyGNN, LayeredGNN, simulate
from hogwild.asynchrony.impairments import BernoulliLoss, Crashes, Stragglers
from hogwild.errors import ConfigError, TraceError
from hogwild.graph import Graph

example = partial(helpers.example, width=1)


def unit_gnn(layers=3):
    """A node's next value is the sum of its own and its neighbours'."""
    convs = [SimpleConv(aggr="sum", combine_root="sum") for _ in range(layers)]
    return LayeredGNN(convs, 1, out_channels=1, hidden_channels=1, act=None, encoder=False).double()


GRAPHS = [(chain(5), 5), (cycle(4), 4), (grid(2, 3), 6), (ODD, ODD_NODES)]


def by_brute_force(trace, edge_index, depth):
    """Every node's update times, and for each view the updates its sender had made before."""
    times = {}
    for tick in trace.ticks:
        for i in tick.at.nodes.tolist():
            times.setdefault(i, []).append(tick.time)
    views = {
        (tick.time, edge): view
        for tick in trace.ticks
        for edge, view in zip(tick.at.edges.tolist(), tick.view.tolist(), strict=True)
    }
    read = []
    for i, updates in times.items():
        assert len(updates) == depth
        for layer, time in enumerate(updates):
            read.append((i, layer, i, layer + 1))
            for edge, (j, to) in enumerate(edge_index.T.tolist()):
                if to == i and j != i:
                    heard = sum(t < views[time, edge] for t in times[j])
                    read.append((j, heard, i, layer + 1))
    return Counter(read)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(GRAPHS), st.integers(1, 4), st.integers(1, 6), st.integers(0, 4),
    st.integers(0, 10**6), st.sampled_from([(), BernoulliLoss(0.4), Stragglers(0.5)]),
)  # fmt: skip
def test_arrows_are_what_was_read(graph, depth, stagger, delay, seed, impairments):
    edge_index, n = graph
    run = simulate(
        GCN(1, out_channels=1, hidden_channels=2, num_layers=depth).double(),
        example(edge_index, n),
        stagger=stagger,
        delay=delay,
        seed=seed,
        rule="overwriting",
        impairments=impairments,
        record=True,
    )
    arrows = ComputationGraph.of(run.trace, Graph.of(edge_index, n), depth)
    expected = by_brute_force(run.trace, edge_index, depth)
    assert Counter(map(tuple, arrows.read)) == expected
    links = [(j, i) for j, i in edge_index.T.tolist() if i != j] + [(i, i) for i in range(n)]
    intended = Counter((j, m, i, m + 1) for j, i in links for m in range(depth))
    assert Counter(map(tuple, arrows.kept)) == intended & expected
    assert Counter(map(tuple, arrows.removed)) == intended - expected
    assert Counter(map(tuple, arrows.unintended)) == expected - intended
    # As many readings as intended ones; own values are never lost.
    assert len(arrows.removed) == len(arrows.unintended)
    assert all(arrow.source != arrow.target for arrow in arrows.removed)
    if (stagger, delay, impairments) == (1, 0, ()):
        assert not arrows.removed


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("edge_index", "n"), GRAPHS[:3])
def test_values_follow_from_the_arrows(edge_index, n, seed):
    """Summing along the arrows that were read gives what the simulation computed."""
    data = example(edge_index, n)
    arrows, values = observe(unit_gnn(), data, stagger=5, delay=2, seed=seed)

    def value(i, layer):
        if layer == 0:
            return float(data.x[i])
        into = [a for a in arrows.read if (a.target, a.after) == (i, layer)]
        return sum(value(a.source, a.layer) for a in into)

    for i in range(n):
        for layer in range(4):
            assert value(i, layer) == pytest.approx(float(values[i, layer]), abs=1e-12)
    final = simulate(unit_gnn(), data, seed=seed, rule="overwriting").h[0, :, 0]
    assert torch.allclose(values[:, -1], final, rtol=0, atol=1e-12)


def test_refusals():
    data = example(chain(3), 3)
    with pytest.raises(ConfigError, match="has no computation graph"):
        observe(EnergyGNN(1, out_channels=1).double(), data)
    crashes = Crashes(1.0, period=4, downtime=2, rejoin="cold", until=8)
    with pytest.raises(ConfigError, match="crashes cold"):
        observe(GCN(1, out_channels=1).double(), data, impairments=crashes)
    run = simulate(GCN(1, out_channels=1).double(), data, rule="overwriting", record=True)
    with pytest.raises(TraceError, match="another graph"):
        ComputationGraph.of(run.trace, Graph.of(chain(4), 4), 5)
    with pytest.raises(TraceError, match="made 5 to 5 updates in this trace; expected 3"):
        ComputationGraph.of(run.trace, Graph.of(data.edge_index, 3), 3)
