r"""Simulations with gradients, which train explicit models under random schedules:

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr).

A node of an explicit model reads its neighbours' values of the wrong layers; so let it be trained
with them. A schedule is drawn for every iteration of an ordinary training loop,

.. code-block:: python

    for iteration in range(1000):
        loss = mse_loss(asynchronous_forward(model, data, seed=iteration), data.y)
        ...

The result is the model that does best on average over schedules. Its answer still depends on the
schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.schedule import Timetable
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Simulation
from hogwild.graph.inputs import Inputs
from hogwild.models.layered import ExplicitGNN
from hogwild.models.layers import LayeredProblem
from hogwild.models.mode import evaluating
from hogwild_node.rules import OverwritingRule, Rule


def asynchronous_forward(
    model: ExplicitGNN,
    data: Inputs | Data | Batch | Iterable[Data],
    **options: Any,
) -> Tensor:
    """The predictions of an explicit model under one random schedule, differentiable in parameters
    and features.

    The schedule is that of :func:`hogwild.simulate` with the same seed (and ``runs=1``), and so are
    the predictions; with S = 1 and D = 0 they are those of ``model(...)``. Dropout is drawn anew at
    every update, by each node for itself.

    Args:
        model: A :class:`~hogwild.LayeredGNN`, such as GCN and GAT; with replicas, all of them go
            through the same schedule.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or :class:`~hogwild.Inputs`.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. Give another seed in every iteration of training. The
            impairments must leave packets as they were sent.

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = Inputs.of(data)
    h = asynchronous_embed(model, inputs, **options)
    return model.read(h, inputs)


def asynchronous_embed(model: ExplicitGNN, inputs: Inputs, **options: Any) -> Tensor:
    """The embeddings after the last layer, before the readout, [N, k] or [R, N, k]; options as in
    :func:`asynchronous_forward`."""
    _check_model(model)
    settings = Settings(**options)
    for impairment in settings.impairments:
        if not impairment.exact:
            raise ConfigError(
                f"{impairment!r} changes what packets say, in steps that have no gradient; "
                f"expected impairments of the schedule only, such as BernoulliLoss or Stragglers"
            )
    with evaluating(model):  # whether a layer is local cannot be seen through dropout
        problem = model.problem(inputs)
    assert isinstance(problem, LayeredProblem)
    rule = OverwritingRule(problem, problem.graph.everyone, problem.channels)
    h = unrolled(rule, settings.schedule(problem.graph), problem.start()).mT  # [R, N, k]
    return h[0] if model.replicas is None else h


def unrolled(rule: Rule, timetable: Timetable, start: Tensor, ticks: int | None = None) -> Tensor:
    """The embeddings [R, k, N] after a number of ticks (``None``: when all nodes have finished),
    differentiable in ``start`` [R, k, N] and in what the rule computes with."""
    simulation = Simulation(rule, timetable, start)
    for _ in count() if ticks is None else range(ticks):
        if simulation.finished:
            break
        simulation.step()
    return simulation.h


def _check_model(model: ExplicitGNN) -> None:
    if not isinstance(model, ExplicitGNN):
        raise ConfigError(
            f"{type(model).__name__} is not trained under schedules, since its answer does not "
            f"depend on them; expected a LayeredGNN such as GCN or GAT, or PyG's layers in a new "
            f"hogwild.LayeredGNN. Train other models with model(...)"
        )
    if any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )
