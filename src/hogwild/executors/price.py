"""What an asynchronous run costs: time, work and traffic."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Price:
    """What runs cost until they ended. A run that arrives ends when it arrives.

    Attributes:
        ticks: Ticks until the last of the runs ended.
        updates: Updates of a node, mean over nodes and runs.
        packets: Packets that a node sent, mean over nodes and runs.
        bytes: Bytes in these packets; see :attr:`hogwild.executors.run.Run.bytes`.
        solved: Nodes for which a node solved, summed over its updates; as many as updates if
            every node solves for itself.
    """

    ticks: int
    updates: float
    packets: float
    bytes: float
    solved: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.ticks:,} ticks; of a node, on average, {shown(self.updates)} updates, "
            f"{shown(self.packets)} packets, {size(self.bytes)}{self.work}"
        )

    @property
    def work(self) -> str:
        """In words, for how many nodes a node solved; nothing if for itself only."""
        alone = self.solved <= self.updates * (1 + 1e-9)
        return "" if alone else f", solves for {shown(self.solved)} nodes"


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
    for unit in UNITS:
        if count < 999.5 or unit == UNITS[-1]:
            break
        count /= 1000.0
    return f"{count:.2g} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
