"""A demonstration: models in step, out of step and with losses, and a page about them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch

from hogwild.demo.report import report
from hogwild.demo.study import QUICK, Rumour, Scale, Study, study
from hogwild.errors import ConfigError
from hogwild.files import require_writable, write_atomically

__all__ = ["QUICK", "Rumour", "Scale", "Study", "demo", "report", "study"]


def demo(
    output: str | Path = "report.html",
    scale: Scale = Scale(),  # noqa: B008  (frozen)
    seed: int = 0,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> Study:
    """Train a GCN, a GAT and an energy GNN, run them asynchronously, and write the report.

    Args:
        output: The HTML file to write.
        scale: The number of graphs, models, runs and settings; ``QUICK`` has fewer.
        seed: The seed of graphs, parameters and schedules.
        say: Called with a line of text about each step.
        progress: Show progress bars, too.
    """
    path = Path(output)
    # These errors would otherwise come after minutes of work.
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"output={str(path)!r}; expected a file in a folder that exists")
    require_writable(path, f"output={str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "the report's pictures need matplotlib, which is missing; install it with: "
            "pip install 'hogwild-gnn[plots]'"
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    try:
        found = study(scale, seed, say=say, progress=progress)
    finally:
        torch.set_num_threads(threads)
    say("drawing")
    write_atomically(path, report(found).encode())
    return found
