"""The guide's code, run as it stands there; its workers are in this process."""

import re
from functools import partial
from pathlib import Path

import torch

import hogwild.cluster
from hogwild.cluster import Disorder

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("infer", "Trainer"):
        here = partial(getattr(hogwild.cluster, name), disorder=Disorder())
        monkeypatch.setattr(hogwild.cluster, name, here)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["run"].converged
    assert (tmp_path / "answers" / "answer" / "part-00001.npz").exists()
    assert names["closure"].executor.restarts == 0
    assert all(p.grad.isfinite().all() for p in names["model"].parameters() if p.grad is not None)
