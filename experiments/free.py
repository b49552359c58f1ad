r"""Free size: wide soft energies beside PyG's layers, all in one training loop.

**Protocol.** :data:`SETS` has the splits and the numbers of epochs; PyG's layers, whose epochs are
shorter, have more of them where they need more. On a set every model has the same number of tuning
trials, on the first split. A trial draws its options at random from :data:`SPACES`, seeded by set,
model and number. The options of the trial with the best validation metric train on the other
splits, too. Adam trains. A training keeps the parameters of the epoch with the best validation
metric (the last of equals), and stops when that epoch is long ago. Test nodes and graphs are read
once, after that. Then the model and a fresh GCN of three layers take turns, one epoch each, so that
other work on the machine slows both. The ratio is the median of the turns.

On Peptides-func a training takes its rate through one cycle, and there is no tuning: options were
fixed after one look at five trainings of 30 epochs. PyG's layers do not see the bonds' categories.

**Models.** ``soft`` is :class:`~hogwild.SoftEnergyGNN`. ``alone`` is the same model, which sees no
edges and has trials of its own: the difference is what the graph contributes. ``gcn``, ``gin`` and
``sage`` are PyG's layers (:class:`Explicit`).
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import Planetoid, TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.utils import to_undirected

from experiments import markdown
from experiments.experiment import Cell, Experiment, Work
from experiments.paper import Column
from experiments.record import Record
from hogwild import Readout, SoftEnergyGNN
from hogwild.errors import ConfigError
from hogwild.metrics import (
    ACCURACY,
    AVERAGE_PRECISION,
    BINARY_CROSS_ENTROPY,
    CROSS_ENTROPY,
    Metric,
)
from hogwild.nn import Standardize
from hogwild.tasks.benchmarks import PeptidesFunc, absent, data_home, prepared

RUNS, TURNS, QUICK = 5, 5, 2
"""Splits, or seeds where there is one split; timed epochs; epochs with ``--quick``, which has one
trial and two runs."""
LOOP = ("lr", "weight_decay", "rows")
"""Options that are not the model's."""
Parts = Sequence[list[Data]]
"""Training, validation and test graphs. Where a set is one graph, each part is that graph with a
mask ``keep`` of its nodes."""

# -- data ------------------------------------------------------------------------------------------


def cora(run: int) -> Parts:
    """2,708 papers, features zero or one, one published split."""
    names = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    [data] = prepared(
        "cora", "planetoid/cora", [f"ind.cora.{name}" for name in names], "Cora/raw",
        lambda root: Planetoid(str(root), "Cora"), download=True,
    )  # fmt: skip
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return _of_nodes((data.x > 0).float(), data.edge_index, data.y, masks)


def minesweeper(run: int) -> Parts:
    """A board of 100 × 100 fields, ten published splits: which fields hold mines?"""
    home, place = data_home(), "heterophilous/minesweeper.npz"
    if home is None or not (home / place).is_file():
        raise absent("minesweeper", place, "it is never downloaded")
    with np.load(home / place) as file:
        x, y, edges = (torch.tensor(file[k]) for k in ("node_features", "node_labels", "edges"))
        masks = [torch.tensor(file[f"{k}_masks"][run]) for k in ("train", "val", "test")]
    return _of_nodes(x.float(), to_undirected(edges.T.long()), y.long(), [m.bool() for m in masks])


def _of_nodes(x: Tensor, edge_index: Tensor, y: Tensor, masks: Sequence[Tensor]) -> Parts:
    return [[Data(x=x, edge_index=edge_index, y=y, keep=mask)] for mask in masks]


def enzymes(run: int) -> Parts:
    """600 proteins, split at random into 480, 60 and 60. Features are standardised by the first."""
    names = ("A", "graph_indicator", "graph_labels", "node_labels", "node_attributes")
    data = prepared(
        "ENZYMES-attributes", "TUDataset/ENZYMES/raw", [f"ENZYMES_{name}.txt" for name in names],
        "ENZYMES/raw", lambda root: TUDataset(str(root), "ENZYMES", use_node_attr=True),
        download=True,
    )  # fmt: skip
    order = torch.randperm(n := len(data), generator=torch.Generator().manual_seed(run))
    parts = [[data[int(i)] for i in part] for part in order.split([n - n // 5, n // 10, n // 10])]
    stage = Standardize(data.num_features).fit([g.x for g in parts[0]])
    return [[Data(x=stage(g.x), edge_index=g.edge_index, y=g.y) for g in part] for part in parts]


def peptides(run: int) -> Parts:
    """15,535 peptides of 151 atoms on average, ten labels each, one published split. The categories
    of atoms and bonds are one-hot."""
    task = PeptidesFunc()
    [split] = task.splits()
    return [
        [task.graphs[i] for i in part.tolist()] for part in (split.train, split.val, split.test)
    ]


def roc_auc(out: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
    """The area under the ROC curve of two logits a row: the share of pairs of a row of class 1 and
    one of class 0 that are in order; ties count half."""
    score = (out[:, 1] - out[:, 0])[keep].double()
    _, place, count = score.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - 0.5 * (count - 1))[place]  # mean rank of equals, from one
    hit = y[keep] == 1
    ones = hit.sum().double()
    return (rank[hit].sum() - 0.5 * ones * (ones + 1)) / (ones * (len(hit) - ones))


# -- what is compared ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Set:
    """A data set and how models are trained on it."""

    heading: str
    parts: Callable[[int], Parts]  # of a run
    metric: Metric
    most: tuple[int, int]  # epochs: of soft energies, and of PyG's layers
    trials: int = 4  # of every model
    every: int = 1  # epochs from one look at the validation metric to the next
    patience: int = 1000  # epochs after the best one
    width: int = 64  # of every model
    pool: str | None = None
    loss: Metric = CROSS_ENTROPY
    size: int = 32  # of a batch
    resident: bool = False  # whether all graphs lie on the device, and the rate follows one cycle


SETS = {
    "cora": Set("Cora, accuracy", cora, ACCURACY, (200, 200), every=2, patience=50),
    "enzymes": Set("ENZYMES, accuracy", enzymes, ACCURACY, (80, 80), pool="mean"),
    "minesweeper": Set(
        "minesweeper, ROC AUC", minesweeper, Metric("ROC AUC", roc_auc, True, True), (150, 400),
        trials=2, every=5, patience=100, width=32,
    ),
    "peptides": Set(
        "Peptides-func, AP", peptides, AVERAGE_PRECISION, (50, 100), trials=1, every=5,
        pool="mean", loss=BINARY_CROSS_ENTROPY, size=200, resident=True,
    ),
}  # fmt: skip
SPACES: dict[str, tuple[dict[str, Sequence[Any]], ...]] = {
    "cora": (
        {"lr": (0.01,), "weight_decay": (5e-4, 5e-3), "dropout": (0.5, 0.7), "rows": (True, False)},
        {"encoder": (None, True), "rate": (0.0, 1 / 30)}, {"num_layers": (2,)},
    ),
    "enzymes": (
        {"lr": (0.002, 0.005), "weight_decay": (0.0, 1e-4), "dropout": (0.0, 0.1)},
        {"num_layers": (1, 2), "condition": (6.0, 11.0)},
        {"num_layers": (3, 4), "norm": (None, "batch"), "residual": (False, True)},
    ),
    "minesweeper": (
        {"lr": (0.01, 0.02), "weight_decay": (0.0,)},
        {"num_layers": (1, 2), "condition": (21.0,), "bias_rate": (1.0,)},
        {"num_layers": (3, 5), "norm": ("batch", "layer"), "residual": (True,)},
    ),
    "peptides": (
        {"lr": (0.003,), "weight_decay": (0.0,), "norm": ("batch",)}, {"condition": (21.0,)},
        {"num_layers": (5,), "residual": (True,)},
    ),
}  # fmt: skip
"""Options that trials draw from: of all models; of soft energies; of PyG's layers. ``rows`` says
whether the features of a node of Cora have sum one, or are zeros and ones."""
LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": pyg.GCNConv, "gin": lambda a, b: pyg.GINConv(pyg.MLP([a, b, b], norm=None)),
    "sage": pyg.SAGEConv,
}  # fmt: skip
MODELS = {"soft": "soft energy", "alone": "no edges", "gcn": "GCN", "gin": "GIN", "sage": "SAGE"}
NORMS = {None: nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Explicit(nn.Module):
    r"""PyG's layers and a readout: :math:`h \leftarrow h + \operatorname{dropout}(\operatorname{
    relu}(\operatorname{norm}(\mathrm{layer}(h))))` from encoded features, or without residuals
    :math:`h \leftarrow \operatorname{dropout}(\dots)` from the features themselves."""

    def __init__(
        self, kind: str, p: int, k: int, out: int, pool: str | None, num_layers: int = 3,
        norm: str | None = None, residual: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = nn.Linear(p, k) if residual else None
        widths = [k if residual else p, *[k] * num_layers]
        self.layers = nn.ModuleList(LAYERS[kind](a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(NORMS[norm](k) for _ in self.layers)
        wide = {"pooled": k, "widths": (k,)} if pool else {"widths": ()}
        self.readout = Readout(k, out_channels=out, pool=pool, dropout=dropout, **wide)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        h = self.drop(x)
        if self.encoder is not None:
            h = self.drop(F.relu(self.encoder(h)))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            step = self.drop(F.relu(norm(layer(h, edge_index))))
            h = step if self.encoder is None else h + step
        return self.readout(h, batch, batch_size)


def build(data: Set, model: str, graphs: Parts, options: Mapping[str, Any]) -> nn.Module:
    """A fresh model of these options."""
    p, y = graphs[0][0].num_features, graphs[0][0].y
    labels = y.dim() > 1 and y.size(1)
    out = labels or 1 + max(int(g.y.max()) for part in graphs for g in part)
    shape = {name: value for name, value in options.items() if name not in LOOP}
    if model in LAYERS:
        return Explicit(model, p, data.width, out, data.pool, **shape)
    return SoftEnergyGNN(
        p,
        hidden_channels=data.width,
        out_channels=out,
        pool=data.pool,
        edge_dim=graphs[0][0].num_edge_features or None,
        **shape,
    )


# -- the loop --------------------------------------------------------------------------------------


class Resident:
    """Batches of graphs that lie on a device together, for sets whose collation would take longer
    than a step."""

    def __init__(self, graphs: list[Data], size: int, shuffle: bool, device: str) -> None:
        self.size, self.shuffle = size, shuffle
        self.all = Batch.from_data_list(graphs).to(device)
        ends = torch.tensor([0, *(g.num_edges for g in graphs)], device=device).cumsum(0)
        self.nodes, self.edges = self.all.ptr, ends  # [G + 1] where those of each graph begin

    def __len__(self) -> int:
        return self.all.num_graphs

    def __iter__(self) -> Iterator[Data]:
        count = len(self)
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        yield from (self._batch(chosen.to(self.nodes.device)) for chosen in order.split(self.size))

    def _batch(self, chosen: Tensor) -> Data:
        (node, nodes), (edge, edges) = (_rows(ptr, chosen) for ptr in (self.nodes, self.edges))
        moved = nodes.cumsum(0) - nodes - self.nodes[chosen]
        return Data(
            x=self.all.x[node],
            edge_index=self.all.edge_index[:, edge] + moved.repeat_interleave(edges),
            edge_attr=self.all.edge_attr[edge], y=self.all.y[chosen], num_graphs=len(chosen),
            batch=torch.arange(len(chosen), device=node.device).repeat_interleave(nodes),
        )  # fmt: skip


def _rows(ptr: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of chosen graphs, one after the other, and the number of each graph's rows."""
    count = ptr.diff()[chosen]
    first = ptr[chosen] - (count.cumsum(0) - count)
    found = first.repeat_interleave(count)
    return found + torch.arange(len(found), device=ptr.device), count


class Training:
    """One training: the loop that serves all models."""

    def __init__(
        self, name: str, model: str, graphs: Parts, options: Record, seed: int, device: str
    ) -> None:
        torch.manual_seed(seed)
        data = self.data = SETS[name]
        self.device, self.rows, self.alone = device, options.get("rows", False), model == "alone"
        self.explicit = model in LAYERS
        self.model = build(data, model, graphs, options).to(device)
        self.train, *self.held = (
            Resident(part, data.size, part is graphs[0], device)
            if data.resident
            else DataLoader(part, batch_size=data.size, shuffle=part is graphs[0])
            for part in graphs
        )
        self.lr, decay = options["lr"], options["weight_decay"]
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=self.lr, weight_decay=decay)
        self.cycle: OneCycleLR | None = None

    def predict(self, batch: Any) -> Tensor:
        """The model's answer."""
        x = batch.x / batch.x.sum(1, keepdim=True).clamp(min=1.0) if self.rows else batch.x
        edges, attr = batch.edge_index, batch.edge_attr
        if self.alone:
            edges, attr = edges[:, :0], None if attr is None else attr[:0]
        beside = {} if self.explicit or attr is None else {"edge_attr": attr}
        found: Tensor = self.model(
            x, edges, batch=batch.batch, batch_size=batch.num_graphs, **beside
        )
        return found

    def epoch(self) -> float:
        """One epoch; its seconds."""
        began = time.perf_counter()
        self.model.train()
        for batch in self.train:
            batch = batch.to(self.device)
            loss = self.data.loss(self.predict(batch), batch.y, batch.get("keep"))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            if self.cycle is not None:
                self.cycle.step()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    @torch.no_grad()
    def judge(self, loader: DataLoader) -> float:
        """The metric of a part."""
        self.model.eval()
        batches = [batch.to(self.device) for batch in loader]
        out, y = torch.cat([self.predict(b) for b in batches]), torch.cat([b.y for b in batches])
        return float(self.data.metric(out, y, batches[0].get("keep")))

    def run(self, epochs: int) -> Record:
        """Train. Validation and test metric of the best epoch, and the epoch."""
        if self.data.resident:
            steps = epochs * -(-len(self.train) // self.data.size)
            self.cycle = OneCycleLR(self.optimiser, self.lr, total_steps=steps)
        best, kept, at = -1.0, self.model.state_dict(), 0
        for epoch in range(1, epochs + 1):
            self.epoch()
            if epoch % self.data.every and epoch < epochs:
                continue
            found = self.judge(self.held[0])
            if found >= best:
                best, kept, at = found, copy.deepcopy(self.model.state_dict()), epoch
            elif epoch - at >= self.data.patience:
                break
        self.model.load_state_dict(kept)
        self.cycle = None
        return {"validation": best, "test": self.judge(self.held[1]), "epoch": at}


def drawn(name: str, model: str, trial: int) -> Record:
    """The options of a trial."""
    common, soft, explicit = SPACES[name]
    draw = random.Random(f"{name}/{model}/{trial}")
    space = common | (explicit if model in LAYERS else soft)
    return {option: draw.choice(values) for option, values in space.items()}


def measured(work: Work, *, name: str, model: str) -> Record:
    """The trials of a model on a set, the runs with the best options, and times."""
    if work.recipe != "default" or work.changes:
        raise ConfigError(
            f"recipe={work.recipe!r} and changes={dict(work.changes)} were given to the experiment "
            f"free, which tunes its options; expected neither"
        )
    epochs = QUICK if work.quick else SETS[name].most[model in LAYERS]
    graphs, tried = SETS[name].parts(0), list[Record]()
    for trial in range(1 if work.quick else SETS[name].trials):
        options = drawn(name, model, trial)
        training = Training(name, model, graphs, options, 0, work.device)
        tried.append({"options": options, **training.run(epochs)})
    best = max(tried, key=lambda one: one["validation"])
    runs, options = [best], best["options"]
    for run in range(1, 2 if work.quick else work.replicas or RUNS):
        training = Training(name, model, SETS[name].parts(run), options, run, work.device)
        runs.append(training.run(epochs))
    shape = {"lr": 0.01, "weight_decay": 0.0}  # three layers
    beside = Training(name, "gcn", graphs, shape, 0, work.device)
    return {
        "values": [one["test"] for one in runs],
        "validation": [one["validation"] for one in runs],
        "best_epoch": [one["epoch"] for one in runs],
        "options": options,
        "trials": [{key: one[key] for key in ("options", "validation", "epoch")} for one in tried],
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "turns": [(training.epoch(), beside.epoch()) for _ in range(1 + TURNS)][1:],
        "higher_is_better": True,
    }


# -- how it is shown -------------------------------------------------------------------------------


class Free(Experiment):
    """Sets × models."""

    name = "free"
    title = "soft energies of free size"

    def cells(self) -> dict[str, Cell]:
        return {f"{n}/{m}": partial(measured, name=n, model=m) for n in SETS for m in MODELS}

    def brief(self, record: Record) -> str:
        return f"{_shown(record['values'])} ({_shown(record['validation'])} on validation)"

    def number(self, record: Record) -> str:
        return _shown(record["values"])

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {
            "parameters": lambda record: f"{record['parameters']:,}",
            "seconds": lambda record: f"{statistics.median(t for t, _ in record['turns']):.2g}",
            "ratio": lambda record: f"{statistics.median(t / g for t, g in record['turns']):.1f}",
        }

    def table(self, records: Mapping[str, Record]) -> str:
        rows, ratio = [], self.aspects()["ratio"]
        for model, label in MODELS.items():
            found = [records.get(f"{name}/{model}") for name in SETS]
            shown = [
                f"{self.number(r)} ({r['parameters']:,}; {ratio(r)}×)" if r else markdown.NOT_RUN
                for r in found
            ]
            rows.append([label, *shown])
        out = "On test nodes or graphs (parameters; time of an epoch divided by a GCN's).\n\n"
        out += markdown.table(["model", *(f"{data.heading}, %" for data in SETS.values())], rows)
        if any(record["quick"] for record in records.values()):
            out += "\nQUICK runs: few epochs; not to be compared.\n"
        return out

    def details(self, records: Mapping[str, Record]) -> str:
        head = ("cell", "options", "trials on validation", "runs", "best epochs")
        rows = [[name, markdown.NOT_RUN] for name in self.cells()]
        for row in rows:
            if (record := records.get(row[0])) is not None:
                row[1:] = [
                    ", ".join(f"{key}={value}" for key, value in record["options"].items()),
                    " ".join(f"{100 * one['validation']:.1f}" for one in record["trials"]),
                    str(len(record["values"])), " ".join(map(str, record["best_epoch"])),
                    *markdown.origin(record),
                ]  # fmt: skip
        return markdown.table([*head, *markdown.ORIGIN], rows)


def _shown(values: Sequence[float]) -> str:
    return markdown.show(markdown.summarise(values), Column("", higher_is_better=True))
