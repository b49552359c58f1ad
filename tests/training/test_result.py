"""Results: which replica is the best one, and what a run leaves in its folder."""

from dataclasses import replace

import torch
from helpers import looks_like_a_picture
from tiny_tasks import Sums

from hogwild import train
from hogwild.plots.courses import curves


def test_ranking_compares_like_with_like(tmp_path):
    result = train(Sums(), model="gcn", epochs=1, replicas=3)
    metrics = {"val": torch.tensor([0.5, torch.nan, 0.2]), "train": torch.tensor([1.0, 0.01, 1.0])}
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [2, 0, 1]
    metrics["val"] = torch.full((3,), torch.nan)
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [1, 0, 2]


def test_the_curves_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("hogwild.training.result.curves", curves)
    result = train(Sums(), model="gcn", epochs=3, replicas=2, log_every=1, folder=tmp_path)
    assert looks_like_a_picture(tmp_path / "curves.png")
    for count in (1, 2, 3):
        fig = curves(result.history[:count], "accuracy")
        assert [ax.get_ylabel() for ax in fig.axes] == ["training loss", "validation accuracy"]
        for ax in fig.axes:
            low, high = ax.get_xlim()
            shown = [x for x in ax.get_xticks() if low <= x <= high]
            assert shown
            assert all(x == round(x) for x in shown)
            assert all(len(line.get_xdata()) > 1 or line.get_marker() == "." for line in ax.lines)
    assert result.tested(1) == result.task.splits(None, 0)[1].test.tolist()
