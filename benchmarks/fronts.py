r"""Factorising a batch of graphs: fronts batched by the cost of padding and calls, against rivals.

The benchmark makes one factorisation and one solve of a positive definite matrix on a batch of a
task's graphs. The elimination is the same for all contenders:

* ``cost``: :mod:`hogwild.linalg.batching`, as in hogwild;
* ``powers``: batches of one height and one power of two above the width, as in earlier versions;
* ``exact``: one batch for every size, without padding;
* ``heights``: one batch for every height.

All results must agree to rounding, or the benchmark stops. Contenders take turns within every
repetition. The report has medians. Benchmark sets are measured where ``HOGWILD_DATA`` has them.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from torch_geometric.data import Batch
from training_step import THREADS, environment, limit_threads, table, timed, write

from hogwild import tasks
from hogwild.errors import DataError
from hogwild.graph import Graph
from hogwild.linalg.fronts import CALL_WORK, DENSE_WIDTH, Plan

CELLS = (("counting", 50, 2, 10), ("sums", 200, 2, 3), ("mutag", 188, 2, 10), ("mutag", 188, 8, 3),
         ("proteins", 100, 2, 4), ("peptides-func", 200, 2, 1))  # fmt: skip
HEAD = ("task", "graphs", "k", "replicas", "cost, ms", "batches", "powers", "batches", "exact",
        "batches", "heights", "batches")  # fmt: skip


class Powers(Plan):
    """Fronts of one height and one power of two above their width together."""

    def _lay_out(self, budget: float, elements: float) -> list[list[tuple[int, int]]]:
        alike = defaultdict(list)
        for g, order in enumerate(self.orders):
            for f, front in enumerate(order.fronts):
                width = len(front.pivots) + len(front.boundary)
                alike[front.height, (width - 1).bit_length()].append((g, f))
        layout = [alike[key] for key in sorted(alike)]
        self.size = 0
        for members in layout:
            fronts = [self.orders[g].fronts[f] for g, f in members]
            p = max(len(front.pivots) for front in fronts)
            b = max(len(front.boundary) for front in fronts)
            width = (p + b) * self.channels
            for g, f in members:
                self._places[g][f] = self.size, width, p
                self.size += width * width
        return layout


def measure(name: str, count: int, k: int, replicas: int, repetitions: int) -> dict:
    """Milliseconds of every contender in every repetition, and its number of batches."""
    graphs = tasks.get(name).graphs
    random = torch.Generator().manual_seed(0)
    some = torch.randperm(len(graphs), generator=random)[:count].tolist()
    data = Batch.from_data_list([graphs[g] for g in some])
    graph = Graph.of(data.edge_index, data.num_nodes, data.batch)
    like = {"dtype": torch.float64, "generator": random}
    off = 0.01 * torch.randn(replicas, k, k, graph.pattern.rows.numel(), **like)
    diagonal = 20.0 * torch.eye(k, dtype=torch.float64)[None, :, :, None]
    diagonal = diagonal.repeat(replicas, 1, 1, graph.num_nodes)
    rhs = torch.randn(replicas, k, graph.num_nodes, **like)
    ours = Plan(graph, k, DENSE_WIDTH, call=CALL_WORK["cpu"])
    plans = {
        "cost": ours,
        "powers": Powers(graph, k, orders=ours.orders),
        "exact": Plan(graph, k, orders=ours.orders, call=0.0),
        "heights": Plan(graph, k, orders=ours.orders, call=float("inf")),
    }
    times: dict[str, list[float]] = {contender: [] for contender in plans}
    for _ in range(repetitions + 1):  # the first is not counted
        for contender, plan in plans.items():
            ms, x = timed(lambda plan=plan: plan.factor(diagonal, off).solve(rhs), "cpu")
            times[contender].append(ms)
            if contender == "cost":
                expected = x
            torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-12)
    return {
        "task": name, "graphs": count, "channels": k, "replicas": replicas,
        "ms": {contender: found[1:] for contender, found in times.items()},
        "batches": {contender: len(plan.groups) for contender, plan in plans.items()},
    }  # fmt: skip


def line(cell: dict) -> list[str]:
    """A row of the Markdown table: times as multiples of ``cost``."""
    ms = {contender: statistics.median(found) for contender, found in cell["ms"].items()}
    out = [cell["task"], *(str(cell[k]) for k in ("graphs", "channels", "replicas"))]
    for contender, found in ms.items():
        shown = f"{found:.1f}" if contender == "cost" else f"{found / ms['cost']:.2f}×"
        out += [shown, str(cell["batches"][contender])]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--repetitions", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for fronts.json and .md")
    args = parser.parse_args()
    limit_threads(args.threads)
    cells = []
    for cell in CELLS:
        try:
            cells.append(measure(*cell, args.repetitions))
        except DataError as error:
            print(f"   {cell[0]}: skipped ({error})", flush=True)
            continue
        print("  ", " | ".join(line(cells[-1])), flush=True)
    place = ", ".join(f"{k} {v}" for k, v in environment("cpu").items())
    markdown = f"Factor and solve, float64; rivals as multiples of ours ({place}).\n\n"
    markdown += table(HEAD, [line(cell) for cell in cells])
    write(args.output, "fronts", {"environment": environment("cpu"), "cells": cells}, markdown)


if __name__ == "__main__":
    main()
