r"""Cost of a training step of the explicit models: hogwild's GCN and GAT against PyG's own.

The benchmark uses full batches, float64 and the paper's sizes (GCN: 5 layers of width 10; GAT: 5
layers of 3 heads of 3), without replicas. A training step is forward, loss and backward; the
optimiser is excluded. On each task, ``hogwild`` is compared with

* ``pyg``: PyG's model of the same size between the same encoder and readout;
* ``pyg, bare``: PyG's model alone, from the features to the predictions. It has five layers, but
  neither encoder nor readout, and is a smaller network.

The contenders take turns, one training step each, in an order drawn anew for every repetition, so
that noise of the machine affects all of them. The report has the median milliseconds, and the
median over the repetitions of hogwild's time divided by the contender's (the goal is at most 1.10
of ``pyg``).
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch_geometric.nn as pyg
from tasks import Task, chains, rgg
from torch import Tensor, nn
from training_step import THREADS, environment, limit_threads, table, timed, write

from hogwild import GAT, GCN
from hogwild.models import Readout
from hogwild.nn import MLP

GOAL = 1.10


class Surrounded(nn.Module):
    """PyG's model between the same encoder and readout as hogwild's model."""

    def __init__(self, task: Task, width: int, body: nn.Module) -> None:
        super().__init__()
        self.encoder = MLP(task.x.size(1), (width,))
        self.body = body
        self.readout = Readout(width, out_channels=task.out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.readout(self.body(self.encoder(x), edge_index).relu())


def contenders(model: str, task: Task) -> dict[str, nn.Module]:
    """The models to compare, by name."""
    p, out = task.x.size(1), task.out_channels
    if model == "GCN":
        return {
            "hogwild": GCN(p, out_channels=out),
            "pyg": Surrounded(task, 10, pyg.GCN(10, 10, 5)),
            "pyg, bare": pyg.GCN(p, 10, 5, out),
        }
    return {
        "hogwild": GAT(p, out_channels=out),
        "pyg": Surrounded(task, 9, pyg.GAT(9, 9, 5, heads=3)),
        "pyg, bare": pyg.GAT(p, 9, 5, out, heads=3),
    }


def step(model: nn.Module, task: Task) -> None:
    """Forward, loss and backward."""
    model.zero_grad()
    task.loss(model(task.x, task.edge_index).unsqueeze(0)).sum().backward()


@dataclass
class Result:
    """One contender on one task."""

    model: str
    task: str
    contender: str
    parameters: int
    ms: float
    ratio: float  # hogwild's time divided by this contender's
    rounds: list[float]  # milliseconds


def measure(model: str, name: str, task: Task, rounds: int, device: str) -> list[Result]:
    """Every contender's times, taken in turns."""
    torch.manual_seed(0)
    order = random.Random(0)
    models = {n: m.to(device, torch.float64) for n, m in contenders(model, task).items()}
    times: dict[str, list[float]] = {n: [] for n in models}
    for turn in range(rounds + 3):  # the first three are not counted
        for n in order.sample(list(models), len(models)):
            ms, _ = timed(partial(step, models[n], task), device)
            if turn >= 3:
                times[n].append(ms)
    return [
        Result(
            model,
            name,
            n,
            sum(p.numel() for p in models[n].parameters()),
            statistics.median(ms),
            statistics.median(a / b for a, b in zip(times["hogwild"], ms, strict=True)),
            ms,
        )
        for n, ms in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--rounds", type=int, default=200, help="turns; default: %(default)s")
    parser.add_argument("--nodes", type=int, default=10_000, help="of the random geometric graph")
    parser.add_argument("--output", type=Path, help="folder for explicit.json and .md")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.nodes < 2:
        parser.error("expected --rounds of at least 1 and --nodes of at least 2")
    limit_threads(arguments.threads)
    device = arguments.device

    tasks = {"chains (100)": chains(100), f"rgg ({arguments.nodes:,})": rgg(arguments.nodes)}
    results: list[Result] = []
    for name, task in tasks.items():
        for model in ("GCN", "GAT"):
            results += measure(model, name, task.to(device), arguments.rounds, device)
            print("  ", model, name, {r.contender: round(r.ratio, 3) for r in results[-3:]})
    place = ", ".join(f"{k} {v}" for k, v in environment(device).items())
    markdown = f"Training step of explicit models ({place}).\n\n" + table(
        ("model", "task", "contender", "parameters", "ms", "hogwild / contender"),
        [
            (r.model, r.task, r.contender, f"{r.parameters:,}", f"{r.ms:.2f}", f"{r.ratio:.2f}")
            for r in results
        ],
    )
    worst = max(r.ratio for r in results if r.contender == "pyg")
    markdown += f"\nAt most {worst:.2f} of PyG's model of the same size; the goal, {GOAL:.2f}, is "
    markdown += "met.\n" if worst <= GOAL else "missed.\n"
    written = {"environment": environment(device), "cells": [asdict(r) for r in results]}
    write(arguments.output, "explicit", written, markdown)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
