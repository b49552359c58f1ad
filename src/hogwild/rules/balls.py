r"""The rule ``"balls"``: a node gathers what its neighbours know, and solves the ball around itself.

Every node keeps a *table*. An entry holds what the node last heard of one node v within
``radius`` + c hops: a record (the features of v and the edges into v), the embedding of v, and the
embedding's version. At its turn node i takes the newest entries from its neighbours' packets and
solves for all nodes of its *ball* at once:

.. math:: z = \arg\min_{h_A} E(h_A, h_B) \quad\text{or}\quad z = F_A(z, h_B), \qquad
          h_i \leftarrow z_i.

The ball A are the nodes within ``radius`` hops whose rows (:math:`\nabla_u E` or :math:`F_u`) node
i can compute exactly from its table. The *rim* B are the others, held at their embeddings as last
heard. The row of a node depends on nodes c hops away: two for an energy (the energies of its
neighbours), one for a map. A node that cannot compute its own row yet keeps its embedding and
passes on what it knows.

**What is proved** (documentation, "Asynchrony"). Once the tables hold the whole graph, the answer
is exact: after one light cone if the radius reaches every node. With a smaller radius the error of
node i after a solve is at most that of its rim times :math:`\rho^m`, :math:`m = \lceil (r + 1) / c
\rceil`, in a weighted maximum norm, wherever the Hessian is scaled diagonally dominant with factor
ρ < 1, or the map contracts with ρ. Elsewhere convergence is measured.

**What is sent.** A packet has a number, and says which number of the receiver's own packets its
sender has. It holds all entries that have changed since the packet that the receiver has confirmed
so, except those that came from the receiver: an identity, a version and k numbers each, and the
record if it is new. Lost packets therefore cost nothing but time. The simulator hands on whole
tables, which hold the same and what the receiver has already, and counts what is sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.problems.base import Objective, Problem
from hogwild.rules.held import HeldSolver, Piece
from hogwild.rules.surroundings import surroundings
from hogwild_node.rules.base import Kept, Rule

RADIUS = 3
"""The usual radius."""
HEAD = 2
"""Numbers at the head of a packet: its own, and that of the newest packet from the receiver."""
MARK = 2
"""Numbers of an entry beside the embedding: whose it is, and its version."""


class BallsRule(Rule):
    """Solves the ball around each node for its rim as last heard.

    Args:
        problem: The problem, without gradients.
        radius: Hops within which a node solves for others, too.
    """

    letter = counted = 1  # the number of the newest packet from that neighbour
    follows = False

    def __init__(self, problem: Problem, radius: int) -> None:
        graph = problem.graph
        graph.require_reverse_links(
            "rule='balls' confirms what was heard, so every neighbour needs a way back"
        )
        self.problem, self.radius, self.graph = problem, radius, graph
        self.everyone, self.channels = graph.everyone, problem.channels
        self.couples = 2 if isinstance(problem, Objective) else 1
        self.around = surroundings(graph, radius + self.couples)
        self.counters = 1 + self.around.width  # the number of a packet, and versions
        self.solver = HeldSolver(problem)
        own, edge = problem.described
        hops = self.around.hops
        degree = graph.in_degree[self.around.node.clamp_min(0)]
        # What i sends of v reaches nodes one hop farther: the edges into v only if they need it.
        listed = (hops <= self.around.reach - 2).long() * degree * (1 + edge)
        self.record = torch.where(hops < self.around.reach, own + 1 + listed, 0)  # [W, N]
        self.passed = hops < self.around.reach  # [W, N] which entries a node passes on

    # -- memory --------------------------------------------------------------------------------

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor:
        around, (r, k, n) = self.around, h.shape
        w = around.width
        self.version = torch.full((w, n), -1, device=h.device)  # −1: never heard of
        self.value = h.new_zeros(r, k, w, n)
        self.free = torch.zeros(w, n, dtype=torch.bool, device=h.device)  # solved for last time
        self.number = torch.zeros(n, dtype=torch.long, device=h.device)  # of the last packet
        self.changed = torch.zeros_like(self.version)  # number of the packet with the last change
        self.learned = torch.zeros_like(self.version)  # number of the packet with the record
        self.origin = torch.full_like(self.version, -1)  # edge on which an entry came
        self.got = torch.zeros(self.graph.num_edges, dtype=torch.long, device=h.device)
        self.size = self.number.to(h.dtype)  # of the last packet, mean over neighbours
        self.version[0], self.value[:, :, 0] = 0, h
        return self._confirm(self.got, h)

    def forget(self, nodes: Tensor) -> None:
        self.version[:, nodes], self.free[:, nodes] = -1, False
        self.version[0, nodes], self.number[nodes] = 0, 0
        self.changed[:, nodes] = self.learned[:, nodes] = 0
        self.origin[:, nodes] = -1
        self.got[torch.isin(self.graph.dst, nodes)] = 0

    def keep(self, before: BallsRule, kept: Kept) -> None:
        raise NotImplementedError("tables do not follow a change of the graph")

    # -- packets -------------------------------------------------------------------------------

    @property
    def said(self) -> int:
        return self.counters + self.around.width * self.channels

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        version, number = at.at_nodes(self.version), at.at_nodes(self.number)
        value = at.at_nodes(self.value).flatten(1, 2)  # [R, k·W, A]
        counts = torch.cat([number[None], version]).to(h.dtype)
        return torch.cat([counts.expand(h.size(0), *counts.shape), value], 1)

    def numbers(self, at: Star) -> Tensor:
        return at.at_nodes(self.size)

    @staticmethod
    def _confirm(got: Tensor, h: Tensor) -> Tensor:
        """Letters [R, 1, E'] that confirm packets."""
        return got.to(h.dtype).expand(h.size(0), 1, -1)

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return self._confirm(at.at_edges(self.got), h)

    # -- a turn --------------------------------------------------------------------------------

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None, "confirmations of the neighbours"
        nodes = torch.arange(at.size, device=h.device) if at.nodes is None else at.nodes
        confirmed = mail[0, 0].round().long()  # [E'] newest packet of ours that the neighbour has
        anew = self._number(nodes, confirmed, at)
        newer, again = self._hear(inbox, nodes, at)
        fresh = newer & (self.version[:, nodes] >= 0) & ~self.free[:, nodes]
        wants = fresh.any(0) | again | ~self.free[0, nodes]
        found = h.clone()
        if bool(wants.any()):
            some = wants.nonzero()[:, 0]
            found[..., some] = self._solve(nodes[some], h[..., some])
        moved = (found != h).any(0).any(0) | anew
        self.value[:, :, 0, nodes] = found
        self.version[0, nodes] += moved.long()
        self.changed[0, nodes] = torch.where(moved, self.number[nodes], self.changed[0, nodes])
        edges = at.at_edges(torch.arange(self.graph.num_edges, device=h.device))
        self.size[nodes] = self._sizes(nodes, edges, confirmed, at)
        return found, self._confirm(self.got[edges], h)

    def _number(self, nodes: Tensor, confirmed: Tensor, at: Star) -> Tensor:
        """Number the packets that these nodes are about to send. Returns which nodes, [A], are
        confirmed packets that they do not remember: they have lost their memory, and begin anew
        above all numbers that they used."""
        known = self.number[nodes]
        most = known.scatter_reduce(0, at.slot, confirmed, "amax")
        anew = most > known
        self.number[nodes] = most + 1
        first = (known == 0) | anew
        mark = torch.where(first & (self.version[:, nodes] >= 0), most + 1, 0)
        self.changed[:, nodes] = torch.maximum(self.changed[:, nodes], mark)
        self.learned[:, nodes] = torch.maximum(self.learned[:, nodes], mark)
        return anew

    def _hear(self, inbox: Tensor, nodes: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        """Take over what is newer in the neighbours' tables. Returns which entries were, [W, A],
        and which nodes have new records, [A]."""
        around, w, k = self.around, self.around.width, self.channels
        edges = at.at_edges(torch.arange(self.graph.num_edges, device=nodes.device))
        if not edges.numel():
            none = torch.zeros(w, nodes.numel(), dtype=torch.bool, device=nodes.device)
            return none, none.any(0)
        count = inbox[0, : self.counters].round().long()
        self.got[edges] = torch.maximum(self.got[edges], count[0])
        place = around.heard[:, edges]  # [W, E'] the slot at the sender, or W
        told = torch.cat([count[1:], count.new_full((1, edges.numel()), -1)]).gather(0, place)
        own = self.version[:, nodes]
        best = own.scatter_reduce(1, at.slot.expand(w, -1), told, "amax")
        # A node that hears a newer word of itself than it remembers counts on from there.
        self.version[0, nodes] = best[0]
        newer = best > own
        newer[0] = False
        # One of the edges that brought the newest version.
        index = torch.arange(edges.numel(), device=nodes.device).expand(w, -1)
        wins = (told == best[:, at.slot]) & newer[:, at.slot]
        edge = torch.full_like(own, -1).scatter_reduce(
            1, at.slot.expand(w, -1), torch.where(wins, index, -1), "amax"
        )
        slot, node = newer.nonzero(as_tuple=True)
        by = edge[slot, node]
        values = inbox[:, self.counters :].unflatten(1, (k, w))
        self.value[:, :, slot, nodes[node]] = values[:, :, place[slot, by], by]
        self.version[slot, nodes[node]] = best[slot, node]
        learns = newer & (own < 0)
        number = self.number[nodes].expand(w, -1)
        here = (slot, nodes[node])
        self.changed[here] = number[slot, node]
        self.origin[here] = edges[by]
        self.learned[:, nodes] = torch.where(learns, number, self.learned[:, nodes])
        return newer, learns.any(0)

    def _sizes(self, nodes: Tensor, edges: Tensor, confirmed: Tensor, at: Star) -> Tensor:
        """Numbers in the packet of each node, mean over its neighbours, [A]."""
        here = nodes[at.slot]
        # Not what came from that neighbour, and not the neighbour's own entry.
        wanted = self.passed[:, here] & (self.version[:, here] >= 0)
        wanted &= (self.origin[:, here] != edges) & (self.around.node[:, here] != self.graph.src[edges])
        entry = wanted & (self.changed[:, here] > confirmed)
        record = wanted & (self.learned[:, here] > confirmed)
        size = (MARK + self.channels) * entry.sum(0) + (record * self.record[:, here]).sum(0)
        proper = (self.graph.src[edges] != here).to(self.size.dtype)
        total = at.collect(proper * (HEAD + size).to(self.size.dtype))
        return total / at.collect(proper).clamp_min(1.0)

    # -- a ball --------------------------------------------------------------------------------

    def _solve(self, nodes: Tensor, h: Tensor) -> Tensor:
        """The embeddings [R, k, B] of these nodes after a solve of their balls; as they were where
        a node cannot compute its own row."""
        free, piece, slots, places = self._pieces(nodes)
        self.free[:, nodes] = free
        able = free[0]
        if not bool(able.any()):
            return h
        ball, slot = slots
        start = self.value[:, :, slot, nodes[ball]]
        found = self.solver.solve(piece, start)[..., places]
        good = able & found.isfinite().all(0).all(0)
        return torch.where(good, found, h)

    def _pieces(self, nodes: Tensor) -> tuple[Tensor, Piece, tuple[Tensor, Tensor], Tensor]:
        """The balls of these nodes, as far as they know them.

        Returns:
            Which slots are free, [W, B]; the balls as a batch of graphs; for each of its nodes the
            ball and the slot; and where the node in slot 0 of each ball is.
        """
        around, known = self.around, self.version[:, nodes] >= 0
        begin = around.begin[nodes]
        count = around.begin[nodes + 1] - begin
        ball = torch.repeat_interleave(count)
        skip = begin - (count.cumsum(0) - count)
        at = skip[ball] + torch.arange(ball.numel(), device=nodes.device)
        src, dst, edge = around.src[at], around.dst[at], around.edge[at]
        # A node's own energy is known with all who speak to it; its row, with its neighbours'.
        whole = known & (around.hops[:, nodes] < around.reach)
        whole = _without(whole, dst[~known[src, ball]], ball[~known[src, ball]])
        free = whole & (around.hops[:, nodes] <= self.radius)
        if self.couples == 2:
            partly = ~whole[src, ball]
            free = _without(free, dst[partly], ball[partly])
        keep = whole[dst, ball]
        src, dst, edge, ball = (x[keep] for x in (src, dst, edge, ball))
        used = free.clone()
        used[0] = True
        used[src, ball] = used[dst, ball] = True
        which, slot = used.T.nonzero(as_tuple=True)  # sorted by ball
        local = torch.full_like(self.version[:, nodes], -1)
        local[slot, which] = torch.arange(which.numel(), device=nodes.device)
        graph = Graph(local[src, ball], local[dst, ball], which, which.numel(), nodes.numel())
        copies = around.node[slot, nodes[which]]
        piece = Piece(graph, copies, edge, free[slot, which])
        return free, piece, (which, slot), local[0]


def _without(mask: Tensor, slot: Tensor, ball: Tensor) -> Tensor:
    """The mask [W, B] without these places."""
    out = mask.clone()
    out[slot, ball] = False
    return out
