"""Files of pictures, and the packages that draw them."""

import sys
from functools import partial

import helpers
import pytest
import torch
from helpers import chain

import hogwild
from hogwild import GCN, plots
from hogwild.plots.style import figure

example = partial(helpers.example, width=1)


@pytest.mark.parametrize("suffix", ["pdf", "svg"])
def test_formats(tmp_path, suffix):
    path = tmp_path / f"h.{suffix}"
    plots.heatmap(torch.rand(2, 2), rows=(1, 2), columns=(1, 2), path=str(path))
    assert path.read_bytes().startswith(b"%PDF" if suffix == "pdf" else b"<?xml")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("missing", ["matplotlib", "pandas"])
def test_without_the_extra(monkeypatch, missing):
    result = hogwild.robustness(GCN(1, out_channels=1).double(), example(chain(3), 3), runs=1)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"{missing} is missing.*hogwild-gnn\[plots\]"):
        result.plot() if missing == "matplotlib" else result.deadlines.to_frame()


def test_a_notebook_shows_a_figure():
    with figure(2.0, 1.0, None) as fig:
        fig.subplots()
    assert fig._repr_png_().startswith(b"\x89PNG")
