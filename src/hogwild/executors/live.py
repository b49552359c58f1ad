"""The live table of a swarm, on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from hogwild.executors.swarmed import Swarm

PERIOD = 1.0
"""Seconds between two lines where the table cannot be drawn over."""
HEAD = (
    f"{'agent':>8}  {'answer':<24} {'staleness':>10} {'packets/s':>10} {'residual':>9} {'calm':>8}"
)


class Live:
    """A table with one row for each agent, drawn over in a terminal; elsewhere, one line a second.

    The columns: the agent's answer, the age of the oldest news that it rests on, packets that it
    sends a second, its residual, and for how long nobody in its reach was unsettled.
    """

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.drawn = 0
        self.said = -PERIOD
        self.before: dict[int, tuple[float, int, float]] = {}  # (time, packets, packets a second)

    def show(self, out: Swarm, words: Mapping[int, dict[str, Any]]) -> None:
        """Show the last words of the living agents."""
        now, t = time.monotonic(), out.times[-1]
        if not self.terminal and t - self.said < PERIOD:
            return
        self.said = t
        rates = {i: self._rate(i, word, now) for i, word in words.items()}
        lines = [self._summary(out, words, rates)]
        if self.terminal:
            size = shutil.get_terminal_size()
            rows = [self._row(i, word, rates[i]) for i, word in sorted(words.items())]
            room = max(size.lines - 4, 1)
            more = [f"{len(rows) - room:8d} more"] if len(rows) > room else []
            lines = [HEAD, *rows[:room], *more, *lines]
            lines = [f"{line[: size.columns - 1]}\x1b[K" for line in lines]
        up = f"\x1b[{self.drawn}F" if self.drawn else ""
        print(up + "\n".join(lines), file=sys.stderr, flush=True)
        self.drawn = len(lines) if self.terminal else 0

    def _rate(self, i: int, word: Mapping[str, Any], now: float) -> float:
        then, packets, rate = self.before.get(i, (now, word["packets"], 0.0))
        if now - then >= PERIOD or i not in self.before:
            sent = max(word["packets"] - packets, 0)
            rate = sent / (now - then) if now > then else 0.0
            self.before[i] = (now, word["packets"], rate)
        return rate

    @staticmethod
    def _row(i: int, word: Mapping[str, Any], rate: float) -> str:
        answer = " ".join(f"{x:.4g}" for x in word["prediction"][:3])
        answer += " …" if len(word["prediction"]) > 3 else ""
        residual = "-" if word["residual"] is None else f"{word['residual']:.1e}"
        return (
            f"{i:8d}  {answer:<24} {_age(word['staleness']):>10} {rate:10.0f} {residual:>9} "
            f"{word['calm']:6.1f} s  {word['state']}"
        )

    @staticmethod
    def _summary(
        out: Swarm, words: Mapping[int, dict[str, Any]], rates: Mapping[int, float]
    ) -> str:
        n = max(len(words), 1)
        ages = sorted(w["staleness"] for w in words.values() if w["staleness"] is not None)
        residual = max((w["residual"] or 0.0 for w in words.values()), default=0.0)
        calm = min((w["calm"] for w in words.values()), default=0.0)
        return (
            f"{out.times[-1]:7.1f} s  {len(words)} agents  error {out.error[-1]:.1e}  "
            f"residual {residual:.1e}  calm {calm:.1f} s  "
            f"settled {100 * out.settled[-1]:.0f} %  "
            f"staleness {_age(ages[len(ages) // 2] if ages else None)}  "
            f"{sum(rates.values()) / n:.0f} packets/s and {out.work[-1]:.0f} updates each"
        )


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"
