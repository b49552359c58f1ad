"""Results: which replica is the best one."""

from dataclasses import replace

import torch
from tiny_tasks import Sums

from hogwild import train


def test_ranking_compares_like_with_like(tmp_path):
    result = train(Sums(), model="gcn", epochs=1, replicas=3)
    metrics = {"val": torch.tensor([0.5, torch.nan, 0.2]), "train": torch.tensor([1.0, 0.01, 1.0])}
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [2, 0, 1]
    metrics["val"] = torch.full((3,), torch.nan)
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [1, 0, 2]
