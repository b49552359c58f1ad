"""``hogwild serve``, ``demo`` and ``info``: see it live, see it in a report, see what there is."""

from __future__ import annotations

import ipaddress
import platform
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hogwild.cli.common import FILES, Outcome, Trained
from hogwild.cli.options import Verb, argument, option
from hogwild.errors import ConfigError

OPTIONAL = ("matplotlib", "pandas", "lightning", "zenoh", "cryptography", "jax")
"""Packages of extras, and packages that benchmarks compare with."""


@dataclass(frozen=True, kw_only=True)
class Serve(Trained):
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

    folder: str | None = argument(  # type: ignore[assignment]
        "folder of a finished training run, or FILE.py:NAME, a function that returns a model and a "
        "graph",
        default=None,
    )
    attach: str | None = option(
        None,
        "watch agents that run elsewhere, and change nothing: addresses of some of them, which "
        "name the others",
        group=FILES,
        metavar="HOST:PORT,…",
    )
    certificates: str | None = option(
        None,
        "with addresses of agents that want certificates: the folder of their controller "
        "(hogwild keys)",
        group=FILES,
        metavar="FOLDER",
    )
    host: str = option("127.0.0.1", "address to listen on; others than loopback let others in")
    port: int = option(8765, "port to listen on; 0: any free one")
    name: tuple[str, ...] = option((), "a host name under which browsers may ask for the page")
    open: bool = option(False, "open the page in a browser")

    def run(self) -> Outcome:
        """Call :func:`hogwild.web.server.serve`."""
        needed = ("starlette", "uvicorn", "websockets")
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"hogwild serve needs {', '.join(missing)}; install what is missing with: "
                "pip install 'hogwild-gnn[web]'"
            )
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port}; expected 0 to 65535")
        if self.attach is not None and self.folder is not None:
            raise ConfigError("--attach was given with a folder; expected one of them")
        if self.certificates is not None and self.attach is None:
            raise ConfigError("--certificates was given without --attach HOST:PORT; expected both")
        import torch

        from hogwild.web.show import home, until_ended

        torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
        given = None if self.folder is None else self._given(self.folder)
        found = home(given, self.attach, self.certificates)
        if not _is_loopback(self.host):
            print(
                f"hogwild: {self.host} is not loopback: whoever reaches this port can use the page "
                f"and this machine's processor",
                file=sys.stderr,
            )
        where = until_ended(found, self.host, self.port, self.name, self.open)
        return Outcome("The page has ended.", {"address": where})

    def _given(self, folder: str) -> Any:
        """The model and the graph of the folder."""
        from hogwild.web.show import from_file, from_run

        if ".py:" not in folder:
            return from_run(self.load(), self.replica)
        if self.task is not None or self.replica is not None:
            raise ConfigError(
                f"--task or --replica was given with {folder}; expected them with the folder of a "
                f"run only"
            )
        return from_file(folder)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """Show models in step and out of step, and write a report.

    Trains a GCN, a GAT and an energy GNN, and runs them out of step and with 30 % of the packets
    lost: about a minute of one core, nothing to download. The report is one page for a
    browser.

    Examples:
      hogwild demo
      hogwild demo --quick --output quick.html
      hogwild demo --seed 1
    """

    output: str = option("report.html", "page to write", metavar="FILE")
    quick: bool = option(False, "a smaller demo, with less training and fewer runs")
    seed: int = option(0, "seed of graphs, weights and schedules")

    def run(self) -> Outcome:
        """Call :func:`hogwild.demo.demo`."""
        from hogwild.demo import QUICK, Scale, demo

        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed}; expected a nonnegative integer")
        found = demo(
            self.output,
            QUICK if self.quick else Scale(),
            self.seed,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            progress=not self.json and sys.stderr.isatty(),
        )
        where = Path(self.output).absolute()
        text = (
            f"\n{found.table()}\n\n"
            f"Open {where.as_uri()} in a browser: the pictures, in plain words.\n"
            f"Watch it live, and kill a node yourself: hogwild serve (in a clone: make serve)"
        )
        good = all(r.converged == 1 for r in found.results["soft"].values())
        return Outcome(text, {**found.as_dict(), "report": str(where)}, good)


@dataclass(frozen=True, kw_only=True)
class Info(Verb):
    """Say what is installed: versions, devices, models, tasks, optional packages.

    The models and tasks are those that hogwild train takes by name.

    Examples:
      hogwild info
      hogwild info --json
    """

    def run(self) -> Outcome:
        """Collect what is installed."""
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
