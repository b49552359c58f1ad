"""Cells side by side: every cell is computed by a process of its own, several at a time.

A cell of many small kernels leaves most of a GPU idle, and the processes of other cells fill the
gaps. Cells that took longest in the records of the repository begin first, so that no long one is
left for the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from experiments.experiment import Experiment, Results

PAUSE = 0.1
"""Seconds between two looks at the processes."""


def compute(
    experiment: Experiment,
    cells: Sequence[str],
    jobs: int,
    words: Sequence[str],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Compute cells in processes of their own; returns the seconds each took that has a record now.

    Args:
        experiment: The experiment.
        cells: Names of its cells.
        jobs: How many are computed at a time. They share the cores of this machine.
        words: The options of ``python -m experiments`` for every one of them.
        say: Called with one line for every cell.
    """
    begun = time.perf_counter()
    waiting, total = longest_first(experiment, cells), len(cells)
    running: dict[str, tuple[subprocess.Popen[str], float, IO[str]]] = {}
    done: dict[str, float] = {}
    environment = {**os.environ, **_threads(jobs)}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                call = [sys.executable, "-m", "experiments", experiment.name, "--only", name]
                heard = TemporaryFile("w+")
                process = subprocess.Popen(
                    [*call, *words], env=environment, stdout=heard, stderr=heard, text=True
                )
                running[name] = process, time.perf_counter(), heard
            for name, (process, since, heard) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                seconds = time.perf_counter() - since
                head = f"[{total - len(waiting) - len(running)}/{total}] {experiment.name} {name}"
                if process.returncode == 0:
                    done[name] = seconds
                    say(
                        f"{head}: done ({seconds:.0f} s, {time.perf_counter() - begun:.0f} s in all)"
                    )
                else:
                    say(f"{head}: exit code {process.returncode}: {_last_line(heard)}")
                heard.close()
            time.sleep(PAUSE)
    finally:  # Ctrl-C reaches the processes, too, and they end by themselves
        for process, _, heard in running.values():
            process.wait()
            heard.close()
    return done


def longest_first(experiment: Experiment, cells: Sequence[str]) -> list[str]:
    """Cells by the seconds of their records in the repository, those without a record first."""
    known: Mapping[str, dict[str, float]] = {}
    folder = Path(__file__).with_name("results")
    if folder.is_dir():
        known = Results(folder).read(experiment)
    return sorted(cells, key=lambda name: -known.get(name, {}).get("seconds", float("inf")))


def _threads(jobs: int) -> dict[str, str]:
    """Every process gets its share of the cores, unless the user has chosen."""
    share = max((os.cpu_count() or 1) // jobs, 1)
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(share)}


def _last_line(heard: IO[str]) -> str:
    heard.seek(0)
    lines = heard.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"
