"""Would an iteration budget and a second launch for stragglers shorten a solve on a GPU?

A launch has a block of threads for every (graph, replica). A block that is done leaves its place on
a multiprocessor to the next one. With a budget of B iterations the first launch would stop every
block after B, and a second launch would go on with those that are not done.

The iterations of every (graph, replica) are counted on a CPU, where the compiled solve takes the
same ones, on snapshots of a short training, from zero (cold) and from the embeddings of the epoch
before (warm). Then both ways are scheduled on the places of a GPU, in the order of the launch. A
block takes (iterations + 1) · (nodes + 20) units of time, and a second launch begins with one more
evaluation. The table has the time with the best budget, and the least time that any schedule could
have, both as multiples of the time of the one launch.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rivals import build, inputs_of, set_parameters
from tasks import TASKS
from training_step import Cell, publish, train

PLACES = 1056  # 132 multiprocessors of an H200 with 8 blocks each (hogwild/kernels/cuda.py)
CELLS = {"sums:1": 1800, "coordinates:1": 1350, "counting:50": 50}
HEAD = ("cell", "epoch", "start", "blocks", "iterations, mean", "largest", "best budget",
        "blocks of the second launch", "time with it", "least possible")  # fmt: skip


def makespan(costs: Sequence[float], places: int = PLACES) -> float:
    """The time of blocks that are started in this order, each as soon as a place is free."""
    free = [0.0] * min(places, len(costs))
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free, default=0.0)


def compared(iterations: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """One launch against two, for blocks in the order of the launch."""
    pairs = list(zip(iterations, (size + 20.0 for size in sizes), strict=True))
    costs = [(count + 1) * size for count, size in pairs]
    whole, largest = makespan(costs), max(iterations)
    found: dict[int, tuple[float, int]] = {}
    for budget in range(1, largest):
        first = makespan([(min(count, budget) + 1) * size for count, size in pairs])
        rest = [(count - budget + 1) * size for count, size in pairs if count > budget]
        found[budget] = ((first + makespan(rest)) / whole, len(rest))
    best = min(found, key=lambda b: found[b][0]) if found else None
    return {
        "blocks": len(costs),
        "mean": sum(iterations) / len(iterations),
        "largest": largest,
        "budget": best,
        "second": found[best][1] if best else 0,
        "ratio": found[best][0] if best else 1.0,
        "least": max(max(costs), sum(costs) / PLACES) / whole,
    }


def measure(text: str, size: int, epochs: int, samples: int) -> list[dict[str, Any]]:
    """The rows of one cell."""
    name, replicas = text.split(":")
    cell, task = Cell(name, int(replicas), size, epochs, samples), TASKS[name](size)
    nodes = torch.bincount(task.batch).tolist()
    order = sorted(range(len(nodes)), key=lambda g: -nodes[g])  # large graphs first
    rows = []
    for snapshot in train(cell, task, "cpu")[0]:
        model = build(task, cell.replicas)
        with torch.no_grad():
            set_parameters(model, snapshot.parameters)
            for start in ("cold", "warm"):
                found = model.embed(inputs_of(task), h0=None if start == "cold" else snapshot.h0)
                table = found.iterations.view(cell.replicas, len(nodes)).tolist()
                counts = [table[r][g] for g in order for r in range(cell.replicas)]
                sizes = [nodes[g] for g in order for _ in range(cell.replicas)]
                rows.append({"cell": text, "epoch": snapshot.epoch, "start": start})
                rows[-1] |= compared(counts, sizes)
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40, help="of the training; default: 40")
    parser.add_argument("--samples", type=int, default=2, help="snapshots; default: 2")
    parser.add_argument("--output", type=Path, help="folder for budget.json and .md")
    arguments = parser.parse_args()
    rows = [
        row
        for text, size in CELLS.items()
        for row in measure(text, size, arguments.epochs, arguments.samples)
    ]
    lines = [
        [r["cell"], str(r["epoch"]), r["start"], f"{r['blocks']:,}", f"{r['mean']:.1f}",
         str(r["largest"]), str(r["budget"] or "none"), f"{r['second']:,}", f"{r['ratio']:.2f}",
         f"{r['least']:.2f}"]
        for r in rows
    ]  # fmt: skip
    title = "A second launch for stragglers, as a multiple of one launch ({})."
    print("\n" + publish(arguments.output, "budget", title, HEAD, lines, rows))


if __name__ == "__main__":
    main()
