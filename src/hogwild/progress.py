"""Progress bars, on stderr; counts, tables and paragraphs for terminals."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def wrapped(text: str) -> str:
    """A paragraph for a terminal."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def shown(count: float) -> str:
    """A mean count: 4.5, 27, 1,240."""
    return f"{count:.1f}" if count < 10 and count != int(count) else f"{count:,.0f}"


def size(count: float) -> str:
    """Bytes as people read them: 480 B, 5.2 kB, 13 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000.0
    return f"{count:.2g} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
