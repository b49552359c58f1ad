"""What an agent knows of one neighbour, and which of its packets it takes in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hogwild_node.ops import Array
from hogwild_node.packets import DATA, HALF, HEADER, HELLO, WORD, BadPacket, Format, Header

WINDOW = 30.0
"""Seconds over which the least transit time of a link is sought, so that drifting clocks are
forgotten."""


@dataclass(frozen=True)
class Edge:
    """The edge to a neighbour.

    Attributes:
        address: Where the neighbour listens; ``None`` where the transport knows.
        edge_attr: Features of the edge, [r].
        weight: Weight of the edge, the same at both ends.
    """

    address: str | None = None
    edge_attr: Array | None = None
    weight: float = 1.0


@dataclass
class Link:
    """What an agent knows of one neighbour."""

    edge: Edge
    incarnation: int | None = None
    retired: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    revision: int = 0
    degree: float = 1.0
    features: Array | None = None
    sequence: int | None = None  # of the newest data packet
    said: Array | None = None
    letter: Array | None = None
    last: float = -math.inf  # when the agent last heard anything
    heard: float = -math.inf  # when it last heard data, or a hello that let the neighbour join
    mutual: bool = False  # whether the neighbour is known to hear this agent
    sent: float = 0.0  # when the newest data packet was made, by the sender's clock
    calm: float = 0.0
    known: int = -1  # revision of this agent's hello that the neighbour knows
    greeted: float = -math.inf  # when this agent last said hello
    transits: deque[tuple[float, float]] = field(default_factory=deque)  # (window, least transit)

    def version(self) -> tuple[object, ...]:
        """What the node's problem depends on."""
        attr = self.edge.edge_attr
        told = None if attr is None else tuple(np.asarray(attr, float).tolist())
        return self.incarnation, self.revision, self.edge.weight, told

    def transit(self, now: float, seen: float | None = None) -> float:
        """The least (arrival − sending) of late, in which the clocks' difference cancels."""
        window = math.floor(now / WINDOW)
        while self.transits and self.transits[0][0] < window - 1:
            self.transits.popleft()
        if seen is not None:
            if not self.transits or self.transits[-1][0] < window:
                self.transits.append((window, seen))
            elif seen < self.transits[-1][1]:
                self.transits[-1] = (window, seen)
        return min((least for _, least in self.transits), default=math.inf)

    def age(self, now: float) -> float:
        """Seconds since the newest data packet was made, less the least transit time."""
        return max(now - self.sent - self.transit(now), 0.0)

    def hear(
        self,
        raw: bytes,
        form: Format,
        arrived: float,
        *,
        lease: float,
        to: tuple[int, int],
        take: Callable[[int, bytes], None],
    ) -> None:
        """Take a packet of the neighbour in.

        Args:
            raw: The packet.
            form: The format that it must have.
            arrived: When it arrived.
            lease: Seconds for which a former incarnation of a living neighbour counts as gone.
            to: Incarnation of this agent, and the revision of its hello.
            take: Called as ``take(incarnation, body)`` with a packet that does not replace older
                ones; raises :class:`BadPacket` if it changes nothing.

        Raises:
            BadPacket: The packet changes nothing.
        """
        header = form.read(raw)
        gone = header.incarnation in self.retired and arrived - self.last <= lease
        if gone or header.incarnation == to[0]:
            raise BadPacket("incarnation")
        if header.kind == HELLO:
            self._hear_hello(header, *form.read_hello(raw))
        elif not self._hear_data(header, raw, form, take):
            return
        self.last, self.known = arrived, header.known
        joins = header.known == to[1] and not self.mutual
        self.mutual = self.mutual or joins
        if joins or header.kind == DATA:
            self.heard = arrived
        self.transit(arrived, arrived - header.time)

    def leave(self) -> None:
        """The neighbour no longer takes part; to join it must show that it hears this agent."""
        self.mutual, self.said, self.letter = False, None, None
        self.sequence = None  # a forged number must not shut the neighbour out for good

    def _hear_hello(self, header: Header, degree: float, features: Array) -> None:
        if header.incarnation != self.incarnation:
            if self.incarnation is not None:
                self.retired.append(self.incarnation)
            self.leave()
            self.sequence, self.incarnation = None, header.incarnation
            self.transits.clear()
        elif (header.revision - self.revision) % HALF >= HALF // 2:
            raise BadPacket("old")
        self.revision, self.degree, self.features = header.revision, degree, features

    def _hear_data(
        self, header: Header, raw: bytes, form: Format, take: Callable[[int, bytes], None]
    ) -> bool:
        """Take a data packet in; whether it is the newest."""
        if header.incarnation != self.incarnation:
            raise BadPacket("before its hello")
        ahead = 1 if self.sequence is None else (header.sequence - self.sequence) % WORD
        newest = 0 < ahead < WORD // 2
        if form.floods:
            take(header.incarnation, raw[HEADER.size :])
        elif not newest:
            raise BadPacket("old")
        else:
            self.said, self.letter = form.read_data(raw)
        if newest:
            self.sequence, self.sent, self.calm = header.sequence, header.time, header.calm
        return newest
