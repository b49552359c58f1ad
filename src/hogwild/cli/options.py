"""A verb's options: one table, from which its flags, its help and its parser come.

::

    @verb(
        argument("folder", "folder of a finished training run"),
        *taken("executors/simulate.py:simulate", "stagger delay", "timing"),
        Option("plot", "str | None", None, "draw the error to this file", "files"),
    )
    def simulate(options: Options) -> Outcome:
        \"""Run a trained model asynchronously.

        Examples:
          hogwild simulate runs/chains
        \"""

The docstring is the help text. Most options are parameters of functions of the library: their
types, defaults and descriptions are read from the source, since help must not wait for torch.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import hogwild
from hogwild.errors import ConfigError, among

NUMBERS: dict[type, tuple[str, str]] = {int: ("an integer", "N"), float: ("a number", "X")}
"""What a flag of this type takes, in words and in the help."""


@dataclass(frozen=True)
class Option:
    """An option of a verb.

    Attributes:
        name: Its name, as the library calls it, too.
        kind: Its type, as in a signature. Of ``bool`` the flag means true; ``Sequence[int]`` takes
            numbers with commas between them; flags of ``tuple[str, ...]``, and of ``dict``, which
            takes KEY=VALUE, may be repeated; ``Any`` is a value as TOML writes it.
        default: Its default.
        help: Its line of help, to which the default is added.
        group: The heading above.
        keyword: What else the library's messages call it.
        metavar, choices, nargs: As in argparse.
        if_given: Whether it is there only if it was given.
        place: Whether it is known by its place, without a flag.
    """

    name: str
    kind: str
    default: Any
    help: str
    group: str | None = None
    keyword: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    nargs: str | None = None
    if_given: bool = False
    place: bool = False

    @property
    def flag(self) -> str:
        """``--task-option`` of ``task_options``, since each use of the flag gives one option."""
        name = self.name.removesuffix("s") if self.kind == "dict" else self.name
        return "--" + name.replace("_", "-")

    @property
    def repeated(self) -> bool:
        """Whether it may be given several times."""
        return self.kind in ("dict", "tuple[str, ...]")

    def add(self, parser: Any) -> None:
        """Add it to a parser, or to a group of one."""
        number = next((n for n in NUMBERS if n.__name__ in self.kind), None)
        many, metavar = "[" in self.kind, self.name.upper() if self.place else None
        if number is not None:
            metavar = NUMBERS[number][1] + ",..." * many
        keywords: dict[str, Any] = {"metavar": self.metavar or metavar, "type": str}
        if self.kind == "bool":
            keywords = {"action": "store_true"}
        elif self.kind == "Any":
            keywords |= {"type": value, "metavar": "X"}
        elif self.repeated:
            keywords["action"] = "extend" if self.nargs else "append"
            keywords["metavar"] = self.metavar or ("K=V" if self.kind == "dict" else metavar)
        elif number is not None:
            keywords["type"] = partial(self._read, number, many)
        if not self.place:
            keywords["dest"] = self.name
        for name in ("choices", "nargs"):
            if getattr(self, name) is not None:
                keywords[name] = getattr(self, name)
        name = self.name if self.place else self.flag
        parser.add_argument(name, **keywords, help=self._help(), default=argparse.SUPPRESS)

    def _read(self, number: type, many: bool, text: str) -> Any:
        """What argparse calls; it puts the flag in front of the complaint."""
        if "None" in self.kind and text.lower() == "none":
            return None
        try:
            return tuple(map(number, text.split(","))) if many else number(text)
        except ValueError:
            if "str" in self.kind:
                return text
            expected = NUMBERS[number][0] + ", or several with commas between them" * many
            raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}") from None

    def _help(self) -> str:
        """The help text, with the default where there is one to name."""
        text, default = self.help, self.default
        if self.kind == "Any" and isinstance(default, bool):
            default = str(default).lower()
        if default not in (None, "", (), {}) and default is not MISSING and default is not False:
            many = isinstance(default, tuple)
            text += f"; default: {','.join(map(str, default)) if many else default}"
        return text.replace("%", "%%")


def argument(name: str, help: str, default: Any = MISSING, nargs: str | None = None) -> Option:
    """A text that is known by its place; needed unless it has a default."""
    kind = "str" if nargs is None else "tuple[str, ...]"
    nargs = nargs if default is MISSING else "?"
    return Option(name, kind, default, help, nargs=nargs, place=True)


def taken(place: str, names: str, group: str | None = None, **changes: Any) -> list[Option]:
    """Options that are parameters of a function (or fields of a dataclass) of the library, at a
    ``place`` such as ``"executors/simulate.py:simulate"``, with the types, defaults and
    descriptions that stand there, but for ``changes``."""
    found = parameters(place)
    return [replace(found[name], group=group, **changes) for name in names.split()]


# -- what stands in the source ---------------------------------------------------------------------


@cache
def parsed(path: str) -> Any:
    """A file of the library, as written."""
    return ast.parse((Path(hogwild.__file__).parent / path).read_text("utf-8"))


def constants(path: str) -> dict[str, Any]:
    """What the names of a file stand for, as written."""
    body = parsed(path).body
    plain = {ast.unparse(s.targets[0]): s.value for s in body if isinstance(s, ast.Assign)}
    return plain | {ast.unparse(s.target): s.value for s in body if isinstance(s, ast.AnnAssign)}


def names(path: str, name: str) -> tuple[str, ...]:
    """The keys of a dictionary of the library, such as ``RULES`` in ``rules/__init__.py``."""
    return tuple(ast.literal_eval(key) for key in constants(path)[name].keys)


@cache
def parameters(place: str) -> dict[str, Option]:
    """Every parameter of a function, or field of a dataclass."""
    path, _, name = place.partition(":")
    known = constants(path)
    made: Any = next(s for s in parsed(path).body if getattr(s, "name", None) == name)
    if isinstance(made, ast.FunctionDef):
        args = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
        values: list[Any] = [*made.args.defaults, *made.args.kw_defaults]
        values = [None] * (len(args) - len(values)) + values
        lines: Any = [(a.arg, a.annotation, v) for a, v in zip(args, values, strict=True)]
    else:
        found = [s for s in made.body if isinstance(s, ast.AnnAssign)]
        lines = [(ast.unparse(s.target), s.annotation, s.value) for s in found]
    section = re.split(r"^(?:Args|Attributes):$", ast.get_docstring(made) or "", flags=re.M)[-1]
    texts = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.M))
    out = {}
    for key, kind, node in lines:
        default: Any = MISSING
        with suppress(ValueError):  # no literal: the verb gives its own
            default = ast.literal_eval(known.get(ast.unparse(node), node)) if node else MISSING
        out[key] = Option(key, ast.unparse(kind), default, _plain(texts.get(key, "")))
    return out


def _plain(text: str) -> str:
    """A description without the marks of a docstring, as a line of help: ``rule="balls"`` is
    --rule balls, and references are their last name."""
    text = re.sub(r" \(:\w+:`[^`]*`\)", "", " ".join(text.split()))
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text)
    text = re.sub(r"``(\w+)=\"(\w+)\"``", r"--\1 \2", text)
    text = text.replace("`", "").replace('"', "").replace("None:", "none:").removesuffix(".")
    name = text[1:2] == "," or (text[:2].isalpha() and text[:2].isupper())
    return text if name else text[:1].lower() + text[1:]


# -- verbs -----------------------------------------------------------------------------------------


class Options(argparse.Namespace):
    """The values of a verb's options, by name."""

    _options: list[Option]

    def as_dict(self) -> dict[str, Any]:
        """The values by name, as JSON knows them."""
        return {name: value for name, value in vars(self).items() if name != "_options"}

    def in_flags(self, message: object) -> str:
        """A message of the library, with flags that can be pasted instead of keywords:
        ``--epochs 0`` for ``epochs=0``, ``--resume`` for ``resume=True``, ``--rule gradient --step
        certified`` for ``rule='gradient' with step='certified'``, and ``--task-option length=0``
        for an option of a table."""
        table = {"resume=True": "--resume"}  # training's, for every verb
        flags = {each.name: each.flag for each in self._options if not each.place}
        for each in self._options:
            for name in (each.name, each.keyword or each.name) if each.name in flags else ():
                table[f"{name}="] = f"{each.flag} "
            if each.kind == "bool":
                table[f"{each.name}=True"] = each.flag
        for each in self._options:
            for key in getattr(self, each.name, {}) if each.kind == "dict" else ():
                # A name that a flag has, too, is left as it is.
                table[f"{key}="] = f"{key}=" if key in flags else f"{each.flag} {key}="
        either = "|".join(sorted(map(re.escape, table), reverse=True))  # of two alike the longer
        # Nothing inside a path, a quotation, an impairment's options or a longer name.
        pattern = rf"(?<![\w./'\":,-])({either})(?:'([A-Za-z][\w-]*)')?"
        # Of two keywords joined by "with" the flags stand side by side.
        text = re.sub(r"(?<=\w') with (?=\w+=')", " ", str(message))
        return re.sub(pattern, lambda found: table[found[1]] + (found[2] or ""), text)


@dataclass
class Verb:
    """A verb: its help text, its options, and what it does."""

    help: str
    options: list[Option]
    run: Callable[[Options], Any]

    def parser(self, prog: str) -> argparse.ArgumentParser:
        """The parser of its words."""
        text, _, examples = inspect.cleandoc(self.help).partition("\nExamples:\n")
        usage = [prog]
        for each in self.options:
            if each.place:
                name = each.name.upper()
                usage.append(name if each.default is MISSING else f"[{name}]")
        parser = argparse.ArgumentParser(
            prog=prog,
            usage=" ".join([*usage, "[options]"]),
            description=text,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an option that comes later must not change what a script means
        )
        groups: dict[str | None, Any] = {None: parser}
        for each in self.options:
            if each.group not in groups:
                groups[each.group] = parser.add_argument_group(each.group)
            each.add(groups[each.group])
        return parser


JSON = Option("json", "bool", False, "print one JSON object, which holds these options, too")


def verb(*options: Option) -> Callable[[Callable[[Options], Any]], Verb]:
    """Make a function a verb, which also takes --json. Of options of one name the last counts."""
    table = {each.name: each for each in (JSON, *options)}
    return lambda function: Verb(function.__doc__ or "", list(table.values()), function)


def parse(found: Verb, words: Sequence[str], prog: str) -> Options:
    """The options in the words behind a verb.

    Exits with code 2 and a message on words that are no options, and with 0 after ``--help``.

    Raises:
        ConfigError: A flag that takes KEY=VALUE was given something else.
    """
    parser = found.parser(prog)
    given, rest = parser.parse_known_args(words)
    if rest:
        first = rest[0].partition("=")[0]
        known = [*(each.flag for each in found.options if not each.place), "--help"]
        parser.error(f"unknown argument {first!r}; {among(known, first)}")
    options = Options(_options=found.options)
    for each in found.options:
        got = getattr(given, each.name, each.default)
        if each.repeated and isinstance(got, list):
            got = pairs(got, each.flag) if each.kind == "dict" else tuple(got)
        if not each.if_given or hasattr(given, each.name):
            setattr(options, each.name, got)
    return options


# -- values ----------------------------------------------------------------------------------------


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


def pairs(given: Sequence[str], flag: str) -> dict[str, Any]:
    """``KEY=VALUE`` after ``flag``, any number of times."""
    out: dict[str, Any] = {}
    for text in given:
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {text!r}; expected KEY=VALUE")
        out[key] = value(rest)
    return out
