"""All seeds and folds of a configuration as the replicas of one model.

Replica r is trained on fold r mod F from the parameters of seed s + r div F; with ``fold`` all
replicas are trained on this one fold, replica r from the parameters of seed s + r. Its initial
parameters are a function of its seed alone, and training treats every replica by itself: a replica
ends where it would have ended alone, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from hogwild.config import Config
from hogwild.errors import ConfigError
from hogwild.models.gnn import ConvGNN
from hogwild.tasks.base import Task
from hogwild.tasks.splits import Split
from hogwild.training.registry import build


@dataclass(frozen=True)
class Members:
    """The seed and the graphs of each replica."""

    seeds: list[int]  # [R]
    folds: list[int]  # [R]
    train: Tensor  # [R, G] whether replica r trains on graph g
    val: Tensor  # [R, G]
    test: Tensor  # [R, G]

    @classmethod
    def of(cls, config: Config, task: Task, replicas: int, device: torch.device) -> Members:
        """The members of a configuration."""
        held = {"validation": True} if config.validation else {}
        known = signature(task.splits).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
        if held and "validation" not in known and not anything:
            raise ConfigError(
                f"validation=True was asked of {task.name!r}, whose splits() has no argument of "
                f"that name; expected it there, or validation=False"
            )
        splits = _check(task.splits(config.folds, config.data_seed, **held), task)
        for f, split in enumerate(splits):
            if not len(split.train):
                raise ConfigError(
                    f"fold {f} of {task.name!r} has no graphs to train on; expected at least one"
                )
        every = list(range(len(splits)))
        if config.fold is not None:
            if config.fold not in every:
                raise ConfigError(
                    f"fold={config.fold} of {task.name!r}; expected a fold from 0 to {every[-1]}"
                )
            every = [config.fold]
        folds = [every[r % len(every)] for r in range(replicas)]
        seeds = [config.seed + r // len(every) for r in range(replicas)]

        def member(part: str) -> Tensor:
            out = torch.zeros(replicas, len(task.graphs), dtype=torch.bool)
            for row, fold in zip(out, folds, strict=True):
                row[getattr(splits[fold], part)] = True
            return out.to(device)

        return cls(seeds, folds, member("train"), member("val"), member("test"))


def _check(splits: Sequence[Split], task: Task) -> Sequence[Split]:
    """The splits, if they hold numbers of graphs."""
    count = len(task.graphs)
    if not isinstance(splits, Sequence) or not splits:
        raise ConfigError(
            f"splits() of {task.name!r} returned {splits!r}; expected a list of at least "
            f"one hogwild.tasks.Split"
        )
    for split in splits:
        for part in ("train", "val", "test"):
            ids: Any = getattr(split, part, None)
            fine = isinstance(ids, Tensor) and ids.dim() == 1 and ids.dtype == torch.long
            if not fine or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count):
                raise ConfigError(
                    f"splits() of {task.name!r} has {part} = {ids!r}; expected the numbers of some "
                    f"of its {count} graphs, a tensor of integers [n]"
                )
    return splits


def initial(config: Config, task: Task, seeds: Sequence[int]) -> ConvGNN:
    """A model with one replica for each seed, drawn as that seed draws it alone."""
    drawn: dict[int, dict[str, Tensor]] = {}
    with torch.random.fork_rng(devices=[]):
        for seed in dict.fromkeys(seeds):
            torch.default_generator.manual_seed(seed)  # not those of GPUs
            drawn[seed] = build(config, task, None).state_dict()
        model = build(config, task, len(seeds))
    states = [drawn[seed] for seed in seeds]
    model.load_state_dict({k: torch.stack([s[k] for s in states]) for k in states[0]})
    return model


def single(config: Config, task: Task, model: ConvGNN, r: int) -> ConvGNN:
    """Replica r as a model of its own."""
    state = {k: v[r].cpu() for k, v in model.state_dict().items()}
    alone = build(config, task, None)
    alone.load_state_dict(state)
    return alone.to(next(model.parameters()).device)
