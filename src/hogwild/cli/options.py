"""A verb's options: one frozen dataclass, from which its flags, its help and its parser come.

::

    @dataclass(frozen=True, kw_only=True)
    class Simulate(Verb):
        \"""Run a trained model asynchronously.

        Examples:
          hogwild simulate runs/chains
        \"""

        folder: str = argument("folder of a finished training run")
        plot: str | None = option(None, "draw the error to this file", group="files")
        stagger: int = taken("executors/simulate.py:simulate", "stagger", "timing")

The docstring is the help text, a field is a flag, and the field's type says what the flag takes:

==================  ================================================
``bool``            nothing: the flag means true
``int``, ``float``  a number; ``none`` where the type allows ``None``
``str | float``     a number, or else the text
``tuple[int, ...]`` numbers with commas between them (or floats)
``tuple[str, ...]`` a text; the flag may be repeated
==================  ================================================

A field made by :func:`taken` has the default and the help of a function's parameter, read from the
source of the library: help must not wait for torch. A field made by :func:`each` stands for all
fields of another dataclass: a flag for each, and a dictionary of those that were given.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import hogwild
from hogwild.errors import ConfigError, among

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


def taken(
    place: str, name: str, group: str | None = None, *, default: Any = MISSING, **keywords: Any
) -> Any:
    """A field that is the parameter ``name`` of a function (or the field of a dataclass) of the
    library, at a ``place`` such as ``"executors/simulate.py:simulate"``. It has the default and the
    description that stand there, unless another default is given."""
    found, text = parameters(place)[name]
    return option(found if default is MISSING else default, text, group=group, **keywords)


@cache
def parsed(path: str) -> ast.Module:
    """A file of the library, as written."""
    return ast.parse((Path(hogwild.__file__).parent / path).read_text("utf-8"))


@cache
def parameters(place: str) -> dict[str, tuple[Any, str]]:
    """Default and description of every parameter of a function, or field of a dataclass."""
    path, _, name = place.partition(":")
    body = parsed(path).body
    known = {ast.unparse(s.targets[0]): s.value for s in body if isinstance(s, ast.Assign)}
    made = next(s for s in body if getattr(s, "name", None) == name)
    if isinstance(made, ast.FunctionDef):
        args = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
        given = [*made.args.defaults, *made.args.kw_defaults]
        defaults = dict(zip([a.arg for a in args[::-1]], given[::-1], strict=False))
    else:
        assert isinstance(made, ast.ClassDef)
        lines = [s for s in made.body if isinstance(s, ast.AnnAssign)]
        defaults = {ast.unparse(s.target): s.value for s in lines}
    section = re.split(r"^(?:Args|Attributes):$", ast.get_docstring(made) or "", flags=re.M)[-1]
    texts = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.M))
    out: dict[str, tuple[Any, str]] = {}
    for key, node in defaults.items():
        try:
            default = None if node is None else ast.literal_eval(known.get(ast.unparse(node), node))
        except ValueError:  # no literal: the option has its own
            default = MISSING
        out[key] = default, _unmarked(texts.get(key, ""))
    return out


def _unmarked(text: str) -> str:
    """A description without the marks of a docstring, as a line of help: ``rule="balls"`` is
    --rule balls, and references are their last name."""
    text = re.sub(r" \(:\w+:`[^`]*`\)", "", " ".join(text.split()))
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text)
    text = re.sub(r"``(\w+)=\"(\w+)\"``", r"--\1 \2", text)
    text = text.replace("`", "").replace('"', "").replace("None:", "none:").removesuffix(".")
    name = text[1:2] == "," or (text[:2].isalpha() and text[:2].isupper())
    return text if name else text[:1].lower() + text[1:]


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


# -- messages -------------------------------------------------------------------------------------


def in_flags(said: object, options: Verb) -> str:
    """A message of the library, with flags that can be pasted instead of keywords: ``--epochs 0``
    for ``epochs=0``, ``--resume`` for ``resume=True``, ``--rule gradient --step certified`` for
    ``rule='gradient' with step='certified'``, and ``--task-option length=0`` for an option of a
    table."""
    known = flags(type(options))
    said_as = words(type(options)) | {"resume=True": "--resume"}  # training's, for every verb
    for name, table in options.as_dict().items():
        for key in table if isinstance(table, dict) else ():
            # A name that a flag has, too, is left as it is.
            said_as[f"{key}="] = f"{key}=" if key in known else f"{known[name]} {key}="
    either = "|".join(sorted(map(re.escape, said_as), reverse=True))  # of two alike the longer
    # Nothing inside a path, a quotation, an impairment's options or a longer name.
    pattern = rf"(?<![\w./'\":,-])({either})(?:'([A-Za-z][\w-]*)')?"
    # Of two keywords joined by "with" the flags stand side by side.
    text = re.sub(r"(?<=\w') with (?=\w+=')", " ", str(said))
    return re.sub(pattern, lambda found: said_as[found[1]] + (found[2] or ""), text)


# -- values ---------------------------------------------------------------------------------------


def value(text: str) -> Any:
    """A flag's value as TOML reads it (3, 0.1, true, "a", [1, 2]), a list also as (1, 2) or 1,2;
    else the text itself."""
    if text.lower() == "none":
        return None
    bare = text.strip()
    bare = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    for written in (text, f"[{bare}]" if "," in bare else text):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


def pairs(given: list[str] | None, flag: str) -> dict[str, Any]:
    """``KEY=VALUE`` after ``flag``, any number of times."""
    out: dict[str, Any] = {}
    for text in given or []:
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {text!r}; expected KEY=VALUE")
        out[key] = value(rest)
    return out
