"""``hogwild export``, ``swarm`` and ``keys``: models on real agents."""

from __future__ import annotations

import signal
from dataclasses import fields
from inspect import signature
from pathlib import Path

import hogwild
from hogwild.cli.common import FILES, MODEL, NODES, RUNS, TRAINED, WRONG, Outcome, chosen, file_of
from hogwild.cli.options import Option, Options, argument, taken, verb
from hogwild.errors import ConfigError

GRAPHS = 20
"""Graphs of the task from which the tolerances are computed."""
C = "C for microcontrollers (--out FILE.c)"
RUN, FAULTS = "executors/swarm.py:run", "executors/swarm_result.py:Faults"
PRECISIONS = ("float16", "float32", "float64")


@verb(
    *TRAINED,
    Option(
        "out", "str", "model.hog", "where to write: a model for agents, or FILE.c", FILES,
        metavar="FILE",
    ),
    Option(
        "dtype", "str", "float32", "numbers of the node and of its packets", C,
        choices=PRECISIONS[1:],
    ),
    Option("max_degree", "int", 8, "most neighbours of a node", C),
)  # fmt: skip
def export(options: Options) -> Outcome:
    """Write a trained model to one file that agents run without torch.

    Copy the file to every robot and start hogwild-agent there. An agent needs NumPy, hogwild-node
    and, for the default network, Zenoh. The name that is printed is the model's name on the
    network: agents with other models do not hear each other.

    A name that ends in .c writes one C99 file instead, for machines without Python. It has the
    model's parameters and the functions of one node: join, hear, update, say, predict. Energies
    use gradient steps there, IGNN and EIGNN fixed-point updates. The first comment of the file
    shows its use.

    Examples:
      hogwild export runs/chains --out model.hog
      hogwild export runs/chains --replica 3 --out model.hog --json
      hogwild export runs/chains --out node.c --dtype float32 --max-degree 8
    """
    path, found = Path(options.out), chosen(options)
    some = range(min(len(found.result.task.graphs), GRAPHS))
    data = [found.result.graph(i) for i in some]
    name = hogwild.export(
        found.model, path, data=data, dtype=options.dtype, max_degree=options.max_degree
    )
    then = f"hogwild-agent --model {path} --id NAME --features … --neighbours NAME=HOST:PORT,…"
    if path.suffix == ".c":
        then = f"cc -std=c99 -O2 -c {path}"
    size = path.stat().st_size
    text = f"{path}: {found.name}, replica {found.replica}, {size / 1000:.1f} kB, named {name} "
    text += f"on the network\nnext: {then}"
    about = {"file": options.out, "model": found.name, "name": name, "bytes": size}
    return Outcome(text, about, True, {"replica": found.replica})


@verb(
    *TRAINED,
    Option(
        "agents", "int | None", None,
        "take a test graph of so many nodes; by default, the first one", MODEL,
    ),
    Option("rule", "str", "auto", "auto, or a rule that fits the model", NODES),
    Option(
        "radius", "int | None", None,
        "with --rule balls: hops within which an agent solves for others; by default, the whole "
        "graph if it has at most 256 nodes", NODES,
    ),
    *taken(RUN, "precision", NODES, choices=PRECISIONS),
    *taken(RUN, "rate lease settle_after", NODES),
    Option("transport", "str", "zenoh", "how packets travel", NODES, choices=("zenoh", "udp")),
    Option(
        "tls", "bool", False,
        "make keys for this run and encrypt the links, as hogwild keys does", NODES,
    ),
    *taken(FAULTS, "loss", WRONG),
    Option(
        "delay", "str", "0",
        "how long packets are held up: 20ms, or the least and the most, 15ms,25ms", WRONG,
        metavar="T[,T]",
    ),
    *taken(FAULTS, "kill kill_at revive_at freeze freeze_at thaw_at", WRONG),
    *taken(FAULTS, "partition partition_at heal_at seed", WRONG),
    *taken(RUN, "seconds", RUNS),
    Option(
        "tol", "float", 1e-3, "the relative error within which the swarm has arrived", RUNS,
    ),
    Option(
        "stay", "bool", False, "go on for all --seconds, also when all agents are settled", RUNS
    ),
    Option("quiet", "bool", False, "no line every second", RUNS),
    file_of("plot", "draw the error over time to this file"),
    file_of(
        "record",
        "write the schedule to this file, for `hogwild simulate RUN --graphs 1 --runs 1 --replay`",
    ),
    Option(
        "keep", "str | None", None, "keep the model and the agents' files in this folder", FILES,
        metavar="FOLDER",
    ),
)  # fmt: skip
def swarm(options: Options) -> Outcome:
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
    from hogwild.executors.swarm import Faults
    from hogwild.executors.swarm import run as start
    from hogwild_node.errors import SetupError
    from hogwild_node.options import interval

    found = chosen(options)
    if hasattr(signal, "SIGTERM"):  # whoever ends the swarm ends its agents
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    graphs = found.graphs()
    fit = [g for g in graphs if options.agents in (None, g.num_nodes)]
    if not fit:
        sizes = ", ".join(map(str, sorted({int(g.num_nodes or 0) for g in graphs})))
        raise ConfigError(f"--agents {options.agents}; expected the size of a test graph: {sizes}")
    given = options.as_dict()
    drawn = {f.name: given[f.name] for f in fields(Faults) if f.name != "delay"}
    try:
        faults = Faults(delay=interval(options.delay, "--delay"), **drawn)
    except SetupError as error:
        raise ConfigError(str(error)) from error
    if options.record is not None and (faults.kill or faults.partition):
        raise ConfigError(
            "--record was given with --kill or --partition; the simulator's graph does not "
            "change: leave one of them out"
        )
    given |= {"faults": faults, "folder": options.keep, "until_settled": not options.stay}
    given["show"] = not (options.quiet or options.json)
    same = {name: given[name] for name in signature(start).parameters if name in given}
    seen = start(found.model, fit[0], **same)
    text = str(seen)
    if options.plot is not None:
        seen.plot(options.plot)
        text += f"\npicture: {options.plot}"
    if options.record is not None and seen.trace is not None:
        text += f"\nschedule: {seen.trace.save(options.record)}"
    told = {name: value for name, value in vars(seen).items() if name != "trace"}
    return Outcome(text, told, seen.deviation <= options.tol, {"replica": found.replica})


@verb(
    argument("folder", "folder of the keys"),
    Option("ids", "str | None", None, "names of agents: 0-19, or a,b,c", metavar="NAMES"),
    Option(
        "controller", "str | None", None,
        "also make keys for whoever may send agents new features and neighbours; agents are told "
        "this name with hogwild-agent --controller", metavar="NAME",
    ),
    Option("days", "int", 365, "how long the certificates are valid"),
)  # fmt: skip
def keys(options: Options) -> Outcome:
    """Make certificates and keys for the agents of a swarm, so that strangers cannot take part.

    The folder gets a small certificate authority and one folder for each agent. Copy each agent's
    folder to its machine, and nothing else. The authority's private key (authority.key) can let
    new agents in: it stays at home. Call the command again with other names to add agents. Nothing
    is overwritten.

    Examples:
      hogwild keys keys --ids 0-19
      hogwild keys keys --ids alice,bob --days 90
      hogwild keys keys --controller base
    """
    from hogwild.keys import AUTHORITY_KEY, make_keys, names_of

    agents = [] if options.ids is None else names_of(options.ids)
    more = [] if options.controller is None else [options.controller]
    if not agents and not more:
        raise ConfigError("nobody is named; expected --ids 0-19, --ids a,b,c or --controller NAME")
    made = make_keys(options.folder, [*agents, *more], days=options.days)
    where = made.folder
    what = "a new authority" if made.created else "the authority that was there"
    lines = [f"{where}: {what}"]
    if agents:
        first = agents[0]
        shown = f"{where / first}" + (f" … {where / agents[-1]}" if len(agents) > 1 else "")
        lines += [
            f"{shown}: keys of {len(agents)} agents; copy each folder to its agent's machine, "
            f"and start",
            f"  hogwild-agent --id {first} --certificates FOLDER …",
        ]
    for name in more:
        lines += [
            f"{where / name}: keys of the controller; copy them to the machine that controls "
            f"the agents, and start agents with --controller {name}",
        ]
    lines += [
        f"{where / AUTHORITY_KEY} can let new agents in: keep it here, and copy it to no robot",
        f"the new certificates are valid until {made.end:%F}",
    ]
    data = {
        "folder": str(where), "agents": agents, "controller": options.controller,
        "until": made.end.isoformat(), "new_authority": made.created,
    }  # fmt: skip
    return Outcome("\n".join(lines), data)
