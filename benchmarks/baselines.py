r"""What an exact answer costs under asynchrony: layers under four rules, an energy under two.

A GCN of the paper's size (five layers of width 10) and an energy GNN are trained on the same
graphs. Both run on held-out graphs under the same schedules:

* ``overwriting``: the paper's rule, one value per node;
* ``waiting``: a node waits for its neighbours' values of its current layer, which are sent once;
* ``resending``: the same, and every value is sent until it is acknowledged;
* ``caching``: a node recomputes all layers from its neighbours' newest values of all layers;
* ``gradient``, ``messages``: the energy GNN, by gradient steps (step "auto") and by messages.

The benchmark counts the updates of a node, its packets and their kilobytes (four bytes per number)
until its graph is within 1e-6 (relative) of the synchronous answer. Graphs are examined after every
tick. The numbers are means over nodes, graphs and schedules; "—" means that some graph did not get
there. A node that waits has a turn and makes no update. *Turns to 1e-2* are turns, one every (S +
1)/2 ticks, until the answer is good enough for most purposes. The error is the task's error at the
end, synchronous and asynchronous.

There are two tasks: *sums* on random geometric graphs of 12 nodes, where five layers reach nearly
every node, and *chains* of 20 nodes, where five layers do not reach every node.

The held-out graphs are drawn as in ``experiments``, a package in the root of the repository. Run
``PYTHONPATH=. python benchmarks/baselines.py`` there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch
from training_step import THREADS, limit_threads, publish

import hogwild
from experiments.asynchronous import exact, sample
from hogwild import simulate
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.tasks import Task, get

RULES = {
    "gcn": ("overwriting", "waiting", "resending", "caching"),
    "energy-edge": ("gradient", "messages"),
}
SETTINGS = ((1, 0, 0.0), (5, 2, 0.0), (5, 2, 0.1), (5, 2, 0.3), (10, 5, 0.0))
TASKS: dict[str, tuple[dict[str, Any], tuple[tuple[int, int, float], ...]]] = {
    "sums": ({"num_graphs": 100, "sizes": 12, "graphs": "rgg"}, SETTINGS),
    "chains": ({"length": 20}, SETTINGS[1:4:2]),
}
GRAPHS = 6
"""Number of held-out graphs."""
SEEDS = 2
"""Number of trained seeds; the best one runs."""


def trained(task: Task, model: str, epochs: int) -> tuple[Any, Batch]:
    """The best of a few seeds, and graphs that it has not seen (where the task holds out some)."""
    result = hogwild.train(task, model=model, epochs=epochs, replicas=SEEDS, seed=0)
    chosen = sample(result, result.best)[:GRAPHS]
    data = Batch.from_data_list([result.graph(i, torch.float64) for i in chosen])
    return exact(result, result.best), data


def measured(
    task: Task, model: Any, data: Batch, rule: str, setting: tuple[int, int, float], arguments: Any
) -> dict[str, Any]:
    """One run of all graphs under several schedules."""
    stagger, delay, loss = setting
    run = simulate(
        model, data, stagger=stagger, delay=delay, rule=rule, runs=arguments.runs, history=1,
        ticks=arguments.ticks, tol=1e-6, impairments=BernoulliLoss(loss) if loss else (),
    )  # fmt: skip
    arrived = bool(run.converged.all())
    near = run.history.amax(-1) <= 1e-2  # [T, Q]
    soon = near.int().argmax(0).double().mean() / ((stagger + 1) / 2)
    with torch.no_grad():
        sync = task.metric(model(data.x, data.edge_index, None, data.batch), data)
        each = [float(task.metric(out, data)) for out in run.predictions]
    return {
        "rule": rule,
        "stagger": stagger,
        "delay": delay,
        "loss": loss,
        "arrived": arrived,
        "turns to 1e-2": float(soon) if bool(near.any(0).all()) else None,
        "deviation": float(run.deviation.max()),
        "updates": float(run.updates.double().mean()),
        "packets": float(run.packets.double().mean()),
        "kilobytes": float(run.bytes.double().mean()) / 1e3,
        "synchronous error": float(sync),
        "error": sum(each) / len(each),
    }


HEAD = ("task", "S", "D", "loss", "model", "rule", "turns to 1e-2", "updates to 1e-6", "packets",
        "kB", "deviation at the end", "error in step → out of step")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=300, help="of training; %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="schedules; default: %(default)s")
    parser.add_argument(
        "--ticks", type=int, default=3_000, help="given up after; default: %(default)s"
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for baselines.json and baselines.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    title = f"A node's price until the answer ({{}}; {arguments.runs} schedules, given up "
    title += f"after {arguments.ticks:,} ticks)."
    cells: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    markdown = ""
    for name in arguments.tasks.split(","):
        options, settings = TASKS[name]
        task = get(name, **options)
        networks = {model: trained(task, model, arguments.epochs) for model in RULES}
        for setting in settings:
            for model, rules in RULES.items():
                for rule in rules:
                    found = {"task": name, "model": model}
                    found |= measured(task, *networks[model], rule, setting, arguments)
                    cells.append(found)
                    counts = [f"{found[key]:.1f}" for key in ("updates", "packets", "kilobytes")]
                    soon = found["turns to 1e-2"]
                    rows.append([
                        name, str(setting[0]), str(setting[1]), f"{setting[2]:.0%}",
                        "GCN" if model == "gcn" else "energy", rule,
                        "—" if soon is None else f"{soon:.0f}",
                        *(counts if found["arrived"] else ["—"] * 3),
                        f"{found['deviation']:.0e}",
                        f"{found['synchronous error']:.1%} → {found['error']:.1%}",
                    ])  # fmt: skip
                    print(rows[-1], flush=True)
        markdown = publish(arguments.output, "baselines", title, HEAD, rows, cells)
    print(markdown)


if __name__ == "__main__":
    main()
