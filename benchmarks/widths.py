r"""What hidden widths are worth: error and time of energy GNNs with wide embeddings.

An ``EnergyGNN`` with ``hidden_channels`` k has hidden widths (w, w) and messages of width w/2. By
default w = max(4, k/4) (``hogwild.models.energy.default_widths``). Here models with w = 4, k/4 and
k train in a plain PyG loop on the graphs of ``epochs.py``, with several seeds, which also split the
graphs. The table has the training loss of the last epoch, the accuracy on the test graphs (mean and
standard error over the seeds), and the median seconds of an epoch.

    HOGWILD_DATA=… python benchmarks/widths.py --sets ENZYMES --epochs 30 --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from epochs import CLOCKS, graphs_of
from torch import nn
from torch_geometric.loader import DataLoader
from training_step import described, environment, limit_threads, table, write

from hogwild import EnergyGNN


@dataclass
class Result:
    """One width on one set."""

    set: str
    k: int
    w: int
    parameters: int
    loss: list[float]
    accuracy: list[float]
    seconds: float


def trained(
    name: str, k: int, w: int, epochs: int, seed: int, clock: str
) -> tuple[int, float, float, list[float]]:
    """Parameters, the last training loss, the test accuracy, and seconds of every epoch."""
    graphs = graphs_of(name)
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    cut = len(graphs) * 9 // 10
    train, test = ([graphs[i] for i in part] for part in (order[:cut], order[cut:]))
    classes = int(max(int(g.y) for g in graphs)) + 1
    torch.manual_seed(seed)
    model = EnergyGNN(
        graphs[0].x.size(1), out_channels=classes, pool="mean", hidden_channels=k,
        widths=(w, w), message_channels=max(2, w // 2),
    )  # fmt: skip
    model.standardize(train)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005)
    random = torch.Generator().manual_seed(seed)
    loader = DataLoader(train, batch_size=32, shuffle=True, generator=random)
    seconds: list[float] = []
    mean = 0.0
    for _ in range(epochs):
        began, total = CLOCKS[clock](), 0.0
        for batch in loader:
            out = model(batch.x, batch.edge_index, batch=batch.batch, batch_size=batch.num_graphs)
            loss = nn.functional.cross_entropy(out, batch.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * batch.num_graphs
        seconds.append(CLOCKS[clock]() - began)
        mean = total / len(train)
    model.eval()
    with torch.no_grad():
        (batch,) = DataLoader(test, batch_size=len(test))
        out = model(batch.x, batch.edge_index, batch=batch.batch, batch_size=batch.num_graphs)
    accuracy = float((out.argmax(-1) == batch.y).double().mean())
    return sum(p.numel() for p in model.parameters()), mean, accuracy, seconds


def spread(values: list[float], scale: float, digits: int) -> str:
    """Mean ± standard error."""
    mean = scale * statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    error = scale * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


HEAD = ("set", "k", "w", "parameters", "training loss", "test accuracy, %", "an epoch, s")


def row(r: Result) -> list[str]:
    return [
        r.set, str(r.k), str(r.w), f"{r.parameters:,}", spread(r.loss, 1, 3),
        spread(r.accuracy, 100, 1), f"{r.seconds:.2f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default="ENZYMES", help="default: %(default)s")
    parser.add_argument("--channels", default="8,32", help="k; default: %(default)s")
    parser.add_argument("--hidden", help="w; default: 4, k/4 and k")
    parser.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", default="wall", choices=tuple(CLOCKS))
    parser.add_argument("--name", default="widths", help="of the files; default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    results: list[Result] = []
    began = time.perf_counter()
    for name in arguments.sets.split(","):
        for k in map(int, arguments.channels.split(",")):
            asked = {int(w) for w in (arguments.hidden or "").split(",") if w}
            for w in sorted(asked or {4, max(4, k // 4), k}):
                runs = [
                    trained(name, k, w, arguments.epochs, seed, arguments.clock)
                    for seed in range(arguments.seeds)
                ]
                seconds = statistics.median(s for run in runs for s in run[3])
                found = Result(
                    name, k, w, runs[0][0], [r[1] for r in runs], [r[2] for r in runs], seconds
                )
                results.append(found)
                print(row(found), f"{time.perf_counter() - began:.0f} s so far", flush=True)
                place = environment("cpu")
                markdown = f"Hidden widths of energy GNNs ({described(place)}).\n\n"
                markdown += table(HEAD, [row(r) for r in results])
                written = {"environment": place, "cells": [asdict(r) for r in results]}
                write(arguments.output, arguments.name, written, markdown)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
