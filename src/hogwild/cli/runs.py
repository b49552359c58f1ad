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
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

import hogwild
from hogwild.cli.common import (
    FEW,
    FILES,
    MANY,
    MODEL,
    NODES,
    ROOM,
    RUNS,
    TIMING,
    TRAINED,
    WRONG,
    Chosen,
    Outcome,
    chosen,
    file_of,
)
from hogwild.cli.options import Option, Options, constants, names, parsed, taken, value, verb
from hogwild.errors import ConfigError, among

if TYPE_CHECKING:
    from hogwild.asynchrony import Impairment
    from hogwild.asynchrony.moving import Scenario

SIMULATE, TRACK, SWEEP = (
    "executors/simulate.py:simulate", "executors/track.py:track", "analysis/sweep.py:sweep",
)  # fmt: skip
RULES = names("rules/__init__.py", "RULES")
MEASURES = constants("metrics.py")
METRICS = tuple(
    ast.literal_eval(MEASURES[each.id].args[0])
    for each in MEASURES["METRICS"].generators[0].iter.elts
)
SCENARIOS = names("asynchrony/scenarios.py", "ON_GRAPHS")


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

RULED = [
    *TRAINED,
    Option(
        "rule", "str", "auto",
        "what a node does at its turn: auto (messages for energies, caching for layers), "
        + ", ".join(RULES), NODES,
    ),
    *taken(SIMULATE, "step radius", NODES),
    Option("impair", "tuple[str, ...]", (), IMPAIR, WRONG, metavar="NAME[=VALUE]"),
]  # fmt: skip
"""A trained model, its rule, and its impairments."""
GRAPHS = Option(
    "graphs", "int | None", None,
    f"how many of the replica's test graphs; by default {FEW}, or where a graph has one answer "
    f"{MANY} (fewer, if they have more than {ROOM:,} nodes)", MODEL,
)  # fmt: skip
TIMED = taken(SIMULATE, "stagger delay", TIMING)
"""The bounds of one schedule."""
QUIET = Option("quiet", "bool", False, "no progress bar")
SCHEDULED = [
    *taken(SIMULATE, "runs", RUNS, default=5),
    *taken(SIMULATE, "seed ticks tol", RUNS),
    QUIET,
    Option(
        "metric", "str | None", None,
        "measure of performance; by default, accuracy for classes and rmse for numbers", MODEL,
        choices=METRICS,
    ),
]  # fmt: skip
"""How many runs, for how long."""
RECORDED = [
    file_of("record", "write the schedule to this file"),
    file_of(
        "replay",
        "follow the schedule in this file, on the same graphs and with as many --runs; --stagger, "
        "--delay and --seed are then not used",
    ),
]
"""One schedule for all runs, in a file perhaps."""


def passed(options: Options, *functions: Callable[..., Any]) -> dict[str, Any]:
    """Every option that is a parameter of one of these functions, by its name."""
    given = options.as_dict()
    given["impairments"] = tuple(map(impairment, options.impair))
    given["progress"] = not (options.json or given.get("quiet"))
    known = {name for function in functions for name in signature(function).parameters}
    return {name: value for name, value in given.items() if name in known}


# -- verbs -----------------------------------------------------------------------------------------


@verb(
    *RULED,
    GRAPHS,
    *TIMED,
    *SCHEDULED,
    Option(
        "history", "int | None", None, "record the deviation every N ticks, for --json and --plot",
        RUNS,
    ),
    *RECORDED,
    file_of("plot", "draw the error by deadline and the deviation to this file"),
)  # fmt: skip
def simulate(options: Options) -> Outcome:
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
    found = chosen(options)
    given = passed(options, hogwild.simulate)
    seen = hogwild.simulate(found.model, found.some(), **given)
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
    return found.outcome(seen, data, bool(seen.converged.all()))


@verb(
    *RULED,
    GRAPHS,
    *TIMED,
    *SCHEDULED,
    Option(
        "compare", "tuple[str, ...]", (),
        "other rules to run beside: all, or some of " + ", ".join(RULES), NODES, metavar="RULE,…",
    ),
    *RECORDED,
    file_of(
        "plot", "draw performance, predictions and error by deadline of all schedules to this file"
    ),
)  # fmt: skip
def robustness(options: Options) -> Outcome:
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
    found = chosen(options)
    given = passed(options, hogwild.robustness, hogwild.simulate)
    seen = hogwild.robustness(found.model, found.some(), **given)
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
    return found.outcome(seen, data, bool(seen.run.converged.all()))


@verb(
    *RULED,
    GRAPHS,
    *SCHEDULED,
    *taken(SWEEP, "staggers", TIMING, keyword="stagger"),
    *taken(SWEEP, "delays", TIMING, keyword="delay"),
    *taken(SWEEP, "latencies", TIMING),
    *taken(SWEEP, "losses", WRONG, keyword="rate"),
    file_of("plot", "draw heat maps to this file"),
    Option(
        "value", "str | None", None,
        "what the heat maps show; by default, decrease, or spread where there is no target", FILES,
        choices=names("analysis/sweep.py", "VALUES"),
    ),
)  # fmt: skip
def sweep(options: Options) -> Outcome:
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
    found = chosen(options)
    given = passed(options, hogwild.sweep, hogwild.robustness, hogwild.simulate)
    seen = hogwild.sweep(found.model, found.some(), **given)
    data = {
        "model": found.name,
        "rule": seen.first.run.rule,
        "settings": seen.rows(),
        "advice": seen.advice,
    }
    good = all(bool(one.run.converged.all()) for one in seen.results.values())
    return found.outcome(seen, data, good, value=options.value)


@verb(
    *RULED,
    GRAPHS,
    *TIMED,
    Option(
        "drift", "float | None", None,
        "how far an entry of the exact answer moves in a tick, at most: how far behind are nodes?",
        NODES,
    ),
)  # fmt: skip
def certify(options: Options) -> Outcome:
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
    from hogwild.executors.simulation import Settings

    found = chosen(options)
    given = passed(options, Settings)
    seen = hogwild.certify(found.model, found.some(), drift=options.drift, **given)
    data = {"model": found.name, "stagger": options.stagger, "delay": options.delay, **seen.data}
    data["impairments"] = [repr(one) for one in given["impairments"]]
    return found.outcome(seen, data)


@verb(
    *RULED,
    *TIMED,
    Option(
        "scenario", "str | None", None,
        f"what changes: {', '.join(SCENARIOS)}; by default, a test sequence of the task", MODEL,
        choices=SCENARIOS,
    ),
    Option("graph", "int", 0, "which of the replica's test graphs or test sequences", MODEL),
    Option("changes", "int", 20, "changes in a scenario that is not of the task", MODEL),
    Option("spacing", "int", 100, "ticks between two changes", TIMING),
    *taken(TRACK, "lease restart", TIMING),
    *taken(SIMULATE, "runs", RUNS),
    Option("seed", "int", 0, "the schedules and the scenario are functions of this number", RUNS),
    *taken(TRACK, "every", RUNS),
    QUIET,
    file_of("plot", "draw error and lag over time to this file"),
)  # fmt: skip
def track(options: Options) -> Outcome:
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
    """
    found = chosen(options)
    scenario, score = _scenario(found, options)
    given = passed(options, hogwild.track) | {"scenario": scenario, "score": score}
    seen = hogwild.track(found.model, **given)
    data = {
        "model": found.name,
        "scenario": repr(scenario),
        **seen.summary(),
        "moves": seen.moves.tolist(),
        "recovery_ticks": seen.recovery().tolist(),
        "light_cone": seen.cone.as_dict(),
        "seconds": seen.seconds,
    }
    return found.outcome(seen, data)


def _scenario(found: Chosen, options: Options) -> tuple[Scenario, Any]:
    """The scenario that was asked for, and how predictions are measured on it."""
    from torch_geometric.data import Batch

    from hogwild.asynchrony.moving import Scenario
    from hogwild.asynchrony.scenarios import ON_GRAPHS
    from hogwild.tasks.moving import Sequences

    task, tested = found.result.task, found.result.tested(found.replica)
    sequences = task if isinstance(task, Sequences) and options.scenario is None else None
    if options.scenario is None and sequences is None:
        raise ConfigError(
            f"the task {task.name!r} has no sequences; expected --scenario, one of "
            f"{', '.join(SCENARIOS)}"
        )
    moments = 1 if sequences is None else sequences.moments
    if not 0 <= options.graph < len(tested) // moments:
        raise ConfigError(f"--graph {options.graph}; expected 0 to {len(tested) // moments - 1}")
    first = int(tested[options.graph * moments])
    if sequences is not None:
        first = first // moments * moments
        frames = [found.result.graph(first + moment) for moment in range(moments)]
        times = [options.spacing * moment for moment in range(moments)]

        def score(out: Any, data: Any) -> float:
            value = float(task.metric(out, Batch.from_data_list([data])))
            return 1.0 - value if task.higher_is_better else value

        score.__name__ = "1 - " * task.higher_is_better + task.metric_name
        return Scenario(frames, times, length=options.spacing * moments, name=task.name), score
    assert options.scenario is not None
    data, make, gap = found.result.graph(first), ON_GRAPHS[options.scenario], options.spacing
    if options.scenario == "partition":
        return make(data, breaks=gap, heals=2 * gap, length=3 * gap), None
    return make(data, changes=options.changes, every=gap, seed=options.seed), None
