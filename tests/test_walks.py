"""How many files a reader walks through: a call enters functions of few files of the library."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import hogwild
import hogwild_node
from hogwild import cluster

ROOTS = tuple(str(Path(package.__file__).parent) for package in (hogwild, hogwild_node))


def files_entered(call):
    """The files of the library in which a function begins while ``call`` runs, in all threads."""
    found = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(ROOTS):
            found.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {name.split("/hogwild", 1)[1] for name in sorted(found)}


@pytest.fixture(scope="module")
def data():
    ring = torch.arange(12)
    edges = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    torch.manual_seed(0)
    return Data(x=torch.randn(12, 3), edge_index=edges)


# The largest number of files, by model and call.
WALKS = {
    ("EnergyGNN", "forward"): 21,
    ("EnergyGNN", "simulate"): 45,
    ("EnergyGNN", "infer"): 37,
    ("SoftEnergyGNN", "forward"): 28,
    ("SoftEnergyGNN", "simulate"): 44,
    ("SoftEnergyGNN", "infer"): 37,
}


@pytest.mark.parametrize(("name", "call"), WALKS)
def test_files(name, call, data):
    """The second call, when everything is imported, compiled and cached."""
    model = getattr(hogwild, name)(3, out_channels=1)

    def walk():
        if call == "forward":
            model(data.x, data.edge_index).sum().backward()
        elif call == "simulate":
            hogwild.simulate(model, data, rule="messages", ticks=20)
        else:
            cluster.infer(model, data)

    walk()
    found = files_entered(walk)
    assert len(found) <= WALKS[name, call], "\n".join(sorted(found))
