"""What a forward is called with: the data, row by row, and which argument is which."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import Sequential

from hogwild.errors import ConfigError, HogwildError, InputError
from hogwild.graph.inputs import Inputs
from hogwild.models.locality import StarEdges


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
        return self._with(lambda _, v: moved(v, sign, random))

    def mixed(self, other: Fields, nodes: Tensor) -> Fields:
        """Some nodes [N] with the features that they have in ``other``."""
        return self._with(lambda name, v: chosen(v, other.nodes[name], nodes))

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


def moved(x: Tensor, sign: float, random: torch.Generator) -> Tensor:
    """Floating-point numbers moved one way, by one to two times the largest of them."""
    if not x.is_floating_point():
        return x
    by = 1.0 + torch.rand(x.shape, generator=random, dtype=torch.float64).to(x)
    return x + sign * by * (float(x.abs().max()) or 1.0)


def chosen(own: Tensor, other: Tensor, nodes: Tensor) -> Tensor:
    """Rows of one tensor, and of another one at some nodes [N]."""
    return torch.where(nodes.view(-1, *[1] * (own.dim() - 1)), other, own)
