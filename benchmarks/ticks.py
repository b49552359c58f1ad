r"""Node updates a second of the simulator, in compiled code and on torch.

The model is an untrained ``EnergyGNN`` of the paper's size on random geometric graphs of mean
degree 6, in float64 on a CPU, with S = 5 and D = 2. A cell is a graph, a number of
runs and a number of replicas; an update of one node in one replica counts as one. Every cell runs
twice, in processes of their own: with compiled code, and with ``HOGWILD_KERNELS=off``. Both begin
at the same start and make ticks for the same time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import CLOCKS, Record, apart, limit_threads, parser
from tasks import rgg

from hogwild import EnergyGNN
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph.inputs import Inputs
from hogwild.problems.base import Objective
from hogwild.rules import gradient_rule, message_rule
from hogwild_node.rules.base import Rule

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


RULES: dict[str, Callable[[Objective], Rule]] = {
    "gradient": lambda problem: gradient_rule(problem, STEP),
    "auto": gradient_rule,
    "messages": message_rule,
}


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
    return {
        "rate": updates / spent, "ticks": ticks, "compiled": simulation.kernel is not None,
    }  # fmt: skip


HEAD = ("rule", "nodes × runs × replicas", "on torch, updates/s", "compiled, updates/s",
        "faster")  # fmt: skip


def main() -> None:
    flags = parser(__doc__, "ticks")
    cells = "100x1x1,100x50x1,100x1x50,10000x1x1,100000x1x1"
    flags.add_argument("--cells", default=cells, help="NODESxRUNSxREPLICAS (%(default)s)")
    rules = "gradient,messages"
    flags.add_argument("--rules", default=rules, help=f"of {', '.join(RULES)} (%(default)s)")
    flags.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    flags.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: seconds of this process's threads"
    )
    flags.add_argument("--one", action="store_true", help="measure here, and print JSON")
    given = flags.parse_args()
    limit_threads(given.threads)
    record = None
    if not given.one:
        record = Record(given.output, "ticks", "Node updates a second of the simulator", HEAD)
    for rule in given.rules.split(","):
        for cell in given.cells.split(","):
            nodes, runs, replicas = (int(part) for part in cell.split("x"))
            if record is None:
                clock = CLOCKS[given.clock]
                print(json.dumps(measure(rule, nodes, runs, replicas, given.seconds, clock)))
                continue
            words = ["--one", "--rules", rule, "--cells", cell, "--seconds", given.seconds,
                     "--clock", given.clock]  # fmt: skip
            words += ["--threads", given.threads] if given.threads else []
            slow, fast = (apart(__file__, *words, kernels=k) for k in ("off", "on"))
            if not fast["compiled"]:
                sys.exit(f"{rule} is not compiled")
            row = [
                rule, f"{nodes:,} × {runs} × {replicas}", f"{slow['rate']:,.0f}",
                f"{fast['rate']:,.0f}", f"{fast['rate'] / slow['rate']:.1f}×",
            ]  # fmt: skip
            record.add(row, {"rule": rule, "cell": cell, "torch": slow, "compiled": fast})


if __name__ == "__main__":
    main()
