"""The user's forward on stars: a trained model runs one node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hogwild.graph import Star
from hogwild.models.levels import LayeredProblem
from hogwild.models.locality import AllEdges, StarEdges, normalises, without_normalisation
from hogwild.models.wrapping.fields import Fields
from hogwild.models.wrapping.recorded import Differs, Recorded, flat
from hogwild.models.wrapping.tap import Call, tapped

if TYPE_CHECKING:
    from hogwild.models.wrapping.wrapped import WrappedGNN


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
                self.wrapped.door.call(self.wrapped.model, drawn)
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
