"""Say what is proved about a trained model under asynchrony, with its constants on its graphs."""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen, value
from hogwild.guarantee import certify

HELP = "what is proved about a trained model"
EXAMPLES = """\
  hogwild certify runs/chains
  hogwild certify runs/chains --rule gradient --step certified
  hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01 --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.certify`."""
    asynchrony_arguments(parser)
    parser.add_argument("--rule", default="auto", help="what nodes do; default: auto")
    parser.add_argument("--step", type=value, default="auto", help="auto, certified or a number")


def run(given: argparse.Namespace) -> Outcome:
    """Certify."""
    found = chosen(given)
    seen = certify(
        found.model, found.graphs, given.stagger, given.delay, rule=given.rule, step=given.step
    )
    return Outcome(str(seen), {"model": found.result.config.model, **seen.data})
