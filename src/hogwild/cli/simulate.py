"""Run a trained model asynchronously, and compare with its synchronous answer.

Every node updates at its own pace, with messages that are late or lost; the runs end when all are
at the answer that the model gives in step, or after --ticks. Exit code 3: some did not arrive.
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

EXAMPLES = """\
  hogwild simulate runs/chains
  hogwild simulate runs/chains --loss 0.3 --impair stragglers:fraction=0.2,slowdown=10
  hogwild simulate runs/chains --rule gradient --step certified --ticks 100000
  hogwild simulate runs/chains --record runs/chains/trace --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`hogwild.simulate`."""
    asynchrony_arguments(parser)
    schedule_arguments(parser)
    parser.add_argument("--record", metavar="FILE", help="write the schedule there")


def run(given: argparse.Namespace) -> Outcome:
    """Simulate."""
    from hogwild.executors.run import simulate

    found = chosen(given)
    seen = simulate(found.model, found.graphs, record=given.record or False, **asynchrony(given))
    data = {
        "model": found.result.config.model,
        "rule": seen.rule,
        "converged": seen.converged.tolist(),
        "deviation": seen.deviation.tolist(),
        **vars(seen.price),
        "messages": int(seen.messages.sum()),
        "assumptions": seen.assumptions,
        "seconds": seen.seconds,
    }
    return Outcome(str(seen), data, bool(seen.converged.all()))
