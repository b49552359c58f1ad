r"""Swarms of real processes on this machine: time, updates, bytes, memory; and faults.

Trained models run as one process per node on loopback (``hogwild_node``, no torch in the agents).

``--start`` starts one agent alone and measures the time from the command to its first status, its
resident memory, and the time of a turn that updates and of a turn of a settled agent. ``--sizes``
runs a chain of 20 nodes, the motes of the Intel Berkeley lab (54 nodes,
``$HOGWILD_DATA/sensor``) and terrain with 100 agents (``$HOGWILD_DATA/MNIST``), each over UDP and
over Zenoh. The rival is the simulator: it replays the schedule that the processes really had, and
its number of updates is what that schedule allows. ``--faults`` runs the chain under every fault
ten times, with ten seeds: agents killed, killed and revived, lossy and slow links, agents frozen,
and a partition that heals; by messages and by balls, then a GCN through the same faults,
overwriting (the paper's rule) and caching. ``--rules`` compares messages and balls on a network in
memory, whose clock waits for the agents: there, seconds depend on nothing but the schedule.

Errors are relative to the largest entry of the synchronous answer of the graph at that time. *All
settled after* is the time from the moment at which the last agent was unsettled, plus
``--settle-after``, to the moment at which all agents reported that they were settled.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Record, or_dash, parser
from torch_geometric.data import Data

import hogwild
from hogwild.executors.swarm import Faults, Swarm, free_ports, run
from hogwild.models.export import export, packed
from hogwild.tasks import get
from hogwild.tasks.synthetic import undirected
from hogwild_node import model as node_model
from hogwild_node.agent import Agent, Edge
from hogwild_node.transports.memory import MemoryNetwork

FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "30 % killed": {"kill": 0.3, "kill_at": 3.0},
    "30 % killed, revived": {"kill": 0.3, "kill_at": 3.0, "revive_at": 8.0},
    "30 % lost, 20 ± 5 ms": {"loss": 0.3, "delay": (0.015, 0.025)},
    "30 % frozen for 4 s": {"freeze": 0.3, "freeze_at": 3.0, "thaw_at": 7.0},
    "partition, healed": {"partition": True, "partition_at": 3.0, "heal_at": 9.0},
}


def chain(epochs: int, kind: str, folder: Path) -> tuple[Any, Data]:
    """A model trained on chains of 20 nodes, and the chain of the second class."""
    task = get("chains", length=20)
    options: dict[str, Any] = {"epochs": epochs, "replicas": 2}
    result = hogwild.train(
        task, model=kind, folder=folder / f"chain-{kind}", resume=True, **options
    )
    return result.model, task.graphs[1]


def terrain(epochs: int, folder: Path) -> tuple[Any, Data]:
    """A model trained on images with ten agents, and an image with a hundred."""
    task = get("terrain", num_graphs=500)
    result = hogwild.train(
        task, model="energy-edge", epochs=epochs, folder=folder / "terrain", resume=True
    )
    return result.model, get("terrain", num_graphs=1, agents=100, radius=2.0).graphs[0]


def motes(epochs: int, folder: Path) -> tuple[Any, Data]:
    """A model that restores a field from noisy readings of the lab's motes, and one such field.

    A field is a sum of three bumps at random places. A mote knows its place and a noisy reading.
    Motes at most six metres apart are neighbours.
    """
    path = Path(os.environ["HOGWILD_DATA"]) / "sensor" / "intel_lab_mote_locs.txt"
    place = torch.from_numpy(np.loadtxt(path, skiprows=1)[:, 1:]).float()
    edges = undirected(*np.nonzero(np.triu(torch.cdist(place, place).numpy() <= 6.0, 1)))
    draw = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(60):
        centre = place[torch.randint(len(place), (3,), generator=draw)]
        y = torch.exp(-(torch.cdist(place, centre) ** 2) / 100.0).sum(1, keepdim=True)
        noisy = y + 0.3 * torch.randn(y.shape, generator=draw)
        graphs.append(Data(x=torch.cat([noisy, place / 40.0], 1), y=y, edge_index=edges))
    result = hogwild.train(
        graphs, model="energy-edge", loss=F.mse_loss, epochs=epochs,
        folder=folder / "motes", resume=True, model_options={"hidden_channels": 4},
    )  # fmt: skip
    return result.model, graphs[-1]


def fitted(model: Any, data: Data) -> tuple[Any, Data]:
    """The graph in the dtype of the model."""
    data.x = data.x.to(next(model.parameters()).dtype)
    return model, data


def predicted(model: Any, data: Data, seen: Swarm, rule: str) -> float | None:
    """Updates of a node that the simulator needs for 1e-3 on the schedule that the agents had."""
    assert seen.trace is not None
    found = hogwild.simulate(model, data, replay=seen.trace, rule=rule, tol=1e-3)
    return float(found.price.updates) if bool(found.converged.all()) else None


def new(arguments: argparse.Namespace, name: str, title: str, head: tuple[str, ...]) -> Record:
    """A record that also names the cores of the machine."""
    return Record(arguments.output, name, title, head, cores=os.cpu_count())


def start(arguments: argparse.Namespace, folder: Path) -> None:
    """One agent alone."""
    model, data = fitted(*chain(arguments.epochs, "energy-edge", folder))
    path = folder / "alone.hog"
    export(model, path, data=data)
    features = ",".join(map(str, data.x[0].tolist()))
    head = ("transport", "ready after, s (best of 5)", "resident, MB (worst of 5)")
    record = new(arguments, "swarm_start", "An agent alone", head)
    for transport in arguments.transports.split(","):
        ready, memory = [], []
        for _ in range(5):
            begun = time.perf_counter()
            agent = subprocess.Popen(
                [
                    sys.executable, "-m", "hogwild_node.command", "--model", path, "--id", "0",
                    f"--features={features}", "--transport", transport, "--status", "0.01",
                    "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--seconds", "1",
                ],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert agent.stdout is not None
            agent.stdout.readline()
            ready.append(time.perf_counter() - begun)
            status = Path(f"/proc/{agent.pid}/status").read_text().splitlines()
            memory.append(int(next(x for x in status if x.startswith("VmRSS")).split()[1]) / 1024)
            agent.communicate()
        cell = {"transport": transport, "ready, s": min(ready), "resident, MB": max(memory)}
        record.add([transport, f"{min(ready):.2f}", f"{max(memory):.0f}"], cell)
    head = ("neighbours", "turn with an update, ms", "turn of a settled agent, ms", "ratio")
    record = new(arguments, "swarm_turns", "Messages in NumPy, one turn", head)
    for degree in (2, 6):
        busy, still = turns(model, data, degree)
        cell = {"degree": degree, "update, ms": busy, "settled, ms": still}
        record.add([str(degree), f"{busy:.2f}", f"{still:.2f}", f"{busy / still:.0f}"], cell)


def turns(model: Any, data: Data, degree: int) -> tuple[float, float]:
    """Median time in ms of a turn with an update and of a turn of a settled agent."""
    node = node_model.of(packed(model))
    network = MemoryNetwork()
    agents = [
        Agent(
            node, str(i), data.x[i].numpy(), network.endpoint(str(i)), precision="float64",
            neighbours={str(j): Edge() for j in range(degree + 1) if j != i and 0 in (i, j)},
            clock=network.clock,
        )
        for i in range(degree + 1)
    ]  # fmt: skip
    busy, still = [], []
    for _ in range(200):
        network.now += 0.02
        for agent in agents[1:]:
            agent.turn()
        before, begun = agents[0].updates, time.perf_counter()
        agents[0].turn()
        spent = 1000.0 * (time.perf_counter() - begun)
        (busy if agents[0].updates > before else still).append(spent)
    return float(np.median(busy[1:])), float(np.median(still))


SIZES = ("swarm", "transport", "packets", "1e-3 after, s", "updates each", "simulator's updates",
         "ratio", "settled, s", "error", "kB an agent", "MB each", "wrong bounds")  # fmt: skip
LIMITS = ("model and rule", "fault", "within 1e-6", "worst error", "1e-3 after the last event, s",
          "all settled after, s", "wrong bounds", "updates", "kB an agent")  # fmt: skip


def sizes(arguments: argparse.Namespace, folder: Path) -> None:
    """Three swarms without faults."""
    record = new(arguments, "swarm_sizes", "Swarms without faults", SIZES)
    named = {
        "chain of 20": lambda: chain(arguments.epochs, "energy-edge", folder),
        "motes, 54": lambda: motes(arguments.epochs // 5, folder),
        "terrain, 100": lambda: terrain(arguments.epochs // 10, folder),
    }
    for name, make in named.items():
        if not re.search(arguments.only, name):
            continue
        model, data = fitted(*make())
        for transport in arguments.transports.split(","):
            for precision in ("float32", "float64")[: 2 if data.num_nodes <= 20 else 1]:
                seen = run(
                    model, data, transport=transport, precision=precision, seconds=arguments.seconds
                )
                wanted = predicted(model, data, seen, "messages")
                work = seen.reached(1e-3, "work")
                ratio = None if wanted is None or work is None else work / wanted
                cell = {
                    "swarm": name, "transport": transport, "precision": precision,
                    "to 1e-3, s": seen.reached(1e-3), "updates to 1e-3": work,
                    "simulator's": wanted, "ratio": ratio, "settled, s": seen.settled_at,
                    "error": seen.deviation, "bytes to settle": seen.bytes, "memory": seen.memory,
                    "rate": seen.rate, "wrong": seen.false_alarms,
                }  # fmt: skip
                record.add([
                    name, transport, precision, or_dash(seen.reached(1e-3)), or_dash(work, ".0f"),
                    or_dash(wanted, ".0f"), or_dash(ratio, ".2f"), or_dash(seen.settled_at),
                    f"{seen.deviation:.0e}", f"{seen.bytes / 1000:.0f}",
                    or_dash(seen.memory, ".0f"), str(seen.false_alarms),
                ], cell)  # fmt: skip


def faults(arguments: argparse.Namespace, folder: Path) -> None:
    """One swarm with every fault."""
    contenders = {
        "energy GNN, messages": ("energy-edge", "messages"),
        "energy GNN, balls": ("energy-edge", "balls"),
        "GCN, overwriting": ("gcn", "overwriting"),
        "GCN, caching": ("gcn", "caching"),
    }
    record = new(arguments, "swarm_faults", "The chain of 20 under faults", LIMITS)
    for name, (kind, rule) in contenders.items():
        if arguments.contender not in name:
            continue
        model, data = fitted(*chain(arguments.epochs, kind, folder))
        runs = arguments.runs if kind == "energy-edge" else arguments.gcn_runs
        for fault, options in FAULTS.items():
            if not re.search(arguments.only, fault):
                continue
            found = []
            for seed in range(runs):
                seen = run(
                    model, data, rule=rule, transport="udp", precision="float64",
                    faults=Faults(seed=seed, **options), rate=arguments.rate,
                    lease=arguments.lease, settle_after=arguments.settle_after,
                    seconds=arguments.seconds, until_settled=kind == "energy-edge",
                )  # fmt: skip
                found.append(judged(seen, arguments))
                print(name, fault, seed, found[-1], flush=True)
            cells = [{"model": name, "fault": fault, "seed": s, **f} for s, f in enumerate(found)]
            record.add([name, fault, *summary(found)], *cells)


def judged(seen: Swarm, arguments: argparse.Namespace) -> dict[str, Any]:
    """What one run shows."""
    last = max((t for t, _ in seen.events), default=0.0)
    close, still, said = seen.reached(1e-3), seen.still_at, seen.settled_at
    return {
        "error": seen.deviation,
        "back": None if close is None else max(close - last, 0.0),
        "said": None if said is None or still is None else said - still - arguments.settle_after,
        "wrong": seen.false_alarms,
        "updates": seen.updates,
        "kB": seen.bytes / 1000,
        "seconds": seen.seconds,
    }


def summary(found: list[dict[str, Any]]) -> list[str]:
    """One row for several runs: worst cases, and means of the price."""

    def worst(name: str) -> str:
        values = [math.inf if f[name] is None else f[name] for f in found]
        return or_dash(None if math.inf in values else max(values))

    mean = {name: sum(f[name] for f in found) / len(found) for name in ("updates", "kB")}
    right = sum(f["error"] <= 1e-6 for f in found)
    return [
        f"{right} of {len(found)}", f"{max(f['error'] for f in found):.0e}", worst("back"),
        worst("said"), str(sum(f["wrong"] for f in found)), f"{mean['updates']:.0f}",
        f"{mean['kB']:.0f}",
    ]  # fmt: skip


def rules(arguments: argparse.Namespace, folder: Path) -> None:
    """Messages and balls on a clock that waits for the agents."""
    model, data = fitted(*chain(arguments.epochs, "energy-edge", folder))
    head = ("rule", "fault", "1e-3 after, s", "turns each", "updates each", "kB until then",
            "1e-5 after, s", "all within 1e-5")  # fmt: skip
    title = f"The same agents on a clock that waits for them, {arguments.rate:.0f} turns a second, "
    record = new(arguments, "swarm_memory", title + f"medians of {arguments.runs} seeds", head)
    for fault in ("none", "30 % lost, 20 ± 5 ms"):
        for rule in ("messages", "balls"):
            runs = range(arguments.runs)
            found = [timed(model, data, rule, fault, arguments, seed) for seed in runs]
            middle = {
                name: float(np.median([math.inf if f[name] is None else f[name] for f in found]))
                for name in found[0]
            }
            cells = [{"rule": rule, "fault": fault, "seed": s, **f} for s, f in enumerate(found)]
            record.add([
                rule, fault, f"{middle['to 1e-3, s']:.1f}",
                f"{arguments.rate * middle['to 1e-3, s']:.0f}", f"{middle['updates']:.0f}",
                f"{middle['bytes'] / 1000:.1f}", f"{middle['to 1e-5, s']:.1f}",
                "yes" if all(f["to 1e-5, s"] is not None for f in found) else "no",
            ], *cells)  # fmt: skip


def timed(
    model: Any, data: Data, rule: str, fault: str, arguments: argparse.Namespace, seed: int
) -> dict[str, float | None]:
    """When agents on a network in memory had arrived for good, from their first updates on."""
    node = node_model.of(packed(model))
    faulty = FAULTS[fault]
    network = MemoryNetwork(faulty.get("delay", (0.0, 0.001)), faulty.get("loss", 0.0), seed)
    src, dst = data.edge_index.tolist()
    agents = [
        Agent(
            node, str(i), data.x[i].numpy(), network.endpoint(str(i)), rule=rule,
            neighbours={str(a): Edge() for a, b in zip(src, dst, strict=True) if b == i},
            clock=network.clock,
        )
        for i in range(data.num_nodes)
    ]  # fmt: skip
    with torch.no_grad():
        answer = model.embed(hogwild.Inputs.of(data)).value.double().numpy()
    rng = np.random.default_rng(seed)
    due = rng.uniform(0.0, 1.0 / arguments.rate, len(agents))  # agents begin at any time of a turn
    begun, size, seen = 0.0, float(np.abs(answer).max()), Swarm()
    while network.now < begun + 30.0:
        i = int(due.argmin())
        network.now, due[i] = float(due[i]), due[i] + 1.0 / arguments.rate
        agents[i].turn()
        if not agents[i].updates:
            begun = network.now
        gaps = [np.abs(a.h[0, :, 0] - y).max() for a, y in zip(agents, answer, strict=True)]
        seen.times.append(network.now - begun)
        seen.error.append(float(max(gaps)) / size)
        seen.work.append(float(np.mean([a.updates for a in agents])))
        seen.sent.append(float(np.mean([a.counts["bytes"] for a in agents])))
        since = seen.reached(1e-5) if len(seen.times) % 100 == 0 else None
        if since is not None and seen.times[-1] > since + 3.0:
            break
    return {
        "to 1e-3, s": seen.reached(1e-3), "updates": seen.reached(1e-3, "work"),
        "bytes": seen.reached(1e-3, "sent"), "to 1e-5, s": seen.reached(1e-5),
    }  # fmt: skip


MEASURES = {"start": start, "sizes": sizes, "faults": faults, "rules": rules}


def main() -> None:
    flags = parser(__doc__, "swarm_…")
    flags.add_argument("--start", action="store_true", help="one agent alone")
    flags.add_argument("--sizes", action="store_true", help="three swarms without faults")
    flags.add_argument("--faults", action="store_true", help="one swarm with every fault")
    flags.add_argument("--rules", action="store_true", help="messages and balls, in memory")
    flags.add_argument(
        "--only", default="", help="only rows whose name has this (a regular expression)"
    )
    flags.add_argument("--contender", default="", help="only models whose name has this")
    flags.add_argument("--transports", default="udp,zenoh", help="some of %(default)s")
    flags.add_argument("--runs", type=int, default=10, help="seeds a fault; %(default)s")
    flags.add_argument("--gcn-runs", type=int, default=3, help="the same for GCNs; %(default)s")
    flags.add_argument("--rate", type=float, default=15.0, help="turns a second; %(default)s")
    flags.add_argument("--lease", type=float, default=1.5, help="seconds; %(default)s")
    flags.add_argument("--settle-after", type=float, default=3.0, help="seconds; %(default)s")
    flags.add_argument("--seconds", type=float, default=40.0, help="of a run at most; %(default)s")
    flags.add_argument("--epochs", type=int, default=1500, help="of training; %(default)s")
    flags.add_argument("--models", type=Path, default=Path("runs/swarm"), help="keeps the models")
    given = flags.parse_args()
    torch.set_num_threads(1)
    chosen = [measure for name, measure in MEASURES.items() if getattr(given, name)]
    if not chosen:
        flags.error(f"expected some of {', '.join('--' + name for name in MEASURES)}")
    for measure in chosen:
        measure(given, given.models)


if __name__ == "__main__":
    main()
