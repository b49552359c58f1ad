"""Train a small energy GNN and run it asynchronously: half a minute, nothing to download."""

from __future__ import annotations

import argparse

import torch
from torch_geometric.data import Data

from hogwild.cli.common import Outcome
from hogwild.executors.run import simulate
from hogwild.training import train

HELP = "train a small model and run it asynchronously"
EXAMPLES = """\
  hogwild demo
  hogwild demo --length 20 --epochs 200"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The size of the example."""
    parser.add_argument("--length", type=int, default=10, help="nodes of a chain; default: 10")
    parser.add_argument("--epochs", type=int, default=150, help="of training; default: 150")


def chains(length: int) -> list[Data]:
    """Two chains of nodes; only the first node of each is told which of the two it is in."""
    a = torch.arange(length - 1)
    edge_index = torch.cat([torch.stack([a, a + 1]), torch.stack([a + 1, a])], 1)
    graphs = []
    for label in range(2):
        x = torch.zeros(length, 2)
        x[0, label] = 1.0
        graphs.append(Data(x=x, edge_index=edge_index, y=torch.full((length,), label)))
    return graphs


def run(given: argparse.Namespace) -> Outcome:
    """Train, then simulate."""
    graphs = chains(given.length)
    result = train(graphs, model="energy-edge", epochs=given.epochs, lr=0.02, replicas=3)
    double = [g.clone().apply(lambda t: t.double() if t.is_floating_point() else t) for g in graphs]
    seen = simulate(result.model, double, runs=10, tol=1e-6)
    text = (
        f"Two chains of {given.length} nodes; every node must tell which chain it is in, but only\n"
        f"the first of each is told.\n\n{result.summary()}\n\n"
        f"The best of them, its nodes updating at random times on stale messages:\n{seen}"
    )
    data = {**result.as_dict(), "deviation": float(seen.deviation.max()), "ticks": seen.ticks}
    return Outcome(text, data, bool(seen.converged.all()))
