"""A verb's options: one frozen dataclass, from which its flags, its help and its parser come.

::

    @dataclass(frozen=True, kw_only=True)
    class Options(Verb):
        \"""Run a trained model asynchronously.

        Examples:
          hogwild simulate runs/chains
        \"""

        folder: str = argument("folder of a finished training run")
        stagger: int = option(5, "S: most ticks between updates", group="asynchrony")

The docstring is the help text, a field is a flag, and the field's type says what the flag takes:

==================  ================================================
``bool``            nothing: the flag means true
``int``, ``float``  a number; ``none`` where the type allows ``None``
``str | float``     a number, or else the text
``tuple[int, ...]`` numbers with commas between them (or floats)
``tuple[str, ...]`` a text; the flag may be repeated
==================  ================================================

A field made by :func:`each` stands for all fields of another dataclass: a flag for each, and a
dictionary of those that were given.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from hogwild.cli.values import pairs, value
from hogwild.errors import among

T = TypeVar("T", bound="Verb")
EXPECTED: dict[type, tuple[str, str]] = {int: ("an integer", "N"), float: ("a number", "X")}
"""What a flag of this type takes, in words and in the help."""


def option(
    default: Any,
    help: str,
    *,
    group: str | None = None,
    keyword: str | None = None,
    **keywords: Any,
) -> Any:
    """A field that is a flag. Its line of ``help`` stands under the heading ``group``, and the
    default is added to it. The library's messages call the option by the field's name or by
    ``keyword``. Other keywords are those of argparse's ``add_argument``."""
    metadata = {"help": help, "group": group, "keyword": keyword, "keywords": keywords}
    return field(default=default, metadata=metadata)


def argument(help: str, *, default: Any = MISSING, **keywords: Any) -> Any:
    """A field without a flag, which is known by its place; needed unless it has a default."""
    if default is not MISSING:
        keywords["nargs"] = "?"
    metadata = {"help": help, "positional": True, "keywords": keywords}
    return field(default=default, metadata=metadata)


def each(cls: type) -> Any:
    """A field that stands for all fields of this dataclass; only those that are given come in."""
    return field(default_factory=dict, metadata={"each": cls})


@dataclass(frozen=True, kw_only=True)
class Verb:
    """What every verb takes."""

    json: bool = option(False, "print one JSON object, which holds these options, too")

    def as_dict(self) -> dict[str, Any]:
        """The options by name, as JSON knows them."""
        out: dict[str, Any] = {}
        for f in fields(self):
            found = getattr(self, f.name)
            out |= found if "each" in f.metadata else {f.name: found}
        return out


def parse(cls: type[T], words: Sequence[str], prog: str) -> T:
    """The options in the words behind a verb.

    Exits with code 2 and a message on words that are no options, and with 0 after ``--help``.

    Raises:
        ConfigError: A flag that takes KEY=VALUE was given something else.
    """
    parser = parser_of(cls, prog)
    found, rest = parser.parse_known_args(words)
    if rest:
        given = rest[0].partition("=")[0]
        known = [*flags(cls).values(), "--help"]
        parser.error(f"unknown argument {given!r}; {among(known, given)}")
    out: dict[str, Any] = {}
    for f, gatherer in _fields(cls):
        if f.name not in found:  # not given: the dataclass knows the default
            continue
        got = getattr(found, f.name)
        if _is_table(f):
            got = pairs(got, _flag(f))
        if gatherer is not None:
            out.setdefault(gatherer, {})[f.name] = got
        else:
            out[f.name] = tuple(got) if isinstance(got, list) else got
    return cls(**out)


def parser_of(cls: type[Verb], prog: str) -> argparse.ArgumentParser:
    """The parser of a verb: the help text from the docstring, the arguments from the fields."""
    text, _, examples = inspect.cleandoc(cls.__doc__ or "").partition("\nExamples:\n")
    listed = list(_fields(cls))
    places = [
        f.name.upper() if f.default is MISSING else f"[{f.name.upper()}]"
        for f, _ in listed
        if f.metadata.get("positional")
    ]
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=" ".join([prog, *places, "[options]"]),
        description=text,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an option that comes later must not change what a script means
    )
    kinds = get_type_hints(cls)
    groups: dict[str | None, Any] = {None: parser}
    for f, gatherer in listed:
        group = f.metadata.get("group")
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        keywords = _anything(f) if gatherer is not None else _keywords(f, kinds[f.name])
        name = f.name if f.metadata.get("positional") else _flag(f)
        keywords |= {"help": _help(f), "default": argparse.SUPPRESS}
        groups[group].add_argument(name, **keywords | f.metadata.get("keywords", {}))
    return parser


def flags(cls: type) -> dict[str, str]:
    """The flag of every field that has one."""
    return {f.name: _flag(f) for f, _ in _fields(cls) if not f.metadata.get("positional")}


def words(cls: type) -> dict[str, str]:
    """What the library's messages call these options, and what the command line calls them:
    ``stagger=`` is ``--stagger``, and ``resume=True`` a flag without a value."""
    out = {f"{name}=": f"{flag} " for name, flag in flags(cls).items()}
    kinds = get_type_hints(cls)
    for f in fields(cls):
        if kinds[f.name] is bool:
            out[f"{f.name}=True"] = _flag(f)
        if f.metadata.get("keyword"):
            out[f"{f.metadata['keyword']}="] = f"{_flag(f)} "
    return out


def _fields(cls: type) -> Iterator[tuple[Field[Any], str | None]]:
    """The fields of a verb, each with the name of the field that gathers it (:func:`each`)."""
    own = {f.name for f in fields(cls)}
    for f in fields(cls):
        if "each" in f.metadata:
            yield from ((g, f.name) for g in fields(f.metadata["each"]) if g.name not in own)
        else:
            yield f, None


def _is_table(f: Field[Any]) -> bool:
    """Whether it holds a dictionary, which is given as KEY=VALUE, one at a time."""
    return f.default_factory is dict


def _flag(f: Field[Any]) -> str:
    """``--task-option`` of ``task_options``, since each use of the flag gives one option."""
    name = f.name.removesuffix("s") if _is_table(f) else f.name
    return "--" + name.replace("_", "-")


def _help(f: Field[Any]) -> str:
    """The help text, with the default where there is one to name."""
    text, default = f.metadata["help"], f.default
    if isinstance(default, bool) and "keywords" not in f.metadata:  # not a flag without a value
        default = str(default).lower()
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if default is not MISSING and default is not False and default not in (None, ""):
        text += f"; default: {default}"
    return text.replace("%", "%%")


def _anything(f: Field[Any]) -> dict[str, Any]:
    """For ``add_argument``, of a field of another dataclass: that class judges the value."""
    if _is_table(f):
        return {"dest": f.name, "action": "append", "metavar": "K=V"}
    return {"type": value, "metavar": "X"}


def _keywords(f: Field[Any], kind: Any) -> dict[str, Any]:
    """For ``add_argument``, of a field of the verb: its type says what the flag takes."""
    kinds = get_args(kind) or (kind,)
    if f.metadata.get("positional"):
        return {"metavar": f.name.upper()}
    if kind is bool:
        return {"action": "store_true"}
    if str in kinds and ... in kinds:
        return {"action": "extend" if "nargs" in f.metadata["keywords"] else "append"}
    number = next((n for n in EXPECTED if n in kinds), None)
    choices = f.metadata["keywords"].get("choices")

    def read(text: str) -> Any:
        """What argparse calls; it puts the flag in front of the complaint."""
        if choices is not None and text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r}; {among(choices, text)}")
        if number is None or (NoneType in kinds and text.lower() == "none"):
            return text if number is None else None
        try:
            return tuple(map(number, text.split(","))) if ... in kinds else number(text)
        except ValueError:
            if str in kinds:
                return text
            many = ", or several with commas between them" if ... in kinds else ""
            raise argparse.ArgumentTypeError(
                f"{text!r}; expected {EXPECTED[number][0]}{many}"
            ) from None

    if number is None:
        return {"type": read}
    return {"type": read, "metavar": EXPECTED[number][1] + (",..." if ... in kinds else "")}
