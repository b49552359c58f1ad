"""A network in memory, for tests and trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hogwild_node.transports import Faults, Received, Transport, Way


@dataclass
class MemoryNetwork(Faults):
    """Links between agents of one process.

    Attributes:
        now: The time; whoever runs the agents moves it.
        cut: Pairs of agents, in either order, between which nothing passes.
    """

    now: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)
    ways: dict[str, Way] = field(default_factory=dict)

    def endpoint(self, name: str) -> MemoryTransport:
        """The links of one agent."""
        self.ways[name] = Way()
        return MemoryTransport(self, name)

    def clock(self) -> float:
        """The time, as a clock for agents."""
        return self.now

    def post(self, sender: str, to: str, raw: bytes) -> None:
        """A packet begins to travel, or is lost."""
        if to in self.ways and frozenset((sender, to)) not in self.cut:
            self.travel(self.ways[to], Received(sender, raw), self.now)


class MemoryTransport(Transport):
    """One agent's links in a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.network, self.name = network, name
        self.neighbours: set[str] = set()

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        self.neighbours = set(neighbours)

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        self.network.post(self.name, to, raw)

    def arrived(self) -> list[Received]:
        found = self.network.ways[self.name].arrived(self.network.now)
        return [received for received in found if received.sender in self.neighbours]

    def close(self) -> None:
        self.network.ways.pop(self.name, None)
