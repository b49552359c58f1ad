"""The arguments of constructors: what passes through several of them, and what is refused."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hogwild.errors import among


class Called(ABCMeta):
    """The metaclass of models and layers. Errors in a call name the class that was called, and not
    the base class whose constructor it inherits; :attr:`aliases` are replaced."""

    aliases: dict[str, str] = {}  # noqa: RUF012
    """Other names of keyword arguments."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the constructor, for ``help``."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    if not TYPE_CHECKING:  # type checkers read __init__

        def __call__(cls, *args: Any, **given: Any) -> Any:
            return super().__call__(*args, **_checked(cls, args, given))


def _checked(cls: Any, args: Sequence[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call; raise if the arguments do not fit the constructor."""
    signature = inspect.signature(cls)
    known = signature.parameters.values()
    names, kinds = {p.name for p in known}, {p.kind for p in known}
    passes_on = inspect.Parameter.VAR_KEYWORD in kinds
    for alias, name in cls.aliases.items():
        if alias in given and alias not in names and (name in names or passes_on):
            if name in given:
                raise TypeError(
                    f"{cls.__name__} was given {alias}={given[alias]!r} and "
                    f"{name}={given[name]!r}, which are two names of one argument; expected one of "
                    f"them"
                )
            given[name] = given.pop(alias)
    places = [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(places) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise TypeError(_by_name(cls, places, args[len(places) :]))
    if not passes_on:
        refuse_unknown(cls, given, names)
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None
    return given


def _by_name(cls: Any, places: list[str], extra: Sequence[Any]) -> str:
    """What to write where too many arguments were given by position, as PyG's classes take them."""
    names = ["out_channels"]
    takes = inspect.signature(cls).parameters.values()
    has_hidden = any(p.name == "hidden_channels" or p.kind is p.VAR_KEYWORD for p in takes)
    if places == ["in_channels"] and not cls.aliases and has_hidden:
        names = ["hidden_channels", *["num_layers"] * (len(extra) > 2), "out_channels"]
    names = [name for name in names if cls.aliases.get(name, name) not in places]
    pairs = [f"{name}={value!r}" for name, value in zip(names, extra, strict=False)]
    left = [f"{name}=..." for name in names[len(extra) :]]
    return (
        f"{cls.__name__} takes {' and '.join(places) or 'nothing'} by position, and was given "
        f"{', '.join(map(repr, extra))}, too; expected the rest by name, such as "
        f"{cls.__name__}({', '.join([*places, *pairs, *left])})"
    )


def keywords(cls: type, top: type) -> set[str]:
    """Names of the keyword-only arguments of a class and its base classes below ``top``."""
    below = cls.__mro__[: cls.__mro__.index(top)]
    parameters = [p for base in below for p in inspect.signature(base).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def refuse_unknown(cls: type, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an argument that a constructor would pass on is not one of the known arguments."""
    for name in given:
        aliases = getattr(cls, "aliases", {}).items()
        names = {*known, *(alias for alias, of in aliases if of in set(known))}
        if name not in names:
            raise TypeError(f"{cls.__name__} has no argument {name!r}; {among(names, name)}")
