"""``hogwild track``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild.cli.common import FILES, MODEL, RUNS, TIMING, Chosen, Outcome, Ruled, Timing, picture
from hogwild.cli.flags import in_flags
from hogwild.cli.options import option
from hogwild.errors import ConfigError

if TYPE_CHECKING:
    from hogwild.asynchrony.moving import Scenario

SCENARIOS = ("drift", "join-leave", "partition")
"""For the help, which must not wait for torch; a test compares them with what there is."""


@dataclass(frozen=True, kw_only=True)
class Options(Timing, Ruled):
    """Run a trained model asynchronously while its graph changes, and say how well nodes follow.

    Shows the distance from the exact answer of every moment, the lag, the recovery after changes,
    and what nodes send. A model that was trained on a task of sequences (moving-source,
    moving-swarm) follows a test sequence. Other models follow a test graph whose features drift
    (drift), whose nodes leave and come back (join-leave), or that falls apart and heals
    (partition). GCN and GAT need --restart, or --rule caching.

    Examples:
      hogwild track runs/source
      hogwild track runs/chains --scenario partition --plot errors.png
      hogwild track runs/chains --scenario join-leave --lease 20 --impair loss=0.3
      hogwild track runs/gcn --restart 30 --json
      hogwild track runs/source --animate run.gif --rerun run.rrd
    """

    scenario: str | None = option(
        None,
        f"what changes: {', '.join(SCENARIOS)}; by default, a test sequence of the task",
        group=MODEL,
        choices=SCENARIOS,
    )
    graph: int = option(0, "which of the replica's test graphs or test sequences", group=MODEL)
    changes: int = option(20, "changes in a scenario that is not of the task", group=MODEL)
    spacing: int = option(100, "ticks between two changes", group=TIMING)
    lease: int = option(
        0, "ticks for which a node counts on a neighbour that is gone", group=TIMING
    )
    restart: int | None = option(
        None, "all nodes begin anew after so many ticks (for layers)", group=TIMING
    )
    runs: int = option(1, "independent schedules", group=RUNS)
    seed: int = option(0, "the schedules and the scenario are functions of this number", group=RUNS)
    every: int = option(1, "record the error every so many ticks", group=RUNS)
    quiet: bool = option(False, "no progress bar")
    plot: str | None = picture("draw error and lag over time to this file")
    animate: str | None = option(
        None, "draw the run as a GIF to this file; needs positions", group=FILES, metavar="FILE"
    )
    rerun: str | None = option(
        None, "log the run to this file for Rerun (.rrd)", group=FILES, metavar="FILE"
    )


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.track`."""
    from hogwild.executors.track import track

    found = options.chosen()
    scenario, score = _scenario(options, found)
    given = options.passed(track) | {"scenario": scenario, "score": score}
    seen = track(found.model, **given)
    seen.advice = in_flags(seen.advice, options)
    if options.animate is not None:
        seen.animate(options.animate)
    if options.rerun is not None:
        seen.log(options.rerun)
    data = {
        "scenario": repr(scenario),
        **seen.summary(),
        "moves": seen.moves.tolist(),
        "recovery_ticks": seen.recovery().tolist(),
        "light_cone": seen.cone.as_dict(),
        "by_light_cones": seen.by_deadline() if seen.cone.crossed else None,
        "advice": seen.advice,
        "seconds": seen.seconds,
    }
    return options.outcome(found, seen, data)


def _scenario(options: Options, found: Chosen) -> tuple[Scenario, Any]:
    """The scenario that was asked for, and how predictions are measured on it."""
    from torch_geometric.data import Batch

    from hogwild.asynchrony.moving import Scenario
    from hogwild.asynchrony.scenarios import ON_GRAPHS
    from hogwild.tasks.moving import Sequences

    task = found.result.task
    tested = found.result.tested(found.replica)
    of_task = isinstance(task, Sequences) and options.scenario is None
    if options.scenario is None and not of_task:
        raise ConfigError(
            f"the task {task.name!r} has no sequences; expected --scenario, one of "
            f"{', '.join(SCENARIOS)}"
        )
    count = len(tested) // (task.moments if isinstance(task, Sequences) and of_task else 1)
    if not 0 <= options.graph < count:
        raise ConfigError(f"--graph {options.graph}; expected 0 to {count - 1}")
    if isinstance(task, Sequences) and of_task:
        number = int(tested[options.graph * task.moments]) // task.moments
        frames = [
            found.result.graph(number * task.moments + moment) for moment in range(task.moments)
        ]
        times = [options.spacing * moment for moment in range(task.moments)]
        length = options.spacing * task.moments

        def score(out: Any, data: Any) -> float:
            value = float(task.metric(out, Batch.from_data_list([data])))
            return 1.0 - value if task.higher_is_better else value

        score.__name__ = f"1 - {task.metric_name}" if task.higher_is_better else task.metric_name
        return Scenario(frames, times, length=length, name=task.name), score
    data = found.result.graph(int(tested[options.graph]))
    assert options.scenario is not None
    make = ON_GRAPHS[options.scenario]
    if options.scenario == "partition":
        gap = options.spacing
        return make(data, breaks=gap, heals=2 * gap, length=3 * gap), None
    return make(data, changes=options.changes, every=options.spacing, seed=options.seed), None
