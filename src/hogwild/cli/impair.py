"""Impairments from flags: ``--loss 0.3``, ``--impair crashes:rate=0.1,downtime=20``.

Names and keys are those of :mod:`hogwild.asynchrony.impairments`: ``link-churn`` is ``LinkChurn``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from hogwild.cli.values import value
from hogwild.errors import ConfigError, among

if TYPE_CHECKING:
    from hogwild.asynchrony.impairments import Impairment

NAMES = (
    "bernoulli-loss", "crashes", "duplication", "event-triggered", "geometric-delay",
    "gilbert-elliott", "link-churn", "pareto-delay", "quantisation", "reordering", "stragglers",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""


def impairments(texts: Iterable[str], loss: float | None = None) -> tuple[Impairment, ...]:
    """What --impair (any number of times) and --loss ask for."""
    from hogwild.asynchrony.impairments import BernoulliLoss

    found = [_one(text) for text in texts]
    if loss is not None:
        try:
            found.append(BernoulliLoss(loss))
        except ConfigError as error:
            raise ConfigError(str(error).replace("rate=", "--loss ")) from None
    return tuple(found)


def known() -> dict[str, type[Impairment]]:
    """All impairments of the library by their names on the command line."""
    from hogwild.asynchrony import impairments as all_of_them

    return {
        re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): kind
        for name, kind in vars(all_of_them).items()
        if isinstance(kind, type)
        and issubclass(kind, all_of_them.Impairment)
        and kind is not all_of_them.Impairment
    }


def _one(text: str) -> Impairment:
    """``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``."""
    name, _, rest = text.partition(":")
    kinds = known()
    if name not in kinds:
        raise ConfigError(f"--impair {name!r}: unknown impairment; {among(kinds, name)}")
    keys = [field.name for field in fields(kinds[name])]  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, written = pair.partition("=")
        if not equals or key not in keys:
            raise ConfigError(
                f"--impair {text!r}: {pair!r} is no option of {name}; expected KEY=VALUE with a "
                f"key among {', '.join(keys)}"
            )
        options[key] = value(written)
    try:
        return kinds[name](**options)
    except ConfigError as error:  # said of the flag, not of a keyword
        said = re.sub(rf"(?<!\w)({'|'.join(keys)})=", rf"{name}:\1=", str(error))
        raise ConfigError(f"--impair {said.removeprefix('--impair ')}") from None
    except TypeError:
        raise ConfigError(f"--impair {text!r}: expected a number for each key") from None
