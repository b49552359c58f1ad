"""Impairments from flags: ``--impair loss=0.3 --impair crashes=0.1,downtime=20``.

The names and options are those of the impairments' own dataclasses
(:mod:`hogwild.asynchrony.impairments`). The value behind a name is that of its first option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from hogwild.cli.values import value
from hogwild.errors import ConfigError, among

if TYPE_CHECKING:
    from hogwild.asynchrony import Impairment

OPTIONS = {
    "crashes": "rate, period, downtime, rejoin, until",
    "delay": "cap",
    "duplication": "rate",
    "event-triggered": "epsilon",
    "geometric-delay": "p, cap",
    "gilbert-elliott": "p, r, good, bad",
    "latency": "ticks, jitter",
    "link-churn": "rate, period, downtime",
    "loss": "rate, burst",
    "pareto-delay": "alpha, scale, cap",
    "quantisation": "unit",
    "reordering": "rate",
    "stragglers": "fraction, slowdown",
}
"""For the help, which must not wait for torch; a test compares them with the dataclasses."""
HELP = (
    "what else goes wrong; may be repeated. NAME alone has its defaults, NAME=VALUE sets the first "
    "option, and further options follow with commas: loss=0.3,burst=5. Names and their options: "
    + "; ".join(f"{name} ({options})" for name, options in OPTIONS.items())
)


def impairments(texts: Iterable[str]) -> tuple[Impairment, ...]:
    """The impairments that --impair asks for."""
    return tuple(_one(text) for text in texts)


def _one(text: str) -> Impairment:
    """``NAME``, ``NAME=VALUE`` or ``NAME=VALUE,KEY=VALUE``; the value is that of the first key."""
    from hogwild.asynchrony.impairments import known

    head, *pairs = text.split(",")
    name, equals, first = head.partition("=")
    kinds: dict[str, Any] = dict(known())
    if name not in kinds:
        raise ConfigError(f"--impair {text}: unknown impairment {name!r}; {among(kinds, name)}")
    keys = [field.name for field in fields(kinds[name])]
    options: dict[str, Any] = {keys[0]: value(first)} if equals else {}
    for pair in pairs:
        key, equals, written = pair.partition("=")
        if not equals or key not in keys:
            raise ConfigError(
                f"--impair {text}: {pair!r} is no option of {name}; expected KEY=VALUE with a key "
                f"among {', '.join(keys)}"
            )
        options[key] = value(written)
    try:
        made: Impairment = kinds[name](**options)
        return made
    except ConfigError as error:
        # A keyword of the impairment is no flag of the verb: it keeps the impairment's name.
        said = re.sub(rf"(?<!\w)({'|'.join(keys)})=", rf"{name}.\1=", str(error))
        raise ConfigError(f"--impair {text}: {said}") from None
