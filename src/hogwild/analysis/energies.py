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
from torch import Tensor

from hogwild.analysis.certificate import (
    HOPELESS,
    Certificate,
    Local,
    updates_needed,
    worth,
    wrong_packets,
)
from hogwild.analysis.echoes import Echoes
from hogwild.analysis.nearby import Nearby, dominance, flat, split
from hogwild.executors.simulation import Settings
from hogwild.graph import Graph
from hogwild.linalg.spectrum import LARGEST, Extremes, matrices, spectrum
from hogwild.models.base import Kind
from hogwild.ops import as_field
from hogwild.problems.base import Objective
from hogwild.rules.energies import certified_bounds, certified_steps


def _facts(problem: Objective, settings: Settings, h: Tensor, letters: bool) -> Certificate:
    """The constants of an energy, whose minimiser is ``h`` [R, k, N]."""
    rows = problem.row_bounds()
    beta, top = problem.convexity(), problem.graph.norm(rows)  # [R, G]
    hessians = matrices(problem.evaluate(h.to(rows.dtype)).hessian())
    limits = spectrum(hessians, beta, problem.lipschitz())
    high = max(limits, key=lambda found: found.high)
    constants = {
        "strong_convexity": float(beta.min()),
        "largest_row_sum": float(top.max()),
        "smallest_eigenvalue": min(found.low for found in limits),
        "largest_eigenvalue": high.high,
        "condition_number": max(found.high / found.low for found in limits),
        "condition_number_everywhere": float((problem.lipschitz() / beta).max()),
    }
    facts = Certificate(Kind.OPTIMISATION, False, "", constants)
    if settings.bounds is not None:
        age = settings.content_age(settings.bounds, letters)
        constants["content_age"] = float(age)
        facts.step = certified_steps(problem, age, letters)
    if settings.error:
        constants["packet_error"] = settings.error
    if not isinstance(settings.step, str):
        facts.own_step = _where(float(settings.step), facts.step, high)
    return facts


def certify_steps(
    problem: Objective,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    """What is proved of gradient steps on an energy, whose minimiser is ``answer()``. With a
    ``drift`` the energy changes in a tick as :meth:`Descent.tracking` says; ``letters``: neighbours
    send gradients."""
    value = answer()
    h = as_field(value, value.dtype)
    facts = _facts(problem, settings, h, letters)
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
    steps = certified if isinstance(step, str) else float(step)
    stagger, age = settings.bounds[0], settings.content_age(settings.bounds, letters)
    if float(torch.as_tensor(steps - certified).max()) > 0.0:
        reason = (
            f"the step {step:.3g} is larger than the smallest certified one, "
            f"{float(certified.min()):.3g}: nothing is proved about it. step='certified' is proved"
        )
        return replace(facts, reason=reason)
    r, q = certified_bounds(problem, letters)
    descent = Descent(
        r, problem.convexity(), steps, age, stagger, problem.graph, apart=None if letters else q
    )
    if settings.error:
        near = descent.near(settings.error)
        facts.constants["largest_entry"], remark = worth(near, h)
        reason = (
            f"{wrong_packets(settings.error)} end near the synchronous answer and not at it. The "
            f"bound on the distance is cautious: it takes every curvature at its largest{remark}"
        )
        return replace(facts, reason=reason, near=near)
    shrink, period = descent.shrink(), stagger + age
    rate, needed = 1.0 / (1.0 + shrink), updates_needed(-math.log1p(shrink), period, stagger)
    other = dominated_rate(problem, h.to(r.dtype), steps, age, stagger, letters)
    if other is not None and other[2] < needed:
        rate, period, needed = other
    proved = replace(
        facts,
        guaranteed=True,
        reason="the energy is strongly convex with a bounded Hessian, and gradient steps of at "
        "most the certified size keep the sum of all changes finite under every schedule with "
        "these bounds",
        rate=rate,
        period=period,
        updates=needed,
    )
    if drift is not None:
        limit = descent.tracking(drift, problem.row_bounds())
        proved.constants["largest_entry"], remark = worth(limit, h)
        proved = replace(proved, tracking=limit, reason=proved.reason + remark)
    return proved.under(settings)


def dominated_rate(
    problem: Objective,
    h: Tensor,
    steps: Tensor | float,
    age: int,
    stagger: int,
    letters: bool = True,
) -> tuple[float, int, float] | None:
    r"""What dominance proves of gradient steps on a quadratic energy: rate, period and updates;
    ``None`` where it proves nothing.

    Let :math:`w > 0`, let P be the sum of the absolute local Hessians, and d the diagonal of the
    Hessian. With steps :math:`\alpha_a \le 1 / P_{aa}` and

    .. math:: \delta_a = \frac1{w_a} \Bigl(d_a w_a - \sum_{b \ne a} P_{ab} w_b
                         - \alpha_a D' P_{aa} (P w)_a\Bigr) > 0,

    the error :math:`\max_a |h_a - h^*_a| / w_a` shrinks by :math:`1 - \min_a \alpha_a \delta_a`
    every 2D' + S ticks. Where nodes compute both sides of their edges (no ``letters``), their own
    embeddings are not old: the last term vanishes, and D + S ticks are enough. The proof is in the
    documentation ("The mathematics", "Rates of quadratic energies").
    """
    if not problem.is_quadratic or h[0].numel() > LARGEST:
        return None
    late = age if letters else 0  # of what a node used of itself
    alpha = flat(torch.as_tensor(steps, dtype=h.dtype).expand_as(h))
    least, spread = math.inf, 1.0
    for a, matrix, most in zip(alpha, *Nearby(problem, h).hessians(), strict=True):
        found = dominance(matrix.diagonal(), split(most)[1])
        if not found.holds:
            return None
        w, own = found.weights, most.diagonal()
        total = most @ w
        if not (a * own <= 1.0).all():
            return None
        delta = matrix.diagonal() * w - (total - own * w) - a * late * own * total
        least = min(least, float((a * delta / w).min()))
        spread = max(spread, float(w.max() / w.min()))
    if least <= 0.0:
        return None
    period = age + late + stagger
    needed = updates_needed(math.log(1.0 - least), period, stagger)
    return 1.0 - least, period, (1.0 + math.log(spread) / math.log(1e6)) * needed


def certify_messages(
    problem: Objective,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    """What is proved of messages; nothing is proved about answers that move."""
    value = answer()
    h = as_field(value, value.dtype)
    facts = _facts(problem, settings, h, letters)
    if settings.hopeless:
        return replace(facts, reason=HOPELESS)
    echo = None
    if h[0].numel() <= LARGEST:
        echo = Echoes(problem, h.to(torch.float64)).echo()
    if echo is not None:
        facts.constants["echo"] = echo.radius
        if echo.periods is not None and settings.bounds is not None and not settings.error:
            stagger, period = settings.bounds[0], sum(settings.bounds)
            needed = echo.periods * period / (0.5 * (stagger + 1))
            facts.local = Local("messages", echo.radius, period, needed)
    weights = problem.weights()
    if problem.node.dominated and weights is not None and not settings.error:
        reason = (
            "every term of the energy is a square of one or two embeddings and scaled diagonally "
            "dominant, so that messages contract on every graph, in every order that lets each "
            "message through"
        )
        proved = replace(facts, guaranteed=True, reason=reason)
        if settings.bounds is not None:
            rate, period = _pairwise_rate(problem, h, weights), sum(settings.bounds)
            needed = updates_needed(math.log(max(rate, 1e-6)), period, settings.bounds[0])
            proved = replace(proved, rate=rate, period=period, updates=needed)
        return proved.under(settings)
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


def _pairwise_rate(problem: Objective, h: Tensor, weights: Tensor) -> float:
    r"""The factor of messages between pairs of embeddings, :math:`\max_i \sum_{j \ne i} |H_{ij}|
    v_j / (H_{ii} v_i)` for the weights v [N]."""
    hessians, _ = Nearby(problem, h.to(torch.float64)).hessians()
    v = flat(weights.to(h).expand_as(h))[0]
    return max(float((abs(split(m)[1]) @ v / (m.diagonal() * v)).max()) for m in hessians)


def _where(own: float, certified: Tensor | None, largest: Extremes) -> str:
    """Where a step of one's own lies."""
    if certified is not None and own <= float(certified.min()):
        return f"{own:.3g} is certified: at most the smallest certified step"
    limit = "" if certified is None else f" (largest certified: {float(certified.min()):.3g})"
    if own < 2.0 / largest.high:
        return (
            f"{own:.3g} is not certified{limit}, but below 2/λ_max = {2.0 / largest.high:.3g} at "
            f"the solution: it may well converge"
        )
    if own <= 2.0 / largest.attained:
        return f"{own:.3g} is not certified{limit}, and about 2/λ_max at the solution"
    return (
        f"{own:.3g} is above 2/λ_max = {2.0 / largest.attained:.3g} at the solution: it diverges "
        f"even synchronously"
    )


@dataclass(frozen=True)
class Descent:
    r"""The constants of the theorem on certified steps, for steps α = a / r:

    .. math::
        \Phi(t + S) \le \frac{1}{1 + c/C}\, \Phi(t - D'), \qquad
        c = \frac1{\overline a} - \frac12 - D', \quad
        C = \frac{1}{2\mu}\Bigl(\frac1{\underline a} + \sqrt{D' + S}\Bigr)^2 + \frac{D'}{2}, \quad
        \mu = \frac{\beta}{\max_i r_i}, \quad \Phi \ge E - E^*.

    Where nodes compute both sides of their edges (``apart``, q), the theorem on one hop holds: only
    what a node reads of others is old, and :math:`\rho = \max_i q_i / r_i`. With letters
    :math:`\rho = 1`, and r are row sums.
    """

    rows: Tensor  # r, [R, k, N]
    beta: Tensor  # β, [R, G]
    steps: Tensor | float  # α, [R, k, N] or a number
    age: int  # D'
    stagger: int  # S
    graph: Graph
    apart: Tensor | None = None  # q, [R, k, N]; None: neighbours send gradients

    @property
    def mu(self) -> Tensor:
        """Strong convexity in the norm of the rows, [R, G]."""
        return self.beta / self.graph.norm(self.rows)

    @property
    def share(self) -> Tensor:
        """ρ, [R, G]."""
        one = torch.ones_like(self.rows)
        return self.graph.norm(one if self.apart is None else self.apart / self.rows)

    @property
    def margin(self) -> Tensor:
        """c, [R, G]: the least 1 / a - 1/2 - D' q / r."""
        late = 1.0 if self.apart is None else self.apart / self.rows
        each = 1.0 / (self.steps * self.rows) - 0.5 - self.age * late
        top = each.max()
        return top - self.graph.norm(top - each)

    @property
    def span(self) -> int:
        """T, how many changes may lie between what a node used and one tick of a window."""
        return self.age + self.stagger if self.apart is None else max(self.age, self.stagger - 1)

    def _window(self) -> Tensor:
        """1 / a² + ρ² T, [R, G]."""
        largest = self.graph.norm(1.0 / (self.steps * self.rows))
        return largest.square() + self.share.square() * self.span

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
        wrong = error * (self.rows + self.graph.in_degree.to(self.rows.dtype))
        square = self.graph.sum((wrong.square() / self.rows).sum(1))
        if self.apart is not None:
            square = self.share * error**2 * self.graph.sum(self.apart.sum(1))
        c, age, stagger = self.margin, self.age, self.stagger
        big = 1.5 * self._window() / self.mu + 0.5 * self.share * age
        gap = square * (big * (age + stagger) / c**2 + 1.5 / self.mu + 0.5 * stagger / c)
        return float((2.0 * gap / self.beta).sqrt().max())

    def tracking(self, drift: float, rows: Tensor) -> float:
        r"""Distance from a minimiser that moves, in the end, where a tick changes the gradient of
        the energy by at most :math:`d R_a` in every entry, d being the ``drift`` and R bounds on
        the absolute row sums of the Hessian, ``rows``: with
        :math:`T = D' + S`, :math:`\bar\gamma^2 = d^2 \sum_a R_a^2 / r_a`,
        :math:`b = \bar\gamma \sqrt{2 / \mu}`, :math:`e = D' \bar\gamma / \sqrt{2c}`,
        :math:`A = 2C' / c` and C' of :meth:`near`,

        .. math::
            W = A T + S, \qquad
            Z = W (e^2 + b T (e + b)) + \frac{3 T^2 \bar\gamma^2}{2 \mu}, \qquad
            \limsup \sqrt\Phi \le p = \frac{W b + \sqrt{W^2 b^2 + 4 Z}}{2},

        and :math:`\|h - h^*\| \le p \sqrt{2 / \beta}`. The proof is in the documentation
        ("The mathematics").
        """
        window, c, mu = self.age + self.stagger, self.margin, self.mu
        gamma = drift * self.graph.sum((rows.square() / self.rows).sum(1)).sqrt()  # [R, G]
        b, e = gamma * (2.0 / mu).sqrt(), self.age * gamma / (2.0 * c).sqrt()
        big = 1.5 * self._window() / mu + 0.5 * self.share * self.age
        w = 2.0 * big / c * window + self.stagger
        z = w * (e**2 + b * window * (e + b)) + 1.5 * (window * gamma) ** 2 / mu
        p = 0.5 * (w * b + ((w * b) ** 2 + 4.0 * z).sqrt())
        return float((p * (2.0 / self.beta).sqrt()).max())
