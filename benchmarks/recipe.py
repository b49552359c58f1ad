r"""Defaults of training: the validation metric with each option at its default and beside it.

Every default of the recipe ``"default"`` that decides how well a model learns is varied alone, one
smaller and one larger value, on chains (classes from one end of a chain) and sums (numbers of a
whole chain). All replicas train for the same number of epochs, and the table has the mean and the
standard deviation of their validation metric in per cent; lower is better. A default should be as
good as the values beside it, up to the deviation.

Options that only trade time for certainty are not here: the largest number of epochs, and how often
parameters are judged, logged and stored.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from training_step import THREADS, limit_threads, publish

import hogwild
from hogwild.config import Config

VALUES: dict[str, tuple[float, ...]] = {
    "lr": (0.0015, 0.005, 0.015),
    "weight_decay": (0.0, 1e-4, 1e-2),
    "clip": (0.3, 1.0, math.inf),
    "penalty": (0.01, 0.1, 1.0),
}
TASKS: dict[str, dict[str, Any]] = {
    "chains": {"task_options": {"length": 20}},
    "sums": {"task_options": {"num_graphs": 100, "sizes": 20}, "folds": 5, "validation": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--options", default=",".join(VALUES), help="default: %(default)s")
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--replicas", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for recipe.json and recipe.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    rows: list[list[str]] = []
    cells: list[dict[str, Any]] = []
    markdown = ""
    head = ("task", "model", "option", "smaller", "default", "larger")
    title = f"Validation metric in % ({{}}; {arguments.replicas} replicas, "
    title += f"{arguments.epochs} epochs)."
    for task in arguments.tasks.split(","):
        for option in arguments.options.split(","):
            # Only Scarselli's model has a penalty.
            model = "scarselli" if option == "penalty" else "energy-edge"
            assert getattr(Config(), option) == VALUES[option][1]
            shown = []
            for value in VALUES[option]:
                began = time.perf_counter()
                found = hogwild.train(
                    task, model=model, epochs=arguments.epochs, replicas=arguments.replicas,
                    **TASKS[task], **{option: value},
                ).metrics["val"].double()  # fmt: skip
                cells.append({
                    "task": task, "model": model, "option": option, "value": str(value),
                    "metric": found.tolist(), "seconds": time.perf_counter() - began,
                })  # fmt: skip
                spread = float(found.std()) if len(found) > 1 else 0.0
                shown.append(f"{100 * float(found.mean()):.1f} ± {100 * spread:.1f} ({value:g})")
            rows.append([task, model, option, *shown])
            print(rows[-1], flush=True)
            markdown = publish(arguments.output, "recipe", title, head, rows, cells)
    print(markdown)


if __name__ == "__main__":
    main()
