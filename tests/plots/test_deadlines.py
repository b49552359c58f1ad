"""The picture of the error by deadline shows the table's numbers."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, energy, graphs

from hogwild import plots, simulate
from hogwild.errors import ConfigError


def case():
    data = graphs((5, 12))
    data.y = torch.randn(17, 2, generator=torch.Generator().manual_seed(0), **DOUBLE)
    return energy(beta=2.0), data


def test_curves_and_the_light_cone(tmp_path):
    model, data = case()
    seen = {rule: simulate(model, data, runs=2, rule=rule).deadlines
            for rule in ("messages", "gradient")}  # fmt: skip
    figure = plots.deadlines(seen, tmp_path / "deadlines.png", title="two rules")
    assert (tmp_path / "deadlines.png").stat().st_size > 1000
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


def test_without_a_target_the_deviation_is_drawn():
    model, data = case()
    del data.y
    run = simulate(model, data, runs=2, history=5)
    ax = plots.deadlines(run.deadlines, x=["ticks"]).axes[0]
    assert ax.get_yscale() == "log"
    assert len(run.plot().axes) == 3
    run = simulate(model, data, runs=2)
    assert len(run.plot().axes) == 2


def test_bad_input():
    model, data = case()
    seen = simulate(model, data).deadlines
    with pytest.raises(ConfigError, match="expected some of ticks"):
        plots.deadlines(seen, x=["hours"])
    with pytest.raises(ConfigError, match="given no run"):
        plots.deadlines({})
    other = simulate(model, data, metric="mae").deadlines
    with pytest.raises(ConfigError, match="expected one metric"):
        plots.deadlines({"a": seen, "b": other})
