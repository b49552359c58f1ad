"""The user's forward with its convolutions recorded or replaced, on the whole graph
(:class:`Recorded`) and on stars (:class:`WrappedProblem`): a trained model runs one node at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.graph import Star
from hogwild.models.calls import Call, Fields, convolutions, tapped
from hogwild.models.levels import LayeredProblem
from hogwild.models.locality import AllEdges, StarEdges, normalises, without_normalisation

if TYPE_CHECKING:
    from hogwild.models.wrapped import WrappedGNN


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
