r"""Agents that send messages, and agents that solve what they know (``rule="balls"``).

``--processes`` runs the chain by both rules as real processes, seed by seed in turn, without faults
and with 30 % of the packets lost, and takes medians. Processes share the cores of one machine with
whatever else runs there. ``--memory`` runs the same agents in one process on a network in memory,
whose clock waits for them: there, seconds depend on nothing but the schedule. ``--balls`` measures
how long one agent solves for graphs of several sizes.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from swarm import FAULTS, chain, finish, fitted, shown
from torch_geometric.data import Data

import hogwild
from hogwild.executors.swarm import Faults, Swarm, run
from hogwild.models.export import described as described_model
from hogwild_node import model as node_model
from hogwild_node.agent import Agent, Edge
from hogwild_node.balls import Balls
from hogwild_node.flood import Word
from hogwild_node.model_file import ModelFile, name_of
from hogwild_node.profiles import PROFILE, Profile
from hogwild_node.transports.memory import MemoryNetwork

TRIED = ("none", "30 % lost, 20 ± 5 ms")
RULES = ("rule", "fault", "transport", "1e-3 after, s", "updates each", "kB until then",
         "1e-6 after, s", "settled, s", "kB in all", "worst error", "wrong bounds")  # fmt: skip
COMPARED = "Messages and balls on the chain of 20, medians"


def processes(arguments: argparse.Namespace, folder: Path) -> None:
    """The same swarms by two rules."""
    model, data = fitted(*chain(arguments.epochs, "energy-edge", folder))
    kinds = [
        (rule, fault, transport)
        for fault in TRIED
        for transport in arguments.transports.split(",")
        for rule in ("messages", "balls")
    ]
    cells: list[dict[str, Any]] = []
    for seed in range(arguments.runs):
        for rule, fault, transport in kinds:
            seen = run(
                model, data, rule=rule, transport=transport, rate=arguments.rate,
                faults=Faults(seed=seed, **FAULTS[fault]), lease=arguments.lease,
                settle_after=arguments.settle_after, seconds=arguments.seconds,
            )  # fmt: skip
            cells.append({
                "rule": rule, "fault": fault, "transport": transport, "seed": seed,
                "to 1e-3, s": seen.reached(1e-3), "updates to 1e-3": seen.updates_to(1e-3),
                "bytes to 1e-3": seen.bytes_to(1e-3), "to 1e-6, s": seen.reached(1e-6),
                "settled, s": seen.settled_at, "bytes": seen.bytes, "error": seen.deviation,
                "wrong": seen.false_alarms, "missed": seen.missed,
            })  # fmt: skip
            print(cells[-1], flush=True)
            rows = [compared(kind, cells) for kind in kinds]
            rows = [row for row in rows if row is not None]
            finish(arguments, "swarm_rules", COMPARED, RULES, rows, cells)


TIMED = ("rule", "fault", "1e-3 after, s", "turns each", "updates each", "kB until then",
         "1e-5 after, s", "all within 1e-5")  # fmt: skip


def memory(arguments: argparse.Namespace, folder: Path) -> None:
    """The same agents in one process."""
    model, data = fitted(*chain(arguments.epochs, "energy-edge", folder))
    cells, rows = [], []
    for fault in TRIED:
        for rule in ("messages", "balls"):
            found = [
                timed(model, data, rule, fault, arguments, seed) for seed in range(arguments.runs)
            ]
            cells += [{"rule": rule, "fault": fault, "seed": s, **f} for s, f in enumerate(found)]
            middle = {
                name: float(np.median([math.inf if f[name] is None else f[name] for f in found]))
                for name in found[0]
            }
            rows.append([
                rule, fault, f"{middle['to 1e-3, s']:.1f}",
                f"{arguments.rate * middle['to 1e-3, s']:.0f}", f"{middle['updates']:.0f}",
                f"{middle['bytes'] / 1000:.1f}", f"{middle['to 1e-5, s']:.1f}",
                "yes" if all(f["to 1e-5, s"] is not None for f in found) else "no",
            ])  # fmt: skip
            title = f"The same agents on a clock that waits for them, {arguments.rate:.0f} turns a "
            title += f"second, medians of {arguments.runs} seeds"
            finish(arguments, "swarm_memory", title, TIMED, rows, cells)


def balls(arguments: argparse.Namespace, folder: Path) -> None:
    """What a ball costs."""
    model, data = fitted(*chain(arguments.epochs, "energy-edge", folder))
    sizes, rows = [], []
    for nodes in map(int, arguments.nodes.split(",")):
        name, first, again, resting = ball(model, data, nodes)
        sizes.append({"nodes": nodes, "first, ms": first, "again, ms": again, "rest, ms": resting})
        rows.append([name, f"{first:.0f}", f"{again:.1f}", f"{resting:.2f}"])
    head = ("ball", "first solve, ms", "solve after a change of features, ms", "nothing new, ms")
    finish(arguments, "swarm_balls", "Balls in NumPy, one turn", head, rows, sizes)


def compared(kind: tuple[str, str, str], cells: list[dict[str, Any]]) -> list[str] | None:
    """One row: the medians of some runs."""
    found = [c for c in cells if (c["rule"], c["fault"], c["transport"]) == kind]
    if not found:
        return None

    def median(name: str, form: str = ".1f", unit: float = 1.0) -> str:
        values = [math.inf if c[name] is None else c[name] / unit for c in found]
        middle = float(np.median(values))
        return shown(middle if math.isfinite(middle) else None, form)

    return [
        *kind, median("to 1e-3, s"), median("updates to 1e-3", ".0f"),
        median("bytes to 1e-3", ".1f", 1000.0), median("to 1e-6, s"), median("settled, s"),
        median("bytes", ".1f", 1000.0), f"{max(c['error'] for c in found):.0e}",
        str(sum(c["wrong"] for c in found)),
    ]  # fmt: skip


def timed(
    model: Any, data: Data, rule: str, fault: str, arguments: argparse.Namespace, seed: int
) -> dict[str, float | None]:
    """When agents on a network in memory had arrived for good, from their first updates on."""
    config, tensors = described_model(model)
    node = node_model.of(ModelFile(config, tensors, name_of(config, tensors)))
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
        "to 1e-3, s": seen.reached(1e-3), "updates": seen.updates_to(1e-3),
        "bytes": seen.bytes_to(1e-3), "to 1e-5, s": seen.reached(1e-5),
    }  # fmt: skip


def ball(model: Any, data: Data, nodes: int) -> tuple[str, float, float, float]:
    """Name of a grid of so many nodes; the time in ms of the first solve of the whole grid, of a
    solve after the features of one node have changed, and of a turn of a settled agent."""
    config, tensors = described_model(model)
    node = node_model.of(ModelFile(config, tensors, name_of(config, tensors)))
    network, rng, side = MemoryNetwork(), np.random.default_rng(0), math.isqrt(nodes)
    x = data.x.numpy()[rng.integers(data.num_nodes, size=nodes)]
    x = x + rng.normal(0.0, 0.1, x.shape)
    near: list[set[int]] = [set() for _ in range(nodes)]
    for i in range(nodes):
        for j in (i + 1 if (i + 1) % side else nodes, i + side):
            if j < nodes:
                near[i].add(j)
                near[j].add(i)
    agent = Agent(
        node, "0", x[0], network.endpoint("0"), rule="balls", clock=network.clock,
        neighbours={str(j): Edge() for j in near[0]},
    )  # fmt: skip
    work = agent.work
    assert isinstance(work, Balls)

    def heard(i: int, features: Any) -> None:
        profile = Profile(features, {str(j): (1.0, None) for j in near[i]})
        version = (work.flood.words[PROFILE, str(i)].version[0] + 1, 1) if i in told else (1, 1)
        told.add(i)
        work.flood.words[PROFILE, str(i)] = Word(version, profile.write(), profile)
        work._look_around()

    def timed() -> float:
        begun = time.perf_counter()
        work.update(0.0, lambda: None)
        return 1000.0 * (time.perf_counter() - begun)

    told: set[int] = set()
    for i in range(nodes):
        heard(i, x[i])
    first, again = timed(), []
    assert (work.whole, work.knows) == (True, nodes)
    for i in range(1, 10):
        heard(nodes - i, x[nodes - i] + rng.normal(0.0, 0.1, x.shape[1]))
        again.append(timed())
    still = [timed() for _ in range(20)]
    name = f"grid of {nodes} nodes, {work.model.channels} channels"
    return name, first, float(np.median(again)), float(np.median(still))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", action="store_true", help="as processes")
    parser.add_argument("--memory", action="store_true", help="in memory, on a clock that waits")
    parser.add_argument("--balls", action="store_true", help="how long one agent solves")
    parser.add_argument("--transports", default="udp,zenoh", help="some of %(default)s")
    parser.add_argument("--nodes", default="20,54,100,256", help="sizes of balls; %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="seeds; %(default)s")
    parser.add_argument("--rate", type=float, default=15.0, help="turns a second; %(default)s")
    parser.add_argument("--lease", type=float, default=1.5, help="seconds; %(default)s")
    parser.add_argument("--settle-after", type=float, default=3.0, help="seconds; %(default)s")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run at most; %(default)s")
    parser.add_argument("--epochs", type=int, default=1500, help="of training; %(default)s")
    parser.add_argument("--models", type=Path, default=Path("runs/swarm"), help="keeps the models")
    parser.add_argument("--output", type=Path, help="folder for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    asked = {"processes": processes, "memory": memory, "balls": balls}
    chosen = [measure for name, measure in asked.items() if getattr(arguments, name)]
    if not chosen:
        parser.error(f"expected some of {', '.join('--' + name for name in asked)}")
    for measure in chosen:
        measure(arguments, arguments.models)


if __name__ == "__main__":
    main()
