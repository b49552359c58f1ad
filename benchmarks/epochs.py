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

``HOGWILD_KERNELS=off`` or ``=avx2`` solves them in another way. The
contenders take turns, one epoch each, in an order drawn anew for every epoch, so that noise of the
machine affects all of them. The report has the seconds of the first epoch, where everything is
cold, the median seconds of the later ones, the median over the later epochs of the contender's time
divided by a GCN's and a GIN's, the mean iterations of a graph in the first and in the last epoch,
and the accuracy on the test graphs after the last epoch, which only shows that the models learn.
With ``--device cuda`` data are copied batch by batch, the clock waits for the GPU, and the report
has the peak memory of a training step, in MB above what is there before it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch_geometric.nn as pyg
from harness import CLOCKS, Record, limit_threads, parser
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader

from hogwild import EnergyGNN, Inputs, SoftEnergyGNN, Solution
from hogwild.kernels.native import library
from hogwild.models.gnn import ConvGNN
from hogwild.nn import Standardize
from hogwild.tasks.benchmarks import prepared

SETS = ("MUTAG", "PROTEINS", "ENZYMES")
HEAD = ("set", "k", "batch", "contender", "clock", "parameters", "first epoch, s",
        "later epochs, s", "× GCN", "× GIN", "iterations, first → last", "test accuracy",
        "MB")  # fmt: skip


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
        library()  # loaded before the clock starts
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
    """The contenders by name."""
    seed, device = options.seed, options.device
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

    def energy(kind: type[ConvGNN], **options: int) -> Contender:
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

        loop = Contender(model, call, *loaders(graphs), device)
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
    for label in options.models.split(";"):
        kind, more = kinds[label]
        made[label] = energy(kind, **more)
    return made


def measure(name: str, width: int, size: int, options: argparse.Namespace, record: Record) -> None:
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

    for n, loop in loops.items():
        cell = {
            "set": name, "k": width, "batch": size,
            "contender": f"GCN, {options.layers} layers" if n == "GCN" else n,
            "parameters": sum(p.numel() for p in loop.model.parameters()),
            "first": loop.seconds[0], "later": statistics.median(loop.seconds[1:]),
            "gcn": ratio(loop, "GCN"), "gin": ratio(loop, "GIN"), "iterations": loop.iterations,
            "accuracy": loop.accuracy(), "memory": loop.memory, "seconds": loop.seconds,
        }  # fmt: skip
        record.add(row(cell | {"clock": options.clock}), cell)


def row(c: dict[str, Any]) -> list[str]:
    """The line of a cell in the table; memory is measured on a GPU."""
    counts = c["iterations"]
    return [
        c["set"], str(c["k"]), str(c["batch"]), c["contender"], c["clock"],
        f"{c['parameters']:,}", f"{c['first']:.3f}", f"{c['later']:.3f}", f"{c['gcn']:.1f}",
        f"{c['gin']:.1f}", f"{counts[0]:.1f} → {counts[-1]:.1f}" if counts else "",
        f"{100 * c['accuracy']:.0f} %", f"{c['memory']:.1f}" if c["memory"] else "",
    ]  # fmt: skip


def main() -> None:
    flags = parser(__doc__, "epochs")
    models = "edge;attention;soft;soft, 4 layers"
    flags.add_argument("--sets", default=",".join(SETS), help="default: %(default)s")
    flags.add_argument("--widths", default="2,8,32", help="k; default: %(default)s")
    flags.add_argument("--models", default=models, help='with ";" between; default: %(default)s')
    flags.add_argument("--batches", default="32", help="batch sizes; default: %(default)s")
    flags.add_argument("--epochs", type=int, default=6, help="at least 2; default: %(default)s")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument(
        "--clock", default="wall", choices=tuple(CLOCKS),
        help="cpu: seconds of the processor, on a busy machine with --threads 1",
    )  # fmt: skip
    flags.add_argument("--layers", type=int, default=3, help="of the GCN; default: %(default)s")
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--name", default="epochs", help="of the files; default: %(default)s")
    given = flags.parse_args()
    if given.epochs < 2:
        flags.error("expected --epochs of at least 2: the first one is cold")
    limit_threads(given.threads)
    widths, sizes = ([int(v) for v in s.split(",")] for s in (given.widths, given.batches))
    title = "Epochs in a plain PyG loop"
    record = Record(given.output, given.name, title, HEAD, given.device)
    record.about["clock"] = given.clock
    for name, width, size in product(given.sets.split(","), widths, sizes):
        measure(name, width, size, given, record)


if __name__ == "__main__":
    main()
