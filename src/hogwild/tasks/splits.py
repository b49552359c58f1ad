"""Training, validation and test graphs: by folds, by shares, or as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hogwild.errors import ConfigError, is_integer


@dataclass(frozen=True)
class Split:
    """Numbers of the training, validation and test graphs; each sorted, [n] of int64."""

    train: Tensor
    val: Tensor
    test: Tensor


def shuffled(count: int, seed: int, strata: Tensor | None = None) -> Tensor:
    """The numbers 0, …, count − 1 in an order that is a function of the seed, [count]. With classes
    ``strata`` [count] one class comes after the other: taking every m-th number gives all classes
    in equal shares."""
    order = np.random.default_rng(seed).permutation(count)
    if strata is not None:
        order = order[np.argsort(strata.numpy()[order], kind="stable")]
    return torch.from_numpy(order)


def cross_validation(
    count: int,
    folds: int,
    seed: int,
    strata: Tensor | None = None,
    *,
    validation: bool = True,
    name: str = "own data",
) -> list[Split]:
    """One split for each of ``folds`` folds, in which this fold is tested.

    Args:
        count: Number of graphs.
        folds: Number of folds, of equal sizes up to one graph.
        seed: Which graphs lie in which fold.
        strata: [count] classes that every fold holds in equal shares; ``None``: ignore classes.
        validation: Hold the next fold out of the training graphs as ``val``; otherwise ``val``
            equals ``train``.
        name: The name of the task, for errors.
    """
    if not is_integer(folds) or not 2 + validation <= folds <= count:
        raise ConfigError(
            f"folds={folds!r} for {count} graphs of {name!r}; expected an integer from "
            f"{2 + validation} to {count}"
        )
    fold = torch.empty(count, dtype=torch.long)
    fold[shuffled(count, seed, strata)] = torch.arange(count) % folds
    out = []
    for test in range(folds):
        val = fold == (test + 1) % folds if validation else fold != test
        train = (fold != test) & ~val if validation else val
        out.append(Split(*(m.nonzero()[:, 0] for m in (train, val, fold == test))))
    return out


def shares(count: int, seed: int, strata: Tensor | None = None) -> Split:
    """80 % of at least three graphs for training, 10 % for validation and the rest for testing, at
    least one of each. ``strata`` [count] are classes that all parts hold in equal shares."""
    order = shuffled(count, seed, strata)
    if strata is not None:
        order = torch.cat([order[hand::10] for hand in range(10)])
    train, val = max(1, round(0.8 * count)), max(1, round(0.1 * count))
    train = min(train, count - 2)
    val = min(val, count - train - 1)
    return Split(*(p.sort().values for p in order.split([train, val, count - train - val])))


def published(sizes: Sequence[int]) -> Split:
    """A split of graphs that are stored in the order training, validation, test; their numbers."""
    return Split(*torch.arange(sum(sizes)).split(list(sizes)))
