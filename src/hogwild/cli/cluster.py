"""``hogwild cluster``."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from inspect import signature
from typing import Any

from hogwild.cli.common import FILES, RUNS, TRAINED, Outcome, chosen, file_of
from hogwild.cli.options import Option, Options, argument, taken, verb

WORKERS, INFER = "workers", "cluster/inference.py:infer"


@verb(
    *TRAINED,
    argument(
        "graph",
        "a file with a graph (npz, pt), or a folder of .npy files, or with a graph in parts",
    ),
    *taken(INFER, "workers", WORKERS),
    *taken(INFER, "address", WORKERS, metavar="HOST:PORT"),
    *taken(INFER, "cpus gpus restarts", WORKERS),
    *taken(INFER, "partition", WORKERS, choices=("auto", "metis", "search")),
    *taken(INFER, "overlap", WORKERS, default=8),
    *taken(INFER, "tol seconds seed", RUNS),
    Option("quiet", "bool", False, "no progress", RUNS),
    Option(
        "out", "str | None", None,
        "folder for the parts, their checkpoints, answers and trace; all machines must see it",
        FILES, keyword="folder", metavar="FOLDER",
    ),
    file_of("plot", "draw the residual of every part over time to this file"),
)  # fmt: skip
def cluster(options: Options) -> Outcome:
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
    found = chosen(options)
    from hogwild.cluster.inference import infer
    from hogwild.cluster.setup import opened

    if hasattr(signal, "SIGTERM"):  # whoever ends this process ends its workers
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = set(signature(infer).parameters) - {"graph", "folder"}
    same = {name: value for name, value in options.as_dict().items() if name in known}
    show = None if options.quiet or options.json else Progress()
    seen = infer(found.model, opened(options.graph), folder=options.out, watch=show, **same)
    done = found.outcome(seen, seen.data, seen.converged)
    return replace(done, resolved=done.resolved | {"workers": seen.workers})


class Progress:
    """A line a second: how many parts are settled, and how far the worst is from it."""

    last = -1.0

    def __call__(self, seconds: float, statuses: list[Any]) -> None:
        if seconds - self.last < 1.0:
            return
        self.last, settled = seconds, sum(s.settled for s in statuses)
        worst, made = max(s.residual_ratio for s in statuses), sum(s.updates for s in statuses)
        line = f"{seconds:6.1f} s  {settled} of {len(statuses)} parts settled, the worst at "
        line += f"{worst:.1e} times its limit, {made} updates"
        print(line, file=sys.stderr, flush=True)
