r"""The user's forward with its convolutions recorded or replaced, on the whole graph
(:class:`Recorded`) and on stars (:class:`WrappedProblem`): a trained model runs one node at a time.

A convolution is any ``torch_geometric.nn.MessagePassing`` inside the module. A convolution inside
another convolution is part of the outer one. Calls are numbered in the order in which the forward
makes them, and each call is a *layer*; a convolution may be called several times.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, Sequential

from hogwild.errors import AsynchronyError, ConfigError, HogwildError, InputError
from hogwild.graph import Star
from hogwild.graph.inputs import Inputs
from hogwild.models.levels import LayeredProblem
from hogwild.models.locality import AllEdges, StarEdges, normalises, without_normalisation

if TYPE_CHECKING:
    from hogwild.models.wrapped import WrappedGNN

_TAPPED = threading.RLock()
"""Held while convolutions are intercepted, because threads may share a module."""


@dataclass
class Fields:
    """The data that a forward reads: tensors over nodes, tensors over edges, and the edges."""

    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]
    index: Tensor
    num_graphs: int
    batched: bool

    @classmethod
    def of(cls, inputs: Inputs) -> Fields:
        edges = {"edge_attr": inputs.edge_attr, "edge_weight": inputs.edge_weight}
        return cls(
            {"x": inputs.x, "batch": inputs.owner, **inputs.nodes},
            {name: value for name, value in edges.items() if value is not None} | inputs.edges,
            inputs.edge_index,
            inputs.num_graphs,
            inputs.batch is not None,
        )

    @property
    def rows(self) -> int:
        return self.nodes["x"].size(0)

    def at(self, star: StarEdges) -> Fields:
        """The data of the nodes and edges of some stars. A leaf has the features of the node that
        it stands for. Features never change, and a forward may compute edge features from them
        (such as distances)."""
        nodes, rows = star.nodes(), star.rows
        return replace(
            self,
            nodes={name: value[nodes] for name, value in self.nodes.items()},
            edges={n: v if rows is None else v[rows] for n, v in self.edges.items()},
            index=star.index,
        )

    def shuffled(self, order: Tensor) -> Fields:
        """The data with the features of the nodes permuted."""
        return self._with(lambda _, v: v[order])

    def shifted(self, sign: float, random: torch.Generator) -> Fields:
        """The data with floating-point node features shifted by about their size."""
        return self._with(lambda _, v: moved(v, sign, random))

    def mixed(self, other: Fields, nodes: Tensor) -> Fields:
        """The data in which some nodes (a mask [N]) have their features in ``other``."""
        return self._with(lambda name, v: chosen(v, other.nodes[name], nodes))

    def _with(self, change: Callable[[str, Tensor], Tensor]) -> Fields:
        nodes = {n: v if n == "batch" else change(n, v) for n, v in self.nodes.items()}
        return replace(self, nodes=nodes)


@dataclass
class ForwardSignature:
    """Calls a model's forward with the fields that belong to its arguments."""

    model: str
    names: dict[str, str]  # argument -> field
    required: frozenset[str]
    whole: bool  # whether the one argument gets all of the data

    @classmethod
    def of(
        cls, model: nn.Module, given: Sequence[str] | Mapping[str, str] | None
    ) -> ForwardSignature:
        parameters = inspect.signature(model.forward).parameters.values()
        takes = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        required = frozenset(p.name for p in takes if p.default is p.empty)
        name = type(model).__name__
        if given is None and isinstance(model, Sequential):  # its forward takes *args
            given = list(model.signature.param_dict)
        if given is None and len(required) == 1 and not required & {"x", "edge_index"}:
            return cls(name, {}, required, True)
        if given is None:
            return cls(name, {p.name: p.name for p in takes}, required, False)
        if isinstance(given, str) or not all(isinstance(n, str) for n in given):
            raise ConfigError(f"arguments={given!r}; expected names of {name}.forward's arguments")
        chosen = dict(given) if isinstance(given, Mapping) else {n: n for n in given}
        unknown = [] if open_ended else sorted(chosen.keys() - {p.name for p in takes})
        if unknown or required - chosen.keys():
            raise ConfigError(
                f"arguments={given!r}; expected names of {name}.forward's arguments, which takes "
                f"{', '.join(p.name for p in takes)} and needs {', '.join(sorted(required))}"
            )
        return cls(name, chosen, required | chosen.keys(), False)

    def _given(self, fields: Fields) -> dict[str, Any]:
        """The arguments of the forward by name; if its one argument gets all of the data, the
        attributes of the data."""
        have: dict[str, Any] = {**fields.nodes, **fields.edges, "edge_index": fields.index}
        if self.whole:
            if not fields.batched:
                have.pop("batch")
            return have | {"num_graphs": fields.num_graphs}
        have["batch_size"], have["num_nodes"] = fields.num_graphs, fields.rows
        given = {a: have[f] for a, f in self.names.items() if f in have}
        if not fields.batched:  # one graph, given without a batch vector
            for name in {"batch", "batch_size"} - self.required:
                given.pop(name, None)
        return given

    def call(self, model: nn.Module, fields: Fields) -> Any:
        """The model's forward on these fields."""
        given = self._given(fields)
        if self.whole:
            return model(Data.from_dict(given))
        missing = sorted(self.required - given.keys())
        if missing:
            raise InputError(
                f"{self.model}.forward needs {', '.join(missing)}, but the data has no such "
                f"attribute with a row for each node or edge; expected data with these "
                f"attributes, or wrap(model, arguments={{'{missing[0]}': 'name in the data'}})"
            )
        return model(**given)

    def ask(self, model: nn.Module, fields: Fields) -> Any:
        """:meth:`call` on the user's data. Errors of the forward are reported as errors of the
        data."""
        try:
            return self.call(model, fields)
        except HogwildError:
            raise
        except Exception as error:
            given = {n: v for n, v in self._given(fields).items() if isinstance(v, Tensor)}
            shapes = [f"{name} {list(v.shape)} {v.dtype}" for name, v in given.items()]
            optional = sorted(given.keys() - self.required - {"batch"})
            hint = ""
            if optional:
                needed = [name for name in self.names if name in self.required]
                hint = (
                    f". If it was trained without {' and '.join(optional)}, use wrap(model, "
                    f"arguments={needed})"
                )
            raise InputError(
                f"{self.model}.forward raises {error!r} when it is given {', '.join(shapes)}; "
                f"expected data that the model takes, in the dtype of its parameters{hint}"
            ) from error


def moved(x: Tensor, sign: float, random: torch.Generator) -> Tensor:
    """Floating-point numbers shifted in one direction, by one to two times the largest of them."""
    if not x.is_floating_point():
        return x
    by = 1.0 + torch.rand(x.shape, generator=random, dtype=torch.float64).to(x)
    return x + sign * by * (float(x.abs().max()) or 1.0)


def chosen(own: Tensor, other: Tensor, nodes: Tensor) -> Tensor:
    """The rows of ``other`` at some nodes (a mask [N]), and of ``own`` elsewhere."""
    return torch.where(nodes.view(-1, *[1] * (own.dim() - 1)), other, own)


@dataclass
class Call:
    """One call of a convolution."""

    index: int
    path: str
    conv: MessagePassing
    forward: Callable[..., Any]  # the convolution's own
    given: inspect.BoundArguments

    def __str__(self) -> str:
        return named(self.path, self.conv)

    def values(self, rows: int) -> list[Tensor]:
        """The arguments that neighbours read: floating-point tensors with this many rows, alone or
        in tuples, whose names do not start with ``edge``. Integer tensors are features, which never
        change."""
        found: dict[int, Tensor] = {}
        for name, value in self._flat():
            if name.startswith("edge") or not isinstance(value, Tensor):
                continue
            if value.is_floating_point() and value.dim() and value.size(0) == rows:
                found[id(value)] = value
        return list(found.values())

    def _flat(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.given.arguments.items():
            if isinstance(value, tuple | list):
                yield from ((name, part) for part in value)
            elif isinstance(value, Mapping):
                yield from value.items()
            else:
                yield name, value

    def run(self, instead: dict[int, Tensor] | None = None) -> Any:
        """Run the convolution; ``instead`` maps the ``id`` of a tensor to its replacement."""
        new = instead or {}

        def swap(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(swap(part) for part in value)
            if isinstance(value, Mapping):
                return {key: swap(part) for key, part in value.items()}
            return new.get(id(value), value)

        arguments = {name: swap(value) for name, value in self.given.arguments.items()}
        bound = inspect.BoundArguments(self.given.signature, arguments)
        return self.forward(*bound.args, **bound.kwargs)


def named(path: str, module: nn.Module) -> str:
    """The name of a module in error messages."""
    return f"{path or 'the model itself'} ({type(module).__name__})"


@contextmanager
def tapped(model: nn.Module, take: Callable[[Call], Any]) -> Iterator[None]:
    """Within this context ``take(call)`` replaces every call of a convolution of the model.

    Caches of convolutions (``cached=True``) are disabled, because the convolutions run on parts of
    the graph. Compiled modules run uncompiled, because calls inside compiled code cannot be
    intercepted.
    """
    count, inside = 0, False

    def replacement(path: str, conv: MessagePassing) -> Callable[..., Any]:
        own, signature = conv.forward, inspect.signature(conv.forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, inside
            if inside:
                return own(*args, **kwargs)
            call = Call(count, path, conv, own, signature.bind(*args, **kwargs))
            count, inside = count + 1, True
            try:
                return take(call)
            finally:
                inside = False

        return forward

    with _TAPPED:
        kept: list[tuple[nn.Module, dict[str, Any]]] = []
        try:
            for path, module in model.named_modules():
                before = dict(module.__dict__)
                aside = ("_cached_", "_compiled_call_impl")
                memory: dict[str, Any] = {k: None for k in before if k.startswith(aside)}
                if before.get("cached") is True:
                    memory["cached"] = False
                if "_orig_mod" in module._modules:
                    memory["forward"] = module._modules["_orig_mod"]
                if isinstance(module, MessagePassing):
                    memory["forward"] = replacement(path, module)
                if memory:
                    kept.append((module, {k: before[k] for k in memory if k in before}))
                    module.__dict__.update(memory)
            yield
        finally:
            for module, before in kept:
                module.__dict__.pop("forward", None)
                module.__dict__.update(before)


def convolutions(model: nn.Module) -> dict[str, MessagePassing]:
    """The convolutions of a model by path."""
    return {p: m for p, m in model.named_modules() if isinstance(m, MessagePassing)}


class Differs(Exception):
    """Raised if the forward calls other convolutions than on the whole graph."""


@dataclass
class Recorded:
    """Every call of a convolution in the user's forward, on the whole graph or at the centres of
    stars."""

    calls: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)  # inputs of each call, [N, width]
    z: list[Tensor] = field(default_factory=list)  # its result, [N, …]
    out: Tensor = field(default_factory=lambda: torch.empty(0))  # predictions, [rows, out]

    @classmethod
    def of(cls, wrapped: WrappedGNN, fields: Fields, given: Recorded | None = None) -> Recorded:
        """Run and record the forward. With ``given``, the results ``given.z`` replace the calls of
        the convolutions."""
        found = cls()

        def take(call: Call) -> Tensor:
            if given is not None:
                given.require(call)
            out = call.run() if given is None else given.z[call.index]
            if not isinstance(out, Tensor) or not out.dim() or out.size(0) != fields.rows:
                what = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise AsynchronyError(
                    f"{call} returns {what} for {fields.rows} nodes; expected a convolution that "
                    f"returns one tensor with a row for each node"
                )
            values = call.values(fields.rows)
            if not values:
                raise AsynchronyError(
                    f"{call} gets no floating-point tensor with a row for each of the "
                    f"{fields.rows} nodes; expected a convolution of node features"
                )
            found.calls.append(str(call))
            found.values.append(torch.cat([flat(v) for v in values], 1))
            found.z.append(out)
            return out

        ask = wrapped.signature.ask if given is None else wrapped.signature.call
        with tapped(wrapped.model, take):
            out = ask(wrapped.model, fields)
        if not found.z:
            raise AsynchronyError(
                f"{wrapped.name}.forward calls none of its convolutions "
                f"({', '.join(convolutions(wrapped.model))}); expected a forward that calls them"
            )
        if given is not None and len(found.z) < len(given.z):
            raise Differs(f"it makes fewer than {len(given.z)} calls of convolutions")
        found.out = wrapped.finish(out, fields)
        return found

    def require(self, call: Call) -> None:
        """Raise unless this call is the recorded call of its index."""
        if [str(call)] != self.calls[call.index : call.index + 1]:
            raise Differs(f"its call {call.index} is {call}, but not on the whole graph")

    @property
    def shapes(self) -> list[torch.Size]:
        """Shape of each result at one node."""
        return [z.shape[1:] for z in self.z]

    @property
    def results(self) -> list[int]:
        """Width of each result."""
        return [z[0].numel() for z in self.z]

    @property
    def widths(self) -> list[int]:
        """Width of the value of each layer, which holds all inputs of the call."""
        return [values.size(1) for values in self.values]


def flat(x: Tensor) -> Tensor:
    """[n, …] as [n, width]."""
    return x.reshape(x.size(0), -1)


class _Enough(BaseException):
    """Raised to end a forward whose rest is not needed."""


@dataclass(eq=False)
class WrappedProblem(LayeredProblem):
    """The convolutions of a wrapped model, one node at a time. The state of a node holds the
    results of its convolutions. The value of layer ℓ is the input of the ℓ-th call."""

    wrapped: WrappedGNN
    fields: Fields
    edges: AllEdges
    recorded: Recorded
    surrounded: bool = False  # whether leaves need their own edges
    _weighted: dict[str | None, AllEdges] = field(default_factory=dict)

    def start(self) -> Tensor:
        """Zeros, because no convolution has been computed yet."""
        return self.recorded.z[0].new_zeros(1, self.channels, self.graph.num_nodes)

    def value(self, layer: int, h: Tensor, at: Star) -> Tensor:
        known = h[0].mT.split(self.recorded.results, 1)
        if layer == self.depth:
            return known[-1].mT.unsqueeze(0)
        return self.run(at, known[:layer], ()).values[-1].mT.unsqueeze(0)

    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        known = list(h[0].mT.split(self.recorded.results, 1))
        known[layer] = flat(self.run(at, known[:layer], [inbox[0].mT]).z[-1])
        return torch.cat(known, 1).mT.unsqueeze(0)

    def recompute(self, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        found = self.run(at, (), inbox[0].mT.split(self.widths[:-1], 1))
        return (
            torch.cat([flat(z) for z in found.z], 1).mT.unsqueeze(0),
            torch.cat(found.values, 1).mT.unsqueeze(0),
        )

    def run(
        self,
        at: Star,
        known: Sequence[Tensor],
        heard: Sequence[Tensor],
        fields: Fields | None = None,
    ) -> Recorded:
        """Run the user's forward on stars, up to the last call in ``heard``, or to the inputs of
        the first call after ``known`` if ``heard`` is empty.

        Args:
            at: The nodes and edges.
            known: Results [A, width] that replace the first calls of convolutions.
            heard: For each of the next calls, the neighbours' inputs as last heard, [E', width].
            fields: Other data than those of the problem.
        """
        star = StarEdges.of(self.edges, at, self.surrounded)
        drawn = (self.fields if fields is None else fields).at(star)
        made = Recorded()

        def take(call: Call) -> Tensor:
            self.recorded.require(call)
            if call.index < len(known):
                return fill(known[call.index], drawn.rows, self.recorded.shapes[call.index])
            values = call.values(drawn.rows)
            made.values.append(torch.cat([flat(v[: at.size]) for v in values], 1))
            if not heard:
                raise _Enough
            parts = heard[len(made.z)].split([v[0].numel() for v in values], 1)
            instead = {
                id(v): star.values(flat(v[: at.size]), part.to(v.dtype)).view(v.shape)
                for v, part in zip(values, parts, strict=True)
            }
            out = cast("Tensor", self._convolve(call, instead, star, drawn))
            made.z.append(out[: at.size])
            if len(made.z) == len(heard):
                raise _Enough
            return out

        try:
            with tapped(self.wrapped.model, take):
                self.wrapped.signature.call(self.wrapped.model, drawn)
        except _Enough:
            return made
        raise Differs(f"it makes fewer than {self.depth} calls of convolutions")

    def _convolve(
        self, call: Call, instead: dict[int, Tensor], star: StarEdges, drawn: Fields
    ) -> Any:
        """Evaluate a convolution on stars. PyG's GCN gets the normalised weights of the whole
        graph if it is called with the edges of the data."""
        conv: Any = call.conv
        given = call.given.arguments
        weight, own = given.get("edge_weight"), {id(v): name for name, v in drawn.edges.items()}
        plain = given.get("edge_index") is drawn.index and (weight is None or id(weight) in own)
        if not (plain and normalises(conv)):
            return call.run(instead)
        name = None if weight is None else own[id(weight)]
        if name not in self._weighted:
            entries = None if name is None else self.fields.edges[name]
            self._weighted[name] = replace(self.edges, weight=entries)
        (x,) = instead.values()
        star = replace(star, whole=self._weighted[name])
        index, entries = star.normalised(conv.improved, conv.add_self_loops, x.dtype)
        return type(conv).forward(without_normalisation(conv), x, index, entries)


def fill(x: Tensor, rows: int, shape: torch.Size) -> Tensor:
    """Results [A, width] of some nodes, padded with zeros to this many rows."""
    out = x.new_zeros(rows, x.size(1))
    out[: x.size(0)] = x
    return out.reshape(rows, *shape)
