"""``hogwild robustness``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import MODEL, Outcome, Schedules, Setting, Traced, picture
from hogwild.cli.flags import in_flags
from hogwild.cli.options import option

METRICS = (
    "accuracy", "error", "mse", "rmse", "mae", "relative error", "micro-F1", "AP",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""
BY = "measure of performance; by default, accuracy for classes and rmse for numbers"


@dataclass(frozen=True, kw_only=True)
class Options(Traced, Schedules, Setting):
    """Measure what asynchrony costs a trained model: its predictions under random schedules.

    Shows performance before and after, how far predictions move, the price (ticks, updates,
    packets, bytes), what of it is proved, and what to do. hogwild sweep does so for many settings
    at once. Exit code 3: some runs did not end at the
    synchronous answer.

    Examples:
      hogwild robustness runs/chains
      hogwild robustness runs/chains --impair loss=0.3 --plot predictions.png
      hogwild robustness runs/chains --rule gradient --runs 20 --delay 5 --json
      hogwild robustness runs/chains --impair crashes=0.1,downtime=20 --impair reordering
    """

    metric: str | None = option(None, BY, group=MODEL, choices=METRICS)
    plot: str | None = picture("draw performance and predictions of all schedules to this file")


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.robustness`."""
    from hogwild.analysis.robustness import robustness
    from hogwild.executors.simulate import simulate

    found = options.chosen()
    seen = robustness(
        found.model, found.graphs(options.graphs), **options.passed(robustness, simulate)
    )
    seen.verdict = in_flags(seen.verdict, options)
    data = {
        "rule": seen.run.rule,
        "proved": seen.certificate.guaranteed,
        "verdict": seen.verdict,
        **seen.summary(),
    }
    return options.outcome(found, seen, data, bool(seen.run.converged.all()))
