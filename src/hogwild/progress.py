"""Progress bars, on stderr."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

DELAY = 1.0
"""Seconds before a bar appears."""
LINES = 10.0
"""Seconds between two lines of a bar that no terminal shows."""


def bar(total: int | None, show: bool | None, unit: str, title: str, done: int = 0) -> Any:
    """A bar of ``total`` units, as a context manager with ``update()``. With ``total=None`` it
    counts units and does not estimate the time left.

    Args:
        show: Whether anything is shown; ``None``: in a terminal or a notebook.
        done: Units that were done before.
    """
    if show is None:
        show = sys.stderr.isatty() or "ipykernel" in sys.modules
    every = 0.1 if sys.stderr.isatty() else LINES
    return tqdm(
        total=total, initial=done, disable=not show, unit=unit, desc=title, delay=DELAY,
        mininterval=every, maxinterval=max(every, 10.0), dynamic_ncols=True,
        bar_format="{desc}: {unit} {n_fmt}{postfix} [{elapsed}]" if total is None else None,
    )  # fmt: skip
