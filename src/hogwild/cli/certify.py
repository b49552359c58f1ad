"""Say what is proved about a trained model under asynchrony, with its constants on its graphs.

A step of your own is compared with the certified one. Unlimited loss bounds no staleness, and no
theorem applies; --impair bernoulli-loss:rate=0.3,burst=5 does.
"""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen
from hogwild.cli.impair import impairments

EXAMPLES = """\
  hogwild certify runs/chains
  hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01
  hogwild certify runs/chains --impair bernoulli-loss:rate=0.3,burst=5 --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.certify`."""
    asynchrony_arguments(parser)


def run(given: argparse.Namespace) -> Outcome:
    """Certify."""
    from hogwild.guarantee import certify

    found = chosen(given)
    step = None if isinstance(given.step, str) else given.step
    seen = certify(
        found.model,
        found.graphs,
        given.stagger,
        given.delay,
        step=step,
        impairments=impairments(given),
    )
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
