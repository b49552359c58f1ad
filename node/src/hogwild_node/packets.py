r"""Packets: what travels between two agents, binary and, but for balls, of fixed size.

A *hello* says who an agent is: its features and its degree. A *data* packet holds an embedding and
a letter. Both begin with the same 36 bytes, little endian:

======  ========  ==============================================================================
bytes   type      field
======  ========  ==============================================================================
1       u8        version of this format
1       u8        kind: 0 hello, 1 data
1       u8        rule, and bytes of a number (4 or 8)
1       u8        width k of an embedding (255: 255 or more)
4       u32       the model: the first half of its name
4       u32       incarnation of the sender: a random number, drawn when the agent starts
4       u32       sequence: the sender's count of turns
4       u32       acknowledgement: the newest sequence that the sender heard from the receiver
2       u16       revision of the sender's hello
2       u16       acknowledgement: the newest revision of the receiver's hello that the sender knows
8       f64       time of the sender's update, in seconds, by the sender's clock
4       f32       calm: for how many seconds nobody in reach of the sender was unsettled
======  ========  ==============================================================================

A hello goes on with the degree and the features as float64. A data packet goes on with the numbers
of the rule: the embedding (or the values of all layers), then the letter. Curvature blocks are
symmetric, and only their upper triangles travel. With k = 2 and float32 a packet of gradient steps
has 64 bytes and a packet of messages 120. With the rule ``"balls"`` a data packet goes on with
words (:mod:`hogwild_node.flood`).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hogwild_node.ops import Array

VERSION = 1
HELLO, DATA = 0, 1
RULES = ("gradient", "messages", "fixed-point", "caching", "overwriting", "balls")
HEADER = struct.Struct("<BBBBIIIIHHdf")
WORD, HALF = 1 << 32, 1 << 16
LATEST = 1e12
"""Times from this on, in seconds, are no times: 30,000 years."""


class BadPacket(ValueError):
    """A packet that an agent drops; the text says why."""


@cache
def _triangle(size: int) -> tuple[Array, Array]:
    """Indices of the upper triangle of a matrix."""
    return np.triu_indices(size)


@dataclass(frozen=True)
class Header:
    """The first 36 bytes."""

    kind: int
    model: int
    incarnation: int
    sequence: int = 0
    heard: int = 0  # the newest sequence that the sender heard from the receiver
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
        features: Width p of the features in a hello.
        said: Numbers that a packet holds beside the letter: the embedding, or all layers' values.
        letter: Numbers of a letter.
        block: Width k of the curvature block at the end of a letter; 0: there is none.
        width: Width k of an embedding.
        precision: ``"float32"`` or ``"float64"``.
    """

    model: str
    rule: str
    features: int
    said: int
    letter: int
    block: int
    width: int
    precision: str = "float32"

    @property
    def number(self) -> np.dtype[np.floating]:
        return np.dtype("<f4" if self.precision == "float32" else "<f8")

    @property
    def floods(self) -> bool:
        """Whether data packets hold words, and do not replace each other."""
        return self.rule == "balls"

    @property
    def saved(self) -> int:
        """Numbers that symmetry saves."""
        return self.block * (self.block - 1) // 2

    @property
    def hello_size(self) -> int:
        return HEADER.size + 8 * (1 + self.features)

    @property
    def data_size(self) -> int:
        """Bytes of a data packet; where packets hold words, the least."""
        return HEADER.size + self.number.itemsize * (self.said + self.letter - self.saved)

    def _head(self, header: Header) -> bytes:
        code = 16 * RULES.index(self.rule) + self.number.itemsize
        return HEADER.pack(
            VERSION, header.kind, code, min(self.width, 255), int(self.model[:8], 16),
            header.incarnation, header.sequence % WORD, header.heard % WORD,
            header.revision % HALF, header.known % HALF, header.time, min(header.calm, 3e38),
        )  # fmt: skip

    def header(self, incarnation: int, kind: int = DATA, **fields: Any) -> Header:
        """A header of this model."""
        return Header(kind, int(self.model[:8], 16), incarnation, **fields)

    # -- writing -----------------------------------------------------------------------------------

    def hello(self, header: Header, degree: float, features: Array) -> bytes:
        """The bytes of a hello."""
        return self._head(header) + np.array([degree, *features], "<f8").tobytes()

    def packet(self, header: Header, body: bytes) -> bytes:
        """The bytes of a data packet with words."""
        return self._head(header) + body

    def data(self, header: Header, said: Array, letter: Array) -> bytes:
        """The bytes of a data packet: what the node says to everybody [said], and the letter."""
        if self.block:
            rest, block = letter[: -(self.block**2)], letter[-(self.block**2) :]
            upper = block.reshape(self.block, self.block)[_triangle(self.block)]
            letter = np.concatenate([rest, upper])
        with np.errstate(over="ignore"):  # too large for the format: infinite, and then refused
            return self._head(header) + np.concatenate([said, letter]).astype(self.number).tobytes()

    # -- reading -----------------------------------------------------------------------------------

    def read(self, raw: bytes) -> Header:
        """The header of a packet of this model and of a size that fits.

        Raises:
            BadPacket: The packet is not of this format.
        """
        if len(raw) < HEADER.size:
            raise BadPacket("short")
        version, kind, code, width, model, *rest = HEADER.unpack_from(raw)
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
        if not abs(header.time) < LATEST or not 0.0 <= header.calm < math.inf:  # NaN fails both
            raise BadPacket("numbers")
        return header

    def read_hello(self, raw: bytes) -> tuple[float, Array]:
        """Degree and features of a hello."""
        found = np.frombuffer(raw, "<f8", offset=HEADER.size)
        if not bool(np.isfinite(found).all()) or found[0] < 1.0:
            raise BadPacket("numbers")
        return float(found[0]), found[1:].copy()

    def read_data(self, raw: bytes) -> tuple[Array, Array]:
        """What the sender says to everybody [said], and the letter [letter], as float64."""
        found = np.frombuffer(raw, self.number, offset=HEADER.size).astype(np.float64)
        if not bool(np.isfinite(found).all()):
            raise BadPacket("numbers")
        said, letter = found[: self.said], found[self.said :]
        if self.block:
            count = self.block * (self.block + 1) // 2
            rest, upper = letter[:-count], letter[-count:]
            block = np.zeros((self.block, self.block))
            block[_triangle(self.block)] = upper
            block = block + block.T - np.diag(np.diag(block))
            letter = np.concatenate([rest, block.ravel()])
        return said, letter
