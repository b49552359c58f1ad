r"""Optimisation-based models: a gradient step on what the neighbours last said (Algorithm 1).

Node i keeps :math:`h_i` and the gradient :math:`g_{ii}` of its own energy; the packet from j to i
is the fixed-size pair :math:`(h_j, g_{ji})`. An update is

.. math::
    h_i &\leftarrow h_i - A_i \Bigl(g_{ii} + \sum_{j \in N(i)} g_{ji}(\tau^i_j)\Bigr) \\
    g_{ij} &\leftarrow \frac{\partial e^i}{\partial h_j}\bigl(h_i, \{h_l(\tau^i_l)\}\bigr),
    \qquad j \in N(i) \cup \{i\}.

Steps :math:`A_i`:

* a number: the same for all nodes, as in the paper;
* ``"certified"``: :math:`a / r_i` with :math:`r_i` a bound on the absolute row sums of the Hessian
  and :math:`a = \theta / (\tfrac12 + D')`, :math:`D'` the age of the oldest embedding inside any
  gradient used. Convergence is proved in the documentation ("Asynchrony"). In a stack the problem
  moves, and :math:`r_i` with it: every neighbour j then adds its share of :math:`r_i`, k numbers,
  to the packet;
* ``"auto"``: the inverse of the node's own curvature block, damped. Every neighbour j adds its
  k × k block of :math:`\partial^2 e^j / \partial h_i^2` to the packet (with the majorising
  curvature: where an activation is nearly straight the true one would promise endless steps).
  Scaled like this the Hessian's largest eigenvalue is at most the largest degree plus one, and 2 to
  3 in practice, so one damping fits all models. A node whose gradient has turned round and grown
  overshot: it halves its damping, and recovers slowly. Observed to converge, not proved.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hogwild.errors import ConfigError, is_number
from hogwild.fields import gather
from hogwild.graph import Star
from hogwild.problems.base import Objective, Problem
from hogwild.rules.base import Rule, put, self_loops

THETA = 0.95
"""Share of the largest certified step that is taken: at 1 the proof's margin vanishes."""

STEPS = ("auto", "certified")
DAMPING = 0.6
"""Largest share of the block-scaled step: above, stale views make eigenvalues of 3 oscillate."""


def certified_steps(problem: Objective, age: int) -> Tensor:
    r"""Steps :math:`\theta / (r_i (\tfrac12 + D'))` [R, k, N] for embeddings up to ``age`` old."""
    return THETA / ((0.5 + age) * problem.row_bounds())


def check_step(step: object) -> None:
    """Raise unless this is a step size, or the name of a way to choose one."""
    named = isinstance(step, str) and step in STEPS
    if not named and not (is_number(step) and 0 < step < math.inf):
        raise ConfigError(
            f"step={step!r}; expected a positive number, or one of {', '.join(STEPS)}"
        )


class GradientRule(Rule):
    """One gradient step.

    Args:
        problem: The energy.
        step: A positive number, ``"certified"`` or ``"auto"``.
        age: D', needed by the certified step; ``None`` where no bound holds.
        damping: Largest factor on the ``"auto"`` step.
        moving: Whether the problem may move (:meth:`pose`).
    """

    def __init__(
        self,
        problem: Objective,
        step: str | float = "auto",
        *,
        age: int | None = None,
        damping: float = DAMPING,
        moving: bool = False,
    ) -> None:
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels
        check_step(step)
        if step == "certified" and age is None:
            raise ConfigError(
                "step='certified' needs a bound on the staleness, and the impairments given have "
                "none (unlimited loss, for instance): bound them (burst=...), or use step='auto'"
            )
        self.auto, self.damping = step == "auto", damping
        self.moving = moving and step == "certified"
        extra = self.channels if self.auto else 1 if self.moving else 0
        self.letter = self.channels * (1 + extra)
        self.rate: Tensor | float = 0.0
        if step == "certified":
            assert age is not None
            self.rate = THETA / (0.5 + age) if moving else certified_steps(problem, age)
        elif not isinstance(step, str):
            self.rate = float(step)

    def pose(self, problem: Problem) -> None:
        assert isinstance(problem, Objective)
        self.problem = problem

    # -- private memory, one column a node ---------------------------------------------------------

    def begin(self, h: Tensor) -> Tensor:
        graph, r = self.graph, h.size(0)
        self.own = torch.zeros_like(h)
        if self.auto:
            k, n = self.channels, graph.num_nodes
            self.block = h.new_zeros(r, k * k, n)
            self.trust = h.new_full((r, 1, n), self.damping)
            self.last = torch.zeros_like(h)
        if self.moving:
            self.rows = torch.zeros_like(h)
        return self._compute(h, gather(h, graph.src), graph.everyone)

    def forget(self, nodes: Tensor) -> None:
        self.own[..., nodes] = 0.0
        if self.auto:
            self.trust[..., nodes] = self.damping
            self.last[..., nodes] = 0.0

    # -- the rule ----------------------------------------------------------------------------------

    def _compute(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        """Recompute the gradients (and blocks) of the nodes' energies; returns the letters."""
        loops = self_loops(self.graph, at)
        if loops is not None:  # a node's view of itself is never stale
            inbox = torch.where(loops, gather(h, at.slot), inbox)
        if not self.auto:
            own, letters = self.problem.local(h, inbox, at)
        else:
            model = self.problem.quadratic(h, inbox, at, majorise=1.0)
            own, letters = model.own, model.toward
            block, blocks = model.b.flatten(1, 2), model.toward_curvature().flatten(1, 2)
            if loops is not None:
                block = block + at.collect(torch.where(loops, blocks, 0.0))
                blocks = torch.where(loops, 0.0, blocks)
            put(self.block, at, block)
        if loops is not None:
            own = own + at.collect(torch.where(loops, letters, 0.0))
            letters = torch.where(loops, 0.0, letters)
        put(self.own, at, own)
        if self.moving:
            rows, blocks = self.problem.local_row_bounds(at)
            if loops is not None:
                rows = rows + at.collect(torch.where(loops, blocks, 0.0))
                blocks = torch.where(loops, 0.0, blocks)
            put(self.rows, at, rows)
        return torch.cat([letters, blocks], 1) if self.auto or self.moving else letters

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return self._compute(h, inbox, at)

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None
        h = self.step(h, mail, at)
        return h, self._compute(h, inbox, at)

    def step(self, h: Tensor, mail: Tensor, at: Star, who: Tensor | None = None) -> Tensor:
        """The new embeddings [R, k, A]; only nodes in ``who`` [R, A] (``None``: all) remember the
        step."""
        heard = at.collect(mail)
        g = at.at_nodes(self.own) + heard[:, : self.channels]
        if self.auto:
            return h - self._scaled(g, heard[:, self.channels :], at, who)
        if self.moving:
            return h - self.rate * g / (at.at_nodes(self.rows) + heard[:, self.channels :])
        return h - (self.rate if isinstance(self.rate, float) else at.at_nodes(self.rate)) * g

    def _scaled(self, g: Tensor, blocks: Tensor, at: Star, who: Tensor | None) -> Tensor:
        """The damped block-scaled step, and the safeguard's bookkeeping."""
        k = self.channels
        last, before = at.at_nodes(self.last), at.at_nodes(self.trust)
        # Growth alone may be the neighbours' doing; growth in the opposite direction is one's own.
        overshot = ((g * last).sum(1, keepdim=True) < 0.0) & (
            g.square().sum(1, keepdim=True) > last.square().sum(1, keepdim=True)
        )
        trust = torch.where(overshot, 0.5 * before, 1.1 * before)
        trust = trust.clamp(1e-3 * self.damping, self.damping)
        mine = None if who is None else who.unsqueeze(1)
        put(self.trust, at, trust if mine is None else torch.where(mine, trust, before))
        put(self.last, at, g if mine is None else torch.where(mine, g, last))
        block = (at.at_nodes(self.block) + blocks).unflatten(1, (k, k)).movedim(-1, 1)
        d = torch.linalg.solve_ex(block, g.mT.unsqueeze(-1))[0][..., 0].mT
        return trust * d
