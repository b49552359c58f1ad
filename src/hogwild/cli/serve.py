"""``hogwild serve``."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hogwild.cli.common import FILES, MODEL, Outcome, of_file
from hogwild.cli.options import Verb, argument, option
from hogwild.errors import ConfigError

PORT = 8765


@dataclass(frozen=True, kw_only=True)
class Options(Verb):
    """Show a page on which one watches nodes compute, each at its own pace.

    Two models run side by side on one graph, with the same delays and losses. Kill nodes, drag
    them, lose packets, and see which answer survives. Small trained models come with the package.
    With a FOLDER the page also shows a model of your own, on one of its test graphs; FILE.py:NAME
    is a function that returns a model, of PyG or of hogwild, and a graph. The page is served to
    this machine only; Ctrl-C ends it.

    Examples:
      hogwild serve
      hogwild serve runs/chains
      hogwild serve mine.py:trained
      hogwild serve runs/chains --replay schedule.npz
      hogwild serve --attach swarm
      hogwild serve --attach 127.0.0.1:21000
    """

    folder: str | None = argument(
        "folder of a finished training run, or FILE.py:NAME, a function that returns a model and a "
        "graph",
        default=None,
    )
    task: str | None = option(
        None,
        "the task, where the run was trained on FILE.py:NAME",
        group=MODEL,
        metavar="FILE.py:NAME",
    )
    replica: int | None = option(
        None, "which replica; by default, the best one on validation", group=MODEL
    )
    replay: str | None = option(
        None,
        "begin with the schedule in this file (hogwild simulate FOLDER --graphs 1 --runs 1 "
        "--record FILE)",
        group=FILES,
        metavar="FILE",
    )
    attach: str | None = option(
        None,
        "watch agents that run elsewhere, and change nothing: the folder of hogwild swarm --keep, "
        "or of the status lines of agents (NAME.jsonl), or addresses of agents, which name the "
        "others",
        group=FILES,
        metavar="FOLDER|HOST:PORT,…",
    )
    certificates: str | None = option(
        None,
        "with addresses of agents that want certificates: the folder of their controller "
        "(hogwild keys)",
        group=FILES,
        metavar="FOLDER",
    )
    host: str = option("127.0.0.1", "address to listen on; others than loopback let others in")
    port: int = option(PORT, "port to listen on; 0: any free one")
    name: tuple[str, ...] = option((), "a host name under which browsers may ask for the page")
    open: bool = option(False, "open the page in a browser")


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.web.server.serve`."""
    missing = [name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"hogwild serve needs {', '.join(missing)}; install what is missing with: "
            "pip install 'hogwild-gnn[web]'"
        )
    if not 0 <= options.port < 65536:
        raise ConfigError(f"--port {options.port}; expected 0 to 65535")
    if options.attach is not None and (options.folder or options.replay):
        raise ConfigError("--attach was given with a folder or --replay; expected one of them")
    if options.certificates is not None and options.attach is None:
        raise ConfigError("--certificates was given without --attach HOST:PORT; expected both")
    if options.replay is not None and options.folder is None:
        raise ConfigError(
            "--replay was given without a folder; expected the run whose graph the schedule "
            "belongs to: hogwild serve FOLDER --replay FILE"
        )
    import torch

    from hogwild.web.show import home, until_ended

    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    given = None if options.folder is None else _given(options)
    found = home(given, options.replay, options.attach, options.certificates)
    if not _is_loopback(options.host):
        print(
            f"hogwild: {options.host} is not loopback: whoever reaches this port can use the page "
            f"and this machine's processor",
            file=sys.stderr,
        )
    where = until_ended(found, options.host, options.port, options.name, options.open)
    return Outcome("The page has ended.", {"address": where})


def _given(options: Options) -> Any:
    """The model and the graph of the folder."""
    from hogwild.training import load
    from hogwild.web.show import from_file, from_run

    assert options.folder is not None
    if ".py:" in options.folder:
        if options.task is not None or options.replica is not None:
            raise ConfigError(
                f"--task or --replica was given with {options.folder}; expected them with the "
                f"folder of a run only"
            )
        return from_file(options.folder)
    with of_file(options.task):
        result = load(options.folder, options.task)
    return from_run(result, options.replica)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
