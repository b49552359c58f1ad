r"""What is proved about a model under asynchrony, with the constants of this model on this graph.

*Optimisation-based models.* Let :math:`P \ge |\nabla^2 E|` entry by entry and everywhere,
:math:`r = P \mathbf 1` its row sums, and :math:`D'` the age of the oldest embedding inside any
gradient used: :math:`2D + S` for Algorithm 1's packets, :math:`2D + S - 1` for the exact exchange.
With the steps :math:`\alpha_i = a / r_i`, :math:`a < 1 / (\tfrac12 + D')`, asynchronous gradient
descent converges to the minimiser, at least as fast as

.. math::
    \Phi(t + S) \le \frac{1}{1 + c/C}\, \Phi(t - D'), \qquad
    c = \frac1a - \frac12 - D', \quad C = \frac{1}{\mu}\Bigl(\frac1{a^2} + D' + S\Bigr)
    + \frac{D'}{2}, \quad \mu = \frac{\beta}{\max_i r_i},

with :math:`\Phi \ge E - E^*`. The proof is in the documentation ("Asynchrony"); it replaces the
paper's Proposition 2, whose bound on the step shrinks with the gradient and gives no step at all.

*Fixed-point models* converge where the map contracts in a weighted *maximum* norm over the nodes,
by a factor κ every S + D ticks. A contraction in another norm, as the paper's Proposition 1 has it,
is not enough: 0.98 times a rotation by 2.25 rad contracts in the Euclidean norm, and diverges when
its two coordinates are updated in turn.

*Explicit models*: nothing is guaranteed when nodes overwrite, as in the paper; when they cache
their neighbours' values of every layer, the synchronous answer is there after L (S + D) ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import bounds, check_bounds
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.executors.simulated import EXCHANGES
from hogwild.inputs import Inputs
from hogwild.models.base import ImplicitConv, Kind, evaluating
from hogwild.models.check import pose, runnable
from hogwild.models.layers import LayeredProblem
from hogwild.models.stack import StackedGNN
from hogwild.rules import choose
from hogwild.rules.gradient import THETA, certified_steps
from hogwild.solvers.linear import LinearSolver
from hogwild.solvers.problem import FixedPoint, Objective


@dataclass
class Certificate:
    """What is proved, and what was measured, for one model on one batch of graphs.

    Attributes:
        kind: The model's :class:`~hogwild.models.Kind`.
        guaranteed: Whether convergence to the synchronous answer is proved.
        reason: Why, or why not.
        constants: The numbers that enter, worst graph (and replica) first.
        step: Certified steps [R, k, N] of an optimisation-based model.
        rate: Proved factor by which the error (energy gap, or weighted maximum norm) shrinks every
            ``period`` ticks.
        period: See ``rate``.
        updates: Updates a node makes, on average, until the proof promises an error 10⁻⁶ times the
            initial one.
        own_step: Where the user's step lies, if one was given.
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

    def __str__(self) -> str:
        head = "guaranteed" if self.guaranteed else "not guaranteed"
        lines = [f"{self.kind} model, convergence under asynchrony {head}", f"  {self.reason}"]
        lines += [f"  {name} = {value:.4g}" for name, value in self.constants.items()]
        if self.step is not None:
            low, high = float(self.step.min()), float(self.step.max())
            lines.append(f"  certified steps: {low:.3g} to {high:.3g}, by node")
        if self.rate is not None:
            lines.append(
                f"  proved rate: the error shrinks by {self.rate:.6g} every {self.period} ticks; "
                f"by 1e-6 within {self.updates:.3g} updates a node"
            )
        if self.own_step is not None:
            lines.append(f"  your step: {self.own_step}")
        return "\n".join(lines)


@torch.no_grad()
def certify(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
    *,
    rule: str = "auto",
    exchange: str = "packet",
    step: float | None = None,
    impairments: Impairment | Sequence[Impairment] = (),
) -> Certificate:
    """The constants, the certified step and rate, and where a step of your own lies.

    Args:
        model: Any model of this library.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``.
        stagger: S, the largest number of ticks between two updates of a node.
        delay: D, the largest age of a view.
        rule: As in :func:`hogwild.simulate`; what is proved of explicit models depends on it.
        exchange: As in :func:`hogwild.simulate`.
        step: A step size you think of using.
        impairments: What else goes wrong; the bounds that hold with them are certified.
    """
    if not isinstance(model, ImplicitConv):  # of which a level of a stack is one
        model = runnable(model)
    stagger, delay = check_bounds(stagger, delay)
    if exchange not in EXCHANGES:
        raise ConfigError(f"exchange={exchange!r}; expected one of {EXCHANGES}")
    if step is not None and not 0 < step < math.inf:
        raise ConfigError(f"step={step!r}; expected a positive number")
    inputs = Inputs.of(data)
    found = bounds(stagger, delay, check_impairments(impairments))
    if found is None:
        return Certificate(
            model.kind,
            False,
            "the impairments given leave the staleness unbounded (unlimited loss, for instance), "
            "and the theorems need a bound",
        )
    stagger, delay = found
    with evaluating(model):
        return _certify(model, inputs, stagger, delay, exchange == "exact", step, rule)


def _certify(
    model: nn.Module,
    inputs: Inputs,
    stagger: int,
    delay: int,
    exact: bool,
    step: float | None,
    rule: str,
) -> Certificate:
    kind: Kind = model.kind  # type: ignore[assignment]
    try:
        model.require_asynchronous(inputs.edge_index, inputs.x.size(-2))  # type: ignore[operator]
    except AsynchronyError as error:
        return Certificate(kind, False, f"it cannot run asynchronously at all: {error}")
    args, kwargs = inputs.arguments()
    if isinstance(model, StackedGNN) and len(model.levels) > 1:
        return Certificate(
            kind,
            False,
            "of a stack every level is certified by itself (each solves a problem posed by the "
            "level below): ask for model.levels[i]",
        )
    try:
        problem = pose(model, inputs)
    except AsynchronyError as error:  # of a wrapped model, which is tried on its features
        return Certificate(kind, False, f"it cannot run asynchronously at all: {error}")
    if isinstance(problem, LayeredProblem):
        return _explicit(problem, choose(problem, rule), stagger, delay)
    problem = problem.detach()
    if isinstance(problem, FixedPoint):
        return _fixed_point(problem, stagger, delay)
    assert isinstance(problem, Objective)
    found = model.embed(*args, **kwargs).value  # type: ignore[operator]
    h = (found if found.dim() == 3 else found.unsqueeze(0)).mT
    return _optimisation(problem, h, stagger, delay, exact, step)


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


def _explicit(problem: LayeredProblem, rule: str, stagger: int, delay: int) -> Certificate:
    constants = {"layers L": float(problem.depth)}
    if rule == "caching":
        constants["ticks until the answer, L (S + D)"] = float(problem.depth * (stagger + delay))
    proved = rule in ("resending", "caching")
    return Certificate(Kind.EXPLICIT, proved, _EXPLICIT[rule], constants)


def _fixed_point(problem: FixedPoint, stagger: int, delay: int) -> Certificate:
    if problem.monotone:
        return Certificate(
            Kind.FIXED_POINT,
            True,
            "its updates are monotone and idempotent (a maximum over decreasing paths): from its "
            "start every order, delay, repetition or loss that lets each message through "
            "eventually ends, after finitely many updates, at the same answer. Not a contraction, "
            "so there is no rate.",
        )
    modulus = problem.modulus()
    if modulus is None:
        return Certificate(
            Kind.FIXED_POINT,
            False,
            "its update is a general network, trained towards a contraction but not made one: "
            "nothing is proved. model.problem(...).contractivity(h) measures the modulus at a "
            "point, in the norm that matters.",
        )
    worst, period = float(modulus.max()), stagger + delay
    if not worst < 1.0:
        return Certificate(
            Kind.FIXED_POINT,
            False,
            "the bound on the contraction modulus is not below one",
            {"modulus": worst},
        )
    periods = math.log(1e-6) / math.log(worst) if worst > 0 else 1.0
    return Certificate(
        Kind.FIXED_POINT,
        True,
        "the map contracts in a weighted maximum norm over the nodes, so every order and every "
        "bounded delay leads to its one fixed point (and so does unbounded delay, without a rate)",
        {"modulus": worst},
        rate=worst,
        period=period,
        updates=periods * period / (0.5 * (stagger + 1)),
    )


def _optimisation(
    problem: Objective, h: Tensor, stagger: int, delay: int, exact: bool, own: float | None
) -> Certificate:
    age = 2 * delay + stagger - exact
    rows = problem.row_bounds()
    steps = certified_steps(problem, age)
    beta, top = problem.convexity(), problem.graph.norm(rows)  # [R, G]
    a = THETA / (0.5 + age)
    mu = float((beta / top).min())
    c = 1.0 / a - 0.5 - age
    big = (1.0 / a**2 + age + stagger) / mu + 0.5 * age
    rate, period = 1.0 / (1.0 + c / big), stagger + age
    low, high = spectrum(problem, h.to(rows.dtype))
    where: str | None = None
    if own is not None:
        if own <= float(steps.min()):
            where = f"{own:.3g} is certified: at most the smallest certified step"
        elif own < 2.0 / high:
            where = (
                f"{own:.3g} is not certified (largest certified: {float(steps.min()):.3g}), but "
                f"below 2/λ_max = {2.0 / high:.3g} at the solution: it may well converge"
            )
        else:
            where = (
                f"{own:.3g} is at least 2/λ_max = {2.0 / high:.3g} at the solution: it diverges "
                f"even synchronously"
            )
    return Certificate(
        Kind.OPTIMISATION,
        True,
        "the energy is strongly convex with a bounded Hessian, and the certified step keeps the "
        "sum of all changes finite under every schedule with these bounds",
        {
            "strong convexity β": float(beta.min()),
            "largest row sum of |Hessian|, everywhere": float(top.max()),
            "smallest eigenvalue at the solution": low,
            "largest eigenvalue at the solution": high,
            "condition number at the solution": high / low,
            "condition number, proved everywhere": 1.0 / mu,
            "D', age of the oldest embedding used": float(age),
        },
        step=steps,
        rate=rate,
        period=period,
        updates=-math.log(1e-6) / math.log1p(c / big) * period / (0.5 * (stagger + 1)),
        own_step=where,
    )


def spectrum(problem: Objective, h: Tensor, iterations: int = 300) -> tuple[float, float]:
    """Smallest and largest eigenvalue of the Hessian at ``h`` [R, k, N], over all graphs and
    replicas, by power iteration on H and on its inverse."""
    hessian = problem.evaluate(h).hessian()
    solver, graph = LinearSolver(), problem.graph
    random = torch.Generator().manual_seed(0)
    start = torch.randn(h.shape, generator=random, dtype=torch.float64).to(h)
    v, high = start, torch.zeros(1)
    for _ in range(iterations):
        v = hessian.apply(v / graph.wide(graph.dot(v, v).sqrt()))
        high = graph.dot(v, v).sqrt()
    v, low = start, torch.zeros(1)
    for _ in range(max(iterations // 3, 1)):
        v = v / graph.wide(graph.dot(v, v).sqrt())
        v = solver.solve(hessian, v, 1e-10).value
        low = graph.dot(v, v).sqrt().reciprocal()
    return float(low.min()), float(high.max())


def explain_guarantee(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
) -> Certificate:
    """Print what is guaranteed under asynchrony for this model on this graph, the constants, and
    why; returns the :class:`Certificate`."""
    found = certify(model, data, stagger, delay)
    print(found)
    return found
