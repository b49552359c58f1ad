"""Soft energies on a GPU: all steps of a solve in one launch, and all gradients in another one
(``source/soft.cu``).

The blocks of the first launch wait for each other once a step, which needs a cooperative launch:
all of them run at the same time. Nothing is read back, and a CUDA graph can record the launches.
Torch computes the residual of what they find (:mod:`hogwild.engines.soft`), and takes the steps
itself where :func:`fused` finds a reason.
"""

from __future__ import annotations

import ctypes
import math
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hogwild.graph import Graph, cached
from hogwild.kernels.build import SOURCE
from hogwild.kernels.driver import (
    CudaError,
    argument_addresses,
    launch,
    launch_together,
    load,
    most_shared,
    multiprocessors,
    resident,
)
from hogwild.kernels.native import SWITCH, address
from hogwild.ops import precise
from hogwild.problems.soft import SoftProblem
from hogwild_node.soft import WIDTH, Soft

if TYPE_CHECKING:
    from hogwild.engines.soft import SoftRows

THREADS, RESIDENT = 512, 2
"""Threads of a block, and blocks that share a multiprocessor."""
TILE = 16
"""Nodes that a block computes together."""
MOST_DEGREE = 4_096
"""Edges of a node above which the threads that add them up, one a channel, are too slow (a guess:
no run on a GPU has measured it)."""
ARRAYS = (
    "in", "in_edge", "sender", "out", "out_edge", "receiver", "here", "there", "weight", "forth",
    "back", "low", "high", "inner_low", "inner_high", "along", "inside", "anchor", "y", "x",
    "before", "sent", "arrived",
)  # fmt: skip
SIZES = ("replicas", "nodes", "edges", "k", "w", "o", "heads", "stride", "steps", "held")
BOUNDS = ("beta", "least", "most", "width")


class Arguments(ctypes.Structure):
    """``Soft`` of ``soft.cu``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ARRAYS),
        *((name, ctypes.c_longlong) for name in SIZES),
        *((name, ctypes.c_double) for name in BOUNDS),
    ]


class Cotangents(ctypes.Structure):
    """``Cotangents`` of ``soft.cu``."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("bias", "bent", "straight", "straightest", "steepest")
    ]


@cached
def ends(graph: Graph) -> list[Tensor]:
    """For the edges into the nodes: where those of each node begin [N + 1], the edges, and their
    senders; the same for the edges out of the nodes, with their receivers."""
    found = []
    for near, far in ((graph.dst, graph.src), (graph.src, graph.dst)):
        edge = torch.argsort(near, stable=True)
        first = near.new_zeros(graph.num_nodes + 1)
        first[1:] = torch.bincount(near, minlength=graph.num_nodes).cumsum(0)
        found += [first.int(), edge.int(), far[edge].int()]
    return found


def prelude(dtype: torch.dtype) -> str:
    """The constants that the source is compiled with."""
    real = {torch.float32: "float", torch.float64: "double"}[dtype]
    numbers = {"REAL": real, "THREADS": THREADS, "RESIDENT": RESIDENT, "TILE": TILE}
    return "".join(f"#define HOG_{name} {value}\n" for name, value in numbers.items())


@cached
def degree(graph: Graph) -> int:
    """The most edges into or out of one node."""
    into, _, _, out, _, _ = ends(graph)
    return int(torch.cat([into.diff(), out.diff()]).max())


KERNELS = ("hog_soft", "hog_soft_cotangents")


@cache
def functions(dtype: torch.dtype, device: int) -> dict[str, ctypes.c_void_p] | None:
    """The loaded kernels, or ``None`` where nothing compiles or loads them; a warning says why."""
    text = prelude(dtype) + (SOURCE.parent / "soft.cu").read_text()
    try:
        return load(text, "soft.cu", ("vectors.h", "grid_gpu.h"), device, KERNELS)
    except CudaError as error:
        warnings.warn(f"soft energies are solved by torch, which is slower: {error}", stacklevel=2)
        return None


def _index(x: Tensor) -> int:
    return x.device.index or 0


def _room(rows: SoftRows) -> tuple[int, bool]:
    """Bytes of shared memory of a block, and whether it holds B there."""
    *_, m, k = rows.back.shape
    tile, matrix = (n * rows.back.dtype.itemsize for n in ((TILE + 4) * (m + k), k * (m + 1)))
    matrix = -(-matrix // 64) * 64
    held = tile + matrix <= most_shared(_index(rows.anchor))
    return tile + held * matrix, held


def fused(rows: SoftRows, *others: Tensor) -> bool:
    """Whether these rows are solved in one launch; torch takes their steps otherwise. ``others``
    [R, ...] are what the kernels read or write beside the rows."""
    off = os.environ.get(SWITCH, "").lower() == "off"
    if off or not rows.anchor.is_cuda or not rows.anchor.numel():
        return False
    every = rows.anchor, rows.offset, rows.bias, rows.back, *rows.ramps, *others
    if len({x.size(0) for x in every}) > 1:
        return False  # torch broadcasts
    if len({(x.dtype, x.device) for x in (*every, *rows.scales)}) > 1:
        return False  # torch converts, or says what is wrong
    device, (shared, _) = _index(rows.anchor), _room(rows)
    kernels = functions(rows.anchor.dtype, device)
    if kernels is None or shared > most_shared(device) or degree(rows.graph) > MOST_DEGREE:
        return False
    return resident(kernels["hog_soft"], THREADS, shared, device) > 0


def run(
    rows: SoftRows, steps: int, along: Tensor, inside: Tensor, anchor: Tensor | None,
    state: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Take steps, which change the ``state`` y, x and x before [R, N, k].

    Args:
        rows: The energy.
        steps: Number of steps.
        along: Biases of the edges [R, E, w], or curvatures with their weights.
        inside: Offsets of the nodes [R, N, o], or curvatures.
        anchor: Anchors [R, N, k]: accelerated steps from y = x = x before. ``None``: Chebyshev's
            method for H x = b, from x = 0, x before = b, which becomes the residual, and y = b
            divided by the mean of the eigenvalues' bounds.
        state: The state, contiguous.
    """
    r, n, _ = state[0].shape
    assert all(x.is_contiguous() for x in state)  # a copy would be changed in their place
    sent = rows.back.new_empty(2, r, n, rows.back.size(1))
    arrived = torch.zeros(1, dtype=torch.int32, device=sent.device)
    given, _alive = _posed(rows, steps, along, inside, anchor, *state, sent, arrived)
    _launch("hog_soft", rows, r * -(-n // TILE), _room(rows)[0], given)


def cotangents(rows: SoftRows, h: Tensor, dual: Tensor) -> list[Tensor]:
    """What :meth:`SoftRows.fields` reads, without gradients in scales and weights of edges; h and
    λ are [R, N, k]."""
    (r, n, _), w, o, (*_, m, _) = h.shape, rows.width, rows.own, rows.back.shape
    sent, lifted = ((x @ rows.back.mT).contiguous() for x in (h, dual))
    shapes = rows.bias.shape, (r, n, m), (r, n, m), (r, n, w + o), (r, n, w + o)
    bias, bent, straight, flat, steep = (h.new_empty(shape) for shape in shapes)
    into = Cotangents(*map(address, (bias, bent, straight, flat, steep)))
    given, _alive = _posed(rows, 0, rows.bias, rows.offset, *[None] * 4, sent, None)
    _launch(
        "hog_soft_cotangents", rows, -(-sent.numel() // THREADS), 0, given, address(lifted), into
    )
    return [bias, bent, straight, flat.sum(1), steep.sum(1)]


@cache
def trusted(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether :func:`cotangents` agrees with torch on one problem on this GPU. No residual would
    show a mistake in gradients. A warning says that it does not."""
    found = deviation(dtype, device)
    if not found < 1e-3:
        warnings.warn(
            f"gradients of soft energies are computed by torch: those of the kernel for this GPU "
            f"differ by {found:.2g} on a problem for tests; please report this GPU and its driver",
            stacklevel=2,
        )
    return found < 1e-3


@torch.no_grad()
def deviation(dtype: torch.dtype, device: torch.device) -> float:
    """The largest difference between gradients by the kernel and by torch on a random problem, in
    units of the largest number of a field; infinite where a number is not finite."""
    from hogwild.engines.soft import SoftRows

    draw = torch.Generator("cpu").manual_seed(0)

    def some(*shape: int) -> Tensor:
        found = torch.rand(shape, generator=draw, dtype=torch.float64, device="cpu") - 0.5
        return found.to(device, dtype)

    n, e, k, w, o = 300, 900, 12, 20, 3
    graph = Graph.of(torch.randint(n, (2, e), generator=draw, device="cpu").to(device), n)
    shapes = {
        "anchor": (k, n), "bias": (w, e), "here": (2, e), "there": (2, e), "weight": (2, e),
        "receiver": (w, k), "sender": (w, k), "low": (w, 1), "high": (w, 1),
        "inner": (o, k), "offset": (o, n), "inner_low": (o, 1), "inner_high": (o, 1),
    }  # fmt: skip
    fields: dict[str, Any] = {name: some(2, *shape) for name, shape in shapes.items()}
    with precise(device.type):
        rows = SoftRows(SoftProblem(graph, Soft(**fields, beta=1.0), 2.0))
        h, dual = some(2, n, k), some(2, n, k)
        bias, *rest = cotangents(rows, h, dual)
        one = rows.fields(h, dual, bias, None, *rest)
        rows.scaled = True  # torch then computes all gradients
        other, worst = rows.cotangents(h, dual), 0.0
    for name in shapes.keys() - {"here", "there", "weight"}:
        a, b = getattr(one, name), getattr(other, name)
        found = float((a - b).abs().max() / b.abs().max())
        worst = max(worst, found if found < math.inf else math.inf)  # NaN is infinite
    return worst


def _posed(rows: SoftRows, steps: int, *arrays: Tensor | None) -> tuple[Arguments, list[Any]]:
    """The arguments of a kernel, from ``along`` on, and what must stay alive."""
    (r, n, k), heads, edges = rows.anchor.shape, rows.scales[0].size(1), rows.graph.num_edges
    for_all = max(x.size(0) for x in rows.scales) == 1
    scales = rows.scales if for_all else [x.expand(r, -1, -1) for x in rows.scales]
    every = [*ends(rows.graph), *scales, rows.back.mT, rows.back, *rows.ramps, *arrays]
    alive = [None if x is None else x.contiguous() for x in every]
    stride, (_, held) = 0 if for_all else heads * edges, _room(rows)
    sizes = r, n, edges, k, rows.width, rows.own, heads, stride, steps, held
    bounds = rows.beta, rows.beta, rows.condition * rows.beta, WIDTH
    return Arguments(*map(address, alive), *sizes, *bounds), alive


def _launch(name: str, rows: SoftRows, blocks: int, shared: int, *arguments: Any) -> None:
    """Launch a kernel with at most so many blocks."""
    device = _index(rows.anchor)
    kernels, stream = functions(rows.anchor.dtype, device), torch.cuda.current_stream(device)
    assert kernels is not None
    pointers, _alive = argument_addresses(arguments)
    start = launch_together if name == "hog_soft" else launch
    together = min(RESIDENT, resident(kernels[name], THREADS, shared, device))
    grid = min(together * multiprocessors(device), blocks), 1
    with torch.cuda.device(device):
        start(kernels[name], grid, THREADS, shared, stream.cuda_stream, pointers)
