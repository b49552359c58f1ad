r"""Programs of levels: models in which nodes hear their neighbours several times.

The *levels* of a program are the modules in which nodes hear their neighbours: the layers of a
:class:`~hogwild.models.Stack`, of a :class:`~hogwild.LayeredGNN`, or every
``torch_geometric.nn.MessagePassing`` of a user's model. Everything between the levels works on
every node by itself. At level :math:`\ell` a node has a value :math:`v_i^\ell` and hears those of
its neighbours. The result :math:`z_i^\ell` of the level is

* *solved for* in a stack (:class:`StackProblem`): the values are the features
  :math:`v_i^\ell = [x_i \,\|\, z_i^{\ell - 1}]` of a problem;
* *computed* by all other levels (:class:`LayeredProblem`). The module's forward is recorded on the
  whole graph (:class:`Recorded`) and run for some nodes. A level inside another level is part of
  the outer one. Calls of levels are numbered in the order in which the forward makes them; a level
  may be called several times.

To compute some nodes, the forward runs on their *stars*: the nodes, and a leaf for every edge into
them. At every call of a level the inputs of the leaves are replaced by what the nodes last heard,

.. math::
    z_i^\ell = \operatorname{level}^\ell\bigl(v_i^\ell, \{v_j^\ell, e_{ij} \mid
    j \in \mathcal N(i)\}\bigr), \qquad
    v_i^{\ell + 1} = \text{the forward between the calls, applied to } x_i, z_i^0, \dots, z_i^\ell.

:mod:`hogwild.models.trial` tests on the given graph that this is exact.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hogwild.errors import AsynchronyError
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.models.stars import Fields, StarEdges, normalises, without_normalisation
from hogwild.ops import gather
from hogwild.problems.base import Problem
from hogwild_node.problems import LocalLayers

if TYPE_CHECKING:
    from hogwild.models.implicit import ImplicitConv

_TAPPED = threading.RLock()
"""Held while levels are intercepted, because threads may share a module."""


@dataclass(frozen=True)
class Program:
    """A module whose nodes exchange values in its levels only.

    Attributes:
        name: Its name in errors.
        model: The module; with replicas, that of the first.
        levels: The type of its levels.
        call: Called as ``call(model, fields)``; runs the forward and returns predictions.
        layer: Of a *chain*, in which every level reads the result of the level below and nothing
            else: called as ``layer(index, x, fields)``, one level of all replicas, [R, n, k] →
            [R, n, k].
        node: Called as ``node(problem)``: the same levels in code that needs no torch, or ``None``.
    """

    name: str
    model: nn.Module
    levels: type[nn.Module]
    call: Callable[[Any, Fields], Tensor]
    layer: Callable[[int, Tensor, Fields], Tensor] | None = None
    node: Callable[[LayeredProblem], LocalLayers | None] | None = None


@dataclass
class Call:
    """One call of a level."""

    index: int
    name: str
    level: nn.Module
    forward: Callable[..., Any]  # the level's own
    given: inspect.BoundArguments

    def values(self, rows: int) -> list[Tensor]:
        """The arguments that neighbours read: floating-point tensors with this many rows, alone or
        in tuples, whose names do not start with ``edge``. Integer tensors are features, which never
        change."""
        found: dict[int, Tensor] = {}
        for argument, value in self.given.arguments.items():
            named = value if isinstance(value, Mapping) else {argument: value}
            for name, part in named.items():
                for x in tree_leaves(part) if not name.startswith("edge") else ():
                    if isinstance(x, Tensor) and x.is_floating_point() and x.shape[:1] == (rows,):
                        found[id(x)] = x
        return list(found.values())

    def run(self, fields: Fields, instead: dict[int, Tensor] | None = None) -> Any:
        """Run the level; ``instead`` maps the ``id`` of a tensor to its replacement. On stars PyG's
        GCN gets the normalised weights of the whole graph, if it is called with the edges of the
        data."""
        new = instead or {}
        given = tree_map(lambda x: new.get(id(x), x), dict(self.given.arguments))
        weight = given.get("edge_weight")
        name = next((name for name, v in fields.edges.items() if v is weight), None)
        plain = given.get("edge_index") is fields.index and (weight is None or name is not None)
        if fields.star is not None and plain and normalises(self.level):
            x = given["x"]
            edges = fields.normalised(self.level, name, x.dtype)
            return without_normalisation(self.level)(x, *edges)
        bound = inspect.BoundArguments(self.given.signature, given)
        return self.forward(*bound.args, **bound.kwargs)


def named(path: str, module: nn.Module) -> str:
    """The name of a module in error messages."""
    return getattr(module, "title", f"{path or 'the model itself'} ({type(module).__name__})")


@contextmanager
def tapped(program: Program, take: Callable[[Call], Any]) -> Iterator[None]:
    """Within this context ``take(call)`` replaces every call of a level.

    Caches of convolutions (``cached=True``) are disabled, because the convolutions run on parts of
    the graph. Compiled modules run uncompiled, because calls inside compiled code cannot be
    intercepted. Calls by other threads run as they were written.
    """
    count, inside, thread = 0, False, threading.get_ident()

    def replacement(path: str, level: nn.Module) -> Callable[..., Any]:
        own = level.forward
        signature = inspect.signature(own)

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, inside
            if inside or threading.get_ident() != thread:
                return own(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            call = Call(count, named(path, level), level, own, bound)
            count, inside = count + 1, True
            try:
                return take(call)
            finally:
                inside = False

        return forward

    with _TAPPED:
        kept: list[tuple[nn.Module, dict[str, Any]]] = []
        try:
            for path, module in program.model.named_modules():
                before = module.__dict__
                aside = ("_cached_", "_compiled_call_impl")
                memory: dict[str, Any] = {k: None for k in before if k.startswith(aside)}
                if before.get("cached") is True:
                    memory["cached"] = False
                if "_orig_mod" in module._modules:
                    memory["forward"] = module._modules["_orig_mod"]
                if isinstance(module, program.levels):
                    memory["forward"] = replacement(path, module)
                if memory:
                    kept.append((module, {k: before[k] for k in memory if k in before}))
                    before.update(memory)
            yield
        finally:
            for module, before in kept:
                module.__dict__.pop("forward", None)
                module.__dict__.update(before)


class Differs(Exception):
    """Raised if the forward calls other levels than on the whole graph."""


class _Enough(BaseException):
    """Raised to end a forward whose rest is not needed."""


@dataclass
class Recorded:
    """Every call of a level, on the whole graph or at the centres of stars."""

    calls: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)  # inputs of each call, [N, width]
    z: list[Tensor] = field(default_factory=list)  # its result, [N, …]
    out: Tensor = field(default_factory=lambda: torch.empty(0))  # predictions, [rows, out]

    @classmethod
    def of(
        cls,
        program: Program,
        fields: Fields,
        like: Recorded | None = None,
        known: Sequence[Tensor] = (),
        heard: Sequence[Tensor] | None = None,
    ) -> Recorded:
        """Run and record the forward.

        Args:
            program: The program.
            fields: The data, of the whole graph or of some stars.
            like: The calls on the whole graph, from which the calls must not differ.
            known: Results [N, width] that replace the first calls.
            heard: On stars, for each of the next calls, the neighbours' inputs as last heard,
                [E', width]. The forward ends with the last of these calls, or where there are none
                at the first call after ``known``.
        """
        found, rows, star = cls(), fields.rows, fields.star
        centres = rows if star is None else star.size

        def take(call: Call) -> Tensor:
            if like is not None and [call.name] != like.calls[call.index : call.index + 1]:
                raise Differs(f"its call {call.index} is {call.name}, but not on the whole graph")
            values = call.values(rows)
            if not values:
                raise AsynchronyError(
                    f"{call.name} gets no floating-point tensor with a row for each of the {rows} "
                    f"nodes; expected a convolution of node features"
                )
            own = [flat(v[:centres]) for v in values]
            found.calls.append(call.name)
            found.values.append(torch.cat(own, 1))
            if like is not None and call.index < len(known):
                x, shape = known[call.index], like.z[call.index].shape[1:]
                out = nn.functional.pad(flat(x), (0, 0, 0, rows - x.size(0))).reshape(rows, *shape)
            elif heard is None or star is None:
                out = call.run(fields)
            elif call.index == len(known) + len(heard):
                raise _Enough
            else:
                widths = [v[0].numel() for v in values]
                parts = heard[call.index - len(known)].split(widths, 1)
                out = call.run(fields, {
                    id(v): star.values(x, part.to(v.dtype)).view(v.shape)
                    for v, x, part in zip(values, own, parts, strict=True)
                })  # fmt: skip
            if not isinstance(out, Tensor) or out.shape[:1] != (rows,):
                what = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise AsynchronyError(
                    f"{call.name} returns {what} for {rows} nodes; expected a convolution that "
                    f"returns one tensor with a row for each node"
                )
            found.z.append(out[:centres])
            if heard and len(found.z) == len(known) + len(heard):
                raise _Enough
            return out

        try:
            with tapped(program, take):
                found.out = program.call(program.model, fields)
        except _Enough:
            return found
        if not found.z:
            raise AsynchronyError(
                f"{program.name} calls none of its convolutions; expected a forward that calls them"
            )
        if like is not None and len(found.z) < len(like.z):
            raise Differs(f"it makes fewer than {len(like.z)} calls of convolutions")
        return found

    @property
    def results(self) -> list[int]:
        """Width of each result."""
        return [z[0].numel() for z in self.z]


def flat(x: Tensor) -> Tensor:
    """[n, …] as [n, width]."""
    return x.reshape(x.size(0), -1)


@dataclass(eq=False)
class LayeredProblem(LocalLayers):
    """The levels of a program on one graph, one node at a time.

    The state of a node holds the results of its levels so far, and at first zeros. The value of
    layer ℓ is the input of the ℓ-th call. In a chain both are the node's last result, and at first
    ``encoded``.

    Attributes:
        program: The program.
        fields: The data.
        recorded: The calls on the whole graph; with replicas, those of the first.
        encoded: Of a chain: what the first level reads, [R, k, N].
        surrounded: Whether leaves need the edges of the nodes that they stand for.
    """

    program: Program
    fields: Fields
    recorded: Recorded
    encoded: Tensor | None = None
    surrounded: bool = False

    @property
    def graph(self) -> Graph:
        return self.fields.graph

    @property
    def replicas(self) -> int:
        """R; 1 for a model without replicas."""
        return 1 if self.encoded is None else self.encoded.size(0)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.recorded.z)

    @property
    def widths(self) -> tuple[int, ...]:  # type: ignore[override]
        """Widths of the values of layers 0, …, L: L + 1 numbers. Only the rule ``"overwriting"``
        sends values of layer L."""
        return (*(v.size(1) for v in self.recorded.values), self.recorded.results[-1])

    @property
    def channels(self) -> int:
        """Width of a node's state."""
        return sum(self.recorded.results) if self.encoded is None else self.encoded.size(1)

    @property
    def node(self) -> LocalLayers:
        """The layers as a node computes them; the layers of a GCN need no torch."""
        found = self.program.node and self.program.node(self)
        return found or self

    def detach(self) -> LayeredProblem:
        """The problem itself."""
        return self

    def start(self) -> Tensor:
        """Every node's state before the first layer, [R, channels, N]."""
        if self.encoded is not None:
            return self.encoded
        return self.recorded.z[0].new_zeros(1, self.channels, self.graph.num_nodes)

    def initial(self, at: Star) -> Tensor:
        return at.at_nodes(self.start())

    def value(self, layer: int, h: Tensor, at: Star) -> Tensor:
        if self.program.layer is not None:
            return h
        known = h[0].mT.split(self.recorded.results, 1)
        found = known if layer == self.depth else self.run(at, known[:layer], ()).values
        return found[-1].mT.unsqueeze(0)

    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        if self.program.layer is not None:
            drawn = self._on(at)
            assert drawn.star is not None
            x = drawn.star.values(h.mT, inbox.mT)
            return self.program.layer(layer, x, drawn)[:, : at.size].mT
        known = list(h[0].mT.split(self.recorded.results, 1))
        known[layer] = flat(self.run(at, known[:layer], [inbox[0].mT]).z[-1])
        return torch.cat(known, 1).mT.unsqueeze(0)

    def recompute(self, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        if self.program.layer is not None:
            found: tuple[Tensor, Tensor] = super().recompute(inbox, at)
            return found
        made = self.run(at, (), inbox[0].mT.split(self.widths[:-1], 1))
        h = torch.cat([flat(z) for z in made.z], 1)
        return h.mT.unsqueeze(0), torch.cat(made.values, 1).mT.unsqueeze(0)

    def _on(self, at: Star, fields: Fields | None = None) -> Fields:
        """The data of some stars."""
        star = StarEdges.of(self.graph, at, self.surrounded)
        return (self.fields if fields is None else fields).at(star)

    def run(
        self,
        at: Star,
        known: Sequence[Tensor],
        heard: Sequence[Tensor],
        fields: Fields | None = None,
    ) -> Recorded:
        """Run the forward on stars, with other ``fields`` than those of the problem if they are
        given; ``known`` and ``heard`` are those of :meth:`Recorded.of`."""
        return Recorded.of(self.program, self._on(at, fields), self.recorded, known, heard)


def beside(x: Tensor, h: Tensor) -> Tensor:
    """The input of a level of a stack: features and embeddings side by side, [..., n, p + k]."""
    return torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)


@dataclass(eq=False)
class StackProblem:
    """The problems of all levels of a stack on one graph. The problem of level 0 is fixed. The
    problem of any other level changes with the embeddings of the level below.

    Attributes:
        first: The problem of level 0, detached from autograd.
        levels: The layers.
        inputs: The inputs of level 0.
    """

    first: Problem
    levels: Sequence[ImplicitConv]
    inputs: Inputs

    @property
    def graph(self) -> Graph:
        return self.first.graph

    @property
    def widths(self) -> list[int]:
        """Width of every level's embeddings."""
        return [level.hidden_channels for level in self.levels]

    @property
    def channels(self) -> int:
        """Width of all levels' embeddings together."""
        return sum(self.widths)

    def detach(self) -> StackProblem:
        """The problem itself, which is already detached."""
        return self

    def pose(self, level: int, own: Tensor, heard: Tensor) -> Problem:
        """The problem of a level above the first, detached from autograd.

        The problem at a node depends only on the node's own embedding and on what the node heard.

        Args:
            level: The level.
            own: The embeddings of the level below, [R, k, N].
            heard: The sender's embedding on every edge, as its receiver last heard it, [R, k, E].
        """
        x, source = self.inputs.x, self.graph.src
        inputs = replace(
            self.inputs,
            x=beside(x, self._as_features(own)),
            heard=beside(x[..., source, :], self._as_features(heard)),
        )
        return self.levels[level].problem(inputs).detach()

    def _as_features(self, h: Tensor) -> Tensor:
        """[R, k, n] -> [(R,) n, k], in the precision of the features."""
        h = h.mT.to(self.inputs.x.dtype)
        return h[0] if self.levels[0].replicas is None else h

    def problems(self, answers: Sequence[Tensor] = ()) -> list[Problem]:
        """The problems of all levels if every node has these embeddings of each level [R, k, N],
        and all its neighbours have heard them; by default where asynchronous runs start."""
        found = [self.first]
        for level in range(1, len(self.levels)):
            below = answers[level - 1] if answers else found[-1].start()
            found.append(self.pose(level, below, gather(below, self.graph.src)))
        return found

    def start(self) -> Tensor:
        """The starting point of asynchronous runs, [R, channels, N]."""
        return torch.cat([problem.start() for problem in self.problems()], 1)
