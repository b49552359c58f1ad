r"""Explicit models under one random schedule, with gradients: baselines trained for asynchrony.

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr)

The second thing a sceptic suggests, after waiting
(:class:`~hogwild.models.LayerTagged`): if the layers a node hears are wrong, train with the wrong
ones. A schedule is drawn for every step of an ordinary training loop,

.. code-block:: python

    for step in range(1000):
        loss = mse_loss(asynchronous_forward(model, data, seed=step), data.y)
        ...

and what comes out is the model that does best on average over schedules. Its answer still depends
on the schedule.

:class:`~hogwild.executors.simulated.Simulation` overwrites old packets in place, which autograd
cannot undo. A layered model makes few ticks (L · S, without impairments), so here everything ever
sent is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Schedule
from hogwild.errors import AsynchronyError, ConfigError, InputError
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.models.base import evaluating
from hogwild.models.layered import LayeredGNN
from hogwild.models.layers import LayeredProblem
from hogwild.rules.layered import LayeredRule


def asynchronous_forward(
    model: LayeredGNN,
    data: Data | Batch | Iterable[Data] | Tensor,
    edge_index: Tensor | None = None,
    edge_attr: Tensor | None = None,
    batch: Tensor | None = None,
    *,
    edge_weight: Tensor | None = None,
    batch_size: int | None = None,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    impairments: Impairment | Sequence[Impairment] = (),
) -> Tensor:
    """The predictions of an explicit model under one random schedule, differentiable in parameters
    and features.

    The schedule is that of :func:`hogwild.simulate` with the same seed (and ``runs=1``), and so are
    the predictions; with S = 1 and D = 0 they are those of ``model(...)``. Dropout is drawn anew at
    every update, by each node for itself.

    Args:
        model: A :class:`~hogwild.LayeredGNN`, such as GCN and GAT; with replicas, all of them go
            through the same schedule.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or the features x, followed by the
            other tensors, as the model is called.
        stagger: S, the largest number of ticks between two updates of a node.
        delay: D, the largest age of a view in ticks.
        seed: What the schedule is a function of: another one for every training step.
        impairments: What else goes wrong; only what leaves packets as they were sent.

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = _inputs(data, edge_index, edge_attr, batch, edge_weight, batch_size)
    h = asynchronous_embed(
        model, inputs, stagger=stagger, delay=delay, seed=seed, impairments=impairments
    )
    return model.readout(h, inputs.batch, inputs.num_graphs)


def asynchronous_embed(
    model: LayeredGNN,
    inputs: Inputs,
    *,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    impairments: Impairment | Sequence[Impairment] = (),
) -> Tensor:
    """What the nodes hold after their last layer, before the readout, [N, k] or [R, N, k];
    arguments as in :func:`asynchronous_forward`."""
    _check_model(model)
    impaired = check_impairments(impairments)
    for impairment in impaired:
        if not impairment.exact:
            raise ConfigError(
                f"{impairment!r} changes what packets say, in steps that have no gradient; "
                f"expected impairments of the schedule only, such as BernoulliLoss or Stragglers"
            )
    problem = _problem(model, inputs)
    schedule = Schedule(
        problem.graph, stagger=stagger, delay=delay, seed=seed, impairments=impaired
    )
    h = _last_layer(problem, schedule).mT  # [R, N, k]
    return h[0] if model.replicas is None else h


def _last_layer(problem: LayeredProblem, schedule: Schedule) -> Tensor:
    """What the nodes hold when all have made their last update, [R, k, N]."""
    graph, rule = problem.graph, LayeredRule(problem)
    start = problem.start()
    rule.begin(start, graph.everyone.current(start))
    sent = [start]  # sent[t]: what packets of time t say, [R, k, N]
    everyone = torch.arange(graph.num_nodes, device=start.device)
    while not bool(rule.finished(everyone).all()):
        tick, h = schedule.tick(len(sent) - 1), sent[-1]
        nodes, edges = tick.at.nodes, tick.at.edges
        assert nodes is not None
        assert edges is not None
        if nodes.numel():
            own = h.index_select(-1, nodes)
            if tick.reset is not None:
                rule.forget(tick.reset)
                fresh = torch.isin(nodes, tick.reset)
                own = torch.where(fresh, start.index_select(-1, nodes), own)
            inbox = _fetch(sent, graph, edges, tick.view)
            new, _ = rule.update(own, inbox, None, tick.at)
            h = h.index_copy(-1, nodes, new)
            schedule.retire(nodes[rule.finished(nodes)])
        sent.append(h)
    return sent[-1]


def _fetch(sent: list[Tensor], graph: Graph, edges: Tensor, time: Tensor) -> Tensor:
    """Packets of these ``time`` s along these edges, [R, k, E']: one gather for each time."""
    order = torch.argsort(time, stable=True)
    times, counts = torch.unique_consecutive(time[order], return_counts=True)
    senders = graph.src[edges[order]].split(counts.tolist())
    parts = [sent[t].index_select(-1, j) for t, j in zip(times.tolist(), senders, strict=True)]
    inbox = torch.cat(parts, -1) if parts else sent[0][..., :0]
    return inbox.index_select(-1, torch.argsort(order))


def _check_model(model: LayeredGNN) -> None:
    if not isinstance(model, LayeredGNN):
        raise ConfigError(
            f"{type(model).__name__} is not trained under schedules: its answer does not depend on "
            f"them (implicit models, LayerTagged); expected a LayeredGNN such as GCN or GAT, or "
            f"PyG's layers in a new hogwild.LayeredGNN. Train the others with model(...)"
        )
    if any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )


def _problem(model: LayeredGNN, inputs: Inputs) -> LayeredProblem:
    """Posed in evaluation mode: whether a layer is local cannot be seen through dropout."""
    args, kwargs = inputs.arguments()
    with evaluating(model):
        return model.problem(*args, **kwargs)


def _inputs(
    data: Data | Batch | Iterable[Data] | Tensor,
    edge_index: Tensor | None,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    edge_weight: Tensor | None,
    batch_size: int | None,
) -> Inputs:
    if not isinstance(data, Tensor):
        rest = (edge_index, edge_attr, batch, edge_weight, batch_size)
        if any(given is not None for given in rest):
            raise InputError(
                f"a {type(data).__name__} and further tensors were given; expected either data "
                f"alone, or x, edge_index, edge_attr, batch as the model is called"
            )
        return Inputs.of(data)
    if edge_index is None:
        raise InputError("x was given without edge_index; expected x, edge_index, ... or data")
    if batch is None:
        batch = torch.zeros(data.size(-2), dtype=torch.long, device=data.device)
    count = int(batch.max()) + 1 if batch_size is None else batch_size
    return Inputs(data, edge_index, edge_attr, edge_weight, batch, count)
