"""A graph that changes, solved again and again: warm (``hogwild.Stream``) against cold solves.

A random geometric graph of 10,000 nodes with 6 neighbours on average. Every update replaces 1 % of
its edges by other pairs of nodes that are near each other. Warm and cold solves of the same graph
come one after the other in one process, and reach the same tolerance; every ``--cold``-th update is
also solved cold. A cold solve analyses the graph: it looks for small separators, which such a graph
hardly has. ``--linear cg`` leaves that out of both, and shows what the start alone is worth.
Seconds are those of the CPU: other processes distort them least.

    python benchmarks/stream.py --updates 1000 --cold 50 --models gsd,ignn
    python benchmarks/stream.py --updates 200 --cold 20 --models energy
    python benchmarks/stream.py --updates 12 --cold 4 --linear cg
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data

import hogwild
from hogwild.progress import aligned
from hogwild.tasks.moving import near

MODELS = {
    "gsd": lambda: hogwild.GSDGNN(2, out_channels=1),
    "ignn": lambda: hogwild.IGNN(2, out_channels=1),
    "energy": lambda: hogwild.EnergyGNN(2, out_channels=1),
}


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


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--cold", type=int, default=20, help="every which update is solved cold")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--linear", default="auto", help="linear systems of both: auto or cg")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [["model", "cold, CPU s", "warm, CPU s", "ratio", "iterations", "largest difference"]]
    for name in options.models.split(","):
        torch.manual_seed(0)
        model, edges = MODELS[name](), Edges(options.nodes, options.share, 0)
        model.conv.solver = replace(model.conv.solver, linear=options.linear)
        stream, x = hogwild.Stream(model), torch.randn(options.nodes, 2)
        warm, cold, gap = [], [], 0.0
        counts = [0.0, 0.0]
        for update in range(options.updates + 1):
            edge_index = edges.change()
            begun = time.process_time()
            found = stream.update(Data(x=x, edge_index=edge_index))
            took = time.process_time() - begun
            if not update:
                continue  # the first one is cold
            warm.append(took)
            if update % options.cold == 0 or update == options.updates:
                fresh = edge_index.clone()
                begun = time.process_time()
                with torch.no_grad():
                    whole = model.embed(Data(x=x, edge_index=fresh))
                cold.append(time.process_time() - begun)
                gap = max(gap, float((whole.value - found.value).abs().max()))
                counts[0] += float(whole.iterations.max())
                counts[1] += float(found.iterations.max())
        a, b = float(np.median(cold)), float(np.median(warm))
        steps = " → ".join(f"{count / len(cold):.1f}" for count in counts)
        rows.append([name, f"{a:.3f}", f"{b:.3f}", f"{a / b:.1f}", steps, f"{gap:.1e}"])
        print(aligned(rows[:1] + rows[-1:]), flush=True)
    print(aligned(rows))


if __name__ == "__main__":
    main()
