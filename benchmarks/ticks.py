r"""Node updates a second of the simulator, in compiled code and on torch.

The model is an untrained ``EnergyGNN`` of the paper's size on random geometric graphs of mean
degree 6, in float64 on a CPU, with S = 5 and D = 2. A cell is a graph, a number of
runs and a number of replicas; an update of one node in one replica counts as one. Every cell runs
twice, in processes of their own: with compiled code, and with ``HOGWILD_KERNELS=off``. Both begin
at the same start and make ticks for the same time.

The table also says how near compiled gradient steps come to two limits: the numbers that an update
must at least read and write, a second, as a share of what copying a large array moves, a second;
and the activations (an exponential, a logarithm and a division each) a second, also as a share of
what a loop of the same function reaches that does nothing else, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tasks import rgg
from training_step import THREADS, limit_threads, publish

from hogwild import EnergyGNN
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph.inputs import Inputs
from hogwild.kernels.native import SWITCH, library
from hogwild.problems.base import Objective
from hogwild.rules import gradient_rule, message_rule
from hogwild_node.rules.base import Rule
from hogwild_node.tree import EDGES, NODES, arrays

STEP = 0.02
WARM = 5
"""Ticks before the clock starts: after S ticks every node has updated."""


def pose(nodes: int, runs: int, replicas: int) -> Objective:
    task = rgg(nodes)
    torch.manual_seed(0)
    count = replicas if replicas > 1 else None
    model = EnergyGNN(task.x.size(1), out_channels=1, replicas=count).double()
    with torch.no_grad():
        problem = model.problem(Inputs(task.x, task.edge_index).repeat(runs))
    assert isinstance(problem, Objective)
    return problem.detach()


def least_bytes(problem: Objective) -> float:
    """Bytes that one update of a node must at least move: its share of the networks' features, and
    its packets, read and written."""
    n, e, k = problem.graph.num_nodes, problem.graph.num_edges, problem.channels
    features = sum(x.nbytes for x, what in arrays(problem.node) if what in (NODES, EDGES))
    number = problem.start().element_size()
    return features / n / problem.replicas + number * k * (2 + 3 * e / n)


RULES: dict[str, Callable[[Objective], Rule]] = {
    "gradient": lambda problem: gradient_rule(problem, STEP),
    "auto": gradient_rule,
    "messages": message_rule,
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def copied(clock: Callable[[], float]) -> float:
    """Bytes a second that copying a large array reads and writes."""
    x = torch.ones(1 << 26)
    y = torch.empty_like(x)
    best = float("inf")
    for _ in range(5):
        begun = clock()
        y.copy_(x)
        best = min(best, clock() - begun)
    return 2 * x.nbytes / best


@torch.no_grad()
def measure(
    rule: str, nodes: int, runs: int, replicas: int, seconds: float, clock: Callable[[], float]
) -> dict[str, Any]:  # fmt: skip
    """Updates a second of one cell, in this process."""
    problem = pose(nodes, runs, replicas)
    made = RULES[rule](problem)
    simulation = Simulation(made, Schedule(problem.graph, runs=runs), problem.start())
    for _ in range(WARM):
        simulation.advance()
    before, begun, ticks = int(simulation.tally.updates.sum()), clock(), 0
    while ticks < WARM or clock() - begun < seconds:
        simulation.advance()
        ticks += 1
    spent = clock() - begun
    updates = (int(simulation.tally.updates.sum()) - before) * replicas
    rnd = problem.node.round  # type: ignore[attr-defined]
    units = [sum(layer.wy.shape[-2] for layer in net.layers[:-1])
             for net in (rnd.message, rnd.loop, rnd.update)]  # fmt: skip
    share = problem.graph.num_edges / problem.graph.num_nodes
    native = library()
    bare = native.activations(1 << 18) if native is not None else 0.0
    return {
        "rate": updates / spent, "ticks": ticks, "compiled": not isinstance(simulation.kernel, str),
        "bytes": least_bytes(problem), "copied": copied(clock),
        "activations": share * units[0] + units[1] + units[2], "bare": bare,
    }  # fmt: skip


def apart(flags: list[str], switch: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    environment = os.environ | {SWITCH: switch}
    call = [sys.executable, __file__, *flags]
    done = subprocess.run(call, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


HEAD = ("rule", "nodes × runs × replicas", "on torch, updates/s", "compiled, updates/s", "faster",
        "compiled, of copying", "compiled, activations/s",
        "of a bare loop of activations")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cells = "100x1x1,100x50x1,100x1x50,10000x1x1,100000x1x1"
    parser.add_argument("--cells", default=cells, help="NODESxRUNSxREPLICAS (%(default)s)")
    rules = "gradient,messages"
    parser.add_argument("--rules", default=rules, help=f"of {', '.join(RULES)} (%(default)s)")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: seconds of this process's threads"
    )
    parser.add_argument("--output", type=Path, help="folder for ticks.json and .md")
    parser.add_argument("--one", action="store_true", help="measure here, and print JSON")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    rows, found, text = [], [], ""
    for rule in arguments.rules.split(","):
        for cell in arguments.cells.split(","):
            nodes, runs, replicas = (int(part) for part in cell.split("x"))
            if arguments.one:
                clock = CLOCKS[arguments.clock]
                print(json.dumps(measure(rule, nodes, runs, replicas, arguments.seconds, clock)))
                continue
            flags = ["--one", "--rules", rule, "--cells", cell, "--seconds", str(arguments.seconds)]
            flags += ["--clock", arguments.clock]
            if arguments.threads:
                flags += ["--threads", str(arguments.threads)]
            torch_, ours = apart(flags, "off"), apart(flags, "")
            if not ours["compiled"]:
                sys.exit(f"{rule} is not compiled")
            gradient = rule == "gradient"  # messages evaluate a node's networks several times
            moved = ours["rate"] * ours["bytes"] / ours["copied"]
            threads = torch.get_num_threads() if arguments.clock == "wall" else 1
            bare = ours["rate"] * ours["activations"] / (ours["bare"] * threads)
            rows.append([
                rule, f"{nodes:,} × {runs} × {replicas}", f"{torch_['rate']:,.0f}",
                f"{ours['rate']:,.0f}", f"{ours['rate'] / torch_['rate']:.1f}×",
                f"{100 * moved:.0f} %" if gradient else "",
                f"{ours['rate'] * ours['activations']:.1e}" if gradient else "",
                f"{100 * bare:.0f} %" if gradient else "",
            ])  # fmt: skip
            found.append({"rule": rule, "cell": cell, "torch": torch_, "compiled": ours})
            print(rows[-1], flush=True)
            text = publish(
                arguments.output, "ticks", "Node updates a second of the simulator ({}).",
                HEAD, rows, found,
            )  # fmt: skip
    if text:
        print(text)


if __name__ == "__main__":
    main()
