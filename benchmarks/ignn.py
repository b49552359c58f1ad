r"""Cost of an IGNN's training step: hogwild against the published training loop.

A training step is the forward solve, the adjoint solve and the parameter gradient; the optimiser is
excluded for all contenders. The rival restates the published loop (Gu et al., NeurIPS 2020): Picard
iterations on the whole batch until its largest change is below 3e-6, at most 300; the same for the
adjoint; W projected on the host, row by row in NumPy, before every training step; always from zero.
For each cell (``chains``: two chains of 100 nodes; ``proteins``: a batch of graphs of PROTEINS):

1. An ``IGNN`` with its default solver is trained on the cell in float64 (AdamW at 0.005, weight
   decay 1e-4, gradient norm clipped at 1, embeddings warm started from the previous epoch). W is
   projected as in the published loop, so that all contenders have the same parameters.
2. A snapshot is kept at a few epochs, the midpoints of equal parts of the training: the parameters,
   and the embeddings of the previous epoch.
3. On every snapshot each contender makes the same training step: ``hogwild`` (default solver,
   tolerance 1e-8 on the largest entry, adjoint to a relative 1e-10, from the previous embeddings),
   ``hogwild-cold`` (from zero), ``published`` (sparse products in COO format, as published),
   ``published-csr`` (the same with CSR, which current PyTorch multiplies faster),
   ``published-warm`` (CSR, from the previous embeddings) and ``published-tight`` (CSR, with
   hogwild's tolerances and as many iterations as they need). The contenders take turns. The median
   of each is taken, after one training step that is not measured.

The report has mean milliseconds over the snapshots, the ratio of each contender to hogwild, forward
and adjoint iterations, the residual max \|F(h) - h\| (median / worst), the distance of the
parameter gradient from that of an exact solve (relative), and the share of snapshots at which a
contender ran out of iterations. Compare cells only within one process on one machine.

PROTEINS is read from ``$HOGWILD_DATA/TUDataset`` (copied to a temporary folder first, since PyG
writes beside the raw files); without it the cell is skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rivals import set_parameters
from tasks import Task, chains
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset
from training_step import (
    THREADS,
    Record,
    clip,
    described,
    environment,
    limit_threads,
    moments,
    spread,
    table,
    timed,
    write,
)

from hogwild import IGNN, Inputs
from hogwild.solvers import SemismoothNewton, Solution, Solver

LEARNING_RATE, WEIGHT_DECAY, KAPPA = 0.005, 1e-4, 0.95
CELLS = ("chains:100", "proteins:128", "proteins:1113")
EPOCHS = {"chains": 1000, "proteins": 300}  # on chains the model learns nothing before epoch 500
Parameters = dict[str, Tensor]


# -- tasks ----------------------------------------------------------------------------------------


def proteins(graphs: int) -> Task | None:
    """A random batch of PROTEINS, a graph-level task; ``None`` where the data are missing."""
    source = Path(os.environ.get("HOGWILD_DATA", "")) / "TUDataset" / "PROTEINS" / "raw"
    if "HOGWILD_DATA" not in os.environ or not source.is_dir():
        return None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source, Path(folder) / "PROTEINS" / "raw")
        data = TUDataset(folder, "PROTEINS")
        order = np.random.default_rng(0).permutation(len(data))[:graphs]
        batch = Batch.from_data_list([data[int(i)] for i in order])
    edge_index = batch.edge_index[:, torch.from_numpy(np.lexsort(batch.edge_index.numpy()))]
    target = batch.y.double()[:, None]
    return Task(batch.x.double(), edge_index, None, batch.batch, "classification", target)


def make_task(name: str, size: int) -> Task | None:
    return chains(size) if name == "chains" else proteins(size)


def build(task: Task, solver: Solver | None = None) -> IGNN:
    """A fresh float64 model for this task. Failures do not raise; the caller counts them."""
    torch.manual_seed(0)
    graph_level = len(task.target) != len(task.x)
    model = IGNN(
        task.x.size(-1),
        out_channels=1,
        pool="mean" if graph_level else None,
        kappa=KAPPA,
        constraint="project",
        replicas=1,
        solver=solver,
        on_failure="ignore",
    )
    return model.double().to(task.x.device)


# -- hogwild --------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The results of one training step."""

    h: Tensor  # [N, k]
    gradients: Parameters
    iterations: int
    adjoint_iterations: int | None
    missed: bool


def hogwild_step(model: IGNN, task: Task, h0: Tensor | None) -> tuple[Solution, Tensor]:
    found = model.embed(Inputs(task.x, task.edge_index, None, task.batch), h0=h0)
    losses = task.loss(model.readout(found.value, task.batch, len(task.target)))
    losses.sum().backward()
    return found, losses.detach()


class Hogwild:
    """hogwild's training step, from the previous epoch's embeddings or from zero."""

    def __init__(self, task: Task, *, warm: bool = True, solver: Solver | None = None) -> None:
        self.task, self.warm, self.model = task, warm, build(task, solver)

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        set_parameters(self.model, parameters)

        def step() -> Callable[[], Outcome]:
            self.model.zero_grad()
            found, _ = hogwild_step(self.model, self.task, h0 if self.warm else None)

            def outcome() -> Outcome:
                gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}
                most, missed = int(found.iterations.max()), not bool(found.converged.all())
                return Outcome(found.value.detach()[0], gradients, most, None, missed)

            return outcome

        return step


# -- the published loop ---------------------------------------------------------------------------


class _Equilibrium(torch.autograd.Function):
    """The solution of X = relu(W X Ã + B) by Picard iterations, and its adjoint by the same method.
    X and B are [k, N]."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, b: Tensor, loop: Published, start: Tensor) -> Tensor:
        x, loop.iterations, loop.missed = loop.iterate(
            w, b, loop.a, torch.relu, start, loop.tolerance
        )
        ctx.save_for_backward(w, x, (torch.spmm(loop.a, (w @ x).T).T + b > 0).to(x.dtype))
        ctx.loop = loop
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        w, x, slope = ctx.saved_tensors
        loop = ctx.loop
        tolerance = loop.tolerance if loop.relative is None else loop.relative * grad.abs().max()
        start = torch.zeros_like(grad)
        found = loop.iterate(w.T, grad, loop.at, slope.mul, start, tolerance)
        dual, loop.adjoint_iterations, missed = found
        loop.missed = loop.missed or missed
        return dual @ torch.spmm(loop.a, x.T), dual, None, None


class Published:
    """The published training step on one task; parameters have hogwild's names."""

    def __init__(
        self, task: Task, *, warm: bool = False, csr: bool = True, tight: bool = False
    ) -> None:
        self.task, self.warm, self.model = task, warm, build(task)
        self.tolerance, self.max_iter = (1e-8, 100_000) if tight else (3e-6, 300)
        self.relative = 1e-10 if tight else None  # of the adjoint
        n = len(task.x)
        src, dst = task.edge_index
        own = torch.arange(n, device=src.device)
        degree = torch.bincount(dst, minlength=n).double() + 1.0
        rows, cols = torch.cat([dst, own]), torch.cat([src, own])
        values = (degree[rows] * degree[cols]).rsqrt()
        self.a = torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (n, n)).coalesce()
        self.at = self.a.t().coalesce()
        if csr:
            self.a, self.at = self.a.to_sparse_csr(), self.at.to_sparse_csr()
        self.iterations, self.adjoint_iterations, self.missed = 0, 0, False

    def iterate(
        self,
        w: Tensor,
        b: Tensor,
        a: Tensor,
        act: Callable[[Tensor], Tensor],
        x: Tensor,
        tolerance: float | Tensor,
    ) -> tuple[Tensor, int, bool]:
        for i in range(1, self.max_iter + 1):
            new = act(torch.spmm(a, (w @ x).T).T + b)
            change = torch.norm(new - x, float("inf"))
            x = new
            if change < tolerance:
                return x, i, False
        return x, self.max_iter, True

    @staticmethod
    def project(weight: Tensor, radius: float) -> None:
        """Project the rows onto the l1 ball, on the host."""
        rows = weight.detach().cpu().numpy().copy()
        for i in np.flatnonzero(np.abs(rows).sum(-1) > radius):
            size = np.abs(rows[i])
            excess, count = size.sum() - radius, len(size)
            for entry in np.sort(size):
                if excess / count <= entry:
                    break
                excess, count = excess - entry, count - 1
            rows[i] = np.sign(rows[i]) * np.maximum(size - excess / count, 0.0)
        weight.data.copy_(torch.from_numpy(rows))

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        set_parameters(self.model, parameters)
        conv, batch = self.model.conv, self.task.batch
        weight, encoder = conv.weight, conv.encoder  # [1, k, k]
        start = h0[0].T.contiguous() if self.warm else torch.zeros_like(h0[0].T)

        def step() -> Callable[[], Outcome]:
            self.model.zero_grad()
            self.project(weight[0], KAPPA)
            b = encoder(self.task.x)[0].T
            x = _Equilibrium.apply(weight[0], b, self, start)
            prediction = self.model.readout(x.T.unsqueeze(0), batch, len(self.task.target))
            self.task.loss(prediction).sum().backward()

            def outcome() -> Outcome:
                gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}
                counts = (self.iterations, self.adjoint_iterations)
                return Outcome(x.detach().T, gradients, *counts, self.missed)

            return outcome

        return step


# -- measuring ------------------------------------------------------------------------------------


def train(
    task: Task, epochs: int, samples: int, device: str
) -> tuple[list[tuple[int, Parameters, Tensor]], list[float]]:
    """Snapshots (epoch, parameters, previous embeddings), milliseconds of every training step."""
    model = build(task)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    wanted = moments(epochs, samples)
    snapshots, times = [], []
    h: Tensor | None = None
    for epoch in range(epochs):
        if epoch in wanted and h is not None:
            kept = {name: p.detach().clone() for name, p in model.named_parameters()}
            snapshots.append((epoch, kept, h))
        optimiser.zero_grad()
        ms, (found, losses) = timed(partial(hogwild_step, model, task, h), device)
        times.append(ms)
        h = found.value.detach()
        clip(model)
        optimiser.step()
        model.project_(warn=False)
        if epoch + 1 in {round(epochs * i / 4) for i in range(1, 5)}:
            norm = float(model.conv.weight.abs().sum(-1).amax())
            print(
                f"  epoch {epoch + 1}: loss {float(losses.sum()):.4g}, norm of W {norm:.3f}, "
                f"{statistics.fmean(times):.1f} ms a step so far",
                flush=True,
            )
    return snapshots, times


def measure(
    steps: dict[str, Callable[[], Callable[[], Outcome]]], device: str
) -> dict[str, tuple[float, Outcome]]:
    """Median milliseconds of every contender, and its results.

    The contenders take turns, so that other work on the machine affects all of them. The first turn
    is not measured. Up to 15 further turns follow, within about four seconds.
    """
    found = {name: timed(step, device) for name, step in steps.items()}
    turn = sum(ms for ms, _ in found.values())
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(max(3, min(15, int(4e3 / turn)))):
        for name, step in steps.items():
            found[name] = timed(step, device)
            times[name].append(found[name][0])
    return {name: (statistics.median(times[name]), found[name][1]()) for name in steps}


def compare(
    snapshots: list[tuple[int, Parameters, Tensor]],
    task: Task,
    contenders: dict[str, Hogwild | Published],
    device: str,
) -> dict[str, Record]:
    """Time every contender on every snapshot."""
    exact = Hogwild(task, solver=SemismoothNewton(atol=1e-13))
    judge = Published(task)
    records = {name: Record() for name in contenders}
    for epoch, parameters, h0 in snapshots:
        truth = exact.load(parameters, h0)()().gradients
        reference = torch.cat([g.flatten() for g in truth.values()])
        with torch.no_grad():
            w, b = parameters["conv.weight"][0], exact.model.conv.encoder(task.x)[0].T
        steps = {name: contender.load(parameters, h0) for name, contender in contenders.items()}
        for name, (ms, outcome) in measure(steps, device).items():
            flat = torch.cat([outcome.gradients[n].flatten() for n in truth])
            x = outcome.h.T
            left = torch.relu(torch.spmm(judge.a, (w @ x).T).T + b) - x
            record = records[name]
            record.ms.append(ms)
            record.iterations.append(outcome.iterations)
            record.adjoint_iterations.append(outcome.adjoint_iterations)
            record.residual_max.append(float(left.abs().amax()))
            record.gradient_error.append(float((flat - reference).norm() / reference.norm()))
            record.missed.append(outcome.missed)
            print(
                f"  epoch {epoch}, {name}: {ms:.2f} ms, {outcome.iterations} iterations, "
                f"residual {record.residual_max[-1]:.1e}, gradient off by "
                f"{record.gradient_error[-1]:.1e}" + (", missed" if outcome.missed else ""),
                flush=True,
            )
    return records


HEAD = ("cell", "contender", "ms", "× hogwild", "iterations", "residual left", "∇θ off by",
        "ran out")  # fmt: skip


def rows(cell: str, records: dict[str, Record]) -> list[list[str]]:
    """Lines of the Markdown table."""
    base = statistics.fmean(records["hogwild"].ms)
    out: list[list[str]] = []
    for name, r in records.items():
        ms, steps = r.time_and_steps()
        out.append(
            ["" if out else cell, name, f"{ms:.2f}", f"{ms / base:.1f}", steps,
             spread(r.residual_max), spread(r.gradient_error), f"{statistics.fmean(r.missed):.0%}"]
        )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cells",
        default=",".join(CELLS),
        help="comma-separated chains:LENGTH or proteins:GRAPHS; default: %(default)s",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--epochs", type=int, help="default: 1000 on chains, 300 on proteins")
    parser.add_argument("--samples", type=int, default=5, help="snapshots a cell; default: 5")
    parser.add_argument("--output", type=Path, help="folder for ignn.json and ignn.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    device = arguments.device

    results: dict[str, Any] = {"environment": environment(device), "cells": []}
    lines: list[list[str]] = []
    markdown = ""
    for text in arguments.cells.split(","):
        name, _, size = text.partition(":")
        if name not in ("chains", "proteins") or not size.isdecimal() or int(size) < 2:
            raise SystemExit(f"cell {text!r}; expected chains:LENGTH or proteins:GRAPHS")
        epochs = arguments.epochs or EPOCHS[name]
        samples = min(arguments.samples, epochs - 1)
        task = make_task(name, int(size))
        if task is None:
            print(f"{text}: no PROTEINS under $HOGWILD_DATA/TUDataset: skipped")
            continue
        task = task.to(device)
        print(f"{text}: {len(task.x)} nodes, {epochs} epochs, {samples} snapshots", flush=True)
        snapshots, epochs_ms = train(task, epochs, samples, device)
        contenders: dict[str, Hogwild | Published] = {
            "hogwild": Hogwild(task),
            "hogwild-cold": Hogwild(task, warm=False),
            "published": Published(task, csr=False),
            "published-csr": Published(task),
            "published-warm": Published(task, warm=True),
            "published-tight": Published(task, tight=True),
        }
        records = compare(snapshots, task, contenders, device)
        results["cells"].append(
            {
                "cell": text,
                "nodes": len(task.x),
                "edges": task.edge_index.size(1),
                "epochs": epochs,
                "snapshot_epochs": [epoch for epoch, *_ in snapshots],
                "epochs_ms": epochs_ms,
                "contenders": {label: asdict(record) for label, record in records.items()},
            }
        )
        lines += rows(f"{text}: {epochs} epochs, {len(snapshots)} snapshots", records)
        place = described(environment(device))
        markdown = f"Cost of an IGNN's training step ({place}).\n\n" + table(HEAD, lines)
        write(arguments.output, "ignn", results, markdown)  # write finished cells
    print("\n" + markdown)


if __name__ == "__main__":
    main()
