"""A certificate: what is proved about one model on one batch of graphs, and its words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Self

from torch import Tensor

from hogwild.executors.simulation import Settings
from hogwild.models.base import Kind

LABELS = {
    "strong_convexity": "strong convexity β",
    "largest_row_sum": "largest row sum of |Hessian|, everywhere",
    "smallest_eigenvalue": "smallest eigenvalue at the solution, at least",
    "largest_eigenvalue": "largest eigenvalue at the solution, at most",
    "condition_number": "condition number at the solution, at most",
    "condition_number_everywhere": "condition number, proved everywhere",
    "content_age": "D', age of the oldest embedding used",
    "modulus": "modulus κ of the contraction",
    "packet_error": "δ, largest error of a number in a packet",
    "largest_entry": "largest entry of any embedding in the answer",
    "drift": "largest move of an entry of the answer in a tick",
    "dominance": "couplings over own curvature at the answer (dominance: below 1)",
    "echo": "echo of messages near the answer, at most (converging: below 1)",
    "layers": "layers L",
    "hops": "hops across the graph",
    "ticks_to_whole": "ticks until every node has heard of every node, hops · (S + D)",
    "ticks_to_answer": "ticks until the answer, L (S + D)",
}
"""The constants of a certificate, in words."""


class RunOnParts(Protocol):
    """What a certificate reads of a run of :func:`hogwild.cluster.infer`."""

    workers: int
    guarantee: str


@dataclass(frozen=True)
class Local:
    """A proved rate near the answer. How near is not computed.

    Attributes:
        theorem: Which theorem holds: ``"messages"`` (:mod:`hogwild.analysis.echoes`), or, of balls,
            ``"dominance"``.
        rate: Factor by which a weighted largest entry of the error shrinks every ``period`` ticks.
            For messages any larger factor holds near enough to the answer.
        period: See ``rate``.
        updates: Updates that a node makes, on average, until 10⁻⁶ of the error is left.
    """

    theorem: str
    rate: float
    period: int
    updates: float

    @property
    def speed(self) -> str:
        """The rate, in words."""
        return (
            f"1e-6 of the error is left after {counted(self.updates)} updates a node (mean); in "
            f"the end a share of {1 - self.rate:.3g} is lost every {self.period} ticks"
        )


@dataclass
class Certificate:
    """What is proved, and what was measured, for one model on one batch of graphs.

    Attributes:
        kind: The model's :class:`~hogwild.models.Kind`.
        guaranteed: Whether convergence to the synchronous answer is proved.
        reason: Why, or why not.
        constants: The numbers that enter, of the worst graph (and replica); :data:`LABELS` says
            what they are.
        step: Certified steps [R, k, N] of an optimisation-based model, where a bound on the
            staleness holds.
        rate: Proved factor by which the error (energy gap, or weighted maximum norm) shrinks every
            ``period`` ticks; ``None``: no rate is proved.
        period: See ``rate``.
        updates: Updates that a node makes, on average, until the proof promises an error 10⁻⁶
            times the error at ``since``.
        local: A rate near the answer, where one is proved.
        own_step: How the user's step compares with the certified one, if a step was given.
        near: Proved bound on the distance, in the largest entry of any embedding, from the
            synchronous answer at which runs end; 0 where ``guaranteed``, ``None`` where no bound is
            proved. A bound above ``constants["largest_entry"]`` is of no use, and ``reason`` says
            so.
        tracking: Proved bound on the distance, in the largest entry of any embedding, at which runs
            follow an answer that moves (``drift``); ``None`` where none is proved, or none was
            asked for.
        since: Tick from which on the rate holds; before it, nodes may lose their memory.
        levels: Of a stack: what holds for each level once those below stand still.
        rule: What the nodes do; ``None`` where the model cannot run asynchronously at all.
        parts: What the parts of a graph did between two exchanges, why, and what is proved of
            them, in words; empty where no run on parts was given.
    """

    kind: Kind
    guaranteed: bool
    reason: str
    constants: dict[str, float] = field(default_factory=dict)
    step: Tensor | None = None
    rate: float | None = None
    period: int | None = None
    updates: float | None = None
    local: Local | None = None
    own_step: str | None = None
    near: float | None = None
    tracking: float | None = None
    since: int = 0
    levels: tuple[Certificate, ...] = ()
    rule: str | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.guaranteed:
            self.near = 0.0

    @property
    def data(self) -> dict[str, Any]:
        """Everything as numbers and words, for programs; constants by their names."""
        named = (
            *("rule", "guaranteed", "near", "tracking", "reason"),
            *("rate", "period", "since", "updates"),
        )
        step = self.step
        return {
            "kind": str(self.kind),
            **{name: getattr(self, name) for name in named},
            "certified_step_min": None if step is None else float(step.min()),
            "certified_step_max": None if step is None else float(step.max()),
            "own_step": self.own_step,
            "local": None if self.local is None else asdict(self.local),
            **self.constants,
            "parts": list(self.parts),
            "levels": [level.data for level in self.levels],
        }

    def __str__(self) -> str:
        head = "convergence under asynchrony not guaranteed"
        if self.guaranteed:
            head = "convergence under asynchrony guaranteed"
        elif self.near is not None:
            head = f"asynchronous runs end within {self.near:.3g} of the synchronous answer"
        lines = [f"{self.kind} model, {head}", *self._rates(), f"  {self.reason}"]
        lines += [
            f"  {LABELS.get(name, name)} = {value:.4g}" for name, value in self.constants.items()
        ]
        if self.step is not None:
            low, high = float(self.step.min()), float(self.step.max())
            lines.append(f"  certified steps: {low:.3g} to {high:.3g}, by node")
        if "drift" in self.constants:
            within = "no bound on the distance is proved"
            if self.tracking is not None:
                within = f"runs stay within {self.tracking:.3g} of it, entry by entry, in the end"
            lines.append(f"  tracking: while the answer moves so fast, {within}")
        if self.own_step is not None:
            lines.append(f"  your step: {self.own_step}")
        lines += [f"  {line}" for line in self.parts]
        lines += [f"level {number}: {level}" for number, level in enumerate(self.levels, 1)]
        return "\n".join(lines)

    def _rates(self) -> list[str]:
        """How fast, most useful first."""
        lines, near = [], self.local
        if near is not None:
            slow = "the proved rate is too slow to be of use"
            lines.append(
                f"  near enough to the answer: {near.speed if near.updates <= USEFUL else slow}"
            )
        if self.rate is not None and self.updates is not None:
            since = "" if not self.since else f", from tick {self.since} on"
            told = (
                f"1e-6 of the error is left after {counted(self.updates)} updates a node (mean); a "
                f"share of {1 - self.rate:.3g} is lost every {self.period} ticks"
            )
            if self.updates > USEFUL:
                told = "runs converge; the proved rate is too slow to be of use"
            lines.append(f"  from anywhere{since}: {told}")
        return lines

    def under(self, settings: Settings) -> Self:
        """The same certificate where the staleness has no bound, or where nodes may crash."""
        if settings.bounds is None:
            return replace(
                self,
                reason=f"{self.reason}. Nothing bounds the staleness here (unlimited loss, for "
                f"instance), but packets come through again and again with probability one, and "
                f"with that probability runs converge; no rate is proved",
                rate=None,
                period=None,
                updates=None,
                local=None,
            )
        if settings.calm:
            return replace(
                self,
                reason=f"{self.reason}. Until tick {settings.calm} nodes may come back from "
                f"crashes without their memory, and nothing is proved about the time before",
                since=settings.calm + settings.bounds[0],
            )
        return self


USEFUL = 1e6
"""Proved numbers of updates above this are not shown as numbers."""


def counted(updates: float) -> str:
    """A number of updates, as people read it: 21, 1,530, 2.1e+06."""
    return f"{updates:,.3g}" if updates < 100 or updates >= 1e6 else f"{updates:,.0f}"


HOPELESS = (
    "some packets may never come through (a loss rate of 1 without a limit on its length, for "
    "instance), and a node cannot learn what it never hears"
)


def updates_needed(rate: float, period: int, stagger: int) -> float:
    """Mean updates of a node until 10⁻⁶ of the error is left, where the logarithm of the error
    changes by ``rate`` every ``period`` ticks."""
    return math.log(1e-6) / rate * period / (0.5 * (stagger + 1))


def wrong_packets(error: float) -> str:
    """The beginning of a reason where packets are wrong by up to ``error``."""
    return (
        f"packets are wrong by up to {error:.3g} in every number (quantised, or not sent because "
        f"little has changed), so that runs"
    )


def worth(near: float, answer: Tensor) -> tuple[float, str]:
    """The largest entry of the answer, and a remark where the bound ``near`` exceeds it."""
    size = float(answer.abs().max()) if answer.numel() else 0.0
    if near <= size:
        return size, ""
    return size, (
        f". The bound is larger than every entry of the embeddings (the largest is {size:.3g}): it "
        f"is proved, and says nothing about the answer"
    )
