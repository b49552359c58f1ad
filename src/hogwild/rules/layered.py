r"""Explicit models: a node applies its next layer to whatever it last heard, and stops after L.

.. math:: h_i \leftarrow f^{(t_i)}_i\bigl(h_i, \{h_j(\tau^i_j) : j \in N(i)\}\bigr), \qquad
          t_i \leftarrow t_i + 1 \quad \text{while } t_i < L

Nodes count their own updates and nobody else's: at its layer 2 a node may read a neighbour's value
of layer 0 or 4, which is why the answer depends on the schedule.

:class:`WaitingRule` is the remedy a sceptic suggests: packets carry the values of all layers
finished so far, and a node waits until every neighbour has delivered the one it needs. The answer
is then the synchronous one, at the pace of the slowest; and since a layer is sent once, a message
that is lost is missing for ever.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star
from hogwild.models.layered import LayeredProblem
from hogwild.rules.base import Rule, put


class LayeredRule(Rule):
    """One layer an update, never waiting."""

    ends = True

    def __init__(self, problem: LayeredProblem) -> None:
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels
        self.depth = problem.depth

    def begin(self, h: Tensor) -> None:
        self.layer = torch.zeros(self.graph.num_nodes, dtype=torch.long, device=h.device)

    def forget(self, nodes: Tensor) -> None:
        self.layer[nodes] = 0

    def finished(self, nodes: Tensor) -> Tensor:
        return self.layer[nodes] >= self.depth

    def _apply(self, h: Tensor, inbox: Tensor, at: Star, ready: Tensor | None = None) -> Tensor:
        """The next layer of the ``ready`` nodes (all by default)."""
        layer = at.at_nodes(self.layer)
        out = h
        for index in range(self.depth):
            some = layer == index if ready is None else (layer == index) & ready
            if bool(some.any()):
                part, keep = at.part(some)
                new = self.problem.update(index, h[..., some], inbox[..., keep], part)
                out = out.clone() if out is h else out
                out[..., some] = new
        put(self.layer, at, layer + 1 if ready is None else layer + ready)
        return out

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        return self._apply(h, inbox, at), None


class WaitingRule(LayeredRule):
    """One layer an update, once every neighbour has delivered the layer needed.

    A packet is [tag, value of layer 0, …, value of layer L], filled up to the tag; ``heard`` is the
    largest tag each edge has delivered, ``missing`` the first layer that was lost on it (L + 1:
    none).
    """

    def begin(self, h: Tensor) -> None:
        super().begin(h)
        r, k, n = h.shape
        self.values = h.new_zeros(r, (self.depth + 1) * k, n)
        self.values[:, :k] = h
        self.start = h.clone()
        self.missing = torch.full(
            (self.graph.num_edges,), self.depth + 1, dtype=torch.long, device=h.device
        )
        self.heard = torch.zeros_like(self.missing)

    def forget(self, nodes: Tensor) -> None:
        super().forget(nodes)
        self.values[..., nodes] = 0.0
        self.values[:, : self.channels, nodes] = self.start[..., nodes]

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        tag = at.at_nodes(self.layer).to(h.dtype).expand(h.size(0), 1, -1)
        return torch.cat([tag, at.at_nodes(self.values)], 1)

    def numbers(self, at: Star) -> int:
        return 1 + self.channels  # a layer's value is sent once, with its tag

    def lose(self, edges: Tensor, packets: Tensor) -> None:
        """Whatever these packets brought beyond what was heard before is gone."""
        new = packets[0, 0].to(torch.long) > self.heard[edges]
        first = self.heard[edges] + 1
        missing = torch.minimum(self.missing[edges], first)
        self.missing[edges] = torch.where(new, missing, self.missing[edges])

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        k = self.channels
        edges = torch.arange(at.slot.numel(), device=h.device) if at.edges is None else at.edges
        tag = torch.minimum(inbox[0, 0].to(torch.long), self.missing[edges] - 1)
        self.heard[edges] = torch.maximum(self.heard[edges], tag)
        layer = at.at_nodes(self.layer)
        # By the packet at hand: one that was overtaken, or whose sender began anew, holds less
        # than was heard before.
        late = (tag < layer[at.slot]).to(torch.long)
        late = torch.where(self.graph.src[edges] == self.graph.dst[edges], 0, late)
        ready = torch.zeros_like(layer).scatter_add(0, at.slot, late) == 0
        ready = ready & (layer < self.depth)  # a replayed schedule may go on for longer
        self.waited = ~ready
        # Of each packet the value of the layer its receiver is at.
        index = layer[at.slot].clamp_max(self.depth - 1) * k
        rows = 1 + index + torch.arange(k, device=h.device).unsqueeze(1)  # [k, E']
        needed = inbox.gather(1, rows.expand(inbox.size(0), -1, -1))
        new = self._apply(h, needed, at, ready)
        values = at.at_nodes(self.values).clone()
        rows = (at.at_nodes(self.layer) * k) + torch.arange(k, device=h.device).unsqueeze(1)
        values.scatter_(1, rows.expand(values.size(0), -1, -1), new)
        put(self.values, at, values)
        return new, None
