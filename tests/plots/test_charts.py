"""Pictures: what is drawn against what was simulated, files that hold it, refusals."""

import sys
from dataclasses import replace
from functools import partial

import helpers
import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain, energy, graphs, grid, looks_like_a_picture

import hogwild
from hogwild import GCN, EnergyGNN, plots, simulate
from hogwild.errors import ConfigError
from hogwild.plots.style import figure

example = partial(helpers.example, width=1)
PATH = example(chain(4), 4)


def gcn(**options):
    return GCN(1, **({"out_channels": 1} | options)).double()


def convex(**options):
    return EnergyGNN(1, **({"out_channels": 1, "beta": 1.0} | options)).double()


def numbers(ax):
    return [text.get_text() for text in ax.texts]


def bars(ax):
    return np.array([patch.get_height() for patch in ax.patches])


def test_the_deviation_over_time(tmp_path):
    data = example(grid(2, 3), 6)
    run = simulate(convex(), data, runs=3, history=5)
    ax = run.plot(tmp_path / "one.png").axes[-1]
    assert looks_like_a_picture(tmp_path / "one.png")
    assert ax.get_yscale() == "log"
    for number, line in enumerate(ax.lines):
        assert line.get_xdata().tolist() == run.history_ticks
        assert np.allclose(line.get_ydata(), run.history[:, number, 0], rtol=1e-12)
    many = simulate(convex(), data, runs=25, ticks=20)
    (line,) = many.plot().axes[-1].lines
    assert line.get_xdata().tolist() == many.deadlines.ticks.tolist()[1:]
    middle = many.deadlines.deviation[1:, :, 0].quantile(0.5, dim=1)
    assert np.allclose(line.get_ydata(), middle, rtol=1e-12)


def test_output_histogram(tmp_path):
    results = [
        hogwild.robustness(model, PATH, runs=30, rule=rule)
        for model, rule in ((gcn(out_channels=2), "overwriting"), (convex(out_channels=2), "auto"))
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
        plots.output_histogram(hogwild.robustness(gcn(replicas=2), PATH))


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("target", [True, False])
def test_robustness_plot(tmp_path, target, replicas):
    y = torch.randn(4, 1, **DOUBLE) if target else None
    result = hogwild.robustness(gcn(replicas=replicas), PATH, target=y, rule="overwriting")
    figure = result.plot(tmp_path / "r.png")
    assert looks_like_a_picture(tmp_path / "r.png")
    assert len(figure.axes) == 1 + target + 2  # and the error by deadline against two costs
    dots, after = figure.axes[target].lines[1], result.run.predictions
    assert np.array_equal(dots.get_ydata(), after.flatten())
    assert np.array_equal(dots.get_xdata(), result.prediction.expand_as(after).flatten())


def test_axes_of_errors_and_shares_end_where_the_values_do():
    torch.manual_seed(0)
    model = gcn()
    with torch.no_grad():
        right = model(PATH.x, PATH.edge_index)
    errors = hogwild.robustness(model, PATH, target=right, rule="overwriting")  # rmse: 0 in step
    low, high = errors.plot().axes[0].get_ylim()
    assert low == 0.0
    assert high > float(errors.asynchronous.max())
    shares = hogwild.robustness(model, PATH, target=(right[:, 0] > 0).long())
    low, high = shares.plot().axes[0].get_ylim()
    assert (shares.metric.name, high) == ("accuracy", 1.0)
    assert low >= 0.0


# -- heat maps -------------------------------------------------------------------------------------


def test_sweep_plot(tmp_path):
    settings = {
        "staggers": (1, 3),
        "delays": (0, 2),
        "runs": 2,
        "target": torch.randn(4, 1, **DOUBLE),
    }
    found = hogwild.sweep(gcn(), PATH, losses=(0.0, 0.2), rule="overwriting", **settings)
    for value in (None, "spread", "distance", "converged"):
        figure = found.plot(tmp_path / "map.png", value=value)
        for ax, table in zip(figure.axes, found.grid(value), strict=False):
            assert np.allclose(ax.images[0].get_array(), table)
        assert numbers(figure.axes[0])[0] == f"{100 * found.grid(value)[0, 0, 0]:.1f}" or (
            value != "converged"
        )
    assert looks_like_a_picture(tmp_path / "map.png")
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    figure.canvas.draw()
    box = figure.axes[-1].yaxis.label.get_window_extent()  # long labels stay inside
    assert box.y0 >= 0
    assert box.y1 <= figure.bbox.height
    for suffix, begin in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        found.plot(tmp_path / f"h.{suffix}")
        assert (tmp_path / f"h.{suffix}").read_bytes().startswith(begin)
    assert figure.axes[1].get_title(loc="left") == "20% of packets lost"
    better = replace(found.at(3, 2), decrease=-found.at(3, 2).decrease.abs() - 1.0)
    found.results[0.0, 3, 2] = better
    low, high = found.plot().axes[0].images[0].get_clim()  # white is zero
    assert low == -high
    # An energy GNN ends at the synchronous answer under every schedule: one colour for all.
    found = hogwild.sweep(convex(), PATH, **settings)
    for value in (None, "distance", "spread"):
        image = found.plot(value=value).axes[0].images[0]
        assert 0 < float(found.grid(value).abs().max()) < 1e-5
        colours = image.cmap(image.norm(image.get_array()))
        assert float(np.ptp(colours, axis=(0, 1)).max()) < 0.01


# -- error by deadline -----------------------------------------------------------------------------


@pytest.fixture
def case():
    data = graphs((5, 12))
    data.y = torch.randn(17, 2, generator=torch.Generator().manual_seed(0), **DOUBLE)
    return energy(beta=2.0), data


def test_curves_and_the_light_cone(case, tmp_path):
    seen = {rule: simulate(*case, runs=2, rule=rule).deadlines for rule in ("messages", "gradient")}
    figure = plots.deadlines(seen, tmp_path / "deadlines.png", title="two rules")
    assert looks_like_a_picture(tmp_path / "deadlines.png")
    updates, size = figure.axes
    for ax, cost in ((updates, "updates"), (size, "bytes")):
        for name, one in seen.items():
            (line,) = [line for line in ax.lines if line.get_label() == name]
            rows = [row for row in one.rows() if row[cost] > 0]
            assert np.array_equal(line.get_xdata(), [row[cost] for row in rows])
            assert np.array_equal(line.get_ydata(), [row["error"] for row in rows])
    (band,) = updates.patches
    low, high = seen["messages"].cone.range
    assert band.get_x() == pytest.approx(low)
    assert band.get_width() == pytest.approx(high - low)
    assert not size.patches
    styles = {(line.get_linestyle(), line.get_marker()) for line in updates.lines}
    assert len(styles) >= 3  # readable without colours


def test_without_a_target_the_deviation_is_drawn(case):
    model, data = case
    del data.y
    run = simulate(model, data, runs=2, history=5)
    assert plots.deadlines(run.deadlines, x=["ticks"]).axes[0].get_yscale() == "log"


def test_bad_input(case):
    seen, other = simulate(*case).deadlines, simulate(*case, metric="mae").deadlines
    with pytest.raises(ConfigError, match="expected some of ticks"):
        plots.deadlines(seen, x=["hours"])
    with pytest.raises(ConfigError, match="given no run"):
        plots.deadlines({})
    with pytest.raises(ConfigError, match="expected one metric"):
        plots.deadlines({"a": seen, "b": other})


# -- the packages that draw ------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["matplotlib", "pandas"])
def test_without_the_extra(monkeypatch, missing):
    result = hogwild.robustness(gcn(), PATH, runs=1)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"{missing} is missing.*hogwild-gnn\[plots\]"):
        result.plot() if missing == "matplotlib" else result.deadlines.to_frame()


def test_a_notebook_shows_a_figure():
    with figure(2.0, 1.0) as fig:
        fig.subplots()
    assert fig._repr_png_().startswith(b"\x89PNG")
