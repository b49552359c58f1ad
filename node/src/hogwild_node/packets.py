r"""Packets: what travels between two agents, binary and, but for balls, of fixed size. This is the
specification of the protocol; :class:`Link` and the agent in C follow it.

A *hello* says who an agent is: its features and its degree. A *data* packet holds an embedding and
a letter. Both begin with the same 40 bytes, little endian:

======  ========  ==============================================================================
bytes   type      field
======  ========  ==============================================================================
1       u8        version of this format
1       u8        kind: 0 hello, 1 data
1       u8        rule, and bytes of a number (2, 4 or 8)
1       u8        width k of an embedding (255: 255 or more)
4       u32       the model: the first half of its name
4       u32       incarnation of the sender: a random number from 1 on, drawn when the agent starts
4       u32       sequence: the sender's count of turns
4       u32       acknowledgement: the incarnation of the receiver, if the sender knows its hello
                  and has heard from it within the lease; else 0
2       u16       revision of the sender's hello, from 1 on
2       u16       acknowledgement: the revision of the receiver's hello that the sender knows
8       f64       time of the sender's update, in seconds, by the sender's clock
4       f32       calm: for how many seconds nobody in reach of the sender was unsettled
4       u32       CRC-32 of the 36 bytes before and of everything that follows
======  ========  ==============================================================================

A hello goes on with the degree and the features as float64, and, where nodes compute both sides of
their edges, the features of the edge from the receiver to the sender. A data packet goes on with
the numbers of the rule: the embedding (or the values of all layers), then the letter, if there is
one. Curvature blocks are symmetric, and only their upper triangles travel. With k = 2 and float32
a packet of gradient steps has 68 bytes (48 without a letter) and a packet of messages 124. With the
rule ``"balls"`` a data packet goes on with reports (:mod:`hogwild_node.flood`).

**Who takes part.** A neighbour takes part if the agent has heard from it within the lease, and the
neighbour's newest packet acknowledges the agent's incarnation: both then hear each other. The two
sides need not agree. If one of them drops the other, its packets no longer acknowledge, and the
other drops it too. The revision does not matter for this: features may change faster than packets
travel.

**Who sends what.** At every turn an agent sends data to each neighbour that takes part, and a hello
to each neighbour

- that has not been sent this revision: news of features travels at the turn at which they change;
- that does not take part, or acknowledges another revision: every ``HELLO_PERIOD`` seconds. An
  agent that makes no updates yet treats all neighbours so.

So no pair of states is silent, and the next hello that arrives makes progress. A hello is a packet
of its own, because features may be many numbers and seldom change: data packets stay small.

**What counts.** Among packets of one incarnation newer ones replace older ones: data by their
sequence, hellos by their revision. An incarnation that another one has replaced is refused.
A hello of the known revision with other content is refused. All this is so for one lease only,
counted from the last packet (of data: from the last data) that was taken in. After a lease
without such a packet anything is news, so that no forged number shuts a neighbour out for good.

**What is wrong does not stay.** The revision counts on where the content changes, and every
``REFRESH`` seconds, so that a wrong hello is replaced. Where a neighbour acknowledges a revision
that this agent has yet to reach, the agent's hellos would be old to it: the agent counts on from
there. Damage does not pass the checksum. The checksum is no proof of who sent a packet, and there
is no signature: agents with certificates speak over mutual TLS only, which proves it.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from hogwild_node.errors import SetupError
from hogwild_node.ops import Array

VERSION = 2
HELLO, DATA = 0, 1
# A rule is its place here on the wire: new ones come last.
RULES = ("gradient", "messages", "fixed-point", "caching", "overwriting", "balls")
FIELDS, CHECK = struct.Struct("<BBBBIIIIHHdf"), struct.Struct("<I")
HEADER = struct.Struct(FIELDS.format + CHECK.format[1:])
PRECISIONS = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
"""Numbers in packets of data, by name."""
U32, U16 = 1 << 32, 1 << 16
LATEST = 1e12
"""Times from this on, in seconds, are no times: 30,000 years."""
WINDOW = 30.0
"""Seconds over which the least transit time of a link is sought, so that drifting clocks are
forgotten."""


class BadPacket(ValueError):
    """A packet that an agent drops; the text says why."""


def checksum(head: bytes, body: bytes) -> int:
    """CRC-32 of a packet: of its fields, and of what follows the checksum."""
    return zlib.crc32(body, zlib.crc32(head))


def behind(number: int, known: int, size: int) -> bool:
    """Whether a number that counts on and wraps around at ``size`` is before the known one."""
    return (number - known) % size >= size // 2


@cache
def _triangle(size: int) -> tuple[Array, Array]:
    """Indices of the upper triangle of a matrix."""
    return np.triu_indices(size)


@dataclass(frozen=True)
class Header:
    """The first 40 bytes, but for the checksum."""

    kind: int
    model: int
    incarnation: int
    sequence: int = 0
    to: int = 0  # the receiver's incarnation, if the sender hears it
    revision: int = 0
    known: int = 0  # the newest revision of the receiver's hello that the sender knows
    time: float = 0.0
    calm: float = 0.0


@dataclass(frozen=True)
class Format:
    """The format of all packets of one model and rule.

    Attributes:
        model: The model's name on the network, sixteen hexadecimal digits.
        rule: The rule's name.
        features: Numbers of a hello beside the degree: the width q of the features, and the width
            r of the features of an edge where they travel.
        broadcast_width: Numbers that a packet holds beside the letter: the embedding, or the values
            of all layers.
        letter_width: Numbers of a letter.
        block: Width k of the curvature block at the end of a letter; 0: there is none.
        width: Width k of an embedding.
        precision: One of ``PRECISIONS``.
        floods: Whether data packets hold reports, and do not replace each other.
    """

    model: str
    rule: str
    features: int
    broadcast_width: int
    letter_width: int
    block: int
    width: int
    precision: str = "float32"
    floods: bool = False

    @property
    def number(self) -> np.dtype[np.floating]:
        return np.dtype(PRECISIONS[self.precision])

    @property
    def saved(self) -> int:
        """Numbers that symmetry saves."""
        return self.block * (self.block - 1) // 2

    @property
    def hello_size(self) -> int:
        return HEADER.size + 8 * (1 + self.features)

    @property
    def data_size(self) -> int:
        """Bytes of a data packet; where packets hold reports, the least."""
        return HEADER.size + self.number.itemsize * (
            self.broadcast_width + self.letter_width - self.saved
        )

    def header(self, incarnation: int, kind: int = DATA, **fields: Any) -> Header:
        """A header of this model."""
        return Header(kind, int(self.model[:8], 16), incarnation, **fields)

    # -- writing -----------------------------------------------------------------------------------

    def packet(self, header: Header, body: bytes) -> bytes:
        """The bytes of a packet: a hello, numbers, or reports."""
        code = 16 * RULES.index(self.rule) + self.number.itemsize
        head = FIELDS.pack(
            VERSION, header.kind, code, min(self.width, 255), int(self.model[:8], 16),
            header.incarnation, header.sequence % U32, header.to,
            header.revision % U16, header.known % U16, header.time, min(header.calm, 3e38),
        )  # fmt: skip
        return head + CHECK.pack(checksum(head, body)) + body

    def hello(self, header: Header, degree: float, features: Array) -> bytes:
        """The bytes of a hello; ``features`` are all numbers beside the degree."""
        return self.packet(header, np.array([degree, *features], "<f8").tobytes())

    def data(self, header: Header, broadcast: Array, letter: Array) -> bytes:
        """The bytes of a data packet: what the node sends to everybody, and the letter."""
        if self.block:
            rest, block = letter[: -(self.block**2)], letter[-(self.block**2) :]
            upper = block.reshape(self.block, self.block)[_triangle(self.block)]
            letter = np.concatenate([rest, upper])
        with np.errstate(over="ignore"):  # too large for the format: infinite, and then refused
            numbers = np.concatenate([broadcast, letter]).astype(self.number)
        return self.packet(header, numbers.tobytes())

    # -- reading -----------------------------------------------------------------------------------

    def read(self, raw: bytes) -> Header:
        """The header of a packet of this model and of a size that fits.

        Raises:
            BadPacket: The packet is not of this format.
        """
        if len(raw) < HEADER.size:
            raise BadPacket("short")
        version, kind, code, width, model, *rest, check = HEADER.unpack_from(raw)
        header = Header(kind, model, *rest)
        if version != VERSION:
            raise BadPacket("version")
        if model != int(self.model[:8], 16):
            raise BadPacket("model")
        if kind not in (HELLO, DATA) or width != min(self.width, 255):
            raise BadPacket("kind")
        if code != 16 * RULES.index(self.rule) + self.number.itemsize:
            raise BadPacket("rule")
        if kind == DATA and self.floods:
            fits = len(raw) >= self.data_size
        else:
            fits = len(raw) == (self.hello_size if kind == HELLO else self.data_size)
        if not fits:
            raise BadPacket("size")
        if check != checksum(raw[: FIELDS.size], raw[HEADER.size :]):
            raise BadPacket("damaged")
        if not abs(header.time) < LATEST or not 0.0 <= header.calm < math.inf:  # NaN fails both
            raise BadPacket("numbers")
        return header

    def read_hello(self, raw: bytes) -> tuple[float, Array]:
        """Degree and features of a hello, as they were written."""
        found = np.frombuffer(raw, "<f8", offset=HEADER.size)
        if not bool(np.isfinite(found).all()) or found[0] < 1.0:
            raise BadPacket("numbers")
        return float(found[0]), found[1:].copy()

    def read_data(self, raw: bytes) -> tuple[Array, Array]:
        """What the sender sends to everybody, and the letter, as float64."""
        found = np.frombuffer(raw, self.number, offset=HEADER.size).astype(np.float64)
        if not bool(np.isfinite(found).all()):
            raise BadPacket("numbers")
        broadcast, letter = found[: self.broadcast_width], found[self.broadcast_width :]
        if self.block:
            count = self.block * (self.block + 1) // 2
            rest, upper = letter[:-count], letter[-count:]
            block = np.zeros((self.block, self.block))
            block[_triangle(self.block)] = upper
            block = block + block.T - np.diag(np.diag(block))
            letter = np.concatenate([rest, block.ravel()])
        return broadcast, letter


# -- links -----------------------------------------------------------------------------------------


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

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "weight", float(self.weight))
            if self.edge_attr is not None:
                object.__setattr__(self, "edge_attr", np.asarray(self.edge_attr, float))
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"an edge has weight={self.weight!r} and edge_attr={self.edge_attr!r}; expected a "
                f"number, and numbers or None"
            ) from error

    @property
    def content(self) -> tuple[object, ...]:
        """The attributes, as something that can be compared."""
        return (
            self.address,
            self.weight,
            None if self.edge_attr is None else self.edge_attr.tobytes(),
        )


@dataclass
class Link:
    """What an agent knows of one neighbour, and which of its packets it takes in."""

    edge: Edge
    since: float = -math.inf  # when the owner of the agent named this neighbour
    incarnation: int | None = None
    retired: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    revision: int = 0
    degree: float = 1.0
    features: Array | None = None
    sequence: int | None = None  # of the newest data packet
    broadcast: Array | None = None  # what it last sent to everybody
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
        if self.sequence is None or not behind(header.sequence, self.sequence, U32):
            self.mutual, self.known = header.to == me, header.known
        self.transit(arrived, arrived - header.time)

    def leave(self) -> None:
        """The neighbour no longer takes part."""
        self.mutual, self.broadcast, self.letter, self.sequence = False, None, None, None

    def _hear_hello(self, header: Header, degree: float, features: Array, living: bool) -> None:
        if header.incarnation != self.incarnation:
            if self.incarnation is not None:
                self.retired.append(self.incarnation)
            self.leave()
            self.incarnation = header.incarnation
            self.transits.clear()
        elif living and behind(header.revision, self.revision, U16):
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
            header.sequence != known and not behind(header.sequence, known, U32)
        )
        if form.floods:
            take(header.incarnation, raw[HEADER.size :])
        elif not newest:
            raise BadPacket("old")
        else:
            self.broadcast, self.letter = form.read_data(raw)
        if newest:
            self.sequence, self.sent, self.calm = header.sequence, header.time, header.calm
        return newest
