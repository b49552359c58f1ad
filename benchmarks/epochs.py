r"""An epoch of MUTAG, PROTEINS and ENZYMES in a plain PyG loop: energy GNNs against GCN and GIN.

The loop is every PyG user's: a shuffled ``DataLoader``, forward, cross-entropy, backward, one step
of AdamW. The graphs have their raw attributes beside the one-hot labels of their nodes. Nine tenths
of the graphs are trained on. Contenders at width k:

* ``GCN``: PyG's, 3 layers (or ``--layers``), mean of the nodes, a linear layer (standardised
  features);
* ``GIN``: PyG's, 5 layers, sum of the nodes, an MLP (standardised features);
* ``edge``, ``attention``: the edge-wise energy GNN and the one with 2 heads of attention. The model
  standardises its features itself. Solves start at zero;
* ``soft``, ``soft, 4 layers``: the soft energy GNN.

Energy GNNs are solved by compiled code, on torch (``--kernels off``), or by compiled code for given
instruction sets (``--kernels avx512,avx2``, after ``python -m hogwild.kernels.build --all``). The
contenders take turns, one epoch each, in an order drawn anew for every epoch, so that noise of the
machine affects all of them. The report has the seconds of the first epoch, where everything is
cold, the median seconds of the later ones, the median over the later epochs of the contender's time
divided by a GCN's and a GIN's, the mean iterations of a graph in the first and in the last epoch,
and the accuracy on the test graphs after the last epoch, which only shows that the models learn.
With ``--device cuda`` data are copied batch by batch, the clock waits for the GPU, and the report
has the peak memory of a training step, in MB above what is there before it.

``--profile`` shows instead where the time of one contender's epochs goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from training_step import THREADS, described, environment, limit_threads, table, write

from hogwild import EnergyGNN, Inputs, SoftEnergyGNN, Solution
from hogwild.kernels.build import LEVELS
from hogwild.kernels.native import SWITCH, Missing, found
from hogwild.models.gnn import ConvGNN
from hogwild.nn import Standardize
from hogwild.tasks.benchmarks import prepared

SETS = ("MUTAG", "PROTEINS", "ENZYMES")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def graphs_of(name: str) -> list[Data]:
    """The graphs of a set, with attributes and labels as features."""
    parts = ("A", "graph_indicator", "graph_labels", "node_labels")
    data = prepared(
        f"{name}-attributes", f"TUDataset/{name}/raw", [f"{name}_{p}.txt" for p in parts],
        f"{name}/raw", lambda root: TUDataset(str(root), name, use_node_attr=True), download=True,
    )  # fmt: skip
    return [Data(x=g.x.float(), edge_index=g.edge_index, y=g.y) for g in data]


def standardised(graphs: list[Data], train: list[Data]) -> list[Data]:
    """The graphs with features standardised by the statistics of the training graphs."""
    stage = Standardize(graphs[0].x.size(1)).fit([g.x for g in train])
    return [Data(x=stage(g.x), edge_index=g.edge_index, y=g.y) for g in graphs]


class Rival(nn.Module):
    """PyG's model, the pooling of its nodes, and a head."""

    def __init__(self, body: nn.Module, pool: Callable[..., Tensor], head: nn.Module) -> None:
        super().__init__()
        self.body, self.pool, self.head = body, pool, head

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        return self.head(self.pool(self.body(x, edge_index), batch, batch_size))


@dataclass
class Contender:
    """A model in its loop, and what was measured of it."""

    model: nn.Module
    call: Callable[[Batch], Tensor]
    train: DataLoader
    test: DataLoader
    kernels: str = "on"
    device: str = "cpu"
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0  # MB
    iterations: list[float] = field(default_factory=list)  # of a graph, mean, each epoch
    counted: list[Tensor] = field(default_factory=list)  # of the graphs of the current epoch

    def __post_init__(self) -> None:
        self.model.to(self.device)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=0.005)

    def epoch(self) -> None:
        """One epoch; only training counts."""
        os.environ[SWITCH] = self.kernels
        found.cache_clear()
        why = found()  # the library is loaded before the clock starts
        if self.kernels in LEVELS and isinstance(why, Missing):
            raise SystemExit(why.reason)
        self.model.train()
        self.counted.clear()
        if self.device != "cpu":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        began = self.clock()
        for batch in self.train:
            batch = batch.to(self.device)
            loss = nn.functional.cross_entropy(self.call(batch), batch.y)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        if self.device != "cpu":
            torch.cuda.synchronize()
            self.memory = (torch.cuda.max_memory_allocated() - before) / 2**20
        self.seconds.append(self.clock() - began)
        if self.counted:
            self.iterations.append(float(torch.cat(self.counted).double().mean()))

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        batches = [batch.to(self.device) for batch in self.test]
        right = [(self.call(batch).argmax(-1) == batch.y) for batch in batches]
        return float(torch.cat(right).double().mean())


def contenders(
    name: str, width: int, size: int, options: argparse.Namespace
) -> dict[str, Contender]:
    """The contenders by name; energy GNNs on torch have "(torch)" in theirs, and so on."""
    seed, device, kernels = options.seed, options.device, options.kernels.split(",")
    graphs = graphs_of(name)
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    cut = len(graphs) * 9 // 10
    parts = order[:cut], order[cut:]
    train = [graphs[i] for i in parts[0]]
    even = standardised(graphs, train)
    p, out = graphs[0].x.size(1), int(max(int(g.y) for g in graphs)) + 1

    def loaders(data: list[Data]) -> tuple[DataLoader, DataLoader]:
        pieces = [[data[i] for i in part] for part in parts]
        random = torch.Generator().manual_seed(seed)
        return (
            DataLoader(pieces[0], batch_size=size, shuffle=True, generator=random),
            DataLoader(pieces[1], batch_size=size),
        )

    def rival(model: Rival) -> Contender:
        def call(batch: Batch) -> Tensor:
            return model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)

        return Contender(model, call, *loaders(even), device=device)

    def energy(kernels: str, kind: type[ConvGNN], **options: int) -> Contender:
        torch.manual_seed(seed)
        model = kind(p, out_channels=out, pool="mean", hidden_channels=width, **options)
        model.standardize(train)
        counted, embed = list[Tensor](), model.conv.embed

        def counting(inputs: Inputs, h0: Tensor | None = None) -> Solution:
            solved = embed(inputs, h0)
            counted.append(solved.iterations)
            return solved

        model.conv.embed = counting  # type: ignore[method-assign]

        def call(batch: Batch) -> Tensor:
            return model(batch.x, batch.edge_index, batch=batch.batch, batch_size=batch.num_graphs)

        loop = Contender(model, call, *loaders(graphs), kernels, device)
        loop.counted = counted
        return loop

    torch.manual_seed(seed)
    gcn = pyg.GCN(p, width, options.layers)
    made = {
        "GCN": rival(Rival(gcn, pyg.global_mean_pool, nn.Linear(width, out))),
        "GIN": rival(
            Rival(
                pyg.GIN(p, width, 5),
                pyg.global_add_pool,
                pyg.MLP([width, width, out], norm=None, dropout=0.5),
            )
        ),
    }
    kinds: dict[str, tuple[type[ConvGNN], dict[str, int]]] = {
        "edge": (EnergyGNN, {}), "attention": (EnergyGNN, {"heads": 2}),
        "soft": (SoftEnergyGNN, {}), "soft, 4 layers": (SoftEnergyGNN, {"num_layers": 4}),
    }  # fmt: skip
    for where, model in product(kernels, options.models.split(";")):
        label = model if where == "on" else f"{model} ({'torch' if where == 'off' else where})"
        kind, more = kinds[model]
        made[label] = energy(where, kind, **more)
    return made


@dataclass
class Result:
    """One contender on one set at one width."""

    set: str
    k: int
    batch: int
    contender: str
    parameters: int
    first: float  # seconds
    later: float  # seconds, median
    gcn: float  # median over the later epochs of this time divided by the GCN's
    gin: float
    iterations: list[float]
    accuracy: float
    memory: float  # MB, on a GPU
    seconds: list[float]


def measure(name: str, width: int, size: int, options: argparse.Namespace) -> list[Result]:
    """All contenders, one epoch each in turns."""
    loops = contenders(name, width, size, options)
    for loop in loops.values():
        loop.clock = CLOCKS[options.clock]
    order = random.Random(options.seed)
    for _ in range(options.epochs):
        for n in order.sample(list(loops), len(loops)):
            loops[n].epoch()

    def ratio(loop: Contender, rival: str) -> float:
        pairs = zip(loop.seconds[1:], loops[rival].seconds[1:], strict=True)
        return statistics.median(a / b for a, b in pairs)

    return [
        Result(
            name,
            width,
            size,
            n if n != "GCN" or options.layers == 3 else f"GCN, {options.layers} layers",
            sum(p.numel() for p in loop.model.parameters()),
            loop.seconds[0],
            statistics.median(loop.seconds[1:]),
            ratio(loop, "GCN"),
            ratio(loop, "GIN"),
            loop.iterations,
            loop.accuracy(),
            loop.memory,
            loop.seconds,
        )
        for n, loop in loops.items()
    ]


def profile(loop: Contender, epochs: int) -> None:
    """Print the functions that take the most time, after one epoch that is not counted."""
    loop.epoch()
    watch = cProfile.Profile(time.process_time)
    watch.enable()
    for _ in range(epochs):
        loop.epoch()
    watch.disable()
    print(f"{statistics.median(loop.seconds[1:]):.4f} s an epoch")
    for order in ("cumulative", "tottime"):
        pstats.Stats(watch).sort_stats(order).print_stats(45)


HEAD = ("set", "k", "batch", "contender", "parameters", "first epoch, s", "later epochs, s",
        "× GCN", "× GIN", "iterations, first → last", "test accuracy", "MB")  # fmt: skip


def row(r: Result) -> list[str]:
    counts = f"{r.iterations[0]:.1f} → {r.iterations[-1]:.1f}" if r.iterations else ""
    return [
        r.set, str(r.k), str(r.batch), r.contender, f"{r.parameters:,}", f"{r.first:.3f}",
        f"{r.later:.3f}", f"{r.gcn:.1f}", f"{r.gin:.1f}", counts, f"{100 * r.accuracy:.0f} %",
        f"{r.memory:.1f}",
    ]  # fmt: skip


def report(results: list[Result]) -> str:
    """A table; memory is measured on a GPU."""
    head = HEAD if any(r.memory for r in results) else HEAD[:-1]
    return table(head, [row(r)[: len(head)] for r in results])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = "edge;attention;soft;soft, 4 layers"
    parser.add_argument("--sets", default=",".join(SETS), help="default: %(default)s")
    parser.add_argument("--widths", default="2,8,32", help="k; default: %(default)s")
    parser.add_argument("--models", default=models, help='with ";" between; default: %(default)s')
    parser.add_argument("--batches", default="32", help="batch sizes; default: %(default)s")
    parser.add_argument("--kernels", default="on", help="on, off, avx2, …; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=6, help="at least 2; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument(
        "--clock", default="wall", choices=tuple(CLOCKS),
        help="cpu: seconds of the processor, on a busy machine with --threads 1",
    )  # fmt: skip
    parser.add_argument("--layers", type=int, default=3, help="of the GCN; default: %(default)s")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--profile", action="store_true", help="profile the first contender")
    parser.add_argument("--name", default="epochs", help="of the files; default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error("expected --epochs of at least 2: the first one is cold")
    limit_threads(arguments.threads)
    widths, sizes = ([int(v) for v in s.split(",")] for s in (arguments.widths, arguments.batches))

    results: list[Result] = []
    for name, width, size in product(arguments.sets.split(","), widths, sizes):
        if arguments.profile:
            _, _, first, *_ = contenders(name, width, size, arguments).values()
            profile(first, arguments.epochs)
            continue
        new = measure(name, width, size, arguments)
        print(report(new), flush=True)
        results += new
    if arguments.profile:
        return
    place: dict[str, str | int] = environment(arguments.device)
    seconds = "seconds of the processor" if arguments.clock == "cpu" else "seconds"
    markdown = f"Epochs in a plain PyG loop, {seconds} ({described(place)}).\n\n"
    markdown += report(results)
    written = {
        "environment": place,
        "clock": arguments.clock,
        "cells": [asdict(r) for r in results],
    }
    write(arguments.output, arguments.name, written, markdown)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
