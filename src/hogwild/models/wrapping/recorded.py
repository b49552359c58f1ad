"""The user's forward on the whole graph, with the inputs and result of every convolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.models.wrapping.fields import Fields
from hogwild.models.wrapping.tap import Call, convolutions, tapped

if TYPE_CHECKING:
    from hogwild.models.wrapping.wrapped import WrappedGNN


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

        ask = wrapped.door.ask if given is None else wrapped.door.call
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
