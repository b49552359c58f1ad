"""Pictures: what is drawn against what was simulated, files that hold it, refusals."""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, chain, cycle, grid
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

import hogwild
from hogwild import GCN, EnergyGNN, LayeredGNN, plots, simulate
from hogwild.asynchrony.impairments import BernoulliLoss, Crashes, Stragglers
from hogwild.errors import ConfigError, TraceError
from hogwild.graph import Graph
from hogwild.plots.computation import Arrow, ComputationGraph, observe


def example(edge_index, n):
    rng = torch.Generator().manual_seed(1)
    return Data(x=torch.randn(n, 1, generator=rng, **DOUBLE), edge_index=edge_index)


def unit_gnn(layers=3):
    """A node's next value is the sum of its own and its neighbours'."""
    convs = [SimpleConv(aggr="sum", combine_root="sum") for _ in range(layers)]
    return LayeredGNN(convs, 1, out_channels=1, hidden_channels=1, act=None, encoder=False).double()


def looks_like_a_picture(path, width=300):
    """A PNG of some size, with ink on white."""
    pixels = imread(path)[..., :3]
    assert min(pixels.shape[:2]) >= width
    ink = (pixels.min(-1) < 0.9).mean()
    return 0.005 < ink < 0.9


def numbers(ax):
    return [text.get_text() for text in ax.texts]


def bars(ax):
    return np.array([patch.get_height() for patch in ax.patches])


# -- the computation graph -------------------------------------------------------------------------

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


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(GRAPHS), st.integers(1, 4), st.integers(1, 6), st.integers(0, 4),
    st.integers(0, 10**6), st.sampled_from([(), BernoulliLoss(0.4), Stragglers(0.5)]),
)  # fmt: skip
def test_arrows_are_what_was_read(graph, depth, stagger, delay, seed, impairments):
    edge_index, n = graph
    run = simulate(
        GCN(1, out_channels=1, hidden_channels=2, num_layers=depth).double(), example(edge_index, n), stagger=stagger,
        delay=delay, seed=seed, impairments=impairments, record=True,
    )  # fmt: skip
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


@pytest.mark.parametrize("seed", range(5))
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
    final = simulate(unit_gnn(), data, seed=seed).h[0, :, 0]
    assert torch.allclose(values[:, -1], final, rtol=0, atol=1e-12)


def test_wide_embeddings_have_no_number_to_write():
    assert (
        observe(GCN(1, out_channels=1).double(), example(chain(3), 3), stagger=2, delay=1)[1]
        is None
    )


def test_computation_graph(tmp_path):
    data, path = example(grid(2, 3), 6), tmp_path / "new" / "graph.png"
    figure = plots.computation_graph(
        GCN(1, out_channels=1, hidden_channels=1, num_layers=2).double(), data, seed=1, path=path
    )
    assert looks_like_a_picture(path)
    arrows, _ = observe(
        GCN(1, out_channels=1, hidden_channels=2, num_layers=2).double(),
        data,
        stagger=5,
        delay=2,
        seed=1,
    )
    first, second = figure.axes
    assert len(first.patches) == len(arrows.intended)
    assert len(second.patches) == len(arrows.intended) + len(arrows.unintended)
    assert {text.get_text() for text in second.get_legend().texts} == {
        "kept", "removed", "unintended",
    }  # fmt: skip


def test_computation_graph_refuses(tmp_path):
    data = example(chain(3), 3)
    for model in (
        EnergyGNN(1, out_channels=1).double(),
        LayerTagged(GCN(1, out_channels=1).double()),
    ):
        with pytest.raises(ConfigError, match="has no computation graph"):
            plots.computation_graph(model, data)
    crashes = Crashes(1.0, period=4, downtime=2, rejoin="cold", until=8)
    with pytest.raises(ConfigError, match="crashes cold"):
        plots.computation_graph(GCN(1, out_channels=1).double(), data, impairments=crashes)
    run = simulate(GCN(1, out_channels=1).double(), data, record=True)
    with pytest.raises(TraceError, match="another graph"):
        ComputationGraph.of(run.trace, Graph.of(chain(4), 4), 5)
    with pytest.raises(TraceError, match="made 5 to 5 updates in this trace; expected 3"):
        ComputationGraph.of(run.trace, Graph.of(data.edge_index, 3), 3)
    path = tmp_path / "graph.xyz"
    with pytest.raises(ConfigError, match=r"expected one of .*pdf, .*png"):
        plots.computation_graph(GCN(1, out_channels=1).double(), data, path=path)
    assert list(tmp_path.iterdir()) == []


# -- charts ----------------------------------------------------------------------------------------


def test_convergence(tmp_path):
    data = example(grid(2, 3), 6)
    energy, gcn = EnergyGNN(1, out_channels=1).double(), GCN(1, out_channels=1, act="tanh").double()
    run = simulate(energy, data, runs=3, history=5, record=True)
    figure = plots.convergence(run, tmp_path / "one.png")
    assert looks_like_a_picture(tmp_path / "one.png")
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    for number, line in enumerate(ax.lines):
        assert line.get_xdata().tolist() == run.history_ticks
        assert np.allclose(line.get_ydata(), run.history[:, number, 0], rtol=1e-12)
    both = plots.convergence({"energy": run, "GCN": simulate(gcn, data, history=1)})
    assert [text.get_text() for text in both.axes[0].get_legend().texts] == ["energy", "GCN"]
    with pytest.raises(ConfigError, match="no history"):
        plots.convergence(simulate(gcn, data))
    with pytest.raises(ConfigError, match="needs simulate"):
        plots.convergence(simulate(gcn, data, history=1), x="updates")
    with pytest.raises(ConfigError, match="x='seconds'"):
        plots.convergence(run, x="seconds")


def test_convergence_over_updates():
    """At the end of the axis stands the mean of the updates counted by the simulation."""
    data, model = example(grid(2, 3), 6), EnergyGNN(1, out_channels=1, beta=1.0).double()
    run = simulate(model, data, runs=2, history=1, record=True)
    (ax,) = plots.convergence(run, x="updates").axes
    for number, line in enumerate(ax.lines):
        expected = float(run.updates[number].double().mean())
        assert line.get_xdata()[-1] == pytest.approx(expected, rel=1e-12)
    many = simulate(model, data, runs=25, history=5, record=True)
    (ax,) = plots.convergence(many, x="updates").axes
    assert len(ax.lines) == 1
    middle = many.history[:, :, 0].quantile(0.5, dim=1)
    assert np.allclose(ax.lines[0].get_ydata(), middle, rtol=1e-12)


def test_output_histogram(tmp_path):
    data = example(chain(4), 4)
    results = [
        hogwild.robustness(model.double(), data, runs=30)
        for model in (GCN(1, out_channels=2), EnergyGNN(1, out_channels=2))
    ]
    figure = plots.output_histogram(results, 1, 1, titles=["a", "b"], path=tmp_path / "h.png")
    assert looks_like_a_picture(tmp_path / "h.png")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]
    assert (bars(figure.axes[1]) > 0).sum() == 1
    outputs = results[0].run.predictions[:, 1, 1]
    for patch in figure.axes[0].patches:
        inside = (outputs >= patch.get_x()) & (outputs < patch.get_x() + patch.get_width())
        assert patch.get_height() == pytest.approx(float(inside.double().mean()), abs=0.04)
    assert len(plots.output_histogram(results[1]).axes) == 1
    # One that agrees has limits from its own outputs, whatever stands beside it.
    far = replace(results[0].run, predictions=100.0 * results[0].run.predictions)
    beside = plots.output_histogram([replace(results[0], run=far), results[1]], 1, 1).axes[1]
    size = float(results[1].prediction.abs().max())
    assert np.ptp(beside.get_xlim()) <= 1.2 * size
    with pytest.raises(ConfigError, match="replicas"):
        plots.output_histogram(
            hogwild.robustness(GCN(1, out_channels=1, replicas=2).double(), data)
        )


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("target", [True, False])
def test_robustness_plot(tmp_path, target, replicas):
    data = example(chain(4), 4)
    y = torch.randn(4, 1, **DOUBLE) if target else None
    result = hogwild.robustness(GCN(1, out_channels=1, replicas=replicas).double(), data, target=y)
    figure = result.plot(tmp_path / "r.png")
    assert looks_like_a_picture(tmp_path / "r.png")
    assert len(figure.axes) == 1 + target
    dots = figure.axes[-1].lines[1]
    assert np.array_equal(dots.get_ydata(), result.run.predictions.flatten())
    assert np.array_equal(
        dots.get_xdata(), result.prediction.expand_as(result.run.predictions).flatten()
    )


def test_heatmap(tmp_path):
    values = torch.tensor([[[0.0, 0.25, 0.5], [1.0, float("nan"), 0.75]]] * 2)
    figure = plots.heatmap(
        values, rows=(1, 2), columns=(0, 2, 5), label="loss", path=tmp_path / "h.png"
    )
    assert looks_like_a_picture(tmp_path / "h.png")
    assert numbers(figure.axes[0]) == ["0", "0.25", "0.5", "1", "–", "0.75"]
    shown = figure.axes[1].images[0].get_array()
    assert np.ma.allclose(shown[0], values[1, 0])
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    signed = plots.heatmap(np.array([[-1.0, 0.5]]), rows=("",), columns=(1, 2), percent=True)
    assert signed.axes[0].images[0].get_clim() == (-1.0, 1.0)
    assert numbers(signed.axes[0]) == ["-100.0", "50.0"]
    with pytest.raises(ConfigError, match=r"values have shape \[2, 2, 3\]; expected \[2, 2\]"):
        plots.heatmap(values, rows=(1, 2), columns=(0, 2))


def test_sweep_plot(tmp_path):
    data = example(chain(4), 4)
    data.y = torch.randn(4, 1, **DOUBLE)
    found = hogwild.sweep(
        GCN(1, out_channels=1).double(),
        data,
        staggers=(1, 3),
        delays=(0, 2),
        losses=(0.0, 0.2),
        runs=2,
    )
    for value in (None, "spread", "distance", "converged"):
        figure = found.plot(tmp_path / f"{value}.png", value=value)
        assert looks_like_a_picture(tmp_path / f"{value}.png")
        for ax, table in zip(figure.axes, found.grid(value), strict=False):
            assert np.allclose(ax.images[0].get_array(), table)
    assert figure.axes[1].get_title(loc="left") == "20% of packets lost"


@pytest.mark.parametrize("value", [None, "distance", "spread"])
def test_rounding_is_not_painted(value):
    """An energy GNN ends at the synchronous answer under every schedule: one colour for all."""
    data = example(chain(4), 4)
    found = hogwild.sweep(
        EnergyGNN(1, out_channels=1).double(), data, staggers=(1, 3), delays=(0, 2), runs=2,
        target=torch.randn(4, 1, **DOUBLE),
    )  # fmt: skip
    image = found.plot(value=value).axes[0].images[0]
    assert 0 < float(found.grid(value).abs().max()) < 1e-5
    colours = image.cmap(image.norm(image.get_array()))
    assert float(np.ptp(colours, axis=(0, 1)).max()) < 0.01


def test_axes_of_errors_and_shares_end_where_the_values_do():
    data = example(chain(4), 4)
    torch.manual_seed(0)
    model = GCN(1, out_channels=1).double()
    with torch.no_grad():
        right = model(data.x, data.edge_index)
    errors = hogwild.robustness(model, data, target=right)  # rmse: 0 in step
    low, high = errors.plot().axes[0].get_ylim()
    assert low == 0.0
    assert high > float(errors.asynchronous.max())
    shares = hogwild.robustness(model, data, target=(right[:, 0] > 0).long())
    low, high = shares.plot().axes[0].get_ylim()
    assert (shares.metric.name, high) == ("accuracy", 1.0)
    assert low >= 0.0


def test_labels_of_heat_maps_stay_inside():
    found = plots.heatmap(np.ones((1, 2)), rows=(1,), columns=(1, 2),
                          label="mean decrease of performance (accuracy)")  # fmt: skip
    found.canvas.draw()
    box = found.axes[-1].yaxis.label.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= found.bbox.height


@pytest.mark.parametrize("suffix", ["pdf", "svg"])
def test_formats(tmp_path, suffix):
    path = tmp_path / f"h.{suffix}"
    plots.heatmap(torch.rand(2, 2), rows=(1, 2), columns=(1, 2), path=str(path))
    assert path.read_bytes().startswith(b"%PDF" if suffix == "pdf" else b"<?xml")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


# -- the extra -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["matplotlib", "pandas"])
def test_without_the_extra(monkeypatch, missing):
    result = hogwild.robustness(GCN(1, out_channels=1).double(), example(chain(3), 3), runs=1)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"{missing} is missing.*hogwild-gnn\[plots\]"):
        result.plot() if missing == "matplotlib" else result.to_frame()


def test_arrows_have_names():
    arrow = Arrow(source=1, layer=0, target=2, after=1)
    assert (arrow.source, arrow.layer, arrow.target, arrow.after) == arrow
    arrows, _ = observe(unit_gnn(1), example(chain(3), 3), stagger=1, delay=0)
    assert arrow not in arrows.unintended
    assert arrow in arrows.kept
