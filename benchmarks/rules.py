r"""Updates of a node until the asynchronous answer equals the synchronous one, by rule and step.

Energy GNNs of the paper's size are trained on chains of l = 10, 30 and 100 nodes (full batch,
default recipe, the best of a few seeds) and run from a cold start with S = 5, D = 2. The benchmark
counts the mean number of updates of a node when the largest relative deviation from the synchronous
embeddings first fell below 1e-3 and 1e-6. The numbers are means over the schedules; "—" means that
some schedule did not get there.

* ``constant``: gradient steps of one size, the best of a grid of multiples of 1/λ_max at the
  solution (which no node knows);
* ``auto``: gradient steps scaled by each node's own curvature block;
* ``certified``: gradient steps for which convergence is proved;
* ``messages``: quadratic messages over separators.

The *light cone* is the number of updates of a node while information travels from one end of the
chain to the other. A hop takes a mean wait of (S + 1)/2 ticks until the receiver's turn, corrected
for waiting times seen from a random moment, plus the mean age of a packet.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tasks import rgg
from torch import Tensor
from torch_geometric.data import Batch, Data
from training_step import THREADS, limit_threads, publish

import hogwild
from hogwild import GSDGNN, EnergyGNN, certify, simulate
from hogwild.executors.run import Run
from hogwild.tasks import get

STAGGER, DELAY = 5, 2
MULTIPLES = (0.5, 1.0, 1.5)


def light_cone(length: int) -> float:
    """Updates of a node while information passes ``length - 1`` hops."""
    gaps = range(1, STAGGER + 1)
    wait = sum(g * (g + 1) / 2 for g in gaps) / sum(gaps)  # from a random tick to the next update
    hop = wait + DELAY / 2
    return (length - 1) * hop / ((STAGGER + 1) / 2)


def first_below(run: Run, tol: float) -> float | None:
    """Mean over the runs of the updates of a node when the deviation first was below ``tol``."""
    assert run.history is not None
    below = run.history.amax(-1) <= tol  # [T, Q]
    if not bool(below.any(0).all()):
        return None
    ticks = torch.tensor(run.history_ticks, dtype=torch.float64)[below.int().argmax(0)]
    return float(ticks.mean()) / ((STAGGER + 1) / 2)


def grid(side: int) -> Tensor:
    """Edges of a square grid."""
    node = torch.arange(side * side).view(side, side)
    right = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
    down = torch.stack([node[:-1].flatten(), node[1:].flatten()])
    return torch.cat([right, down, right.flip(0), down.flip(0)], 1)


def cycles(arguments: argparse.Namespace) -> None:
    """Untrained models on graphs with cycles."""
    rows: list[list[str]] = []
    cells: list[dict[str, object]] = []
    for place, edges in (("grid, 8 × 8", grid(8)), ("random geometric, 100", rgg(100).edge_index)):
        for kind in (EnergyGNN, GSDGNN):
            torch.manual_seed(0)
            nodes = int(edges.max()) + 1
            model = kind(3, out_channels=2).double()
            data = Data(x=torch.randn(nodes, 3, dtype=torch.float64), edge_index=edges)
            for rule in ("gradient", "messages"):
                run = simulate(
                    model, data, stagger=STAGGER, delay=DELAY, runs=arguments.runs, history=3,
                    ticks=arguments.ticks, rule=rule,
                )  # fmt: skip
                found = {str(tol): first_below(run, tol) for tol in (1e-3, 1e-6)}
                cells.append({"graph": place, "model": kind.__name__, "rule": rule,
                              "updates": found})  # fmt: skip
                shown = ["—" if v is None else f"{v:.0f}" for v in found.values()]
                rows.append([place, kind.__name__, rule, *shown])
                print(rows[-1], flush=True)
    head = ("graph", "model, untrained", "rule", "updates to 1e-3", "to 1e-6")
    title = f"Graphs with cycles ({{}}; {arguments.runs} schedules)."
    publish(arguments.output, "rules-cycles", title, head, rows, cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="10,30,100", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=1500, help="of training; %(default)s")
    parser.add_argument("--seeds", type=int, default=4, help="of training; %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="schedules; default: %(default)s")
    parser.add_argument(
        "--ticks", type=int, default=20_000, help="given up after; default: %(default)s"
    )
    parser.add_argument(
        "--cycles", action="store_true", help="untrained models on graphs with cycles instead"
    )
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for rules.json and rules.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    if arguments.cycles:
        return cycles(arguments)
    cells: list[dict[str, object]] = []
    rows: list[list[str]] = []
    markdown = ""
    for length in map(int, arguments.lengths.split(",")):
        task = get("chains", length=length)
        result = hogwild.train(
            task, model="energy-edge", epochs=arguments.epochs, replicas=arguments.seeds
        )
        model = result.model
        assert isinstance(model, EnergyGNN)
        data = Batch.from_data_list(task.graphs)
        data.x = data.x.to(next(model.parameters()).dtype)
        bounds = certify(model, data).constants
        low, high = bounds["smallest_eigenvalue"], bounds["largest_eigenvalue"]
        contenders: dict[str, dict[str, Any]] = {
            f"constant, {m:g}/λ_max": {"step": m / high} for m in MULTIPLES
        }
        contenders |= {
            "auto": {"rule": "gradient", "step": "auto"},
            "certified": {"step": "certified"},
            "messages": {"rule": "messages"},
        }
        for name, options in contenders.items():
            run = simulate(
                model, data, stagger=STAGGER, delay=DELAY, runs=arguments.runs, history=3,
                ticks=arguments.ticks, tol=1e-6, **options,
            )  # fmt: skip
            found = {str(tol): first_below(run, tol) for tol in (1e-3, 1e-6)}
            cells.append({
                "length": length, "rule": name, "updates": found, "condition": high / low,
                "light_cone": light_cone(length), "left": float(run.deviation.max()),
                "error": float(result.metrics["train"].min()),
            })  # fmt: skip
            shown = ["—" if v is None else f"{v:.0f}" for v in found.values()]
            rows.append([
                str(length), f"{high / low:.0f}", f"{light_cone(length):.0f}", name, *shown,
                f"{float(run.deviation.max()):.0e}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
            head = ("l", "condition number", "light cone, updates", "rule", "updates to 1e-3",
                    "to 1e-6", "deviation at the end")  # fmt: skip
            title = f"Updates a node until the answer ({{}}; {arguments.runs} schedules, given up "
            title += f"after {arguments.ticks:,} ticks)."
            markdown = publish(arguments.output, "rules", title, head, rows, cells)
    print(markdown)


if __name__ == "__main__":
    main()
