r"""The rule ``"balls"`` in the simulator; :mod:`hogwild_node.balls` says what a node does.

**What is proved** (documentation, "Asynchrony"). If the radius reaches every node, the answer of a
node is exact once it has heard of all nodes. With a smaller radius nodes converge under any delays
where the Hessian is scaled diagonally dominant or the map contracts; otherwise that is observed.

**One protocol.** Every simulated node has an agent's :class:`~hogwild_node.balls.Ball`, and tells
what an agent tells (:mod:`hogwild_node.flood`). Its bytes are those of an agent's packets without
their headers of 40 bytes, which no rule counts. Nodes hand reports on as objects, which saves
reading them. By a node's own clock a turn takes ``TURN`` seconds. What the schedule grants as one
packet is all that a node sends a neighbour in one turn (up to 16 packets of an agent); the
neighbour also hears what was sent before and not lost.

**Many solves at once.** The balls of all nodes that solve at the same tick are one batch of graphs.

**Features that change.** A node whose features change tells a new profile. The others solve with
the old features until they hear of the new ones. If nodes or edges come or go, all nodes of a
simulation begin anew. (Real agents go on.)
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix, eye
from torch import Tensor

from hogwild.engines import engine_for
from hogwild.errors import AsynchronyError
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules.base import About
from hogwild.solvers.anderson import Picard
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton
from hogwild.solvers.semismooth import SemismoothNewton
from hogwild_node.balls import LARGEST, Ball
from hogwild_node.ops import Array
from hogwild_node.packets import HEADER
from hogwild_node.reports import EMBEDDING, PROFILE, Key, Packet, Profile
from hogwild_node.rules.base import Rule, Survivors

TURN = 0.125
"""Seconds between two turns of a simulated node, by its own clock."""
NUMBER = 4
"""Bytes of a number of an embedding in a packet."""
UNHEARD = 256
"""Packets on an edge that wait for a receiver. Where more are sent, the oldest are lost."""
MOST = 4_000_000
"""Reports of all nodes together above which a run is refused: it would not fit into memory."""


def couples(problem: Problem) -> int:
    """c, the hops between nodes that a row of the Hessian, or of the map, couples."""
    return 2 if isinstance(problem, Objective) else 1


def reached(graph: Graph, reach: float = math.inf) -> Iterator[np.ndarray]:
    """How many nodes are within 0, 1, … hops of each node, [N], on a graph in which every edge has
    a reverse edge; up to ``reach`` hops, or until all nodes are counted."""
    n, ends = graph.num_nodes, (graph.dst.cpu().numpy(), graph.src.cpu().numpy())
    near = csr_matrix((np.ones(len(ends[0]), dtype=bool), ends), shape=(n, n))
    before, ring = csr_matrix((n, n), dtype=bool), eye(n, dtype=bool, format="csr")
    count, hops = np.zeros(n, dtype=np.int64), 0
    while ring.nnz and hops <= reach:
        count, hops = count + np.diff(ring.indptr), hops + 1
        yield count
        # A neighbour of the ring is in it, behind it, or new.
        before, ring = ring, csr_matrix((ring @ near) > (ring + before))


def usual_radius(problem: Problem) -> int | None:
    """The radius where none is given: the whole graph (``None``) if no ball then has more than
    ``LARGEST`` nodes; otherwise the largest radius, and at least 1, with which no node keeps
    reports of more."""
    for hops, count in enumerate(reached(problem.graph)):
        if count.max(initial=0) > LARGEST:
            return max(hops - 1 - couples(problem), 1)
    return None


@dataclass(frozen=True)
class Told:
    """What a simulated node tells of itself, in the place of a profile.

    Attributes:
        node: The node.
        x: Its features; ``None`` where they cannot change.
        edges: The neighbours, by name.
    """

    node: int
    x: Tensor | None
    edges: Mapping[str, int]


class Node:
    """One simulated node.

    Args:
        name: Its name.
        life: Its incarnation.
        radius: Hops within which it solves for others, too.
        couples: c.
    """

    def __init__(self, name: str, life: int, radius: float, couples: int) -> None:
        self.name, self.life, self.turns = name, life, 0
        self.ball = Ball(name, life, radius, couples, self._read)
        self.rounded = np.zeros(0)  # the embedding told last, as others hear it, [R, k]
        self.editions = {PROFILE: 0, EMBEDDING: 0}  # of what it tells
        self.owes = False  # whether it has heard reports that it has not confirmed

    def _read(self, key: Key, body: bytes) -> object:
        """What the node's own reports hold. Others get it together with the reports."""
        return self.told if key[0] == PROFILE else self.rounded

    @property
    def now(self) -> float:
        """The time on its clock."""
        return TURN * self.turns

    def tell_of(self, told: Told, widths: tuple[int, int]) -> None:
        """Tell this of itself from now on, in a profile of as many bytes as that of an agent whose
        node and edges have so many features."""
        self.told, attr = told, np.zeros(widths[1]) if widths[1] else None
        features = np.zeros(widths[0])
        features[:1] = self.editions[PROFILE] = self.editions[PROFILE] + 1
        self.profile = Profile(features, {name: (1.0, attr) for name in told.edges}).write()

    def hear(self, name: str, life: int, packets: list[Packet]) -> None:
        """Take in what a neighbour sent in one turn, unless that was in a former life."""
        if life >= self.ball.incarnations.get(name, life):
            for packet in packets:
                self.ball.hear(name, life, packet, self.now)
                self.owes |= bool(packet.reports)

    def tell(self) -> dict[str, list[Packet]]:
        """The packets to all neighbours."""
        return {name: self.ball.tell(name, self.now, HEADER.size) for name in self.told.edges}

    def speak(self, h: Array, wire: Callable[[Tensor], Tensor] | None) -> bool:
        """Tell the embedding [R, k], if it has moved; whether it has."""
        if not self.ball.is_news(h, h.dtype):
            return False
        self.ball.told = h.copy()
        self.rounded = h.copy() if wire is None else wire(torch.from_numpy(h.copy())).numpy()
        self.editions[EMBEDDING] += 1
        body = self.editions[EMBEDDING].to_bytes(4, "little").ljust(NUMBER * h.shape[1], b"\0")
        return self.ball.flood.report(EMBEDDING, body, self.now)


class BallsRule(Rule):
    """Solves the ball around each node.

    Args:
        problem: The problem, without gradients.
        radius: Hops within which a node solves for others, too; ``None``: for the whole graph.
    """

    broadcast_width, numbered = 1, True
    solved_for: Tensor
    inputs: Inputs | None = None  # of one run, as far as they are known
    problem_of: Callable[[Inputs], Problem]

    def __init__(self, problem: Problem, radius: int | None = None) -> None:
        graph = problem.graph
        graph.require_reverse_links(
            "With rule='balls' every neighbour confirms what it has heard, and needs a way back"
        )
        self.problem, self.graph, self.solver = problem, graph, HeldSolver(problem)
        self.everyone, self.channels = graph.everyone, problem.channels
        self.radius = math.inf if radius is None else radius
        self.couples, self.widths = couples(problem), problem.numbers_per_node_and_edge
        if any(count.sum() > MOST for count in reached(graph, self.radius + self.couples)):
            raise AsynchronyError(
                f"the nodes would keep more than {MOST:,} reports with rule='balls' on these "
                f"{graph.num_nodes:,} nodes; expected a smaller radius or fewer nodes, or "
                f"rule='messages'"
            )
        self.src, dst, n = graph.src.cpu().numpy(), graph.dst.cpu().numpy(), graph.num_nodes
        self.order = np.argsort(dst, kind="stable")  # edges by receiver
        self.begins = np.searchsorted(dst[self.order], np.arange(n + 1))
        batch = graph.batch.cpu().numpy()
        self.first = np.searchsorted(batch, batch).tolist()  # the first node of each node's graph
        # The neighbours of each node by name, and an edge from each.
        self.near: list[dict[str, int]] = [{} for _ in range(n)]
        for edge, (j, i) in enumerate(zip(self.src.tolist(), dst.tolist(), strict=True)):
            if i != j:
                self.near[i].setdefault(str(j - self.first[j]), edge)
        self.degree = np.bincount(dst[self.src != dst], minlength=n).tolist()

    # -- memory ------------------------------------------------------------------------------------

    def note_inputs(self, inputs: Inputs, problem_of: Callable[[Inputs], Problem]) -> None:
        self.inputs, self.problem_of = inputs, problem_of

    def begin(self, h: Tensor, inbox: Tensor) -> None:
        n = self.graph.num_nodes
        told = (Told(i, self._features(i), near) for i, near in enumerate(self.near))
        self.nodes = [self._born(each, 1) for each in told]
        # On its way to each node, by sender: the number of the sender's packets, its incarnation,
        # and the packets.
        self.mail: list[dict[str, deque[tuple[int, int, list[Packet]]]]] = [
            {name: deque(maxlen=UNHEARD) for name in near} for near in self.near
        ]
        self.lossy: set[int] = set()  # edges on which something was lost since the last packet
        self.number = torch.zeros(n, dtype=torch.long, device=h.device)  # of the last packets
        self.solved_for = torch.zeros_like(self.number)
        self.size = self.number.double()  # numbers of the last packets, mean over neighbours
        self.over = [0] * n  # bytes that are not counted yet, fewer than a number has
        # The first packets, which nobody has to send: neighbours know each other from the start.
        for i, node in enumerate(self.nodes):
            node.ball.meet(node.profile, node.now)
            self._send(i, [node.tell()])
            self.over[i] = 0

    def _born(self, told: Told, life: int) -> Node:
        node = Node(str(told.node - self.first[told.node]), life, self.radius, self.couples)
        node.tell_of(told, self.widths)
        return node

    def _features(self, i: int) -> Tensor | None:
        return None if self.inputs is None else self.inputs.x[i % self.inputs.num_nodes]

    def forget(self, nodes: Tensor) -> None:
        for i in nodes.tolist():
            self.nodes[i] = self._born(self.nodes[i].told, self.nodes[i].life + 1)

    def follows(self, before: BallsRule, kept: Survivors) -> bool:
        """Whether features alone have changed."""
        if self.inputs is None or before.inputs is None or self.radius != before.radius:
            return False
        stay = kept.nodes[0].numel() == self.graph.num_nodes == before.graph.num_nodes
        return stay and torch.equal(*kept.nodes) and self.inputs.same_edges(before.inputs)

    def keep(self, before: BallsRule, kept: Survivors) -> None:
        for name in ("nodes", "mail", "lossy", "number", "size", "over"):
            setattr(self, name, getattr(before, name))
        for i, node in enumerate(self.nodes):
            x, told = self._features(i), node.told.x
            if x is not None and told is not None and not torch.equal(x, told):
                node.tell_of(replace(node.told, x=x), self.widths)

    # -- packets -----------------------------------------------------------------------------------

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        """The number of the packets that each node sent last, [R, 1, A]."""
        return at.at_nodes(self.number).to(h.dtype).expand(h.size(0), 1, -1)

    def numbers(self, at: Star) -> Tensor:
        return at.at_nodes(self.size)

    def lose(self, edges: Tensor, packets: Tensor) -> None:
        self.lossy.update(edges.tolist())

    def _send(self, i: int, told: list[dict[str, list[Packet]]]) -> None:
        """Send these packets of a node to its neighbours. Packets that tell and confirm nothing are
        counted and not kept: nobody would learn anything from them."""
        node = self.nodes[i]
        packets = {name: [p for each in told for p in each[name]] for name in node.told.edges}
        if node.owes or any(p.reports for each in packets.values() for p in each):
            self.number[i] += 1
            node.owes, number = False, int(self.number[i])
            for name, each in packets.items():
                self.mail[self.first[i] + int(name)][node.name].append((number, node.life, each))
        total = self.over[i] + sum(p.size for each in packets.values() for p in each)
        self.over[i] = total % NUMBER
        self.size[i] = total // NUMBER / max(self.degree[i], 1)

    # -- a turn ------------------------------------------------------------------------------------

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, None]:
        nodes = range(at.size) if at.nodes is None else at.nodes.tolist()
        edges = range(at.degree) if at.edges is None else at.edges.tolist()
        granted = dict(zip(edges, inbox[0, 0].round().long().tolist(), strict=True))
        told, wants = [], []
        for place, i in enumerate(nodes):
            node = self.nodes[i]
            node.turns += 1
            self._hear(i, granted)
            new = node.ball.meet(node.profile, node.now)
            told.append([node.tell()])  # before the solve, as agents do
            if (new or node.owes or not node.ball.answered) and node.ball.has_changed():
                wants.append(place)
        found = h.clone()
        if wants:
            found[..., wants] = self._solve([nodes[place] for place in wants], h[..., wants])
        rows = found.movedim(-1, 0).cpu().numpy()
        for i, row, each in zip(nodes, rows, told, strict=True):
            if self.nodes[i].speak(row, self.wire):
                each.append(self.nodes[i].tell())
            self._send(i, each)
        return found, None

    def _hear(self, i: int, granted: Mapping[int, int]) -> None:
        """A node takes in what has come along its edges, up to the numbers that are granted."""
        for name, edge in self.near[i].items():
            mail, due = self.mail[i][name], []
            while mail and mail[0][0] <= granted[edge]:
                due.append(mail.popleft())
            if due and edge in self.lossy:
                due = due[-1:]
                self.lossy.remove(edge)
            for _, life, packets in due:
                self.nodes[i].hear(name, life, packets)

    # -- a ball ------------------------------------------------------------------------------------

    def _solve(self, nodes: list[int], h: Tensor) -> Tensor:
        """The embeddings [R, k, B] of these nodes after a solve of their balls."""
        told, free, heard, count = [], [], [], []
        for node in (self.nodes[i] for i in nodes):
            reports = node.ball.flood.reports
            names = [name for name, *_ in node.ball.answered]
            count.append(len(names))
            told += [reports[PROFILE, name].content for name in names]
            free += [node.ball.hops[name] <= self.radius for name in names]
            heard += [reports.get((EMBEDDING, name)) for name in names]
        sizes = torch.tensor(count, device=h.device)
        ball = torch.repeat_interleave(sizes)
        members = torch.tensor([each.node for each in told], device=h.device)
        piece = self._piece(members, ball, torch.tensor(free, device=h.device), len(nodes))
        self.solved_for[nodes] += piece.graph.sum(piece.free.long())
        start = h[..., ball]  # neighbours are alike as a rule
        some = [report is not None for report in heard]
        if any(some):
            values = np.stack([report.content for report in heard if report is not None], -1)
            start[..., some] = torch.from_numpy(values).to(h)
        solver = self.solver
        if any(each is not self.nodes[each.node].told for each in told):
            problem, piece = self._believed(piece, [each.x for each in told])
            solver = HeldSolver(problem)
        found, good = solver.solve(piece, start)
        return torch.where(good, found[..., sizes.cumsum(0) - sizes], h)

    def _believed(self, piece: Piece, x: list[Tensor]) -> tuple[Problem, Piece]:
        """The problem of a copy of the graph for each graph of the piece, whose nodes have these
        features there, and the piece in it."""
        assert self.inputs is not None
        n, e, ball = self.inputs.num_nodes, self.inputs.edge_index.size(1), piece.graph.batch
        copies, nodes = self.inputs.repeat(piece.graph.num_graphs), ball * n + piece.nodes % n
        edges = ball[piece.graph.src] * e + piece.edges % e
        problem = self.problem_of(replace(copies, x=copies.x.index_copy(0, nodes, torch.stack(x))))
        return problem, replace(piece, nodes=nodes, edges=edges)

    def _piece(self, nodes: Tensor, ball: Tensor, free: Tensor, count: int) -> Piece:
        """The graphs between these nodes [n], which are in these of ``count`` balls [n]."""
        n, member, which = self.graph.num_nodes, nodes.cpu().numpy(), ball.cpu().numpy()
        begin, number = self.begins[member], np.diff(self.begins)[member]
        receiver = np.repeat(np.arange(len(member)), number)
        skip = np.repeat(begin - (np.cumsum(number) - number), number)
        edge = self.order[skip + np.arange(len(receiver))]  # all edges into these nodes
        keys = which * n + member
        by = np.argsort(keys)
        wanted = which[receiver] * n + self.src[edge]
        sender = by[np.minimum(np.searchsorted(keys, wanted, sorter=by), len(by) - 1)]
        keep = keys[sender] == wanted
        src, dst, edges = (
            torch.from_numpy(x[keep]).to(nodes.device) for x in (sender, receiver, edge)
        )
        return Piece(Graph(src, dst, ball, len(member), count), nodes, edges, free)


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
            fast = engine_for(problem, Newton()).holds
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
    moves=False,
    proof="balls",
    gain=" on a model of one layer: exact once information has crossed the graph, if every node "
    "may know and solve the whole graph",
    tuning="a larger radius: one that reaches every node is exact once information has crossed",
)
