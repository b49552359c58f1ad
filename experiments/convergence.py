r"""Error against updates: how fast implicit models reach their answer.

The nodes of a trained model start from zero and follow one rule, all together (S = 1, D = 0) or
under the paper's random schedules (S = 5, D = 2). After :math:`u` updates per node (the expected
number: :math:`2t / (S + 1)` after t ticks) the *distance* is

.. math:: \max_i \|h_i(u) - h_i^*\|_\infty \big/ \max_i \|h_i^*\|_\infty

for every graph, where :math:`h^*` is the solver's answer. The *metric* is the task's metric of the
readout of :math:`h(u)`. Runs end within 10⁻⁸.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from experiments import figures, markdown, paper
from experiments.asynchronous import DELAY, SCHEDULES, STAGGER, exact, sample
from experiments.experiment import Work
from experiments.figures import NEAR, Figure
from experiments.record import Record
from hogwild.executors.simulate import simulate
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model
from hogwild.plots.style import BLUE, GREEN, INK, RED, figure
from hogwild.training import Result

UPDATES, QUICK_UPDATES = 5_000, 500
POINTS, TOL = 80, 1e-8
WAYS = {"synchronous": (1, 0, 1), "asynchronous": (STAGGER, DELAY, SCHEDULES)}
"""S, D and the number of schedules."""
LOOKS: dict[str, dict[str, Any]] = {
    "gradient": {"color": BLUE, "marker": "o"},
    "messages": {"color": RED, "marker": "s"},
    "fixed point": {"color": GREEN, "marker": "^"},
}
DASHES = {"synchronous": "solid", "asynchronous": (0, (3, 1.5))}


class Convergence(Figure):
    """Distance and metric against updates per node."""

    name = "convergence"
    title = "error against updates, in step and out of step"
    columns = ("chains", "counting", "coordinates")
    models = ("energy-edge", "energy-node", "energy-attention", "gsdgnn", "ignn")

    def brief(self, record: Record) -> str:
        parts = [f"{rule} {arrival(ways['asynchronous'], NEAR)}"
                 for rule, ways in record["curves"].items()]  # fmt: skip
        return "updates to 1e-3 out of step: " + ", ".join(parts)

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        names = {rule.replace(" ", "-"): rule for rule in LOOKS}
        ends = {name: partial(_end, rule=rule) for name, rule in names.items()}
        return ends | {f"{n}-updates": partial(_updates, rule=r) for n, r in names.items()}

    def measure(self, work: Work, column: str, model: str) -> Record:
        result = work.trained(column, model)
        began = time.perf_counter()
        replicas = figures.chosen(work, result)
        networks = {r: exact(result, r).to(work.device) for r in replicas}
        updates = QUICK_UPDATES if work.quick else UPDATES
        curves: Record = {}
        answers: list[float] = []
        for rule in figures.RULES[networks[replicas[0]].kind]:
            for way in WAYS:
                runs = [
                    approach(network, result, r, rule, way, updates)
                    for r, network in networks.items()
                ]
                answers = [answer for *_, answer in runs]
                curves.setdefault(rule, {})[way] = {
                    "updates": runs[0][0],
                    "distance": figures.band(torch.cat([distance for _, distance, *_ in runs], 1)),
                    "metric": figures.band(torch.cat([metric for *_, metric, _ in runs], 1)),
                }
        return {
            "metric": result.task.metric_name,
            "answer": answers,
            "curves": curves,
            "budget": updates,
            "replicas": replicas,
            **figures.about(result, began),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        def lines(record: Record) -> Iterator[list[str]]:
            for rule, ways in record["curves"].items():
                times = [arrival(ways[way], near) for way in WAYS for near in (NEAR, 1e-6)]
                last = [ways[way]["distance"]["median"][-1] for way in WAYS]
                shown = ("diverged" if d is None else f"{d:.0e}" for d in last)  # None: infinite
                yield [rule, *times, " / ".join(shown)]

        rows = self.listed(records, lines)
        head = ["task", "model", "rule", "in step: to 1e-3", "to 1e-6", "out of step: to 1e-3",
                "to 1e-6", "distance at the end"]  # fmt: skip
        limit = max((r["budget"] for r in records.values()), default=UPDATES)
        out = (
            "Updates a node until the median distance from the synchronous embeddings is so small "
        )
        out += f"(of at most {limit:,}); that distance at the end, in step / out of step.\n\n"
        out += markdown.table(head, rows)
        return out + (figures.QUICK if any(r["quick"] for r in records.values()) else "")

    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        with figure(8.4, 1.2 + 2.6 * len(self.columns), path) as fig:
            rows, columns = 2 * len(self.columns), len(self.models)
            axes = fig.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
            for number, model in enumerate(self.models):
                for line, column in enumerate(self.columns):
                    pair = axes[2 * line : 2 * line + 2, number]
                    self._panels(pair, records.get(f"{column}/{model}"), column)
                axes[0, number].set_title(figures.LABELS[model])
                axes[-1, number].set_xlabel("updates a node")
            for line, column in enumerate(self.columns):
                shown = paper.COLUMNS[column]
                axes[2 * line, 0].set_ylabel(f"{shown.heading}:\nrelative distance")
                axes[2 * line + 1, 0].set_ylabel(f"{shown.heading}:\nerror,{shown.unit}")
            figures.legend(fig, axes.flat, 3)

    def _panels(self, pair: np.ndarray, record: Record | None, column: str) -> None:
        """Draw the distance above and the metric below."""
        above, below = pair
        above.set(xscale="log", yscale="log", ylim=(TOL / 3, 30))
        if record is None:
            return
        scale = paper.COLUMNS[column].scale
        for rule, ways in record["curves"].items():
            for way, curve in ways.items():
                look = LOOKS[rule] | {"linestyle": DASHES[way], "markevery": 12}
                x = curve["updates"]
                figures.draw_band(above, x, curve["distance"], label=f"{rule}, {way}", **look)
                figures.draw_band(below, x, curve["metric"], scale, **look)
        answer = np.median([v for v in record["answer"] if v is not None] or [np.nan])
        below.axhline(answer * scale, color=INK, linewidth=0.5, label="the answer's error")


def approach(
    model: Model, result: Result, replica: int, rule: str, way: str, updates: int
) -> tuple[list[float], Tensor, Tensor, float]:
    """Updates per node [T], distances [T, runs · graphs], metrics [T, runs], final metric."""
    stagger, delay, runs = WAYS[way]
    pace = (stagger + 1) / 2
    times = [0, *np.unique(np.geomspace(1, updates * pace, POINTS).round().astype(int)).tolist()]
    device = next(model.parameters()).device
    graphs = [result.graph(i, torch.float64).to(device) for i in sample(result, replica)]
    run = simulate(
        model, graphs, stagger=stagger, delay=delay, runs=runs, rule=figures.option(rule),
        ticks=times[-1] + 1, tol=TOL, history=times, keep_embeddings=True,
    )  # fmt: skip
    assert run.history is not None
    assert run.embeddings is not None
    batch = Batch.from_data_list(graphs)

    def score(h: Tensor) -> Tensor:
        with torch.no_grad():
            return result.task.metric(model.read(h, Inputs.of(batch)), batch)

    metrics = torch.stack([torch.stack([score(h) for h in hs]) for hs in run.embeddings])
    distances = run.history.flatten(1)
    # Runs that have arrived stay there: later ticks have the final value.
    missing = len(times) - len(distances)
    ends = run.deviation.flatten().expand(missing, -1), metrics[-1:].expand(missing, -1)
    return (
        [t / pace for t in times],
        torch.cat([distances, ends[0]]).cpu(),
        torch.cat([metrics, ends[1]]).cpu().double(),
        float(score(run.reference)),
    )


def _end(record: Record, rule: str) -> str:
    """The median error at the end of the asynchronous runs, and the error of the answer."""
    column = paper.COLUMNS[record["config"]["task"]]
    last = record["curves"][rule]["asynchronous"]["metric"]["median"][-1]
    numbers = (last, np.nanmedian(np.array(record["answer"], float)))
    shown = ("no value" if v is None else f"{v * column.scale:.{column.digits}f}" for v in numbers)
    return "{}{unit} instead of {}".format(*shown, unit=column.unit)


def _updates(record: Record, rule: str) -> str:
    """Updates per node until the median asynchronous run has arrived."""
    return arrival(record["curves"][rule]["asynchronous"], NEAR, ",.0f")


def arrival(curve: Record, near: float, style: str = ".3g") -> str:
    """Updates per node after which the median distance is at most ``near``."""
    pairs = zip(curve["updates"], curve["distance"]["median"], strict=True)
    return next((f"{u:{style}}" for u, d in pairs if d is not None and d <= near), "not reached")
