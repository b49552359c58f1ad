"""A large graph in tiles: small pieces with a few rings around them (``source/tiles.h``)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import GraphError
from hogwild.kernels.native import Library, address

OWN, RING, HELD = range(3)
"""What a node is to a tile: its own, one of the rings for which it solves, too, or held."""


@dataclass(frozen=True)
class Gathered:
    """Some tiles as a batch of graphs.

    Attributes:
        node: The nodes in the whole graph, [n].
        tile: The tile of each node, counted from the first one, [n].
        kind: :data:`OWN`, :data:`RING` or :data:`HELD`, [n].
        edge: The edges in the whole graph, [e].
        ends: Senders and receivers among these nodes, [2, e].
        count: Number of tiles.
    """

    node: Tensor
    tile: Tensor
    kind: Tensor
    edge: Tensor
    ends: Tensor
    count: int


class Tiling:
    """The first ``moving`` nodes of a graph in tiles of about ``size`` nodes."""

    def __init__(
        self, native: Library, src: Tensor, dst: Tensor, nodes: int, moving: int, size: int
    ) -> None:
        self.native, self._free = native, native.tiling_free
        src, dst = src.contiguous(), dst.contiguous()
        self.handle, why = native.call(
            "tiling", nodes, src.numel(), address(src), address(dst), moving, size
        )
        if not self.handle:
            raise GraphError(f"the compiled library refused the graph: {why}")
        self.count = int(native.tiling_count(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._free(self.handle)

    def gather(self, first: int, last: int, rings: int, most: int) -> Gathered | None:
        """The tiles from ``first`` up to ``last`` with so many rings; ``None`` where they hold more
        than ``most`` nodes."""
        counts = (ctypes.c_int64 * 2)()
        failed, _ = self.native.call(
            "tiling_gather", self.handle, first, last, rings, most, ctypes.addressof(counts)
        )
        if failed:
            return None
        n, e = counts
        out = Gathered(
            torch.empty(n, dtype=torch.long),
            torch.empty(n, dtype=torch.long),
            torch.empty(n, dtype=torch.uint8),
            torch.empty(e, dtype=torch.long),
            torch.empty(2, e, dtype=torch.long),
            last - first,
        )
        every = (out.node, out.tile, out.kind, out.edge, out.ends)
        self.native.tiling_copy(self.handle, *map(address, every))
        return out
