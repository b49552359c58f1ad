r"""Explicit models that wait, with acknowledgement and resending: exact under loss.

A node applies layer ℓ once every neighbour's value of layer ℓ has come, as under waiting. A packet
from i to j carries

.. math:: \bigl(\text{tag}_i,\ \text{ack}_{ij},\ v_i^\ell
          \text{ for } a_{ij} < \ell \le \text{tag}_i\bigr),

:math:`\text{tag}_i` being the last layer whose value i has, :math:`\text{ack}_{ij}` the last layer
up to which i holds all of j's values, and :math:`a_{ij}` the newest acknowledgement i has from j. A
node sends at each of its turns until all it has is acknowledged, and whenever values came that it
has not acknowledged; then it is silent. An acknowledgement travels against the edge, so every link
needs its reverse.

A node that comes back from a crash without its memory acknowledges nothing, and its neighbours
start again with layer 0: the newest acknowledgement counts, not the largest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star
from hogwild.models.layers import LayeredProblem
from hogwild.rules.layered import ValueByValue


class ResendingRule(ValueByValue):
    """One layer an update, once every neighbour's value has come; sent until acknowledged.

    To everybody goes [tag, number of the packet, values of all layers], and to each neighbour a
    letter [ack, first layer in this packet]. Of the values a receiver uses those from the letter's
    first layer to the tag, and no others. The number of a packet serves the simulation alone: a
    packet that was lost must not be read when the receiver looks again.
    """

    letter = 2

    def __init__(self, problem: LayeredProblem) -> None:
        super().__init__(problem)
        graph = problem.graph
        graph.require_reverse_links(
            "With rule='resending' a node acknowledges every value; rule='caching' does without"
        )
        self.own = graph.src == graph.dst  # nothing is sent along a loop

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor:
        super().begin(h, inbox)
        zeros = torch.zeros(self.graph.num_edges, dtype=torch.long, device=h.device)
        self.number = torch.zeros(self.graph.num_nodes, dtype=torch.long, device=h.device)
        # What the receiver of each edge holds of the sender's values, up to which layer, from
        # packets of which number; which number was lost; whether it owes an acknowledgement.
        self.held = self.values[..., self.graph.src]
        self.heard, self.seen, self.lost = zeros.clone(), zeros.clone(), zeros - 1
        self.owes = torch.zeros_like(self.own)
        self.acked = zeros.clone()  # what the sender of each edge has of the receiver's values
        return self._letters(torch.arange(zeros.numel(), device=h.device), h)

    def forget(self, nodes: Tensor) -> None:
        super().forget(nodes)
        edges = self.graph.star(nodes).edges
        assert edges is not None
        self.heard[edges] = -1
        self.acked[edges] = -1
        self.owes[edges] = True

    def _letters(self, edges: Tensor, like: Tensor) -> Tensor:
        letters = torch.stack([self.heard[edges], self.acked[edges] + 1]).to(like.dtype)
        return letters.expand(like.size(0), -1, -1)

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        head = torch.stack([self._tag(at), at.at_nodes(self.number)]).to(h.dtype)
        return torch.cat([head.expand(h.size(0), -1, -1), at.at_nodes(self.values)], 1)

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return self._letters(self._edges(at), h)

    def numbers(self, at: Star) -> Tensor:
        """Mean over the neighbours: tag and acknowledgement, and the values each of them lacks."""
        edges, tag = self._edges(at), self._tag(at)[at.slot]
        lacks = self.offset[tag + 1] - self.offset[torch.minimum(self.acked[edges], tag) + 1]
        sent = (~self.own[edges]).double()
        zeros = torch.zeros(at.size, dtype=sent.dtype, device=sent.device)
        total, count = (zeros.scatter_add(0, at.slot, x) for x in (sent * (2 + lacks), sent))
        return total / count.clamp_min(1.0)

    def lose(self, edges: Tensor, packets: Tensor) -> None:
        number = packets[0, 1].round().to(torch.long)
        self.lost[edges] = torch.maximum(self.lost[edges], number)

    def _edges(self, at: Star) -> Tensor:
        device = at.slot.device
        return torch.arange(at.slot.numel(), device=device) if at.edges is None else at.edges

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        assert mail is not None
        edges = self._edges(at)
        self._receive(edges, inbox, mail)
        layer, own = at.at_nodes(self.layer), self.own[edges]
        late = ~own & (self.heard[edges] < layer[at.slot])
        ready = self._none(late, at) & (layer < self.depth)
        h = self._advance(h, self.held[..., edges], at, ready)
        owed = self.owes[edges] | (self.acked[edges] < self._tag(at)[at.slot])
        owed = ~own & (owed | (self.heard[edges] < 0))  # who holds nothing asks until it is heard
        self.waited, self.silent = ~ready, self._none(owed, at)
        self.owes[edges] &= self.silent[at.slot]
        if at.nodes is None:
            self.number += ~self.silent
        else:
            self.number[at.nodes] += ~self.silent
        return h, self._letters(edges, h)

    def _receive(self, edges: Tensor, inbox: Tensor, mail: Tensor) -> None:
        tag, number = inbox[0, :2].round().to(torch.long)
        ack, first = mail[0].round().to(torch.long)
        arrived = (number > self.lost[edges]) & ~self.own[edges]
        self.acked[edges] = torch.where(arrived, ack, self.acked[edges])
        self.owes[edges] |= arrived & (number != self.seen[edges]) & (first <= tag)
        self.seen[edges] = torch.where(arrived, number, self.seen[edges])
        # Values that leave a gap behind what is held are of no use yet.
        useful = arrived & (first <= self.heard[edges] + 1) & (tag > self.heard[edges])
        rows = self.rows.unsqueeze(1)
        new = useful & (first <= rows) & (rows <= tag)  # [rows, E']
        self.held[..., edges] = torch.where(new, inbox[:, 2:], self.held[..., edges])
        self.heard[edges] = torch.where(useful, tag, self.heard[edges])

    @staticmethod
    def _none(marked: Tensor, at: Star) -> Tensor:
        """Which nodes have no edge that is marked, [A]."""
        count = torch.zeros(at.size, dtype=torch.long, device=marked.device)
        return count.scatter_add_(0, at.slot, marked.to(torch.long)) == 0
