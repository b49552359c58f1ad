r"""What rules cost until the answer: energies on chains, energies beside layers.

``--measure chains``: energies of the paper's size are trained on chains of l = 10, 30 and 100 nodes
(the best of a few seeds) and run with S = 5, D = 2. The table counts the updates of a node until
the largest relative deviation from the synchronous embeddings first fell below 1e-3 and 1e-6 (means
over schedules; "—": some schedule did not get there), for gradient steps of one size (multiples of
1/λ_max at the solution, which no node knows), scaled by each node's own curvature (``auto``), of a
size for which convergence is proved (``certified``), and for messages. The *light cone* is the
number of updates of a node while information travels from one end of the chain to the other.

``--measure layers``: a GCN of the paper's size (five layers of width 10) under its four rules
(``overwriting``, ``resending``, ``caching``) and an energy under two are trained on
the same graphs and run on the same held-out graphs. The table counts a node's updates, packets and
kilobytes (four bytes a number) until all graphs are within 1e-6 of the synchronous answer. A node
that waits has a turn and makes no update; *turns to 1e-2* are one every (S + 1)/2 ticks. ``sums``
has random geometric graphs of 12 nodes, where five layers reach nearly every node; on ``chains``
of 20 nodes they do not.

Held-out graphs are drawn as in ``experiments``, a package in the root of the repository: run
``PYTHONPATH=. python benchmarks/rules.py`` there.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from harness import Record, limit_threads, or_dash, parser
from torch_geometric.data import Batch

import hogwild
from experiments.asynchronous import exact, sample
from hogwild import certify, simulate
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.executors.run import Run
from hogwild.tasks import Task, get

STAGGER, DELAY = 5, 2
TURN = (STAGGER + 1) / 2
"""Ticks between two turns of a node, on average."""


def chain(length: int, given: argparse.Namespace) -> tuple[Any, Batch]:
    """The best of a few energies trained on chains, and the chains."""
    task = get("chains", length=length)
    result = hogwild.train(task, model="energy-edge", epochs=given.epochs, replicas=given.seeds)
    data = Batch.from_data_list(list(task.graphs))
    data.x = data.x.double()
    return result.model.double(), data


# -- chains ---------------------------------------------------------------------------------------


def light_cone(length: int) -> float:
    """Updates of a node while information passes ``length - 1`` hops. A hop takes the wait until
    the receiver's turn, from a random moment, and the mean age of a packet."""
    gaps = range(1, STAGGER + 1)
    wait = sum(g * (g + 1) / 2 for g in gaps) / sum(gaps)
    return (length - 1) * (wait + DELAY / 2) / TURN


def first_below(run: Run, tol: float) -> float | None:
    """Mean over the runs of the updates of a node when the deviation first was below ``tol``."""
    assert run.history is not None
    below = run.history.amax(-1) <= tol  # [T, Q]
    if not bool(below.any(0).all()):
        return None
    ticks = torch.tensor(run.history_ticks, dtype=torch.float64)[below.int().argmax(0)]
    return float(ticks.mean()) / TURN


def chains(given: argparse.Namespace) -> None:
    """Rules and steps of energies on trained chains."""
    head = ("l", "condition number", "light cone, updates", "rule", "updates to 1e-3", "to 1e-6",
            "deviation at the end")  # fmt: skip
    title = (
        f"Updates a node until the answer, {given.runs} schedules, at most {given.ticks:,} ticks"
    )
    record = Record(given.output, "rules", title, head)
    for length in map(int, given.lengths.split(",")):
        model, data = chain(length, given)
        bounds = certify(model, data).constants
        low, high = bounds["smallest_eigenvalue"], bounds["largest_eigenvalue"]
        ways: dict[str, dict[str, Any]] = {
            f"constant, {m:g}/λ_max": {"step": m / high} for m in (0.5, 1.0, 1.5)
        }
        ways |= {"auto": {"rule": "gradient", "step": "auto"}, "certified": {"step": "certified"},
                 "messages": {"rule": "messages"}}  # fmt: skip
        for name, options in ways.items():
            run = simulate(
                model, data, stagger=STAGGER, delay=DELAY, runs=given.runs, history=3,
                ticks=given.ticks, tol=1e-6, **options,
            )  # fmt: skip
            found = {str(tol): first_below(run, tol) for tol in (1e-3, 1e-6)}
            left = float(run.deviation.max())
            cell = {"length": length, "rule": name, "updates": found, "condition": high / low,
                    "light_cone": light_cone(length), "left": left}  # fmt: skip
            counts = [or_dash(updates, ".0f") for updates in found.values()]
            record.add([str(length), f"{high / low:.0f}", f"{light_cone(length):.0f}", name,
                        *counts, f"{left:.0e}"], cell)  # fmt: skip


# -- layers ---------------------------------------------------------------------------------------

RULES = {
    "gcn": ("overwriting", "resending", "caching"),
    "energy-edge": ("gradient", "messages"),
}
SETTINGS = ((1, 0, 0.0), (5, 2, 0.0), (5, 2, 0.1), (5, 2, 0.3), (10, 5, 0.0))
TASKS: dict[str, tuple[dict[str, Any], tuple[tuple[int, int, float], ...]]] = {
    "sums": ({"num_graphs": 100, "sizes": 12, "graphs": "rgg"}, SETTINGS),
    "chains": ({"length": 20}, SETTINGS[1:4:2]),
}
GRAPHS = 6
"""Number of held-out graphs."""


def trained(task: Task, model: str, given: argparse.Namespace) -> tuple[Any, Batch]:
    """The best of a few seeds, and graphs that it has not seen (where the task holds out some)."""
    result = hogwild.train(task, model=model, epochs=given.epochs, replicas=given.seeds, seed=0)
    chosen = sample(result, result.best)[:GRAPHS]
    data = Batch.from_data_list([result.graph(i, torch.float64) for i in chosen])
    return exact(result, result.best), data


def price(
    task: Task, model: Any, data: Batch, rule: str, setting: tuple[int, int, float],
    given: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """One run of all graphs under several schedules."""
    stagger, delay, loss = setting
    run = simulate(
        model, data, stagger=stagger, delay=delay, rule=rule, runs=given.runs, history=1,
        ticks=given.ticks, tol=1e-6, impairments=BernoulliLoss(loss) if loss else (),
    )  # fmt: skip
    near = run.history.amax(-1) <= 1e-2  # [T, Q]
    soon = near.int().argmax(0).double().mean() / ((stagger + 1) / 2)
    with torch.no_grad():
        sync = task.metric(model(data.x, data.edge_index, None, data.batch), data)
        each = [float(task.metric(out, data)) for out in run.predictions]
    return {
        "rule": rule, "stagger": stagger, "delay": delay, "loss": loss,
        "arrived": bool(run.converged.all()),
        "turns to 1e-2": float(soon) if bool(near.any(0).all()) else None,
        "deviation": float(run.deviation.max()), "updates": float(run.updates.double().mean()),
        "packets": float(run.packets.double().mean()),
        "kilobytes": float(run.bytes.double().mean()) / 1e3,
        "synchronous error": float(sync), "error": sum(each) / len(each),
    }  # fmt: skip


def layers(given: argparse.Namespace) -> None:
    """Layers and energies, in updates, packets and bytes."""
    head = ("task", "S", "D", "loss", "model", "rule", "turns to 1e-2", "updates to 1e-6",
            "packets", "kB", "deviation at the end", "error in step → out of step")  # fmt: skip
    title = (
        f"A node's price until the answer, {given.runs} schedules, at most {given.ticks:,} ticks"
    )
    record = Record(given.output, "baselines", title, head)
    for name in given.tasks.split(","):
        options, settings = TASKS[name]
        task = get(name, **options)
        networks = {model: trained(task, model, given) for model in RULES}
        for setting in settings:
            for model, rule in ((m, r) for m, rules in RULES.items() for r in rules):
                c = {"task": name, "model": model}
                c |= price(task, *networks[model], rule, setting, given)
                counts = [c[key] for key in ("updates", "packets", "kilobytes")]
                counts = counts if c["arrived"] else [None] * 3
                record.add([
                    name, str(c["stagger"]), str(c["delay"]), f"{c['loss']:.0%}",
                    "GCN" if model == "gcn" else "energy", rule, or_dash(c["turns to 1e-2"], ".0f"),
                    *map(or_dash, counts), f"{c['deviation']:.0e}",
                    f"{c['synchronous error']:.1%} → {c['error']:.1%}",
                ], c)  # fmt: skip


MEASURES = {"chains": chains, "layers": layers}


def main() -> None:
    flags = parser(__doc__, "rules or baselines")
    flags.add_argument("--measure", default="chains", choices=MEASURES)
    flags.add_argument("--lengths", default="10,30,100", help="of chains; default: %(default)s")
    flags.add_argument("--tasks", default=",".join(TASKS), help="of layers; default: %(default)s")
    flags.add_argument("--epochs", type=int, default=1000, help="of training; %(default)s")
    flags.add_argument("--seeds", type=int, default=4, help="of training; %(default)s")
    flags.add_argument("--runs", type=int, default=5, help="schedules; default: %(default)s")
    flags.add_argument("--ticks", type=int, default=4_000, help="at most; default: %(default)s")
    given = flags.parse_args()
    limit_threads(given.threads)
    MEASURES[given.measure](given)


if __name__ == "__main__":
    main()
