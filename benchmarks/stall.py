r"""When runs with wrong packets end: the margin by which a run must come nearer to count as moving.

Packets are quantised, so that runs end near the answer and not at it. A simulation gives them up
when no distance has fallen by the margin for half of all ticks (``hogwild.executors.watch.Stall``).
For every margin the table has the mean tick at which runs ended, and how much farther from the
answer they then were than after ``--ticks`` ticks: 1 means that waiting longer would not help. Runs
under messages arrive quickly; gradient steps on a long chain are slow, and a large margin could end
them too early. With losses and reordering the distances may rise and fall, and a small margin could
keep runs from ending.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from training_step import THREADS, limit_threads, publish

from hogwild import EnergyGNN, simulate
from hogwild.asynchrony import BernoulliLoss, Quantisation, Reordering
from hogwild.executors import watch
from hogwild.tasks import get

MARGINS = (0.0, 0.001, 0.01, 0.1)
LOSSY = (BernoulliLoss(0.3), Reordering(0.3))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=20, help="of a chain; default: %(default)s")
    parser.add_argument("--unit", type=float, default=1e-3, help="of packets; default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="schedules; default: %(default)s")
    parser.add_argument("--ticks", type=int, default=6000, help="default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for stall.json and stall.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    data = get("chains", length=arguments.length).graphs[0]
    data.x = data.x.double()
    torch.manual_seed(0)
    model = EnergyGNN(data.x.size(1), out_channels=1, beta=0.5).double()
    rows: list[list[str]] = []
    cells: list[dict[str, object]] = []
    markdown = ""
    head = (
        "rule",
        "packets are",
        "margin",
        "last tick",
        "deviation at the end",
        "× that after all ticks",
    )
    title = f"Runs with packets rounded to {arguments.unit:g} ({{}}; {arguments.runs} schedules)."
    for rule, more in product(("messages", "gradient"), ((), LOSSY)):
        options: dict[str, Any] = {
            "rule": rule, "runs": arguments.runs, "ticks": arguments.ticks,
            "impairments": (Quantisation(arguments.unit), *more),
        }  # fmt: skip
        packets = "rounded, lost, reordered" if more else "rounded"
        longest = float(simulate(model, data, tol=None, **options).deviation.max())
        for margin in MARGINS:
            with mock.patch.object(watch, "MARGIN", margin):
                run = simulate(model, data, tol=1e-12, **options)
            left = float(run.deviation.max())
            cells.append({"rule": rule, "packets": packets, "margin": margin, "ticks": run.ticks,
                          "deviation": left, "after_all": longest})  # fmt: skip
            rows.append([rule, packets, f"{margin:g}", f"{run.ticks:,}", f"{left:.1e}",
                         f"{left / longest:.2f}"])  # fmt: skip
            print(rows[-1], flush=True)
            markdown = publish(arguments.output, "stall", title, head, rows, cells)
    print(markdown)


if __name__ == "__main__":
    main()
