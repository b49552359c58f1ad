r"""What is proved about energies: gradient steps of certified size, and messages.

Let :math:`P \ge |\nabla^2 E|` entry by entry and everywhere, :math:`r = P \mathbf 1` its row sums,
and :math:`D'` the age of the oldest embedding inside any gradient used. With steps
:math:`\alpha_i = a_i / r_i`, :math:`a_i < 1 / (\tfrac12 + D')`, asynchronous gradient descent
converges from anywhere (:class:`Descent`). This replaces the paper's Proposition 2, whose bound on
the step shrinks with the gradient, so that no step satisfies it. Messages converge on every graph
if the energies are :attr:`~hogwild_node.local.LocalEnergy.dominated`, and from near the answer if
their echo is below one (:mod:`hogwild.analysis.echoes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.sparse import csc_matrix
from torch import Tensor

from hogwild.analysis.certificate import Certificate, Rate, compare, wrong_packets
from hogwild.analysis.echoes import Echoes
from hogwild.executors.simulation import Settings
from hogwild.graph import Graph
from hogwild.linalg.spectrum import LARGEST, extremes, jacobi, matrices
from hogwild.models.base import Kind
from hogwild.ops import as_field
from hogwild.problems.base import Objective
from hogwild.rules.base import certified_bounds, certified_steps


def _facts(
    problem: Objective, settings: Settings, h: Tensor, letters: bool
) -> tuple[Certificate, list[csc_matrix]]:
    """The constants of an energy, whose minimiser is ``h`` [R, k, N], and its Hessians there."""
    rows = problem.row_bounds()
    beta, top = problem.convexity(), problem.graph.norm(rows)  # [R, G]
    hessians = matrices(problem.evaluate(h.to(rows.dtype)).hessian())
    constants = {"strong_convexity": float(beta.min()), "largest_row_sum": float(top.max())}
    found = [extremes(matrix) for matrix in hessians]
    known = [limits for limits in found if limits is not None]
    if known:
        constants |= {
            "smallest_eigenvalue": min(low for low, _ in known),
            "largest_eigenvalue": max(high for _, high in known),
            "condition_number": max(high / low for low, high in known),
        }
    constants["condition_number_everywhere"] = float((problem.lipschitz() / beta).max())
    facts = Certificate(Kind.OPTIMISATION, False, "", constants)
    if settings.bounds is not None:
        age = settings.content_age(settings.bounds, letters)
        constants["content_age"] = float(age)
        facts.step = certified_steps(problem, age, letters)
    if settings.error:
        constants["packet_error"] = settings.error
    return facts, hessians


def certify_steps(
    problem: Objective, settings: Settings, answer: Callable[[], Tensor], letters: bool = True
) -> Certificate:
    """What is proved of gradient steps on an energy, whose minimiser is ``answer()``; ``letters``:
    neighbours send gradients."""
    value = answer()
    facts, _ = _facts(problem, settings, as_field(value, value.dtype), letters)
    step, certified = settings.step, facts.step
    if settings.bounds is None or certified is None:
        reason = (
            "the impairments given leave the staleness unbounded (unlimited loss, for instance), "
            "and a step of gradient descent is certified for a bound on it: bound them (burst=...)"
        )
        return replace(facts, reason=reason)
    if step == "auto":
        reason = (
            "steps of step='auto' are observed to converge; nothing is proved about them. "
            "step='certified' is proved"
        )
        return replace(facts, reason=reason)
    steps = certified if isinstance(step, str) else torch.full_like(certified, step)
    if bool((steps > certified).any()):
        limit = 2.0 / facts.constants.get("largest_eigenvalue", math.nan)
        known = "" if math.isnan(limit) else f", and steps above 2/λ_max = {limit:.3g} diverge"
        reason = (
            f"the step {step:.3g} is larger than the smallest certified one, "
            f"{float(certified.min()):.3g}: nothing is proved about it{known}. step='certified' is "
            f"proved"
        )
        return replace(facts, reason=reason)
    stagger, age = settings.bounds[0], settings.content_age(settings.bounds, letters)
    rows, apart = certified_bounds(problem, letters)
    descent = Descent(rows, apart, problem.convexity(), steps, age, stagger, problem.graph, letters)
    if settings.error:
        near = descent.near(settings.error)
        reason = (
            f"{wrong_packets(settings.error)} end near the synchronous answer and not at it. The "
            f"bound on the distance is cautious: it takes every curvature at its largest"
        )
        return replace(facts, reason=reason + compare(facts, near, lambda: value), near=near)
    shrink = descent.shrink()
    reason = (
        "the energy is strongly convex with a bounded Hessian, and gradient steps of at most the "
        "certified size keep the sum of all changes finite under every schedule with these bounds"
    )
    rate = Rate.of(1.0 / (1.0 + shrink), stagger + age, stagger, -math.log1p(shrink))
    return facts.proved(settings, reason, rate)


def certify_messages(
    problem: Objective, settings: Settings, answer: Callable[[], Tensor], letters: bool = True
) -> Certificate:
    """What is proved of messages."""
    value = answer()
    h = as_field(value, value.dtype)
    facts, hessians = _facts(problem, settings, h, letters)
    bounds = None if settings.error else settings.bounds
    echo = Echoes(problem, h.to(torch.float64)).echo() if h[0].numel() <= LARGEST else None
    if echo is not None:
        facts.constants["echo"] = echo.radius
        if echo.periods is not None and bounds is not None:
            ticks = echo.periods * sum(bounds)
            facts.local = Rate(echo.radius, sum(bounds), ticks / (0.5 * (bounds[0] + 1)))
    weights = problem.weights()
    if problem.node.dominated and weights is not None and not settings.error:
        reason = (
            "every term of the energy is a square of one or two embeddings and scaled diagonally "
            "dominant, so that messages contract on every graph, in every order that lets each "
            "message through"
        )
        rate = None
        if bounds is not None:
            # max_i Σ_j≠i |H_ij| v_j / (H_ii v_i) with the weights v of the energy
            v = weights.repeat_interleave(problem.channels).cpu().double().numpy()
            factor = max(float((jacobi(matrix) @ v / v).max()) for matrix in hessians)
            rate = Rate.of(factor, sum(bounds), bounds[0])
        return facts.proved(settings, reason, rate)
    reason = "messages are observed to converge"
    if settings.error:
        reason += "; nothing is proved about packets that are wrong"
    elif echo is None:
        reason += "; nothing is proved"
    elif echo.radius < 1.0:
        reason += (
            ". From near the answer (how near is not computed) they are proved to converge, while "
            "nodes trust them; from far away nothing is proved"
        )
    else:
        reason += (
            "; nothing is proved: messages may answer to messages more strongly than what they "
            "answer to (echo at least 1)"
        )
    if facts.step is not None:
        reason += ". rule='gradient' with step='certified' is proved"
    return replace(facts, reason=reason)


@dataclass(frozen=True)
class Descent:
    r"""The constants of the theorem on certified steps, for steps α = a / r:

    .. math::
        \Phi(t + S) \le \frac{1}{1 + c/C}\, \Phi(t - D'), \qquad
        c = \min_i \frac1{a_i} - \frac12 - D' \frac{q_i}{r_i}, \quad
        C = \frac{1}{2\mu}\Bigl(\frac1{\underline a} + \rho \sqrt{T}\Bigr)^2 + \rho \frac{D'}{2},
        \quad \mu = \frac{\beta}{\max_i r_i}, \quad \Phi \ge E - E^*,

    and :math:`\rho = \max_i q_i / r_i`. With ``letters`` r and q are the row sums. Where nodes
    compute both sides of their edges, the theorem on one hop holds: only what a node reads of
    others is old. T is how many changes may lie between what a node used and one tick of a window.
    """

    rows: Tensor  # r, [R, k, N]
    apart: Tensor  # q, [R, k, N]
    beta: Tensor  # β, [R, G]
    steps: Tensor  # α, [R, k, N]
    age: int  # D'
    stagger: int  # S
    graph: Graph
    letters: bool = True

    @property
    def mu(self) -> Tensor:
        """Strong convexity in the norm of the rows, [R, G]."""
        return self.beta / self.graph.norm(self.rows)

    @property
    def share(self) -> Tensor:
        """ρ, [R, G]."""
        return self.graph.norm(self.apart / self.rows)

    @property
    def margin(self) -> Tensor:
        """c, [R, G]."""
        each = 1.0 / (self.steps * self.rows) - 0.5 - self.age * self.apart / self.rows
        top = each.max()
        return top - self.graph.norm(top - each)  # the least, by the largest of what is missing

    @property
    def span(self) -> int:
        """T."""
        return self.age + self.stagger if self.letters else max(self.age, self.stagger - 1)

    def shrink(self) -> float:
        r"""c / C of the slowest graph: Φ shrinks by 1 / (1 + c / C).

        Where steps are not in proportion to 1 / r, another C is smaller, with the gradient's
        Euclidean norm: :math:`C = \tfrac{1}{2\beta} \bigl(\max_a \tfrac{1}{\alpha_a \sqrt{r_a}} +
        \rho \sqrt{T \max_a r_a}\bigr)^2 + \rho \tfrac{D'}{2}`.
        """
        norm, late = self.graph.norm, self.share * self.span**0.5
        scaled = (norm(1.0 / (self.steps * self.rows)) + late).square() / self.mu
        plain = norm(1.0 / (self.steps * self.rows.sqrt())) + late * norm(self.rows).sqrt()
        big = 0.5 * torch.minimum(scaled, plain.square() / self.beta)
        return float((self.margin / (big + 0.5 * self.share * self.age)).min())

    def near(self, error: float) -> float:
        r"""Distance from the answer in the end, where gradients are wrong by ε: with
        :math:`\bar\epsilon^2 = \sum_a \epsilon_a^2 / r_a`,

        .. math::
            \limsup \Phi \le \Bigl(\frac{C' (D' + S)}{c^2} + \frac{3}{2\mu} + \frac{S}{2c}\Bigr)
            \bar\epsilon^2, \qquad
            C' = \frac{3}{2\mu}\Bigl(\frac{1}{\underline a^2} + \rho^2 T\Bigr)
            + \rho \frac{D'}{2},

        and :math:`\|h - h^*\|^2 \le 2 \Phi / \beta`. Views wrong by δ make a gradient wrong by at
        most :math:`\delta r_a`, and each of the letters it is the sum of adds δ. Without letters
        :math:`\bar\epsilon^2 \le \rho \delta^2 \sum_a q_a`.
        """
        norm, age, stagger, c = self.graph.norm, self.age, self.stagger, self.margin
        if self.letters:
            wrong = self.rows + self.graph.in_degree.to(self.rows.dtype)
            square = self.graph.sum((wrong.square() / self.rows).sum(1))
        else:
            square = self.share * self.graph.sum(self.apart.sum(1))
        window = norm(1.0 / (self.steps * self.rows)).square() + self.share.square() * self.span
        big = 1.5 * window / self.mu + 0.5 * self.share * age
        gap = error**2 * square
        gap = gap * (big * (age + stagger) / c**2 + 1.5 / self.mu + 0.5 * stagger / c)
        return float((2.0 * gap / self.beta).sqrt().max())
