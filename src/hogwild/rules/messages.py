r"""Optimisation-based models at the speed of information: messages about whole subtrees.

A gradient step tells a neighbour which way to go; a message tells it what everything behind the
sender would cost it. Node i owns the cluster :math:`N(i) \cup \{i\}` of its local energy
:math:`e^i`, and hears from every neighbour j a quadratic
:math:`\mu_{j \to i}(h_j, h_i)`, a model of what the rest of the graph beyond j adds to it
(:mod:`hogwild.rules.elimination`). An update is

.. math::
    z &\leftarrow \arg\min_{z = (h_i, h_{N(i)})} \; e^i(z) + \sum_{j \in N(i)} \mu_{j \to i}(h_j, h_i)
       &&\text{the node's view of its cluster; } h_i \text{ is its own part} \\
    \mu_{i \to j} &\leftarrow \min_{h_l,\; l \ne j} \; \hat e^i_z
       + \sum_{l \ne j} \mu_{l \to i}(h_l, h_i)
       &&\text{with } \hat e^i_z \text{ the quadratic model of } e^i \text{ at } z.

The packet from i to j has a fixed size: :math:`h_i`, the message (k(2k + 1) + 2k numbers), and what
a gradient step needs (:mod:`hogwild.rules.gradient`).

**On a tree** with quadratic energies this is exact elimination: all together (S = 1, D = 0) the
nodes hold the answer after as many updates as the tree's diameter (one on a single node), and
asynchronously as soon as word has got from every node to every other.

**Nonlinear energies.** The model :math:`\hat e^i_z` is taken at the mode z of the node's own
cluster, found by a few local Newton steps, so that nobody extrapolates his own energy; and every
activation in it has the curvature that bounds its growth over ``REACH`` times its last move
(:meth:`Activation.growth`): wide parabolas while things move, the true curvature, and Newton's rate,
when they settle.

**On graphs with cycles** fixed points are still right: the local energies are the sum of the
clusters' less the separators' models, whose modes agree, so the gradient of their sum vanishes.
Convergence is not guaranteed. A node watches its own gradient :math:`g_{ii} + \sum_j g_{ji}` over
windows of its updates; where it grows more often than not, the node mixes its new messages with
those it sent before, first half and half, then less and less, and in the end gives up on them for
good and goes on with gradient steps from the best embedding it has had.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.fields import gather
from hogwild.graph import Star
from hogwild.rules.base import Rule, put
from hogwild.rules.elimination import Clusters, Elimination, Messages, Point, columns, rows
from hogwild.rules.gradient import GradientRule
from hogwild.solvers.base import LocalQuadratic, Objective

SILENT = 1e-3
"""Curvature, relative to its own energy's, with which a node assumes the neighbours it has not heard
to stay where they are."""
PASSES = 8
"""Most evaluations of its own energy a node makes in an update, to find its cluster's mode."""
ENOUGH = 1e-4
"""Share of the first pass's predicted decrease at which the mode counts as found."""
REACH = 2.0
"""How many times its last move an activation's parabola must hold for."""
WINDOW = 8
"""Updates over which a node takes the largest gradient it saw."""
STRIKES = 3
"""Windows with growing gradients, less those with falling ones, after which it trusts less."""
FLOOR = 1 / 16
"""Least share of a new message; below it a node stays with gradient steps."""


class MessageRule(Rule):
    """Messages over separators, safeguarded by gradient steps.

    Args:
        problem: The energy.
    """

    def __init__(self, problem: Objective, step: str | float = "auto", *, age: int | None = None):
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels
        self.gradient = GradientRule(problem, step, age=age)
        self.width = Messages.width(self.channels)

    # -- private memory ----------------------------------------------------------------------------

    def begin(self, h: Tensor) -> Tensor:
        graph, everyone = self.graph, self.graph.everyone
        inbox = gather(h, graph.src)
        letters = self.gradient.begin(h)
        self.own, self.near = h.clone(), inbox.clone()  # its cluster's mode, as each node sees it
        self.sent = self._first(h, inbox, everyone)
        shape = (h.size(0), graph.num_nodes)
        self.settled = torch.zeros(graph.num_nodes, dtype=torch.bool, device=h.device)
        self.count = torch.zeros(graph.num_nodes, dtype=torch.long, device=h.device)
        self.trust = h.new_ones(shape)
        self.score, self.failures = h.new_zeros(shape), h.new_zeros(shape)
        self.peak, self.before = h.new_zeros(shape), h.new_full(shape, float("inf"))
        self.least, self.best = h.new_full(shape, float("inf")), h.clone()
        return torch.cat([self.sent, letters], 1)

    def forget(self, nodes: Tensor) -> None:
        self.gradient.forget(nodes)
        self.settled[nodes] = False
        self.count[nodes] = 0
        self.trust[:, nodes] = 1.0
        for x in (self.score, self.failures, self.peak):
            x[:, nodes] = 0.0
        for x in (self.before, self.least):
            x[:, nodes] = float("inf")

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return torch.cat([at.at_edges(self.sent), self.gradient.refresh(h, inbox, at)], 1)

    def _first(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        clusters = Clusters(self.graph, at)
        z = Point(rows(h), clusters.average(rows(inbox)))
        k = self.channels
        model = self.problem.quadratic(h, inbox, at, majorise=1.0)
        scale = SILENT * rows(model.b).diagonal(dim1=-2, dim2=-1).mean(-1)[:, clusters.slot, None]
        hold = torch.cat([scale.expand(-1, -1, k), torch.zeros_like(z.near)], -1)
        silent = Messages(torch.diag_embed(hold), hold * torch.cat([z.near, z.near], -1))
        return self._wire(clusters, Elimination(clusters, model, z, silent).messages())

    def _wire(self, clusters: Clusters, messages: Messages) -> Tensor:
        """One letter an edge; none to oneself."""
        packed = rows(messages.pack())
        nothing = packed.new_zeros(packed.size(0), clusters.at.size, self.width)
        return columns(clusters.to_edges(packed, nothing))

    # -- the rule ----------------------------------------------------------------------------------

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None
        letters = mail[:, self.width :]
        gave_up = self._judge(h, letters, at)
        clusters = Clusters(self.graph, at)
        heard = Messages.unpack(
            columns(clusters.average(rows(mail[:, : self.width]))), self.channels
        )
        settled = at.at_nodes(self.settled)
        start = Point(rows(at.at_nodes(self.own)), clusters.average(rows(at.at_edges(self.near))))
        fresh = Point(rows(h), clusters.average(rows(inbox)))
        start = start.where(clusters, settled.expand(h.size(0), -1), fresh)
        z = self._mode(clusters, start, heard)
        sent = self._messages(clusters, start, z, heard, settled)
        sent = torch.lerp(at.at_edges(self.sent), sent, self._share(at))

        put(self.own, at, columns(z.own))
        self._store(self.near, at, columns(clusters.to_edges(z.near, z.own)))
        self._store(self.sent, at, sent)
        self.settled[at.nodes if at.nodes is not None else slice(None)] = True

        trusted = (at.at_nodes(self.trust) >= FLOOR).unsqueeze(1)
        new = torch.where(trusted, columns(z.own), h)
        if not bool(trusted.all()):
            steps, _ = self.gradient.update(h, inbox, letters, at)
            new = torch.where(trusted, new, steps)
            new = torch.where(gave_up.unsqueeze(1), at.at_nodes(self.best), new)
        return new, torch.cat([sent, self.gradient.refresh(new, inbox, at)], 1)

    def _store(self, memory: Tensor, at: Star, value: Tensor) -> None:
        if at.edges is None:
            memory.copy_(value)
        else:
            memory.index_copy_(-1, at.edges, value)

    def _share(self, at: Star) -> Tensor:
        """Share of the new message in what is sent on each edge, [R, 1, E']."""
        return at.at_nodes(self.trust).clamp_min(FLOOR)[:, at.slot].unsqueeze(1)

    def _model(self, clusters: Clusters, z: Point, far: Point | None = None) -> LocalQuadratic:
        def view(p: Point) -> tuple[Tensor, Tensor]:
            return columns(p.own), columns(clusters.to_edges(p.near, p.own))

        if far is None:
            return self.problem.quadratic(*view(z), clusters.at)
        return self.problem.bounding(*view(z), clusters.at, view(far))

    def _mode(self, clusters: Clusters, z: Point, heard: Messages) -> Point:
        """Minimise every node's energy plus messages over its cluster: Newton's method, with steps
        shortened until the slope no longer turns steeply upwards."""
        d, slope = Elimination(clusters, self._model(clusters, z), z, heard).solve()
        t, goal = torch.ones_like(slope), ENOUGH * slope.abs()
        for _ in range(PASSES):
            trial = z.move(clusters, t, d)
            here = Elimination(clusters, self._model(clusters, trial), trial, heard)
            turned = here.slope(d)
            good = turned <= 0.5 * slope.abs()  # False for NaN
            further, ahead = here.solve()
            secant = torch.nan_to_num(slope / (slope - turned), nan=0.1).clamp(0.1, 0.7)
            z, d = trial.where(clusters, good, z), further.where(clusters, good, d)
            t, slope = torch.where(good, 1.0, secant * t), torch.where(good, ahead, slope)
            if bool((good & (slope.abs() <= goal)).all()):
                break
        return z

    def _messages(
        self, clusters: Clusters, start: Point, z: Point, heard: Messages, settled: Tensor
    ) -> Tensor:
        reach = torch.full_like(z.own[..., 0], -REACH)
        step = Point(z.own - start.own, z.near - start.near)
        model = self._model(clusters, z, z.move(clusters, reach, step))
        return self._wire(clusters, Elimination(clusters, model, z, heard).messages())

    # -- the safeguard -----------------------------------------------------------------------------

    def _judge(self, h: Tensor, letters: Tensor, at: Star) -> Tensor:
        """Watch the node's own gradient and set its trust; which nodes give up now, [R, A]."""
        k = self.channels
        own = at.at_nodes(self.gradient.own)
        size = (own + at.collect(letters[:, :k])).abs().amax(1)
        noise = 1e3 * torch.finfo(h.dtype).eps * (own.abs() + at.collect(letters[:, :k].abs()))
        nodes = slice(None) if at.nodes is None else at.nodes

        better = size < self.least[:, nodes]
        self.least[:, nodes] = torch.where(better, size, self.least[:, nodes])
        put(self.best, at, torch.where(better.unsqueeze(1), h, at.at_nodes(self.best)))

        self.count[nodes] += 1
        due = self.count[nodes] % WINDOW == 0
        peak = torch.maximum(self.peak[:, nodes], size)
        before, trust = self.before[:, nodes], self.trust[:, nodes]
        grew = ~(peak < before) & (peak > noise.amax(1))
        score = self.score[:, nodes] + torch.where(due, torch.where(grew, 1.0, -1.0), 0.0)
        failures = self.failures[:, nodes]
        down = due & (score >= STRIKES) & (trust >= FLOOR)
        patience = -STRIKES * (4.0**failures).clamp_min(2.0)
        up = due & (score <= patience) & (trust >= FLOOR) & (trust < 1.0)
        lower = torch.where(down, 0.5 * trust, torch.where(up, (2.0 * trust).clamp_max(1.0), trust))
        self.trust[:, nodes] = lower
        self.failures[:, nodes] = failures + down.to(failures.dtype)
        self.score[:, nodes] = torch.where(down | up, 0.0, score.maximum(patience))
        self.before[:, nodes] = torch.where(due, peak, before)
        self.peak[:, nodes] = torch.where(due, 0.0, peak)
        return down & (lower < FLOOR)
