"""What an agent knows of one neighbour, and which of its packets it takes in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hogwild_node.ops import Array
from hogwild_node.packets import (
    HALF,
    HEADER,
    HELLO,
    WORD,
    BadPacket,
    Format,
    Header,
    behind,
)

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

    @property
    def content(self) -> tuple[object, ...]:
        """The attributes, as something that can be compared."""
        attr = None if self.edge_attr is None else np.asarray(self.edge_attr, float).tobytes()
        return self.address, float(self.weight), attr


@dataclass
class Link:
    """What an agent knows of one neighbour (:mod:`hogwild_node.packets` has the protocol)."""

    edge: Edge
    since: float = -math.inf  # when the owner of the agent named this neighbour
    incarnation: int | None = None
    retired: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    revision: int = 0
    degree: float = 1.0
    features: Array | None = None
    sequence: int | None = None  # of the newest data packet
    said: Array | None = None
    letter: Array | None = None
    last: float = -math.inf  # when the agent last heard anything
    heard: float = -math.inf  # when it last heard data
    mutual: bool = False  # whether the neighbour says that it hears this agent
    sent: float = 0.0  # when the newest data packet was made, by the sender's clock
    calm: float = 0.0
    known: int = 0  # if mutual: the revision of this agent's hello that it knows
    greeted: float = -math.inf  # when this agent last said hello
    told: int = 0  # the revision that it then told
    transits: deque[tuple[float, float]] = field(default_factory=deque)  # (window, least transit)

    def version(self) -> tuple[object, ...]:
        """What the node's problem depends on."""
        told = None if self.features is None else self.features.tobytes()
        return self.incarnation, self.degree, told, *self.edge.content[1:]

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
        me: int,
        take: Callable[[int, bytes], None],
    ) -> None:
        """Take a packet of the neighbour in.

        Args:
            raw: The packet.
            form: The format that it must have.
            arrived: When it arrived.
            lease: Seconds after the last packet for which older ones are refused.
            me: Incarnation of this agent.
            take: Called as ``take(incarnation, body)`` with a packet that does not replace older
                ones; raises :class:`BadPacket` if it changes nothing.

        Raises:
            BadPacket: The packet changes nothing.
        """
        header = form.read(raw)
        living = arrived - self.last <= lease
        former = header.incarnation != self.incarnation and header.incarnation in self.retired
        if header.incarnation in (0, me) or (living and former):
            raise BadPacket("incarnation")
        if header.kind == HELLO:
            self._hear_hello(header, *form.read_hello(raw), living)
        elif not self._hear_data(header, raw, form, take, arrived - self.heard <= lease):
            return
        else:
            self.heard = arrived
        self.last = arrived
        if self.sequence is None or not behind(header.sequence, self.sequence, WORD):
            self.mutual, self.known = header.to == me, header.known
        self.transit(arrived, arrived - header.time)

    def leave(self) -> None:
        """The neighbour no longer takes part."""
        self.mutual, self.said, self.letter, self.sequence = False, None, None, None

    def _hear_hello(self, header: Header, degree: float, features: Array, living: bool) -> None:
        if header.incarnation != self.incarnation:
            if self.incarnation is not None:
                self.retired.append(self.incarnation)
            self.leave()
            self.incarnation = header.incarnation
            self.transits.clear()
        elif living and behind(header.revision, self.revision, HALF):
            raise BadPacket("old")
        elif living and header.revision == self.revision and self.features is not None:
            if degree != self.degree or not np.array_equal(features, self.features):
                raise BadPacket("revision")
            return
        self.revision, self.degree, self.features = header.revision, degree, features

    def _hear_data(
        self,
        header: Header,
        raw: bytes,
        form: Format,
        take: Callable[[int, bytes], None],
        living: bool,
    ) -> bool:
        """Take a data packet in; whether it is the newest."""
        if header.incarnation != self.incarnation:
            raise BadPacket("before its hello")
        known = self.sequence if living else None
        newest = known is None or (
            header.sequence != known and not behind(header.sequence, known, WORD)
        )
        if form.floods:
            take(header.incarnation, raw[HEADER.size :])
        elif not newest:
            raise BadPacket("old")
        else:
            self.said, self.letter = form.read_data(raw)
        if newest:
            self.sequence, self.sent, self.calm = header.sequence, header.time, header.calm
        return newest
