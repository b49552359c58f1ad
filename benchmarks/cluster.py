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
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from harness import Record, limit_threads, parser
from tasks import lattice
from torch_geometric.data import Data

from hogwild import GSDGNN, IGNN, EnergyGNN
from hogwild.cluster import infer
from hogwild.cluster.actors import Actors, connect
from hogwild.cluster.cutting import OVERLAP
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
    x = torch.randn(side * side, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Data(x=x, edge_index=lattice(side))


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
    engine.call("start", True)
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
    for overlap in overlaps:
        place = Place(folder=folder / overlap, overlap=0 if overlap == "none" else OVERLAP)
        with (
            prepared(model, data, workers, place) as setup,
            setup.executor(TOL, checkpoints=True) as engine,
        ):
            assert isinstance(engine, Actors)
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


HEAD = ("model", "nodes", "workers", "overlap", "one process", "parts", "updates",
        "parts / with barriers", "straggler: parts", "straggler: with barriers / parts",
        "largest error")  # fmt: skip


def shown(c: dict[str, Any]) -> list[str]:
    """The line of a cell in the table."""
    free, bars, late, waiting = (c[way.name]["seconds"] for way in CONTENDERS)
    return [
        c["model"], f"{c['nodes']:,}", str(c["workers"]), c["overlap"],
        f"{c['one process']:.2f} s", f"{free:.2f} s", str(max(c["free"]["updates"])),
        f"{free / bars:.2f}", f"{late:.2f} s", f"{waiting / late:.2f}",
        f"{max(c[way.name]['error'] for way in CONTENDERS):.0e}",
    ]  # fmt: skip


def main() -> None:
    flags = parser(__doc__, "cluster")
    flags.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    flags.add_argument("--side", type=int, default=None, help="nodes of a side of the grid")
    flags.add_argument("--workers", nargs="*", type=int, default=[2, 4])
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--overlaps", nargs="*", default=["auto", "none"], choices=["auto", "none"])
    given = flags.parse_args()
    limit_threads(given.threads or 1)
    connect(None, max(given.workers), 1.0, 0.0)
    record = Record(given.output, "cluster", "Parts of a graph as processes", HEAD)
    for name, workers in product(given.models, given.workers):
        with tempfile.TemporaryDirectory() as folder:
            where, side = Path(folder).absolute(), given.side or SIDES[name]
            for found in cell(name, side, workers, given.rounds, where, given.overlaps):
                record.add(shown(found), found)


if __name__ == "__main__":
    main()
