"""Train a GCN, a GAT and an energy GNN, run them out of step and with 30 % of the packets lost, and
write a report: about three minutes of one core, nothing to download."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hogwild.cli.common import Outcome
from hogwild.errors import ConfigError

EXAMPLES = """\
  hogwild demo
  hogwild demo --quick --output quick.html
  hogwild demo --seed 1"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, how much, which seed."""
    parser.add_argument("--output", default="report.html", help="page; default: report.html")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument(
        "--seed", type=int, default=0, help="of graphs, weights and schedules; default: 0"
    )


def run(given: argparse.Namespace) -> Outcome:
    """Show."""
    from hogwild.demo import QUICK, Scale, demo

    if given.seed < 0:
        raise ConfigError(f"--seed {given.seed}; expected a nonnegative integer")
    found = demo(
        given.output,
        QUICK if given.quick else Scale(),
        given.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        progress=not given.json and sys.stderr.isatty(),
    )
    where = Path(given.output).absolute()
    text = f"\n{found.table()}\n\nOpen {where.as_uri()} in a browser: the pictures, in plain words."
    good = all(r.converged == 1 for r in found.results["energy-edge"].values())
    return Outcome(text, {**found.as_dict(), "report": str(where)}, good)
