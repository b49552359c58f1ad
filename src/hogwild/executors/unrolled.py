r"""Simulations with gradients, which train models under random schedules:

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr).

:func:`asynchronous_forward` has the predictions under one schedule; a training loop draws another
one, ``seed=iteration``, in every iteration. The result is the model that does best on average over
schedules. The answer of an explicit model still depends on the schedule; that of an implicit model
does not, but the time until it is there does. With ``updates=20`` the predictions are those after
20 updates of a node, and the model learns to answer in time.
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

from hogwild.errors import AsynchronyError, ConfigError, require_positive
from hogwild.executors.simulation import Settings, Simulation
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model
from hogwild.models.layered import LayeredGNN
from hogwild.models.mode import evaluating
from hogwild.models.program import LayeredProblem
from hogwild.models.stack import StackProblem
from hogwild.nn.norm import BatchNorm
from hogwild.rules import RULES, about, choose
from hogwild_node.rules import OverwritingRule


def asynchronous_forward(
    model: Model,
    data: Inputs | Data | Batch | Iterable[Data],
    *,
    updates: int | None = None,
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
        updates: Updates of a node until its embedding is read, on average over nodes; for implicit
            models, which never end by themselves.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. Give another seed in every iteration of training. The
            impairments must leave packets as they were sent. For implicit models also ``rule`` and
            ``step``.

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = Inputs.of(data)
    h = asynchronous_embed(model, inputs, updates=updates, **options)
    return model.read(h.to(inputs.x.dtype), inputs)


def asynchronous_embed(
    model: Model, inputs: Inputs, *, updates: int | None = None, **options: Any
) -> Tensor:
    """The embeddings [N, k] or [R, N, k] that :func:`asynchronous_forward` reads."""
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
    make = _layers if isinstance(model, LayeredGNN) else _implicit
    h = make(model, inputs, settings, updates)
    return h[0].mT if model.replicas is None else h.mT


def _refuse_batch_norms(model: Model) -> None:
    """Raise if a norm of the model mixes nodes now."""
    if any(isinstance(m, _BatchNorm | BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )


def _layers(model: Model, inputs: Inputs, settings: Settings, updates: int | None) -> Tensor:
    """The embeddings after the last layer, [R, k, N]."""
    if updates is not None:
        raise ConfigError(
            f"updates={updates!r} was given for a model that ends after its last layer; expected "
            f"none"
        )
    if settings.rule not in ("auto", "overwriting"):
        raise ConfigError(
            f"rule={settings.rule!r} was given for a model with layers, which is trained under "
            f"rule='overwriting'; expected no rule. Nodes that cache, wait or resend end at "
            f"model(...): train the model in step for them"
        )
    with evaluating(model):  # whether a layer is local cannot be seen through dropout
        problem = model.problem(inputs)
    assert isinstance(problem, LayeredProblem)
    rule = OverwritingRule(problem, problem.graph.everyone, problem.channels)
    simulation = Simulation(rule, settings.schedule(problem.graph), problem.start())
    for _ in count():
        if simulation.finished:
            break
        simulation.step()
    return simulation.h


def _implicit(model: Model, inputs: Inputs, settings: Settings, updates: int | None) -> Tensor:
    """The embeddings of an implicit model after so many updates, [R, k, N]."""
    if updates is None:
        raise ConfigError(
            f"{type(model).__name__} was given without updates=..., and its answer in the limit "
            f"does not depend on the schedule; expected the number of updates after which nodes "
            f"answer, or model(...) for the limit"
        )
    turns = require_positive("updates", updates)
    model.require_asynchronous(inputs)
    problem = model.problem(inputs)
    if isinstance(problem, StackProblem):
        raise ConfigError(
            "the model is a stack of several layers, and gradients go through one; expected "
            "num_layers=1"
        )
    name = choose(problem, settings.rule, settings.step)
    if torch.is_grad_enabled() and not about(name).differentiable:
        known = [name for name, rule in RULES.items() if rule.differentiable]
        raise ConfigError(f"rule={name!r} has no gradients; expected one of {', '.join(known)}")
    rule = settings.rule_on(problem, settings.bounds)
    simulation = Simulation(rule, settings.schedule(problem.graph), problem.start())
    # Turns are (S + 1) / 2 ticks apart, and no node has a turn at tick 0.
    for _ in range(1 + math.ceil(turns * (settings.stagger + 1) / 2)):
        simulation.step()
    return simulation.h
