"""Two versions of hogwild beside each other: CPU time of a training step and of the simulator.

Every cell is measured in its own process for each version, in turns, so that a busy machine slows
both versions. The measure is the CPU time of one thread, the smallest of several repetitions. The
report has milliseconds of both versions, and the ratio after / before.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py --before ../before/src --after src:node/src
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import Record, parser

CELL = r"""
import sys, time
import torch
torch.set_num_threads(1)
import hogwild
from torch_geometric.data import Batch, Data
kind, nodes, graphs, replicas, repeat = sys.argv[1], *map(int, sys.argv[2:])
rng = torch.Generator().manual_seed(0)


def path(n):
    i = torch.arange(n - 1)
    return torch.cat([torch.stack([i, i + 1]), torch.stack([i + 1, i])], 1)


def geometric(n):
    at = torch.rand(n, 2, generator=rng)
    near = torch.cdist(at, at) < (6.0 / (n * 3.1416)) ** 0.5
    return (near & ~torch.eye(n, dtype=torch.bool)).nonzero().T.contiguous()


make = geometric if kind.startswith("geometric") else path
data = [Data(x=torch.rand(nodes, 3, generator=rng).double(), edge_index=make(nodes))
        for _ in range(graphs)]
batch = Batch.from_data_list(data)
torch.manual_seed(0)
model = hogwild.EnergyGNN(3, out_channels=1, replicas=None if replicas == 1 else replicas).double()
args = (batch.x, batch.edge_index, None, batch.batch)


def step():
    model.zero_grad()
    model(*args, batch_size=graphs).square().mean().backward()


def linearise():
    problem = model.conv.problem(hogwild.Inputs(*args, batch_size=graphs)).detach()
    with torch.no_grad():
        at = problem.evaluate(problem.start())
        at.gradient
        at.hessian().diagonal()


def simulate(rule):
    options = {"runs": 2, "ticks": 60, "tol": None, "rule": rule}
    return lambda: hogwild.simulate(model, data, **options)


job = {"step": step, "linearise": linearise, "gradient": simulate("gradient"),
       "messages": simulate("messages")}[kind.split("-")[1]]
job()
best = float("inf")
for _ in range(repeat):
    begun = time.process_time()
    job()
    best = min(best, time.process_time() - begun)
print(1e3 * best)
"""
CELLS = {
    "chains 2 × 100, training step": ("path-step", 100, 2, 1, 5),
    "chains 2 × 100, 50 replicas, training step": ("path-step", 100, 2, 50, 3),
    "paths 30 × 25, 10 replicas, training step": ("path-step", 25, 30, 10, 3),
    "geometric 5,000, evaluation and Hessian": ("geometric-linearise", 5000, 1, 1, 5),
    "geometric 5,000, 4 replicas, evaluation and Hessian": ("geometric-linearise", 5000, 1, 4, 3),
    "geometric 10 × 50, 60 ticks of gradient steps": ("geometric-gradient", 50, 10, 1, 3),
    "geometric 10 × 50, 60 ticks of messages": ("geometric-messages", 50, 10, 1, 2),
}


def measure(path: str, cell: tuple[object, ...]) -> float:
    """Milliseconds of CPU time of a cell with the packages on this path."""
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", CELL, *map(str, cell)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    flags = parser(__doc__, "before_after")
    flags.add_argument("--before", required=True, help="PYTHONPATH of the older version")
    flags.add_argument("--after", required=True, help="PYTHONPATH of the newer version")
    flags.add_argument("--rounds", type=int, default=3, help="processes a cell and version")
    flags.add_argument("--only", default="", help="cells whose name holds this")
    given = flags.parse_args()
    paths = {"before": given.before, "after": given.after}
    paths = {name: ":".join(str(Path(p).resolve()) for p in path.split(":"))
             for name, path in paths.items()}  # fmt: skip
    head = ("cell", "before, ms", "after, ms", "after / before")
    record = Record(given.output, "before_after", "Two versions, CPU time of one thread", head)
    for name, cell in CELLS.items():
        if given.only not in name:
            continue
        best = dict.fromkeys(paths, float("inf"))
        for _ in range(given.rounds):
            for version, path in paths.items():
                best[version] = min(best[version], measure(path, cell))
        ratio = best["after"] / best["before"]
        row = [name, f"{best['before']:.1f}", f"{best['after']:.1f}", f"{ratio:.2f}"]
        record.add(row, {"cell": name, **best, "ratio": ratio})


if __name__ == "__main__":
    main()
