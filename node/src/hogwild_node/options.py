"""The options of ``hogwild-agent``: from the command line and from a TOML file.

Each option has a function that reads its value, whether it is the text of a command line or a
value of a file. Times are read as people write them: ``20ms``, ``0.02``, ``15ms,25ms``.
"""

from __future__ import annotations

import argparse
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hogwild_node.errors import SetupError
from hogwild_node.packets import PRECISIONS, Edge

EPILOG = """
examples:
  hogwild-agent --model model.hog --id 7 --listen 127.0.0.1:21007 --features 0.3,1.2 \\
      --neighbours 3=127.0.0.1:21003,8=127.0.0.1:21008
  hogwild-agent --config robot7.toml --status 1
  hogwild-agent --config robot7.toml --certificates keys/7 --controller base

robot7.toml:
  model = "model.hog"
  id = "7"
  listen = "10.0.0.7:21000"
  features = [0.3, 1.2]
  [neighbours.3]
  address = "10.0.0.3:21000"
  weight = 1.0
  edge_attr = [0.5]

An agent prints one line of JSON per --status seconds. It stops on SIGTERM or Ctrl-C. With --state
FILE it begins where it last stopped. With Zenoh it also takes new features and neighbours, as JSON
on the key hogwild/<model>/control/<id>:
  {"features": [0.4, 1.1], "neighbours": {"3": {"address": "10.0.0.3:21000"}}}

With --certificates FOLDER (from `hogwild keys`) all links are encrypted, the agent hears only
neighbours whose certificates have their names, and only the one named by --controller may send it
control messages and watch it. Without, whoever reaches its address can do all that.

`hogwild serve --attach HOST:PORT` shows the agent that listens there, and its neighbours.
"""


def text(given: Any, name: str, expected: str = "a text") -> str:
    """A text."""
    if not isinstance(given, str) or not given:
        raise SetupError(
            f"{name} is {'empty' if given == '' else repr(given)}; expected {expected}"
        )
    return given


def label(given: Any, name: str) -> str:
    """A name, which a file may write as a number."""
    return text(str(given) if type(given) is int else given, name, "a name")


def labels(given: Any, name: str) -> list[str]:
    """``3,8``, or a list of names."""
    return [label(part, name) for part in (given.split(",") if isinstance(given, str) else given)]


def number(kind: type, least: float, most: float, expected: str) -> Callable[[Any, str], Any]:
    """Reads a number of this type from ``least`` to ``most``."""

    def read(given: Any, name: str) -> Any:
        try:
            found = kind(given)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        exact = kind is float or isinstance(given, int | str)  # 2.5 is no whole number
        if not least <= found <= most or not exact or isinstance(given, bool):
            raise SetupError(f"{name} is {given}; expected {expected}")
        return found

    return read


positive = number(float, 1e-12, 1e12, "a positive number")
whole = number(int, -math.inf, math.inf, "a whole number")
count = number(int, 1, 1e12, "a positive whole number")
probability = number(float, 0.0, 0.999, "a probability from 0 to below 1")


def numbers(given: Any, name: str) -> list[float]:
    """``1,2,3``, or a list of numbers."""
    parts = given.split(",") if isinstance(given, str) else given
    try:
        if any(isinstance(part, bool) for part in parts):
            raise TypeError("true and false are no numbers")
        return [float(part) for part in parts]
    except (TypeError, ValueError, OverflowError) as error:
        raise SetupError(f"{name} is {given!r}; expected numbers such as 0.3,1.2") from error


def edges(given: Any, name: str = "neighbours") -> dict[str, Edge]:
    """``3=HOST:PORT,8=HOST:PORT``, or a table with address, weight and edge_attr of each."""
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",") if part]
        names = [neighbour for neighbour, _, _ in pairs]
        for neighbour, sign, address in pairs:
            if not (neighbour and sign and address):
                raise SetupError(
                    f"neighbour {neighbour!r} has no address; expected NAME=HOST:PORT, for "
                    f"instance 3=127.0.0.1:21003"
                )
            if names.count(neighbour) > 1:
                raise SetupError(
                    f"neighbour {neighbour} is named twice; expected each neighbour once"
                )
        given = {neighbour: {"address": address} for neighbour, _, address in pairs}
    if not isinstance(given, dict):
        raise SetupError(f"{name} is {given!r}; expected a table with one entry for each")
    out = {}
    for neighbour, entry in given.items():
        if not isinstance(entry, dict) or entry.keys() - {"address", "weight", "edge_attr"}:
            raise SetupError(
                f"neighbour {neighbour} is {entry!r}; expected a table with address, and weight "
                f"and edge_attr where they are needed"
            )
        where = entry.get("address")
        if where is not None and not isinstance(where, str):
            raise SetupError(f"neighbour {neighbour} has the address {where!r}; expected HOST:PORT")
        (weight,) = numbers([entry.get("weight", 1.0)], f"weight of neighbour {neighbour}")
        attr = entry.get("edge_attr")
        attr = None if attr is None else numbers(attr, f"edge_attr of neighbour {neighbour}")
        out[str(neighbour)] = Edge(where, attr, weight)
    return out


UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def interval(given: Any, name: str = "delay") -> tuple[float, float]:
    """The least and the most seconds: of one time (both are equal) or of two, with or without a
    unit.

    Raises:
        SetupError: It is something else.
    """
    parts = given.split(",") if isinstance(given, str) else given
    parts = parts if isinstance(parts, list | tuple) else [parts]
    found = [re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([a-z]*)\s*", str(part)) for part in parts]
    try:
        times = [float(part[1]) * UNITS[part[2]] for part in found if part is not None]
    except (ValueError, KeyError):
        times = []
    good = len(times) == len(parts) and 1 <= len(times) <= 2
    if not good or not times[0] <= times[-1] < float("inf"):
        raise SetupError(
            f"{name} is {given!r}; expected a time such as 20ms, or the least and the most such as "
            f"15ms,25ms"
        )
    return times[0], times[-1]


TRANSPORTS = ("zenoh", "udp")
OPTIONS: dict[str, tuple[Callable[[Any, str], Any], str, str]] = {
    "model": (text, "FILE", "the trained model, from `hogwild export`"),
    "id": (label, "NAME", "the agent's name"),
    "features": (numbers, "X,X,…", "the agent's features"),
    "neighbours": (edges, "NAME=HOST:PORT,…", "the neighbours and where they listen"),
    "transport": (text, "NAME", f"how packets travel: {' or '.join(TRANSPORTS)} (zenoh)"),
    "listen": (text, "HOST:PORT", "where the agent listens (127.0.0.1:21000)"),
    "certificates": (text, "FOLDER", "the agent's folder of `hogwild keys`, for TLS"),
    "controller": (label, "NAME", "whose certificate may control and watch it (nobody)"),
    "rule": (text, "NAME", "auto, or a rule that fits the model"),
    "radius": (whole, "HOPS", "of --rule balls (the whole graph)"),
    "precision": (text, "TYPE", f"numbers in packets: {', '.join(PRECISIONS)} (float32)"),
    "rate": (positive, "HZ", "turns a second (50)"),
    "lease": (positive, "S", "silence after which a neighbour is gone (2)"),
    "tolerance": (positive, "X", "the residual up to which the agent counts as settled"),
    "settle_after": (positive, "S", "calm until it says so (1, or ten turns)"),
    "nodes": (count, "N", "agents in the swarm, for the error bound"),
    "state": (text, "FILE", "keep the last state here, and begin with it"),
    "status": (positive, "S", "print the state every so many seconds"),
    "loss": (probability, "P", "for trials: lose so many packets (0)"),
    "delay": (interval, "T[,T]", "for trials: hold packets up, as 20ms or 15ms,25ms (0)"),
    "seed": (whole, "N", "of these losses and delays (0)"),
    "cut": (labels, "NAME,…", "for trials: SIGUSR1 cuts these off, SIGUSR2 ends that"),
    "trace": (text, "FILE", "append one line of JSON per update: what had been heard"),
    "seconds": (positive, "S", "stop after so many seconds"),
}
"""How the value of each option is read, what stands for it in the help, and what it is."""


def parser() -> argparse.ArgumentParser:
    """The options of the command, all of them texts."""
    out = argparse.ArgumentParser(
        "hogwild-agent", description="Run one node of a graph neural network without a clock.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    out.add_argument("--config", metavar="FILE", help="a TOML file with any of these options")
    for key, (_, metavar, about) in OPTIONS.items():
        out.add_argument(f"--{key.replace('_', '-')}", metavar=metavar, help=about)
    return out


def settings(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The options given: those of the command line over those of the file."""
    given = {k: v for k, v in vars(parser().parse_args(argv)).items() if v is not None}
    path = given.pop("config", None)
    if path is not None:
        try:
            filed = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise SetupError(
                f"{path} cannot be read ({error.strerror}); expected a TOML file"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{path} is not TOML: {error}") from error
        filed = {key.replace("-", "_"): value for key, value in filed.items()}
        if unknown := sorted(filed.keys() - OPTIONS.keys()):
            raise SetupError(
                f"{path} has {', '.join(unknown)}; expected some of {', '.join(sorted(OPTIONS))}"
            )
        given = filed | given
    for key in ("model", "id", "features"):
        if key not in given:
            raise SetupError(f"{key} is missing; expected --{key} …, or {key} in the file")
    found = {key: OPTIONS[key][0](value, key) for key, value in given.items()}
    # Neighbours that send at this rate must not seem silent (Agent._calm).
    return {"settle_after": max(1.0, 10.0 / found.get("rate", 50.0))} | found
