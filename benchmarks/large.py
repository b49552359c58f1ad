r"""Large graphs and memory: seconds and peak memory of one process.

*Without* ``--training``, a graph is solved once without gradients: an energy GNN with edge-wise
messages (k = 2), GSDGNN and IGNN with fresh parameters, float64, default solvers. The graphs are
random geometric ones of mean degree 6, and with ``--roads`` the road network in
``$HOGWILD_DATA/roadnet/world_highways.npz``. The peak is that of the whole process (``ru_maxrss``);
the prediction is that of :mod:`hogwild.cluster.setup`. The error is the relative distance to a
solve that continues with a tolerance a thousand times as tight. Below the table stands the exponent
of a least-squares fit of log time against log edges (1 is linear).

*With* ``--training``, three training steps of the cells of ``training_step.py`` run from a cold
start in compiled code, and on torch. The peak is the largest resident memory (VmHWM) after these
steps, less what is resident before the first one: torch, hogwild, the task and the model.

Every measurement has a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Record, apart, limit_threads, parser
from rivals import build, training_step
from tasks import TASKS, rgg
from torch_geometric.utils import to_undirected
from training_step import CELLS, SIZES

from hogwild import GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild.cluster.setup import predict

MODELS = {"energy": EnergyGNN, "gsd": GSDGNN, "ignn": IGNN}
HEAD = ("model", "graph", "nodes", "edges", "seconds", "CPU seconds", "iterations", "residual",
        "error", "peak MiB", "predicted MiB")  # fmt: skip
Row = dict[str, Any]


def make(nodes: int, folder: Path) -> None:
    """Write features and edges of a random geometric graph, or (no nodes) of the roads."""
    if nodes:
        task = rgg(nodes, averagings=0)
        x, edges = task.x.numpy(), task.edge_index.numpy()
    else:
        place = os.environ.get("HOGWILD_DATA")
        if not place:
            raise SystemExit("set HOGWILD_DATA to the folder that holds roadnet")
        path = Path(place) / "roadnet" / "world_highways.npz"
        with np.load(path) as roads:
            x = np.random.default_rng(0).standard_normal((len(roads["latlon"]), 2))
            ends = np.stack([roads["src"], roads["dst"]]).astype(np.int64)
        edges = to_undirected(torch.from_numpy(ends)).numpy()
    np.save(folder / "x.npy", x)
    np.save(folder / "edges.npy", edges)


def peak(device: str) -> float:
    """Most MiB that this process has ever held, on the GPU if it computes there."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.no_grad()
def solve(name: str, nodes: int, check: bool, device: str) -> Row:
    """One solve of a graph; runs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--make", folder, str(nodes)]
        subprocess.run(command, check=True)  # its memory is not counted
        x, edges = (torch.from_numpy(np.load(f"{folder}/{n}.npy")) for n in ("x", "edges"))
        inputs = Inputs(x, edges).to(device)
    torch.manual_seed(0)
    model = MODELS[name](2, out_channels=1).double().to(device)
    small = rgg(64)
    model.embed(Inputs(small.x, small.edge_index).to(device))  # loads the kernels
    before, start, cpu = peak(device), time.perf_counter(), time.process_time()
    found = model.embed(inputs)
    float(found.value.sum())  # a GPU has finished by then
    row: Row = {
        "model": name, "graph": "geometric" if nodes else "roads",
        "nodes": inputs.num_nodes, "edges": inputs.edge_index.size(1),
        "seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu,
        "iterations": int(found.iterations.max()), "residual": float(found.residual.max()),
        "before_MiB": before, "peak_MiB": peak(device),
    }  # fmt: skip
    row["predicted_MiB"] = predict(model, row["nodes"], row["edges"]) / 2**20
    if check:
        conv: Any = model.conv
        conv.on_failure = "ignore"  # it may end at the rounding error
        conv.solver = replace(conv.solver, atol=1e-11, rtol=1e-13)
        tight = model.embed(inputs, found.value).value
        row["error"] = float((found.value - tight).norm() / tight.norm())
    return row


def exponents(rows: list[Row]) -> dict[str, float]:
    """Slopes of log seconds against log edges, model by model."""
    found = {}
    for name in MODELS:
        some = [row for row in rows if (row["model"], row["graph"]) == (name, "geometric")]
        for key in ("cpu", "seconds") if len(some) > 1 else ():
            edges, values = (np.log([row[k] for row in some]) for k in ("edges", key))
            found[f"{name}, {key}"] = float(np.polyfit(edges, values, 1)[0])
    return found


def solves(given: Any) -> None:
    """Large graphs, one solve each."""
    record = Record(given.output, "large", "One process, large graphs", HEAD, given.device)
    for name in given.models.split(","):
        for nodes in [int(n) for n in given.nodes.split(",")] + [0] * given.roads:
            words = ["--cell", name, nodes, "--device", given.device]
            words += ["--threads", given.threads] if given.threads else []
            r = apart(__file__, *words, *(["--no-check"] if given.no_check else []))
            slopes = record.about["exponents"] = exponents([*record.cells, r])
            texts = [f"{slope:.2f} ({which})" for which, slope in slopes.items()]
            if texts:
                record.note = f"Time grows as edges to the power {', '.join(texts)}."
            record.add([
                r["model"], r["graph"], f"{r['nodes']:,}", f"{r['edges']:,}", f"{r['seconds']:.1f}",
                f"{r['cpu']:.1f}", str(r["iterations"]), f"{r['residual']:.0e}",
                f"{r['error']:.0e}" if "error" in r else "–", f"{r['peak_MiB']:.0f}",
                f"{r['predicted_MiB']:.0f}",
            ], r)  # fmt: skip


def resident(field: str) -> float:
    """A field of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def trained(cell: str) -> dict[str, float]:
    """Peak memory of three training steps in this process, in MB above what was resident before."""
    name, replicas = cell.split(":")
    task = TASKS[name](SIZES["cpu"][name])
    model = build(task, int(replicas))
    before = resident("VmRSS")
    for _ in range(3):
        model.zero_grad()
        training_step(model, task, None)
    return {"before": before, "peak": resident("VmHWM") - before}


def steps(given: Any) -> None:
    """Training steps, compiled and on torch."""
    head = ("cell", "compiled", "torch", "compiled / torch")
    record = Record(given.output, "memory", "Peak memory of a training step, MB", head)
    for cell in given.cells.split(","):
        words = ["--step", cell, *(["--threads", given.threads] if given.threads else [])]
        found = {kernels: apart(__file__, *words, kernels=kernels) for kernels in ("on", "off")}
        ours, torchs = found["on"]["peak"], found["off"]["peak"]
        row = [cell, f"{ours:.1f}", f"{torchs:.1f}", f"{ours / torchs:.2f}"]
        record.add(row, {"cell": cell, **found})


def main() -> None:
    flags = parser(__doc__, "large")
    flags.add_argument("--nodes", default="10000,100000,1000000", help="default: %(default)s")
    flags.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    flags.add_argument("--roads", action="store_true", help="the road network, too")
    flags.add_argument("--no-check", action="store_true", help="leave out the tighter solve")
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--training", action="store_true", help="memory of training steps instead")
    cells = ",".join(cell for cell in CELLS if not cell.startswith("rgg"))
    flags.add_argument("--cells", default=cells, help="of --training; default: %(default)s")
    flags.add_argument("--cell", nargs=2, help="measure here: model, nodes")
    flags.add_argument("--step", help="measure here: a cell of --training")
    flags.add_argument("--make", nargs=2, help="write a graph: folder, nodes")
    given = flags.parse_args()
    limit_threads(given.threads)
    if given.make:
        make(int(given.make[1]), Path(given.make[0]))
    elif given.cell:
        name, nodes = given.cell
        print(json.dumps(solve(name, int(nodes), not given.no_check, given.device)))
    elif given.step:
        print(json.dumps(trained(given.step)))
    elif given.training:
        steps(given)
    else:
        solves(given)


if __name__ == "__main__":
    main()
