"""What asynchrony costs a trained model: its predictions under random schedules."""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen
from hogwild.robustness import robustness

HELP = "what asynchrony costs a trained model"
EXAMPLES = """\
  hogwild robustness runs/chains
  hogwild robustness runs/chains --runs 20 --delay 5 --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.robustness`."""
    asynchrony_arguments(parser)
    parser.add_argument("--runs", type=int, default=5, help="independent schedules; default: 5")
    parser.add_argument("--seed", type=int, default=0, help="of the schedules; default: 0")
    parser.add_argument("--ticks", type=int, default=20_000, help="at most; default: 20000")


def run(given: argparse.Namespace) -> Outcome:
    """Measure."""
    found = chosen(given)
    seen = robustness(
        found.model,
        found.graphs,
        runs=given.runs,
        stagger=given.stagger,
        delay=given.delay,
        seed=given.seed,
        ticks=given.ticks,
    )
    data = {"model": found.result.config.model, "verdict": seen.verdict, **seen.summary()}
    return Outcome(str(seen), data)
