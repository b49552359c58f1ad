"""Asynchronous runs with gradients, to train models under random schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
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
from hogwild.models.program import StackProblem
from hogwild.models.validation import evaluating
from hogwild.nn.norm import BatchNorm
from hogwild.rules import choose, fitting


def asynchronous_forward(
    model: Model,
    data: Inputs | Data | Batch | Iterable[Data],
    *,
    updates: int | None = None,
    **options: Any,
) -> Tensor:
    r"""The predictions of a model under one random schedule, differentiable in parameters and
    features, to train models under random schedules:

    .. math:: \min_\theta\; \mathbb E_{\text{schedule}}\;
              \ell\bigl(\hat y_\theta(\text{schedule}), y\bigr).

    Draw another schedule, ``seed=iteration``, in every iteration. The schedule is that of
    :func:`hogwild.simulate` with the same seed (and ``runs=1``), and so are the predictions.
    Explicit models run with ``rule="overwriting"``, since those of ``rule="caching"`` are
    ``model(...)``, which overwriting gives with S = 1 and D = 0. Dropout is drawn anew at every
    update, by each node for itself. The answer of an implicit model does not depend on the
    schedule, but the time until it is there does: with ``updates=20`` the predictions are those
    after 20 updates of a node, and the model learns to answer in time.

    Args:
        model: A :class:`~hogwild.LayeredGNN`, such as GCN and GAT, or an implicit model of one
            layer; with replicas, all of them go through the same schedule.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or :class:`~hogwild.Inputs`.
        updates: Updates of a node until its embedding is read, on average over nodes; for implicit
            models, which never end by themselves.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. The impairments must leave packets as they were sent. For
            implicit models also ``rule`` and ``step``.

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
    if any(isinstance(m, _BatchNorm | BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )
    layered = isinstance(model, LayeredGNN)
    if layered and updates is not None:
        raise ConfigError(
            f"updates={updates!r} was given for a model that ends after its last layer; expected "
            f"none"
        )
    if not layered and updates is None:
        raise ConfigError(
            f"{type(model).__name__} was given without updates=..., and its answer in the limit "
            f"does not depend on the schedule; expected the number of updates after which nodes "
            f"answer, or model(...) for the limit"
        )
    ticks = math.inf
    if updates is not None:  # turns are (S + 1) / 2 ticks apart; no node has a turn at tick 0
        turns = require_positive("updates", updates)
        ticks = 1 + math.ceil(turns * (settings.stagger + 1) / 2)
    with evaluating(model) if layered else nullcontext():
        model.require_asynchronous(inputs)  # whether a layer is local is not seen through dropout
        problem = model.problem(inputs)
    if isinstance(problem, StackProblem):
        raise ConfigError(
            "the model is a stack of several layers, and gradients go through one; expected "
            "num_layers=1"
        )
    known = [name for name, rule in fitting(problem).items() if rule.differentiable]
    wanted = known[0] if layered and settings.rule == "auto" else settings.rule
    name = choose(problem, wanted, settings.step)
    if name not in known and (layered or torch.is_grad_enabled()):
        raise ConfigError(
            f"rule={name!r} has no gradients; expected one of {', '.join(known)}. Nodes that cache "
            f"or resend end at model(...): train a model with layers in step for them"
        )
    rule = replace(settings, rule=name).rule_on(problem, settings.bounds)
    simulation = Simulation(rule, settings.schedule(problem.graph), problem.start())
    while not simulation.finished and simulation.time < ticks:
        simulation.step()
    h = simulation.h
    return h[0].mT if model.replicas is None else h.mT
