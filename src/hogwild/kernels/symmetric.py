"""Compiled solves with one symmetric number a pair of neighbours, for many right-hand sides."""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.kernels.energy import plan_of
from hogwild.kernels.native import address, library

MOST_EDGES = 2_000_000
"""Edges of a batch above which no plan is made."""
MOST_WORK = 1e10
"""Multiplications of a factorisation above which iterations are used instead."""


def solve_symmetric(graph: Graph, diagonal: Tensor, edge: Tensor, b: Tensor) -> Tensor | None:
    """The solution of A x = b; ``None`` where the compiled library does not apply.

    Args:
        graph: The graphs.
        diagonal: The diagonal of A, [N].
        edge: What every edge adds to the two entries of its ends, [E].
        b: Right-hand sides, [R, k, N].

    Returns:
        x [R, k, N]; NaN on graphs whose matrix is not positive definite.
    """
    native = library()
    if native is None or b.device.type != "cpu" or b.dtype != torch.float64:
        return None
    if max(graph.num_edges, graph.num_nodes) > MOST_EDGES:
        return None
    plan = plan_of(graph, native, 1, hops=1)
    if plan.work > MOST_WORK:
        return None
    diagonal, edge, b = (t.detach().contiguous() for t in (diagonal, edge, b))
    x = torch.empty_like(b)
    sound = torch.empty(graph.num_graphs, dtype=torch.long, device="cpu")
    failed, why = native.call(
        "symmetric", plan.handle, address(diagonal), address(edge), b.size(0) * b.size(1),
        address(b), torch.get_num_threads(), address(x), address(sound),
    )  # fmt: skip
    if failed:
        raise MemoryError(f"the compiled solve failed: {why}")
    if not bool(sound.all()):
        x = torch.where(graph.spread(sound == 0), torch.nan, x)
    return x
