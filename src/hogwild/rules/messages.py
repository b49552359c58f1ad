r"""Optimisation-based models at the speed of information: messages about whole subtrees.

A gradient step tells a neighbour which way to go; a message tells it what everything behind the
sender would cost it. Node i owns the cluster :math:`N(i) \cup \{i\}` of its local energy
:math:`e^i`, and hears from every neighbour j a quadratic
:math:`\mu_{j \to i}(h_j, h_i)`, a model of what the rest of the graph beyond j adds to it
(:mod:`hogwild.rules.elimination`). An update is

.. math::
    z &\leftarrow \arg\min_{z = (h_i, h_{N(i)})} \; e^i(z)
       + \sum_{j \in N(i)} \mu_{j \to i}(h_j, h_i)
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
(:meth:`Activation.growth`): wide parabolas while things move, the true curvature, and Newton's
rate, when they settle.

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
from hogwild.rules.trust import FLOOR, Trust
from hogwild.solvers.base import LocalQuadratic, Objective

SILENT = 1e-3
"""Curvature, relative to its own energy's, with which a node assumes the neighbours it has not
heard to stay where they are."""
PASSES = 8
"""Most evaluations of its own energy a node makes in an update, to find its cluster's mode."""
ENOUGH = 1e-4
"""Share of the first pass's predicted decrease at which the mode counts as found."""
REACH = 3.0
"""How many times its last move an activation's parabola must hold for."""


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
        graph = self.graph
        inbox = gather(h, graph.src)
        letters = self.gradient.begin(h)
        self.trust = Trust(h, graph.num_nodes)
        self.own, self.near = h.clone(), inbox.clone()  # the cluster's mode, as its node sees it
        self.seen = torch.zeros(graph.num_nodes, dtype=torch.bool, device=h.device)
        self.least, self.best = h.new_full((h.size(0), 1, graph.num_nodes), float("inf")), h.clone()
        self.sent = self._first(h, inbox, graph.everyone)
        return torch.cat([self.sent, letters], 1)

    def forget(self, nodes: Tensor) -> None:
        self.gradient.forget(nodes)
        self.trust.forget(nodes)
        self.seen[nodes] = False
        self.least[..., nodes] = float("inf")

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
        self._note(h, letters, at)
        clusters = Clusters(self.graph, at)
        heard = clusters.average(rows(mail[:, : self.width]))
        messages = Messages.unpack(columns(heard), self.channels)
        before = self._remembered(clusters, h, inbox)
        z = self._mode(clusters, before, messages)
        acts, ceased = self._watch(h, before.own, z.own, at)
        share = at.at_nodes(self.trust.share).clamp_min(FLOOR)
        sent = self._messages(clusters, before, z, messages, REACH / share)
        sent = torch.lerp(at.at_edges(self.sent), sent, share[:, at.slot].unsqueeze(1))
        put(self.own, at, columns(z.own))
        _put(self.near, at, columns(clusters.to_edges(z.near, z.own)))
        _put(self.sent, at, sent)
        put(self.seen, at, torch.ones_like(at.at_nodes(self.seen)))

        new = columns(z.own)
        if not bool(acts.all()):
            steps, _ = self.gradient.update(h, inbox, letters, at)
            steps = torch.where(ceased.unsqueeze(1), at.at_nodes(self.best), steps)
            new = torch.where(acts.unsqueeze(1), new, steps)
        return new, torch.cat([sent, self.gradient.refresh(new, inbox, at)], 1)

    def _note(self, h: Tensor, letters: Tensor, at: Star) -> None:
        """Remember the embedding with the least gradient."""
        g = at.at_nodes(self.gradient.own) + at.collect(letters[:, : self.channels])
        size, least = g.abs().amax(1, keepdim=True), at.at_nodes(self.least)
        put(self.best, at, torch.where(size < least, h, at.at_nodes(self.best)))
        put(self.least, at, torch.minimum(size, least))

    def _watch(self, h: Tensor, before: Tensor, after: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        eps = torch.finfo(h.dtype).eps
        move, change = (after - before).abs().amax(-1), (after - rows(h)).abs().amax(-1)
        return self.trust.watch(move, 1e3 * eps * after.abs().amax(-1), change, at)

    def _remembered(self, clusters: Clusters, h: Tensor, inbox: Tensor) -> Point:
        """Where the node left its cluster; after a fresh start, where it hears it to be."""
        at = clusters.at
        left = Point(rows(at.at_nodes(self.own)), clusters.average(rows(at.at_edges(self.near))))
        seen = at.at_nodes(self.seen).expand(h.size(0), -1)
        return left.where(clusters, seen, Point(rows(h), clusters.average(rows(inbox))))

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
        self, clusters: Clusters, before: Point, z: Point, heard: Messages, reach: Tensor
    ) -> Tensor:
        step = Point(before.own - z.own, before.near - z.near)
        model = self._model(clusters, z, z.move(clusters, reach, step))
        return self._wire(clusters, Elimination(clusters, model, z, heard).messages())


def _put(x: Tensor, at: Star, value: Tensor) -> None:
    """Write per-edge values [..., E'] into [..., E], in place."""
    if at.edges is None:
        x.copy_(value)
    else:
        x.index_copy_(-1, at.edges, value)
