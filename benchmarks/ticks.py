r"""Node updates a second of the simulator, in compiled code and on torch.

The model is an untrained ``EnergyGNN`` of the paper's size on random geometric graphs of mean
degree 6, in float64 (or as ``--dtype`` says), with S = 5 and D = 2. A cell is a graph, a number of
runs and a number of replicas; an update of one node in one replica counts as one. Every cell runs
twice, in processes of their own: with compiled code, and with ``HOGWILD_KERNELS=off``. Both begin
at the same start and make ticks for the same time.

The table also says how near compiled gradient steps come to two limits: the numbers that an update
must at least read and write, a second, as a share of what copying a large array moves, a second;
and the activations (an exponential, a logarithm and a division each) a second, on a CPU also as a
share of what a loop of the same function reaches that does nothing else, on one thread.

``--device cuda`` measures a GPU, where a tick of gradient steps is one launch. The activations
are then also a share of what the GPU's units for double precision could compute if they did nothing
else: an activation takes ``OPERATIONS`` of them.
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
from asynchrony import BANDWIDTH, STEP, synchronise
from tasks import rgg
from training_step import THREADS, limit_threads, publish

from hogwild import EnergyGNN
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulated import Simulation
from hogwild.graph.inputs import Inputs
from hogwild.kernels.native import SWITCH, library
from hogwild.problems.base import Objective
from hogwild.rules import gradient_rule, message_rule
from hogwild_node.rules.base import Rule
from hogwild_node.tree import EDGES, NODES, arrays

WARM = 5
"""Ticks before the clock starts: after S ticks every node has updated."""


OPERATIONS = 47
"""Instructions in double precision of one activation on a GPU: ``softplus`` of
``kernels/source/vectors.h`` with HOG_SHORT_CHAINS, counted in what ``nvcc -ptx`` makes of it."""
INSTRUCTIONS = {"NVIDIA H200": 17e12}
"""Instructions in double precision a second: half of the operations on the data sheet, which counts
a multiplication and an addition in one instruction as two."""
CHUNK = 20
"""Ticks between two looks at the clock on a GPU, which must be waited for."""


def pose(
    nodes: int, runs: int, replicas: int, device: str, dtype: torch.dtype = torch.float64
) -> Objective:
    task = rgg(nodes)
    torch.manual_seed(0)
    model = EnergyGNN(
        task.x.size(1),
        out_channels=1,
        replicas=replicas if replicas > 1 else None,
        solve_dtype=dtype,
    )
    with torch.no_grad():
        inputs = Inputs(task.x, task.edge_index).repeat(runs).to(device)
        problem = model.double().to(device).problem(inputs)
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


def copied(clock: Callable[[], float], device: str) -> float:
    """Bytes a second that copying a large array reads and writes."""
    x = torch.ones(1 << (26 if device == "cpu" else 30), device=device)
    y = torch.empty_like(x)
    best = float("inf")
    for _ in range(5):
        begun = clock()
        y.copy_(x)
        synchronise(device)
        best = min(best, clock() - begun)
    return 2 * x.nbytes / best


@torch.no_grad()
def measure(
    rule: str, nodes: int, runs: int, replicas: int, seconds: float, clock: Callable[[], float],
    device: str = "cpu", dtype: torch.dtype = torch.float64,
) -> dict[str, Any]:  # fmt: skip
    """Updates a second of one cell, in this process."""
    problem = pose(nodes, runs, replicas, device, dtype)
    made = RULES[rule](problem)
    simulation = Simulation(made, Schedule(problem.graph, runs=runs), problem.start())
    for _ in range(WARM):
        simulation.advance()
    synchronise(device)
    before, begun, ticks = int(simulation.tally.updates.sum()), clock(), 0
    while ticks < WARM or clock() - begun < seconds:
        for _ in range(1 if device == "cpu" else CHUNK):
            simulation.advance()
            ticks += 1
        synchronise(device)
    spent = clock() - begun
    updates = (int(simulation.tally.updates.sum()) - before) * replicas
    rnd = problem.node.round  # type: ignore[attr-defined]
    units = [sum(layer.wy.shape[-2] for layer in net.layers[:-1])
             for net in (rnd.message, rnd.loop, rnd.update)]  # fmt: skip
    share = problem.graph.num_edges / problem.graph.num_nodes
    native = library()
    bare = native.activations(1 << 18) if native is not None and device == "cpu" else 0.0
    compiled = not (isinstance(simulation.ticks, str) and isinstance(simulation.kernel, str))
    return {
        "rate": updates / spent, "ticks": ticks, "compiled": compiled,
        "bytes": least_bytes(problem), "copied": copied(clock, device),
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
        "compiled, of copying", "compiled, activations/s")  # fmt: skip
ON_A_CPU = ("of a bare loop of activations",)
ON_A_GPU = ("of the bandwidth", "of the double-precision units")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cells = "100x1x1,100x50x1,100x1x50,10000x1x1,100000x1x1"
    parser.add_argument("--cells", default=cells, help="NODESxRUNSxREPLICAS (%(default)s)")
    rules = "gradient,messages"
    parser.add_argument("--rules", default=rules, help=f"of {', '.join(RULES)} (%(default)s)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: seconds of this process's threads"
    )
    parser.add_argument("--output", type=Path, help="folder for ticks.json and .md")
    parser.add_argument("--one", action="store_true", help="measure here, and print JSON")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    rows, found, text, on_gpu = [], [], "", arguments.device == "cuda"
    for rule in arguments.rules.split(","):
        for cell in arguments.cells.split(","):
            nodes, runs, replicas = (int(part) for part in cell.split("x"))
            if arguments.one:
                clock = CLOCKS[arguments.clock]
                one = measure(
                    rule, nodes, runs, replicas, arguments.seconds, clock, arguments.device, dtype
                )
                print(json.dumps(one))
                continue
            flags = ["--one", "--rules", rule, "--cells", cell, "--seconds", str(arguments.seconds)]
            flags += ["--clock", arguments.clock, "--device", arguments.device]
            flags += ["--dtype", arguments.dtype]
            if arguments.threads:
                flags += ["--threads", str(arguments.threads)]
            torch_, ours = apart(flags, "off"), apart(flags, "")
            if not ours["compiled"]:
                sys.exit(f"{rule} in {arguments.dtype} on {arguments.device} is not compiled")
            gradient = rule == "gradient"  # messages evaluate a node's networks several times
            moved = ours["rate"] * ours["bytes"] / ours["copied"]
            rows.append([
                rule, f"{nodes:,} × {runs} × {replicas}", f"{torch_['rate']:,.0f}",
                f"{ours['rate']:,.0f}", f"{ours['rate'] / torch_['rate']:.1f}×",
                f"{100 * moved:.0f} %" if gradient else "",
                f"{ours['rate'] * ours['activations']:.1e}" if gradient else "",
            ])  # fmt: skip
            if on_gpu:
                chip = torch.cuda.get_device_name()
                used = ours["rate"] * ours["activations"] * OPERATIONS
                shares = (ours["rate"] * ours["bytes"] / BANDWIDTH[chip], used / INSTRUCTIONS[chip])
                known = (gradient, gradient and dtype == torch.float64)
                rows[-1] += [
                    f"{100 * share:.0f} %" if is_ else ""
                    for share, is_ in zip(shares, known, strict=True)
                ]
            else:
                threads = torch.get_num_threads() if arguments.clock == "wall" else 1
                part = ours["rate"] * ours["activations"] / (ours["bare"] * threads)
                rows[-1].append(f"{100 * part:.0f} %" if gradient else "")
            found.append({"rule": rule, "cell": cell, "torch": torch_, "compiled": ours})
            print(rows[-1], flush=True)
            text = publish(
                arguments.output, "ticks", "Node updates a second of the simulator ({}).",
                (*HEAD, *(ON_A_GPU if on_gpu else ON_A_CPU)), rows, found, arguments.device,
            )  # fmt: skip
    if text:
        print(text)


if __name__ == "__main__":
    main()
