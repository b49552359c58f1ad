"""``hogwild demo``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from hogwild.cli.common import Outcome
from hogwild.cli.options import Verb, option
from hogwild.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options(Verb):
    """Show models in step and out of step, and write a report.

    Trains a GCN, a GAT and an energy GNN, and runs them out of step and with 30 % of the packets
    lost: about a minute of one core, nothing to download. The report is one page for a
    browser.

    Examples:
      hogwild demo
      hogwild demo --quick --output quick.html
      hogwild demo --seed 1
    """

    output: str = option("report.html", "page to write", metavar="FILE")
    quick: bool = option(False, "a smaller demo, with less training and fewer runs")
    seed: int = option(0, "seed of graphs, weights and schedules")


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.demo.demo`."""
    from hogwild.demo import QUICK, Scale, demo

    if options.seed < 0:
        raise ConfigError(f"--seed {options.seed}; expected a nonnegative integer")
    found = demo(
        options.output,
        QUICK if options.quick else Scale(),
        options.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        progress=not options.json and sys.stderr.isatty(),
    )
    where = Path(options.output).absolute()
    text = f"\n{found.table()}\n\nOpen {where.as_uri()} in a browser: the pictures, in plain words."
    text += "\nWatch it live, and kill a node yourself: hogwild serve (in a clone: make serve)"
    good = all(r.converged == 1 for r in found.results["soft"].values())
    return Outcome(text, {**found.as_dict(), "report": str(where)}, good)
