"""``hogwild simulate``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import (
    BY,
    METRICS,
    MODEL,
    RUNS,
    Clocked,
    Outcome,
    Schedules,
    Setting,
    Traced,
    picture,
)
from hogwild.cli.options import option


@dataclass(frozen=True, kw_only=True)
class Options(Traced, Clocked, Schedules, Setting):
    """Run a trained model asynchronously, and compare with its synchronous answer.

    Every node updates at its own pace, with packets that are late or lost. The runs end when all
    have the synchronous answer, or after --ticks. --impair adds what else goes wrong on a network.
    --record keeps a schedule, and --replay follows it, bit for bit. Exit code 3: some runs did not
    arrive.

    Shows what the runs cost and the task's error by deadline: after so many ticks, updates, packets
    and bytes, beside the light cone, the fewest updates in which word can cross the graph.

    Examples:
      hogwild simulate runs/chains
      hogwild simulate runs/chains --impair loss=0.3 --impair stragglers=0.2,slowdown=10
      hogwild simulate runs/chains --rule gradient --step certified --ticks 100000
      hogwild simulate runs/chains --rule gradient --exchange exact --plot deviation.png
      hogwild simulate runs/chains --record schedule.npz --json
      hogwild simulate runs/chains --replay schedule.npz
    """

    history: int | None = option(
        None, "record the deviation every N ticks, for --json and --plot", group=RUNS
    )  # fmt: skip
    metric: str | None = option(None, BY, group=MODEL, choices=METRICS)
    plot: str | None = picture("draw the error by deadline and the deviation to this file")


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.simulate`."""
    from hogwild.executors.deadlines import check_tick
    from hogwild.executors.simulate import looks, simulate

    check_tick(options.tick)
    found = options.chosen()
    given = options.passed(simulate)
    if options.plot is not None and options.history is None:
        given["history"] = [t for t in range(options.ticks) if looks(t)]  # which costs nothing
    seen = simulate(found.model, found.some(options.graphs), **given)
    seen.deadlines.tick = options.tick
    data = {
        "rule": seen.rule,
        "converged": seen.converged.tolist(),
        "deviation": seen.deviation.tolist(),
        **vars(seen.price),
        "total_packets": int(seen.packets.sum()),
        "assumptions": seen.assumptions,
        "seconds": seen.seconds,
        "deadlines": seen.deadlines.as_dict(),
    }
    if options.history is not None and seen.history is not None:
        data["history"] = {"ticks": seen.history_ticks, "deviation": seen.history.tolist()}
    return options.outcome(found, seen, data, bool(seen.converged.all()))
