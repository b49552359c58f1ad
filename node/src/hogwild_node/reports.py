"""What agents tell with the rule ``"balls"``, as bytes: reports, and the packets that hold them
(:mod:`hogwild_node.flood`).

A report is about one agent, its *owner*. It has a kind, a version and a body: the owner's profile,
or its embedding.

A *profile* holds the features of an agent, and the edges into it: the neighbours that take part,
with weights and features of the edges, all as float64. Little endian:

=======================  ==========================================================================
bytes                    field
=======================  ==========================================================================
8 p                      the features
2                        u16: the number of edges
1                        u8: 1 where an edge has another weight than 1, else 0
for each edge 1 + …      u8: length of the neighbour's name, and the name
8                        its weight, if the flag is 1
8 r                      its features, where the model reads some
=======================  ==========================================================================

An *embedding* is k numbers in the precision of the packets.

A *packet* begins with its number (u32), the newest packet heard from the receiver (u32), bits of
those before (u32), the number of the sender's memory (u16), and what both ends must have in common
(u16). Each report has its kind (u8), the length of its owner's name (u8), the owner's count (u32)
and incarnation (u32), the length of its body (u16), the name, and the body.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hogwild_node.errors import SetupError
from hogwild_node.ops import Array
from hogwild_node.packets import U32, BadPacket

PROFILE, EMBEDDING = 0, 1
"""Kinds of reports."""
LONGEST = 60_000
"""Most bytes of a profile: it travels in one datagram."""
COUNT = struct.Struct("<HB")
HEAD = struct.Struct("<IIIHH")
ENTRY = struct.Struct("<BBIIH")
Key = tuple[int, str]
"""A kind of report, and its owner."""
Version = tuple[int, int]
"""The owner's count, and its incarnation."""
LAST = U32 // 2
"""The last count of a version."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Profile:
    """One agent, as it tells of itself.

    Attributes:
        features: Its features, [p].
        edges: Its neighbours, and the weights and features [r] of the edges from them.
    """

    features: Array
    edges: Mapping[str, tuple[float, Array | None]]

    @cached_property
    def degree(self) -> float:
        """One plus the weights of the edges."""
        return 1.0 + sum(weight for weight, _ in self.edges.values())

    def write(self) -> bytes:
        """Its bytes."""
        weighted = any(weight != 1.0 for weight, _ in self.edges.values())
        parts = [np.asarray(self.features, "<f8").tobytes(), COUNT.pack(len(self.edges), weighted)]
        for name, (weight, attr) in self.edges.items():
            parts += [bytes([len(name)]), name.encode("ascii")]
            parts += [struct.pack("<d", weight)] if weighted else []
            parts += [] if attr is None else [np.asarray(attr, "<f8").tobytes()]
        out = b"".join(parts)
        if len(out) > LONGEST:
            raise SetupError(
                f"the features and the {len(self.edges)} edges of the agent take {len(out):,} "
                f"bytes, and with rule='balls' they travel in one packet; expected at most "
                f"{LONGEST:,}, or another rule"
            )
        return out

    @classmethod
    def read(cls, owner: str, raw: bytes, width: int, attr_width: int | None) -> Profile:
        """The profile of ``owner`` in these bytes.

        Args:
            width: p, the width of the features.
            attr_width: r, the width of the features of edges; ``None``: there are none.

        Raises:
            BadPacket: The bytes are no profile.
        """
        at = 8 * width + COUNT.size
        if len(raw) < at:
            raise BadPacket("size")
        count, weighted = COUNT.unpack_from(raw, 8 * width)
        numbers = bool(weighted) + (attr_width or 0)
        edges: dict[str, tuple[float, Array | None]] = {}
        for _ in range(count):
            if at >= len(raw):
                raise BadPacket("size")
            end = at + 1 + raw[at]
            after = end + 8 * numbers
            if after > len(raw):
                raise BadPacket("size")
            name = checked(raw[at + 1 : end].decode("ascii", "replace"))
            if name == owner or name in edges:
                raise BadPacket("names")
            told = _finite(np.frombuffer(raw, "<f8", numbers, end))
            weight = float(told[0]) if weighted else 1.0
            if weight < 0.0:
                raise BadPacket("numbers")
            edges[name] = weight, None if attr_width is None else told[bool(weighted) :]
            at = after
        if at != len(raw):
            raise BadPacket("size")
        return cls(_finite(np.frombuffer(raw, "<f8", width)), edges)


def checked(name: str) -> str:
    """A name that an agent may have."""
    if not NAME.fullmatch(name):
        raise BadPacket("names")
    return name


def read_embedding(raw: bytes, number: np.dtype[np.floating], width: int) -> Array:
    """The embedding [k] in these bytes."""
    if len(raw) != number.itemsize * width:
        raise BadPacket("size")
    return _finite(np.frombuffer(raw, number))


def _finite(x: Array) -> Array:
    if not bool(np.isfinite(x).all()):
        raise BadPacket("numbers")
    return x.astype(np.float64)


@dataclass(frozen=True)
class Report:
    """What an owner says.

    Attributes:
        key: The kind of report, and its owner.
        version: Its version.
        body: Its bytes.
        content: What they say.
    """

    key: Key
    version: Version
    body: bytes
    content: Any

    @cached_property
    def size(self) -> int:
        """Bytes that it takes in a packet."""
        return ENTRY.size + len(self.key[1]) + len(self.body)


@dataclass(frozen=True)
class Packet:
    """What travels: all of these numbers and reports, or nothing.

    Attributes:
        number: Its number.
        newest: The newest packet that its sender has heard from the receiver; 0: none.
        before: Bit b: packet ``newest - 1 - b`` was heard, too.
        memory: The number of its sender's memory.
        scope: What both ends must have in common.
        reports: What it tells.
    """

    number: int
    newest: int
    before: int
    memory: int
    scope: int
    reports: list[Report]

    @property
    def size(self) -> int:
        """Its bytes."""
        return HEAD.size + sum(report.size for report in self.reports)

    def write(self) -> bytes:
        """Its bytes."""
        parts = [HEAD.pack(self.number, self.newest, self.before, self.memory, self.scope)]
        for report in self.reports:
            (kind, owner), body = report.key, report.body
            parts += [
                ENTRY.pack(kind, len(owner), *report.version, len(body)),
                owner.encode(),
                body,
            ]
        return b"".join(parts)

    @classmethod
    def read(cls, raw: bytes, content: Callable[[Key, bytes], Any]) -> Packet:
        """The packet in these bytes; ``content(key, body)`` is what a report says.

        Raises:
            BadPacket: The bytes are no packet.
        """
        if len(raw) < HEAD.size:
            raise BadPacket("size")
        reports, at = [], HEAD.size
        while at < len(raw):
            if at + ENTRY.size > len(raw):
                raise BadPacket("size")
            kind, width, count, incarnation, size = ENTRY.unpack_from(raw, at)
            at += ENTRY.size
            end = at + width + size
            if end > len(raw):
                raise BadPacket("size")
            if not 0 < count <= LAST:
                raise BadPacket("numbers")
            try:
                key = (kind, raw[at : at + width].decode("ascii"))
            except UnicodeDecodeError:
                raise BadPacket("names") from None
            body = bytes(raw[at + width : end])
            reports.append(Report(key, (count, incarnation), body, content(key, body)))
            at = end
        number, newest, before, memory, scope = HEAD.unpack_from(raw)
        return cls(number, newest, before, memory, scope, reports)
