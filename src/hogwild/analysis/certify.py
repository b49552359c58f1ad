r"""What is proved about a model under asynchrony, with the constants of this model on this graph.

``certify(model, data, ...)`` speaks of ``simulate(model, data, ...)`` with the same arguments. All
proofs are in the documentation ("Asynchrony" and "The mathematics").

*Optimisation-based models under gradient steps.* Let :math:`P \ge |\nabla^2 E|` entry by entry and
everywhere, :math:`r = P \mathbf 1` its row sums, and :math:`D'` the age of the oldest embedding
inside any gradient used: :math:`2D + S` for Algorithm 1's packets, :math:`2D + S - 1` for the exact
exchange. With steps :math:`\alpha_i = a_i / r_i`, :math:`\underline a \le a_i \le \overline a < 1 /
(\tfrac12 + D')`, asynchronous gradient descent converges to the minimiser, at least as fast as

.. math::
    \Phi(t + S) \le \frac{1}{1 + c/C}\, \Phi(t - D'), \qquad
    c = \frac1{\overline a} - \frac12 - D', \quad
    C = \frac{1}{2\mu}\Bigl(\frac1{\underline a} + \sqrt{D' + S}\Bigr)^2 + \frac{D'}{2}, \quad
    \mu = \frac{\beta}{\max_i r_i},

with :math:`\Phi \ge E - E^*`. This replaces the paper's Proposition 2, whose bound on the step
shrinks with the gradient, so that no step satisfies it. Runs with ``step="auto"`` are observed to
converge, and nothing is proved about them. Where nodes compute both sides of their edges
(:class:`~hogwild_node.local.BothSides`), only the couplings between nodes count, and they are D
ticks old: steps are larger, and the rate follows from the condition number.

*Optimisation-based models under messages* converge on every graph if their energies are
:attr:`~hogwild_node.local.LocalEnergy.dominated` (``GSDGNN``). Others converge from near the answer
if their echo is below one (:mod:`hogwild.analysis.echoes`), and are observed to converge from far
away. Gradient steps with
``step="certified"`` always converge.

*Fixed-point models* converge where the map contracts in a weighted *maximum* norm over the nodes:
the error shrinks by a factor κ every S + D ticks. A contraction in another norm, as in the paper's
Proposition 1, is not enough: 0.98 times a rotation by 2.25 rad contracts in the Euclidean norm, and
diverges when its two coordinates are updated in turn.

*Answers that move* by at most d in a tick: runs follow within a distance that is proportional to d
(``drift``), for contractions and for gradient steps of certified size.

*Packets that are wrong* by up to δ in every number (quantised, or not sent because little has
changed): runs end near the answer and not at it, within a distance that is proportional to δ. For
maxima this is proved where δ is smaller than the decrease along every edge.

What is proved about solves of balls (:mod:`hogwild.rules.balls`).

* *The radius reaches every node.* A node that has heard of all nodes solves the whole problem. A
  word crosses a hop in at most S + D ticks, so every answer is exact after hops · (S + D) ticks.
* *A smaller radius, and scaled diagonal dominance.* Let the Hessian H satisfy
  :math:`\sum_{b \ne a} |H_{ab}| v_b \le \rho H_{aa} v_a` everywhere, with ρ < 1 and v > 0. For the
  solve z of a ball A with the rim held at :math:`h_B`, and the mean H of the Hessian between
  :math:`(z, h_B)` and the answer :math:`h^*`, the rows of A say
  :math:`H_{AA} (z - h^*_A) = -H_{AB} (h_B - h^*_B)`. In the norm :math:`\max_a |e_a| / v_a` every
  entry's error is therefore at most ρ times the largest error among the entries that it is
  coupled with, and that of an entry next to the rim at most ρ times the largest error of ball and
  rim together, so at most ρ times that of the rim. From the node in the middle the rim is
  :math:`m = \lceil (r + 1) / c \rceil` couplings away: its error is at most :math:`\rho^m` times
  that of the rim. An embedding of the rim that a node uses is at most :math:`(r + c)(S + D)` ticks
  old. This is a contraction in a weighted maximum norm, which converges under any delays
  (Bertsekas & Tsitsiklis 1989, section 6.2), and whichever nodes the ball has.
* *A smaller radius, and a map that contracts with ρ in a weighted maximum norm*: the same, c = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.certificate import HOPELESS, Certificate, Local, RunOnParts, updates_needed
from hogwild.analysis.energies import certify_energy
from hogwild.analysis.fixed_points import certify_fixed_point
from hogwild.analysis.nearby import Nearby, dominance, split
from hogwild.errors import AsynchronyError, ConfigError, is_number
from hogwild.executors.simulation import Settings
from hogwild.graph.inputs import Inputs
from hogwild.linalg.spectrum import LARGEST
from hogwild.models.base import Conv, GraphModule, Kind
from hogwild.models.check import runnable
from hogwild.models.levels import LayeredProblem, StackProblem
from hogwild.models.mode import evaluating, uncompiled
from hogwild.ops import as_field
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules import choose, is_own, rule_for, sends_letters
from hogwild.rules.balls import BallsRule


def certify(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
    *,
    drift: float | None = None,
    run: RunOnParts | None = None,
    **options: Any,
) -> Certificate:
    """What is proved of :func:`hogwild.simulate` with the same arguments: the constants, the
    certified step and rate, and where your own step lies.

    ``model``, ``data``, ``stagger`` and ``delay`` are as in :func:`hogwild.simulate`.

    Args:
        drift: How far any entry of the exact answer moves in a tick, at most, while features change
            (:attr:`hogwild.Track.drift` measures it). The certificate then has a bound on the
            distance at which nodes follow, where one is proved. Of an energy it is assumed that a
            tick changes no gradient by more than a move of all embeddings by ``drift`` could;
            quadratic energies on a fixed graph (``GSDGNN``) do so by themselves.
        run: What :func:`hogwild.cluster.infer` returned for this model. The certificate then also
            says what is proved of the parts.
        options: ``rule``, ``step``, ``exchange`` and ``impairments`` of :func:`hogwild.simulate`.
            For energies ``rule="auto"`` means messages, and for soft ones whose condition number
            is at most 100 gradient steps. More is proved of these with ``step="certified"``.
    """
    found = uncompiled(model)
    found = found if isinstance(found, Conv) else runnable(found)  # a layer needs no readout
    if drift is not None and not (is_number(drift) and 0.0 <= drift < math.inf):
        raise ConfigError(f"drift={drift!r}; expected a nonnegative number: a move in a tick")
    proved = certified(found, Inputs.of(data), Settings(stagger, delay, **options), drift)
    if run is None:
        return proved
    return replace(proved, parts=(f"{run.workers} parts: {run.guarantee}",))


@torch.no_grad()
def certified(
    model: GraphModule, inputs: Inputs, settings: Settings, drift: float | None = None
) -> Certificate:
    """What is proved of a model, which is known to be one, with these settings."""
    with evaluating(model):
        try:
            model.require_asynchronous(inputs)
            problem = model.problem(inputs)
        except AsynchronyError as error:
            reason = f"it cannot run asynchronously at all: {error}"
            return Certificate(model.kind, False, reason)
        rule = choose(problem, settings.rule, settings.step)
        settings = replace(settings, rule=rule)
        if is_own(rule):
            reason = f"{rule} is a rule of your own, about which nothing is proved here"
            return Certificate(model.kind, False, reason, rule=rule)
        if isinstance(problem, StackProblem):
            found = _stack(model, problem, inputs, settings)
        elif isinstance(problem, LayeredProblem):
            found = _layers(problem, settings)
        else:
            found = _alone(
                problem.detach(), settings, lambda: model.embed(inputs).value, drift,
                sends_letters(problem, rule),
            )  # fmt: skip
    if drift is not None:
        found.constants["drift"] = drift
    return replace(found, rule=rule, levels=tuple(replace(x, rule=rule) for x in found.levels))


def _alone(
    problem: Problem,
    settings: Settings,
    answer: Any,
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    """What is proved of an energy or a fixed point; ``answer()`` is its solution, and ``letters``
    says whether neighbours send gradients."""
    if settings.rule == "balls":
        return certify_balls(problem, settings, answer)
    if isinstance(problem, FixedPoint):
        return certify_fixed_point(problem, settings, answer, drift)
    assert isinstance(problem, Objective)
    h = answer()
    return certify_energy(problem, as_field(h, h.dtype), settings, drift, letters)


# -- layers ---------------------------------------------------------------------------------------

_LAYERS = {
    "overwriting": "a node applies its layers to the values that its neighbours last sent, of "
    "whichever layer: the result depends on the schedule, and no further update mends it",
    "waiting": "nodes wait for the layer they need, so the answer is the synchronous one if every "
    "packet arrives; a single lost packet stops its receivers, and in the end all, for ever. "
    "Only the slowest node bounds the time.",
    "resending": "nodes wait for the layer they need, and every value is sent until it is "
    "acknowledged: the answer is the synchronous one as soon as every node has had its layers, "
    "with any delay and loss that lets a packet through now and then",
    "caching": "a node recomputes all layers from its neighbours' newest values of all of them: "
    "values of layer l + 1 are right once those of layer l are and have been heard, so the answer "
    "is the synchronous one after L (S + D) ticks, and under any loss or delay as soon as values "
    "have crossed L hops",
}


def _layers(problem: LayeredProblem, settings: Settings) -> Certificate:
    rule, constants = settings.rule, {"layers": float(problem.depth)}
    facts = Certificate(Kind.EXPLICIT, False, _LAYERS[rule], constants)
    try:
        rule_for(problem, rule)
    except AsynchronyError as error:  # no link back for acknowledgements, for instance
        return replace(facts, reason=f"it cannot run under this rule: {error}")
    if settings.hopeless:
        return replace(facts, reason=HOPELESS)
    if rule == "waiting" and not settings.impairments:
        return replace(facts, guaranteed=True, reason=f"{facts.reason} Here every packet arrives.")
    if rule not in ("resending", "caching"):
        return facts
    if settings.error:
        why = ". Here packets are wrong by a little, and nothing bounds how layers enlarge that"
        return replace(facts, reason=facts.reason + why)
    if rule == "caching" and settings.bounds is not None:
        constants["ticks_to_answer"] = float(problem.depth * sum(settings.bounds))
    return replace(facts, guaranteed=True).under(settings)


# -- stacks ---------------------------------------------------------------------------------------


def _stack(
    model: GraphModule, stack: StackProblem, inputs: Inputs, settings: Settings
) -> Certificate:
    """Level by level, with the levels below at their answers."""
    if settings.rule == "balls":
        reason = "it cannot run under this rule, which needs a problem that does not move"
        return Certificate(model.kind, False, reason)
    solved = [level.value for level in model.solutions(inputs)]
    fields = [as_field(h, h.dtype) for h in solved]
    levels = tuple(
        replace(
            _alone(problem, settings, h.detach),
            rate=None,
            period=None,
            since=0,
            updates=None,
            local=None,
        )
        for problem, h in zip(stack.settled(fields), solved, strict=True)
    )
    weak = [number for number, level in enumerate(levels, 1) if not level.guaranteed]
    if not weak:
        reason = (
            "every level converges once the levels below stand still, and its problem is "
            "continuous in their embeddings: level by level all converge. No rate is computed"
        )
        return Certificate(model.kind, True, reason, levels=levels).under(settings)
    which = f"level {weak[0]}" if len(weak) == 1 else f"levels {', '.join(map(str, weak))}"
    reason = f"a stack converges where every level does, which is not proved of {which}"
    if all(levels[number - 1].near is not None for number in weak):
        reason = (
            "packets are wrong, so that every level ends near its answer and passes its error on "
            "to the next; no bound on the sum is computed"
        )
    return Certificate(model.kind, False, reason, levels=levels)


def certify_balls(
    problem: Problem, settings: Settings, answer: Callable[[], Tensor]
) -> Certificate:
    """What is proved of solves of balls; ``answer()`` is the solution [N, k] or [R, N, k], asked
    for where the Hessian at it matters."""
    kind = Kind.FIXED_POINT if isinstance(problem, FixedPoint) else Kind.OPTIMISATION
    found = Certificate(kind, False, HOPELESS)
    if settings.hopeless:
        return found
    try:
        rule = rule_for(problem, "balls", radius=settings.radius)
    except AsynchronyError as error:
        return replace(found, reason=f"it cannot run under this rule: {error}")
    assert isinstance(rule, BallsRule)
    hops = int(rule.around.eccentricity.max()) if problem.graph.num_nodes else 0
    if bool(rule.inner.all()):
        return _whole(found, settings, hops)
    if settings.error:
        reason = "nothing is proved about balls with packets that are wrong"
        return replace(found, reason=reason)
    ratio, everywhere = _ratio(problem, answer)
    if ratio is not None and ratio < math.inf:
        found.constants["modulus" if isinstance(problem, FixedPoint) else "dominance"] = ratio
    if ratio is None or not ratio < 1.0:
        reason = (
            f"balls of radius {rule.radius} are observed to converge; nothing is proved, since no "
            f"contraction in a weighted maximum norm is known here. A radius that reaches every "
            f"node is exact"
        )
        return replace(found, reason=reason)
    rate = ratio ** math.ceil((rule.radius + 1) / rule.couples)
    period, updates = None, None
    if settings.bounds is not None:
        stagger = settings.bounds[0]
        period = (rule.radius + rule.couples) * sum(settings.bounds) + stagger
        updates = updates_needed(math.log(max(rate, 1e-6)), period, stagger)
    if not everywhere:
        if period is not None and updates is not None:
            found.local = Local("dominance", rate, period, updates)
        reason = (
            f"from near the answer (how near is not computed) balls of radius {rule.radius} are "
            f"proved to converge, since the Hessian there is scaled diagonally dominant; from far "
            f"away they are observed to"
        )
        return replace(found, reason=reason)
    reason = (
        "a solve brings a node nearer to the answer than the worst of its rim, by a fixed factor "
        "in a weighted maximum norm, whatever the delays"
    )
    proved = replace(found, guaranteed=True, reason=reason, rate=rate, period=period,
                     updates=updates)  # fmt: skip
    return proved.under(settings)


def _whole(found: Certificate, settings: Settings, hops: int) -> Certificate:
    """The radius reaches every node."""
    if settings.error:
        reason = "nothing is proved about tables whose packets are held back or rounded"
        return replace(found, reason=reason)
    found.constants["hops"] = float(hops)
    if settings.bounds is not None:
        found.constants["ticks_to_whole"] = float(hops * sum(settings.bounds))
    reason = (
        "a node that has heard of all nodes solves the whole problem, so its answer is the "
        "synchronous one as soon as word has crossed the graph"
    )
    return replace(found, guaranteed=True, reason=reason).under(settings)


def _ratio(problem: Problem, answer: Callable[[], Tensor]) -> tuple[float | None, bool]:
    """ρ, and whether it holds everywhere or only at the answer; ``None``: it is not known."""
    if isinstance(problem, FixedPoint):
        modulus = problem.modulus()
        return (None if modulus is None else float(modulus.max())), True
    assert isinstance(problem, Objective)
    value = answer()
    h = as_field(value, torch.float64)
    if h[0].numel() > LARGEST:
        return None, False
    hessians, _ = Nearby(problem, h).hessians()
    ratios = [dominance(d, abs(rest)).ratio for d, rest in map(split, hessians)]
    return max(ratios), problem.is_quadratic
