"""A scene: everything on the page that changes only when somebody changes it, for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from hogwild.web.shelf import MODELS
from hogwild.web.side import Side


def rounded(values: np.ndarray, digits: int = 6) -> list[float | None]:
    """Numbers for JSON, which knows no NaN."""
    return [round(float(v), digits) if math.isfinite(v) else None for v in values]


def pairs(edge_index: Tensor, ids: Tensor) -> list[int]:
    """The edges between the numbers of nodes, each once, as i, j, i, j, …"""
    i, j = ids.numpy()[edge_index.numpy()]
    return np.stack([i, j], 1)[i < j].ravel().tolist()


def described(side: Side, model: str) -> dict[str, Any]:
    """What a page is told of a side."""
    exact = np.full(side.nodes, np.nan)
    exact[side.frame.ids.numpy()] = side.exact_answer.numpy()
    kind = MODELS.get(model)
    in_step = side.task_error(side.exact_answer)
    return {
        "model": model,
        "title": "Your model" if kind is None else kind.title,
        "about": "from the folder on the command line" if kind is None else kind.about,
        "rule": side.rule,
        "rules": side.rules,
        "ends": bool(side.simulation.rule.ends),
        "in_step": in_step if math.isfinite(in_step) else None,
        "exact": rounded(exact),
    }


def limits(sides: Sequence[Side]) -> tuple[float, float]:
    """Smallest and largest exact answer, a little apart."""
    every = np.concatenate([side.exact_answer.numpy() for side in sides])
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)
