"""``hogwild swarm``."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields

from hogwild.cli.common import (
    FILES,
    MODEL,
    NODES,
    RUNS,
    WRONG,
    Outcome,
    Trained,
    picture,
)
from hogwild.cli.options import option
from hogwild.errors import ConfigError

TRANSPORTS = ("zenoh", "udp")
PRECISIONS = ("float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Options(Trained):
    """Run a trained model as real processes on this machine: one agent for each node of a graph.

    The agents talk over loopback and know only their neighbours. Faults are real: packets are lost
    and held up, processes are killed, frozen and started again. The answers are compared with the
    synchronous answer of the graph of those alive. Exit code 3: the swarm did not arrive.

    Examples:
      hogwild swarm runs/chains
      hogwild swarm runs/chains --loss 0.3 --delay 15ms,25ms --transport udp
      hogwild swarm runs/chains --rule balls
      hogwild swarm runs/chains --tls
      hogwild swarm runs/chains --kill 0.3 --kill-at 5 --revive-at 10 --plot swarm.png
      hogwild swarm runs/chains --record swarm.npz
    """

    agents: int | None = option(
        None, "take a test graph of so many nodes; by default, the first one", group=MODEL
    )
    rule: str = option("auto", "auto, or a rule that fits the model", group=NODES)
    radius: int | None = option(
        None,
        "with --rule balls: hops within which an agent solves for others; by default, the whole "
        "graph if it has at most 256 nodes",
        group=NODES,
    )
    precision: str = option("float32", "numbers in packets", group=NODES, choices=PRECISIONS)
    rate: float | None = option(
        None, "turns of an agent a second; by default 50, or what this machine can do", group=NODES
    )
    lease: float | None = option(
        None,
        "seconds of silence after which a neighbour is gone; by default ten turns",
        group=NODES,
    )
    on_silence: str = option(
        "drop", "what becomes of its last words", group=NODES, choices=("drop", "hold")
    )
    settle_after: float | None = option(
        None,
        "seconds of calm after which an agent says that it is settled; by default, what word takes "
        "to cross the graph",
        group=NODES,
    )
    transport: str = option("zenoh", "how packets travel", group=NODES, choices=TRANSPORTS)
    tls: bool = option(
        False, "make keys for this run and encrypt the links, as hogwild keys does", group=NODES
    )
    loss: float = option(0.0, "share of packets that are lost", group=WRONG)
    delay: str = option(
        "0",
        "how long packets are held up: 20ms, or the least and the most, 15ms,25ms",
        group=WRONG,
        metavar="T[,T]",
    )
    kill: float = option(0.0, "share of agents that are killed", group=WRONG)
    kill_at: float = option(5.0, "when, in seconds", group=WRONG)
    revive_at: float | None = option(None, "when they are started again", group=WRONG)
    freeze: float = option(0.0, "share of agents that are frozen", group=WRONG)
    freeze_at: float = option(5.0, "when, in seconds", group=WRONG)
    thaw_at: float = option(8.0, "when they go on", group=WRONG)
    partition: bool = option(
        False, "cut the links between two halves of the swarm for a while", group=WRONG
    )
    partition_at: float = option(5.0, "when, in seconds", group=WRONG)
    heal_at: float = option(10.0, "when the links work again", group=WRONG)
    seed: int = option(0, "what is drawn is a function of this number", group=WRONG)
    seconds: float | None = option(
        None, "how long the swarm runs at most; by default, long enough to settle", group=RUNS
    )
    tol: float = option(1e-3, "the relative error within which the swarm has arrived", group=RUNS)
    stay: bool = option(
        False, "go on for all --seconds, also when all agents are settled", group=RUNS
    )
    quiet: bool = option(False, "no live table", group=RUNS)
    plot: str | None = picture("draw the error over time to this file")
    record: str | None = option(
        None,
        "write the schedule to this file, for `hogwild simulate RUN --graphs 1 --runs 1 --replay`",
        group=FILES,
        metavar="FILE",
    )
    keep: str | None = option(
        None,
        "keep the model and the agents' files in this folder, in which `hogwild serve --attach` "
        "watches the swarm",
        group=FILES,
        metavar="FOLDER",
    )


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.executors.swarm.run`."""
    from hogwild.executors.swarm import Faults
    from hogwild.executors.swarm import run as start
    from hogwild_node.errors import SetupError
    from hogwild_node.options import interval

    found = options.chosen()
    if hasattr(signal, "SIGTERM"):  # whoever ends the swarm ends its agents
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    graphs = found.graphs()
    sizes = sorted({int(g.num_nodes or 0) for g in graphs})
    fit = [g for g in graphs if options.agents in (None, g.num_nodes)]
    if not fit:
        raise ConfigError(
            f"--agents {options.agents}; expected the size of a test graph: "
            f"{', '.join(map(str, sizes))}"
        )
    drawn = {f.name: getattr(options, f.name) for f in fields(Faults) if f.name != "delay"}
    try:
        faults = Faults(delay=interval(options.delay, "--delay"), **drawn)
    except SetupError as error:
        raise ConfigError(str(error)) from error
    if options.record is not None and (faults.kill or faults.partition):
        raise ConfigError(
            "--record was given with --kill or --partition; the simulator's graph does not change: "
            "leave one of them out"
        )
    same = (
        "rule", "radius", "precision", "rate", "lease", "on_silence", "settle_after", "transport",
        "tls",
    )  # fmt: skip
    seen = start(
        found.model, fit[0], faults=faults, seconds=options.seconds,
        folder=options.keep, show=not (options.quiet or options.json),
        until_settled=not options.stay,
        **{name: getattr(options, name) for name in same},
    )  # fmt: skip
    text = str(seen)
    if options.plot is not None:
        seen.plot(options.plot)
        text += f"\npicture: {options.plot}"
    if options.record is not None and seen.trace is not None:
        text += f"\nschedule: {seen.trace.save(options.record)}"
    told = {name: value for name, value in vars(seen).items() if name != "trace"}
    return Outcome(text, told, seen.deviation <= options.tol, {"replica": found.replica})
