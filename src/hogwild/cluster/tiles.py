r"""A large part in tiles, which compiled code solves one after the other.

Newton's method on a whole graph takes as many iterations everywhere as its hardest region needs,
and its linear systems do not fit into the caches. A tile of about a thousand nodes does. It is
solved with a few rings of nodes around it, while all other nodes are held, and keeps the
embeddings of its own nodes: overlapping Schwarz, with Newton's method and a factorisation inside.
What is wrong around a tile fades on its way through the rings. The cost of one sweep over all tiles
is linear in the nodes, and the number of sweeps does not grow with the graph.

A group of tiles is a batch of graphs for :class:`~hogwild.kernels.energy.EnergyKernel`, whose
threads take tile after tile. The next group starts from the embeddings that the groups before it
have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.cluster.memory import available
from hogwild.graph.inputs import Inputs
from hogwild.kernels.energy import EnergyKernel
from hogwild.kernels.native import Library
from hogwild.kernels.tiles import HELD, OWN, Gathered, Tiling
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Recipe

SIZE = 500
"""Nodes of a tile."""
LEAST = 100_000
"""Edges of a part from which it is solved in tiles."""
FORCING = 0.01
"""A sweep solves the tiles to this share of the residual that it began with."""
RINGS = 4
"""Rings around a tile for which it solves, too."""
GROUP = 128
"""Tiles of a group."""
SPREAD = 6
"""A graph whose first tiles with their rings hold more than this many times their nodes is not
tiled."""
ANY = 1 << 62
SPARE = 0.25
"""Share of the available memory in which all parts together keep groups from one sweep to the next;
the others are made again."""


@dataclass
class Group:
    """Some tiles, ready to be solved."""

    kernel: EnergyKernel
    tiles: Gathered
    own: Tensor  # places of the tiles' own nodes
    into: Tensor  # their numbers in the whole graph
    held: Tensor | None = None  # what `kernel` holds


class TiledEnergy:
    """The energy of a large part in tiles.

    Args:
        native: The compiled library.
        recipe: That of the problem of the part.
        moving: The first nodes, for which the part may solve.
        room: Bytes in which groups are kept.
    """

    def __init__(self, native: Library, recipe: Recipe, moving: int, room: int) -> None:
        self.inputs, self.make, self.moving = recipe.inputs, recipe.make, moving
        inputs = recipe.inputs
        src, dst = inputs.edge_index
        self.tiling = Tiling(native, src, dst, inputs.num_nodes, moving, SIZE)
        self.degrees = inputs.degrees
        if self.degrees is None:
            weight = inputs.edge_weight
            one = torch.ones(src.numel(), dtype=inputs.x.dtype) if weight is None else weight
            zero = torch.zeros(inputs.num_nodes, dtype=one.dtype)
            sums = [zero.index_add(0, ends, one) for ends in (dst, src)]
            self.degrees = torch.stack(sums, -1)
        self.starts = range(0, self.tiling.count, GROUP)
        self._kept: dict[int, Group] = {}
        self._room = room

    @classmethod
    def of(cls, native: Library, recipe: Recipe, moving: int, parts: int = 1) -> TiledEnergy | None:
        """One of so many parts, in tiles; ``None`` where the rings of tiles hold too many nodes, or
        the compiled library has no such energy."""
        if not moving:
            return None
        out = cls(native, recipe, moving, int(SPARE * (available() or 0) / parts))
        return out if out.tiling.count > 1 and out._group(0) is not None else None

    def _group(self, start: int) -> Group | None:
        if start in self._kept:
            return self._kept[start]
        last = min(start + GROUP, self.tiling.count)
        most = SPREAD * (last - start) * max(SIZE, self.moving // self.tiling.count)
        found = self.tiling.gather(start, last, RINGS, ANY if start else most)
        if found is None:
            return None
        given = self.inputs
        assert self.degrees is not None

        def some(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[found.edge]

        inputs = Inputs(
            given.x[..., found.node, :], found.ends, some(given.edge_attr), found.tile,
            edge_weight=some(given.edge_weight), batch_size=found.count,
            degrees=self.degrees[found.node],
        )  # fmt: skip
        with torch.no_grad():
            kernel = self.make(inputs)
        if not isinstance(kernel, EnergyKernel):
            return None
        own = (found.kind == OWN).nonzero()[:, 0]
        group = Group(kernel, found, own, found.node[own])
        used = sum(x.nbytes for x in kernel.tensors.every() if x is not None)
        used += 300 * found.node.numel() + 100 * found.edge.numel()  # the plan and the indices
        if used <= self._room:
            self._room -= used
            self._kept[start] = group
        return group

    def _groups(self) -> Iterator[Group]:
        for start in self.starts:
            found = self._group(start)
            assert found is not None, "the first group could be made"
            yield found

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient at ``h`` [R, k, N], zero where no tile is, and the size of its terms
        [R, 1]."""
        out, scale = torch.zeros_like(h), h.new_zeros(h.size(0), 1)
        for group in self._groups():
            found, size = group.kernel.gradient(h[..., group.tiles.node])
            out[..., group.into] = found[..., group.own]
            scale = torch.maximum(scale, size.amax(-1, keepdim=True))
        return out, scale

    def sweep(
        self, h: Tensor, free: int, solve: Callable[[EnergyKernel, Tensor], Solution]
    ) -> None:
        """Solve every tile once for the first ``free`` nodes of the part; ``h`` [R, k, N] is
        changed in place."""
        for group in self._groups():
            if group.held is None or free != self.moving:
                group.held = (group.tiles.kind == HELD) | (group.tiles.node >= free)
            kernel = group.kernel.holding(group.held)
            found = solve(kernel, h[..., group.tiles.node]).value[..., group.own]
            keep = (group.into < free) & found.isfinite().all(0).all(0)
            h[..., group.into[keep]] = found[..., keep]
