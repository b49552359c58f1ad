"""What an impairment is: a small frozen configuration, with hooks into a schedule and into packets.

The fields of an impairment say which values they take (:func:`probability`, :func:`whole`,
:func:`positive`), and the base class checks them. Every random decision is a hash of its purpose,
subject and time (:mod:`hogwild.asynchrony.seeding`): adding one impairment never shifts the draws
of another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from hogwild.asynchrony.seeding import Streams
from hogwild.errors import Rule, is_integer, is_number
from hogwild_node.rules.base import Pairs

# -- fields ---------------------------------------------------------------------------------------


def whole(default: int | None, least: int) -> Any:
    """A field that takes integers of at least ``least``, and ``None`` where it is the default."""

    def fine(value: object) -> bool:
        return value is default is None or (is_integer(value) and value >= least)

    return field(default=default, metadata={"rule": Rule(fine, f"an integer of at least {least}")})


def number(default: float, fine: Callable[[float], bool], expected: str) -> Any:
    """A field that takes the numbers for which ``fine`` holds."""
    rule = Rule(lambda value: is_number(value) and fine(value), expected)
    return field(default=default, metadata={"rule": rule})


def probability(default: float) -> Any:
    """A field that takes numbers from 0 to 1."""
    return number(default, lambda v: 0.0 <= v <= 1.0, "a probability between 0 and 1")


def positive(default: float) -> Any:
    """A field that takes positive, finite numbers."""
    return number(default, lambda v: 0.0 < v < math.inf, "a positive number")


# -- impairments ----------------------------------------------------------------------------------


class Memory(dict[str, Tensor]):
    """What an impairment remembers of all nodes or edges, by name; ``starts`` has the value that
    each memory begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[str, int] = {}

    def follow(self, before: Memory, kept: Pairs, like: Tensor) -> None:
        """Take over what was remembered of the subjects that stayed; the others (one entry each in
        ``like``) begin anew."""
        here, there = kept
        for name, values in before.items():
            self.starts[name] = before.starts[name]
            self[name] = torch.full_like(like, before.starts[name])
            self[name][here] = values[there]


@dataclass
class Moment:
    """What a hook may look at: some nodes or edges now, their random numbers, and the memory that
    the impairment has of them."""

    time: int
    index: Tensor  # [n] the nodes or edges concerned
    streams: Streams
    memory: Memory

    def uniform(self, name: str, time: int | Tensor | None = None) -> Tensor:
        """One number in [0, 1) for each subject; fixed for ever with ``time=0``."""
        return self.streams.uniform(name, self.time if time is None else time, self.index)

    def recall(self, name: str, start: int) -> Tensor:
        """The impairment's memory of these subjects, initially ``start``."""
        if name not in self.memory:
            self.memory.starts[name] = start
            self.memory[name] = torch.full_like(self.streams.subjects, start)
        return self.memory[name][self.index]

    def remember(self, name: str, value: Tensor) -> None:
        self.memory[name][self.index] = value


@dataclass(frozen=True)
class Impairment:
    """The base of all impairments, which disturbs nothing. A subclass is a frozen dataclass."""

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
    """Whether packets still say what the sender computed."""
    packets: ClassVar[str] = "packets that are wrong"
    """What to call its packets where they do not."""

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
    1, delays 2, losses 3."""

    def bound(self, stagger: int, delay: int) -> tuple[int, int] | None:
        """The bounds (S, D) that hold with this impairment; ``None``: no bound holds."""
        return stagger, delay

    def depth(self, delay: int) -> int:
        """Age of the oldest packet that may still be fetched."""
        return delay

    @property
    def holds(self) -> bool:
        """Whether a node may be left with the packet it held before."""
        kind = type(self)
        return kind.loses is not Impairment.loses or kind.repeats is not Impairment.repeats

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

    def repeats(self, at: Moment, limit: Tensor, delay: int) -> Tensor | None:
        """Edges on which the packet held before comes in once more; ``None``: none."""
        return None

    def loses(self, at: Moment) -> Tensor | None:
        """Edges on which nothing comes through; ``None``: none."""
        return None

    def send(self, payload: Tensor) -> Tensor:
        """What is put on the wire instead of the payload."""
        return payload

    triggers: ClassVar[bool] = False
    """Whether nodes ask :meth:`worth_sending` before they send."""

    def worth_sending(self, change: Tensor) -> Tensor:
        """Which nodes send, given the largest change since they last did."""
        return torch.ones_like(change, dtype=torch.bool)
