r"""Parts of a graph as processes: without barriers, with barriers, and with a straggler.

A square grid is cut into 2 and 4 parts (METIS), one actor of Ray each. Every model is solved to the
same error bar, a relative error of 10⁻⁵,

* in one process, by the solver of the model (*one process*);
* by the parts without barriers, and by the same parts with barriers after every update;
* both again with one part slowed five times: it sleeps four times as long as its update took, so
  that it takes no core from the others.

All of this is done with the overlap of the parts that the library chooses, and without any overlap
(``--overlaps``): an overlap leaves few exchanges, and with them few barriers to wait at.

The processes of a case are started once, and the contenders take turns in each of several rounds.
Times are from the first update to the end. The start of Ray, about ten seconds, is not included.
``--road`` solves the highways of the world (``$HOGWILD_DATA/roadnet``) instead and draws a map.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from training_step import described, environment, table, write

from hogwild import GSDGNN, IGNN, EnergyGNN
from hogwild.cluster import infer, open_graph
from hogwild.cluster.actors import Actors, connect
from hogwild.cluster.inference import gathered
from hogwild.cluster.setup import Place, Setup, prepared
from hogwild.cluster.worker import Status

MODELS = {
    "energy": lambda: EnergyGNN(4, out_channels=2, hidden_channels=4),
    "gsd": lambda: GSDGNN(4, out_channels=2, hidden_channels=4),
    "ignn": lambda: IGNN(4, out_channels=2, hidden_channels=4, act="tanh"),
}
SIDES = {"energy": 60, "gsd": 200, "ignn": 200}
"""Nodes of a side of the grid: an update should take longer than a packet."""
TOL = 1e-5
SLOW = 5.0


def grid(side: int) -> Data:
    """A square grid with random features."""
    at = np.arange(side * side).reshape(side, side)
    one = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    two = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    ends = torch.from_numpy(np.stack([np.r_[one, two], np.r_[two, one]]))
    x = torch.randn(side * side, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Data(x=x, edge_index=ends)


@dataclass
class Contender:
    """One way to run the parts."""

    name: str
    barriers: bool
    slow: dict[int, float]


CONTENDERS = [
    Contender("free", False, {}),
    Contender("barriers", True, {}),
    Contender("free, straggler", False, {0: SLOW}),
    Contender("barriers, straggler", True, {0: SLOW}),
]


def once(engine: Actors, setup: Setup, way: Contender) -> dict[str, Any]:
    """One run of a contender, from zero."""
    engine.barriers = way.barriers
    engine.pace(way.slow)
    engine.call("forget")
    engine.call("start", "solve", True)
    last: list[Status] = []

    def watch(seconds: float, statuses: list[Status]) -> None:
        last[:] = statuses

    began = time.perf_counter()
    assert engine.iterate(watch, seconds=300.0), "not settled"
    seconds = time.perf_counter() - began
    h, _ = gathered(engine, setup)
    return {
        "seconds": seconds,
        "h": h,
        "updates": [s.updates for s in last],
        "bytes": sum(s.bytes for s in last),
    }


def cell(
    name: str, side: int, workers: int, rounds: int, folder: Path, overlaps: list[str]
) -> list[dict[str, Any]]:
    """One model on one graph with so many workers: a row for each overlap."""
    torch.manual_seed(0)
    model, data = MODELS[name]().double(), grid(side)
    with torch.no_grad():
        exact = model.embed(data).value
    rows = []
    with prepared(model, data, workers, Place(folder=folder)) as setup:
        plan = setup.plan(tol=TOL, checkpoints=folder / "checkpoints")
        with Actors(plan, workers) as engine:
            for overlap in overlaps:
                engine.load(replace(plan, overlap=0 if overlap == "none" else None))
                runs, alone = contest(engine, setup, data, rounds)
                row = {"model": name, "nodes": side * side, "workers": workers, "overlap": overlap}
                rows.append(row | {"one process": statistics.median(alone)} | judged(runs, exact))
    return rows


def contest(
    engine: Actors, setup: Setup, data: Data, rounds: int
) -> tuple[dict[str, list[dict[str, Any]]], list[float]]:
    """All contenders in turn, several times; and the seconds of one process."""
    runs: dict[str, list[dict[str, Any]]] = {way.name: [] for way in CONTENDERS}
    alone = []
    once(engine, setup, CONTENDERS[0])  # the first solve analyses the parts
    for _ in range(rounds):
        alone.append(infer(setup.model, data, 1, tol=TOL).seconds)
        for way in CONTENDERS:
            runs[way.name].append(once(engine, setup, way))
    return runs, alone


def judged(runs: dict[str, list[dict[str, Any]]], exact: torch.Tensor) -> dict[str, Any]:
    """Median seconds, largest error, updates and megabytes of every contender."""
    found = {}
    for way, some in runs.items():
        errors = [float((r["h"] - exact).norm() / exact.norm()) for r in some]
        found[way] = {
            "seconds": statistics.median(r["seconds"] for r in some),
            "error": max(errors),
            "updates": some[-1]["updates"],
            "megabytes": some[-1]["bytes"] / 1e6,
        }
    return found


def shown(cells: list[dict[str, Any]]) -> str:
    """A table of ratios."""
    rows = []
    for c in cells:
        free, bars, late, waiting = (c[way.name]["seconds"] for way in CONTENDERS)
        rows.append([
            c["model"], f"{c['nodes']:,}", str(c["workers"]), c["overlap"],
            f"{c['one process']:.2f} s", f"{free:.2f} s", str(max(c["free"]["updates"])),
            f"{free / bars:.2f}", f"{late:.2f} s", f"{waiting / late:.2f}",
            f"{max(c[way.name]['error'] for way in CONTENDERS):.0e}",
        ])  # fmt: skip
    head = ["model", "nodes", "workers", "overlap", "one process", "parts", "updates",
            "parts / with barriers", "straggler: parts", "straggler: with barriers / parts",
            "largest error"]  # fmt: skip
    return table(head, rows)


def denoiser(gamma: float) -> GSDGNN:
    """Graph signal denoising of the given numbers themselves."""
    model = GSDGNN(1, out_channels=1, hidden_channels=1, gamma=gamma, beta=1.0).double()
    model.conv.encoder = torch.nn.Identity()
    return model


EUROPE = (-11.0, 32.0, 35.0, 62.0)


def road(workers: int, out: Path) -> dict[str, Any]:
    """The highways of the world: a field with noise, denoised, and a source that spreads."""
    from hogwild.plots.cluster import graph_map

    source = Path(os.environ["HOGWILD_DATA"]) / "roadnet" / "world_highways.npz"
    graph = open_graph(source, undirected=True, names={"latlon": "pos", "km": "length"})
    pos, edges = np.asarray(graph.node_fields["pos"])[:, ::-1], np.asarray(graph.edge_index)
    ends = torch.from_numpy(edges)

    def solved(x: Any, gamma: float, **options: Any) -> tuple[Any, Any]:
        data = Data(x=torch.from_numpy(x), edge_index=ends)
        run = infer(denoiser(gamma), data, workers, tol=1e-4, **options)
        assert run.h is not None
        print(run, flush=True)
        return run, run.h.numpy()[:, 0]

    lon, lat = np.radians(pos.T)
    clean = np.cos(6 * lat) * np.sin(5 * lon)
    noisy = clean + np.random.default_rng(0).standard_normal(clean.shape)
    run, h = solved(noisy[:, None], 0.02, overlap=32)
    found: dict[str, Any] = {"denoised": dict(run.data)}
    found["denoised"] |= {
        name: float(np.sqrt(np.mean((x - clean) ** 2)))
        for name, x in (("noise before", noisy), ("noise after", h))
    }
    look: dict[str, Any] = {"edge_index": edges, "cmap": "RdBu_r", "limits": (-1.5, 1.5)}
    many = f"{len(pos):,} junctions of highways"
    for name, x, words in (("noisy", noisy, "a field with noise"), ("denoised", h, "denoised")):
        graph_map(pos, x, out / f"roads_{name}.png", title=f"{words}, {many}", width=11.0, **look)
        graph_map(pos, x, out / f"roads_{name}_europe.png", title=words, width=7.0, window=EUROPE,
                  **look)  # fmt: skip
    graph_map(pos, run.part.astype(int), out / "roads_parts.png", title=f"{workers} parts",
              edge_index=edges, width=11.0)  # fmt: skip
    begin = int(np.argmin(np.abs(pos - [2.35, 48.86]).sum(1)))  # in Paris
    x = np.zeros((len(pos), 1))
    x[begin] = 1.0
    run, h = solved(x, 1e-5, overlap=250)
    hops = breadth_first(edges, begin, len(pos))
    reached = h >= 1e-6 * h.max()
    found["spread"] = dict(run.data) | {
        "hops": int(hops[reached].max()),
        "nodes": int(reached.sum()),
    }
    share = np.log10(np.maximum(h / h.max(), 1e-6))
    words = f"a source in Paris, spread over up to {found['spread']['hops']:,} hops"
    look = {"edge_index": edges, "cmap": "magma_r", "label": "share of the source, log10"}
    look |= {"limits": (-6.0, 0.0), "window": (-20.0, 150.0, -36.0, 72.0)}
    graph_map(pos, share, out / "roads_spread.png", title=words, width=11.0, **look)
    return found


def breadth_first(edges: Any, begin: int, count: int) -> Any:
    """Hops from a node to all nodes, [N]; -1 where there is no path."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order

    joined = csr_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), (count, count))
    order, before = breadth_first_order(joined, begin)
    hops = np.full(count, -1)
    hops[begin] = 0
    for node in order[1:].tolist():
        hops[node] = hops[before[node]] + 1
    return hops


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--side", type=int, default=None, help="nodes of a side of the grid")
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overlaps", nargs="*", default=["auto", "none"], choices=["auto", "none"])
    parser.add_argument("--road", type=Path, default=None, help="draw maps into this folder")
    parser.add_argument("--out", type=Path, default=None, help="write the results into this folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    connect(None, max(options.workers), 1.0, 0.0)
    if options.road is not None:
        options.road.mkdir(parents=True, exist_ok=True)
        found = road(max(options.workers), options.road)
        if options.out is not None:
            write(
                options.out, "cluster_road", {"environment": environment("cpu"), "road": found}, ""
            )
        return
    cells: list[dict[str, Any]] = []
    for name in options.models:
        for workers in options.workers:
            with tempfile.TemporaryDirectory() as folder:
                where, side = Path(folder).absolute(), options.side or SIDES[name]
                more = cell(name, side, workers, options.rounds, where, options.overlaps)
                cells += more
            print(shown(more), flush=True)
            if options.out is not None:
                results = {"environment": environment("cpu"), "cells": cells}
                write(options.out, "cluster", results, shown(cells))
    print(described(environment("cpu")))
    print(shown(cells))


if __name__ == "__main__":
    main()
