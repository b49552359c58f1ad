"""``hogwild sweep``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import (
    BY,
    FILES,
    METRICS,
    MODEL,
    TIMING,
    WRONG,
    Asynchrony,
    Compared,
    Outcome,
    Schedules,
    picture,
)
from hogwild.cli.flags import in_flags
from hogwild.cli.options import option

VALUES = (
    "decrease", "spread", "distance", "converged", "ticks", "updates", "packets", "bytes",
    "deadline", "deadline_bytes", "light_cone",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""


@dataclass(frozen=True, kw_only=True)
class Options(Compared, Schedules, Asynchrony):
    """Measure what asynchrony costs a trained model, over many settings at once.

    For every combination of --staggers, --delays and --losses: performance lost, how far
    predictions move, the share of runs that arrived, the price, the light cone, and what it costs
    to be within 5 % of the synchronous error. --compare runs other rules under the same
    schedules. Exit code 3: some runs did not end at the synchronous answer.

    Examples:
      hogwild sweep runs/chains
      hogwild sweep runs/chains --staggers 1,5 --delays 0,2 --losses 0,0.3 --json
      hogwild sweep runs/chains --latencies 0,5,20
      hogwild sweep runs/chains --rule gradient --plot map.png --value converged
      hogwild sweep runs/chains --losses 0,0.3 --compare gradient
    """

    staggers: tuple[int, ...] = option(
        (1, 2, 5, 10), "values of S", group=TIMING, keyword="stagger"
    )
    delays: tuple[int, ...] = option(
        (0, 2, 5), "values of D, the largest age of a packet", group=TIMING, keyword="delay"
    )
    latencies: tuple[int, ...] = option(
        (), "ages that all packets have in ticks, in place of --delays", group=TIMING
    )
    losses: tuple[float, ...] = option(
        (0.0,), "shares of packets that are lost", group=WRONG, keyword="rate"
    )
    metric: str | None = option(None, BY, group=MODEL, choices=METRICS)
    plot: str | None = picture("draw heat maps to this file")
    value: str | None = option(
        None, "what the heat maps show; by default, decrease, or spread where there is no target",
        group=FILES, choices=VALUES
    )  # fmt: skip


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.sweep`."""
    from hogwild.analysis.robustness import robustness
    from hogwild.analysis.sweep import sweep
    from hogwild.executors.simulate import simulate

    found = options.chosen()
    given = options.passed(sweep, robustness, simulate) | {"compare": options.others}
    seen = sweep(found.model, found.some(options.graphs), **given)
    seen.advice = in_flags(seen.advice, options)
    data = {"rule": seen.first.run.rule, "settings": seen.rows(), "advice": seen.advice}
    if options.compare:
        data["compared"] = seen.compared()
    good = all(bool(one.run.converged.all()) for one in seen.results.values())
    return options.outcome(found, seen, data, good, value=options.value)
