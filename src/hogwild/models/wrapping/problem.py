"""The user's forward on stars: the convolutions of a trained model, one node at a time."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from hogwild.graph import Star
from hogwild.models.layers import LayeredProblem
from hogwild.models.locality import AllEdges, StarEdges
from hogwild.models.wrapping.fields import Fields
from hogwild.models.wrapping.recorded import Differs, Recorded
from hogwild.models.wrapping.tap import Call, tapped

if TYPE_CHECKING:
    from hogwild.models.wrapping.wrapped import WrappedGNN


class _Enough(BaseException):
    """The rest of the forward is not needed."""


@dataclass
class Pass:
    """What the calls of one forward on stars were given and gave, each [A, width]."""

    values: list[Tensor]
    results: list[Tensor]


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
        return self.run(at, known[:layer], {}, stop=layer).values[-1].mT.unsqueeze(0)

    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        known = list(h[0].mT.split(self.recorded.results, 1))
        known[layer] = self.run(at, known[:layer], {layer: inbox[0].mT}).results[-1]
        return torch.cat(known, 1).mT.unsqueeze(0)

    def recompute(self, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        heard = dict(enumerate(inbox[0].mT.split(self.widths[:-1], 1)))
        found = self.run(at, (), heard)
        return (
            torch.cat(found.results, 1).mT.unsqueeze(0),
            torch.cat(found.values, 1).mT.unsqueeze(0),
        )

    def run(
        self,
        at: Star,
        known: Sequence[Tensor],
        heard: Mapping[int, Tensor],
        stop: int | None = None,
        fields: Fields | None = None,
    ) -> Pass:
        """The user's forward on stars. The first calls give what is ``known`` [A, width] of their
        results; the next are made, with what was ``heard`` [E', width] of each; the forward ends
        before the call ``stop``, or after the last call that something was heard of."""
        star = StarEdges.of(self.edges, at, self.surrounded)
        drawn = (self.fields if fields is None else fields).at(star)
        made, last = Pass([], []), max(heard, default=-1)

        def take(call: Call) -> Tensor:
            self.recorded.require(call)
            if call.index < len(known):
                return fill(known[call.index], drawn.rows, self.recorded.shapes[call.index])
            values = call.values(drawn.rows)
            made.values.append(torch.cat([flat(v[: at.size]) for v in values], 1))
            if call.index == stop:
                raise _Enough
            parts = heard[call.index].split([v[0].numel() for v in values], 1)
            instead = {
                id(v): star.values(flat(v[: at.size]), part.to(v.dtype)).view(v.shape)
                for v, part in zip(values, parts, strict=True)
            }
            out = cast("Tensor", self._convolve(call, instead, star, drawn))
            made.results.append(flat(out[: at.size]))
            if call.index == last:
                raise _Enough
            return out

        try:
            with tapped(self.wrapped.model, take):
                self.wrapped.door.call(self.wrapped.model, drawn)
        except _Enough:
            return made
        raise Differs(f"it makes fewer than {self.depth} calls of convolutions")

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


def flat(x: Tensor) -> Tensor:
    """[n, …] as [n, width]."""
    return x.reshape(x.size(0), -1)


def fill(x: Tensor, rows: int, shape: torch.Size) -> Tensor:
    """Results [A, width] of some nodes as the first of so many rows."""
    out = x.new_zeros(rows, x.size(1))
    out[: x.size(0)] = x
    return out.reshape(rows, *shape)
