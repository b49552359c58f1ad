r"""What goes wrong on real networks, by the literature's names; impairments compose. Every random
decision is a hash of its purpose, subject and time: adding one impairment never shifts the draws of
another."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from hogwild.asynchrony.impairment import (
    Impairment,
    Moment,
    number,
    positive,
    probability,
    whole,
)
from hogwild.errors import ConfigError, require_integer

# -- delays ---------------------------------------------------------------------------------------


class _CappedDelay(Impairment):
    """Ages of at most ``cap`` ticks, instead of Algorithm 1's."""

    cap: int

    def bound(self, stagger: int, delay: int) -> tuple[int, int]:
        return stagger, self.cap

    def age(self, at: Moment, age: Tensor, limit: Tensor, delay: int) -> Tensor:
        draw = self.quantile(at.uniform(self.name.removesuffix("-delay")))
        return torch.minimum(draw.clamp_max(float(self.cap)).to(torch.long), limit)

    def quantile(self, share: Tensor) -> Tensor:
        """The age that this share of all packets stays below, before the cut."""
        raise NotImplementedError


@dataclass(frozen=True)
class GeometricDelay(_CappedDelay):
    r"""Ages with :math:`P(\delta) \propto (1-p)^\delta`, cut at ``cap`` ticks: each tick a packet
    comes through with probability p."""

    p: float = number(0.5, lambda p: 0.0 < p <= 1.0, "a positive probability")
    cap: int = whole(20, 0)

    def quantile(self, share: Tensor) -> Tensor:
        log = math.log1p(-self.p) if self.p < 1.0 else -math.inf
        return torch.log1p(-share) / log


@dataclass(frozen=True)
class ParetoDelay(_CappedDelay):
    r"""Heavy-tailed (Pareto, Lomax) ages, :math:`P(\delta > x) = (1 + x/s)^{-\alpha}`, cut at
    ``cap`` ticks."""

    alpha: float = positive(1.5)
    scale: float = positive(1.0)
    cap: int = whole(100, 0)

    def quantile(self, share: Tensor) -> Tensor:
        return self.scale * ((1.0 - share).pow(-1.0 / self.alpha) - 1.0)


@dataclass(frozen=True)
class Latency(_CappedDelay):
    r"""Every packet is on its way for ``ticks``, give or take up to ``jitter`` (uniformly).

    In the first ``ticks`` a node reads what its neighbour held at the beginning. A packet that is
    overtaken on its way is not read, so that jitter makes the mean age a little less than
    ``ticks``. Nodes with r turns a second have a turn every (S + 1) / 2 ticks on average: s seconds
    are s r (S + 1) / 2 ticks.
    """

    ticks: int = whole(5, 0)
    jitter: int = whole(0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter > self.ticks:
            raise ConfigError(
                f"jitter={self.jitter} and ticks={self.ticks}; expected a jitter of at most the "
                f"latency, since no packet arrives before it is sent"
            )

    @property
    def cap(self) -> int:  # type: ignore[override]
        """The oldest packet."""
        return self.ticks + self.jitter

    def quantile(self, share: Tensor) -> Tensor:
        return self.ticks - self.jitter + share * (2 * self.jitter + 1)


@dataclass(frozen=True)
class Reordering(Impairment):
    """With probability ``rate`` a packet is overtaken: the age is drawn anew from 0 … D, even if
    that is older than what the node held. Nodes without sequence numbers cannot tell."""

    rate: float = probability(0.1)

    def age(self, at: Moment, age: Tensor, limit: Tensor, delay: int) -> Tensor:
        again = (at.uniform("overtaken") * (delay + 1)).to(torch.long).clamp_max(at.time)
        return torch.where(at.uniform("reordering") < self.rate, again, age)


# -- loss -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BernoulliLoss(Impairment):
    """Each packet is lost with probability ``rate``, independently. The node keeps the packet that
    it had.

    Args:
        burst: Losses in a row on one link after which a packet does come through; ``None``: no
            limit, and no bound on the staleness.
    """

    rate: float = probability(0.1)
    burst: int | None = whole(None, 1)

    name: ClassVar[str] = "loss"
    stage: ClassVar[int] = 3

    def bound(self, stagger: int, delay: int) -> tuple[int, int] | None:
        if self.rate == 0.0:
            return stagger, delay
        return None if self.burst is None else (stagger, delay + self.burst * stagger)

    @property
    def recurs(self) -> bool:
        return self.rate < 1.0

    def loses(self, at: Moment) -> Tensor:
        lost = at.uniform("loss") < self.rate
        if self.burst is not None:
            row = at.recall("row")
            lost = lost & (row < self.burst)
            at.remember("row", torch.where(lost, row + 1, 0))
        return lost


@dataclass(frozen=True)
class GilbertElliott(Impairment):
    """Bursts of loss: every link is a two-state Markov chain, tick by tick.

    Args:
        p: Probability of turning bad in a tick.
        r: Probability of turning good again.
        good: Loss rate while good.
        bad: Loss rate while bad.
    """

    p: float = probability(0.05)
    r: float = probability(0.3)
    good: float = probability(0.0)
    bad: float = probability(1.0)

    stage: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p + self.r == 0.0:
            raise ConfigError("p=0 and r=0; expected a chain that can change its state")

    def bound(self, stagger: int, delay: int) -> None:
        return None

    @property
    def recurs(self) -> bool:
        # A link that cannot turn bad stays good, where all begin; one that cannot turn good again
        # ends up bad.
        turns_good, turns_bad = self.r > 0.0 or self.p == 0.0, self.p > 0.0
        return (turns_good and self.good < 1.0) or (turns_bad and self.bad < 1.0)

    def loses(self, at: Moment) -> Tensor:
        was, since = at.recall("bad"), at.time - at.recall("time")
        # The chain's law after `since` ticks, in closed form.
        share = self.p / (self.p + self.r)
        decay = torch.pow(torch.tensor(1.0 - self.p - self.r, dtype=torch.float64), since)
        bad = at.uniform("weather") < share + (was - share) * decay
        at.remember("bad", bad.to(was.dtype))
        at.remember("time", torch.full_like(was, at.time))
        return at.uniform("loss") < torch.where(bad, self.bad, self.good)


class _Outages(Impairment):
    """In every period of ``period`` ticks some subjects are down, each with probability ``rate``,
    for the first ``downtime`` of them."""

    rate: float
    period: int
    downtime: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("period", self.period, self.downtime + 1)

    def _missed(self, stagger: int) -> bool:
        """Whether a node may have no turn between two outages."""
        return self.period - self.downtime < stagger

    def _down(self, at: Moment, stream: str) -> Tensor | None:
        """Which of these subjects are down; ``None``: none."""
        window, phase = divmod(at.time, self.period)
        return at.uniform(stream, window) < self.rate if phase < self.downtime else None


@dataclass(frozen=True)
class LinkChurn(_Outages):
    """Links come and go: in every period of ``period`` ticks a link is down, with probability
    ``rate``, for the first ``downtime`` of them."""

    rate: float = probability(0.2)
    period: int = 50
    downtime: int = whole(20, 1)

    stage: ClassVar[int] = 3

    def bound(self, stagger: int, delay: int) -> tuple[int, int] | None:
        # Once up again, a link is heard at the receiver's next update.
        return None if self._missed(stagger) else (stagger, delay + self.downtime + stagger)

    @property
    def recurs(self) -> bool:
        return self.rate < 1.0

    def loses(self, at: Moment) -> Tensor | None:
        return self._down(at, "churn")


# -- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stragglers(Impairment):
    """A ``fraction`` of the nodes, always the same, is ``slowdown`` times slower."""

    fraction: float = probability(0.1)
    slowdown: int = whole(5, 1)

    stage: ClassVar[int] = 0

    def bound(self, stagger: int, delay: int) -> tuple[int, int]:
        return stagger * self.slowdown, delay

    def interval(self, at: Moment, gap: Tensor) -> Tensor:
        slow = at.uniform("straggler", 0) < self.fraction
        return torch.where(slow, gap * self.slowdown, gap)


@dataclass(frozen=True)
class Crashes(_Outages):
    """Nodes crash and rejoin: in every period of ``period`` ticks a node is down, with probability
    ``rate``, for the first ``downtime`` of them.

    Args:
        rejoin: ``"warm"``: a node comes back with the memory it had. ``"cold"``: it comes back with
            its embedding as at the start (packets that it received before still count).
        until: Tick after which no node crashes any more; runs converge from then on.
    """

    rate: float = probability(0.1)
    period: int = 100
    downtime: int = whole(20, 1)
    rejoin: str = "warm"
    until: int = whole(500, 0)

    stage: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rejoin not in ("warm", "cold"):
            raise ConfigError(f"rejoin={self.rejoin!r}; expected 'warm' or 'cold'")

    def bound(self, stagger: int, delay: int) -> tuple[int, int] | None:
        return None if self._missed(stagger) else (2 * stagger + self.downtime, delay)

    @property
    def calm(self) -> int:
        return self.until if self.rejoin == "cold" and self.rate > 0 else 0

    def up(self, at: Moment) -> Tensor | None:
        down = None if at.time >= self.until else self._down(at, "crash")
        if down is None:
            return None
        up = ~down
        if self.rejoin == "cold":
            at.remember("down", torch.where(up, at.recall("down"), 1))
        return up

    def forgets(self, at: Moment) -> Tensor | None:
        if self.rejoin == "warm":
            return None
        back = at.recall("down") == 1
        at.remember("down", torch.zeros_like(at.index))
        return back


# -- packets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantisation(Impairment):
    """Numbers in packets are rounded to multiples of ``unit``."""

    unit: float = positive(1e-3)
    exact: ClassVar[bool] = False

    @property
    def error(self) -> float:
        return 0.5 * self.unit

    def send(self, payload: Tensor) -> Tensor:
        return (payload / self.unit).round() * self.unit


@dataclass(frozen=True)
class EventTriggered(Impairment):
    """A node sends only when some number in its packets has changed by more than ``epsilon`` since
    it last sent. :attr:`~hogwild.executors.run.Run.packets` counts packets sent, ``saved`` those
    kept back."""

    epsilon: float = number(1e-4, lambda v: 0.0 <= v < math.inf, "a nonnegative number")
    exact: ClassVar[bool] = False

    @property
    def error(self) -> float:
        return self.epsilon

    def worth_sending(self, change: Tensor) -> Tensor:
        return change > self.epsilon


def known() -> dict[str, type[Impairment]]:
    """All impairments of the library, by their names on the command line."""
    kinds = [k for k in globals().values() if isinstance(k, type) and issubclass(k, Impairment)]
    return {kind.name: kind for kind in kinds if fields(kind)}  # base classes have no options
