"""Energies on a GPU: a block of threads for every (graph, replica), one launch a solve.

``source/energy.cu`` is compiled for one model when the model is first solved on a GPU
(:mod:`hogwild.kernels.driver`). Nothing is read back during a solve, so that a whole training step
can be recorded as one CUDA graph.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.engines.base import Engine, TorchEngine
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.inputs import ACTIVATIONS, Tensors
from hogwild.graph import Graph, cached
from hogwild.kernels.build import SOURCE
from hogwild.kernels.driver import (
    argument_addresses,
    launch,
    load,
    most_shared,
    multiprocessors,
)
from hogwild.kernels.native import Library, address
from hogwild.linalg.direct import MOST_EDGES, MOST_NUMBERS, plan_of
from hogwild.linalg.solution import Solution
from hogwild.problems.energy import Design, EnergyProblem

FEW, MANY = (256, 1), (64, 8)
"""Threads of a block, which solves one graph, and blocks that share a multiprocessor: for fewer
graphs than multiprocessors, and for more (a trial without a record: with few graphs every wait
counts, with many of them barriers do)."""
REGISTERS = 65_536
"""Registers of a multiprocessor."""
WIDE = 40
"""Unknowns of a front from which on all threads of a block eliminate it together, not one warp."""
MOST_CHANNELS = 8
"""Width of embeddings above which the registers of a thread do not hold a row."""
MOST_ROWS = 8_192
"""Edges (or nodes) of a graph above which one block of threads is too slow."""
HEADERS = (
    "vectors.h", "packs.h", "picnn.h", "weights.h", "turned.h", "shapes.h", "newton.h", "energy.h",
    "blocks.h", "products.h", "reading.h", "reverse.h", "grid_gpu.h", "terms.h", "fronts_gpu.h",
    "posed_gpu.h",
)  # fmt: skip


def prelude(design: Design, threads: int, resident: int) -> str:
    """The constants and types of one model."""
    numbers = {
        "K": design.channels, "CHANNELS": design.message_channels, "HEADS": design.heads,
        "CONCAT": int(design.concat), "ENDS": 2 if design.both_ends else 1,
        "SENT": int(design.sent_at_nodes), "BETA": repr(design.beta), "THREADS": threads,
        "RESIDENT": resident,
    }  # fmt: skip
    lines = [f"#define HOG_{name} {value}" for name, value in numbers.items()]
    lines += ['#include "energy.h"', "namespace hog {"]
    act, relu = list(ACTIVATIONS).index(design.act.name), int(design.gate == "relu")
    nets = zip(("Message", "Loop", "Update"), design.widths, design.monotone, strict=True)
    for name, widths, monotone in nets:
        bits = sum(1 << j for j, rises in enumerate(monotone) if rises)
        masks = [f"{(bits >> (64 * i)) & (2**64 - 1)}ull" for i in range(4)]
        parts = [act, relu, *masks, len(monotone), *widths]
        lines.append(f"typedef StaticNet<{', '.join(map(str, parts))}> {name}Net;")
    return "\n".join([*lines, "}", ""])


@cache
def functions(
    design: Design, device: int, threads: int, resident: int
) -> dict[str, ctypes.c_void_p]:
    """The loaded kernels of one model on one GPU."""
    text = prelude(design, threads, resident) + (SOURCE.parent / "energy.cu").read_text()
    wanted = ("hog_solve", "hog_adjoint", "hog_parameters")
    return load(text, "energy.cu", HEADERS, device, wanted)


class _Batch(ctypes.Structure):
    """``Batch`` of ``energy.cu``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "plans", "start", "first", "edge_first", "edge", "room", "order", "memory")),
        *((name, ctypes.c_longlong) for name in (
            "room_replica", "nodes", "edges", "graphs", "replicas")),
        *((name, ctypes.c_void_p) for name in (
            "parameters", "o_nodes", "o_edges", "weight", "loop_weight")),
        *((name, ctypes.c_longlong) for name in ("weight_replica", "weight_head")),
        ("shared", ctypes.c_longlong),
    ]  # fmt: skip


class Options(ctypes.Structure):
    """``Options`` of ``energy.h``."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("atol", "rtol")),
        *((name, ctypes.c_int) for name in ("max_iter", "max_backtracks", "patience")),
    ]


@dataclass(frozen=True)
class DevicePlan:
    """The plan of a batch in the memory of a GPU.

    Attributes:
        tensors: The arrays of ``Batch`` up to ``edge``, and ``order``.
        numbers: Numbers in the fronts of every graph, [G] on the host.
        sizes: Nodes and edges of every graph, [2, G] on the host.
    """

    tensors: dict[str, Tensor]
    numbers: np.ndarray
    sizes: np.ndarray


@cached
def device_plan(graph: Graph, native: Library, channels: int) -> DevicePlan:
    """The plan of this graph on its GPU; the graph owns it."""
    plan, count = plan_of(graph, native, channels), graph.num_graphs
    start, numbers, first, edge_first = (np.zeros(count, np.int64) for _ in range(4))
    edge, order = np.zeros(graph.num_edges, np.int64), np.zeros(count, np.int32)
    rest = [x.ctypes.data for x in (start, numbers, first, edge_first, edge, order)]
    length = native.flatten(plan.handle, channels, WIDE, None, *rest)
    plans = np.zeros(length, np.int32)
    native.flatten(plan.handle, channels, WIDE, plans.ctypes.data, *rest)
    arrays = {
        "plans": plans, "start": start, "first": first, "edge_first": edge_first, "edge": edge,
        "order": order,
    }  # fmt: skip
    device = graph.src.device
    tensors = {name: torch.from_numpy(x).to(device) for name, x in arrays.items()}
    ends = [np.append(x, total) for x, total in ((first, graph.num_nodes), (edge_first, edge.size))]
    return DevicePlan(tensors, numbers, np.stack([np.diff(x) for x in ends]))


def index_of(graph: Graph) -> int:
    """The number of the GPU that a graph is on."""
    device = graph.src.device
    return torch.cuda.current_device() if device.index is None else device.index


class DeviceEngine(CpuEngine):
    """What the engines for a GPU share: their kernels move all nodes."""

    device = "cuda"
    holds = False
    index: int = 0
    """The number of the GPU."""

    def holding(self, held: Tensor) -> TorchEngine:  # type: ignore[override]
        why = "some nodes are held, and kernels for a GPU move all nodes"
        return TorchEngine(self.problem, self.solver, why, held.bool())

    @classmethod
    def updates(cls, *_: object) -> None:  # type: ignore[override]
        return None  # there is no kernel

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return Engine.gradient(self, h)  # there is no kernel


class GpuEngine(DeviceEngine):
    """An energy on a batch of graphs on a GPU."""

    def _analyse(self) -> None:
        super()._analyse()
        self.on_device = device_plan(self.graph, self.native, self.design.channels)
        self._load()

    def _load(self) -> None:
        """Load the kernels of this model."""
        self.index = index_of(self.graph)
        self.functions = functions(self.design, self.index, self.threads, self.resident)

    @property
    def _shape(self) -> tuple[int, int]:
        threads, resident = FEW if self.blocks <= multiprocessors(self.index) else MANY
        if self.design.channels > 2:  # rows of wider embeddings need all registers of a thread
            resident = max(REGISTERS // (255 * threads), 1)
        return threads, resident

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self._shape[0]

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor."""
        return self._shape[1]

    @staticmethod
    def is_fastest_for(native: Library, problem: EnergyProblem) -> bool:
        """Whether a block of threads a graph is faster than batched operations on all graphs: for
        small graphs and narrow embeddings."""
        graph, design = problem.graph, problem.design
        if design.channels > MOST_CHANNELS or graph.num_edges > MOST_EDGES:
            return False
        if max(graph.num_edges, graph.num_nodes) > MOST_ROWS * graph.num_graphs:
            return False  # without a plan, which would take long
        if plan_of(graph, native, design.channels).numbers > MOST_NUMBERS:
            return False  # a hub: there are no fronts
        plan = device_plan(graph, native, design.channels)
        return bool(plan.sizes.max(initial=0) <= MOST_ROWS)

    @property
    def blocks(self) -> int:
        """Blocks of threads of a launch."""
        return self.graph.num_graphs * self.replicas

    @property
    def name(self) -> str:
        return "CUDA sm_{}{}".format(*torch.cuda.get_device_capability(self.index))

    def _batch(self) -> tuple[_Batch, int, list[Any]]:
        """The arguments of a launch, the bytes of shared memory, and what must stay alive."""
        plan, t = self.on_device, self.tensors.detach()
        nodes, edges = plan.sizes
        rows = nodes * self.sizes.node_fields + edges * self.sizes.edge_fields
        # What lies in shared memory: nothing but parameters, the fronts as well, or everything.
        fixed, limit = 130 + self.threads + self.sizes.parameters, most_shared(self.index)
        some = fixed + int(plan.numbers.max(initial=0))
        whole = fixed + int((plan.numbers + rows).max(initial=0))
        limit = limit if self.resident == 1 else limit // self.resident - 1024
        shared = 2 if 8 * whole <= limit else 1 if 8 * some <= limit else 0
        each = (rows + plan.numbers, rows, 0 * rows)[shared]
        ends = np.concatenate([[0], np.cumsum(each)])
        room = _room(self.graph, self.sizes.handle, shared, ends)
        memory = t.nodes.new_empty(max(int(ends[-1]) * self.replicas, 1))
        at = {name: address(x) for name, x in plan.tensors.items()}
        posed = dict(
            zip(
                ("parameters", "o_nodes", "o_edges", "weight", "loop_weight"),
                (address(x) for x in t.every()),
                strict=True,
            )
        )
        batch = _Batch(
            **at, **posed, room=address(room), memory=address(memory),
            room_replica=int(ends[-1]), nodes=self.graph.num_nodes, edges=self.graph.num_edges,
            graphs=self.graph.num_graphs, replicas=self.replicas, weight_replica=self._strides[0],
            weight_head=self._strides[1], shared=shared,
        )  # fmt: skip
        return batch, 8 * (fixed, some, whole)[shared], [t, room, memory]

    def _launch(
        self, name: str, grid: tuple[int, int], threads: int, shared: int, *arguments: Any
    ) -> None:
        pointers, _alive = argument_addresses(arguments)
        stream = torch.cuda.current_stream(self.index).cuda_stream
        with torch.cuda.device(self.index):
            launch(self.functions[name], grid, threads, shared, stream, pointers)

    def _solve(self, h0: Tensor | None, options: tuple[Any, ...], into: Solution) -> None:
        batch, shared, _alive = self._batch()
        if not self.blocks:
            return
        self._launch(
            "hog_solve", (self.blocks, 1), self.threads, shared, batch,
            address(h0), Options(*options), address(into.value),
            address(into.status), address(into.iterations), address(into.residual),
        )  # fmt: skip

    def _adjoint(self, h: Tensor, gradient: Tensor, into: Tensors, status: Tensor) -> None:
        batch, shared, _alive = self._batch()
        blocks, count = self.blocks, self.sizes.parameters
        sums = h.new_empty(max(blocks, 1) * (self.threads // 32) * count)
        rest = [address(x) for x in into.every()]
        if blocks:
            self._launch(
                "hog_adjoint", (blocks, 1), self.threads, shared, batch, address(h),
                address(gradient), *rest[1:], address(sums), address(status),
            )  # fmt: skip
        grid = (self.replicas, (count + 127) // 128)
        runs = ctypes.c_longlong(self.graph.num_graphs * (self.threads // 32))
        given = (batch.parameters, address(sums), runs, rest[0])
        self._launch("hog_parameters", grid, 128, 0, *given)


@cached
def _rooms(graph: Graph) -> dict[tuple[int, int], Tensor]:
    """Where the memory of every graph begins, by model and use of shared memory."""
    return {}


def _room(graph: Graph, sizes: int, shared: int, ends: np.ndarray) -> Tensor:
    known = _rooms(graph)
    if (sizes, shared) not in known:
        known[sizes, shared] = torch.from_numpy(ends[:-1].astype(np.int64)).to(graph.src.device)
    return known[sizes, shared]
