"""What tests of training runs share."""

from pathlib import Path

import torch
from tiny_tasks import chain
from torch_geometric.data import Data

from hogwild.demo import Scale

TASK = str(Path(__file__).with_name("tiny_tasks.py")) + ":Chains"
"""A task that is small enough to train on in a second, as the command line names it."""
TINY = Scale(pairs=3, replicas=1, share=0.1, runs=2, ticks=20)
"""The smallest demonstration."""
QUICK = {"model": "energy-node", "epochs": 12, "replicas": 2, "validate_every": 3, "log_every": 4}


def parameters(result):
    return torch.cat([p.detach().flatten(1) for p in result.ensemble.parameters()], 1)


def poison(replica, epoch):
    """Put NaN into one replica's parameters after an epoch."""

    def callback(loop):
        if loop.epoch == epoch:
            with torch.no_grad():
                loop.rows.parameters[0][replica] = torch.nan

    return callback


def graphs(factor=1.0, shift=0.0, count=9, dtype=torch.float64):
    """Classes by the mean of a number with a heavy tail; beside it an indicator; edges have a
    number, too."""
    random = torch.Generator().manual_seed(0)
    out = []
    for i in range(count):
        n = 4 + i % 3
        number = torch.randn(n, 1, generator=random).exp() * (1 + 3 * (i % 2))
        flag = torch.randint(2, (n, 1), generator=random)
        x = factor * torch.cat([number, flag], 1).to(dtype) + shift
        edge_index = chain(n)
        attr = factor * torch.randn(edge_index.size(1), generator=random).to(dtype) + shift
        y = torch.tensor([i % 2])
        out.append(Data(x=x, edge_index=edge_index, edge_attr=attr, y=y))
    return out
