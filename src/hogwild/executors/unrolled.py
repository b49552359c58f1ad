r"""An executor with gradients: everything ever sent is kept, so that autograd can go back.

It trains explicit models under random schedules,

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr):

if a node reads the wrong layers of its neighbours, then train it with the wrong layers. A schedule
is drawn for every iteration of an ordinary training loop,

.. code-block:: python

    for iteration in range(1000):
        loss = mse_loss(asynchronous_forward(model, data, seed=iteration), data.y)
        ...

The result is the model that does best on average over schedules. Its answer still depends on the
schedule.

:class:`~hogwild.executors.simulated.Simulation` overwrites old packets in place, which autograd
cannot undo. A layered model makes few ticks (L · S, without impairments), so that all packets fit
in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.schedule import Timetable
from hogwild.errors import AsynchronyError, ConfigError, InputError
from hogwild.executors.settings import Settings
from hogwild.graph.inputs import Inputs
from hogwild.models.base import evaluating
from hogwild.models.layered import LayeredGNN
from hogwild.models.layers import LayeredProblem
from hogwild_node.rules import OverwritingRule, Rule


def asynchronous_forward(
    model: LayeredGNN,
    data: Data | Batch | Iterable[Data] | Tensor,
    edge_index: Tensor | None = None,
    edge_attr: Tensor | None = None,
    batch: Tensor | None = None,
    *,
    edge_weight: Tensor | None = None,
    batch_size: int | None = None,
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
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or the features x, followed by the
            other tensors, as the model is called.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. Give another seed in every iteration of training. The
            impairments must leave packets as they were sent.

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = _inputs(data, edge_index, edge_attr, batch, edge_weight, batch_size)
    h = asynchronous_embed(model, inputs, **options)
    return model.readout(h, inputs.batch, inputs.num_graphs)


def asynchronous_embed(model: LayeredGNN, inputs: Inputs, **options: Any) -> Tensor:
    """The embeddings after the last layer, before the readout, [N, k] or [R, N, k]; options as in
    :func:`asynchronous_forward`."""
    _check_model(model)
    settings = Settings(**options)
    for impairment in settings.impaired:
        if not impairment.exact:
            raise ConfigError(
                f"{impairment!r} changes what packets say, in steps that have no gradient; "
                f"expected impairments of the schedule only, such as BernoulliLoss or Stragglers"
            )
    problem = _problem(model, inputs)
    rule = OverwritingRule(problem, problem.graph.everyone, problem.channels)
    h = unrolled(rule, settings.schedule(problem.graph), problem.start()).mT  # [R, N, k]
    return h[0] if model.replicas is None else h


def unrolled(rule: Rule, timetable: Timetable, start: Tensor, ticks: int | None = None) -> Tensor:
    """The embeddings [R, k, N] after a number of ticks, with gradients.

    Args:
        rule: What a node does.
        timetable: Who does it when, and with which packets.
        start: Where all nodes start, [R, k, N].
        ticks: How many ticks; ``None``: until all nodes have finished.
    """
    graph, h, everyone = timetable.graph, start, timetable.graph.everyone
    letters = rule.begin(h, everyone.current(h))
    # What packets of each time say: a part for everybody, and letters.
    sent, mailed = [rule.broadcast(h, everyone)], [] if letters is None else [letters]
    all_nodes = torch.arange(graph.num_nodes, device=h.device)

    def fetch(edges: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        mail = _gather(mailed, graph.reverse[edges], time) if mailed else None
        return _gather(sent, graph.src[edges], time), mail

    for t in count() if ticks is None else range(ticks):
        done = rule.finished(all_nodes)
        if done is not None and bool(done.all()):
            break
        tick = timetable.tick(t)
        at, nodes, edges = tick.at, tick.at.nodes, tick.at.edges
        assert nodes is not None
        assert edges is not None
        sent.append(sent[-1])
        mailed.extend(mailed[-1:])
        if not nodes.numel():
            continue
        own, (inbox, mail) = h.index_select(-1, nodes), fetch(edges, tick.view)
        if tick.reset is not None:
            rule.forget(tick.reset)
            again = torch.isin(nodes, tick.reset)
            own = torch.where(again, start.index_select(-1, nodes), own)
            part, keep = at.part(again)
            rule.refresh(own[..., again], inbox[..., keep], part)
        if tick.lost is not None:
            gone = edges[tick.lost]
            rule.lose(gone, fetch(gone, torch.full_like(gone, t))[0])
        own, post = rule.update(own, inbox, mail, at)
        h = h.index_copy(-1, nodes, own)
        sends = torch.ones_like(nodes, dtype=torch.bool) if rule.silent is None else ~rule.silent
        part, keep = at.part(sends)
        said = rule.broadcast(own, at)[..., sends]
        sent[-1] = sent[-1].index_copy(-1, nodes[sends], said)
        if post is not None:
            mailed[-1] = mailed[-1].index_copy(-1, edges[keep], post[..., keep])
        done = rule.finished(nodes)
        if done is not None:
            timetable.retire(nodes[done])
    return h


def _gather(sent: list[Tensor], index: Tensor, time: Tensor) -> Tensor:
    """Columns of what was sent at these times, [R, w, n]: one gather for each time."""
    order = torch.argsort(time, stable=True)
    times, counts = torch.unique_consecutive(time[order], return_counts=True)
    columns = index[order].split(counts.tolist())
    parts = [sent[t].index_select(-1, j) for t, j in zip(times.tolist(), columns, strict=True)]
    found = torch.cat(parts, -1) if parts else sent[0][..., :0]
    return found.index_select(-1, torch.argsort(order))


def _check_model(model: LayeredGNN) -> None:
    if not isinstance(model, LayeredGNN):
        raise ConfigError(
            f"{type(model).__name__} is not trained under schedules, since its answer does not "
            f"depend on them (implicit models, LayerTagged); expected a LayeredGNN such as GCN or "
            f"GAT, or PyG's layers in a new hogwild.LayeredGNN. Train other models with model(...)"
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
        return model.problem(*args, **kwargs)  # type: ignore[arg-type]


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
