r"""Cost of one slow graph in a batch: secant curvature and cutting, on and off.

The batch has random trees of 20 nodes with standardised features. In one tree, the straggler, the
first feature is heavy-tailed and reaches 800. An untrained ``EnergyConv`` embeds the batch. Two
remedies are switched on and off, which gives the contenders:

* *secant*: Newton's secant curvature after ``patience`` iterations; off is
  ``Newton(patience=max_iter)``;
* *cut*: the graphs that have not converged are cut out of a small batch once the work on frozen
  graphs has reached the price of a cut (``hogwild.solvers.loop.PRICE``, in iterations); off is an
  infinite price.

``neither`` is the rival: the solver before it had the two remedies. ``cut at once`` has a price of
zero, for the choice of the price. The same batches without a straggler show the cost of the
remedies where they cannot help. The report has medians of CPU milliseconds of a solve over several
batches, with contenders in turns, as ratios to ``neither``, and the iterations of the slowest
graph.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor
from training_step import THREADS, limit_threads, table

from hogwild import EnergyConv, Inputs
from hogwild.solvers import Newton, loop, solve
from hogwild.testing import random_graph

NODES, SCALE = 20, 800.0
NEVER = float("inf")
CONTENDERS = {  # name: (patience, price of a cut)
    "neither": (Newton().max_iter, NEVER),
    "secant": (Newton().patience, NEVER),
    "cut": (Newton().max_iter, loop.PRICE["cpu"]),
    "both": (Newton().patience, loop.PRICE["cpu"]),
    "cut at once": (Newton().patience, 0.0),
}
HEAD = ("graphs", "straggler", *(f"{name}" for name in CONTENDERS), "iterations, neither / both")


def features(count: int, straggler: bool, random: torch.Generator) -> Tensor:
    """Features [N, 2]; those of the first tree are heavy-tailed if it is the straggler."""
    x = torch.randn(count * NODES, 2, generator=random, dtype=torch.float64)
    if straggler:
        tail = torch.randn(NODES, generator=random, dtype=torch.float64).exp().square()
        x[:NODES, 0] = tail * (SCALE / tail.max())
    return x


def measure(count: int, straggler: bool, batches: int) -> list[str]:
    """A line of the table."""
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    slowest: dict[str, list[int]] = {name: [] for name in CONTENDERS}
    for seed in range(batches):
        torch.manual_seed(seed)
        random = torch.Generator().manual_seed(seed)
        conv = EnergyConv(2, hidden_channels=2).double()
        x = features(count, straggler, random)
        for name, (patience, price) in CONTENDERS.items():
            graph = random_graph([NODES] * count, extra=0.0, seed=seed)  # analysed again
            edges = torch.stack([graph.src, graph.dst])
            problem = conv.problem(Inputs(x, edges, batch=graph.batch)).detach()
            loop.PRICE["cpu"] = price
            start = time.process_time()
            found = solve(problem, Newton(patience=patience), problem.start())
            times[name].append(1e3 * (time.process_time() - start))
            slowest[name].append(int(found.iterations.max()))
    middle = {name: statistics.median(values) for name, values in times.items()}
    cells = [f"{middle[name] / middle['neither']:.2f}" for name in CONTENDERS]
    cells[0] = f"{middle['neither']:.0f} ms"
    both = (statistics.median(slowest[name]) for name in ("neither", "both"))
    return [str(count), "yes" if straggler else "no", *cells, " / ".join(f"{n:.0f}" for n in both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64], help="graphs a batch")
    parser.add_argument("--batches", type=int, default=7, help="batches of every size")
    parser.add_argument("--threads", type=int, default=None, help=THREADS)
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    rows = [
        measure(count, straggler, arguments.batches)
        for count in arguments.sizes
        for straggler in (True, False)
    ]
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
