"""``hogwild robustness``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import (
    BY,
    METRICS,
    MODEL,
    Clocked,
    Compared,
    Outcome,
    Schedules,
    Setting,
    Traced,
    picture,
)
from hogwild.cli.flags import in_flags
from hogwild.cli.options import option


@dataclass(frozen=True, kw_only=True)
class Options(Traced, Clocked, Compared, Schedules, Setting):
    """Measure what asynchrony costs a trained model: its predictions under random schedules.

    Shows performance before and after, how far predictions move, the price (ticks, updates,
    packets, bytes), the error by deadline, what of it is proved, and what to do. --compare runs
    other rules under the same schedules. hogwild sweep does so for many settings at once. Exit
    code 3: some runs did not end at the synchronous answer.

    Examples:
      hogwild robustness runs/chains
      hogwild robustness runs/chains --impair loss=0.3 --plot predictions.png
      hogwild robustness runs/chains --rule gradient --runs 20 --delay 5 --json
      hogwild robustness runs/chains --impair loss=0.3 --compare all
      hogwild robustness runs/chains --impair crashes=0.1,downtime=20 --impair reordering
    """

    metric: str | None = option(None, BY, group=MODEL, choices=METRICS)
    plot: str | None = picture(
        "draw performance, predictions and error by deadline of all schedules to this file"
    )


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.robustness`."""
    from hogwild.analysis.robustness import robustness
    from hogwild.executors.deadlines import check_tick
    from hogwild.executors.simulate import simulate

    check_tick(options.tick)
    found = options.chosen()
    given = options.passed(robustness, simulate) | {"compare": options.others}
    seen = robustness(found.model, found.some(options.graphs), **given)
    for one in seen.compared.values():
        one.tick = options.tick
    seen.verdict = in_flags(seen.verdict, options)
    seen.advice = in_flags(seen.advice, options)
    data = {
        "rule": seen.run.rule,
        "proved": seen.certificate.guaranteed,
        "verdict": seen.verdict,
        "advice": seen.advice,
        **seen.summary(),
        "deadlines": {name: one.as_dict() for name, one in seen.compared.items()},
        "left_out": seen.left_out,
    }
    return options.outcome(found, seen, data, bool(seen.run.converged.all()))
