r"""Asynchronous runs of the user's own trained GNN.

``hogwild.wrap(model)`` does not change the model. Its convolutions are the levels of a program
(:mod:`hogwild.models.program`); activations, norms, residuals and jumping knowledge between them
are the user's code. The final state of a node holds the results of all its convolutions. For
predictions, the forward runs once on the whole graph with these results in place of the
convolutions, so that the user's head or pooling is used, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, Sequential

from hogwild.errors import ConfigError, HogwildError, InputError
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind, Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.models.layered import LayeredGNN
from hogwild.models.program import Differs, Fields, LayeredProblem, Program, Recorded
from hogwild.models.trial import layered
from hogwild.models.validation import require_finite, uncompiled

Head = Callable[[Any, Tensor], Tensor]
"""A function of the forward's output and the graph of each node [N] that returns predictions."""


def wrap(
    model: nn.Module,
    head: Head | None = None,
    *,
    arguments: Sequence[str] | Mapping[str, str] | None = None,
) -> WrappedGNN:
    """Wrap a trained GNN for :func:`hogwild.simulate` and similar functions. The model does not
    change.

    .. code-block:: python

        model = torch_geometric.nn.GCN(3, 16, num_layers=5, out_channels=1)
        ...  # train it, or load its parameters
        run = hogwild.simulate(hogwild.wrap(model), data)  # simulate(model, data) does the same
        run.predictions  # those of model(data.x, data.edge_index)

    Args:
        model: Any module that exchanges information between nodes only in
            ``torch_geometric.nn.MessagePassing`` convolutions of one hop. A model that predicts for
            graphs may pool over the nodes after its last convolution.
        head: A function or module ``head(out, batch)`` that computes predictions from the output of
            the forward and the graph of each node [N], if the model does not do so itself.
        arguments: Names of the forward's arguments that are taken from the data; or a mapping from
            such names to attributes of the data, ``{"edge_weight": "edge_attr"}``. By default the
            forward gets every argument for which the data has an attribute. Use
            ``["x", "edge_index"]`` if the data has edge features, but the model was trained without
            them. A forward with a single argument, ``forward(data)``, gets all of the data.

    Returns:
        The wrapped model. A model that is already wrapped is returned unchanged.
    """
    if isinstance(model, WrappedGNN) and head is None and arguments is None:
        return model
    return WrappedGNN(model, head, arguments=arguments)


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
            return have | {"num_graphs": fields.graph.num_graphs}
        have["batch_size"], have["num_nodes"] = fields.graph.num_graphs, fields.rows
        given = {a: have[f] for a, f in self.names.items() if f in have}
        if not fields.batched:  # one graph, given without a batch vector
            for name in {"batch", "batch_size"} - self.required:
                given.pop(name, None)
        return given

    def call(self, model: nn.Module, fields: Fields) -> Any:
        """The model's forward on these fields. On the user's data, errors of the forward are
        reported as errors of the data."""
        given = self._given(fields)
        missing = sorted(self.required - given.keys())
        if missing and not self.whole:
            raise InputError(
                f"{self.model}.forward needs {', '.join(missing)}, but the data has no such "
                f"attribute with a row for each node or edge; expected data with these "
                f"attributes, or wrap(model, arguments={{'{missing[0]}': 'name in the data'}})"
            )
        try:
            return model(Data.from_dict(given)) if self.whole else model(**given)
        except (HogwildError, Differs):
            raise
        except Exception as error:
            if fields.star is not None:
                raise
            tensors = {n: v for n, v in given.items() if isinstance(v, Tensor)}
            shapes = [f"{name} {list(v.shape)} {v.dtype}" for name, v in tensors.items()]
            optional = sorted(tensors.keys() - self.required - {"batch"})
            hint = ""
            if optional and not self.whole:
                needed = [name for name in self.names if name in self.required]
                hint = (
                    f". If it was trained without {' and '.join(optional)}, use wrap(model, "
                    f"arguments={needed})"
                )
            raise InputError(
                f"{self.model}.forward raises {error!r} when it is given {', '.join(shapes)}; "
                f"expected data that the model takes, in the dtype of its parameters{hint}"
            ) from error


class WrappedGNN(Model):
    """The wrapper of a trained GNN, built by :func:`hogwild.wrap`.

    Its forward is that of the user's model, followed by the head if there is one.
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
        model = uncompiled(model)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module whose message "
                f"passing is done by torch_geometric.nn.MessagePassing convolutions"
            )
        if isinstance(model, WrappedGNN):
            raise ConfigError(
                f"model is wrapped already, around {model.name}; expected that model. "
                f"wrap(model.model, head=..., arguments=...) changes the head or the arguments"
            )
        _refuse_the_librarys_own(model)
        if not _convolves(model):
            raise ConfigError(
                f"model is a {type(model).__name__} and holds no "
                f"torch_geometric.nn.MessagePassing convolution, the only modules that hogwild can "
                f"run for single nodes; expected a model of hogwild, or a model whose aggregation "
                f"over neighbours is in PyG's convolutions or in your own MessagePassing"
            )
        if head is not None and not callable(head):
            raise ConfigError(
                f"head is a {type(head).__name__}; expected a function or module called as "
                f"head(out, batch)"
            )
        self.model = model
        self.head = head
        self.signature = ForwardSignature.of(model, arguments)

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return type(self.model).__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's model, and the head if there is one."""
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
        return f"arguments={list(self.signature.names)}"

    # -- the model protocol ------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The forward, whose levels are its convolutions."""
        return Program(f"{self.name}.forward", self.model, MessagePassing, self._call)

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """Predictions of the user's forward: [N, out] for nodes, or [G, out] for graphs."""
        return self._call(self.model, self._fields(inputs))

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Predictions [N, out] or [G, out] of the user's forward, with the results ``h``
        [N, channels] in place of the convolutions."""
        fields = self._fields(inputs)
        found = Recorded.of(self.program, fields)
        return Recorded.of(self.program, fields, found, h.split(found.results, 1)).out

    def _call(self, model: nn.Module, fields: Fields) -> Tensor:
        """Predictions [rows, out] of the user's forward, followed by the head."""
        out = self.signature.call(model, fields)
        out = out if self.head is None else self.head(out, fields.nodes["batch"])
        if not isinstance(out, Tensor) or out.dim() not in (1, 2):
            what = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{self.name} gives {what}; expected one tensor [nodes, out] or [graphs, out]: "
                f"convert the output with wrap(model, head=lambda out, batch: ...)"
            )
        if out.dim() == 1:
            rows = (fields.rows, fields.graph.num_graphs)
            out = out.unsqueeze(-1 if out.numel() in rows else 0)
        return out

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The results of all convolutions in the user's forward, side by side, [N, channels]."""
        fields = self._fields(inputs)
        z = Recorded.of(self.program, fields).z
        h = torch.cat([result.flatten(1) for result in z], 1)
        return Solution.exact(h, fields.graph.num_graphs, len(z))

    def _fields(self, inputs: Inputs) -> Fields:
        inputs = Inputs.of(inputs)
        return Fields.of(inputs, inputs.graph(), inputs.x)

    @torch.no_grad()
    def problem(self, inputs: Inputs) -> LayeredProblem:
        """The convolutions, one node at a time.

        Raises:
            AsynchronyError: The model reads more than a node and its neighbours.
        """
        inputs = Inputs.of(inputs)
        require_finite("x", inputs.x)
        require_finite("edge_attr", inputs.edge_attr)
        return layered(self.program, self._fields(inputs))


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(part, MessagePassing) for part in model.modules())


def _refuse_the_librarys_own(model: nn.Module) -> None:
    """Raise if the model is or contains a model or an implicit layer of this library, which run
    asynchronously without a wrapper."""
    known = (LayeredGNN,) if _convolves(model) else (ConvGNN, ImplicitConv)
    path, own = next(((p, m) for p, m in model.named_modules() if isinstance(m, known)), ("", None))
    if own is None:
        return
    name = type(own).__name__
    where = f"a {name} of hogwild"
    if path:
        where = f"a {type(model).__name__} around {path}, {where}"
    expected = f"the {name} itself, as in hogwild.simulate(model{path and '.'}{path}, data)"
    if isinstance(own, ImplicitConv):
        expected = "a model with a readout, such as hogwild.EnergyGNN, in its place"
    raise ConfigError(
        f"model is {where}, which has its own rules and cannot be wrapped; expected {expected}. "
        f"Replace the modules after the embeddings by the readout of such a model: "
        f"readout=(16, 16) is an MLP with these hidden widths, and pool='mean' predicts for graphs"
    )


def check_model(model: object) -> ConvGNN:
    """The model, or the original of a compiled model; raise unless it is a model of the library."""
    model = uncompiled(model)
    if not isinstance(model, ConvGNN):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild. "
            f"hogwild.LayeredGNN(layers, in_channels, out_channels=...) builds one from PyG's "
            f"layers. hogwild.simulate, robustness and certify take a GNN trained elsewhere as it "
            f"is"
        )
    return model


def runnable(model: object) -> Model:
    """A model that can run asynchronously. Models of the library are returned unchanged, all others
    are wrapped (:func:`hogwild.wrap`). A compiled model is replaced by its original."""
    model = uncompiled(model)
    if isinstance(model, Model):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild, or a trained GNN of "
            f"PyG's convolutions (hogwild.wrap)"
        )
    return WrappedGNN(model)


def _kind(model: object) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
