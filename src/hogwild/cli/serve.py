"""``hogwild serve``."""

from __future__ import annotations

import ipaddress
import sys
import webbrowser
from contextlib import suppress
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
    With a FOLDER the page also shows a model of your own, on one of its test graphs. The page is
    served to this machine only; Ctrl-C ends it.

    Examples:
      hogwild serve
      hogwild serve runs/chains
      hogwild serve runs/chains --replay schedule.npz
      hogwild serve --attach swarm
    """

    folder: str | None = argument("folder of a finished training run", default=None)
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
        "watch a running swarm, and change nothing: the folder of hogwild swarm --keep",
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
            f"hogwild serve needs {' and '.join(missing)}, which is missing; install the extra: "
            f'pip install "hogwild-gnn[web]"'
        )
    if not 0 <= options.port < 65536:
        raise ConfigError(f"--port {options.port}; expected 0 to 65535")
    if options.attach is not None and (options.folder or options.replay):
        raise ConfigError("--attach was given with a folder or --replay; expected one of them")
    if options.replay is not None and options.folder is None:
        raise ConfigError(
            "--replay was given without a folder; expected the run whose graph the schedule "
            "belongs to: hogwild serve FOLDER --replay FILE"
        )
    import torch

    from hogwild.web.home import home
    from hogwild.web.server import address, listen, serve

    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    given = None if options.folder is None else _given(options)
    found = home(given, options.replay, options.attach)
    made = listen(options.host, options.port)
    where = address(made)
    if not _is_loopback(options.host):
        print(
            f"hogwild: {options.host} is not loopback: whoever reaches this port can use the page "
            f"and this machine's processor",
            file=sys.stderr,
        )
    print(f"Open {where} in a browser. Ctrl-C ends it.", file=sys.stderr, flush=True)
    if options.open:
        webbrowser.open(where)
    with suppress(KeyboardInterrupt):
        serve(found, made, options.name)
    return Outcome("The page has ended.", {"address": where})


def _given(options: Options) -> Any:
    """The model and the graph of the folder."""
    from hogwild.training import load
    from hogwild.web.home import from_run

    assert options.folder is not None
    with of_file(options.task):
        result = load(options.folder, options.task)
    return from_run(result, options.replica)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
