"""``hogwild serve``, ``demo`` and ``info``: see it live, see it in a report, see what there is."""

from __future__ import annotations

import ipaddress
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hogwild.cli.common import FILES, TRAINED, Outcome, loaded
from hogwild.cli.options import Option, Options, argument, verb
from hogwild.errors import ConfigError

OPTIONAL = ("matplotlib", "pandas", "lightning", "zenoh", "cryptography", "jax")
"""Packages of extras, and packages that benchmarks compare with."""


@verb(
    *TRAINED,
    argument(
        "folder",
        "folder of a finished training run, or FILE.py:NAME, a function that returns a model and a "
        "graph", None,
    ),
    Option(
        "attach", "str | None", None,
        "watch agents that run elsewhere, and change nothing: addresses of some of them, which "
        "name the others", FILES, metavar="HOST:PORT,…",
    ),
    Option(
        "certificates", "str | None", None,
        "with addresses of agents that want certificates: the folder of their controller "
        "(hogwild keys)", FILES, metavar="FOLDER",
    ),
    Option(
        "host", "str", "127.0.0.1", "address to listen on; others than loopback let others in"
    ),
    Option("port", "int", 8765, "port to listen on; 0: any free one"),
    Option(
        "name", "tuple[str, ...]", (), "a host name under which browsers may ask for the page"
    ),
    Option("open", "bool", False, "open the page in a browser"),
)  # fmt: skip
def serve(options: Options) -> Outcome:
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
      hogwild serve --attach 127.0.0.1:21000
    """
    needed = ("starlette", "uvicorn", "websockets")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"hogwild serve needs {', '.join(missing)}; install what is missing with: "
            "pip install 'hogwild-gnn[web]'"
        )
    if not 0 <= options.port < 65536:
        raise ConfigError(f"--port {options.port}; expected 0 to 65535")
    if options.attach is not None and options.folder is not None:
        raise ConfigError("--attach was given with a folder; expected one of them")
    if options.certificates is not None and options.attach is None:
        raise ConfigError("--certificates was given without --attach HOST:PORT; expected both")
    import torch

    from hogwild.web.show import home, until_ended

    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    given = None if options.folder is None else _given(options)
    found = home(given, options.attach, options.certificates)
    if not _is_loopback(options.host):
        print(
            f"hogwild: {options.host} is not loopback: whoever reaches this port can use the "
            f"page and this machine's processor",
            file=sys.stderr,
        )
    where = until_ended(found, options.host, options.port, options.name, options.open)
    return Outcome("The page has ended.", {"address": where})


def _given(options: Options) -> Any:
    """The model and the graph of the folder."""
    from hogwild.web.show import from_file, from_run

    if ".py:" not in options.folder:
        return from_run(loaded(options), options.replica)
    if options.task is not None or options.replica is not None:
        raise ConfigError(
            f"--task or --replica was given with {options.folder}; expected them with the folder "
            f"of a run only"
        )
    return from_file(options.folder)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@verb(
    Option("output", "str", "report.html", "page to write", metavar="FILE"),
    Option("quick", "bool", False, "a smaller demo, with less training and fewer runs"),
    Option("seed", "int", 0, "seed of graphs, weights and schedules"),
)
def demo(options: Options) -> Outcome:
    """Show models in step and out of step, and write a report.

    Trains a GCN, a GAT and an energy GNN, and runs them out of step and with 30 % of the packets
    lost: about a minute of one core, nothing to download. The report is one page for a
    browser.

    Examples:
      hogwild demo
      hogwild demo --quick --output quick.html
      hogwild demo --seed 1
    """
    from hogwild.demo import QUICK, Scale, demo

    if options.seed < 0:
        raise ConfigError(f"--seed {options.seed}; expected a nonnegative integer")
    found = demo(
        options.output,
        QUICK if options.quick else Scale(),
        options.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        progress=not options.json and sys.stderr.isatty(),
    )
    where = Path(options.output).absolute()
    text = (
        f"\n{found.table()}\n\n"
        f"Open {where.as_uri()} in a browser: the pictures, in plain words.\n"
        f"Watch it live, and kill a node yourself: hogwild serve (in a clone: make serve)"
    )
    good = all(r.converged == 1 for r in found.results["soft"].values())
    return Outcome(text, {**found.as_dict(), "report": str(where)}, good)


@verb()
def info(options: Options) -> Outcome:
    """Say what is installed: versions, devices, models, tasks, optional packages.

    The models and tasks are those that hogwild train takes by name.

    Examples:
      hogwild info
      hogwild info --json
    """
    import torch
    import torch_geometric

    import hogwild
    from hogwild.kernels.native import Missing, found
    from hogwild.tasks import TASKS
    from hogwild.training import MODELS

    kernels = found()
    if isinstance(kernels, Missing):
        solve = f"no: {kernels.reason}"
    else:
        solve = f"yes ({kernels.instructions})"
    cuda = torch.cuda.is_available()
    data = {
        "hogwild": hogwild.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "compiled solve": solve,
        "models": list(MODELS),
        "tasks": list(TASKS),
        "optional": {name: find_spec(name) is not None for name in OPTIONAL},
    }
    lines = []
    for key, value in data.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {'yes' if v else 'no'}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(f"{key:16s} {value}")
    return Outcome("\n".join(lines), data)
