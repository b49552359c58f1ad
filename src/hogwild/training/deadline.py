r"""Training for time: nodes shall answer well after few updates, not only in the limit.

The loss has a second term, of the answers :math:`\hat y_T` that nodes give after
``deadline`` updates each under a random schedule that is drawn anew for every mini-batch,

.. math:: \ell(\hat y_\infty) + w\, \ell(\hat y_T),

with gradients through the last ``tail`` ticks (:mod:`hogwild.executors.unrolled`). The model stays
what it is: convex, and exact in the limit. What changes are its parameters.

A schedule is a function of the training's seed, the epoch and the number of the mini-batch, so that
a run that was stopped and resumed draws the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hogwild.asynchrony.schedule import check_bounds
from hogwild.errors import ConfigError, among, is_number, require_one_of, require_positive
from hogwild.executors.descent import descended
from hogwild.executors.unrolled import asynchronous_embed, ticks_of
from hogwild.models.gnn import ConvGNN
from hogwild.training.predict import inputs_of


METHODS = ("steps", "schedule")


@dataclass(frozen=True)
class Deadline:
    """When nodes answer, and how this is trained for.

    Attributes:
        updates: Updates of a node until it answers, on average over nodes.
        method: ``"schedule"``: asynchronous updates under random schedules; ``"steps"``: as many
            synchronous steps of all nodes, without a schedule, which are much cheaper
            (:mod:`hogwild.executors.descent`).
        rule: What nodes do (:func:`hogwild.simulate`).
        stagger: S of the schedules.
        delay: D of the schedules.
        weight: w, the weight of the answers in time beside those in the limit.
        tail: Ticks before the deadline that gradients go through; ``None``: all. Earlier ticks run
            without gradients, in compiled code where there is any.
    """

    updates: int
    method: str = "steps"
    rule: str = "auto"
    stagger: int = 5
    delay: int = 2
    weight: float = 1.0
    tail: int | None = None

    @classmethod
    def of(cls, updates: int | None, options: Mapping[str, Any]) -> Deadline | None:
        """The deadline of a configuration; ``None`` if there is none."""
        known = {f.name for f in fields(cls)} - {"updates"}
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
        require_one_of(METHODS, method=self.method)
        check_bounds(self.stagger, self.delay)
        if self.tail is not None:
            require_positive("tail", self.tail)
        if not is_number(self.weight) or not 0 < self.weight < float("inf"):
            raise ConfigError(f"weight={self.weight!r}; expected a positive number")

    @property
    def ticks(self) -> int:
        """The tick after which nodes answer."""
        return ticks_of(self.updates, self.stagger)

    def answers(self, model: ConvGNN, data: Batch, seed: int) -> Tensor:
        """What nodes (or graphs) answer at the deadline, [R, …]; differentiable."""
        inputs = inputs_of(model, data)
        if self.method == "steps":
            h = descended(model.problem(inputs), self.updates).mT
            out = model.read((h if model.replicas is not None else h[0]).to(data.x.dtype), inputs)
            return out if model.replicas is not None else out.unsqueeze(0)
        h = asynchronous_embed(
            model, inputs, updates=self.updates, rule=self.rule, tail=self.tail,
            stagger=self.stagger, delay=self.delay, seed=seed,
        )  # fmt: skip
        out = model.read(h.to(data.x.dtype), inputs)
        return out if model.replicas is not None else out.unsqueeze(0)


def seed_of(seed: int, epoch: int, batch: int) -> int:
    """The seed of the schedule of a mini-batch."""
    random = torch.Generator().manual_seed(seed)
    for number in (epoch, batch):
        drawn = int(torch.randint(2**62, (), generator=random))
        random.manual_seed((drawn + number) % 2**63)
    return int(torch.randint(2**31, (), generator=random))
