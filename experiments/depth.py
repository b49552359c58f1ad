r"""How far information travels in trained models, and how many iterations this takes.

**Influence.** How much a node's embedding depends on the features of a node d hops away,

.. math:: I(d) = \operatorname{mean}_{j:\, d(i, j) = d}
          \Bigl\|\frac{\partial h_i}{\partial x_j}\Bigr\|_F \Big/
          \max_j \Bigl\|\frac{\partial h_i}{\partial x_j}\Bigr\|_F,

by implicit differentiation, at five nodes i from the first to the last of each graph. A model
*reaches* the largest d with I(d) of at least 10⁻³.

**Iterations.** Updates of every node, all together (S = 1, D = 0), until the embeddings are within
10⁻³ of the answer, for gradient steps, for messages and for a fixed point's own map. Explicit
models need as many as they have layers.

**Condition number** of an energy's Hessian at the solution, :math:`\lambda_{\max} /
\lambda_{\min}`, the largest over the graphs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from torch_geometric.data import Batch, Data

from experiments import figures, markdown, paper
from experiments.asynchronous import exact, limit
from experiments.experiment import Work
from experiments.figures import NEAR, Figure
from experiments.record import Record
from experiments.tables import ORDER
from hogwild.executors.simulate import simulate
from hogwild.graph.inputs import Inputs
from hogwild.linalg.spectrum import extremes, matrices
from hogwild.models.base import Model
from hogwild.models.layered import LayeredGNN
from hogwild.plots.style import figure
from hogwild.problems.base import Objective

GRAPHS, TARGETS = 2, 5
TICKS, QUICK_TICKS = 20_000, 2_000
MARKS = [0, 1, 3, 10, 30, 99]
"""Hops that are marked on the lines."""


class Depth(Figure):
    """Influence against hops, iterations, condition numbers."""

    name = "depth"
    title = "how far information travels in trained models"
    columns = ("chains", "counting", "sums")
    models = ORDER

    def brief(self, record: Record) -> str:
        return f"reaches {figures.shown(record['reach'])} hops"

    def measure(self, work: Work, column: str, model: str) -> Record:
        result = work.trained(column, model)
        began = time.perf_counter()
        ticks = QUICK_TICKS if work.quick else TICKS
        curves: list[Tensor] = []
        reach: list[int] = []
        iterations: dict[str, list[int | None]] = {}
        condition: list[float] = []
        replicas = figures.chosen(work, result)
        for replica in replicas:
            network = exact(result, replica).to(work.device)
            graphs = [g.to(work.device) for g in figures.largest(result, replica, GRAPHS)]
            found = [fade(network, g) for g in graphs]
            curves += [curve for some in found for curve in some]
            reach.append(max(reaches(c) for some in found for c in some))
            if isinstance(network, LayeredGNN):
                iterations.setdefault("layers", []).append(network.conv.num_layers)
            for rule in figures.RULES[network.kind]:
                run = simulate(
                    network, graphs, stagger=1, delay=0, tol=NEAR, history=1,
                    ticks=limit(rule, ticks, 1), rule=figures.option(rule),
                )  # fmt: skip
                there = bool((run.reached >= 0).all())
                iterations.setdefault(rule, []).append(int(run.reached.max()) if there else None)
            condition += conditioning(network, graphs)
        longest = max(len(c) for c in curves)
        lines = torch.full((longest, len(curves)), torch.nan, dtype=torch.float64)
        for number, curve in enumerate(curves):
            lines[: len(curve), number] = curve
        return {
            "replicas": replicas,
            "influence": figures.band(lines),
            "reach": reach,
            "iterations": iterations,
            "condition": condition,
            "ticks": ticks,
            **figures.about(result, began),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        def line(record: Record) -> list[str]:
            steps = record["iterations"]
            own = next(steps[key] for key in ("gradient", "fixed point", "layers") if key in steps)
            return [
                f"{figures.shown(record['reach'])} of {len(record['influence']['median']) - 1}",
                figures.shown(own),
                figures.shown(steps["messages"]) if "messages" in steps else "—",
                figures.shown(record["condition"], ".3g") if record["condition"] else "—",
            ]

        rows = self.listed(records, lambda record: [line(record)])
        head = ("task", "model", "reach, hops", "iterations to 1e-3", "by messages", "condition")
        count = max((len(r["replicas"]) for r in records.values()), default=figures.REPLICAS)
        most = max((r["ticks"] for r in records.values()), default=TICKS)
        out = f"Median (range) over {count} trained models; the farthest there could be "
        out += f'is after "of". Never: not within {most:,} updates a node, by messages '
        out += f"{limit('messages', most, 1):,}.\n\n"
        out += markdown.table(head, rows)
        return out + (figures.QUICK if any(record["quick"] for record in records.values()) else "")

    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        with figure(7.2, 2.7, path) as fig:
            axes = fig.subplots(1, len(self.columns), sharey=True)
            for ax, column in zip(axes, self.columns, strict=True):
                for model in self.models:
                    record = records.get(f"{column}/{model}")
                    if record is not None:
                        curve = record["influence"]
                        far = range(len(curve["median"]))
                        look = figures.LOOKS[model] | {"markevery": MARKS}
                        figures.draw_band(ax, far, curve, label=figures.LABELS[model], **look)
                ax.axhline(NEAR, color="black", linewidth=0.4)
                ax.set_title(paper.COLUMNS[column].heading)
                ax.set_yscale("log")
                ax.set_ylim(1e-8, 2)
                ax.set_xscale("symlog", linthresh=1)
                hops = [0, 1, 3, 10, 30, 100]
                ax.set_xticks(hops, [str(d) for d in hops], minor=False)
                ax.set_xticks([], minor=True)
                ax.set_xlim(0, 110)
                ax.set_xlabel("distance of the nodes, hops")
            axes[0].set_ylabel("influence on the embedding,\nrelative to the largest")
            figures.legend(fig, axes)


def fade(model: Model, data: Data) -> list[Tensor]:
    """Influence against hops, one curve [d] for each of a few nodes."""
    n = int(data.num_nodes or 0)
    targets = torch.linspace(0, n - 1, TARGETS).round().long().unique()
    size = influence(model, data, targets).cpu()  # [T, N]
    # A node whose units are all dead depends on no features, not even its own.
    relative = size / size.amax(1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
    assert data.edge_index is not None
    source, target = data.edge_index.cpu().numpy()
    links = coo_array((torch.ones(len(source)).numpy(), (source, target)), shape=(n, n))
    hops = torch.from_numpy(shortest_path(links, unweighted=True, indices=targets.numpy()))
    out = []
    for row, far in zip(relative, hops, strict=True):
        near = torch.isfinite(far)
        at = far[near].long()
        count = torch.bincount(at)
        out.append(torch.zeros(len(count), dtype=row.dtype).index_add_(0, at, row[near]) / count)
    return out


def reaches(curve: Tensor) -> int:
    """The largest number of hops at which the influence is large enough."""
    heard = (curve >= NEAR).nonzero()[:, 0].tolist()
    return max(heard, default=0)


def influence(model: Model, data: Data, targets: Tensor) -> Tensor:
    """‖∂h_i / ∂x_j‖ for the nodes i in ``targets`` and all j, [T, N].

    There is a copy of the graph for every entry of every h_i, so that one backward pass gives all
    entries.
    """
    n, count = int(data.num_nodes or 0), len(targets)
    with torch.no_grad():
        k = embed(model, data).size(-1)
    copies = Batch.from_data_list([data] * (count * k))
    copies.x.requires_grad_()
    h = embed(model, copies).view(count, k, n, k)
    t, c = torch.arange(count).unsqueeze(1), torch.arange(k)
    (gradient,) = torch.autograd.grad(h[t, c, targets.unsqueeze(1), c].sum(), copies.x)
    return gradient.view(count, k, n, -1).square().sum((1, 3)).sqrt()


def embed(model: Model, data: Data) -> Tensor:
    """Embeddings [N, k]."""
    return model.embed(Inputs.of(data)).value


def conditioning(model: Model, graphs: list[Data]) -> list[float]:
    """The largest condition number of the Hessian at the solution; ``None`` without an energy."""
    found = []
    for data in graphs:
        with torch.no_grad():
            problem = model.problem(Inputs.of(data))
            if not isinstance(problem, Objective):
                return []
            h = embed(model, data).mT.unsqueeze(0)
            limits = extremes(matrices(problem.evaluate(h).hessian())[0])
        low, high = limits or (float(problem.convexity()), float(problem.lipschitz()))
        found.append(high / low)
    return [max(found)]
