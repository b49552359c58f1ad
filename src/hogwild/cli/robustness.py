"""What asynchrony costs a trained model: its predictions under random schedules.

Shows performance before and after, how far predictions move, the price (ticks, updates, packets,
bytes), what of it is proved, and what to do. Exit code 3: some runs did not end at the answer that
the model gives in step.
"""

from __future__ import annotations

import argparse

from hogwild.cli.common import (
    Outcome,
    asynchrony,
    asynchrony_arguments,
    chosen,
    schedule_arguments,
)
from hogwild.cli.flags import in_flags

EXAMPLES = """\
  hogwild robustness runs/chains
  hogwild robustness runs/chains --loss 0.3
  hogwild robustness runs/chains --rule gradient --runs 20 --delay 5 --json
  hogwild robustness runs/chains --impair crashes:rate=0.1,downtime=20 --impair reordering"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.robustness`."""
    asynchrony_arguments(parser)
    schedule_arguments(parser)


def run(given: argparse.Namespace) -> Outcome:
    """Measure."""
    from hogwild.analysis.robustness import robustness

    found = chosen(given)
    seen = robustness(found.model, found.graphs, **asynchrony(given))
    seen.verdict = in_flags(seen.verdict, given)
    data = {
        "model": found.result.config.model,
        "rule": seen.run.rule,
        "proved": seen.certificate.guaranteed,
        "verdict": seen.verdict,
        **seen.summary(),
    }
    return Outcome(str(seen), data, bool(seen.run.converged.all()))
