r"""The rule ``"balls"``: word of all nodes floods, and every node solves the ball that it knows.

Every node keeps a *table* of the nodes within ``radius`` + c hops. An entry holds the *profile* of
a node v: its features, and the edges into v with theirs. At its turn node i takes over what its
neighbours' packets tell, solves for all nodes of its *ball* A at once, and keeps its own row:

.. math:: z = \arg\min_{h_A} E(h_A, h_B) \quad\text{or}\quad z = F_A(z, h_B), \qquad
          h_i \leftarrow z_i.

The ball are the nodes within ``radius`` hops. The *rim* B are those up to c hops farther, on which
the rows of the ball depend: c = 2 for an energy (a node also answers to the energies of its
neighbours), 1 for a map. Nodes of the rim are held at their embeddings as last heard, so tables
also hold embeddings with their versions. Nodes of which i has not heard yet do not exist for it: i
solves the part of the graph that it knows.

With ``radius=None`` the ball is the whole graph. Then there is no rim, and only profiles are sent.

**What is proved** (documentation, "Asynchrony"). If the radius reaches every node, the answer of a
node is exact once it has heard of all nodes, with bounds S and D after hops · (S + D) ticks. With a
smaller radius, once the tables are full, the error of a node after a solve is at most
:math:`\rho^m` times that of its rim, :math:`m = \lceil (\text{radius} + 1) / c \rceil`, in a
weighted maximum norm, if the Hessian is scaled diagonally dominant with factor ρ < 1 or the map
contracts with ρ; nodes then converge under any delays. For other energies convergence with a
smaller radius is observed.

**What is sent** is in :mod:`hogwild.rules.tables`. Real agents run the same rule with tables of
their own (:mod:`hogwild_node.balls`): they know no slots, only names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.graph import Graph, Star
from hogwild.problems.base import Objective, Problem
from hogwild.rules.held import HeldSolver, Piece
from hogwild.rules.surroundings import Surroundings, surroundings, widest_reach
from hogwild.rules.tables import Tables
from hogwild_node.balls import LARGEST
from hogwild_node.rules.base import Kept, Rule


def couples(problem: Problem) -> int:
    """c, the hops between nodes that a row of the Hessian, or of the map, couples."""
    return 2 if isinstance(problem, Objective) else 1


def usual_radius(problem: Problem) -> int | None:
    """The radius where none is given: the whole graph (``None``) if no table then has more than
    ``LARGEST`` entries; otherwise the largest radius, and at least 1, with which none has more."""
    reach = widest_reach(problem.graph, LARGEST)
    return None if reach is None else max(reach - couples(problem), 1)


class BallsRule(Rule):
    """Solves the ball around each node.

    Args:
        problem: The problem, without gradients.
        radius: Hops within which a node solves for others, too; ``None``: for the whole graph.
    """

    follows = False
    solved_for: Tensor  # [N]

    def __init__(self, problem: Problem, radius: int | None = None) -> None:
        graph = problem.graph
        graph.require_reverse_links(
            "With rule='balls' every neighbour confirms what it has heard, and needs a way back"
        )
        self.problem, self.graph = problem, graph
        self.everyone, self.channels = graph.everyone, problem.channels
        self.couples, self.bounded = couples(problem), radius is not None
        self.radius = graph.num_nodes if radius is None else radius
        self.around: Surroundings = surroundings(graph, self.radius + self.couples)
        self.solver = HeldSolver(problem)
        self.tables = Tables(graph, self.around, problem.described, self.channels, self.bounded)
        self.counters, self.letter = self.tables.counters, self.tables.letter
        self.counted = self.letter
        # Nobody is farther than the radius: no one has this node in the rim.
        self.inner = self.around.eccentricity <= self.radius

    # -- memory --------------------------------------------------------------------------------

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor:
        self.tables.begin(h)
        self.begun = torch.zeros(h.size(-1), dtype=torch.bool, device=h.device)
        self.solved_for = torch.zeros(h.size(-1), dtype=torch.long, device=h.device)
        return self.tables.letters(h, self.everyone)

    def forget(self, nodes: Tensor) -> None:
        self.tables.forget(nodes)
        self.begun[nodes] = False

    def keep(self, before: BallsRule, kept: Kept) -> None:
        raise ConfigError("tables do not follow a change of the graph: nodes begin anew")

    # -- packets -------------------------------------------------------------------------------

    @property
    def said(self) -> int:
        return self.tables.said

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        return self.tables.packet(h, at)

    def numbers(self, at: Star) -> Tensor:
        return at.at_nodes(self.tables.size)

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return self.tables.letters(h, at)

    # -- a turn --------------------------------------------------------------------------------

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None, "what the neighbours' packets hold"
        nodes = torch.arange(at.size, device=h.device) if at.nodes is None else at.nodes
        tables = self.tables
        learns, hears = tables.hear(inbox, mail, at)
        # Embeddings of nodes inside the ball do not matter: the solve finds its own.
        rim = self.around.hops[:, nodes] > self.radius
        wants = learns.any(0) | (hears & rim).any(0) | ~self.begun[nodes]
        found = h.clone()
        if bool(wants.any()):
            some = wants.nonzero()[:, 0]
            found[..., some] = self._solve(nodes[some], h[..., some])
            self.begun[nodes[some]] = True
        if self.bounded:
            full = tables.full(nodes)
            tables.speak(nodes, found, full & ~self.inner[nodes])
        tables.send(nodes, at)
        return found, tables.letters(h, at)

    # -- a ball --------------------------------------------------------------------------------

    def _solve(self, nodes: Tensor, h: Tensor) -> Tensor:
        """The embeddings [R, k, B] of these nodes after a solve of their balls."""
        piece, (ball, slot), first = self._pieces(nodes)
        self.solved_for[nodes] += piece.graph.sum(piece.free.long())
        start = self._start(nodes, h, ball, slot)
        found, good = self.solver.solve(piece, start)
        return torch.where(good, found[..., first], h)

    def _start(self, nodes: Tensor, h: Tensor, ball: Tensor, slot: Tensor) -> Tensor:
        """Where a solve begins, [R, k, n], for the nodes in these slots of these balls."""
        start = h[..., ball]  # neighbours are alike as a rule
        if self.bounded:
            heard = self.tables.version[slot, nodes[ball]] > 0
            start = torch.where(heard, self.tables.value[:, :, slot, nodes[ball]], start)
        return start

    def _pieces(self, nodes: Tensor) -> tuple[Piece, tuple[Tensor, Tensor], Tensor]:
        """The balls of these nodes, as far as they know them.

        Returns:
            The balls as a batch of graphs; for each of its nodes the ball and the slot; and where
            the node in slot 0 of each ball is.
        """
        around, known = self.around, self.tables.known[:, nodes]
        free = known & (around.hops[:, nodes] <= self.radius)
        used = free
        if self.bounded:  # a node of the rim counts from its first embedding on
            used = free | (known & (self.tables.version[:, nodes] > 0))
        begin = around.begin[nodes]
        count = around.begin[nodes + 1] - begin
        ball = torch.repeat_interleave(count)
        skip = begin - (count.cumsum(0) - count)
        at = skip[ball] + torch.arange(ball.numel(), device=nodes.device)
        src, dst, edge = around.src[at], around.dst[at], around.edge[at]
        keep = used[src, ball] & used[dst, ball]
        src, dst, edge, ball = (x[keep] for x in (src, dst, edge, ball))
        which, slot = used.T.nonzero(as_tuple=True)  # sorted by ball
        local = torch.full_like(around.node[:, nodes], -1)
        local[slot, which] = torch.arange(which.numel(), device=nodes.device)
        graph = Graph(local[src, ball], local[dst, ball], which, which.numel(), nodes.numel())
        piece = Piece(graph, around.node[slot, nodes[which]], edge, free[slot, which])
        return piece, (which, slot), local[0]
