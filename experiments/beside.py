"""Cells side by side: every cell is computed by a process of its own, several at a time.

A cell of many small kernels leaves most of a GPU idle, and the processes of other cells fill the
gaps. Cells that took longest in the records of the repository begin first, so that no long one is
left for the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from experiments.experiment import Experiment, Results

PATIENCE = 5.0
"""Seconds in which a process that was interrupted should end, before it is terminated."""


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
    jobs = max(min(jobs, len(cells)), 1)
    environment, running = {**os.environ, **_threads(jobs)}, set[subprocess.Popen[str]]()
    found, begun, stopped = {}, time.perf_counter(), Event()

    def one(cell: str) -> tuple[int, float, list[str]]:
        """The exit code, the seconds, and the lines that were said."""
        if stopped.is_set():
            return 130, 0.0, ["interrupted"]
        since = time.perf_counter()
        call = [sys.executable, "-m", "experiments", experiment.name, "--only", cell, *words]
        nowhere, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(
            call, env=environment, stdout=nowhere, stderr=pipe, text=True
        ) as process:
            running.add(process)
            if stopped.is_set():  # since the question above
                process.terminate()
            said = process.communicate()[1]
            running.discard(process)
        return process.returncode, time.perf_counter() - since, said.strip().splitlines()

    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = {pool.submit(one, cell): cell for cell in longest_first(experiment, cells)}
            for number, future in enumerate(as_completed(futures), 1):
                cell, (code, seconds, lines) = futures[future], future.result()
                if code == 0:
                    found[cell] = seconds
                    how = f"done ({seconds:.0f} s; {time.perf_counter() - begun:.0f} s in all)"
                else:
                    how = f"exit code {code}: {lines[-1] if lines else 'it said nothing'}"
                for line in lines:
                    if "Warning" in line:
                        say(f"{experiment.name} {cell}: {line}")
                say(f"[{number}/{len(cells)}] {experiment.name} {cell}: {how}")
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            _end(running)
            raise
    return found


def _end(running: set[subprocess.Popen[str]]) -> None:
    """Interrupt processes, then terminate them until they end. Ctrl-C in a terminal reaches them,
    too, but ``kill`` does not. A process that is just importing its modules may lose an interrupt,
    and a process that was begun in the background of a shell ignores it."""
    number = signal.SIGINT
    while running:
        for process in list(running):
            process.send_signal(number)
        number = signal.SIGTERM
        until = time.monotonic() + PATIENCE
        while running and time.monotonic() < until:
            time.sleep(0.05)


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
