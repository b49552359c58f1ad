"""Gradient steps in time: ways to take them, side by side.

The quickly trained energies of ``benchmarks/deadlines.py`` on tasks with small diameter run under
the same schedules with steps that differ in one thing each. The table has, for every task, the
light cones until the error is within 5 % of that in step, and the largest relative deviation of an
embedding after ten light cones (a smaller one is better also where classes hide it). The ways:

* ``auto``: ``step="auto"``; ``momentum``: ``step="momentum"``;
* ``fresh``: as ``auto``, but the node's own part of the gradient is of its turn;
* ``old part``: momentum whose own part of the gradient is of the last update;
* ``corrected``: momentum whose neighbours' parts are corrected, by the curvature that they sent,
  for what the node has moved since the neighbours heard of it (they send g − B h instead of g);
* ``no restart``: momentum without restarts; ``half restart``: a restart halves the pace;
* ``no watch``: momentum that does not watch its swings;
* ``less pace``, ``more pace``: β of 0.6 and 0.9; ``small steps``, ``large steps``: ω of 0.6 and 1.

Run ``PYTHONPATH=. python benchmarks/steps.py --work FOLDER --output
benchmarks/results/cpu/steps.json`` in the root of the repository.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from hogwild.files import write_atomically
from hogwild.ops import mv
from hogwild.problems.base import Objective
from hogwild.rules import register
from hogwild_node.rules.base import to_self
from hogwild_node.rules.gradient import FALL, LARGEST, PACE, MomentumRule
from hogwild_node.star import Star

TASKS = ("coordinates", "terrain", "mutag", "robots")
RECORD = Path(__file__).parent / "results" / "cpu" / "steps.json"


@dataclass(frozen=True)
class Way:
    """How a variant differs from ``step="momentum"``."""

    pace: float = PACE
    damping: float = LARGEST
    restart: float = 1.0  # the share of the pace that a restart takes
    fresh: bool = True
    corrected: bool = False
    fall: float = FALL


WAYS = {
    "fresh": Way(pace=0.0, damping=0.6),
    "old part": Way(fresh=False),
    "corrected": Way(corrected=True),
    "no restart": Way(restart=0.0),
    "half restart": Way(restart=0.5),
    "no watch": Way(fall=1.0),
    "less pace": Way(pace=0.6),
    "more pace": Way(pace=0.9),
    "small steps": Way(damping=0.6),
    "large steps": Way(damping=1.0),
}


class Variant(MomentumRule):
    """Gradient steps of one of the ways."""

    def __init__(self, problem: Objective, way: Way) -> None:
        super().__init__(problem.node, problem.graph.everyone, problem.channels)
        self.way, self.damping = way, way.damping
        self.largest_pace, self.fall = way.pace, way.fall

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        letters: Tensor = super().refresh(h, inbox, at)
        if not self.way.corrected:
            return letters
        k, heard = self.channels, at.own_view(h, inbox)
        block = letters[:, k:].unflatten(1, (k, k))
        return torch.cat([letters[:, :k] - mv(block, heard), letters[:, k:]], 1)

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None
        own, k = at.at_nodes(self.own), self.channels
        if self.way.fresh:
            own, _ = to_self(*self.model.local(h, at.own_view(h, inbox), at), at)
        heard = at.collect(mail)
        g = own + heard[:, :k]
        if self.way.corrected:
            g = g + mv(heard[:, k:].unflatten(1, (k, k)), h)
        new: Tensor = self.moved(h, g, heard[:, k:], at)
        return new, self.refresh(new, inbox, at)

    def restarted(self, kept: Tensor) -> Tensor:
        return (1.0 - self.way.restart) * kept


def measured(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All ways on a task."""
    from deadlines import runs, trained, works  # which need the root of the repository

    result = trained(works(arguments.work, "quick", task), task, "energy-edge")
    names = {"auto": "gradient", "momentum": "momentum"} | {way: f"steps: {way}" for way in WAYS}
    out = {}
    for way, rule in names.items():
        many = (arguments.schedules, arguments.ticks, arguments.graphs)
        seen = next(iter(runs(result, task, (rule,), *many))).deadlines
        near = seen.within()
        out[way] = {
            "cones": None if near is None else seen.cones(near.ticks),
            "deviation": seen.at(cones=10)["deviation"],
            "error": seen.at(cones=10)["error"],
            "in step": float(seen.synchronous.mean()),
        }
        print(task, way, out[way], flush=True)
    return out


def table(record: dict[str, Any]) -> str:
    """A row for each way, for Markdown."""
    heads = ["way", *(f"{task}: light cones, deviation" for task in record)]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for way in next(iter(record.values())):
        cells = [record[task][way] for task in record]
        texts = ["never" if c["cones"] is None else f"{c['cones']:.1f}" for c in cells]
        found = [f"{t}, {c['deviation']:.2g}" for t, c in zip(texts, cells, strict=True)]
        lines.append("| " + " | ".join([way, *found]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--schedules", type=int, default=3)
    parser.add_argument("--graphs", type=int, default=10, help="held-out graphs")
    parser.add_argument("--ticks", type=int, default=600)
    parser.add_argument("--work", type=Path, help="folder of trained models, to go on with later")
    parser.add_argument("--output", type=Path, help="file of the record")
    parser.add_argument("--table", action="store_true", help="print the committed record only")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(RECORD.read_text())))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, way in WAYS.items():
        register(f"steps: {name}", lambda problem, way=way: Variant(problem, way))
    with TemporaryDirectory() as folder:
        arguments.work = Path(folder) if arguments.work is None else arguments.work
        record = {task: measured(task, arguments) for task in arguments.tasks}
    if arguments.output is not None:
        write_atomically(arguments.output, (json.dumps(record, indent=1) + "\n").encode())
    print(table(record))


if __name__ == "__main__":
    main()
