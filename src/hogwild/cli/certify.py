"""Say what is proved about a trained model under asynchrony, with its constants on its graphs."""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen
from hogwild.guarantee import certify

HELP = "what is proved about a trained model"
EXAMPLES = """\
  hogwild certify runs/chains
  hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.certify`."""
    asynchrony_arguments(parser)
    parser.add_argument("--step", type=float, help="a step size you think of using")


def run(given: argparse.Namespace) -> Outcome:
    """Certify."""
    found = chosen(given)
    seen = certify(found.model, found.graphs, given.stagger, given.delay, step=given.step)
    data = {
        "model": found.result.config.model,
        "kind": str(seen.kind),
        "guaranteed": seen.guaranteed,
        "reason": seen.reason,
        "constants": seen.constants,
        "rate": seen.rate,
        "period": seen.period,
        "updates": seen.updates,
        "own_step": seen.own_step,
    }
    return Outcome(str(seen), data)
