r"""One process and large graphs: seconds, peak memory, iterations, and the error of the answer.

Every cell is a process of its own, which reads a graph from memory-mapped files and solves it once
without gradients: an energy GNN with edge-wise messages (k = 2), GSDGNN and IGNN with fresh
parameters, float64, default solvers. ``one-worker`` is the same energy GNN by
``hogwild.cluster.infer`` with one worker, to a relative error of 10⁻⁶; its seconds are those of the
whole call, with the files of the graph that it writes. The peak is that of the whole process
(``ru_maxrss``); the prediction is that of :mod:`hogwild.cluster.setup`. The error is the relative
distance to a solve that continues with a tolerance a thousand times as tight. The report has the
exponent of a least-squares fit of log time against log edges (1 is linear).

Graphs: random geometric of mean degree 6 (default), lattices, preferential attachment, and with
``--roads`` the road network in ``$HOGWILD_DATA/roadnet/world_highways.npz``.
"""

from __future__ import annotations

import argparse
import json
import math
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
from training_step import THREADS, environment, limit_threads, table, write

from hogwild import GSDGNN, IGNN, EnergyGNN
from hogwild.cluster import infer
from hogwild.cluster.generate import geometric, grid, power_law
from hogwild.cluster.setup import predict
from hogwild.cluster.sources import open_graph
from hogwild.cluster.whole import Whole

MODELS = {"energy": EnergyGNN, "one-worker": EnergyGNN, "gsd": GSDGNN, "ignn": IGNN}
GRAPHS = ("geometric", "grid", "power-law", "roads")
Row = dict[str, Any]


def make(graph: str, nodes: int, folder: Path) -> Whole:
    """A graph in files."""
    if graph == "geometric":
        return geometric(nodes, folder=folder)
    if graph == "grid":
        return grid(math.isqrt(nodes), folder=folder)
    if graph == "power-law":
        return power_law(nodes, folder=folder)
    place = os.environ.get("HOGWILD_DATA")
    if not place:
        raise SystemExit("set HOGWILD_DATA to the folder that holds roadnet/world_highways.npz")
    names = {"latlon": "pos"}
    path = Path(place) / "roadnet" / "world_highways.npz"
    whole = open_graph(path, undirected=True, names=names, folder=folder)
    x = np.random.default_rng(0).standard_normal((whole.num_nodes, 2))
    return Whole(whole.edge_index, x, node_fields=whole.node_fields)


def peak(device: str) -> float:
    """Most MiB that this process has ever held, on the GPU if it computes there."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def solved(model: Any, name: str, inputs: Any) -> tuple[torch.Tensor, Row]:
    """The embeddings, and how the solve ended."""
    if name == "one-worker":
        run = infer(model, inputs, 1, gather=True)
        assert run.h is not None
        assert run.converged
        more = {"iterations": run.updates[0], "residual": run.error_bar.residual}
        return run.h, more | {"work": run.seconds, "bound": run.error_bar.relative}
    found = model.embed(inputs)
    more = {"iterations": int(found.iterations.max()), "residual": float(found.residual.max())}
    return found.value, more | {"status": found.status.tolist()}


def solve(model_name: str, graph: str, nodes: int, check: bool, device: str) -> Row:
    """One cell; runs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--make", folder, graph, str(nodes)]
        subprocess.run(command, check=True)  # its memory is not counted
        files = {name: np.load(Path(folder) / f"{name}.npy", mmap_mode="c") for name in ("x", "e")}
        inputs = Whole(files["e"].T, files["x"]).inputs().to(device)
        torch.manual_seed(0)
        model = MODELS[model_name](2, out_channels=1).double().to(device)
        before = peak(device)
        with torch.no_grad():  # a small graph first: kernels are loaded
            model.embed(grid(8).inputs().to(device))
        start, cpu = time.perf_counter(), time.process_time()
        with torch.no_grad():
            h, more = solved(model, model_name, inputs)
            float(h.sum())  # a GPU has finished by then
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            row: Row = {
                "model": model_name, "graph": graph,
                "nodes": inputs.num_nodes, "edges": inputs.edge_index.size(1),
                "seconds": seconds, "cpu": cpu, "before_MiB": before, "peak_MiB": peak(device),
            } | more  # fmt: skip
            row["predicted_MiB"] = predict(model, row["nodes"], row["edges"]) / 2**20
            if check:
                conv: Any = model.conv
                conv.on_failure = "ignore"  # it may end at the rounding error
                conv.solver = replace(conv.solver, atol=1e-11, rtol=1e-13)
                tight = model.embed(inputs, h)
                gap = (h - tight.value).norm() / tight.value.norm()
                row["error"], row["tight_residual"] = float(gap), float(tight.residual.max())
    return row


def exponent(rows: list[Row], key: str) -> float:
    """Slope of log ``key`` against log edges."""
    edges, values = (np.log([row[name] for row in rows]) for name in ("edges", key))
    return float(np.polyfit(edges, values, 1)[0])


def report(folder: Path | None, rows: list[Row], device: str) -> str:
    """The results as Markdown; also written to a folder where one is given."""
    place = environment(device)
    text = "One process, large graphs (" + ", ".join(f"{k} {v}" for k, v in place.items()) + ").\n"
    text += "\n" + table(
        ("model", "graph", "nodes", "edges", "seconds", "CPU seconds", "iterations", "residual",
         "error", "peak MiB", "predicted MiB"),
        [
            (r["model"], r["graph"], f"{r['nodes']:,}", f"{r['edges']:,}", f"{r['seconds']:.1f}",
             f"{r['cpu']:.1f}", str(r["iterations"]), f"{r['residual']:.0e}",
             f"{r['error']:.0e}" if "error" in r else "–", f"{r['peak_MiB']:.0f}",
             f"{r['predicted_MiB']:.0f}")
            for r in rows
        ],
    )  # fmt: skip
    slopes: dict[str, float] = {}
    for model in MODELS:
        for graph in GRAPHS:
            some = [r for r in rows if (r["model"], r["graph"]) == (model, graph)]
            if len(some) > 1:
                for key in ("cpu", "seconds"):
                    slopes[f"{model}, {graph}, {key}"] = exponent(some, key)
    for key, words in (("cpu", "CPU seconds"), ("seconds", "Seconds")):
        found = {name.removesuffix(f", {key}"): x for name, x in slopes.items() if key in name}
        if found:
            text += f"\n{words} grow as edges to the power "
            text += ", ".join(f"{slope:.2f} ({name})" for name, slope in found.items()) + ".\n"
    write(folder, "large", {"environment": place, "rows": rows, "exponents": slopes}, text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="10000,100000,1000000", help="default: %(default)s")
    parser.add_argument("--largest", action="store_true", help="10,000,000 nodes, too (hours)")
    parser.add_argument(
        "--models", default="energy,one-worker,gsd,ignn", help="default: %(default)s"
    )
    parser.add_argument("--graphs", default="geometric", help=f"some of {', '.join(GRAPHS)}")
    parser.add_argument("--roads", action="store_true", help="the road network, too")
    parser.add_argument("--no-check", action="store_true", help="leave out the tighter solve")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for large.json and large.md")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        folder, graph, nodes = arguments.make
        whole = make(graph, int(nodes), Path(folder))
        np.save(Path(folder) / "x.npy", whole.x)
        np.save(Path(folder) / "e.npy", whole.edge_index.T)
        return
    device = arguments.device
    limit_threads(arguments.threads)
    if arguments.cell:
        model, graph, nodes = arguments.cell
        print(json.dumps(solve(model, graph, int(nodes), not arguments.no_check, device)))
        return
    sizes = [int(n) for n in arguments.nodes.split(",")] + [10_000_000] * arguments.largest
    cells = [(g, n) for g in arguments.graphs.split(",") for n in sizes if g != "roads"]
    cells += [("roads", 0)] * (arguments.roads or "roads" in arguments.graphs)
    rows: list[Row] = []
    for model in arguments.models.split(","):
        for graph, count in cells:
            command = [sys.executable, __file__, "--cell", model, graph, str(count)]
            command += ["--threads", str(arguments.threads)] if arguments.threads else []
            command += ["--no-check"] if arguments.no_check else []
            command += ["--device", device]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print("  ", rows[-1], flush=True)
            text = report(
                arguments.output, rows, device
            )  # after every cell: finished cells are kept
    print("\n" + text)


if __name__ == "__main__":
    main()
