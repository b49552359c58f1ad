"""``hogwild export``, ``swarm`` and ``keys``: models on real agents."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path

from hogwild.cli.common import FILES, MODEL, NODES, RUNS, WRONG, Outcome, Trained, picture
from hogwild.cli.options import Verb, argument, option, taken
from hogwild.errors import ConfigError

GRAPHS = 20
"""Graphs of the task from which the tolerances are computed."""
C = "C for microcontrollers (--out FILE.c)"
RUN, FAULTS = "executors/swarm.py:run", "executors/swarm_result.py:Faults"
PRECISIONS = ("float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Export(Trained):
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

    out: str = option(
        "model.hog", "where to write: a model for agents, or FILE.c", group=FILES, metavar="FILE"
    )
    dtype: str = option(
        "float32",
        "numbers of the node and of its packets",
        group=C,
        choices=("float32", "float64"),
    )
    max_degree: int = option(8, "most neighbours of a node", group=C)

    def run(self) -> Outcome:
        """Call :func:`hogwild.export`."""
        from hogwild.models.export import export

        path, found = Path(self.out), self.chosen()
        some = range(min(len(found.result.task.graphs), GRAPHS))
        data = [found.result.graph(i) for i in some]
        name = export(found.model, path, data=data, dtype=self.dtype, max_degree=self.max_degree)
        then = f"hogwild-agent --model {path} --id NAME --features … --neighbours NAME=HOST:PORT,…"
        if path.suffix == ".c":
            then = f"cc -std=c99 -O2 -c {path}"
        size = path.stat().st_size
        text = f"{path}: {found.name}, replica {found.replica}, {size / 1000:.1f} kB, named {name} "
        text += f"on the network\nnext: {then}"
        about = {"file": self.out, "model": found.name, "name": name, "bytes": size}
        return Outcome(text, about, True, {"replica": found.replica})


@dataclass(frozen=True, kw_only=True)
class Swarm(Trained):
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
    precision: str = taken(RUN, "precision", NODES, choices=PRECISIONS)
    rate: float | None = taken(RUN, "rate", NODES)
    lease: float | None = taken(RUN, "lease", NODES)
    settle_after: float | None = taken(RUN, "settle_after", NODES)
    transport: str = option("zenoh", "how packets travel", group=NODES, choices=("zenoh", "udp"))
    tls: bool = option(
        False, "make keys for this run and encrypt the links, as hogwild keys does", group=NODES
    )
    loss: float = taken(FAULTS, "loss", WRONG)
    delay: str = option(
        "0",
        "how long packets are held up: 20ms, or the least and the most, 15ms,25ms",
        group=WRONG,
        metavar="T[,T]",
    )
    kill: float = taken(FAULTS, "kill", WRONG)
    kill_at: float = taken(FAULTS, "kill_at", WRONG)
    revive_at: float | None = taken(FAULTS, "revive_at", WRONG)
    freeze: float = taken(FAULTS, "freeze", WRONG)
    freeze_at: float = taken(FAULTS, "freeze_at", WRONG)
    thaw_at: float = taken(FAULTS, "thaw_at", WRONG)
    partition: bool = taken(FAULTS, "partition", WRONG)
    partition_at: float = taken(FAULTS, "partition_at", WRONG)
    heal_at: float = taken(FAULTS, "heal_at", WRONG)
    seed: int = taken(FAULTS, "seed", WRONG)
    seconds: float | None = taken(RUN, "seconds", RUNS)
    tol: float = option(1e-3, "the relative error within which the swarm has arrived", group=RUNS)
    stay: bool = option(
        False, "go on for all --seconds, also when all agents are settled", group=RUNS
    )
    quiet: bool = option(False, "no line every second", group=RUNS)
    plot: str | None = picture("draw the error over time to this file")
    record: str | None = option(
        None,
        "write the schedule to this file, for `hogwild simulate RUN --graphs 1 --runs 1 --replay`",
        group=FILES,
        metavar="FILE",
    )
    keep: str | None = option(
        None,
        "keep the model and the agents' files in this folder",
        group=FILES,
        metavar="FOLDER",
    )

    def run(self) -> Outcome:
        """Call :func:`hogwild.executors.swarm.run`."""
        from hogwild.executors.swarm import Faults
        from hogwild.executors.swarm import run as start
        from hogwild_node.errors import SetupError
        from hogwild_node.options import interval

        found = self.chosen()
        if hasattr(signal, "SIGTERM"):  # whoever ends the swarm ends its agents
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        graphs = found.graphs()
        fit = [g for g in graphs if self.agents in (None, g.num_nodes)]
        if not fit:
            sizes = ", ".join(map(str, sorted({int(g.num_nodes or 0) for g in graphs})))
            raise ConfigError(f"--agents {self.agents}; expected the size of a test graph: {sizes}")
        given = self.as_dict()
        drawn = {f.name: given[f.name] for f in fields(Faults) if f.name != "delay"}
        try:
            faults = Faults(delay=interval(self.delay, "--delay"), **drawn)
        except SetupError as error:
            raise ConfigError(str(error)) from error
        if self.record is not None and (faults.kill or faults.partition):
            raise ConfigError(
                "--record was given with --kill or --partition; the simulator's graph does not "
                "change: leave one of them out"
            )
        same = {name: given[name] for name in signature(start).parameters if name in given}
        seen = start(
            found.model, fit[0], faults=faults, folder=self.keep,
            show=not (self.quiet or self.json), until_settled=not self.stay, **same,
        )  # fmt: skip
        text = str(seen)
        if self.plot is not None:
            seen.plot(self.plot)
            text += f"\npicture: {self.plot}"
        if self.record is not None and seen.trace is not None:
            text += f"\nschedule: {seen.trace.save(self.record)}"
        told = {name: value for name, value in vars(seen).items() if name != "trace"}
        return Outcome(text, told, seen.deviation <= self.tol, {"replica": found.replica})


@dataclass(frozen=True, kw_only=True)
class Keys(Verb):
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

    folder: str = argument("folder of the keys")
    ids: str | None = option(None, "names of agents: 0-19, or a,b,c", metavar="NAMES")
    controller: str | None = option(
        None,
        "also make keys for whoever may send agents new features and neighbours; agents are told "
        "this name with hogwild-agent --controller",
        metavar="NAME",
    )
    days: int = option(365, "how long the certificates are valid")

    def run(self) -> Outcome:
        """Call :func:`hogwild.keys.make_keys`."""
        from hogwild.keys import AUTHORITY_KEY, make_keys, names_of

        agents = [] if self.ids is None else names_of(self.ids)
        more = [] if self.controller is None else [self.controller]
        if not agents and not more:
            raise ConfigError(
                "nobody is named; expected --ids 0-19, --ids a,b,c or --controller NAME"
            )
        made = make_keys(self.folder, [*agents, *more], days=self.days)
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
            "folder": str(where), "agents": agents, "controller": self.controller,
            "until": made.end.isoformat(), "new_authority": made.created,
        }  # fmt: skip
        return Outcome("\n".join(lines), data)
