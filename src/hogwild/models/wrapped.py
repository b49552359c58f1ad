r"""A trained GNN as it is, asynchronously: the user's own module, parameters and forward.

``hogwild.wrap(model)`` adds nothing to the model and changes nothing in it. To let some nodes run
on their own, the model's own ``forward`` is called on these nodes' *stars*: the nodes, and a leaf
for every edge into them. At every call of a convolution the leaves' inputs are replaced by what was
last heard of them,

.. math::
    z_i^\ell = \operatorname{conv}^\ell\bigl(v_i^\ell, \{v_j^\ell, e_{ij} \mid
    j \in \mathcal N(i)\}\bigr), \qquad
    v_i^{\ell + 1} = \text{whatever the forward makes of } x_i, z_i^0, \dots, z_i^\ell,

so that activations, norms, residuals and jumping knowledge between convolutions run as they were
written, row by row. What nodes tell their neighbours of layer ℓ is :math:`v_i^\ell`, the input of
the ℓ-th call; what a node ends with are the results of its calls. The prediction is the model's own
forward once more, with these results put in the place of the convolutions: a head, or a pooling
over the graph after the last convolution, is the user's.

Whether this is right is tried before anything runs, on the graph at hand. Two calls of the forward
must agree. Evaluated on stars, every input and every result must be what it is in the forward on
the whole graph. With other features and other results at some nodes, the inputs :math:`v_i^\ell` of
all other nodes must stay what they are, from :math:`v_i^0` on, and so must their predictions where
the model predicts for nodes. Where an input, a result or a prediction differs, nodes meet outside
of the convolutions, and the refusal names the module in which they do.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, JumpingKnowledge, Sequential

from hogwild.errors import AsynchronyError, ConfigError, FeatureError, HogwildError, InputError
from hogwild.graph import Star
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind, Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.models.layered import ExplicitGNN
from hogwild.models.layers import LayeredProblem
from hogwild.models.locality import AllEdges, StarEdges, refuse_beyond_one_hop
from hogwild.models.mode import uncompiled
from hogwild.models.tap import Call, convolutions, named, tapped

Head = Callable[[Any, Tensor], Tensor]
"""From what the model's forward gives, and the graph of each node [N], to predictions."""


def wrap(
    model: nn.Module,
    head: Head | None = None,
    *,
    arguments: Sequence[str] | Mapping[str, str] | None = None,
) -> WrappedGNN:
    """A trained GNN, ready for :func:`hogwild.simulate` and its like; the model stays as it is.

    .. code-block:: python

        model = torch_geometric.nn.GCN(3, 16, num_layers=5, out_channels=1)
        ...  # train it, or load its parameters
        run = hogwild.simulate(hogwild.wrap(model), data)  # simulate(model, data) does the same
        run.predictions  # those of model(data.x, data.edge_index)

    Args:
        model: Any module whose message passing is done by ``torch_geometric.nn.MessagePassing``
            convolutions of one hop: PyG's models, or one's own. Nodes may meet in convolutions
            only. A model of graphs may pool over the graph after its last convolution.
        head: A function, or a module, of (what the forward gives, the graph of each node [N]) to
            predictions, where the model does not hold its head itself.
        arguments: Names of the forward's arguments that are taken from the data; or a mapping from
            such names to attributes of the data, ``{"edge_weight": "edge_attr"}``. By default every
            argument that the data has an attribute for: say ``["x", "edge_index"]`` where the data
            has edge features that the model was trained without. A forward of a single argument,
            ``forward(data)``, gets all of the data.

    Returns:
        The wrapped model; one that is wrapped already is returned as it is.
    """
    if isinstance(model, WrappedGNN) and head is None and arguments is None:
        return model
    return WrappedGNN(model, head, arguments=arguments)


class WrappedGNN(Model):
    """A trained GNN of the user's and nothing else; made by :func:`hogwild.wrap`.

    Called, it is the user's model (and the head, if one was given): same arguments, same result.
    """

    kind = Kind.EXPLICIT
    replicas: int | None = None

    def __init__(
        self,
        model: nn.Module,
        head: Head | None = None,
        *,
        arguments: Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        model = uncompiled(model)  # type: ignore[assignment]
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module whose message "
                f"passing is done by torch_geometric.nn.MessagePassing convolutions"
            )
        if isinstance(model, WrappedGNN):
            raise ConfigError(
                f"model is wrapped already, around {model.name}; expected that model, "
                f"wrap(model.model, head=..., arguments=...), where the head or the arguments "
                f"should be others"
            )
        _refuse_the_librarys_own(model)
        if not convolutions(model):
            raise ConfigError(
                f"model is a {type(model).__name__} and holds no "
                f"torch_geometric.nn.MessagePassing convolution, and only their calls can be "
                f"handed to single nodes; expected a model of hogwild, or one of PyG's "
                f"convolutions, or of a MessagePassing of your own around your aggregation"
            )
        if head is not None and not callable(head):
            raise ConfigError(
                f"head is a {type(head).__name__}; expected a function or a module of (node "
                f"outputs, batch)"
            )
        self.model = model
        self.head = head
        self.door = Door.of(model, arguments)

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return type(self.model).__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The user's model, called as the user calls it."""
        out = self.model(*args, **kwargs)
        if self.head is None:
            return out
        given = inspect.signature(self.model.forward).bind(*args, **kwargs).arguments
        first: Any = args[0] if args else given.get("x", given.get("data"))
        batch = kwargs.get("batch", given.get("batch", getattr(first, "batch", None)))
        if batch is None:
            x = first if isinstance(first, Tensor) else first.x
            batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
        return self.head(out, batch)

    def extra_repr(self) -> str:
        return f"arguments={list(self.door.names)}"

    # -- the model protocol ------------------------------------------------------------------------

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The user's own forward on some data, [N, out], or [G, out] of a model of graphs."""
        fields = Fields.of(Inputs.of(inputs))
        return self.finish(self.door.ask(self.model, fields), fields)

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The predictions of nodes whose convolutions gave ``h`` [N, channels], [N, out] or
        [G, out]: the user's own forward, with these results in the place of the convolutions."""
        fields, found = Fields.of(inputs), self._recorded(inputs)
        parts = zip(h.split(found.results, 1), found.shapes, strict=True)
        z = [part.reshape(-1, *shape) for part, shape in parts]
        out: Tensor = Recorded.of(self, fields, replace(found, z=z)).out
        return out

    def finish(self, out: Any, fields: Fields) -> Tensor:
        """Predictions, [rows, out], of what the user's forward gave."""
        out = out if self.head is None else self.head(out, fields.nodes["batch"])
        if not isinstance(out, Tensor) or out.dim() not in (1, 2):
            what = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{self.name} gives {what}; expected one tensor [nodes, out] or [graphs, out]: "
                f"wrap(model, head=lambda out, batch: ...) makes one of whatever it gives"
            )
        if out.dim() == 1:
            out = out.unsqueeze(-1 if out.numel() in (fields.rows, fields.num_graphs) else 0)
        return out

    def _recorded(self, inputs: Inputs) -> Recorded:
        return Recorded.of(self, Fields.of(inputs))

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The results of all convolutions, side by side, in the user's forward on the whole
        graph, [N, channels]."""
        inputs = Inputs.of(inputs)
        found = self._recorded(inputs)
        h = torch.cat([z.flatten(1) for z in found.z], 1)
        return Solution.exact(h, inputs.num_graphs, len(found.z))

    @torch.no_grad()
    def problem(self, inputs: Inputs) -> WrappedProblem:
        """The convolutions one node at a time.

        Raises:
            AsynchronyError: The model reads more than a node and its neighbours.
        """
        if any(part.training for part in self.model.modules()):
            raise AsynchronyError(
                f"{self.name} is in training mode, in which a BatchNorm reads all nodes at hand "
                f"and dropout changes every result; call model.eval() before running it "
                f"asynchronously"
            )
        inputs = Inputs.of(inputs)
        _require_finite(inputs)
        fields = Fields.of(inputs)
        graph = inputs.graph()
        found = Recorded.of(self, fields)
        problem = WrappedProblem(
            graph, 1, sum(found.results), len(found.v), (*found.widths, found.results[-1]),
            "caching", self, fields, AllEdges(graph, inputs.edge_index, None, None), found,
        )  # fmt: skip
        problem.try_out()
        return problem


def _require_finite(inputs: Inputs) -> None:
    """Raise on NaN or infinity, as the models of this library do."""
    for name, value in (("x", inputs.x), ("edge_attr", inputs.edge_attr)):
        if value is not None and not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise FeatureError(
                f"{name} holds {bad} values that are NaN or infinite; expected finite numbers: "
                f"impute or drop them"
            )


# -- what a forward is called with -----------------------------------------------------------------


@dataclass
class Fields:
    """The data as a forward reads it: rows of nodes, rows of edges, and the edges themselves."""

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
        """Those of the nodes and edges drawn. A leaf has the features of the node it stands for:
        they never change, and a forward may make edge features of them (distances, say)."""
        nodes, rows = star.nodes(), star.rows
        return replace(
            self,
            nodes={name: value[nodes] for name, value in self.nodes.items()},
            edges={n: v if rows is None else v[rows] for n, v in self.edges.items()},
            index=star.index,
        )

    def shuffled(self, order: Tensor) -> Fields:
        """The nodes' features dealt out anew."""
        return self._with(lambda _, v: v[order])

    def shifted(self, sign: float, random: torch.Generator) -> Fields:
        """The nodes' features moved by about their size, where they are floating-point numbers."""
        return self._with(lambda _, v: _shifted(v, sign, random))

    def mixed(self, other: Fields, nodes: Tensor) -> Fields:
        """Some nodes [N] with the features that they have in ``other``."""
        return self._with(lambda name, v: _mixed(v, other.nodes[name], nodes))

    def _with(self, change: Callable[[str, Tensor], Tensor]) -> Fields:
        nodes = {n: v if n == "batch" else change(n, v) for n, v in self.nodes.items()}
        return replace(self, nodes=nodes)


@dataclass
class Door:
    """How a model's forward is called: which of its arguments are which fields."""

    model: str
    names: dict[str, str]  # argument -> field
    required: frozenset[str]
    whole: bool  # one argument: all of the data

    @classmethod
    def of(cls, model: nn.Module, given: Sequence[str] | Mapping[str, str] | None) -> Door:
        parameters = inspect.signature(model.forward).parameters.values()
        takes = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        required = frozenset(p.name for p in takes if p.default is p.empty)
        name = type(model).__name__
        if given is None and isinstance(model, Sequential):  # which keeps them to itself
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

    def call(self, model: nn.Module, fields: Fields) -> Any:
        """The model's forward on these fields."""
        have: dict[str, Any] = {**fields.nodes, **fields.edges, "edge_index": fields.index}
        if self.whole:
            if not fields.batched:
                have.pop("batch")
            return model(Data.from_dict(have | {"num_graphs": fields.num_graphs}))
        have["batch_size"], have["num_nodes"] = fields.num_graphs, fields.rows
        arguments = {a: have[f] for a, f in self.names.items() if f in have}
        if not fields.batched:  # one graph, given without a batch vector
            for name in ("batch", "batch_size"):
                if name not in self.required:
                    arguments.pop(name, None)
        missing = sorted(self.required - arguments.keys())
        if missing:
            raise InputError(
                f"{self.model}.forward needs {', '.join(missing)}, of which the data has no row a "
                f"node or edge; expected data with these attributes, or "
                f"wrap(model, arguments={{'{missing[0]}': 'name in the data'}})"
            )
        return model(**arguments)

    def ask(self, model: nn.Module, fields: Fields) -> Any:
        """The same on the user's data, where what it raises is about the data."""
        try:
            return self.call(model, fields)
        except HogwildError:
            raise
        except Exception as error:
            have = {**fields.nodes, **fields.edges, "edge_index": fields.index}
            given = [f"{n} {list(have[f].shape)} {have[f].dtype}" for n, f in self._of(have)]
            optional = sorted({n for n, _ in self._of(have)} - self.required - {"batch"})
            hint = ""
            if optional:
                needed = [name for name in self.names if name in self.required]
                hint = (
                    f". If it was trained without {' and '.join(optional)}, say so: wrap(model, "
                    f"arguments={needed})"
                )
            raise InputError(
                f"{self.model}.forward raises {error!r} when it is given {', '.join(given)}; "
                f"expected data that the model takes, in the dtype of its parameters{hint}"
            ) from error

    def _of(self, have: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Arguments and fields, of those there are."""
        names = {n: n for n in have} if self.whole else self.names
        return [(name, of) for name, of in names.items() if of in have]


# -- the forward on the whole graph ----------------------------------------------------------------


@dataclass
class Recorded:
    """Every call of a convolution in the user's forward on the whole graph."""

    calls: list[str] = field(default_factory=list)
    v: list[list[Tensor]] = field(default_factory=list)  # inputs of each call
    z: list[Tensor] = field(default_factory=list)  # its result, [N, …]
    out: Tensor = field(default_factory=lambda: torch.empty(0))  # predictions, [rows, out]

    @classmethod
    def of(cls, wrapped: WrappedGNN, fields: Fields, given: Recorded | None = None) -> Recorded:
        """The forward as it is; or with the results ``given.z`` in the place of the convolutions,
        which are then not called."""
        found = cls()

        def take(call: Call) -> Tensor:
            if given is not None:
                given.require(call)
            out = call.run() if given is None else given.z[call.index]
            if not isinstance(out, Tensor) or not out.dim() or out.size(0) != fields.rows:
                what = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise AsynchronyError(
                    f"{call} gives {what} for {fields.rows} nodes; expected a convolution that "
                    f"gives one tensor with a row for each node it is given"
                )
            values = call.values(fields.rows)
            if not values:
                raise AsynchronyError(
                    f"{call} is given no floating-point tensor with a row for each of the "
                    f"{fields.rows} nodes; expected a convolution of node features"
                )
            found.calls.append(str(call))
            found.v.append(values)
            found.z.append(out)
            return out

        ask = wrapped.door.ask if given is None else wrapped.door.call
        with tapped(wrapped.model, take):
            out = ask(wrapped.model, fields)
        if not found.z:
            raise AsynchronyError(
                f"{wrapped.name}.forward calls none of its convolutions "
                f"({', '.join(convolutions(wrapped.model))}); expected a forward that does"
            )
        if given is not None and len(found.z) < len(given.z):
            raise _Differs(f"it makes fewer than {len(given.z)} calls of convolutions")
        found.out = wrapped.finish(out, fields)
        return found

    def require(self, call: Call) -> None:
        """Raise unless this call is the one recorded at its place."""
        if [str(call)] != self.calls[call.index : call.index + 1]:
            raise _Differs(f"its call {call.index} is {call}, and another one on the whole")

    @property
    def shapes(self) -> list[torch.Size]:
        """Of each result at one node."""
        return [z.shape[1:] for z in self.z]

    @property
    def results(self) -> list[int]:
        """Width of each result."""
        return [z[0].numel() for z in self.z]

    @property
    def widths(self) -> list[int]:
        """Width of what is said of each layer: all inputs of the call."""
        return [sum(v[0].numel() for v in values) for values in self.v]

    def value(self, index: int) -> Tensor:
        """The inputs of a call, side by side, [N, width]."""
        return torch.cat([v.flatten(1) if v.dim() > 1 else v[:, None] for v in self.v[index]], 1)


# -- the forward on stars --------------------------------------------------------------------------


class _Enough(BaseException):
    """The rest of the forward is of no interest."""


class _Differs(Exception):
    """The forward calls other convolutions on a part of the graph."""


_DRAWS = 3
"""Ways of dealing out the features to the nodes on which a model is tried; the first is the data's
own."""
_CALLS = 3
"""Calls of the forward on the same data that must agree."""


@dataclass(eq=False)
class WrappedProblem(LayeredProblem):
    """The convolutions of a wrapped model, one node at a time: the state of a node is the results
    of its convolutions, and what it says of layer ℓ is the input of the ℓ-th call."""

    wrapped: WrappedGNN
    fields: Fields
    edges: AllEdges
    recorded: Recorded
    surrounded: bool = False  # whether leaves need their own edges
    _weighted: dict[str | None, AllEdges] = field(default_factory=dict)

    def start(self) -> Tensor:
        """Nothing has been computed yet."""
        return self.recorded.z[0].new_zeros(1, self.channels, self.graph.num_nodes)

    def value(self, layer: int, h: Tensor, at: Star) -> Tensor:
        known = h[0].mT.split(self.recorded.results, 1)
        if layer == self.depth:
            return known[-1].mT.unsqueeze(0)
        return self._run(at, known[:layer], {}, stop=layer).values[-1].mT.unsqueeze(0)

    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        known = list(h[0].mT.split(self.recorded.results, 1))
        known[layer] = self._run(at, known[:layer], {layer: inbox[0].mT}).results[-1]
        return torch.cat(known, 1).mT.unsqueeze(0)

    def recompute(self, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        heard = dict(enumerate(inbox[0].mT.split(self.widths[:-1], 1)))
        found = self._run(at, (), heard)
        return (
            torch.cat(found.results, 1).mT.unsqueeze(0),
            torch.cat(found.values, 1).mT.unsqueeze(0),
        )

    def _run(
        self,
        at: Star,
        known: Sequence[Tensor],
        heard: Mapping[int, Tensor],
        stop: int | None = None,
        fields: Fields | None = None,
    ) -> _Pass:
        """The user's forward on stars. The first calls give what is ``known`` [A, width] of their
        results; the next are made, with what was ``heard`` [E', width] of each; the forward ends
        before the call ``stop``, or after the last call that something was heard of."""
        star = StarEdges.of(self.edges, at, self.surrounded)
        drawn = (self.fields if fields is None else fields).at(star)
        made, last = _Pass([], []), max(heard, default=-1)

        def take(call: Call) -> Tensor:
            self.recorded.require(call)
            if call.index < len(known):
                return _fill(known[call.index], drawn.rows, self.recorded.shapes[call.index])
            values = call.values(drawn.rows)
            made.values.append(torch.cat([_flat(v[: at.size]) for v in values], 1))
            if call.index == stop:
                raise _Enough
            parts = heard[call.index].split([v[0].numel() for v in values], 1)
            instead = {
                id(v): star.values(_flat(v[: at.size]), part.to(v.dtype)).view(v.shape)
                for v, part in zip(values, parts, strict=True)
            }
            out = cast("Tensor", self._convolve(call, instead, star, drawn))
            made.results.append(_flat(out[: at.size]))
            if call.index == last:
                raise _Enough
            return out

        try:
            with tapped(self.wrapped.model, take):
                self.wrapped.door.call(self.wrapped.model, drawn)
        except _Enough:
            return made
        raise _Differs(f"it makes fewer than {self.depth} calls of convolutions")

    def _convolve(
        self, call: Call, instead: dict[int, Tensor], star: StarEdges, drawn: Fields
    ) -> Any:
        """A convolution on stars. PyG's GCN on the edges of the data reads its weights, which are
        constants of the graph; others find the degrees of neighbours among the edges drawn."""
        conv: Any = call.conv
        given = call.given.arguments
        weight, own = given.get("edge_weight"), {id(v): name for name, v in drawn.edges.items()}
        plain = given.get("edge_index") is drawn.index and (weight is None or id(weight) in own)
        if not (plain and type(conv) is GCNConv and conv.normalize and conv.aggr in ("add", "sum")):
            return call.run(instead)
        name = None if weight is None else own[id(weight)]
        if name not in self._weighted:
            entries = None if name is None else self.fields.edges[name]
            self._weighted[name] = replace(self.edges, weight=entries)
        (x,) = instead.values()
        star = replace(star, whole=self._weighted[name])
        index, entries = star.normalised(conv.improved, conv.add_self_loops, x.dtype)
        bare = copy.copy(conv)  # shares all parameters; the user's module stays as it is
        bare.normalize = False
        return type(conv).forward(bare, x, index, entries)

    # -- trying ------------------------------------------------------------------------------------

    def try_out(self) -> None:
        """Find out what leaves need, or refuse."""
        self._require_repeatable()
        graph, random = self.graph, torch.Generator().manual_seed(0)
        n, device = graph.num_nodes, graph.src.device
        half = torch.randperm(n, generator=random)[: max(n // 2, 1)].to(device)
        stars, draws = (graph.everyone, graph.star(half)), [(self.fields, self.recorded)]
        for _ in range(1, _DRAWS):
            order = torch.argsort(
                torch.rand(n, generator=random).to(device) + self.fields.nodes["batch"]
            )
            dealt = self.fields.shuffled(order)
            draws.append((dealt, Recorded.of(self.wrapped, dealt)))
        self._try_stars(stars, draws)
        self._try_rows(draws[1:], random)

    def _require_repeatable(self) -> None:
        """Refuse a forward that gives something else at every call."""
        for _ in range(1, _CALLS):
            again = Recorded.of(self.wrapped, self.fields)
            pairs = list(zip(self.recorded.z, again.z, strict=False))
            moved = [_gap(_flat(a), _flat(b)) > 0.0 for a, b in pairs]
            place = self.recorded.calls[moved.index(True)] if any(moved) else ""
            if again.calls != self.recorded.calls:
                what = "calls other convolutions"
            elif place:
                what = f"gets another result of {place}"
            elif _gap(self.recorded.out, again.out) > 0.0:
                what = "gives other predictions"
            else:
                continue
            raise AsynchronyError(
                f"{self.wrapped.name}.forward is random: called twice on the same data in "
                f"evaluation mode, it {what}. Expected a forward that is a function of the data: "
                f"torch.nn.functional.dropout(x, p) drops entries in evaluation mode, too; write "
                f"dropout(x, p, training=self.training), or use torch.nn.Dropout"
            )

    def _try_stars(self, stars: Sequence[Star], draws: Sequence[tuple[Fields, Recorded]]) -> None:
        """Refuse where inputs or results on stars are not those on the whole graph."""
        found: _Fault | None = None
        for self.surrounded in (False, True):
            found = next(
                (
                    fault
                    for fields, expected in draws
                    for at in stars
                    if (fault := self._fault(at, fields, expected)) is not None
                ),
                None,
            )
            if found is None:
                return
        assert found is not None
        raise self._refusal(found) from found.cause

    def _try_rows(self, others: Sequence[tuple[Fields, Recorded]], random: torch.Generator) -> None:
        """Refuse where what the forward makes of a node's features and results between, before or
        after convolutions depends on other nodes: some nodes get other features and other results,
        and the rest must stay where it is."""
        n, device = self.graph.num_nodes, self.graph.src.device
        failure: Exception | None = None
        tried = 0
        for number, (dealt, other) in enumerate(others):
            sign = -1.0 if number % 2 else 1.0
            z = [_shifted(result, sign, random) for result in other.z]
            some = (torch.rand(n, generator=random) < 0.5).to(device)
            for features in (dealt, dealt.shifted(sign, random)):
                for nodes in (some, ~some):
                    fields = self.fields.mixed(features, nodes)
                    pairs = zip(self.recorded.z, z, strict=True)
                    given = replace(self.recorded, z=[_mixed(a, b, nodes) for a, b in pairs])
                    try:
                        made = Recorded.of(self.wrapped, fields, given)
                    except _Differs as error:
                        raise AsynchronyError(
                            f"{self.wrapped.name}.forward calls other convolutions when the values "
                            f"of some nodes change ({error}). Expected the same calls for all "
                            f"values: an asynchronous node knows only itself and its neighbours"
                        ) from error
                    except Exception as error:  # features that were moved may be none it takes
                        failure = error
                        continue
                    tried += 1
                    self._require_still(made, ~nodes, fields, given)
        if not tried and failure is not None:
            raise AsynchronyError(
                f"{self.wrapped.name}.forward cannot be tried: with the features of some nodes "
                f"exchanged, and other results of convolutions, it raises {failure!r}. Expected a "
                f"forward that takes any features of the data at any node"
            ) from failure

    def _require_still(
        self, made: Recorded, still: Tensor, fields: Fields, given: Recorded
    ) -> None:
        """Refuse where nodes [N] moved whose own features and results are those recorded."""
        for index in range(self.depth + 1):
            if index < self.depth:
                before, after = self.recorded.value(index), made.value(index)
            else:
                before, after = self.recorded.out, made.out
                if before.size(0) != self.graph.num_nodes:
                    return  # predictions of graphs
            gap = 1.0 if before.shape != after.shape else _gap(before[still], after[still])
            if gap > 0.0:
                raise self._meeting(index, gap, still, fields, given)

    def _meeting(
        self, index: int, gap: float, still: Tensor, fields: Fields, given: Recorded
    ) -> AsynchronyError:
        """The refusal of a forward in which nodes meet outside of its convolutions."""

        def same(whole: Any, part: Any) -> bool:
            if not (_rows_of(whole, still.numel()) and _rows_of(part, still.numel())):
                return True
            return whole.shape == part.shape and not _gap(_flat(whole[still]), _flat(part[still]))

        first, second = _Trail(self.wrapped.model), _Trail(self.wrapped.model)
        with first:
            Recorded.of(self.wrapped, self.fields, self.recorded)
        with second:
            Recorded.of(self.wrapped, fields, given)
        calls = [*self.recorded.calls, ""]
        culprit = _culprit(first, second, same, calls[index]) or "what the forward itself does"
        alone = (
            f"at some nodes move by {gap:.1e}, although only the features and convolution results "
            f"of other nodes change"
        )
        if index == self.depth:
            return AsynchronyError(
                f"{culprit} after {calls[index - 1]} reads more than single nodes: the predictions "
                f"{alone}. "
                f"A prediction for a node may depend on the node's own convolution results only: "
                f"expected norms of single nodes there, softmax over channels (dim=-1), and "
                f"aggregation over neighbours in a MessagePassing convolution. A prediction for "
                f"the whole graph may pool over its nodes: it has the shape [graphs, out]"
            )
        before = calls[index - 1] if index else "the beginning"
        return AsynchronyError(
            f"{culprit} between {before} and {calls[index]} reads more than single nodes: the "
            f"inputs of {calls[index]} {alone}. {_EXPECTED}"
        )

    def _fault(self, at: Star, fields: Fields, expected: Recorded) -> _Fault | None:
        """The first thing that is different on stars from the whole graph."""
        src = at.at_edges(self.graph.src)
        heard = {i: expected.value(i)[src] for i in range(self.depth)}
        try:
            made = self._run(at, (), heard, fields=fields)
        except _Differs as error:
            what = f"calls other convolutions on a part of the graph ({error})"
            return _Fault(at, fields, None, None, what, None)
        except Exception as error:  # whatever a foreign model raises on a graph it did not expect
            return _Fault(at, fields, None, None, f"raises {error!r}", error)
        for index in range(self.depth):
            pairs = (
                (made.values[index], expected.value(index)),
                (made.results[index], _flat(expected.z[index])),
            )
            for result, (mine, theirs) in zip((False, True), pairs, strict=True):
                whole = at.at_nodes(theirs.mT).mT
                scale = float(whole.nan_to_num().abs().max()) or 1.0
                same = mine.isnan() & whole.isnan()  # of which there is more to say elsewhere
                gap = float(torch.where(same, 0.0, (mine - whole).abs()).max()) / scale
                if not gap <= torch.finfo(mine.dtype).eps ** 0.5:
                    return _Fault(at, fields, index, result, f"differs by {gap:.1e}", None)
        return None

    def _called(self, call: str) -> nn.Module:
        """The module of a call; the model itself may be one convolution."""
        model, path = self.wrapped.model, call.split(" ")[0]
        return dict(model.named_modules()).get(path, model)

    def _refusal(self, found: _Fault) -> AsynchronyError:
        model, name = self.wrapped.model, self.wrapped.name
        alone = f"evaluated on a node and its neighbours alone it {found.what}"
        if found.index is None:
            return AsynchronyError(
                f"{name}.forward cannot be run for a node and its neighbours alone: it "
                f"{found.what}{_known(model)}. Expected a forward in which nodes meet in "
                f"convolutions only, and not in what it does with edge_index, batch or the number "
                f"of nodes"
            )
        call = self.recorded.calls[found.index]
        if found.result:
            return AsynchronyError(
                f"{call} looks beyond a node and the neighbours it hears: {alone}"
                f"{_known(self._called(call))}. Expected a convolution of one "
                f"hop; what it must know of the whole graph should be a feature of nodes or edges"
            )
        before = self.recorded.calls[found.index - 1] if found.index else "the beginning"
        culprit = self._culprit(found, call) or "what the forward itself does"
        return AsynchronyError(
            f"{culprit} between {before} and {call} reads more than single nodes: {alone}. "
            f"{_EXPECTED}"
        )

    def _culprit(self, found: _Fault, call: str) -> str | None:
        """The module to blame for a difference between stars and the whole graph."""
        whole = _Trail(self.wrapped.model)
        with whole:
            expected = Recorded.of(self.wrapped, found.fields)
        src = found.at.at_edges(self.graph.src)
        heard = {i: expected.value(i)[src] for i in range(self.depth)}
        part = _Trail(self.wrapped.model)
        with part:
            self._run(found.at, (), heard, fields=found.fields)
        return _culprit(whole, part, partial(self._same, found.at), call)

    def _same(self, at: Star, whole: Any, part: Any) -> bool:
        """Whether the rows of some nodes are those of the whole graph; of anything else: yes."""
        if not isinstance(whole, Tensor) or not isinstance(part, Tensor):
            return True
        if not whole.dim() or whole.size(0) != self.graph.num_nodes or part.size(0) < at.size:
            return True
        mine, theirs = _flat(part[: at.size]).double(), _flat(whole).double()
        theirs = at.at_nodes(theirs.mT).mT
        return bool(torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())))


_EXPECTED = (
    "An asynchronous node knows only itself and its neighbours: expected norms of single nodes "
    "there (LayerNorm in mode 'node', BatchNorm in evaluation mode), and no pooling, attention or "
    "other aggregation over nodes outside of MessagePassing. A model of graphs may pool after its "
    "last convolution, inside the forward or as wrap(model, head=...)"
)


@dataclass
class _Pass:
    """What the calls of one forward on stars were given and gave, each [A, width]."""

    values: list[Tensor]
    results: list[Tensor]


@dataclass
class _Fault:
    """Where a forward on stars is not the one on the whole graph."""

    at: Star
    fields: Fields
    index: int | None  # of the call; None: the forward raised
    result: bool | None  # whether its result differs, or its input already
    what: str
    cause: Exception | None


class _Trail:
    """What every module of a model was given and gave, in the order in which they finished."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.steps: list[tuple[str, Any, Any]] = []

    def __enter__(self) -> None:
        def keep(path: str) -> Callable[[nn.Module, Any, Any], None]:
            def hook(module: nn.Module, given: Any, made: Any) -> None:
                self.steps.append((named(path, module), given[0] if given else None, made))

            return hook

        self.hooks = [
            module.register_forward_hook(keep(path))
            for path, module in self.model.named_modules()
            if path  # not the model itself, of which there is nothing to say
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()


def _refuse_the_librarys_own(model: nn.Module) -> None:
    """Refuse a module around a model or an implicit layer of this library, which have rules of
    their own for single nodes."""
    known, outer = (ConvGNN, ImplicitConv), type(model).__name__
    path, own = next(((p, m) for p, m in model.named_modules() if isinstance(m, known)), ("", None))
    if own is None or (convolutions(model) and not isinstance(own, ExplicitGNN)):
        return
    name = type(own).__name__
    if not path and not isinstance(own, ImplicitConv):
        raise ConfigError(
            f"model is a {name} of hogwild; expected a model trained elsewhere: a {name} goes to "
            f"hogwild.simulate, robustness and certify as it is"
        )
    if isinstance(own, ImplicitConv):
        what = "a model with a readout, such as hogwild.EnergyGNN, in its place"
    else:
        what = f"the {name} itself, as in hogwild.simulate(model.{path}, data)"
    where = f"a {name} of hogwild" if not path else f"a {outer} around {path}, a {name} of hogwild"
    raise ConfigError(
        f"model is {where}, which runs by rules of its own and cannot be wrapped; expected {what}. "
        f"What follows the embeddings belongs into the readout of such a model: "
        f"readout=(16, 16) makes it an MLP of these hidden widths, and pool='mean' predicts for "
        f"graphs"
    )


def _culprit(
    whole: _Trail, part: _Trail, same: Callable[[Any, Any], bool], call: str
) -> str | None:
    """The first module, before the call, that is given the same in two forwards and makes something
    else of it."""
    for (path, given, made), (_, mine, result) in zip(whole.steps, part.steps, strict=False):
        if path == call or not same(given, mine):
            return None
        if not same(made, result):
            return path
    return None


def _known(module: nn.Module) -> str:
    """What the types inside a module tell, as a clause."""
    try:
        refuse_beyond_one_hop(module, allow=(JumpingKnowledge,))
    except AsynchronyError as error:
        return f" ({str(error).split('; expected layers')[0]})"
    return ""


def _rows_of(x: Any, rows: int) -> bool:
    """Whether this is a tensor with so many rows."""
    return isinstance(x, Tensor) and x.dim() > 0 and x.size(0) == rows


def _shifted(x: Tensor, sign: float, random: torch.Generator) -> Tensor:
    """Floating-point numbers moved one way, by one to two times the largest of them."""
    if not x.is_floating_point():
        return x
    by = 1.0 + torch.rand(x.shape, generator=random, dtype=torch.float64).to(x)
    return x + sign * by * (float(x.abs().max()) or 1.0)


def _mixed(own: Tensor, other: Tensor, nodes: Tensor) -> Tensor:
    """Rows of one tensor, and of another one at some nodes [N]."""
    return torch.where(nodes.view(-1, *[1] * (own.dim() - 1)), other, own)


def _gap(a: Tensor, b: Tensor) -> float:
    """How far two tensors are apart, as a part of their size; 0 where it is rounding."""
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return float(bool((a != b).any()))
    scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    gap = float(torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf).max())
    gap /= scale or 1.0
    return gap if gap > 1e3 * torch.finfo(a.dtype).eps else 0.0


def _flat(x: Tensor) -> Tensor:
    """[n, …] as [n, width]."""
    return x.reshape(x.size(0), -1)


def _fill(x: Tensor, rows: int, shape: torch.Size) -> Tensor:
    """Results [A, width] of some nodes as the first of so many rows."""
    out = x.new_zeros(rows, x.size(1))
    out[: x.size(0)] = x
    return out.reshape(rows, *shape)
