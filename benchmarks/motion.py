"""Graphs that change: how well nodes follow a swarm, and a stream on one machine.

``--measure swarm``: a random-waypoint swarm of 50 robots with 6 neighbours on average changes every
100 updates of a node, 200 times. The table has the median error of a node 10, 25, 50 and 90 updates
after a change, relative to the size of the change, the median error after 50 updates in the first
and in the last quarter of all changes (does it grow?), the lag, and what a node sends. Models have
fresh parameters.

``--measure stream``: a random geometric graph of 10,000 nodes with 6 neighbours on average, of
whose edges 1 % are replaced before every update. Warm (``hogwild.Stream``) and cold solves of the
same graph come one after the other, and reach the same tolerance; every ``--cold``-th update is
also solved cold. A cold solve analyses the graph: it looks for small separators, which such a graph
hardly has. ``--linear cg`` leaves that out of both, and shows what the start alone is worth.
Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from harness import Record, limit_threads, parser
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data

import hogwild
from hogwild.asynchrony.scenarios import swarm as moving
from hogwild.progress import size
from hogwild.tasks.synthetic import near

MODELS = {
    "energy": hogwild.EnergyGNN,
    "gsd": hogwild.GSDGNN,
    "ignn": hogwild.IGNN,
    "gcn": hogwild.GCN,
    "gat": hogwild.GAT,
}
RULES = {
    "energy": ("messages", "gradient"),
    "gsd": ("messages", "gradient"),
    "ignn": ("fixed-point",),
    "gcn": ("caching", "overwriting"),
    "gat": ("caching", "overwriting"),
}
STAGGER, DELAY = 5, 2


def swarm(given: argparse.Namespace) -> None:
    """Every rule on a swarm that moves."""
    every = given.updates * (STAGGER + 1) // 2
    scenario = moving(
        given.nodes, degree=given.degree, changes=given.changes, every=every, speed=0.02
    )
    head = ("model, rule", *(f"{u} updates" for u in (10, 25, 50, 90)), "50, first changes",
            "50, last changes", "lag", "bytes in 100 ticks")  # fmt: skip
    record = Record(given.output, "motion", "The error of a node after a change", head)
    for name in given.models.split(","):
        for rule in RULES[name]:
            torch.manual_seed(0)
            restart = 5 * STAGGER + 1 if rule == "overwriting" else None
            seen = hogwild.track(
                MODELS[name](1, out_channels=1), scenario, rule=rule, restart=restart,
                stagger=STAGGER, delay=DELAY, every=3,
            )  # fmt: skip
            medians = {u: float(seen.after(u).nanmedian()) for u in (10, 25, 50, 90)}
            half = seen.after(50).flatten(1)
            quarter = max(len(half) // 4, 1)
            ends = [float(part.nanmedian()) for part in (half[:quarter], half[-quarter:])]
            cell = {"model": name, "median after": medians, "quarters": ends} | seen.summary()
            record.add([
                f"{name}, {rule}", *(f"{100 * x:.2g} %" for x in (*medians.values(), *ends)),
                f"{cell['lag']:.1f}", size(100 * cell["bytes_a_tick"]),
            ], cell | {"rule": rule})  # fmt: skip


class Edges:
    """Edges of which some change."""

    def __init__(self, nodes: int, share: float, seed: int) -> None:
        self.random, self.nodes, self.share = np.random.default_rng(seed), nodes, share
        place = self.random.random((nodes, 2))
        radius = float(np.sqrt(6.0 / np.pi / nodes))
        both = near(place, radius)
        self.pairs = both[:, both[0] < both[1]]
        others = cKDTree(place).query_pairs(1.5 * radius, output_type="ndarray")
        self.others = torch.from_numpy(np.sort(others, 1).T.copy())

    def change(self) -> Tensor:
        """The edges after another change, in both directions."""
        count = self.pairs.size(1)
        lost = max(1, round(self.share * count))
        keep = self.pairs[:, torch.from_numpy(self.random.permutation(count)[lost:])]
        new = self.others[:, torch.from_numpy(self.random.integers(0, self.others.size(1), lost))]
        key = torch.cat([keep, new], 1)
        key = (key[0] * self.nodes + key[1]).unique()
        self.pairs = torch.stack([key // self.nodes, key % self.nodes])
        return torch.cat([self.pairs, self.pairs.flip(0)], 1)


def stream(given: argparse.Namespace) -> None:
    """Warm against cold solves."""
    head = ("model", "updates", "cold, CPU s", "warm, CPU s", "ratio", "iterations, cold → warm",
            "largest difference")  # fmt: skip
    record = Record(given.output, "stream", "A graph that changes, solved again and again", head)
    for name in given.models.split(","):
        torch.manual_seed(0)
        model, edges = MODELS[name](2, out_channels=1), Edges(given.nodes, 0.01, 0)
        model.conv.solver = replace(model.conv.solver, linear=given.linear)
        solves, x = hogwild.Stream(model), torch.randn(given.nodes, 2)
        warm, cold, counts, gap = [], [], [], 0.0
        for update in range(given.updates + 1):
            edge_index = edges.change()
            begun = time.process_time()
            found = solves.update(Data(x=x, edge_index=edge_index))
            took = time.process_time() - begun
            if not update:
                continue  # the first one is cold
            warm.append(took)
            if update % given.cold == 0 or update == given.updates:
                fresh = edge_index.clone()
                begun = time.process_time()
                with torch.no_grad():
                    whole = model.embed(Data(x=x, edge_index=fresh))
                cold.append(time.process_time() - begun)
                gap = max(gap, float((whole.value - found.value).abs().max()))
                counts.append([float(s.iterations.max()) for s in (whole, found)])
        a, b, steps = float(np.median(cold)), float(np.median(warm)), np.mean(counts, 0)
        cell = {"model": name, "linear": given.linear, "cold": cold, "warm": warm}
        record.add([name, f"{given.updates:,}", f"{a:.3f}", f"{b:.3f}", f"{a / b:.1f}",
                    " → ".join(f"{s:.1f}" for s in steps), f"{gap:.1e}"], cell)  # fmt: skip


def main() -> None:
    flags = parser(__doc__, "motion or stream")
    flags.add_argument("--measure", default="swarm", choices=("swarm", "stream"))
    flags.add_argument("--models", help="default: all that the measure knows")
    flags.add_argument("--nodes", type=int, help="default: 50, of a stream 10,000")
    flags.add_argument("--degree", type=float, default=6.0, help="of the swarm; %(default)s")
    flags.add_argument("--changes", type=int, default=200, help="of the swarm; %(default)s")
    flags.add_argument("--updates", type=int, help="of a node between two changes (100), of a "
                       "stream (1000)")  # fmt: skip
    flags.add_argument("--cold", type=int, default=20, help="every which update is solved cold")
    flags.add_argument("--linear", default="auto", help="linear systems of a stream: auto or cg")
    given = flags.parse_args()
    limit_threads(given.threads or 1)
    measure, models, nodes, updates = (
        (swarm, MODELS, 50, 100) if given.measure == "swarm" else
        (stream, ("energy", "gsd", "ignn"), 10_000, 1000)
    )  # fmt: skip
    given.models = given.models or ",".join(models)
    given.nodes, given.updates = given.nodes or nodes, given.updates or updates
    measure(given)


if __name__ == "__main__":
    main()
