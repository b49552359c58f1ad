"""Energies on large graphs on a GPU: all threads compute one graph, one launch a solve.

``source/large.cu`` runs Newton's method with conjugate gradients over one (graph, replica) after
the other. The blocks of a launch wait for each other between two passes over nodes or edges, which
needs a cooperative launch: all of them run at the same time. Nothing is read back during a solve,
so that a whole training step can be recorded as one CUDA graph.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hogwild.engines.gpu import HEADERS as SHARED
from hogwild.engines.gpu import MOST_CHANNELS, DeviceEngine, GpuEngine, Options, index_of, prelude
from hogwild.engines.inputs import Sizes, Tensors
from hogwild.graph import Graph, cached
from hogwild.kernels.build import SOURCE
from hogwild.kernels.driver import argument_addresses, launch_together, load, multiprocessors
from hogwild.kernels.native import Library, address
from hogwild.linalg.direct import plan_of
from hogwild.linalg.solution import Solution
from hogwild.problems.energy import Design, EnergyProblem

HEADERS = (*SHARED, "system.h", "krylov_gpu.h")
THREADS, RESIDENT = 256, 2
"""Threads of a block, and blocks that share a multiprocessor."""
MOST_WORK = 3e6
"""Multiplications of a graph's factorisation, for every (graph, replica) of a batch, above which
all threads together are faster than a block of threads for each of them. On an H200 a factorisation
of random geometric graphs took 0.45 ns a multiplication, an iteration with conjugate gradients
0.32 ms, and the choice asks for a gain of four: ill-conditioned energies need more turns (trials
without a record, at 1,000 to 10,000 nodes)."""
MOST_DEGREE = 1_024
"""Edges of a node above which the one thread that computes a node is too slow."""
MOST_MEMORY = 0.5
"""Share of a GPU's memory above which torch, which needs less, solves."""


@dataclass(frozen=True)
class Connectivity:
    """The edges of a batch, sorted by receiver, as ``Large`` in ``large.cu`` reads them.

    Attributes:
        tensors: The arrays of ``Large`` up to ``edge``.
        nodes: Nodes of the largest graph.
        edges: Edges of the graph with the most edges.
        degree: The most edges into or out of one node.
    """

    tensors: dict[str, Tensor]
    nodes: int
    edges: int
    degree: int


@cached
def connectivity(graph: Graph) -> Connectivity:
    """The sorted edges of this graph, which owns them."""
    edge = torch.argsort(graph.dst, stable=True)
    src, dst, batch = graph.src[edge], graph.dst[edge], graph.batch
    out_edge = torch.argsort(src, stable=True)
    nodes = torch.bincount(batch, minlength=graph.num_graphs)
    edges = torch.bincount(batch[dst], minlength=graph.num_graphs)
    first, edge_first = (torch.cat([n.new_zeros(1), n.cumsum(0)]) for n in (nodes, edges))
    graphs = torch.arange(graph.num_graphs, device=batch.device)

    def pointers(ends: Tensor) -> tuple[Tensor, int]:
        """Where the edges of every node begin within its graph, n + 1 numbers a graph; and the
        most edges of a node."""
        degree = torch.bincount(ends, minlength=graph.num_nodes)
        out = first.new_empty(graph.num_nodes + graph.num_graphs)
        begin = degree.cumsum(0) - degree - edge_first[batch]
        out[torch.arange(graph.num_nodes, device=batch.device) + batch] = begin
        out[first[1:] + graphs] = edges
        return out, int(degree.max()) if degree.numel() else 0

    ptr, received = pointers(dst)
    out_ptr, sent = pointers(src)
    local = {
        "ptr": ptr, "src": src - first[batch[dst]], "dst": dst - first[batch[dst]],
        "out_ptr": out_ptr, "out_edge": out_edge - edge_first[batch[src[out_edge]]],
    }  # fmt: skip
    tensors = {name: x.to(torch.int32) for name, x in local.items()}
    tensors |= {"first": first, "edge_first": edge_first, "edge": edge}
    largest = [int(n.max()) if n.numel() else 0 for n in (nodes, edges)]
    return Connectivity(tensors, largest[0], largest[1], max(received, sent))


class _Large(ctypes.Structure):
    """``Large`` of ``large.cu``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "ptr", "src", "dst", "out_ptr", "out_edge", "first", "edge_first", "edge", "memory",
            "found", "arrived")),
        *((name, ctypes.c_longlong) for name in ("nodes", "edges", "graphs", "replicas")),
        *((name, ctypes.c_void_p) for name in (
            "parameters", "o_nodes", "o_edges", "weight", "loop_weight")),
        *((name, ctypes.c_longlong) for name in ("weight_replica", "weight_head")),
    ]  # fmt: skip


def memory_numbers(design: Design, sizes: Sizes, nodes: int, edges: int) -> int:
    """Numbers in double precision for one graph: those of its task, and of conjugate gradients in
    double and in single precision (``System`` in ``system.h``)."""
    k = design.channels
    m = design.message_channels * (design.heads if design.concat else 1)
    task = nodes * sizes.node_fields + edges * sizes.edge_fields

    def system(chunk: int) -> int:
        """Numbers of a system whose rows are filled up to whole chunks."""
        each = [-(-n // chunk) * chunk for n in (m * k + k * k, k * k + m * m, k * k, k + m)]
        return edges * each[0] + nodes * (sum(each[1:]) + 3 * k) + chunk

    return task + 2 + system(2) + (system(4) + 1) // 2


@cache
def functions(
    design: Design, device: int, threads: int, resident: int
) -> dict[str, ctypes.c_void_p]:
    """The loaded kernels of one model on one GPU."""
    text = prelude(design, threads, resident) + (SOURCE.parent / "large.cu").read_text()
    wanted = ("hog_solve_large", "hog_adjoint_large")
    return load(text, "large.cu", HEADERS, device, wanted)


@cache
def _total_memory(device: int) -> int:
    return torch.cuda.get_device_properties(device).total_memory


class LargeGpuEngine(DeviceEngine):
    """An energy on a few large graphs on a GPU."""

    fewest = 4_096
    """Below it, waiting for each other costs more than computing: one graph is computed after the
    other."""

    def _analyse(self) -> None:
        self.edges = connectivity(self.graph)
        self._load()

    def _load(self) -> None:
        """Load the kernels of this model."""
        self.index = index_of(self.graph)
        self.functions = functions(self.design, self.index, THREADS, RESIDENT)

    @staticmethod
    def is_fastest_for(native: Library, problem: EnergyProblem) -> bool:
        """Whether all threads together solve one graph after the other faster than a block of
        threads a graph, or than batched operations on all graphs: for few large graphs without
        hubs, and narrow embeddings."""
        graph, design = problem.graph, problem.design
        rows, sizes = max(graph.num_edges, graph.num_nodes), Sizes.of(native, design)
        if design.channels > MOST_CHANNELS or rows * design.heads >= 1 << 31:
            return False
        if GpuEngine.is_fastest_for(native, problem):
            work = plan_of(graph, native, design.channels).work * design.channels**3
            if work <= MOST_WORK * problem.replicas * graph.num_graphs**2:
                return False
        found = connectivity(graph)
        assert sizes is not None
        numbers = memory_numbers(design, sizes, found.nodes, found.edges)
        return found.degree <= MOST_DEGREE and 8 * numbers <= room(graph)

    @property
    def name(self) -> str:
        capability = torch.cuda.get_device_capability(self.index)
        return "CUDA sm_{}{}, a graph at a time".format(*capability)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS

    @property
    def blocks(self) -> int:
        """Blocks of threads: as many as run at the same time, and no more than there are rows."""
        rows = max(self.edges.nodes, self.edges.edges, 1)
        return min(RESIDENT * multiprocessors(self.index), -(-rows // self.threads))

    def _large(self) -> tuple[_Large, int, list[Any]]:
        """The arguments of a launch, the bytes of shared memory, and what must stay alive."""
        t, found = self.tensors.detach(), self.edges
        numbers = memory_numbers(self.design, self.sizes, found.nodes, found.edges)
        memory, sums = t.nodes.new_empty(numbers), t.nodes.new_empty(4 * self.blocks)
        arrived = torch.zeros(1, dtype=torch.int32, device=memory.device)
        names = ("parameters", "o_nodes", "o_edges", "weight", "loop_weight")
        addresses = [address(x) for x in t.every()]
        at = {name: address(x) for name, x in found.tensors.items()}
        large = _Large(
            **at, **dict(zip(names, addresses, strict=True)),
            memory=address(memory), found=address(sums), arrived=address(arrived),
            nodes=self.graph.num_nodes, edges=self.graph.num_edges, graphs=self.graph.num_graphs,
            replicas=self.replicas, weight_replica=self._strides[0], weight_head=self._strides[1],
        )  # fmt: skip
        return large, 8 * (128 + self.sizes.parameters), [t, memory, sums, arrived]

    def _launch(self, name: str, shared: int, *arguments: Any) -> None:
        pointers, _alive = argument_addresses(arguments)
        stream = torch.cuda.current_stream(self.index).cuda_stream
        function, grid = self.functions[name], (self.blocks, 1)
        with torch.cuda.device(self.index):
            launch_together(function, grid, self.threads, shared, stream, pointers)

    def _solve(self, h0: Tensor | None, options: tuple[Any, ...], into: Solution) -> None:
        large, shared, _alive = self._large()
        self._launch(
            "hog_solve_large", shared, large, address(h0),
            Options(*options), address(into.value), address(into.status),
            address(into.iterations), address(into.residual),
        )  # fmt: skip

    def _adjoint(self, h: Tensor, gradient: Tensor, into: Tensors, status: Tensor) -> None:
        large, shared, _alive = self._large()
        sums = h.new_empty(self.blocks * (self.threads // 32) * self.sizes.parameters)
        rest = [address(x) for x in into.every()]
        self._launch(
            "hog_adjoint_large", shared, large, address(h), address(gradient),
            ctypes.c_double(self.rtol), *rest, address(sums), address(status),
        )  # fmt: skip


def room(graph: Graph) -> int:
    """Bytes that a solve may use on the GPU of this graph."""
    return int(MOST_MEMORY * _total_memory(index_of(graph)))
