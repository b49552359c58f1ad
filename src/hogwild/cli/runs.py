"""``hogwild simulate``, ``robustness``, ``sweep``, ``certify`` and ``track``: a trained model under
asynchrony.

Most options are parameters of the functions of the same names. Impairments are given as ``--impair
loss=0.3 --impair crashes=0.1,downtime=20``, with the names and options of their own dataclasses
(:mod:`hogwild.asynchrony.impairments`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from hogwild.cli.common import (
    FEW,
    FILES,
    MANY,
    MODEL,
    NODES,
    ROOM,
    RUNS,
    TIMING,
    WRONG,
    Chosen,
    Outcome,
    Trained,
    picture,
)
from hogwild.cli.options import Verb, in_flags, option, parsed, taken, value
from hogwild.errors import ConfigError, among

if TYPE_CHECKING:
    from hogwild.asynchrony import Impairment
    from hogwild.asynchrony.moving import Scenario

SIMULATE, TRACK, ROBUSTNESS, SWEEP = (
    "executors/simulate.py:simulate", "executors/track.py:track",
    "analysis/robustness.py:robustness", "analysis/sweep.py:sweep",
)  # fmt: skip
RULES = (
    "messages", "gradient", "fixed-point", "balls", "caching", "overwriting",
    "resending",
)  # fmt: skip
METRICS = (
    "accuracy", "error", "mse", "rmse", "mae", "relative error", "micro-F1", "AP",
)  # fmt: skip
VALUES = (
    "decrease", "spread", "distance", "converged", "ticks", "updates", "packets", "bytes",
    "deadline", "deadline_bytes", "light_cone",
)  # fmt: skip
SCENARIOS = ("drift", "join-leave", "partition")
"""These four are for the help, which must not wait for torch; a test compares them with what there
is."""
BY = "measure of performance; by default, accuracy for classes and rmse for numbers"


# -- impairments -----------------------------------------------------------------------------------


def known_impairments() -> dict[str, str]:
    """The impairments' names on the command line and their options, as in the source."""
    out = {}
    for made in parsed("asynchrony/impairments.py").body:
        if isinstance(made, ast.ClassDef) and made.decorator_list and made.bases:
            lines = [s for s in made.body if isinstance(s, ast.AnnAssign) and s.value is not None]
            own = {ast.unparse(s.target): s for s in lines}
            name = re.sub(r"(?<!^)(?=[A-Z])", "-", made.name).lower()
            name = ast.literal_eval(own.pop("name").value or "") if "name" in own else name
            keys = [key for key, s in own.items() if "ClassVar" not in ast.unparse(s.annotation)]
            out[name] = ", ".join(keys)
    return dict(sorted(out.items()))


IMPAIR = (
    "what else goes wrong; may be repeated. NAME alone has its defaults, NAME=VALUE sets the first "
    "option, and further options follow with commas: loss=0.3,burst=5. Names and their options: "
    + "; ".join(f"{name} ({options})" for name, options in known_impairments().items())
)


def impairment(text: str) -> Impairment:
    """``NAME``, ``NAME=VALUE`` or ``NAME=VALUE,KEY=VALUE``; the value is that of the first key."""
    from hogwild.asynchrony.impairments import known

    head, *pairs = text.split(",")
    name, equals, first = head.partition("=")
    kinds: dict[str, Any] = dict(known())
    if name not in kinds:
        raise ConfigError(f"--impair {text}: unknown impairment {name!r}; {among(kinds, name)}")
    keys = [field.name for field in fields(kinds[name])]
    options: dict[str, Any] = {keys[0]: value(first)} if equals else {}
    for pair in pairs:
        key, equals, written = pair.partition("=")
        if not equals or key not in keys:
            raise ConfigError(
                f"--impair {text}: {pair!r} is no option of {name}; expected KEY=VALUE with a key "
                f"among {', '.join(keys)}"
            )
        options[key] = value(written)
    try:
        made: Impairment = kinds[name](**options)
        return made
    except ConfigError as error:
        # A keyword of the impairment is no flag of the verb: it keeps the impairment's name.
        said = re.sub(rf"(?<!\w)({'|'.join(keys)})=", rf"{name}.\1=", str(error))
        raise ConfigError(f"--impair {text}: {said}") from None


# -- options that verbs share ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ruled(Trained):
    """A trained model, its rule, and its impairments."""

    rule: str = option(
        "auto",
        "what a node does at its turn: auto (messages for energies, caching for layers), "
        f"{', '.join(RULES)}",
        group=NODES,
    )
    step: str | float = taken(SIMULATE, "step", NODES)
    radius: int | None = taken(SIMULATE, "radius", NODES)
    impair: tuple[str, ...] = option((), IMPAIR, group=WRONG, metavar="NAME[=VALUE]")

    def passed(self, *functions: Callable[..., Any]) -> dict[str, Any]:
        """Every option that is a parameter of one of these functions, by its name."""
        given = self.as_dict()
        given["impairments"] = tuple(map(impairment, self.impair))
        given["progress"] = not (self.json or given.get("quiet"))
        names = {name for function in functions for name in signature(function).parameters}
        return {name: value for name, value in given.items() if name in names}


@dataclass(frozen=True, kw_only=True)
class Graphs(Ruled):
    """Some of the test graphs."""

    graphs: int | None = option(
        None,
        f"how many of the replica's test graphs; by default {FEW}, or where a graph has one answer "
        f"{MANY} (fewer, if they have more than {ROOM:,} nodes)",
        group=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class Timing(Verb):
    """The bounds of one schedule."""

    stagger: int = taken(SIMULATE, "stagger", TIMING)
    delay: int = taken(SIMULATE, "delay", TIMING)


@dataclass(frozen=True, kw_only=True)
class Schedules(Verb):
    """How many runs, for how long."""

    runs: int = taken(SIMULATE, "runs", RUNS, default=5)
    seed: int = taken(SIMULATE, "seed", RUNS)
    ticks: int = taken(SIMULATE, "ticks", RUNS)
    tol: float | None = taken(SIMULATE, "tol", RUNS)
    quiet: bool = option(False, "no progress bar")
    metric: str | None = option(None, BY, group=MODEL, choices=METRICS)


@dataclass(frozen=True, kw_only=True)
class Recorded(Verb):
    """One schedule for all runs, in a file perhaps."""

    record: str | None = option(
        None, "write the schedule to this file", group=FILES, metavar="FILE"
    )
    replay: str | None = option(
        None,
        "follow the schedule in this file, on the same graphs and with as many --runs; "
        "--stagger, --delay and --seed are then not used",
        group=FILES,
        metavar="FILE",
    )


# -- verbs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Simulate(Recorded, Schedules, Timing, Graphs):
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
      hogwild simulate runs/chains --rule gradient --plot deviation.png
      hogwild simulate runs/chains --record schedule.npz --json
      hogwild simulate runs/chains --replay schedule.npz
    """

    history: int | None = option(
        None, "record the deviation every N ticks, for --json and --plot", group=RUNS
    )  # fmt: skip
    plot: str | None = picture("draw the error by deadline and the deviation to this file")

    def run(self) -> Outcome:
        """Call :func:`hogwild.simulate`."""
        from hogwild.executors.simulate import simulate

        found = self.chosen()
        given = self.passed(simulate)
        seen = simulate(found.model, found.some(self.graphs), **given)
        data = {
            "model": found.name,
            "rule": seen.rule,
            "converged": seen.converged.tolist(),
            "deviation": seen.deviation.tolist(),
            **vars(seen.price),
            "total_packets": int(seen.packets.sum()),
            "assumptions": seen.assumptions,
            "seconds": seen.seconds,
            "deadlines": seen.deadlines.as_dict(),
        }
        if seen.history is not None:
            data["history"] = {"ticks": seen.history_ticks, "deviation": seen.history.tolist()}
        return self.outcome(found, seen, data, bool(seen.converged.all()))


@dataclass(frozen=True, kw_only=True)
class Robustness(Recorded, Schedules, Timing, Graphs):
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

    compare: tuple[str, ...] = option(
        (), f"other rules to run beside: all, or some of {', '.join(RULES)}", group=NODES,
        metavar="RULE,…",
    )  # fmt: skip
    plot: str | None = picture(
        "draw performance, predictions and error by deadline of all schedules to this file"
    )

    def run(self) -> Outcome:
        """Call :func:`hogwild.robustness`."""
        from hogwild.analysis.robustness import robustness
        from hogwild.executors.simulate import simulate

        found = self.chosen()
        given = self.passed(robustness, simulate)
        seen = robustness(found.model, found.some(self.graphs), **given)
        seen.verdict = in_flags(seen.verdict, self)
        seen.advice = in_flags(seen.advice, self)
        data = {
            "model": found.name,
            "rule": seen.run.rule,
            "proved": seen.certificate.guaranteed,
            "verdict": seen.verdict,
            "advice": seen.advice,
            **seen.summary(),
            "deadlines": {name: one.as_dict() for name, one in seen.compared.items()},
            "left_out": seen.left_out,
        }
        return self.outcome(found, seen, data, bool(seen.run.converged.all()))


@dataclass(frozen=True, kw_only=True)
class Sweep(Schedules, Graphs):
    """Measure what asynchrony costs a trained model, over many settings at once.

    For every combination of --staggers, --delays and --losses: performance lost, how far
    predictions move, the share of runs that arrived, the price, the light cone, and what it costs
    to be within 5 % of the synchronous error. Exit code 3: some runs did not end at the
    synchronous answer.

    Examples:
      hogwild sweep runs/chains
      hogwild sweep runs/chains --staggers 1,5 --delays 0,2 --losses 0,0.3 --json
      hogwild sweep runs/chains --latencies 0,5,20
      hogwild sweep runs/chains --rule gradient --plot map.png --value converged
    """

    staggers: tuple[int, ...] = taken(SWEEP, "staggers", TIMING, keyword="stagger")
    delays: tuple[int, ...] = taken(SWEEP, "delays", TIMING, keyword="delay")
    latencies: tuple[int, ...] = taken(SWEEP, "latencies", TIMING)
    losses: tuple[float, ...] = taken(SWEEP, "losses", WRONG, keyword="rate")
    plot: str | None = picture("draw heat maps to this file")
    value: str | None = option(
        None, "what the heat maps show; by default, decrease, or spread where there is no target",
        group=FILES, choices=VALUES
    )  # fmt: skip

    def run(self) -> Outcome:
        """Call :func:`hogwild.sweep`."""
        from hogwild.analysis.robustness import robustness
        from hogwild.analysis.sweep import sweep
        from hogwild.executors.simulate import simulate

        found = self.chosen()
        given = self.passed(sweep, robustness, simulate)
        seen = sweep(found.model, found.some(self.graphs), **given)
        seen.advice = in_flags(seen.advice, self)
        data = {
            "model": found.name,
            "rule": seen.first.run.rule,
            "settings": seen.rows(),
            "advice": seen.advice,
        }
        good = all(bool(one.run.converged.all()) for one in seen.results.values())
        return self.outcome(found, seen, data, good, value=self.value)


@dataclass(frozen=True, kw_only=True)
class Certify(Timing, Graphs):
    """Say what is proved about a trained model under asynchrony.

    It speaks of hogwild simulate with the same options, with the constants on these graphs. Your
    own --step is compared with the certified one. Unlimited loss leaves the staleness unbounded,
    and no theorem applies; --impair loss=0.3,burst=5 bounds it.

    Examples:
      hogwild certify runs/chains
      hogwild certify runs/chains --rule gradient --step certified
      hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01
      hogwild certify runs/chains --impair loss=0.3,burst=5 --json
      hogwild certify runs/chains --rule gradient --step certified --drift 0.001
    """

    drift: float | None = option(
        None,
        "how far an entry of the exact answer moves in a tick, at most: how far behind are nodes?",
        group=NODES,
    )

    def run(self) -> Outcome:
        """Call :func:`hogwild.certify`."""
        from hogwild.analysis.certify import certify
        from hogwild.executors.simulation import Settings

        found = self.chosen()
        passed = self.passed(Settings)
        seen = certify(found.model, found.some(self.graphs), drift=self.drift, **passed)
        seen = replace(seen, reason=in_flags(seen.reason, self))
        data = {"model": found.name, "stagger": self.stagger, "delay": self.delay, **seen.data}
        data["impairments"] = [repr(one) for one in passed["impairments"]]
        return self.outcome(found, seen, data)


@dataclass(frozen=True, kw_only=True)
class Track(Timing, Ruled):
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
      hogwild track runs/source --animate run.gif
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
    lease: int = taken(TRACK, "lease", TIMING)
    restart: int | None = taken(TRACK, "restart", TIMING)
    runs: int = taken(SIMULATE, "runs", RUNS)
    seed: int = option(0, "the schedules and the scenario are functions of this number", group=RUNS)
    every: int = taken(TRACK, "every", RUNS)
    quiet: bool = option(False, "no progress bar")
    plot: str | None = picture("draw error and lag over time to this file")
    animate: str | None = option(
        None, "draw the run as a GIF to this file; needs positions", group=FILES, metavar="FILE"
    )

    def run(self) -> Outcome:
        """Call :func:`hogwild.track`."""
        from hogwild.executors.track import track

        found = self.chosen()
        scenario, score = self._scenario(found)
        given = self.passed(track) | {"scenario": scenario, "score": score}
        seen = track(found.model, **given)
        seen.advice = in_flags(seen.advice, self)
        if self.animate is not None:
            seen.animate(self.animate)
        data = {
            "model": found.name,
            "scenario": repr(scenario),
            **seen.summary(),
            "moves": seen.moves.tolist(),
            "recovery_ticks": seen.recovery().tolist(),
            "light_cone": seen.cone.as_dict(),
            "by_light_cones": seen.by_deadline() if seen.cone.crossed else None,
            "advice": seen.advice,
            "seconds": seen.seconds,
        }
        return self.outcome(found, seen, data)

    def _scenario(self, found: Chosen) -> tuple[Scenario, Any]:
        """The scenario that was asked for, and how predictions are measured on it."""
        from torch_geometric.data import Batch

        from hogwild.asynchrony.moving import Scenario
        from hogwild.asynchrony.scenarios import ON_GRAPHS
        from hogwild.tasks.moving import Sequences

        task, tested = found.result.task, found.result.tested(found.replica)
        sequences = task if isinstance(task, Sequences) and self.scenario is None else None
        if self.scenario is None and sequences is None:
            raise ConfigError(
                f"the task {task.name!r} has no sequences; expected --scenario, one of "
                f"{', '.join(SCENARIOS)}"
            )
        moments = 1 if sequences is None else sequences.moments
        if not 0 <= self.graph < len(tested) // moments:
            raise ConfigError(f"--graph {self.graph}; expected 0 to {len(tested) // moments - 1}")
        first = int(tested[self.graph * moments])
        if sequences is not None:
            first = first // moments * moments
            frames = [found.result.graph(first + moment) for moment in range(moments)]
            times = [self.spacing * moment for moment in range(moments)]

            def score(out: Any, data: Any) -> float:
                value = float(task.metric(out, Batch.from_data_list([data])))
                return 1.0 - value if task.higher_is_better else value

            score.__name__ = "1 - " * task.higher_is_better + task.metric_name
            return Scenario(frames, times, length=self.spacing * moments, name=task.name), score
        assert self.scenario is not None
        data, make, gap = found.result.graph(first), ON_GRAPHS[self.scenario], self.spacing
        if self.scenario == "partition":
            return make(data, breaks=gap, heals=2 * gap, length=3 * gap), None
        return make(data, changes=self.changes, every=gap, seed=self.seed), None
