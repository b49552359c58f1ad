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

**Features that change.** A node whose features change tells a new *edition* of its profile. The
others solve with the old edition until they hear of the new one (:class:`Told`). If nodes or edges
come or go, tables have another shape, and all nodes begin anew. (Real agents keep their tables.)

**What is sent** is in :mod:`hogwild.rules.tables`. Real agents run the same rule with tables of
their own (:mod:`hogwild_node.balls`): they know no slots, only names.

Many small pieces of a problem, in which some nodes are held, are solved at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.engines import engine_for
from hogwild.engines.cpu import CpuEngine
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules.base import SOLVE, About
from hogwild.rules.tables import Surroundings, Tables, surroundings, widest_reach
from hogwild.solvers.anderson import Picard
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton
from hogwild.solvers.semismooth import SemismoothNewton
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


class Told:
    """The features that nodes tell of themselves, in all editions: tables or packets may still
    hold any of them.

    Args:
        inputs: The graph and the features of now, of one run: n nodes and e edges.
        pose: Gives the problem of such inputs.
    """

    def __init__(self, inputs: Inputs, pose: Callable[[Inputs], Problem]) -> None:
        self.inputs, self.pose = inputs, pose
        self.editions = {1: inputs.x}

    def follow(self, before: Told, count: int) -> tuple[Tensor, int]:
        """Which of ``count`` nodes of all runs have other features than before, [N], and the
        edition of these features."""
        edition = max(before.editions) + 1
        self.editions = before.editions | {edition: self.inputs.x}
        changed = (self.inputs.x != before.inputs.x).any(-1)
        return changed.repeat(count // changed.numel()), edition

    def believed(self, piece: Piece, ball: Tensor, edition: Tensor) -> tuple[Problem, Piece]:
        """The problem of a copy of the graph for each ball, and the piece there. The nodes of the
        piece are in these balls [n'], and have the features of these editions [n'] there; 0: those
        of now."""
        n, edges = self.inputs.num_nodes, self.inputs.edge_index.size(1)
        copies, node = self.inputs.repeat(piece.graph.num_graphs), piece.nodes % n
        x = copies.x.clone()
        for number in edition.unique().tolist():
            if number:
                some = edition == number
                x[ball[some] * n + node[some]] = self.editions[number][node[some]]
        where = ball[piece.graph.src] * edges + piece.edges % edges
        return self.pose(replace(copies, x=x)), replace(piece, nodes=ball * n + node, edges=where)


class BallsRule(Rule):
    """Solves the ball around each node.

    Args:
        problem: The problem, without gradients.
        radius: Hops within which a node solves for others, too; ``None``: for the whole graph.
    """

    solved_for: Tensor  # [N]
    told: Told | None = None

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
        self.tables = Tables(
            graph, self.around, problem.numbers_per_node_and_edge, self.channels, self.bounded
        )
        self.counters, self.letter = self.tables.counters, self.tables.letter
        self.counted = self.letter
        # Nobody is farther than the radius: no one has this node in the rim.
        self.inner = self.around.eccentricity <= self.radius

    # -- memory --------------------------------------------------------------------------------

    def read(self, inputs: Inputs, pose: Callable[[Inputs], Problem]) -> None:
        self.told = Told(inputs, pose)

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor:
        self.tables.begin(h)
        self.begun = torch.zeros(h.size(-1), dtype=torch.bool, device=h.device)
        self.solved_for = torch.zeros(h.size(-1), dtype=torch.long, device=h.device)
        return self.tables.letters(h, self.everyone)

    def forget(self, nodes: Tensor) -> None:
        self.tables.forget(nodes)
        self.begun[nodes] = False

    def follows(self, before: BallsRule, kept: Kept) -> bool:
        """Tables have their shape from the graph. A change of features alone leaves it."""
        if self.told is None or before.told is None:
            return False
        count = {self.graph.num_edges, before.graph.num_edges, kept.edges[0].numel()}
        nodes = {self.graph.num_nodes, before.graph.num_nodes, kept.nodes[0].numel()}
        if len(count) > 1 or len(nodes) > 1 or self.radius != before.radius:
            return False
        same = (torch.equal(*pairs) for pairs in (kept.nodes, kept.edges))
        return all(same) and self.told.inputs.same_edges(before.told.inputs)

    def keep(self, before: BallsRule, kept: Kept) -> None:
        """A node whose features have changed tells its new profile. The others go on to solve with
        the old one until they hear of it."""
        assert self.told is not None
        assert before.told is not None
        changed, edition = self.told.follow(before.told, self.graph.num_nodes)
        self.begun = before.begun & ~changed
        self.tables.keep(before.tables, changed, edition)

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
        held = self.tables.edition[slot, nodes[ball]]
        old = held != self.tables.edition[0, piece.nodes]
        if self.told is not None and bool(old.any()):
            problem, piece = self.told.believed(piece, ball, torch.where(old, held, 0))
            found, good = HeldSolver(problem).solve(piece, start)
        else:
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


NEAR = Newton(atol=0.0, rtol=1e-6, max_iter=0)
"""Makes no iteration, and says whether a gradient is small beside its terms. Where odd features
make terms large, rounding may keep a solve from its tolerance."""


@dataclass(frozen=True)
class Piece:
    """Copies of some nodes and edges of a problem, as a batch of graphs.

    Attributes:
        graph: The graphs.
        nodes: The node of which each node is a copy, [n].
        edges: The edge of which each edge is a copy, [e].
        free: Which nodes move, [n]; the others are held.
    """

    graph: Graph
    nodes: Tensor
    edges: Tensor
    free: Tensor


class HeldSolver:
    """Solves pieces of one problem, by the engine that is fastest for it.

    Args:
        problem: The whole problem, without gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        # Balls change from turn to turn: a factorisation on torch would be planned every time.
        self.solver: Solver = SemismoothNewton(linear="cg")
        if isinstance(problem, Objective):
            fast = isinstance(engine_for(problem, Newton()), CpuEngine)
            self.solver = Newton() if fast else Newton(linear="cg")
        elif isinstance(problem, FixedPoint) and problem.monotone:
            self.solver = Picard(max_iter=10_000)  # maxima have no use for differences

    def solve(self, piece: Piece, h: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings [R, k, n] after a solve from ``h``, and which graphs of the piece have
        arrived, [G]; the embeddings of the others are of no use."""
        part = self.problem.gathered(piece.graph, piece.nodes, piece.edges)
        engine = engine_for(part, self.solver).holding(~piece.free)
        found = engine.solve(h)
        good = found.converged
        if isinstance(self.problem, Objective) and not bool(good.all()):
            good = good | engine.solve(found.value, NEAR).converged
        return found.value, good.all(0)


def balls_rule(problem: Problem, *, radius: int | None = None) -> BallsRule:
    """Solves of the ball around each node; ``None``: the usual radius."""
    usual = usual_radius(problem)
    if radius is not None and usual is not None and radius > usual:
        warnings.warn(
            f"radius={radius} gives tables of more than {LARGEST} nodes, and a node solves for all "
            f"of its ball whenever it hears of another one: this is slow. Without a radius it is "
            f"{usual} on this graph",
            stacklevel=2,
        )
    return BallsRule(problem, usual if radius is None else radius)


BALLS = About(
    fits=(Objective, FixedPoint),
    make=balls_rule,
    options=("radius",),
    stepless="whose nodes solve; expected step='auto'",
    moves=False,
    proof="balls",
    gain=SOLVE,
    tuning="a larger radius: one that reaches every node is exact once information has crossed",
)
