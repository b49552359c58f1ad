"""What a session keeps: what the sliders say, and a recorded schedule."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hogwild.asynchrony.trace import Trace
from hogwild.web.given import Given
from hogwild.web.worlds import World

LONGEST_TRACE = 5_000, 1_000_000
"""Ticks that are recorded at most, and views of packets in them (26 bytes each)."""


@dataclass
class Timing:
    """What the sliders say."""

    stagger: int = 5
    delay: int = 2
    loss: float = 0.0
    speed: int = 20


@dataclass
class Recording:
    """A schedule that can be replayed: the world it was drawn on, and where nodes ended."""

    trace: Trace
    world: World | Given
    choice: list[tuple[str, str]]
    h: Tensor | None = None
    running: bool = True
    views: int = 0

    def noted(self) -> bool:
        """Count the last tick; whether the recording is as long as it may be."""
        ticks = self.trace.ticks
        self.views += ticks[-1].view.numel() if ticks else 0
        return len(ticks) >= LONGEST_TRACE[0] or self.views >= LONGEST_TRACE[1]
