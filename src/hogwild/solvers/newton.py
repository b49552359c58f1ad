r"""Newton's method with a line search on every graph: the default for energies.

.. math::
    h \leftarrow h - t\, (\nabla^2 E)^{-1} \nabla E, \qquad 0 < t \le 1

A strongly convex energy with a bounded Hessian makes the damped iteration converge from anywhere,
and quadratically at the end.

*Secant curvature.* Large features or weights make an energy nearly piecewise linear: its Hessian
knows nothing of the next kink, steps become short, and kinks are passed one by one. On a graph that
has not converged after ``patience`` iterations
:meth:`~hogwild.problems.base.Evaluation.secant` replaces the Hessian: its curvatures bound the
energy's growth as far as a *reach* in the units of the pre-activations. The reach is one number a
graph. A full step divides it by four, and a shorter step multiplies it by sixteen. It is the radius
of a trust region that bends steps and does not cut them. Where full steps succeed the reach goes to
zero, and the last steps are Newton's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import require_integer, require_positive
from hogwild.linalg.capture import replay
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.operator import Hessian
from hogwild.problems.base import Evaluation, Objective
from hogwild.solvers.loop import Solver, State

REACH = (1e-3, 1e9)
"""Least and largest reach. At the least one the curvatures are nearly the Hessian's, at the largest
one the majoriser's for pre-activations of any sensible size; from either end a few steps lead back.
"""


@dataclass(frozen=True, kw_only=True)
class Newton(Solver[Objective]):
    """Damped Newton.

    Args:
        linear: ``"auto"``, ``"direct"`` or ``"cg"`` (see :class:`LinearSolver`).
        max_backtracks: Refused steps after which a graph counts as stalled (from a recording, in
            which they come in pairs: as many again).
        patience: Iterations on a graph after which secant curvature replaces the Hessian; no fewer
            than ``max_iter``: never. Ordinary graphs have converged by then.
        max_iter: As for every solver; a handful are the rule, but far from the minimum an energy
            with large weights is nearly piecewise linear, and single graphs may take a hundred or
            two to pass its kinks. From a recording, looking on for a step counts as an iteration.
    """

    linear: str = "auto"
    max_iter: int = 1000
    max_backtracks: int = 40
    patience: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        LinearSolver(self.linear)
        require_positive("max_backtracks", self.max_backtracks)
        require_integer("patience", self.patience, least=0)

    def init(self, problem: Objective, h: Tensor) -> State:
        state = self.objective_state(problem, h, problem.evaluate(h))
        one = torch.ones_like(state.graphs["residual"])
        state.graphs |= {"t": one, "age": torch.zeros_like(one), "reach": one}
        return state

    @staticmethod
    def _first(state: State) -> Tensor:
        """The step length to try first, [R, G]: where a graph had to take short steps it likely
        has to again, and finding that out from one costs an evaluation a halving."""
        return (4.0 * state.graphs["t"]).clamp_max(1.0)

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        late = active & (state.graphs["age"] >= self.patience)
        out = self._step(problem, state, active, late if bool(late.any()) else None)
        reach = state.graphs["reach"]
        moved = torch.where(out.graphs["t"] == 1.0, 0.25 * reach, 16.0 * reach).clamp(*REACH)
        out.graphs["reach"] = torch.where(late, moved, reach)
        moving = active if "refused" not in out.graphs else active & (out.graphs["refused"] == 0.0)
        out.graphs["age"] = state.graphs["age"] + moving  # looking on for a step is none
        return out

    def _step(self, problem: Objective, state: State, active: Tensor, late: Tensor | None) -> State:
        """A step, with secant curvature on the graphs in ``late`` [R, G]; ``None``: on no graph.
        The outcome has the step lengths ``t``."""
        graph, h = problem.graph, state.nodes["h"]
        linear = LinearSolver(self.linear)
        if late is None and linear.is_direct(problem):
            replayed = self._replay(problem, state, active)
            if replayed is not None:
                return replayed
        now = state.cache if isinstance(state.cache, Evaluation) else problem.evaluate(h)
        # Inexact Newton: the inner tolerance follows the residual, which keeps the convergence
        # quadratic, down to what the outer tolerance needs.
        forcing = state.graphs["residual"].clamp(1e-10, 1e-2)
        floor = 0.1 * self.tolerances(h.dtype)[0]
        t = self._first(state)
        if late is None:
            curvature = now.hessian()
        else:
            curvature = now.secant(torch.where(late, state.graphs["reach"], 0.0))
            t = torch.where(late, 1.0, t)
        d = linear.solve(curvature, -now.gradient, forcing, floor).value
        d = torch.where(graph.wide(active), d, 0.0)
        slope = graph.dot(now.gradient, d)  # < 0
        lost = active & ~(slope < 0.0)  # a factorisation that rounding broke, NaN as a rule
        if bool(lost.any()):
            d = torch.where(graph.wide(lost), self._downhill(curvature, now.gradient), d)
            slope = graph.dot(now.gradient, d)
        for _ in range(self.max_backtracks):
            trial = h + graph.wide(t) * d
            new = problem.evaluate(trial)
            reject = active & ~new.improves(now, graph, d, t, slope)
            if not bool(reject.any()):
                return self._at(problem, trial, new, t)
            t = torch.where(reject, new.shorten(now, t, slope), t)
        # No step helps these graphs: leave them where they were.
        t = t.masked_fill(reject, 0.0)
        h = torch.where(graph.wide(reject), h, h + graph.wide(t) * d)  # d need not be finite
        out = self._at(problem, h, problem.evaluate(h), t)
        out.graphs["stalled"] = reject
        return out

    @staticmethod
    def _downhill(curvature: Hessian, gradient: Tensor) -> Tensor:
        """A direction of descent without a factorisation: the gradient, entry by entry divided by
        the curvature along that entry, which is positive."""
        blocks = curvature.diagonal()
        if blocks is None:
            return -gradient
        return -gradient / blocks.diagonal(dim1=1, dim2=2).mT

    def _at(self, problem: Objective, h: Tensor, at: Evaluation, t: Tensor) -> State:
        state = self.objective_state(problem, h, at)
        state.graphs["t"] = t
        return state

    def _replay(self, problem: Objective, state: State, active: Tensor) -> State | None:
        """A step from a recording; ``None`` where there is none or the search fails.

        There is no search until all are content: a graph that refuses its step and one shorter one
        stays where it is and goes on searching in the next iteration, while the others move. Of
        thousands of graphs one always refuses, and a recording computes all of them however few
        are left to search.
        """
        relative = bool(self.tolerances(state.nodes["h"].dtype)[1])

        def body(problem: Objective, h: Tensor, active: Tensor, t: Tensor) -> tuple[Tensor, ...]:
            graph, now = problem.graph, problem.evaluate(h)
            d = LinearSolver(self.linear).solve(now.hessian(), -now.gradient, 0.0).value
            d = torch.where(graph.wide(active), d, 0.0)
            slope = graph.dot(now.gradient, d)
            for _ in range(2):
                trial = h + graph.wide(t) * d
                new = problem.evaluate(trial)
                refused = active & ~new.improves(now, graph, d, t, slope)
                used, t = t, torch.where(refused, new.shorten(now, t, slope), t)
            t = torch.where(refused, 0.25 * t, used)  # _first takes four times as much
            out = [(graph.norm(new.gradient), graph.norm(now.gradient))]
            if relative:
                out.append((new.scale, now.scale))
            moved = torch.where(graph.wide(refused), h, trial)
            return (moved, refused, t, *(torch.where(refused, old, new) for new, old in out))

        name = f"newton-{self.linear}-{relative}"
        found = replay(name, body, problem, state.nodes["h"], active, self._first(state))
        if found is None:
            return None
        h, refused, t, *measures = found
        times = state.graphs.get("refused", torch.zeros_like(t))
        times = torch.where(refused, times + 2.0, 0.0)
        if bool((times >= self.max_backtracks).any()):
            return None
        names = ("residual", "scale")[: len(measures)]
        graphs = dict(zip(names, measures, strict=True)) | {"t": t, "refused": times}
        return State({"h": h}, graphs)
