r"""Explicit models, exactly, without a clock: a node keeps its neighbours' newest value of *every*
layer, recomputes all its layers at each update, and sends them all.

.. math::
    z_i^\ell \leftarrow f^\ell_i\bigl(v_i^\ell, \{v_j^\ell(\tau^i_j) : j \in N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1, \qquad
    \text{packet: } (v_i^0, \dots, v_i^{L-1}).

Layer 0's values are functions of a node's own features and always right. If all values of layer ℓ
are right from some time on, then so is every packet sent since, every update made from such
packets, and with it every value of layer ℓ + 1. By induction the answer is the synchronous one as
soon as word has crossed L hops, in whatever order, with whatever loss and delay; a lost packet
costs time and nothing else, because the next one says it all again. The price is the packet: the
widths of all layers instead of one. The proof is in the documentation ("Asynchrony").

A node cannot know that it has its answer; it goes on for ever, as with energies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star
from hogwild.models.layers import LayeredProblem
from hogwild_node.rules.base import Rule


class CachingRule(Rule):
    """All layers at every update, from the neighbours' newest values of all layers."""

    def __init__(self, problem: LayeredProblem) -> None:
        self.problem, self.channels = problem, problem.channels
        self.everyone = problem.graph.everyone
        self.width = sum(problem.widths[:-1])

    def begin(self, h: Tensor, inbox: Tensor) -> None:
        first = self.problem.value(0, h, self.everyone)
        rest = h.new_zeros(h.size(0), self.width - first.size(1), h.size(-1))
        self.values = torch.cat([first, rest], 1)

    def forget(self, nodes: Tensor) -> None:
        self.values[:, self.problem.widths[0] :, nodes] = 0.0  # it can still see its own features

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        h, values = self.problem.recompute(inbox, at)
        self.values = at.put(self.values, values)
        return h, None

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        return at.at_nodes(self.values)

    def numbers(self, at: Star) -> int:
        return self.width
