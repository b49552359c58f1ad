"""Progress bars, on stderr."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

DELAY = 1.0
"""Seconds before a bar appears."""
LINES = 10.0
"""Seconds between two lines of a bar that no terminal shows."""


def bar(total: int | None, show: bool, unit: str, title: str, done: int = 0) -> Any:
    """A bar of ``total`` units, as a context manager with ``update()``; it is silent without
    ``show``. With ``total=None`` it counts units and does not estimate the time left.

    Args:
        done: Units that were done before.
    """
    every = 0.1 if sys.stderr.isatty() else LINES
    return tqdm(
        total=total, initial=done, disable=not show, unit=unit, desc=title, delay=DELAY,
        mininterval=every, maxinterval=max(every, 10.0), dynamic_ncols=True,
        bar_format="{desc}: {unit} {n_fmt}{postfix} [{elapsed}]" if total is None else None,
    )  # fmt: skip
