"""The compiled update of gradient steps and messages: the nodes of a tick in one call.

The rule keeps its memory, in tensors of its own, which the compiled code reads and writes; what the
rule does besides updates (a new start, a crash) works on the same memory. The features' part of all
networks is copied once, row by row (:class:`Rows`), so that a node with its edges is read in one
piece.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.engines.base import Updates
from hogwild.engines.inputs import ACTIVATIONS, Sizes
from hogwild.engines.ticks import Ticks, first_edges
from hogwild.graph import Graph, Star
from hogwild.kernels.native import Library, Missing, address, found, large_pages, require
from hogwild.problems.energy import Design
from hogwild_node.picnn import Context
from hogwild_node.problems import Energy
from hogwild_node.rules import messages, safeguard
from hogwild_node.rules.base import Rule
from hogwild_node.rules.gradient import DAMPING, GradientRule
from hogwild_node.rules.messages import MessageRule
from hogwild_node.tree import arrays

MOST_CHANNELS, MOST_MERGED, MOST_DEGREE = 8, 16, 4096
"""Widths of embeddings and of sums of messages, and degree, up to which nodes' quadratic models are
computed in compiled code: its work grows with their cubes, and its memory with the degree."""
LANES = 8
"""Numbers that compiled code computes side by side."""
_INT, _REAL, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class _Field(ctypes.Structure):
    _fields_ = (
        ("at", _AT), ("rows", _AT),
        *((name, _INT) for name in ("item", "replica", "channel", "begin")),
    )  # fmt: skip


# The structures of source/stars.h and rules.h, in their order.
NUMBERS = (
    "hold", "reach", "passes", "enough", "arrived", "window", "margin", "strikes", "credit", "turn",
    "swing", "ease", "doubt", "floor", "memory", "rest", "most", "leash", "damping", "rate",
)  # fmt: skip
MEMORY = (
    "gradient", "block", "damped", "last", "own", "near", "sent", "move", "share", "before",
    "count", "score", "turns", "favour", "failures", "peak", "home", "left", "times",
)  # fmt: skip
MARKS = ("known", "lost", "quiet")
_RULE: list[tuple[str, Any]] = [
    ("sizes", _AT), *((name, _INT) for name in ("replicas", "nodes", "edges")),
    *((name, _AT) for name in ("begin", "order", "weights", "of_edges", "of_nodes",
                              "lane_weights")),
    ("messages", _INT), ("step", _INT), ("rates", _AT), *((name, _REAL) for name in NUMBERS),
    *((f"m_{name}", _Field) for name in MEMORY), *((f"m_{name}", _AT) for name in MARKS),
]  # fmt: skip


class _Rule(ctypes.Structure):
    _fields_ = tuple(_RULE)


class _Turn(ctypes.Structure):
    _fields_ = (
        ("size", _INT), ("nodes", _AT), ("first", _AT),
        *((name, _Field) for name in ("h", "inbox", "mail", "out", "also", "letters")),
    )  # fmt: skip


def _numbers(rule: Rule, gradient: GradientRule) -> dict[str, float]:
    rate = gradient.rate if isinstance(gradient.rate, float) else 0.0
    return {
        "hold": messages.HOLD, "reach": messages.REACH, "passes": messages.PASSES,
        "enough": messages.ENOUGH, "arrived": messages.ARRIVED, "window": safeguard.WINDOW,
        "margin": safeguard.MARGIN, "strikes": safeguard.STRIKES, "credit": safeguard.CREDIT,
        "turn": safeguard.TURN, "swing": safeguard.SWING, "ease": safeguard.EASE,
        "doubt": safeguard.DOUBT, "floor": safeguard.FLOOR, "memory": safeguard.MEMORY,
        "rest": safeguard.REST, "most": safeguard.LONGEST, "leash": safeguard.LEASH,
        "damping": DAMPING, "rate": rate,
    }  # fmt: skip


def memory_of(rule: Rule, gradient: GradientRule) -> dict[str, tuple[Any, str]]:
    """Where each part of the memory is kept: an object and the name of its attribute."""
    kept: dict[str, tuple[Any, str]] = {"gradient": (gradient, "own")}
    if gradient.auto:
        parts = {"block": "block", "damped": "trust", "last": "last"}
        kept |= {name: (gradient, attribute) for name, attribute in parts.items()}
    if isinstance(rule, MessageRule):
        kept |= {name: (rule, name) for name in ("own", "near", "sent", "known")}
        names = ("share", "before", "count", "score", "turns", "favour", "failures", "peak", "lost")
        kept |= {"move": (rule.trust, "last"), **{name: (rule.trust, name) for name in names}}
        kept |= {name: (rule.retreat, name) for name in ("home", "left", "times", "quiet")}
    return kept


def side_by_side(remembered: dict[str, tuple[Any, str]]) -> tuple[dict[str, _Field], list[Tensor]]:
    """Lay the memory of nodes, and that of edges, side by side: all numbers of a node and replica
    are then read in one piece. The rule's tensors become views of these rows."""
    found: dict[str, _Field] = {}
    rows = []
    edges = ("near", "sent")
    for group in ([n for n in remembered if n not in edges], [n for n in remembered if n in edges]):
        tensors = [getattr(*remembered[name]) for name in group]
        tensors = [x[:, None] if x.ndim == 2 else x for x in tensors]
        if not tensors:
            continue
        replicas, _, count = tensors[0].shape
        width = sum(x.shape[1] for x in tensors)
        room = large_pages((count, replicas, width), tensors[0].dtype, tensors[0].device)
        at = 0
        for name, x in zip(group, tensors, strict=True):
            owner, attribute = remembered[name]
            view = room[..., at : at + x.shape[1]].permute(1, 2, 0)  # [R, fields, count]
            view.copy_(x)
            setattr(owner, attribute, view if getattr(owner, attribute).ndim == 3 else view[:, 0])
            found[f"m_{name}"] = _Field(address(view), None, replicas * width, width, 1)
            at += x.shape[1]
        rows.append(room)
    return found, rows


@dataclass(frozen=True)
class Rows:
    """The networks of an energy with their features, as the compiled code reads them."""

    weights: Tensor  # [R, ·] of the message networks, the self message and the update
    edges: Tensor  # [R, E, ·] contexts of all heads and their weights, by receiver
    nodes: Tensor  # [R, N, ·] contexts of self message and update, weight of the self message
    beside: Tensor | None  # [R / 8, ·, 8] weights where eight replicas lie side by side

    @classmethod
    def of(cls, model: Energy, order: Tensor, beside: bool = False) -> Rows:
        """The rows of an energy with edges in this order; ``beside``: replicas side by side."""
        rnd = model.round
        replicas, heads = rnd.loop.layers[0].wy.shape[0], rnd.heads
        share = 1.0 if rnd.concat else 1.0 / heads
        e, n = order.numel(), rnd.loop.layers[0].gy.shape[-1]
        like = rnd.loop.layers[0].gy
        weight = like.new_full((1, 1, e), share)
        if rnd.weight is not None:
            weight = share * rnd.weight[:, :, 0]
        loop = like.new_ones(n) if rnd.loop_weight is None else rnd.loop_weight
        message = _context(rnd.message)
        message = message.reshape(replicas, heads * message.shape[1], e)
        of_edges = [message, weight.expand(replicas, heads, e)]
        of_nodes = [_context(rnd.loop), _context(rnd.update), loop.expand(replicas, 1, n)]
        weights = [_weights(rnd.message).reshape(replicas, -1), _weights(rnd.loop),
                   _weights(rnd.update)]  # fmt: skip
        together = torch.cat(weights, 1).contiguous()
        lanes = None
        if beside:
            lanes = torch.zeros(
                -(-replicas // LANES), together.shape[1], LANES, dtype=torch.float64
            )
            for r in range(replicas):
                lanes[r // LANES, :, r % LANES] = together[r]
        return cls(together, _laid(of_edges, order, beside), _laid(of_nodes, None, beside), lanes)


def _context(net: Context) -> Tensor:
    """Gates and biases of all layers, [B, ·, n]."""
    parts = []
    for layer in net.layers:
        parts += [layer.gy, layer.bias] + ([] if layer.gz is None else [layer.gz])
    return torch.cat(parts, 1)


def _weights(net: Context) -> Tensor:
    """Weights of all layers, [B, ·]."""
    parts = []
    for layer in net.layers:
        parts += [layer.wy] + ([] if layer.wz is None else [layer.wz])
    return torch.cat([part.flatten(1) for part in parts], 1)


def _laid(parts: list[Tensor], order: Tensor | None, beside: bool) -> Tensor:
    """[R, ·, n] parts side by side as rows [R, n, ·] of a multiple of eight numbers; with replicas
    side by side [R / 8, n, · 8]."""
    replicas, count = parts[0].shape[0], parts[0].shape[-1]
    width = sum(part.shape[1] for part in parts)
    padded, blocks, like = -(-width // LANES) * LANES, -(-replicas // LANES), parts[0]
    if beside:
        out = large_pages((blocks, count, padded * LANES), like.dtype, like.device)
        to = out.view(blocks, count, padded, LANES).permute(0, 3, 1, 2).unbind()
        rows = [row for block in to for row in block.unbind()]  # [n, ·] of each replica
    else:
        out = large_pages((replicas, count, padded), like.dtype, like.device)
        rows = list(out.unbind())
    for r, row in enumerate(rows):
        row[:, width:] = 0.0
        at = 0
        for part in parts:
            to_ = row[:, at : at + part.shape[1]]
            if r < replicas:
                to_[:] = (part[r] if order is None else part[r][..., order]).mT
            else:  # lanes without a replica compute with zeros
                to_[:] = 0.0
            at += part.shape[1]
    return out


def design_of(model: Energy, channels: int) -> Design:
    """The sizes of an energy with embeddings of width ``channels``."""
    rnd = model.round
    nets = (rnd.message, rnd.loop, rnd.update)
    widths = tuple(tuple(int(layer.wy.shape[-2]) for layer in net.layers) for net in nets)
    inputs = tuple((False,) * int(net.layers[0].wy.shape[-1]) for net in nets)
    return Design(
        channels, widths[0][-1], rnd.heads, rnd.concat, rnd.both_ends, True, model.beta,
        rnd.message.act, "softplus", widths, inputs,
    )  # fmt: skip


def _usual(design: Design) -> bool:
    """Whether the networks are the paper's, which are compiled for these sizes (``fixed.h``)."""
    kinds = (
        design.heads,
        design.both_ends,
        design.act.name,
        design.channels,
        design.message_channels,
    )
    widths = ((4, 4, 2), (4, 4, 2), (4, 4, 1))
    return kinds == (1, True, "softplus", 2, 2) and design.widths == widths


def _refusal(native: Library, rule: Rule, graph: Graph, h: Tensor) -> str | None:
    """Why a rule that has begun at ``h`` [R, k, N] has no compiled update; ``None``: it has one."""
    gradient: Any = rule.gradient if isinstance(rule, MessageRule) else rule
    if type(gradient) is not GradientRule or type(gradient.model) is not Energy:
        return "only gradient steps and messages of energies of one round are compiled"
    model = gradient.model
    if torch.is_grad_enabled() and any(x.requires_grad for x, _ in arrays(model)):
        return "the run has gradients, and compiled updates have none"
    if gradient.bounded:
        return "steps with bounds that neighbours send are not compiled"
    if h.dtype != torch.float64:
        return f"the run is in {h.dtype}; compiled updates are in torch.float64"
    act = model.round.message.act
    if ACTIVATIONS.get(act.name) != act:
        return f"the activation {act.name!r} is not one of {', '.join(ACTIVATIONS)}"
    if graph.self_loops is not None or graph.parallel is not None:
        return "the graph has self-loops or parallel edges"
    design = design_of(model, rule.channels)
    merged = design.message_channels * (design.heads if design.concat else 1)
    curved = gradient.auto or isinstance(rule, MessageRule)
    if Sizes.of(native, design) is None or (
        curved and (rule.channels > MOST_CHANNELS or merged > MOST_MERGED)
    ):
        return "the model is wider than compiled updates are"
    if graph.num_edges and int(graph.in_degree.max()) > MOST_DEGREE:
        return f"a node has more than {MOST_DEGREE} edges"
    return None


class RuleKernel(Updates):
    """The compiled update of one rule on a CPU. Make it after :meth:`Rule.begin`."""

    def __init__(
        self, native: Library, rule: Rule, graph: Graph, replicas: int, whole: bool
    ) -> None:
        gradient: Any = rule.gradient if isinstance(rule, MessageRule) else rule
        self.native, self.rule, self.graph, self.gradient = native, rule, graph, gradient
        self.order, self.begin = graph.by_receiver
        order, design = self.order, design_of(gradient.model, rule.channels)
        # Where replicas are many, and steps are plain, lanes are replicas and not nodes.
        many = replicas >= LANES and not gradient.auto
        beside = whole and many and rule is gradient and _usual(design)
        rows, sizes = Rows.of(gradient.model, order, beside), Sizes.of(native, design)
        assert sizes is not None
        step, rates = 2 if gradient.auto else 0, None
        if isinstance(gradient.rate, Tensor):
            shape = (replicas, rule.channels, graph.num_nodes)
            step, rates = 1, gradient.rate.expand(shape).contiguous()
        self._alive: list[Any] = [rows, rates]
        at = {"begin": self.begin, "order": order, "rates": rates, "weights": rows.weights,
              "of_edges": rows.edges, "of_nodes": rows.nodes,
              "lane_weights": rows.beside}  # fmt: skip
        remembered = memory_of(rule, gradient)
        for name in MARKS:
            if name in remembered:
                owner, attribute = remembered.pop(name)
                setattr(owner, attribute, getattr(owner, attribute).contiguous())
                at[f"m_{name}"] = getattr(owner, attribute)
        memory, rows_of_memory = side_by_side(remembered)
        self._alive += [*at.values(), rows_of_memory]
        self._rule = _Rule(
            sizes=sizes.handle, replicas=replicas, nodes=graph.num_nodes, edges=graph.num_edges,
            messages=int(isinstance(rule, MessageRule)), step=step, **_numbers(rule, gradient),
            **{name: address(x) for name, x in at.items()}, **memory,
        )  # fmt: skip
        self._turn = _Turn()
        self._rule_at, self._turn_at = ctypes.addressof(self._rule), ctypes.addressof(self._turn)

    @classmethod
    def of(cls, rule: Rule, graph: Graph, h: Tensor, whole: bool) -> RuleKernel | str:
        """The update of a rule that has begun at ``h`` [R, k, N], or why there is none; ``whole``:
        most updates will be those of whole ticks."""
        native = found()
        if isinstance(native, Missing):
            return f"there is no compiled library ({native.reason})"
        why = _refusal(native, rule, graph, h)
        return cls(native, rule, graph, int(h.shape[0]), whole) if why is None else why

    @property
    def path(self) -> str:
        return f"compiled ({self.native.instructions})"

    def ticks(self, depth: int, arrays: Mapping[str, Tensor]) -> Ticks:
        numbers = self.rule.channels + self.rule.letter_width
        return Ticks(self, self.graph, depth, numbers, arrays)

    def pose(self) -> None:
        rows = Rows.of(self.gradient.model, self.order)
        self._posed = rows  # the compiled code holds addresses only
        self._rule.weights = address(rows.weights)
        self._rule.of_edges, self._rule.of_nodes = address(rows.edges), address(rows.nodes)

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None, "the neighbours' letters"
        graph, turn = self.graph, self._turn
        h, inbox, mail = h.contiguous(), inbox.contiguous(), mail.contiguous()
        rows: Tensor | None = None
        if at.nodes is None:  # all nodes, with the edges in any order
            nodes, first, rows = torch.arange(graph.num_nodes), self.begin, self.order
        else:
            nodes, first = at.nodes.contiguous(), first_edges(graph, at.nodes)
        out, letters = torch.empty_like(h), torch.empty_like(mail)
        turn.size, turn.nodes, turn.first = nodes.numel(), address(nodes), address(first)
        for name, x, index in (("h", h, None), ("inbox", inbox, rows), ("mail", mail, rows),
                               ("out", out, None), ("letters", letters, rows)):  # fmt: skip
            _, fields, count = x.shape
            where = address(index)
            setattr(turn, name, _Field(address(x), where, 1, fields * count, count))
        turn.also = _Field()
        self.call(None, 0, None)
        return out, letters

    def turn(self, nodes: Tensor, first: Tensor, view: Tensor, time: int, post: int) -> None:
        """Update the nodes of a tick, which read and write packets at the address ``post``."""
        self._turn.size, self._turn.nodes = nodes.numel(), address(nodes)
        self._turn.first = address(first)
        self.call(post, time, address(view))

    def call(self, post: int | None, time: int, view: int | None) -> None:
        """Update the nodes of the turn."""
        found, why = self.native.call(
            "turn", self._rule_at, self._turn_at, post, time, view, torch.get_num_threads()
        )
        require((found, why))

    def tick(self, clock: tuple[int, ...], time: int, post: int) -> int:
        """Draw a tick with the clock at these addresses, and update its nodes, in one call. Returns
        how many they are."""
        at, *room = clock
        count, why = self.native.call(
            "tick", at, self._rule_at, post, time, *room, torch.get_num_threads()
        )
        require((count < 0, why))
        return int(count)
