r"""Simulations with gradients, which train models under random schedules:

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr).

:func:`asynchronous_forward` has the predictions under one schedule; a training loop draws another
one, ``seed=iteration``, in every iteration. The result is the model that does best on average over
schedules. The answer of an explicit model still depends on the schedule; that of an implicit model
does not, but the time until it is there does. With ``updates=20`` the predictions are those after
20 updates of a node, and the model learns to answer in time.

:func:`descended` is the cheap stand-in: no schedule is drawn, and all nodes update together. For an
energy these are gradient updates with the ``"auto"`` step of :mod:`hogwild_node.rules.gradient`,
without delays (damped block-Jacobi),

.. math:: h \leftarrow h - \omega\, D^{-1} \nabla E(h),

with :math:`D` the nodes' own blocks of the Hessian in majorising curvatures, computed anew at
updates 0, 1, 4, 16, …: embeddings move most at first, and blocks cost four times a gradient. For a
fixed point an update applies the map.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.schedule import Names, Timetable
from hogwild.errors import AsynchronyError, ConfigError, require_positive
from hogwild.executors.simulation import Settings, Simulation
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model
from hogwild.models.layered import LayeredGNN
from hogwild.models.levels import LayeredProblem, StackProblem
from hogwild.models.mode import evaluating
from hogwild.nn.norm import BatchNorm
from hogwild.ops import mv, scatter
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules import RULES, about, choose, rule_for
from hogwild.rules.energies import UnrolledMessages
from hogwild_node.rules import OverwritingRule, Rule
from hogwild_node.rules.gradient import DAMPING

ANEW = frozenset(4**i for i in range(16))
"""Updates at which :func:`descended` computes the blocks anew."""


def asynchronous_forward(
    model: Model,
    data: Inputs | Data | Batch | Iterable[Data],
    **options: Any,
) -> Tensor:
    """The predictions of a model under one random schedule, differentiable in parameters and
    features.

    The schedule is that of :func:`hogwild.simulate` with the same seed (and ``runs=1``), and so are
    the predictions. Explicit models run with ``rule="overwriting"``, since those of
    ``rule="caching"`` are ``model(...)``, which overwriting gives with S = 1 and D = 0.
    Dropout is drawn anew at every update, by each node for itself.

    Args:
        model: A :class:`~hogwild.LayeredGNN`, such as GCN and GAT, or an implicit model of one
            layer; with replicas, all of them go through the same schedule.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or :class:`~hogwild.Inputs`.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. Give another seed in every iteration of training. The
            impairments must leave packets as they were sent. For implicit models also ``updates``,
            ``rule``, ``step`` and ``tail`` (:func:`asynchronous_embed`).

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = Inputs.of(data)
    h = asynchronous_embed(model, inputs, **options)
    return model.read(h.to(inputs.x.dtype), inputs)


def asynchronous_embed(
    model: Model,
    inputs: Inputs,
    *,
    updates: int | None = None,
    tail: int | None = None,
    names: Names | None = None,
    **options: Any,
) -> Tensor:
    """The embeddings [N, k] or [R, N, k] that :func:`asynchronous_forward` reads.

    Args:
        updates: Updates of a node until its embedding is read, on average over nodes; for implicit
            models, which never end by themselves.
        tail: Ticks that gradients go through, the last ones; ``None``: all. The memory grows with
            them. Earlier ticks run without gradients.
        names: Numbers of the nodes and edges, by which an implicit model's schedule is drawn; by
            default they are numbered in order.
        options: As in :func:`asynchronous_forward`.
    """
    if not isinstance(model, Model):
        raise ConfigError(
            f"{type(model).__name__} is not trained under schedules; expected a model of hogwild: "
            f"a LayeredGNN such as GCN or GAT, PyG's layers in a new hogwild.LayeredGNN, or an "
            f"implicit model such as EnergyGNN with updates=..."
        )
    settings = Settings(**options)
    for impairment in settings.impairments:
        if not impairment.exact:
            raise ConfigError(
                f"{impairment!r} changes what packets say, in steps that have no gradient; "
                f"expected impairments of the schedule only, such as BernoulliLoss or Stragglers"
            )
    _refuse_batch_norms(model)
    if isinstance(model, LayeredGNN):
        if updates is not None or tail is not None:
            raise ConfigError(
                f"updates={updates!r} and tail={tail!r} were given for a model that ends after its "
                f"last layer; expected neither"
            )
        if settings.rule not in ("auto", "overwriting"):
            raise ConfigError(
                f"rule={settings.rule!r} was given for a model with layers, which is trained under "
                f"rule='overwriting'; expected no rule. Nodes that cache, wait or resend end at "
                f"model(...): train the model in step for them"
            )
        h = _layers(model, inputs, settings)
    else:
        h = _implicit(model, inputs, settings, updates, tail, names)
    return h[0].mT if model.replicas is None else h.mT


def _refuse_batch_norms(model: Model) -> None:
    """Raise if a norm of the model mixes nodes now."""
    if any(isinstance(m, _BatchNorm | BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )


def _layers(model: LayeredGNN, inputs: Inputs, settings: Settings) -> Tensor:
    """The embeddings after the last layer, [R, k, N]."""
    with evaluating(model):  # whether a layer is local cannot be seen through dropout
        problem = model.problem(inputs)
    assert isinstance(problem, LayeredProblem)
    rule = OverwritingRule(problem, problem.graph.everyone, problem.channels)
    return unrolled(rule, settings.schedule(problem.graph), problem.start())


def _implicit(
    model: Model,
    inputs: Inputs,
    settings: Settings,
    updates: int | None,
    tail: int | None,
    names: Names | None,
) -> Tensor:
    """The embeddings of an implicit model after so many updates, [R, k, N]."""
    if updates is None:
        raise ConfigError(
            f"{type(model).__name__} was given without updates=..., and its answer in the limit "
            f"does not depend on the schedule; expected the number of updates after which nodes "
            f"answer, or model(...) for the limit"
        )
    model.require_asynchronous(inputs)
    problem = model.problem(inputs)
    if isinstance(problem, StackProblem):
        raise ConfigError(
            "the model is a stack of several layers, and the unrolled executor runs one; expected "
            "num_layers=1"
        )
    assert isinstance(problem, Problem)
    ticks = ticks_of(require_positive("updates", updates), settings.stagger)
    timetable = settings.schedule(problem.graph, names=names)
    last = ticks if tail is None else min(require_positive("tail", tail), ticks)
    posed = problem if last == ticks else problem.detach()
    rule = _rule(posed, settings, settings.age_on(problem, settings.bounds))
    with torch.set_grad_enabled(last == ticks and torch.is_grad_enabled()):
        simulation = Simulation(rule, timetable, problem.start())
        for _ in range(ticks - last):
            simulation.step()
    if last < ticks:
        rule.pose(problem.node)  # compiled updates, which have no gradients, fit no longer
        _own_memory(simulation)
    for _ in range(last):
        simulation.step()
    return simulation.h


def _own_memory(simulation: Simulation) -> None:
    """Copy what a simulation remembers. Compiled code made views of it, which autograd does not
    follow."""
    rule, outbox = simulation.rule, simulation.outbox
    simulation.h, outbox.node = simulation.h.clone(), outbox.node.clone()
    outbox.edge = None if outbox.edge is None else outbox.edge.clone()
    memories: list[object] = [rule]
    if isinstance(rule, UnrolledMessages):
        memories += [rule.gradient, rule.trust, rule.retreat]
    for memory in memories:
        for name, value in vars(memory).items():
            if isinstance(value, Tensor):
                setattr(memory, name, value.clone())


def _rule(problem: Problem, settings: Settings, age: int | None) -> Rule:
    """The rule of nodes, which torch can differentiate where gradients are enabled."""
    name = choose(problem, settings.rule, settings.step)
    if torch.is_grad_enabled() and not about(name).differentiable:
        known = [name for name, rule in RULES.items() if rule.differentiable]
        raise ConfigError(
            f"rule={name!r} has no gradients; expected one of auto, {', '.join(known)}"
        )
    return rule_for(problem, name, settings.step, age, differentiable=True)


def ticks_of(updates: int, stagger: int) -> int:
    """Ticks in which a node makes so many updates, on average: turns are (S + 1) / 2 apart, and no
    node has a turn at tick 0."""
    return 1 + math.ceil(updates * (stagger + 1) / 2)


def unrolled(rule: Rule, timetable: Timetable, start: Tensor, ticks: int | None = None) -> Tensor:
    """The embeddings [R, k, N] after a number of ticks (``None``: when all nodes have finished),
    differentiable in ``start`` [R, k, N] and in what the rule computes with."""
    simulation = Simulation(rule, timetable, start)
    for _ in count() if ticks is None else range(ticks):
        if simulation.finished:
            break
        simulation.step()
    return simulation.h


# -- synchronous updates --------------------------------------------------------------------------


def blocks(problem: Objective, h: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [R, k, N], and the nodes' blocks of the Hessian in majorising curvatures
    [R, k, k, N], at ``h``; differentiable."""
    everyone, n = problem.graph.everyone, problem.graph.num_nodes
    model = problem.node.quadratic(h, everyone.current(h), everyone, majorise=1.0)
    source = problem.graph.src
    gradient = model.own + scatter(model.toward, source, n)
    return gradient, model.b + scatter(model.toward_curvature(), source, n)


def inverse(block: Tensor) -> Tensor:
    """The inverses of positive definite blocks [R, k, k, N]. Two channels have a formula, which
    needs no call of a library for each block, and which a CUDA graph can hold."""
    k = block.size(1)
    if k == 1:
        return 1.0 / block
    if k > 2:
        return torch.linalg.inv_ex(block.movedim(-1, 1))[0].movedim(1, -1)
    (a, b), (c, d) = (row.unbind(1) for row in block.unbind(1))
    one = 1.0 / (a * d - b * c)
    return torch.stack(
        [torch.stack([d * one, -b * one], 1), torch.stack([-c * one, a * one], 1)], 1
    )


def descended(problem: Problem, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many synchronous updates from the start; differentiable."""
    h = problem.start()
    if isinstance(problem, FixedPoint):
        for _ in range(updates):
            h = problem.step(h)
        return h
    assert isinstance(problem, Objective)
    scale: Tensor | None = None
    for turn in range(updates):
        if scale is None or turn in ANEW:
            gradient, block = blocks(problem, h)
            scale = DAMPING * inverse(block)
        else:
            gradient = problem.evaluate(h).gradient
        h = h - mv(scale, gradient)
    return h


@torch.no_grad()
def synchronous(rule: Rule, graph: Graph, h: Tensor, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many updates of all nodes, which begin at ``h`` [R, k, N].
    A rule with letters needs a reverse edge for every edge."""
    everyone = graph.everyone
    letters = rule.begin(h, everyone.current(h))
    for _ in range(updates):
        inbox = everyone.current(rule.broadcast(h, everyone))
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = rule.update(h, inbox, mail, everyone)
    return h
