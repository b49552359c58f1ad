"""Progress bars, on stderr: for what takes longer than a moment."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

DELAY = 1.0
"""Seconds of work that need no bar."""
LINES = 10.0
"""Seconds between two lines where no terminal shows them: a log wants no animation."""


def bar(total: int | None, show: bool, unit: str, title: str) -> Any:
    """A bar of ``total`` units, to be entered and updated; without ``show`` it is silent. With
    ``None``, where nobody knows how many units it takes, it counts and estimates no time left."""
    every = 0.1 if sys.stderr.isatty() else LINES
    return tqdm(
        total=total, disable=not show, unit=unit, desc=title, delay=DELAY, mininterval=every,
        maxinterval=max(every, 10.0), dynamic_ncols=True,
        bar_format="{desc}: {unit} {n_fmt}{postfix} [{elapsed}]" if total is None else None,
    )  # fmt: skip
