"""What an impairment is: hooks into the schedule and into what is sent, and random numbers that are
a function of their purpose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from hogwild.errors import ConfigError, Rule, is_integer, is_number, require_integer

# -- random numbers -------------------------------------------------------------------------------

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(x: int) -> int:
    """The 64-bit pattern of ``x`` as torch's signed integer."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 (arithmetic wraps modulo 2⁶⁴)."""
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


@dataclass(frozen=True)
class Streams:
    """Named random streams of a number of runs: run r of seed s is a function of (s, r) alone.

    A draw is a hash of (seed, stream name, run, subject, time). No generator is advanced, so a lost
    packet does not shift any later delay, a run is the same alone and among others, and every
    machine and device draws the same numbers. The hash is the finaliser of SplitMix64 (Steele, Lea
    & Flood, 2014), applied once for every coordinate.
    """

    keys: Tensor  # [n] one key for each subject, that of its run
    subjects: Tensor  # [n] the number of each subject within its run
    memo: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        seed: int,
        runs: int,
        count: int,
        device: torch.device | str,
        subjects: Tensor | None = None,
    ) -> Streams:
        """Streams for ``count`` subjects (nodes, edges) in each of ``runs`` runs, run by run.
        Subjects are numbered 0, 1, …, unless ``subjects`` [count] has their numbers."""
        run = torch.arange(runs, device=device).repeat_interleave(count)
        keys = mix(mix(torch.full_like(run, _signed(require_integer("seed", seed)))) ^ run)
        numbers = torch.arange(count, device=device) if subjects is None else subjects.to(device)
        return cls(keys, numbers.repeat(runs))

    def key(self, name: str) -> Tensor:
        """The key of each subject in a stream, [n]: all but the time, hashed once."""
        if name not in self.memo:
            salt = 0xCBF29CE484222325  # FNV-1a of the stream's name
            for byte in name.encode():
                salt = ((salt ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
            self.memo[name] = mix(mix(self.keys ^ _signed(salt)) ^ self.subjects)
        return self.memo[name]

    def uniform(self, name: str, time: int | Tensor, index: Tensor | None = None) -> Tensor:
        """One number in [0, 1) for each subject in ``index`` (default: all), float64."""
        key = self.key(name)
        z = mix((key if index is None else key.index_select(0, index)) ^ time)
        return _shift(z, 11).to(torch.float64).mul_(2.0**-53)

    def integers(
        self, name: str, high: int | Tensor, time: int | Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Uniform integers in 0 … ``high`` inclusive."""
        draw = self.uniform(name, time, index)
        return (draw * (high + 1)).to(torch.long)


# -- fields ---------------------------------------------------------------------------------------


def number(default: float | None, fine: Callable[[Any], bool], expected: str) -> Any:
    """A field that takes the numbers for which ``fine`` holds, and ``None`` where it is the
    default."""
    rule = Rule(lambda v: v is default is None or (is_number(v) and fine(v)), expected)
    return field(default=default, metadata={"rule": rule})


def whole(default: int | None, least: int) -> Any:
    """A field that takes integers of at least ``least``."""
    expected = f"an integer of at least {least}"
    return number(default, lambda v: is_integer(v) and v >= least, expected)


def probability(default: float) -> Any:
    """A field that takes numbers from 0 to 1."""
    return number(default, lambda v: 0.0 <= v <= 1.0, "a probability between 0 and 1")


def positive(default: float) -> Any:
    """A field that takes positive, finite numbers."""
    return number(default, lambda v: 0.0 < v < math.inf, "a positive number")


# -- impairments ----------------------------------------------------------------------------------


@dataclass
class Moment:
    """What a hook may look at: some nodes or edges now, their random numbers, and what the
    impairment remembers of all nodes or edges, by name."""

    time: int
    index: Tensor  # [n] the nodes or edges concerned
    streams: Streams
    memory: dict[str, Tensor]

    def uniform(self, name: str, time: int | Tensor | None = None) -> Tensor:
        """One number in [0, 1) for each subject; fixed for ever with ``time=0``."""
        return self.streams.uniform(name, self.time if time is None else time, self.index)

    def recall(self, name: str) -> Tensor:
        """The impairment's memory of these subjects, an integer each; at first zero."""
        if name not in self.memory:
            self.memory[name] = torch.zeros_like(self.streams.subjects)
        return self.memory[name][self.index]

    def remember(self, name: str, value: Tensor) -> None:
        """Replace the memory of these subjects, which was recalled before."""
        self.memory[name][self.index] = value


@dataclass(frozen=True)
class Impairment:
    """The base of all impairments, which disturbs nothing. A subclass is a frozen dataclass, whose
    fields say which values they take (:func:`probability`, :func:`whole`, :func:`positive`)."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if "rule" in f.metadata:
                f.metadata["rule"].check(f.name, getattr(self, f.name))

    name: ClassVar[str] = ""
    """Its name on the command line; by default that of the class: ``link-churn``."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    exact: ClassVar[bool] = True
    """Whether packets still say what the sender computed; where not, runs end near the synchronous
    answer and not at it."""

    @property
    def error(self) -> float:
        """How far a number in a packet may be from what its sender holds."""
        return 0.0

    @property
    def recurs(self) -> bool:
        """Whether, with probability one, packets come through on every link again and again.
        Where no bound holds, runs converge if this is so."""
        return True

    @property
    def calm(self) -> int:
        """Tick from which on no node loses its memory any more."""
        return 0

    stage: ClassVar[int] = 2
    """What the impairment concerns, in the order in which bounds add up: pace 0, outages of nodes
    1, delays 2 (their bound D is the age of the oldest packet that is delivered), losses 3."""

    def bound(self, stagger: int, delay: int) -> tuple[int, int] | None:
        """The bounds (S, D) of partial asynchronism that hold with this impairment; ``None``: no
        bound holds, and no theorem applies."""
        return stagger, delay

    def overrides(self, *hooks: str) -> bool:
        """Whether the impairment has one of these hooks."""
        return any(getattr(type(self), hook) is not getattr(Impairment, hook) for hook in hooks)

    def interval(self, at: Moment, gap: Tensor) -> Tensor:
        """Ticks until these nodes update again."""
        return gap

    def up(self, at: Moment) -> Tensor | None:
        """Which of these nodes are running; ``None``: all."""
        return None

    def forgets(self, at: Moment) -> Tensor | None:
        """Which of these nodes, running again, have lost their memory; ``None``: none."""
        return None

    def age(self, at: Moment, age: Tensor, limit: Tensor, delay: int) -> Tensor:
        """Age of the packets that these edges deliver. A packet older than ``limit`` was received
        before."""
        return age

    def loses(self, at: Moment) -> Tensor | None:
        """Edges on which nothing comes through; ``None``: none."""
        return None

    def send(self, payload: Tensor) -> Tensor:
        """What is put on the wire instead of the payload."""
        return payload

    def worth_sending(self, change: Tensor) -> Tensor:
        """Which nodes send, given the largest change since they last did."""
        return torch.ones_like(change, dtype=torch.bool)


def check_impairments(given: object) -> tuple[Impairment, ...]:
    """A tuple of impairments, from none (``None``), one or several."""
    items = tuple(given) if isinstance(given, list | tuple) else (given,)
    items = () if given is None else items
    for item in items:
        if not isinstance(item, Impairment):
            from hogwild.asynchrony.impairments import known

            names = ", ".join(sorted(kind.__name__ for kind in known().values()))
            raise ConfigError(f"unknown impairment {item!r}; expected instances of: {names}")
    return cast("tuple[Impairment, ...]", items)
