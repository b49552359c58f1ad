"""Run a trained model asynchronously, and compare with its synchronous answer."""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen
from hogwild.executors.run import simulate
from hogwild.rules import RULES

HELP = "run a trained model asynchronously"
EXAMPLES = """\
  hogwild simulate runs/chains
  hogwild simulate runs/chains --stagger 10 --delay 5 --runs 20 --rule messages
  hogwild simulate runs/chains --record runs/chains/trace --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.simulate`."""
    asynchrony_arguments(parser)
    parser.add_argument("--runs", type=int, default=5, help="independent schedules; default: 5")
    parser.add_argument("--seed", type=int, default=0, help="of the schedules; default: 0")
    parser.add_argument("--rule", default="auto", help=f"auto (default), {', '.join(RULES)}")
    parser.add_argument("--ticks", type=int, default=20_000, help="at most; default: 20000")
    parser.add_argument("--tol", type=float, default=1e-6, help="relative; default: 1e-6")
    parser.add_argument("--record", metavar="FILE", help="write the schedule there")


def run(given: argparse.Namespace) -> Outcome:
    """Simulate."""
    found = chosen(given)
    seen = simulate(
        found.model,
        found.graphs,
        stagger=given.stagger,
        delay=given.delay,
        seed=given.seed,
        runs=given.runs,
        rule=given.rule,
        ticks=given.ticks,
        tol=given.tol,
        record=given.record or False,
    )
    data = {
        "model": found.result.config.model,
        "converged": seen.converged.tolist(),
        "deviation": seen.deviation.tolist(),
        "ticks": seen.ticks,
        "updates": float(seen.updates.double().mean()),
        "messages": int(seen.messages.sum()),
        "assumptions": seen.assumptions,
        "seconds": seen.seconds,
    }
    return Outcome(str(seen), data, bool(seen.converged.all()))
