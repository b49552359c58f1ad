"""What an agent computes, and what its data packets hold: the interface between the agent, which
keeps its links, and the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from hogwild_node.link import Edge, Link
from hogwild_node.ops import Array
from hogwild_node.packets import Format, Header


class Work(ABC):
    """The work of one agent.

    Attributes:
        format: The format of its packets.
        h: Its embedding, [1, k, 1].
        updates: Updates made.
        restarts: How often it began anew, after numbers that are not finite.
        residual: How far it is from being settled (:class:`~hogwild_node.reading.Reading`).
        forwards: Whether packets are sent before the update, because they pass on what was heard:
            word need not wait for a solve at every hop.
        speaks: Where packets are sent before the update: whether it has given something to say.
    """

    format: Format
    h: Array
    updates: int = 0
    restarts: int = 0
    residual: float
    forwards: bool = False
    speaks: bool = False

    def check(self, features: Array, edges: Mapping[str, Edge]) -> None:
        """Raise :class:`SetupError` if the agent cannot have these features and edges."""
        return None

    @abstractmethod
    def meet(self, features: Array, members: Mapping[str, Link], now: float) -> bool:
        """The agent tells these features [q], and these neighbours take part; whether that changes
        what the agent computes."""

    @abstractmethod
    def update(self, now: float, breathe: Callable[[], None]) -> None:
        """Make an update from what was heard, if there is anything to do.

        Args:
            now: The time.
            breathe: Called now and then by an update that may take longer than neighbours wait.
        """

    @abstractmethod
    def data(self, header: Header, name: str, now: float) -> list[bytes]:
        """The data packets to a neighbour that takes part."""

    def hear(self, name: str, incarnation: int, body: bytes, now: float) -> None:
        """Take in what a data packet holds after its header, where packets do not replace each
        other.

        Raises:
            BadPacket: The packet changes nothing.
        """
        raise NotImplementedError

    def extra(self, edge: Edge) -> Array:
        """What a hello tells the neighbour at the other end of an edge, beside the features: by
        default nothing, [0]; or the features of the edge from this neighbour, [r]."""
        return np.zeros(0)

    def forget(self, name: str) -> None:
        """The owner has taken this neighbour away."""
        return None

    def bound(self, settled: bool, nodes: int | None, tolerance: float) -> float:
        """A bound on the distance of all nodes' embeddings from the answer; infinite: not known.

        Args:
            settled: Whether the agent is settled.
            nodes: The number of agents, if the agent was told.
            tolerance: The residual up to which agents count as settled.
        """
        return float("inf")

    @property
    def knows(self) -> int | None:
        """Of how many nodes the agent has word, itself included; ``None``: it does not count."""
        return None

    @property
    def trouble(self) -> str | None:
        """What keeps the agent from its answer and its owner should know; ``None``: nothing."""
        return None

    @property
    def whole(self) -> bool:
        """Whether these are all nodes that can be reached from it, as far as word has come."""
        return False
