"""The options of ``hogwild-agent``: from the command line and from a TOML file.

Times are read as people write them: ``20ms``, ``0.02``, ``15ms,25ms``.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hogwild_node.errors import SetupError
from hogwild_node.packets import PRECISIONS, Edge

TRANSPORTS = ("zenoh", "udp")
TEXT, NUMBER, NAME, NAMES = (str,), (int,), (str, int), (str, list)
EXPECTED = {TEXT: "a text", NUMBER: "a whole number", NAME: "a name", NAMES: "names"}
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "listen", "transport", "rule", "precision"), TEXT),
    **dict.fromkeys(("state", "trace", "certificates"), TEXT),
    **dict.fromkeys(("seed", "radius"), NUMBER),
    **dict.fromkeys(("id", "controller"), NAME),
    "cut": NAMES,
}
"""What kind of value an option has; the others are numbers."""

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

An agent prints one line of JSON per --status seconds: its answer, residual, calm and state. It
stops on SIGTERM or Ctrl-C. With --state FILE it begins where it last stopped. With Zenoh it also
takes new features and neighbours, as JSON on the key hogwild/<model>/control/<id>:
  {"features": [0.4, 1.1], "neighbours": {"3": {"address": "10.0.0.3:21000"}}}

With --certificates FOLDER (from `hogwild keys`) all links are encrypted. The agent hears only
neighbours whose certificates have their names, and takes control messages only from the certificate
named by --controller. It says so where a certificate is refused. Without certificates, whoever
reaches the agent's address can send it packets and control messages, and watch it.

`hogwild serve --attach HOST:PORT` shows agents on a page: it asks the agent that listens there, and
finds its neighbours. With certificates, only the one named by --controller may watch.
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    out = argparse.ArgumentParser(
        "hogwild-agent", description="Run one node of a graph neural network without a clock.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = out.add_argument
    add("--config", type=Path, metavar="FILE", help="a TOML file with any of these options")
    add("--model", metavar="FILE", help="the trained model, from `hogwild export`")
    add("--id", metavar="NAME", help="the agent's name")
    add("--features", metavar="X,X,…", help="the agent's features")
    add("--neighbours", metavar="NAME=HOST:PORT,…", help="the neighbours and where they listen")
    add("--transport", choices=TRANSPORTS, help="how packets travel (zenoh)")
    add("--listen", metavar="HOST:PORT", help="where the agent listens (127.0.0.1:21000)")
    add("--certificates", metavar="FOLDER", help="the agent's folder of `hogwild keys`, for TLS")
    add(
        "--controller",
        metavar="NAME",
        help="whose certificate may control and watch it (nobody)",
    )
    add("--rule", help="auto, or a rule that fits the model")
    add("--radius", type=int, metavar="HOPS", help="of --rule balls (the whole graph)")
    add("--precision", choices=tuple(PRECISIONS), help="numbers in packets (float32)")
    add("--rate", type=float, metavar="HZ", help="turns a second (50)")
    add("--lease", type=float, metavar="S", help="silence after which a neighbour is gone (2)")
    add("--tolerance", type=float, help="the residual up to which the agent counts as settled")
    add("--settle-after", type=float, metavar="S", help="calm until it says so (1, or ten turns)")
    add("--nodes", type=int, metavar="N", help="agents in the swarm, for the error bound")
    add("--state", metavar="FILE", help="keep the last state here, and begin with it")
    add("--status", type=float, metavar="S", help="print the state every so many seconds")
    add("--loss", type=float, metavar="P", help="for trials: lose so many packets (0)")
    add("--delay", metavar="T[,T]", help="for trials: hold packets up, as 20ms or 15ms,25ms (0)")
    add("--seed", type=int, help="of these losses and delays (0)")
    add("--cut", metavar="NAME,…", help="for trials: SIGUSR1 cuts these off, SIGUSR2 ends that")
    add("--trace", metavar="FILE", help="append one line of JSON per update: what had been heard")
    add("--seconds", type=float, metavar="S", help="stop after so many seconds")
    return out


def settings(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The options given: those of the command line over those of the file."""
    given = {k: v for k, v in vars(parser().parse_args(argv)).items() if v is not None}
    path = given.pop("config", None)
    filed: dict[str, Any] = {}
    if path is not None:
        try:
            filed = tomllib.loads(path.read_text())
        except OSError as error:
            raise SetupError(
                f"{path} cannot be read ({error.strerror}); expected a TOML file"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{path} is not TOML: {error}") from error
        filed = {key.replace("-", "_"): value for key, value in filed.items()}
        known = vars(parser().parse_args([])).keys() - {"config"}
        unknown = sorted(filed.keys() - known)
        if unknown:
            raise SetupError(
                f"{path} has {', '.join(unknown)}; expected some of {', '.join(sorted(known))}"
            )
    found = filed | given
    for key, kinds in KINDS.items():
        value = found.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise SetupError(f"{key} is {value!r}; expected {EXPECTED[kinds]}")
        if value == "":
            raise SetupError(f"{key} is empty; expected {EXPECTED[kinds]}")
    positive = ("lease", "tolerance", "settle_after", "rate", "status", "seconds", "nodes")
    for key in positive:
        number = found.get(key, 1)
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not (whole or (isinstance(number, float) and key != "nodes")) or not 0 < number < 1e12:
            kind = "a positive whole number" if key == "nodes" else "a positive number"
            raise SetupError(f"{key} is {number!r}; expected {kind}")
    for key in ("model", "id", "features"):
        if key not in found:
            raise SetupError(f"{key} is missing; expected --{key} …, or {key} in the file")
    # Neighbours that send at this rate must not seem silent (Agent._calm).
    return {"settle_after": max(1.0, 10.0 / found.get("rate", 50.0))} | found


def numbers(text: Any, name: str) -> list[float]:
    """``1,2,3``, or a list of numbers."""
    parts = text.split(",") if isinstance(text, str) else text
    try:
        if any(isinstance(part, bool) for part in parts):
            raise TypeError("true and false are no numbers")
        return [float(part) for part in parts]
    except (TypeError, ValueError, OverflowError) as error:
        raise SetupError(f"{name} is {text!r}; expected numbers such as 0.3,1.2") from error


def edges(given: Any) -> dict[str, Edge]:
    """``3=HOST:PORT,8=HOST:PORT``, or a table with address, weight and edge_attr of each."""
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",") if part]
        wrong = [name for name, sign, address in pairs if not (name and sign and address)]
        if wrong:
            raise SetupError(
                f"neighbour {wrong[0]!r} has no address; expected NAME=HOST:PORT, for instance "
                f"3=127.0.0.1:21003"
            )
        names = [name for name, _, _ in pairs]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise SetupError(f"neighbour {twice[0]} is named twice; expected each neighbour once")
        return {name: Edge(address) for name, _, address in pairs}
    if not isinstance(given, dict):
        raise SetupError(f"neighbours is {given!r}; expected a table with one entry for each")
    out = {}
    for name, entry in given.items():
        if not isinstance(entry, dict) or entry.keys() - {"address", "weight", "edge_attr"}:
            raise SetupError(
                f"neighbour {name} is {entry!r}; expected a table with address, and weight and "
                f"edge_attr where they are needed"
            )
        attr, address = entry.get("edge_attr"), entry.get("address")
        if address is not None and not isinstance(address, str):
            raise SetupError(f"neighbour {name} has the address {address!r}; expected HOST:PORT")
        (weight,) = numbers([entry.get("weight", 1.0)], f"weight of neighbour {name}")
        attr = None if attr is None else numbers(attr, f"edge_attr of neighbour {name}")
        out[str(name)] = Edge(address, attr, weight)
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
