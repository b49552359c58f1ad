"""A certificate: what is proved about one model on one batch of graphs, as numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from torch import Tensor

from hogwild.executors.simulation import Settings
from hogwild.models.base import Kind

LABELS = {
    "strong_convexity": "strong convexity β",
    "largest_row_sum": "largest row sum of |Hessian|, everywhere",
    "smallest_eigenvalue": "smallest eigenvalue at the solution",
    "largest_eigenvalue": "largest eigenvalue at the solution",
    "condition_number": "condition number at the solution",
    "condition_number_everywhere": "condition number, proved everywhere",
    "content_age": "D', age of the oldest embedding used",
    "modulus": "modulus κ of the contraction",
    "packet_error": "δ, largest error of a number in a packet",
    "largest_entry": "largest entry of any embedding in the answer",
    "drift": "largest move of an entry of the answer in a tick",
    "dominance": "couplings over own curvature (dominance: below 1)",
    "echo": "echo of messages near the answer, at most (converging: below 1)",
    "layers": "layers L",
    "hops": "hops across the graph",
    "ticks_to_whole": "ticks until every node has heard of every node, hops · (S + D)",
    "ticks_to_answer": "ticks until the answer, L (S + D)",
}
"""The constants of a certificate, in words."""
USEFUL = 1e6
"""Proved numbers of updates above this are not shown as numbers."""
HOPELESS = (
    "some packets may never come through (a loss rate of 1 without a limit on its length, for "
    "instance), and a node cannot learn what it never hears"
)


class Rate(NamedTuple):
    """How fast an error shrinks: the energy gap, or a weighted maximum norm.

    Attributes:
        rate: The factor of every ``period`` ticks.
        period: See ``rate``.
        updates: Updates that a node makes, on average, until 10⁻⁶ of the error is left.
    """

    rate: float
    period: int
    updates: float

    @classmethod
    def of(cls, rate: float, period: int, stagger: int, log: float | None = None) -> Self:
        """The rate of nodes that update every (S + 1) / 2 ticks on average. ``log`` is the
        logarithm of the rate, where that is known more exactly."""
        log = math.log(max(rate, 1e-6)) if log is None else log
        return cls(rate, period, math.log(1e-6) / log * period / (0.5 * (stagger + 1)))

    def __str__(self) -> str:
        if self.updates > USEFUL:
            return "runs converge; the proved rate is too slow to be of use"
        digits = ",.3g" if self.updates < 100 else ",.0f"
        return (
            f"1e-6 of the error is left after {self.updates:{digits}} updates a node (mean); a "
            f"share of {1 - self.rate:.3g} is lost every {self.period} ticks"
        )


NO_RATE: dict[str, Any] = {"rate": None, "period": None, "updates": None, "local": None}


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
        rate: The proved :class:`Rate` of the error; ``None``: no rate is proved.
        period: See :class:`Rate`.
        updates: See :class:`Rate`; of the error at ``since``.
        local: The rate of messages near the answer (:mod:`hogwild.analysis.echoes`), where one is
            proved. How near is not computed, and any larger factor holds near enough.
        near: Proved bound on the distance, in the largest entry of any embedding, from the
            synchronous answer at which runs end; 0 where ``guaranteed``, ``None`` where no bound is
            proved. A bound above ``constants["largest_entry"]`` is of no use, and ``reason`` says
            so.
        tracking: Proved bound on the distance, in the largest entry of any embedding, at which runs
            follow an answer that moves (``drift``); ``None`` where none is proved, or no drift was
            given.
        since: Tick from which on the rate holds; before it, nodes may lose their memory.
        levels: Of a stack: what holds for each level once those below stand still.
        rule: What the nodes do; ``None`` where the model cannot run asynchronously at all.
    """

    kind: Kind
    guaranteed: bool
    reason: str
    constants: dict[str, float] = field(default_factory=dict)
    step: Tensor | None = None
    rate: float | None = None
    period: int | None = None
    updates: float | None = None
    local: Rate | None = None
    near: float | None = None
    tracking: float | None = None
    since: int = 0
    levels: tuple[Certificate, ...] = ()
    rule: str | None = None

    def __post_init__(self) -> None:
        if self.guaranteed:
            self.near = 0.0

    @property
    def data(self) -> dict[str, Any]:
        """Everything as numbers and words, for programs; constants by their names."""
        named = ("rule", "guaranteed", "near", "tracking", "reason", "rate", "period", "since",
                 "updates")  # fmt: skip
        step = self.step
        return {
            "kind": str(self.kind),
            **{name: getattr(self, name) for name in named},
            "certified_step_min": None if step is None else float(step.min()),
            "certified_step_max": None if step is None else float(step.max()),
            "local": None if self.local is None else self.local._asdict(),
            **self.constants,
            "levels": [level.data for level in self.levels],
        }

    def __str__(self) -> str:
        head = "convergence under asynchrony not guaranteed"
        if self.guaranteed:
            head = "convergence under asynchrony guaranteed"
        elif self.near is not None:
            head = f"asynchronous runs end within {self.near:.3g} of the synchronous answer"
        lines = [f"{self.kind} model, {head}"]
        if self.local is not None:
            lines.append(f"  near enough to the answer: {self.local}")
        if self.rate is not None and self.period is not None and self.updates is not None:
            since = f", from tick {self.since} on" if self.since else ""
            lines.append(f"  from anywhere{since}: {Rate(self.rate, self.period, self.updates)}")
        lines.append(f"  {self.reason}")
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
        lines += [f"level {number}: {level}" for number, level in enumerate(self.levels, 1)]
        return "\n".join(lines)

    def proved(self, settings: Settings, reason: str, rate: Rate | None = None) -> Self:
        """The same certificate with a guarantee and its rate under bounded staleness, weaker where
        the staleness has no bound, or where nodes may crash."""
        if settings.bounds is None:
            reason = (
                f"{reason}. Nothing bounds the staleness here (unlimited loss, for instance), but "
                f"packets come through again and again with probability one, and with that "
                f"probability runs converge; no rate is proved"
            )
            return replace(self, guaranteed=True, reason=reason, **NO_RATE)
        since = 0
        if settings.calm:
            since = settings.calm + settings.bounds[0]
            reason = (
                f"{reason}. Until tick {settings.calm} nodes may come back from crashes without "
                f"their memory, and nothing is proved about the time before"
            )
        named = {} if rate is None else rate._asdict()
        return replace(self, guaranteed=True, reason=reason, since=since, **named)


def wrong_packets(error: float) -> str:
    """The beginning of a reason where packets are wrong by up to ``error``."""
    return (
        f"packets are wrong by up to {error:.3g} in every number (quantised, or not sent because "
        f"little has changed), so that runs"
    )


def compare(found: Certificate, bound: float, answer: Callable[[], Tensor]) -> str:
    """Note the largest entry of the answer among the constants; a remark where a bound on the
    distance exceeds it."""
    value = answer()
    size = float(value.abs().max()) if value.numel() else 0.0
    found.constants["largest_entry"] = size
    if bound <= size:
        return ""
    return (
        f". The bound is larger than every entry of the embeddings (the largest is {size:.3g}): it "
        f"is proved, and says nothing about the answer"
    )
