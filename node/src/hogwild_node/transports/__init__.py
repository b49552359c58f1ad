"""How packets travel: one small interface, and one file for each network."""

from __future__ import annotations

import heapq
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count


@dataclass(frozen=True)
class Received:
    """A packet that arrived.

    Attributes:
        sender: The neighbour whose link the packet came over.
        raw: Its bytes.
        at: When it arrived, by the receiver's clock; ``None``: when it is read.
    """

    sender: str
    raw: bytes
    at: float | None = None


class Way:
    """Packets on their way to one receiver, by the time at which they arrive."""

    def __init__(self) -> None:
        self.packets: list[tuple[float, int, Received]] = []

    def arrived(self, now: float) -> list[Received]:
        """Take out what has arrived."""
        found = []
        while self.packets and self.packets[0][0] <= now:
            found.append(heapq.heappop(self.packets)[2])
        return found


@dataclass
class Faults:
    """What happens to packets on their way, in trials and tests.

    Attributes:
        delay: Seconds that a packet travels: the least and the most.
        loss: Probability that a packet is lost.
        seed: What delays and losses are a function of.
        copies: Probability that a packet arrives twice.
    """

    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    seed: int = 0
    copies: float = 0.0

    def __post_init__(self) -> None:
        self._random, self._count = random.Random(self.seed), count()

    def travel(self, way: Way, packet: Received, now: float) -> None:
        """A packet begins to travel, or is lost."""
        for _ in range(1 + bool(self.copies and self._random.random() < self.copies)):
            at = now + self._random.uniform(*self.delay)
            if self._random.random() >= self.loss:
                late = at, next(self._count), replace(packet, at=at)
                heapq.heappush(way.packets, late)


@dataclass
class Trial(Faults):
    """The faults of one agent's links, at the receiver.

    Attributes:
        cut: Neighbours from which nothing arrives at present.
    """

    cut: frozenset[str] = frozenset()
    way: Way = field(default_factory=Way)


class Transport(AbstractContextManager["Transport"], ABC):
    """The links of one agent to its neighbours.

    A link is lossy and unordered, and a newer packet may overwrite an older one. :meth:`send` and
    :meth:`receive` never wait. In a :attr:`trial` packets are also lost and held up here.
    """

    trial: Trial | None = None

    @abstractmethod
    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        """Have links to these neighbours, each with its address, and to no others."""

    @abstractmethod
    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        """Send a packet to a neighbour, now or never."""

    @abstractmethod
    def arrived(self) -> list[Received]:
        """What has arrived since the last call: of each neighbour the newest packets."""

    def receive(self) -> list[Received]:
        """What an agent hears of what has arrived."""
        found, trial = self.arrived(), self.trial
        if trial is None:
            return found
        now = time.monotonic()
        for packet in found:
            if packet.sender not in trial.cut:
                trial.travel(trial.way, packet, now if packet.at is None else packet.at)
        return trial.way.arrived(now)

    def control(self) -> list[bytes]:
        """What the owner of the agent has sent it since the last call: new features or
        neighbours."""
        return []

    def tell(self, line: Callable[[], str]) -> None:
        """Tell whoever watches the agent how it is, if anybody does: only then ``line`` is called.
        It is called once a turn."""
        return

    def refusal(self, name: str) -> str | None:
        """Why there is no link to a silent neighbour, where the transport can find out; may wait.
        It is called from another thread than the other methods."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leave the network."""

    def __exit__(self, *_: object) -> None:
        self.close()


def split(address: str) -> tuple[str, int] | None:
    """Host and port of ``HOST:PORT``; ``None``: it is something else."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        return None
    return host.strip("[]"), int(port)
