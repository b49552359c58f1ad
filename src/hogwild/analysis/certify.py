r"""What is proved about a model under asynchrony, with the constants of this model on this graph.

``certify(model, data, ...)`` speaks of ``simulate(model, data, ...)`` with the same arguments. All
proofs are in the documentation ("Asynchrony").

*Optimisation-based models under gradient steps.* Let :math:`P \ge |\nabla^2 E|` entry by entry and
everywhere, :math:`r = P \mathbf 1` its row sums, and :math:`D'` the age of the oldest embedding
inside any gradient used: :math:`2D + S` for Algorithm 1's packets, :math:`2D + S - 1` for the exact
exchange. With steps :math:`\alpha_i = a_i / r_i`, :math:`\underline a \le a_i \le \overline a < 1 /
(\tfrac12 + D')`, asynchronous gradient descent converges to the minimiser, at least as fast as

.. math::
    \Phi(t + S) \le \frac{1}{1 + c/C}\, \Phi(t - D'), \qquad
    c = \frac1{\overline a} - \frac12 - D', \quad
    C = \frac{1}{\mu}\Bigl(\frac1{\underline a^2} + D' + S\Bigr) + \frac{D'}{2}, \quad
    \mu = \frac{\beta}{\max_i r_i},

with :math:`\Phi \ge E - E^*`. This replaces the paper's Proposition 2, whose bound on the step
shrinks with the gradient and gives no step at all. ``step="auto"`` is observed to converge, and
nothing is proved about it.

*Optimisation-based models under messages*: observed to converge. Proved on forests, for quadratic
energies whose Hessian has no positive entry off its diagonal.

*Fixed-point models* converge where the map contracts in a weighted *maximum* norm over the nodes,
by a factor κ every S + D ticks. A contraction in another norm, as the paper's Proposition 1 has it,
is not enough: 0.98 times a rotation by 2.25 rad contracts in the Euclidean norm, and diverges when
its two coordinates are updated in turn.

*Stacks* converge where each of their levels does, without a rate.

*Explicit models*: nothing is guaranteed when nodes overwrite, as in the paper; when they cache
their neighbours' values of every layer, the synchronous answer is there after L (S + D) ticks; when
they resend what was not acknowledged, it is there in the end.

*Packets that are wrong* by up to δ in every number (quantised, or not sent because little has
changed) leave runs near the answer and not at it, within a distance that is proportional to δ; of
maxima this is proved where δ is below what every edge takes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import bounds, check_bounds
from hogwild.errors import AsynchronyError
from hogwild.executors.simulated import check_exchange
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.spectrum import Extremes, matrices, spectrum
from hogwild.models.base import AnyProblem, Conv, GraphModule, Kind
from hogwild.models.check import runnable
from hogwild.models.layers import LayeredProblem
from hogwild.models.levels import StackProblem
from hogwild.models.mode import evaluating, uncompiled
from hogwild.ops import as_field
from hogwild.problems.base import FixedPoint, Objective
from hogwild.rules import choose, rule_for
from hogwild.rules.steps import certified_steps, check_step

LABELS = {
    "strong_convexity": "strong convexity β",
    "largest_row_sum": "largest row sum of |Hessian|, everywhere",
    "smallest_eigenvalue": "smallest eigenvalue at the solution, at least",
    "largest_eigenvalue": "largest eigenvalue at the solution, at most",
    "condition_number": "condition number at the solution, at most",
    "condition_number_everywhere": "condition number, proved everywhere",
    "content_age": "D', age of the oldest embedding used",
    "modulus": "modulus κ of the contraction",
    "packet_error": "δ, largest error of a number in a packet",
    "largest_entry": "largest entry of any embedding in the answer",
    "layers": "layers L",
    "ticks_to_answer": "ticks until the answer, L (S + D)",
}
"""The constants of a certificate, in words."""


@dataclass
class Certificate:
    """What is proved, and what was measured, for one model on one batch of graphs.

    Attributes:
        kind: The model's :class:`~hogwild.models.Kind`.
        guaranteed: Whether convergence to the synchronous answer is proved.
        reason: Why, or why not.
        constants: The numbers that enter, worst graph (and replica) first; :data:`LABELS` says
            what they are.
        step: Certified steps [R, k, N] of an optimisation-based model, where a bound on the
            staleness holds.
        rate: Proved factor by which the error (energy gap, or weighted maximum norm) shrinks every
            ``period`` ticks; ``None``: no rate is proved.
        period: See ``rate``.
        updates: Updates a node makes, on average, until the proof promises an error 10⁻⁶ times the
            one at ``since``.
        own_step: Where the user's step lies, if one was given.
        near: Proved bound on the distance, in the largest entry of any embedding, from the
            synchronous answer at which runs end; 0 where ``guaranteed``, ``None`` where no bound is
            proved. A bound above ``constants["largest_entry"]`` says nothing, and ``reason`` says
            so.
        since: Tick from which on the rate holds: before, nodes may lose their memory.
        levels: Of a stack: what holds for each level once those below stand still.
        rule: What the nodes do; ``None`` where the model cannot run asynchronously at all.
    """

    kind: Kind
    guaranteed: bool
    reason: str
    constants: dict[str, float] = field(default_factory=dict)
    step: Tensor | None = None
    rate: float | None = None
    period: int | None = None
    updates: float | None = None
    own_step: str | None = None
    near: float | None = None
    since: int = 0
    levels: tuple[Certificate, ...] = ()
    rule: str | None = None

    def __post_init__(self) -> None:
        if self.guaranteed:
            self.near = 0.0

    @property
    def data(self) -> dict[str, Any]:
        """Everything as numbers and words, for programs; constants by their names."""
        step = self.step
        return {
            "kind": str(self.kind),
            "rule": self.rule,
            "guaranteed": self.guaranteed,
            "near": self.near,
            "reason": self.reason,
            "rate": self.rate,
            "period": self.period,
            "since": self.since,
            "updates": self.updates,
            "certified_step_min": None if step is None else float(step.min()),
            "certified_step_max": None if step is None else float(step.max()),
            "own_step": self.own_step,
            **self.constants,
            "levels": [level.data for level in self.levels],
        }

    def __str__(self) -> str:
        head = "convergence under asynchrony not guaranteed"
        if self.guaranteed:
            head = "convergence under asynchrony guaranteed"
        elif self.near is not None:
            head = f"asynchronous runs end within {self.near:.3g} of the synchronous answer"
        lines = [f"{self.kind} model, {head}", f"  {self.reason}"]
        lines += [
            f"  {LABELS.get(name, name)} = {value:.4g}" for name, value in self.constants.items()
        ]
        if self.step is not None:
            low, high = float(self.step.min()), float(self.step.max())
            lines.append(f"  certified steps: {low:.3g} to {high:.3g}, by node")
        if self.rate is not None:
            since = "" if not self.since else f"from tick {self.since} on, "
            lines.append(
                f"  proved rate: {since}the error loses at least a share of {1 - self.rate:.3g} "
                f"every {self.period} ticks; 1e-6 of it is left after {self.updates:.3g} updates a "
                f"node (mean)"
            )
        if self.own_step is not None:
            lines.append(f"  your step: {self.own_step}")
        lines += [f"level {number}: {level}" for number, level in enumerate(self.levels, 1)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Conditions:
    """What nodes are up against.

    Attributes:
        bounds: S and D that hold with all impairments; ``None``: none do.
        recurs: Whether packets come through on every link again and again, with probability one.
        error: δ, how wrong a number in a packet may be.
        calm: Tick from which on no node loses its memory.
        exact: Whether gradients come from a second exchange.
        plain: Whether nothing goes wrong but delays and turns, so that every packet arrives.
    """

    bounds: tuple[int, int] | None
    recurs: bool
    error: float
    calm: int
    exact: bool
    plain: bool = False

    @classmethod
    def of(
        cls, stagger: int, delay: int, exchange: str, impairments: tuple[Impairment, ...]
    ) -> Conditions:
        return cls(
            bounds(stagger, delay, impairments),
            all(impairment.recurs for impairment in impairments),
            sum(impairment.error for impairment in impairments),
            max((impairment.calm for impairment in impairments), default=0),
            exchange == "exact",
            not impairments,
        )

    @property
    def hopeless(self) -> bool:
        """Whether some packets may never come through."""
        return self.bounds is None and not self.recurs

    def limits(self, certificate: Certificate) -> Certificate:
        """A certificate of bounded staleness, or of any, as these conditions leave it."""
        if self.bounds is None:
            certificate = replace(
                certificate,
                reason=f"{certificate.reason}. Nothing bounds the staleness here (unlimited loss, "
                f"for instance), but packets come through again and again with probability one, "
                f"and with that probability runs converge; without a rate",
                rate=None,
                period=None,
                updates=None,
            )
        elif self.calm:
            certificate = replace(
                certificate,
                reason=f"{certificate.reason}. Until tick {self.calm} nodes may come back from "
                f"crashes without their memory, and nothing is proved about the time before",
                since=self.calm + self.bounds[0],
            )
        return certificate


_HOPELESS = (
    "some packets may never come through (a loss rate of 1 without a limit on its length, for "
    "instance), and what is never heard cannot be learned"
)


@torch.no_grad()
def certify(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
    *,
    rule: str = "auto",
    step: str | float = "auto",
    exchange: str = "packet",
    impairments: Impairment | Sequence[Impairment] = (),
) -> Certificate:
    """What is proved of :func:`hogwild.simulate` with the same arguments; the constants, the
    certified step and rate, and where a step of your own lies.

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``.
        stagger: S, the largest number of ticks between two updates of a node.
        delay: D, the largest age of a view.
        rule: As in :func:`hogwild.simulate`. Of energies more is proved under gradient steps with
            ``step="certified"`` than under messages, which ``"auto"`` means for them.
        step: ``"auto"``, ``"certified"`` or a number, for gradient steps; with ``rule="auto"`` a
            number or ``"certified"`` asks for such steps.
        exchange: As in :func:`hogwild.simulate`.
        impairments: What else goes wrong; the bounds that hold with them are certified.
    """
    found = uncompiled(model)
    found = found if isinstance(found, Conv) else runnable(found)
    stagger, delay = check_bounds(stagger, delay)
    impaired = check_impairments(impairments)
    check_exchange(exchange, impaired)
    check_step(step)
    inputs = Inputs.of(data)
    conditions = Conditions.of(stagger, delay, exchange, impaired)
    with evaluating(found):
        return _certify(found, inputs, conditions, rule, step)


def _certify(
    model: GraphModule, inputs: Inputs, conditions: Conditions, rule: str, step: str | float
) -> Certificate:
    kind = model.kind
    try:
        model.require_asynchronous(inputs)
        problem = model.problem(inputs)
    except AsynchronyError as error:
        return Certificate(kind, False, f"it cannot run asynchronously at all: {error}")
    rule = choose(problem, rule, step)
    found = _proved(model, problem, inputs, conditions, rule, step)
    return replace(found, rule=rule, levels=tuple(replace(x, rule=rule) for x in found.levels))


def _proved(
    model: GraphModule,
    problem: AnyProblem,
    inputs: Inputs,
    conditions: Conditions,
    rule: str,
    step: str | float,
) -> Certificate:
    """What is proved of a problem under a rule."""
    kind = model.kind
    if isinstance(problem, StackProblem):
        solved = model.solutions(inputs)
        answers = [as_field(level.value, level.value.dtype) for level in solved]
        return _stack(kind, problem, answers, conditions, rule, step)
    if isinstance(problem, LayeredProblem):
        return _explicit(problem, rule, conditions)
    if isinstance(problem, FixedPoint):
        return _fixed_point(problem.detach(), conditions, lambda: model.embed(inputs).value)
    assert isinstance(problem, Objective)
    h = model.embed(inputs).value
    return _optimisation(problem.detach(), as_field(h, h.dtype), conditions, rule, step)


_EXPLICIT = {
    "overwriting": "a node applies its layers to whatever its neighbours last sent, of whatever "
    "layer: the result depends on the schedule, and no further update mends it",
    "waiting": "nodes wait for the layer they need, so the answer is the synchronous one if every "
    "message arrives; a single lost message stops its receivers, and in the end all, for ever. "
    "Nothing bounds the time it takes but the slowest node.",
    "resending": "nodes wait for the layer they need, and every value is sent until it is "
    "acknowledged: the answer is the synchronous one as soon as every node has had its layers, "
    "with any delay and loss that lets a message through now and then",
    "caching": "a node recomputes all layers from its neighbours' newest values of all of them: "
    "values of layer l + 1 are right once those of layer l are and have been heard, so the answer "
    "is the synchronous one after L (S + D) ticks, and under any loss or delay as soon as word has "
    "crossed L hops",
}


def _explicit(problem: LayeredProblem, rule: str, conditions: Conditions) -> Certificate:
    reason, constants = _EXPLICIT[rule], {"layers": float(problem.depth)}
    try:
        rule_for(problem, rule)
    except AsynchronyError as error:  # no link back for acknowledgements, for instance
        reason = f"it cannot run under this rule: {error}"
        return Certificate(Kind.EXPLICIT, False, reason, constants)
    if conditions.hopeless:
        return Certificate(Kind.EXPLICIT, False, _HOPELESS, constants)
    if rule == "waiting" and conditions.plain:
        return Certificate(Kind.EXPLICIT, True, f"{reason} Here every packet arrives.", constants)
    if rule not in ("resending", "caching"):
        return Certificate(Kind.EXPLICIT, False, reason, constants)
    if conditions.error:
        reason += ". Here packets are wrong by a little, and nothing bounds what layers make of it"
        return Certificate(Kind.EXPLICIT, False, reason, constants)
    if rule == "caching" and conditions.bounds is not None:
        constants["ticks_to_answer"] = float(problem.depth * sum(conditions.bounds))
    return conditions.limits(Certificate(Kind.EXPLICIT, True, reason, constants))


# -- fixed points ---------------------------------------------------------------------------------


def _fixed_point(
    problem: FixedPoint, conditions: Conditions, answer: Callable[[], Tensor]
) -> Certificate:
    kind = Kind.FIXED_POINT
    if conditions.hopeless:
        return Certificate(kind, False, _HOPELESS)
    if problem.monotone:
        reason = (
            "its updates are monotone and idempotent (a maximum over decreasing paths): every "
            "order, delay, repetition or loss that lets each message through eventually ends, "
            "after finitely many updates, at the same answer. Not a contraction, so there is no "
            "rate"
        )
        return _near(problem, conditions, Certificate(kind, True, reason), answer)
    modulus = problem.modulus()
    if modulus is None:
        return Certificate(
            kind,
            False,
            "its update is a general network, trained towards a contraction but not made one: "
            "nothing is proved. model.problem(...).contractivity(h) measures the modulus at a "
            "point, in the norm that matters.",
        )
    worst = float(modulus.max())
    constants = {"modulus": worst}
    if not worst < 1.0:
        reason = "the bound on the contraction modulus is not below one"
        return Certificate(kind, False, reason, constants=constants)
    reason = (
        "the map contracts in a weighted maximum norm over the nodes, so every order and every "
        "bounded delay leads to its one fixed point (and so does unbounded delay, without a rate)"
    )
    proved = Certificate(kind, True, reason, constants=constants)
    if conditions.bounds is not None:
        stagger, delay = conditions.bounds
        periods = math.log(1e-6) / math.log(worst) if worst > 0 else 1.0
        period = stagger + delay
        updates = periods * period / (0.5 * (stagger + 1))
        proved = replace(proved, rate=worst, period=period, updates=updates)
    return _near(problem, conditions, proved, answer)


def _near(
    problem: FixedPoint,
    conditions: Conditions,
    proved: Certificate,
    answer: Callable[[], Tensor],
) -> Certificate:
    """What of a proof is left where packets are wrong."""
    if not conditions.error:
        return conditions.limits(proved)
    drift = problem.drift(conditions.error)
    limit = math.inf if drift is None else float(drift.max())
    wrong = (
        f"packets are wrong by up to {conditions.error:.3g} in every number (quantised, or not "
        f"sent because little has changed), so that runs"
    )
    constants = proved.constants | {"packet_error": conditions.error}
    if math.isinf(limit):
        reason = f"{wrong} need not end at the synchronous answer; no bound on the distance is "
        reason += "proved"
        if problem.monotone:
            reason += (
                ". One is where packets are wrong by less than every edge takes away: by more, and "
                "a value may grow on its way round a cycle"
            )
        return Certificate(proved.kind, False, reason, constants=constants)
    surely = "" if conditions.bounds is not None else ", with probability one"
    constants["largest_entry"], worth = _worth(limit, answer())
    reason = f"{wrong} end near the synchronous answer and not at it{surely}{worth}"
    return Certificate(proved.kind, False, reason, near=limit, constants=constants)


def _worth(near: float, answer: Tensor) -> tuple[float, str]:
    """The largest entry of the answer, and what to say of a bound that exceeds it."""
    size = float(answer.abs().max()) if answer.numel() else 0.0
    if near <= size:
        return size, ""
    return size, (
        f". The bound is larger than every entry of the embeddings (the largest is {size:.3g}): it "
        f"is proved, and says nothing about the answer"
    )


# -- energies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descent:
    r"""The constants of the theorem on certified steps, for steps α = a / r.

    Attributes:
        rows: r, [R, k, N].
        beta: β, [R, G].
        steps: α, [R, k, N] or a number.
        age: D'.
        stagger: S.
        graph: The graphs.
    """

    rows: Tensor
    beta: Tensor
    steps: Tensor | float
    age: int
    stagger: int
    graph: Graph

    @property
    def mu(self) -> Tensor:
        """Strong convexity in the norm of the rows, [R, G]."""
        return self.beta / self.graph.norm(self.rows)

    @property
    def margin(self) -> Tensor:
        """c, [R, G]."""
        return 1.0 / self.graph.norm(self.steps * self.rows) - 0.5 - self.age

    def _window(self) -> Tensor:
        """1 / a² + D' + S, [R, G]."""
        largest = self.graph.norm(1.0 / (self.steps * self.rows))
        return largest.square() + self.age + self.stagger

    def shrink(self) -> float:
        """c / C of the slowest graph: Φ shrinks by 1 / (1 + c / C)."""
        return float((self.margin / (self._window() / self.mu + 0.5 * self.age)).min())

    def near(self, error: float) -> float:
        r"""Where gradients that are wrong by ε lead to, in the end: with
        :math:`\bar\epsilon^2 = \sum_a \epsilon_a^2 / r_a`,

        .. math::
            \limsup \Phi \le \Bigl(\frac{C' (D' + S)}{c^2} + \frac{3}{2\mu} + \frac{S}{2c}\Bigr)
            \bar\epsilon^2, \qquad
            C' = \frac{3}{2\mu}\Bigl(\frac{1}{\underline a^2} + D' + S\Bigr) + \frac{D'}{2},

        and :math:`\|h - h^*\|^2 \le 2 \Phi / \beta`. Views wrong by δ make a gradient wrong by at
        most :math:`\delta r_a`, and each of the letters it is the sum of adds δ.
        """
        wrong = error * (self.rows + self.graph.in_degree.to(self.rows.dtype))
        square = self.graph.sum((wrong.square() / self.rows).sum(1))
        c, age, stagger = self.margin, self.age, self.stagger
        big = 1.5 * self._window() / self.mu + 0.5 * age
        gap = square * (big * (age + stagger) / c**2 + 1.5 / self.mu + 0.5 * stagger / c)
        return float((2.0 * gap / self.beta).sqrt().max())


def _optimisation(
    problem: Objective, h: Tensor, conditions: Conditions, rule: str, step: str | float
) -> Certificate:
    rows = problem.row_bounds()
    beta, top = problem.convexity(), problem.graph.norm(rows)  # [R, G]
    found = matrices(problem.evaluate(h.to(rows.dtype)).hessian())
    limits = spectrum(found, problem.convexity(), problem.lipschitz())
    high = max(limits, key=lambda found: found.high)
    constants = {
        "strong_convexity": float(beta.min()),
        "largest_row_sum": float(top.max()),
        "smallest_eigenvalue": min(found.low for found in limits),
        "largest_eigenvalue": high.high,
        "condition_number": max(found.high / found.low for found in limits),
        "condition_number_everywhere": float((top / beta).max()),
    }
    facts = Certificate(Kind.OPTIMISATION, False, "", constants=constants)
    if conditions.bounds is not None:
        stagger, delay = conditions.bounds
        age = 2 * delay + stagger - conditions.exact
        constants["content_age"] = float(age)
        facts.step = certified_steps(problem, age)
    if conditions.error:
        constants["packet_error"] = conditions.error
    if not isinstance(step, str):
        facts.own_step = _where(float(step), facts.step, high)
    if rule == "messages":
        local = problem.is_quadratic and all((m - _diagonal(m)).max() <= 0.0 for m in found)
        return _messages(facts, conditions, local, _is_forest(problem.graph))
    if conditions.bounds is None:
        reason = (
            "the impairments given leave the staleness unbounded (unlimited loss, for instance), "
            "and a step of gradient descent is certified for a bound on it: bound them (burst=...)"
        )
        return replace(facts, reason=reason)
    assert facts.step is not None
    if step == "auto":
        reason = (
            "steps of step='auto' are observed to converge; nothing is proved about them. "
            "step='certified' is proved"
        )
        return replace(facts, reason=reason)
    steps = facts.step if step == "certified" else float(step)
    if float(torch.as_tensor(steps - facts.step).max()) > 0.0:
        reason = (
            f"the step {step:.3g} is larger than the smallest certified one, "
            f"{float(facts.step.min()):.3g}: nothing is proved about it. step='certified' is proved"
        )
        return replace(facts, reason=reason)
    descent = Descent(rows, beta, steps, age, stagger, problem.graph)
    if conditions.error:
        near = descent.near(conditions.error)
        constants["largest_entry"], worth = _worth(near, h)
        reason = (
            f"packets are wrong by up to {conditions.error:.3g} in every number (quantised, or not "
            f"sent because little has changed), so that runs end near the synchronous answer and "
            f"not at it. The bound on the distance is cautious: it takes every curvature at its "
            f"largest{worth}"
        )
        return replace(facts, reason=reason, near=near)
    shrink, period = descent.shrink(), stagger + age
    proved = replace(
        facts,
        guaranteed=True,
        reason="the energy is strongly convex with a bounded Hessian, and gradient steps of at "
        "most the certified size keep the sum of all changes finite under every schedule with "
        "these bounds",
        rate=1.0 / (1.0 + shrink),
        period=period,
        updates=-math.log(1e-6) / math.log1p(shrink) * period / (0.5 * (stagger + 1)),
    )
    return conditions.limits(proved)


def _messages(facts: Certificate, conditions: Conditions, local: bool, forest: bool) -> Certificate:
    """Of messages: what is proved, and that the rest is observed."""
    if conditions.hopeless:
        return replace(facts, reason=_HOPELESS)
    if not (local and forest) or conditions.error:
        reason = (
            "messages are observed to converge; a proof holds only for quadratic energies with "
            "nonpositive couplings (GSDGNN), on graphs without cycles, and for packets that are "
            "not wrong"
        )
        if facts.step is not None:
            reason += ". rule='gradient' with step='certified' is proved"
        return replace(facts, reason=reason)
    reason = (
        "the graph has no cycles and the energy is quadratic with nonpositive couplings: messages "
        "are exact elimination, and arrive under every order that lets each message through"
    )
    return conditions.limits(replace(facts, guaranteed=True, reason=reason))


def _diagonal(matrix: Any) -> Any:
    """The diagonal of a sparse matrix, as one."""
    n = matrix.shape[0]
    return coo_matrix((matrix.diagonal(), (range(n), range(n))), shape=matrix.shape).tocsc()


def _is_forest(graph: Graph) -> bool:
    """Whether no cycle joins nodes; self-loops and parallel edges are none."""
    ends = torch.stack([graph.src, graph.dst]).sort(0).values[:, graph.src != graph.dst]
    pairs = ends.unique(dim=1).cpu()
    n = graph.num_nodes
    ones = torch.ones(pairs.size(1)).numpy()
    joined = coo_matrix((ones, tuple(pairs.numpy())), shape=(n, n))
    trees, _ = connected_components(joined, directed=False)
    return bool(pairs.size(1) == n - trees)


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


# -- stacks ---------------------------------------------------------------------------------------


def _stack(
    kind: Kind,
    stack: StackProblem,
    answers: list[Tensor],
    conditions: Conditions,
    rule: str,
    step: str | float,
) -> Certificate:
    """Level by level, with those below at their answers."""
    found: list[Certificate] = []
    for problem, h in zip(stack.settled(answers), answers, strict=True):
        if isinstance(problem, FixedPoint):
            found.append(_fixed_point(problem, conditions, h.detach))
        else:
            assert isinstance(problem, Objective)
            found.append(_optimisation(problem, h, conditions, rule, step))
    levels = tuple(replace(level, rate=None, period=None, since=0, updates=None) for level in found)
    weak = [number for number, level in enumerate(levels, 1) if not level.guaranteed]
    if not weak:
        reason = (
            "every level converges once those below stand still, and its problem is continuous in "
            "their embeddings: level by level all converge. No rate is computed"
        )
        return conditions.limits(Certificate(kind, True, reason, levels=levels))
    which = f"level {weak[0]}" if len(weak) == 1 else f"levels {', '.join(map(str, weak))}"
    reason = f"a stack converges where every level does, which is not proved of {which}"
    if all(levels[number - 1].near is not None for number in weak):
        reason = (
            "packets are wrong, so that every level ends near its answer and passes its error on "
            "to the next; no bound on the sum is computed"
        )
    return Certificate(kind, False, reason, levels=levels)


def explain_guarantee(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
    *,
    rule: str = "auto",
    step: str | float = "auto",
    exchange: str = "packet",
    impairments: Impairment | Sequence[Impairment] = (),
) -> Certificate:
    """Print what is guaranteed under asynchrony for this model on this graph, the constants, and
    why; arguments as in :func:`certify`. Returns the :class:`Certificate`."""
    found = certify(
        model, data, stagger, delay, rule=rule, step=step, exchange=exchange,
        impairments=impairments,
    )  # fmt: skip
    print(found)
    return found
