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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from experiments.experiment import Experiment, Results


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
    environment = {**os.environ, **_threads(jobs)}

    def one(cell: str) -> tuple[int, float, str]:
        """The exit code, the seconds, and the last line that was said."""
        begun = time.perf_counter()
        call = [sys.executable, "-m", "experiments", experiment.name, "--only", cell, *words]
        done = subprocess.run(call, env=environment, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines()
        return done.returncode, time.perf_counter() - begun, lines[-1] if lines else ""

    found, begun = {}, time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, cell): cell for cell in longest_first(experiment, cells)}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                cell, (code, seconds, last) = futures[future], future.result()
                if code == 0:
                    found[cell] = seconds
                    how = f"done ({seconds:.0f} s; {time.perf_counter() - begun:.0f} s in all)"
                else:
                    how = f"exit code {code}: {last}"
                say(f"[{number}/{len(cells)}] {experiment.name} {cell}: {how}")
        except KeyboardInterrupt:  # the processes are interrupted, too, and are waited for
            pool.shutdown(cancel_futures=True)
            raise
    return found


def longest_first(experiment: Experiment, cells: Sequence[str]) -> list[str]:
    """Cells by the seconds of their records in the repository, those without a record first."""
    folder, known = Path(__file__).with_name("results"), {}
    if folder.is_dir():
        known = Results(folder).read(experiment)
    return sorted(cells, key=lambda cell: -known.get(cell, {}).get("seconds", float("inf")))


def _threads(jobs: int) -> Mapping[str, str]:
    """Every process gets its share of the cores, unless the user has chosen."""
    share = max((os.cpu_count() or 1) // jobs, 1)
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(share)}
