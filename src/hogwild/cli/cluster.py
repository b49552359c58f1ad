"""``hogwild cluster``."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from hogwild.cli.common import FILES, RUNS, Outcome, Trained, picture
from hogwild.cli.options import argument, option, taken

WORKERS, INFER = "workers", "cluster/inference.py:infer"


@dataclass(frozen=True, kw_only=True)
class Cluster(Trained):
    """Run a trained model on a graph that is cut into parts, one worker for each part.

    The workers exchange embeddings without waiting for each other. The result is the answer of the
    model on the whole graph, with a proved bound on the error. Several workers need Ray. A worker
    that dies is started again. After Ctrl-C the same command with the same --out goes on.
    Exit code 3: the parts did not settle.

    Examples:
      hogwild cluster runs/roads roads.npz --workers 4
      hogwild cluster runs/roads roads.npz --workers 4 --out answers --plot residual.png
      hogwild cluster runs/roads roads.npz --workers 16 --address 10.0.0.1:6379 --out /shared/roads
    """

    graph: str = argument(
        "a file with a graph (npz, parquet, csv, txt, pt), or a folder with a graph in parts"
    )
    workers: int | None = taken(INFER, "workers", WORKERS)
    address: str | None = taken(INFER, "address", WORKERS, metavar="HOST:PORT")
    cpus: float = taken(INFER, "cpus", WORKERS)
    gpus: float = taken(INFER, "gpus", WORKERS)
    restarts: int = taken(INFER, "restarts", WORKERS)
    partition: str = taken(INFER, "partition", WORKERS, choices=("auto", "metis", "search"))
    overlap: int = taken(INFER, "overlap", WORKERS, default=8)
    barriers: bool = taken(INFER, "barriers", WORKERS)
    tol: float = taken(INFER, "tol", RUNS)
    seconds: float | None = taken(INFER, "seconds", RUNS)
    seed: int = taken(INFER, "seed", RUNS)
    quiet: bool = option(False, "no progress", group=RUNS)
    out: str | None = option(
        None,
        "folder for the parts, their checkpoints, answers and trace; all machines must see it",
        group=FILES,
        keyword="folder",
        metavar="FOLDER",
    )
    plot: str | None = picture("draw the residual of every part over time to this file")

    def run(self) -> Outcome:
        """Call :func:`hogwild.cluster.infer`."""
        found = self.chosen()
        from hogwild.cluster.inference import infer
        from hogwild.cluster.setup import opened

        if hasattr(signal, "SIGTERM"):  # whoever ends this process ends its workers
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        graph = opened(self.graph)
        given, taking = self.as_dict(), set(signature(infer).parameters) - {"graph", "folder"}
        same = {name: given[name] for name in given if name in taking}
        show = None if self.quiet or self.json else Progress()
        seen = infer(found.model, graph, folder=self.out, watch=show, **same)
        if show is not None:
            show.end()
        done = self.outcome(found, seen, seen.data, seen.converged)
        return replace(done, resolved=done.resolved | {"workers": seen.workers})


class Progress:
    """A line a second with the residual, the age of the halo and the updates a second of every
    part."""

    def __init__(self) -> None:
        self.last: tuple[float, list[int]] | None = None
        self.open = False

    def __call__(self, seconds: float, statuses: list[Any]) -> None:
        made = [s.updates for s in statuses]
        if self.last is not None and seconds - self.last[0] < 1.0:
            return
        then, before = self.last or (0.0, [0] * len(made))
        rates = [(a - b) / max(seconds - then, 1e-9) for a, b in zip(made, before, strict=True)]
        self.last = seconds, made
        parts = [
            f"{s.number}: {s.residual:.1e} {max(s.ages.values(), default=0.0):.1f}s {rate:.0f}/s"
            for s, rate in zip(statuses, rates, strict=True)
        ]
        worst = max(s.residual_ratio for s in statuses)
        settled = sum(s.settled for s in statuses)
        line = f"{seconds:6.1f} s  {settled}/{len(statuses)} settled, {worst:.1e} times the limit"
        line += "  | residual, halo age, updates: " + "  ".join(parts[:8])
        self.open = sys.stderr.isatty()
        print(f"\r{line:<100}" if self.open else line, end="" if self.open else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    def end(self) -> None:
        """End the line."""
        if self.open:
            print(file=sys.stderr)
