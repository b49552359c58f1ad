"""Ticks of gradient steps on a GPU: one launch a tick, and nothing is read back between ticks.

``source/ticks.cu`` is compiled for one model by NVRTC. The kernel draws the packets of the
nodes whose turn it is, computes the updates and files what the nodes send, in the arrays of the
simulation. With several replicas, a second launch computes the updates.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.kernels import cuda, driver
from hogwild.kernels.build import SOURCE
from hogwild.kernels.native import SWITCH, address
from hogwild.kernels.posing import Design
from hogwild.kernels.rules import Rows, design_of, memory_of, refusal, side_by_side
from hogwild_node.energy import Energy
from hogwild_node.rules.base import Rule
from hogwild_node.rules.gradient import GradientRule

DRAW, FIND, UPDATE = 1, 2, 4
RANGE = 256
"""Most nodes of a block: a multiple of 32."""
COUNTERS = 2 * 64 * 4
"""Counters of ages in a block: of packets and of content, four for each age below 64, because
threads that add to the same number wait for each other."""
MOST_DEPTH = 253
"""Age of the oldest packet: a version of a packet is kept in eight bits."""
MOST_WEIGHTS = 2_000
"""Weights of a model, for each of which the compiler writes instructions, without loops."""
THREADS = (192, 128, 64, 32)
"""Threads of a block with an edge: as many as the shared memory has room for."""
REGISTERS = {True: 80, False: 128}
"""Registers of a thread, in single precision and in double precision. With them and 192 threads
ticks of 10⁶ nodes on an H200 were the fastest of 40 trials (without a record). Numbers that spill
cost more than further blocks on a multiprocessor gain."""
HEADERS = (
    "vectors.h", "packs.h", "picnn.h", "weights.h", "turned.h", "shapes.h", "draws.h",
    "elimination.h", "sizes_gpu.h", "layers_gpu.h", "turns_gpu.h",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The constants that a kernel is compiled for, beside the model's.

    Attributes:
        design: The model.
        step: 0: a number, 1: one for every node, 2: ``"auto"``.
        replicas: Whether there are several replicas.
        threads: Threads of a block with an edge: most edges of a batch.
        nodes: Most nodes of a batch: a power of two.
        single: Whether numbers are in single precision.
        hubs: Whether a node has more edges than a block has threads.
    """

    design: Design
    step: int
    replicas: bool
    threads: int
    nodes: int
    single: bool = False
    hubs: bool = True

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Numbers in the context, and in the weights, of the three networks."""
        found = []
        for widths, inputs in zip(self.design.widths, self.design.monotone, strict=True):
            pairs = list(zip(widths, (0, *widths[:-1]), strict=True))
            d = len(inputs)
            found.append((sum(d + w + b for w, b in pairs), sum(w * (d + b) for w, b in pairs)))
        return tuple(found)

    @property
    def row(self) -> int:
        """Numbers in the row of an edge."""
        return _padded(self.design.heads * (self._sizes()[0][0] + 1))

    @property
    def node_row(self) -> int:
        """Numbers in the row of a node."""
        return _padded(self._sizes()[1][0] + self._sizes()[2][0] + 1)

    @property
    def weights(self) -> int:
        """Weights of all networks."""
        message, loop, update = (weights for _, weights in self._sizes())
        return self.design.heads * message + loop + update

    @property
    def bytes(self) -> int:
        """Bytes of a number."""
        return 4 if self.single else 8

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: what ``Turns`` of ``turns_gpu.h`` lays out."""
        d, t = self.design, self.threads
        k, m = d.channels, d.message_channels * (d.heads if d.concat else 1)
        curved = self.step == 2
        gather = max(k + (k * k + m * k if curved else 0), m)
        tell = k + m + (m * m if curved else 0)
        wide = 16 // self.bytes
        beside = 0 if gather <= wide else gather
        numbers = t * (self.row + wide + beside) + self.nodes * (self.node_row + wide + tell)
        long = self.nodes + (-(-self.weights // 2) * 2 if self.replicas else 0)
        whole = 2 * RANGE + 1 + COUNTERS + 3 + t + 2 * RANGE // 32
        return self.bytes * numbers + 8 * long + 4 * whole + 2 * RANGE + (1 + 16) * t

    @property
    def all(self) -> int:
        """Threads of a block: those with an edge, then those with a node, in warps of their own."""
        return self.threads + -(-self.nodes // 32) * 32

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor, as far as registers and shared memory go. That of
        an H200 has 228 KB of shared memory, of which a block uses 1 KB and a multiple of 128
        bytes. On other GPUs fewer blocks may run at a time."""
        return max(
            min(
                cuda.REGISTERS // (REGISTERS[self.single] * self.all),
                233_472 // (-(-self.shared // 128) * 128 + 1024),
            ),
            1,
        )

    def text(self) -> str:
        """The source for these constants."""
        numbers = {
            "STEP": self.step, "ROW": self.row, "NODE_ROW": self.node_row, "RANGE": RANGE,
            "WEIGHTS": self.weights, "FEW": int(not self.replicas), "NODES": self.nodes,
            "HUBS": int(self.hubs), "REAL": "float" if self.single else "double",
        }  # fmt: skip
        lines = [f"#define HOG_{name} {value}" for name, value in numbers.items()]
        body = (SOURCE.parent / "ticks.cu").read_text()
        constants = cuda.prelude(self.design, self.threads, self.resident, "shapes.h")
        return "#define HOG_SHORT_CHAINS 1\n" + constants + "\n".join([*lines, body])


def _addresses(*holders: Any) -> Any:
    """The addresses of a kernel's arguments."""
    return (ctypes.c_void_p * len(holders))(*(ctypes.addressof(x) for x in holders))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _bits(x: Tensor) -> Tensor:
    """Whole numbers below 2³² as 32 bits."""
    return torch.where(x < 2**31, x, x - 2**32).int()


def _padded(x: int) -> int:
    return -(-x // 8) * 8


def shape_of(design: Design, step: int, h: Tensor, graph: Graph, room: int) -> Shape | None:
    """The constants for a model on a graph with embeddings like ``h`` [R, k, N] and ``room`` bytes
    of shared memory; ``None``: there are none, because the model is too wide."""
    degree = graph.num_edges / max(graph.num_nodes, 1)
    most = int(graph.in_degree.max()) if graph.num_nodes else 0
    single, several = h.dtype == torch.float32, h.shape[0] > 1
    for threads in THREADS:
        nodes = 8
        while nodes < threads and nodes * degree < 0.9 * threads:
            nodes *= 2
        shape = Shape(design, step, several, threads, nodes, single, most > threads)
        if shape.shared <= room:
            return shape
    return None


# The structure of source/turns_gpu.h, in its order.
_WHOLE = "nodes edges replicas range rows versions numbers stagger delay"
_ARRAYS = (
    "begin node_keys edge_keys out_degree records next turn "
    "node edge h ring content latest updates packets sent last gap packet_ages content_ages "
    "oldest_ages weights of_edges of_nodes rates memory"
)


class _Ticks(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_longlong) for name in _WHOLE.split()),
        *((name, ctypes.c_void_p) for name in _ARRAYS.split()),
        *((name, ctypes.c_double) for name in ("rate", "damping")),
    )


@cache
def _code(shape: Shape, capability: tuple[int, int]) -> bytes:
    return driver.compile_cubin(shape.text(), "ticks.cu", HEADERS, capability)


class CudaTicks:
    """The ticks of one simulation. Make it after :meth:`Rule.begin`.

    Args:
        rule: The gradient steps.
        graph: The graph.
        clock: Stagger, delay, keys of the nodes and of the edges, next turns of the nodes and times
            of the edges' packets, of a schedule without impairments; ``None``: all ticks are given.
        depth: Age of the oldest packet that is asked for.
        time: The next tick.
        ages: How often packets, and their content, had each age so far.
        arrays: The arrays of the simulation by their names in ``source/turns_gpu.h``; embeddings
            ``h`` [R, k, N] are among them, and the outbox's ``current``.
    """

    def __init__(
        self,
        rule: GradientRule,
        graph: Graph,
        clock: Sequence[Any] | None,
        depth: int,
        time: int,
        ages: Sequence[Tensor],
        arrays: Mapping[str, Tensor],
    ) -> None:
        assert isinstance(rule.model, Energy)
        h = arrays["h"]
        self.rule, self.model, self.graph, self.device = rule, rule.model, graph, h.device
        replicas, k, n = h.shape
        self.draws, e = clock is not None, graph.num_edges
        order, begin = graph._rows
        rows = Rows.of(rule.model, order)
        step, rates = 2 if rule.auto else 0, None
        if isinstance(rule.rate, Tensor):
            step, rates = 1, rule.rate.expand(h.shape).contiguous()
        shape = shape_of(design_of(rule.model, k), step, h, graph, self.room_on(h.device))
        assert shape is not None, "a model that fits"
        self.shape = shape
        _, (memory, *_) = side_by_side(memory_of(rule, rule))
        whole = torch.zeros(n, dtype=torch.long, device=h.device)
        stagger, delay, node_keys, edge_keys, following, view = (
            clock if clock is not None else (1, 0, whole, whole.new_zeros(e), whole, None)
        )
        self.turn = torch.full_like(whole, -1)
        self.order, self.view, self._behind = order, view, False
        loops = graph.src == graph.dst
        numbered = torch.where(loops[order], ~order, order)
        known = (torch.zeros_like(order), graph.src[order], graph.reverse[order], numbered)
        records = torch.stack(known, -1).int()
        self.held = records[:, 0]
        if view is not None:
            self._hold(slice(None), view[order])
        self._alive: dict[str, Tensor | None] = {
            **arrays, "begin": begin.int(), "node_keys": node_keys,
            "edge_keys": edge_keys[order].contiguous(), "records": records,
            "next": following, "turn": self.turn,
            "of_edges": rows.edges, "of_nodes": rows.nodes, "weights": rows.weights,
            "rates": rates, "memory": memory,
        }  # fmt: skip
        assert all(x is None or x.is_contiguous() for x in self._alive.values())
        self.arrays = arrays
        self.oldest = whole.new_tensor([counts.numel() - 1 for counts in ages])
        self._alive["oldest_ages"] = self.oldest
        self.ages, self.room = [counts.to(h.device).clone() for counts in ages], 0
        self.blocks, size = self._blocks(n)
        self.depth = depth
        del self._alive["current"]  # the ring takes its place
        self._alive["ring"] = self.ring = self._packed(time)
        self._ticks = _Ticks(
            nodes=n, edges=e, replicas=replicas, range=size, rows=depth + 2,
            versions=arrays["content"].numel() // max(n, 1), numbers=k + rule.letter,
            stagger=stagger, delay=delay, damping=rule.damping,
            rate=rule.rate if isinstance(rule.rate, float) else 0.0,
            **{name: address(x) for name, x in self._alive.items()},
        )  # fmt: skip
        given = [0.0] if shape.replicas else rows.weights[0].tolist()
        number = ctypes.c_float if shape.single else ctypes.c_double
        self._weights = (number * len(given))(*given)
        self._time, self._what = ctypes.c_longlong(), ctypes.c_int()
        self._arguments = _addresses(self._time, self._what)
        self._load()

    def _hold(self, edges: Tensor | slice, view: Tensor) -> None:
        """The receivers of these edges, which are numbered by receiver, hold packets of these
        times."""
        self.held[edges] = _bits((view & 0xFFFFFF) << 8)

    def settle(self) -> None:
        """Write the times of the edges' packets for the schedule."""
        if self._behind and self.view is not None:
            time = self._time.value
            age = (time - (self.held.long() >> 8)) & 0xFFFFFF
            self.view[self.order] = time - age
            self._behind = False

    def _packed(self, time: int) -> Tensor:
        """The ring of ``source/turns_gpu.h`` before a tick, from that of the outbox. It has a row
        more, so that a tick can write the row of the next one."""
        n, latest, content = self.graph.num_nodes, self.arrays["latest"], self.arrays["content"]
        ring = torch.zeros(self.depth + 2, n, dtype=torch.int32, device=self.device)
        for age in range(self.depth + 1):
            before = time - age
            if before < 0:
                break
            row = before % (self.depth + 1) * n
            packet = latest if age == 0 else self.arrays["current"][row : row + n]
            # The lowest 32 bits: the content modulo 2²⁴, and the version.
            bits = ((content[packet] & 0xFFFFFF) << 8) | torch.div(packet, n, rounding_mode="floor")
            ring[before % (self.depth + 2)] = _bits(bits)
        return ring

    def give_back(self, time: int) -> None:
        """Write the outbox's ring as it is before this tick: torch goes on."""
        self.settle()
        n = self.graph.num_nodes
        node = torch.arange(n, device=self.device)
        for before in range(max(time - self.depth - 1, 0), time):
            version = (self.ring[before % (self.depth + 2)] & 255).long()
            row = before % (self.depth + 1) * n
            self.arrays["current"][row : row + n] = version * n + node

    # -- what differs in an emulation --------------------------------------------------------------

    @staticmethod
    def room_on(device: torch.device) -> int:
        """Bytes of shared memory that a block may have."""
        return driver.most_shared(_index(device))

    def _load(self) -> None:
        index = _index(self.device)
        code = _code(self.shape, torch.cuda.get_device_capability(index))
        # A module of its own, because constants belong to a module.
        self._module = driver.Module(code, index, ("hog_tick",))
        weakref.finalize(self, self._module.unload).atexit = False
        self._module.write("hog_weights", self._weights)

    def _write(self) -> None:
        """Tell the kernels where the arrays are."""
        self._module.write("hog_ticks", self._ticks)

    def _blocks(self, nodes: int) -> tuple[int, int]:
        """Blocks of a launch, and nodes of a block: enough blocks for all multiprocessors."""
        wanted = 2 * driver.multiprocessors(_index(self.device)) * self.shape.resident
        size = RANGE
        while size > 8 and nodes < size * wanted:
            size //= 2
        return -(-nodes // size), size

    def _here(self) -> bool:
        """Whether the GPU is the current one; asks for its stream."""
        index = _index(self.device)
        self._stream = torch.cuda.current_stream(index).cuda_stream
        return torch.cuda.current_device() == index

    def _launch(self, replicas: int) -> None:
        function, shape = self._module.functions["hog_tick"], self.shape
        grid = self.blocks, replicas
        driver.launch(function, grid, shape.all, shape.shared, self._stream, self._arguments)

    # -- ticks -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What computes, for ``Run.path``."""
        return "CUDA sm_{}{}".format(*torch.cuda.get_device_capability(_index(self.device)))

    @property
    def fits(self) -> bool:
        """Whether the rule still has the energy that the kernel was made of."""
        return self.rule.model is self.model

    @cached_property
    def _place(self) -> Tensor:
        """The number of every edge by receiver."""
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(place.numel(), device=place.device)
        return place

    def draw(self, time: int) -> None:
        """Draw a tick and make it."""
        assert self.draws
        self._make(time, DRAW)
        self._behind = True

    def given(self, time: int, nodes: Tensor, edges: Tensor, view: Tensor) -> None:
        """Make the tick at which these nodes hold packets of the times ``view`` on these edges."""
        self.turn[nodes] = time
        self._hold(self._place[edges], view)
        self._make(time, 0)

    def _make(self, time: int, draw: int) -> None:
        self._make_room(time)
        if self._here():
            self._launch_all(time, draw)
        else:
            with torch.cuda.device(self.device):
                self._launch_all(time, draw)

    def _launch_all(self, time: int, draw: int) -> None:
        self._time.value, replicas = time, self._ticks.replicas
        # All replicas have the same schedule: with several, one launch files it for all of them.
        parts = ((draw | FIND | UPDATE, 1),)
        for what, count in parts if replicas == 1 else ((draw | FIND, 1), (UPDATE, replicas)):
            self._what.value = what
            self._launch(count)

    def _make_room(self, time: int) -> None:
        """Make room to count ages up to ``time``."""
        if self.room <= time:
            self.room = max(2 * time, 1024)
            for kind, name in enumerate(("packet_ages", "content_ages")):
                old = self.ages[kind]
                self.ages[kind] = old.new_zeros(self.room)
                self.ages[kind][: old.numel()] = old
                setattr(self._ticks, name, address(self.ages[kind]))
            self._write()

    def counts(self, kind: int) -> Tensor:
        """How often packets (0), or their content (1), had each age."""
        return self.ages[kind][: int(self.oldest[kind]) + 1]


TICKS: dict[str, type[CudaTicks]] = {"cuda": CudaTicks}
"""The ticks of each kind of device that has them."""


def ticks_of(rule: Rule, graph: Graph, h: Tensor, depth: int) -> type[CudaTicks] | str:
    """How ticks of a rule that has begun at ``h`` [R, k, N] are made on its device, with packets up
    to an age of ``depth``; or why they are made by torch."""
    made = TICKS.get(h.device.type)
    if made is None:
        return f"there are no launched ticks on {h.device}"
    if os.environ.get(SWITCH, "").lower() == "off":
        return f"{SWITCH}=off"
    if type(rule) is not GradientRule:
        return (
            "on a GPU only gradient steps without momentum, of energies of one round, are compiled"
        )
    why = refusal(rule, rule, graph, h, (torch.float64, torch.float32))
    if why is not None:
        return why
    if depth > MOST_DEPTH:
        return f"packets are up to {depth} ticks old; launched ticks know {MOST_DEPTH}"
    if graph.num_edges >= 2**31:
        return "the graph has more than 2³¹ edges"
    assert isinstance(rule.model, Energy)
    design, step = design_of(rule.model, rule.channels), 2 if rule.auto else 0
    shape = shape_of(design, step, h, graph, made.room_on(h.device))
    if shape is None or shape.weights > MOST_WEIGHTS:
        return "the model is wider than compiled updates on a GPU are"
    return made
