"""Agents as one starts them by hand: a command each."""

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.models.export import export


def wait(good, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def ports(count):
    """Ports that are free."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in made]


@contextlib.contextmanager
def at_addresses(place: Path, count: int, transport: str, *more: str, keys=None, first=None):
    """A chain of agents 8, 9, …: where they listen, and the processes.

    ``keys``: the folder of their certificates; ``first``: the port of the first.
    """
    torch.manual_seed(0)
    model = EnergyGNN(1, out_channels=1, beta=1.0).double()
    x = torch.randn(count, 1, **DOUBLE)
    export(model, place / "model.hog", data=Data(x=x, edge_index=chain(count)))
    free = ports(count)
    at = [f"127.0.0.1:{port}" for port in (free if first is None else [first, *free[1:]])]
    agents = []
    with contextlib.ExitStack() as stack:
        for i in range(count):
            near = ",".join(f"{8 + j}={at[j]}" for j in (i - 1, i + 1) if 0 <= j < count)
            words = [
                sys.executable, "-m", "hogwild_node.command", "--model", place / "model.hog",
                "--id", str(8 + i), "--transport", transport, "--listen", at[i], "--rate", "20",
                f"--features={float(x[i])!r}", "--neighbours", near, *more,
            ]  # fmt: skip
            if keys is not None:
                words += ["--certificates", keys / str(8 + i), "--controller", "base"]
            agents.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            stack.callback(agents[-1].wait, 20)
        for agent in agents:
            stack.callback(agent.terminate)
        yield at, agents
