"""What an agent says of itself in a status line, checked: anybody may have written the line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LARGEST = 1e30
"""Numbers in status lines are smaller: a page draws them in single precision."""
NAME = 40
"""Characters of a name that are kept."""
NEAR = 256
"""Neighbours of one agent that are kept."""


@dataclass(frozen=True)
class Words:
    """What one agent last said."""

    answer: float
    staleness: float
    settled: bool
    spent: tuple[float, ...]
    """Updates, packets, bytes."""
    residual: float

    @classmethod
    def of(cls, said: Any) -> Words:
        """From a status line.

        Raises:
            ValueError: It is none.
        """
        try:
            answer = float(said["prediction"][0])
            spent = [float(said[name]) for name in ("updates", "packets", "bytes")]
            stale, residual = (float(said.get(name) or 0.0) for name in ("staleness", "residual"))
            found = cls(answer, stale, said["state"] == "settled", tuple(spent), residual)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"no status line of an agent ({error})") from error
        if not all(abs(value) < LARGEST for value in (answer, stale, residual, *spent)):
            raise ValueError("a status line with numbers that are not finite, or too large")
        return found


@dataclass(frozen=True)
class Said:
    """A status line.

    Attributes:
        name: Whose it is.
        words: How the agent is.
        neighbours: The names of its neighbours.
    """

    name: str
    words: Words
    neighbours: frozenset[str]

    @classmethod
    def of(cls, line: Any) -> Said:
        """From a line.

        Raises:
            ValueError: It is none.
        """
        words = Words.of(line)
        name, near = line.get("id"), line.get("neighbours", [])
        if not isinstance(name, str) or not isinstance(near, list):
            raise ValueError("a status line without a name, or without neighbours")
        others = frozenset(other[:NAME] for other in near[:NEAR] if isinstance(other, str))
        return cls(name[:NAME], words, others)
