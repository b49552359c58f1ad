"""Agents as one starts them by hand: a command each, their status lines in files."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.models.export import export


def ports(count):
    """Free UDP ports."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in made]


@contextlib.contextmanager
def by_hand(place: Path, count: int):
    """A chain of agents 8, 9, …: the folder of their lines, and the processes."""
    torch.manual_seed(0)
    model = EnergyGNN(1, out_channels=1, beta=1.0).double()
    x = torch.randn(count, 1, **DOUBLE)
    export(model, place / "model.hog", data=Data(x=x, edge_index=chain(count)))
    folder = place / "agents"
    folder.mkdir()
    at = [f"127.0.0.1:{port}" for port in ports(count)]
    agents = []
    with contextlib.ExitStack() as stack:
        for i in range(count):
            near = ",".join(f"{8 + j}={at[j]}" for j in (i - 1, i + 1) if 0 <= j < count)
            words = [
                sys.executable, "-m", "hogwild_node.command", "--model", place / "model.hog",
                "--id", str(8 + i), "--transport", "udp", "--listen", at[i], "--rate", "20",
                "--features", repr(float(x[i])), "--neighbours", near, "--status", "0.2",
            ]  # fmt: skip
            lines = stack.enter_context((folder / f"{8 + i}.jsonl").open("w"))
            agents.append(subprocess.Popen(words, stdout=lines, env={**os.environ}))
        try:
            yield folder, agents
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait(20)
