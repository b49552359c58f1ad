"""A transport that loses and delays packets, for trials on a network that does not."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hogwild_node.transport import Received, Transport


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner, self.loss, self.delay, self.clock = inner, loss, delay, clock
        self.cut: frozenset[str] = frozenset()
        self._random = random.Random(seed)
        self._held: list[tuple[float, int, Received]] = []
        self._count = 0

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
        now = self.clock()
        for received in self.inner.receive():
            self._count += 1
            lost, wait = self._random.random() < self.loss, self._random.uniform(*self.delay)
            arrived = now if received.at is None else received.at
            if not lost and received.sender not in self.cut:
                late = replace(received, at=arrived + wait)
                heapq.heappush(self._held, (arrived + wait, self._count, late))
        found = []
        while self._held and self._held[0][0] <= now:
            found.append(heapq.heappop(self._held)[2])
        return found

    def close(self) -> None:
        self.inner.close()
