"""Pictures: what is drawn against what was simulated, files that hold it, refusals."""

from dataclasses import replace
from functools import partial

import helpers
import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain, grid, looks_like_a_picture

import hogwild
from hogwild import GCN, EnergyGNN, plots, simulate
from hogwild.errors import ConfigError

example = partial(helpers.example, width=1)


def numbers(ax):
    return [text.get_text() for text in ax.texts]


def bars(ax):
    return np.array([patch.get_height() for patch in ax.patches])


def test_convergence(tmp_path):
    data = example(grid(2, 3), 6)
    energy, gcn = (
        EnergyGNN(1, out_channels=1, beta=1.0).double(),
        GCN(1, out_channels=1, act="tanh").double(),
    )
    run = simulate(energy, data, runs=3, history=5)
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
    many = simulate(energy, data, runs=25, history=5, ticks=20)
    (ax,) = plots.convergence(many).axes
    assert len(ax.lines) == 1
    middle = many.history[:, :, 0].quantile(0.5, dim=1)
    assert np.allclose(ax.lines[0].get_ydata(), middle, rtol=1e-12)


def test_output_histogram(tmp_path):
    data = example(chain(4), 4)
    results = [
        hogwild.robustness(model.double(), data, runs=30, rule=rule)
        for model, rule in (
            (GCN(1, out_channels=2), "overwriting"),
            (EnergyGNN(1, out_channels=2, beta=1.0), "messages"),
        )
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
    model = GCN(1, out_channels=1, replicas=replicas).double()
    result = hogwild.robustness(model, data, target=y, rule="overwriting")
    figure = result.plot(tmp_path / "r.png")
    assert looks_like_a_picture(tmp_path / "r.png")
    assert len(figure.axes) == 1 + target + 2  # and the error by deadline against two costs
    dots = figure.axes[target].lines[1]
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
        rule="overwriting",
    )
    for value in (None, "spread", "distance", "converged"):
        figure = found.plot(value=value)
        for ax, table in zip(figure.axes, found.grid(value), strict=False):
            assert np.allclose(ax.images[0].get_array(), table)
    found.plot(tmp_path / "map.png")
    assert looks_like_a_picture(tmp_path / "map.png")
    assert figure.axes[1].get_title(loc="left") == "20% of packets lost"


def test_rounding_is_not_painted():
    """An energy GNN ends at the synchronous answer under every schedule: one colour for all."""
    data = example(chain(4), 4)
    found = hogwild.sweep(
        EnergyGNN(1, out_channels=1, beta=1.0).double(),
        data,
        staggers=(1, 3),
        delays=(0, 2),
        runs=2,
        target=torch.randn(4, 1, **DOUBLE),
    )
    for value in (None, "distance", "spread"):
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
    errors = hogwild.robustness(model, data, target=right, rule="overwriting")  # rmse: 0 in step
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
