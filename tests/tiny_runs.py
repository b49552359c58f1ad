"""What tests of training runs share."""

from pathlib import Path

import torch

TASK = str(Path(__file__).with_name("tiny_tasks.py")) + ":Chains"
"""A task that is small enough to train on in a second, as the command line names it."""
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
