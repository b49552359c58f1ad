"""Say what is proved about a trained model under asynchrony, with its constants on its graphs.

A step of your own is compared with the certified one. Unlimited loss bounds no staleness, and no
theorem applies; --impair bernoulli-loss:rate=0.3,burst=5 does.
"""

from __future__ import annotations

import argparse

from hogwild.cli.common import Outcome, asynchrony_arguments, chosen
from hogwild.cli.flags import in_flags
from hogwild.cli.impair import impairments

EXAMPLES = """\
  hogwild certify runs/chains
  hogwild certify runs/chains --rule gradient --step certified
  hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01
  hogwild certify runs/chains --impair bernoulli-loss:rate=0.3,burst=5 --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.certify`."""
    asynchrony_arguments(parser)


def run(given: argparse.Namespace) -> Outcome:
    """Certify."""
    from hogwild.guarantee import certify

    found, impaired = chosen(given), impairments(given)
    seen = certify(
        found.model,
        found.graphs,
        given.stagger,
        given.delay,
        rule=given.rule,
        step=given.step,
        impairments=impaired,
    )
    data = seen.data | {"reason": in_flags(seen.reason, given)}
    data |= {"model": found.result.config.model, "stagger": given.stagger, "delay": given.delay}
    data["impairments"] = [repr(impairment) for impairment in impaired]
    return Outcome(in_flags(seen, given), data)
