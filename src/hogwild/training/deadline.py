r"""Training for time: nodes shall answer well after few updates, not only in the limit.

The loss has a second term, of the answers :math:`\hat y_T` that nodes reach after synchronous
gradient updates (:mod:`hogwild.executors.unrolled`),

.. math:: \ell(\hat y_\infty) + w\, \ell(\hat y_T).

The model stays what it is: convex, and exact in the limit. What changes are its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from torch_geometric.data import Batch

from hogwild.asynchrony.schedule import Names, check_bounds
from hogwild.errors import ConfigError, among, is_number, require_all_positive, require_positive
from hogwild.executors.unrolled import asynchronous_embed, descended
from hogwild.models.base import Kind
from hogwild.models.gnn import ConvGNN
from hogwild.problems.base import Problem
from hogwild.training.predict import inputs_of

GONE = {"method": "synchronous", "tail": None}
"""Options of earlier versions, and the only value that is left."""
MOST = 30
"""Synchronous updates by default, at most: their cost grows with their number."""


@dataclass(frozen=True)
class Deadline:
    """When nodes answer, and how this is trained for.

    Attributes:
        updates: Updates of a node until it answers, on average over nodes.
        rule: What nodes do when the epoch is chosen (:func:`hogwild.simulate`).
        stagger: S of the schedule then.
        delay: D of the schedule then.
        weight: w, the weight of the term beside the loss in the limit.
        unroll: Synchronous updates; ``None``: as many as ``updates``, at most :data:`MOST`.
    """

    updates: int
    rule: str = "auto"
    stagger: int = 5
    delay: int = 2
    weight: float = 1.0
    unroll: int | None = None

    @classmethod
    def of(cls, updates: int | None, options: Mapping[str, Any]) -> Deadline | None:
        """The deadline of a configuration; ``None`` if there is none."""
        known = {f.name for f in fields(cls)} - {"updates"}
        for name, only in GONE.items():
            if options.get(name, only) != only:
                raise ConfigError(
                    f"deadline_options={dict(options)!r}; {name} is no longer an option: the term "
                    f"of a deadline is the loss after synchronous updates (unroll)"
                )
        options = {name: x for name, x in options.items() if name not in GONE}
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"unknown option {name!r} in deadline_options; {among(known, name)}"
                )
        if updates is None:
            if options:
                raise ConfigError(
                    f"deadline_options={dict(options)!r} were given without a deadline; expected "
                    f"deadline=..., a number of updates"
                )
            return None
        return cls(require_positive("deadline", updates), **options)

    def __post_init__(self) -> None:
        check_bounds(self.stagger, self.delay)
        require_all_positive(unroll=self.unroll)
        if not is_number(self.weight) or not 0 < self.weight < math.inf:
            raise ConfigError(f"weight={self.weight!r}; expected a positive number")

    def check(self, model: ConvGNN) -> None:
        """Raise unless nodes of this model can be trained for a deadline."""
        if model.kind == Kind.EXPLICIT or model.num_layers > 1:
            what = f"{model.num_layers} layers" if model.num_layers > 1 else "no problem to solve"
            raise ConfigError(
                f"deadline={self.updates} was given for a {type(model).__name__} with {what}; "
                f"expected an implicit model of one layer, such as energy-edge (explicit models "
                f"are trained under schedules by hogwild.executors.unrolled.asynchronous_forward)"
            )

    def answers(
        self, model: ConvGNN, data: Batch, seed: int, nodes: Tensor | None = None
    ) -> Tensor:
        """What nodes (or graphs) answer at the deadline under a schedule, [R, …]. With the numbers
        of the ``nodes`` [N] among those of all graphs, a graph has the same schedule in every
        batch."""
        names = None
        if nodes is not None:
            source, target = nodes[data.edge_index]
            names = Names(nodes, (source << 31) + target)
        h = asynchronous_embed(
            model, inputs_of(model, data), updates=self.updates, rule=self.rule,
            stagger=self.stagger, delay=self.delay, seed=seed, names=names,
        )  # fmt: skip
        return _read(model, data, h)

    def synchronous(self, model: ConvGNN, data: Batch) -> Tensor:
        """What nodes (or graphs) answer after synchronous updates, [R, …]."""
        unroll = min(self.updates, MOST) if self.unroll is None else self.unroll
        h = descended(_posed(model, data), unroll).mT
        return _read(model, data, h if model.replicas is not None else h[0])


def _posed(model: ConvGNN, data: Batch) -> Problem:
    problem = model.problem(inputs_of(model, data))
    assert isinstance(problem, Problem)
    return problem


def _read(model: ConvGNN, data: Batch, h: Tensor) -> Tensor:
    """Predictions with a dimension for replicas."""
    out = model.read(h.to(data.x.dtype), inputs_of(model, data))
    return out if model.replicas is not None else out.unsqueeze(0)
