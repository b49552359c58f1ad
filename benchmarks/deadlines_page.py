"""The figures and tables of docs/deadlines.md, from the records of ``benchmarks/deadlines.py``.

``python benchmarks/deadlines_page.py`` draws ``docs/figures/deadlines-TASK.png``, writes the tables
of all rows beside the records, and fills in the tables of ``docs/deadlines.md``. ``--check`` only
says whether texts would change.

The *frontier* of a task is, for every budget of updates (or bytes) a node, the least error that any
of the models has by then. A model is on the frontier where its error is within 1 % of it.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, table

from hogwild.files import write_atomically
from hogwild.plots.style import CYCLE, GREY, INK, figure, need
from hogwild.progress import shown, size

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FIGURES, RECORDS = DOCS / "deadlines.md", DOCS / "figures", RESULTS / "deadlines"
FIGURES_FROM_RECORDS = "../../../docs/figures"
Records = dict[str, dict[str, Any]]
TASKS = ("chains", "counting", "sums", "coordinates", "terrain", "mutag", "robots")
CONES = (1, 3, 10)
NAMES = {
    "energy-edge messages": "energy, messages",
    "energy-edge gradient": "energy, gradient steps",
    "energy-edge balls": "energy, balls",
    "energy-edge balls:3": "energy, balls of radius 3",
    "ignn fixed-point": "IGNN",
    "ignn balls": "IGNN, balls",
    "gcn overwriting": "GCN",
    "gcn-scheduled overwriting": "GCN, trained under schedules",
    "gcn resending": "GCN, resending",
    "gcn caching": "GCN, caching",
    "gat overwriting": "GAT",
    "gat-scheduled overwriting": "GAT, trained under schedules",
    "gat resending": "GAT, resending",
    "gat caching": "GAT, caching",
}
LOOKS = {  # colour, mark, dashes
    "energy-edge messages": (CYCLE[0], "o", "solid"),
    "energy-edge gradient": (CYCLE[0], "", (0, (1, 1.2))),
    "energy-edge balls": (CYCLE[5], "*", "solid"),
    "ignn fixed-point": (CYCLE[3], "D", (0, (1, 1))),
    "ignn balls": (CYCLE[3], "*", "solid"),
    "gcn caching": (CYCLE[1], "P", "solid"),
    "gat caching": (CYCLE[4], "X", (0, (4, 1, 1, 1))),
}
APART = 5
"""Budgets between which the best model stays named, in looks."""
NEAR = 0.01
"""On the frontier: the error is at most this share above the least."""
HEADING = """# Deadlines: all rows

Written by `python benchmarks/deadlines_page.py`; docs/deadlines.md says what the words mean.

## Light cones until within 5 %, and the error in step, after quick and full training

{}
## The error at each deadline

The bytes that a node has sent by then, and what it costs until the error stays within 5 % of the
error in step. A rule that has ended keeps its answer.

{}
"""


def records(folder: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """All records of a folder, in the order of the paper."""
    paths = {task: folder / f"{task}.json" for task in TASKS}
    return {task: json.loads(path.read_text()) for task, path in paths.items() if path.exists()}


def cost_and_error(run: dict[str, Any], record: dict[str, Any], cost: str) -> np.ndarray:
    """Costs and errors (lower is better) of all looks, [2, T]."""
    rows = [(row[cost], row["error"]) for row in run["looks"]]
    at, error = np.array(rows).T
    return np.stack([at, 1.0 - error if record["higher_is_better"] else error])


def error_at(curve: np.ndarray, budget: float) -> float:
    """The error at the last look within the budget."""
    return float(curve[1][np.searchsorted(curve[0], budget, "right") - 1])


def frontier(record: dict[str, Any], cost: str) -> dict[str, Any]:
    """Budgets, the least error at each of them, and the errors of all curves."""
    curves = {name: cost_and_error(run, record, cost) for name, run in record["runs"].items()
              if name in LOOKS}  # fmt: skip
    budgets = np.unique(np.concatenate([curve[0] for curve in curves.values()]))
    errors = {name: np.array([error_at(c, b) for b in budgets]) for name, c in curves.items()}
    return {"budgets": budgets, "errors": errors, "least": np.min([*errors.values()], 0)}


def draw(task: str, record: dict[str, Any]) -> None:
    """Error against updates and against bytes, the frontier in grey behind the curves."""
    percent = record["percent"]
    with figure(6.8, 3.5, FIGURES / f"deadlines-{task}.png") as fig:
        axes = fig.subplots(1, 2, sharey=True)
        for ax, cost in zip(axes, ("updates", "bytes"), strict=True):
            found = frontier(record, cost)
            seen = found["budgets"] > 0
            ax.plot(found["budgets"][seen], found["least"][seen], color=GREY, linewidth=6,
                    alpha=0.6, solid_capstyle="round", label="frontier", zorder=1)  # fmt: skip
            for name in LOOKS:
                if name not in record["runs"]:
                    continue
                at, error = cost_and_error(record["runs"][name], record, cost)
                colour, mark, dashes = LOOKS[name]
                keep = at > 0
                ax.plot(at[keep], error[keep], color=colour, linestyle=dashes, marker=mark,
                        markersize=3.5, markevery=max(1, int(keep.sum()) // 7), label=NAMES[name],
                        zorder=3)  # fmt: skip
            if cost == "updates":
                cone = next(iter(record["runs"].values()))["light_cone"]
                ax.axvspan(cone["updates_least"], cone["updates_most"], color=INK, alpha=0.12,
                           linewidth=0, label="light cone", zorder=0)  # fmt: skip
            ax.set_xscale("log")
            ax.set_xlabel(f"{cost} a node")
            ax.grid(axis="y", linewidth=0.3, color=INK, alpha=0.3)
        if "constant" in record:
            value = 1.0 - record["constant"] if record["higher_is_better"] else record["constant"]
            for ax in axes:
                ax.axhline(value, color=INK, linewidth=0.8, linestyle=(0, (1, 2)),
                           label="best constant answer")  # fmt: skip
        name = "error (1 − accuracy)" if record["higher_is_better"] else _metric(record)
        worst = max(_start(run, record) for run in record["runs"].values())
        share = record["higher_is_better"] or _metric(record) == "error"  # zero is not far away
        if not share and worst > 20 * frontier(record, "updates")["least"][-1]:
            axes[0].set_yscale("log")
        elif percent:
            axes[0].yaxis.set_major_formatter(need("matplotlib.ticker").PercentFormatter(1.0))
        axes[0].set_ylabel(name)
        lost = f", {record['loss']:.0%} of packets lost" if record["loss"] else ""
        fig.suptitle(f"{task}: S = {record['stagger']}, D = {record['delay']}{lost}", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)


def _start(run: dict[str, Any], record: dict[str, Any]) -> float:
    """The largest error that is drawn."""
    return float(cost_and_error(run, record, "updates")[1].max())


def _metric(record: dict[str, Any]) -> str:
    return str(next(iter(record["runs"].values()))["metric"])


def show(value: float, record: dict[str, Any]) -> str:
    """A value of the metric."""
    return f"{100 * value:.1f} %" if record["percent"] else f"{value:.3f}"


def rows_of(task: str, record: dict[str, Any]) -> str:
    """One row for each model and rule."""
    cone = next(iter(record["runs"].values()))["light_cone"]
    head = ("", "in step", *(f"{c} cone{'s' if c != 1 else ''}" for c in CONES),
            "bytes at 1, 3, 10", "within 5 %: light cones", "updates", "bytes")  # fmt: skip
    rows = []
    for name, label in NAMES.items():
        run = record["runs"].get(name)
        if run is None:
            continue
        at = [run["at_cones"][str(c)] for c in CONES]
        price = run["within"]["0.05"]
        costs = ["–", "–"] if price is None else [shown(price["updates"]), size(price["bytes"])]
        rows.append([
            label, show(run["synchronous"], record), *(show(look["error"], record) for look in at),
            ", ".join(size(look["bytes"]) for look in at), cones(run), *costs,
        ])  # fmt: skip
    lost = f", {record['loss']:.0%} of all packets lost" if record["loss"] else ""
    first = next(iter(record["runs"].values()))
    options = first["task_options"]
    small = f", {', '.join(f'{k} = {v}' for k, v in options.items())}" if options else ""
    about = (
        f"*{task}* ({_metric(record)}; {record['schedules']} schedules, S = {record['stagger']}, "
        f"D = {record['delay']}{lost}; at most {record['graphs']} held-out graphs{small}; "
        f"{first['replicas']} replicas, {first['epochs']} epochs for the energy). Light cone: "
        f"{shown(cone['updates'])} updates a node, {shown(cone['ticks'])} ticks, {cone['hops']} "
        f"hops at most."
    )
    return f"{about}\n\n{table(head, rows)}\n![{task}]({FIGURES_FROM_RECORDS}/deadlines-{task}.png)"


def spans(record: dict[str, Any], cost: str) -> str:
    """For which budgets an energy is on the frontier, and who is where it is not."""
    found = frontier(record, cost)
    energies = [n for n in found["errors"] if n.startswith("energy")]
    best = np.min([found["errors"][n] for n in energies], 0)
    on = best <= (1 + NEAR) * found["least"] + 1e-12
    budgets, unit = found["budgets"], (shown if cost == "updates" else size)
    if on[budgets > 0].all():
        return "at every budget"
    pieces: list[list[int]] = []  # budgets near each other that have the same best model
    best_of = [
        min(found["errors"], key=lambda n, i=i: found["errors"][n][i]) for i in range(len(on))
    ]
    for i in range(len(on)):
        if on[i] or budgets[i] <= 0:
            continue
        if pieces and i - pieces[-1][-1] <= APART and best_of[i] == best_of[pieces[-1][-1]]:
            pieces[-1].append(i)
        else:
            pieces.append([i])
    texts = []
    for piece in pieces:
        end = " on" if piece[-1] == len(on) - 1 else f" to {unit(budgets[piece[-1] + 1])}"
        texts.append(f"from {unit(budgets[piece[0]])}{end} ({NAMES[best_of[piece[0]]]})")
    return f"not {'; '.join(texts)}"


def frontiers(every: Records) -> str:
    """Where energies are on the frontier."""
    head = ("task", "error against updates a node", "error against bytes a node")
    costs = ("updates", "bytes")
    return table(head, [[task, *(spans(r, cost) for cost in costs)] for task, r in every.items()])


def goals(every: Records) -> str:
    """Light cones until within 5 %, by the rules of energies."""
    names = [name for name in NAMES if name.startswith("energy-edge")]
    lines = []
    for task, record in every.items():
        runs = [record["runs"].get(name) for name in names]
        lines.append([task, *("–" if run is None else cones(run) for run in runs)])
    return table(("task", *(NAMES[name] for name in names)), lines)


def balls(every: Records) -> str:
    """What balls cost until within 5 %, beside messages, and the errors after one light cone."""
    head = ("task", "bytes: messages", "balls", "nodes solved for",
            "error (MUTAG: accuracy) at 1 cone: messages", "balls")  # fmt: skip
    lines = []
    for task, record in every.items():
        runs = [record["runs"][f"energy-edge {rule}"] for rule in ("messages", "balls")]
        prices = [run["within"]["0.05"] for run in runs]
        bytes_ = ["–" if price is None else size(price["bytes"]) for price in prices]
        solves = "–" if prices[1] is None else shown(prices[1]["solved"])
        errors = [show(run["at_cones"]["1"]["error"], record) for run in runs]
        lines.append([task, *bytes_, solves, *errors])
    return table(head, lines)


def lengths(sizes: dict[str, Records]) -> str:
    """Light cones until within 5 %, and the error in step, at every length of training."""
    pairs = [(rule, size) for rule in ("messages", "gradient") for size in sizes]
    lines = []
    for task in TASKS:
        cells = []
        for rule, length in pairs:
            record = sizes[length][task]
            run = record["runs"][f"energy-edge {rule}"]
            cells.append(f"{cones(run)} ({show(run['synchronous'], record)})")
        lines.append([task, *cells])
    return table(("task", *(f"{rule}, {size}" for rule, size in pairs)), lines)


def cones(run: dict[str, Any]) -> str:
    """Light cones until within 5 %."""
    price = run["within"]["0.05"]
    return "never" if price is None else f"{price['ticks'] / run['light_cone']['ticks']:.1f}"


def report(check: bool) -> None:
    """Figures, the tables beside the records, and those of the page."""
    every = records()
    parts = {"frontiers": frontiers, "goals": goals, "balls": balls}
    text = PAGE.read_text("utf-8")
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        new = part(every)
        text, count = re.subn(pattern, lambda m, p=new: m[1] + p + m[2], text, flags=re.S)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for {name}; expected one")
    sizes = {"quick": records(RECORDS / "quick"), "full": every}
    beside = "\n\n".join(rows_of(task, record) for task, record in every.items())
    texts = {PAGE: text, RECORDS / "README.md": HEADING.format(lengths(sizes), beside)}
    for path, new in texts.items():
        if not check:
            write_atomically(path, new.encode())
        elif not path.exists() or path.read_text("utf-8") != new:
            raise SystemExit(f"{path} is not what {Path(__file__).name} writes; run it")
    for task, record in every.items() if not check else ():
        draw(task, record)


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("--check", action="store_true", help="whether texts would change")
    report(flags.parse_args().check)
