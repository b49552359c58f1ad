"""A network in memory, and a transport that loses and delays packets: for tests and trials."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from hogwild_node.transports import Received, Transport

Late = tuple[float, int, Received]
"""A packet on its way: when it arrives, a number that orders packets of one time, the packet."""


def _due(queue: list[Late], now: float) -> list[Received]:
    """Take what has arrived out of a heap."""
    found = []
    while queue and queue[0][0] <= now:
        found.append(heapq.heappop(queue)[2])
    return found


@dataclass
class MemoryNetwork:
    """Links between agents of one process.

    Attributes:
        delay: Seconds that a packet travels: the least and the most.
        loss: Probability that a packet is lost.
        copies: Probability that a packet arrives twice.
        seed: What delays and losses are a function of.
        now: The time; whoever runs the agents moves it.
        cut: Pairs of agents, in either order, between which nothing passes.
    """

    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    seed: int = 0
    copies: float = 0.0
    now: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random, self._count = random.Random(self.seed), count()
        self._travelling: dict[str, list[Late]] = {}

    def endpoint(self, name: str) -> MemoryTransport:
        """The links of one agent."""
        self._travelling[name] = []
        return MemoryTransport(self, name)

    def clock(self) -> float:
        """The time, as a clock for agents."""
        return self.now

    def post(self, sender: str, to: str, raw: bytes) -> None:
        """A packet begins to travel, or is lost."""
        if self.copies and self._random.random() < self.copies:
            self._travel(sender, to, raw)
        self._travel(sender, to, raw)

    def _travel(self, sender: str, to: str, raw: bytes) -> None:
        wait = self._random.uniform(*self.delay)
        gone = self._random.random() < self.loss or frozenset((sender, to)) in self.cut
        if not gone and to in self._travelling:
            late = Received(sender, raw, self.now + wait)
            heapq.heappush(self._travelling[to], (self.now + wait, next(self._count), late))

    def arrived(self, name: str) -> list[Received]:
        """What has reached an agent."""
        return _due(self._travelling[name], self.now)

    def leave(self, name: str) -> None:
        """An agent is gone, with everything on its way to it."""
        self._travelling.pop(name, None)


class MemoryTransport(Transport):
    """One agent's links in a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.network, self.name = network, name
        self.neighbours: set[str] = set()

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        self.neighbours = set(neighbours)

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        self.network.post(self.name, to, raw)

    def receive(self) -> list[Received]:
        return [r for r in self.network.arrived(self.name) if r.sender in self.neighbours]

    def close(self) -> None:
        self.network.leave(self.name)


class FaultyTransport(Transport):
    """Loses and delays what arrives over another transport.

    Args:
        inner: The transport.
        loss: Probability that a packet is lost.
        delay: Seconds that a packet is held up, the least and the most.
        seed: What losses and delays are a function of.

    Attributes:
        cut: Neighbours from which nothing arrives at present.
    """

    def __init__(
        self,
        inner: Transport,
        *,
        loss: float = 0.0,
        delay: tuple[float, float] = (0.0, 0.0),
        seed: int = 0,
    ) -> None:
        self.inner, self.loss, self.delay = inner, loss, delay
        self.cut: frozenset[str] = frozenset()
        self._random, self._count = random.Random(seed), count()
        self._held: list[Late] = []

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        self.inner.connect(neighbours)

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        self.inner.send(to, raw, hello=hello)

    def control(self) -> list[bytes]:
        return self.inner.control()

    def tell(self, line: Callable[[], str]) -> None:
        self.inner.tell(line)

    def refusal(self, name: str) -> str | None:
        return self.inner.refusal(name)

    def receive(self) -> list[Received]:
        now = time.monotonic()
        for received in self.inner.receive():
            lost, wait = self._random.random() < self.loss, self._random.uniform(*self.delay)
            at = (now if received.at is None else received.at) + wait
            if not lost and received.sender not in self.cut:
                heapq.heappush(self._held, (at, next(self._count), replace(received, at=at)))
        return _due(self._held, now)

    def close(self) -> None:
        self.inner.close()
