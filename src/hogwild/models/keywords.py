"""Keyword arguments that pass through several constructors."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from hogwild.errors import among


def keywords(cls: type, top: type) -> set[str]:
    """Names of the keyword-only arguments of a class and its base classes below ``top``."""
    below = cls.__mro__[: cls.__mro__.index(top)]
    parameters = [p for base in below for p in inspect.signature(base).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def refuse_unknown(cls: type, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an argument that a constructor would pass on is not one of the known arguments."""
    for name in given:
        if name not in set(known):
            raise TypeError(f"{cls.__name__} has no argument {name!r}; {among(known, name)}")
