"""Workers in this process, for tests that look at single packets."""

from contextlib import contextmanager

import torch
from torch_geometric.data import Data

from hogwild import GSDGNN
from hogwild.cluster.engine import InProcess
from hogwild.cluster.setup import Place, prepared
from hogwild.testing import random_graph


@contextmanager
def pair(folder):
    """Two workers that read each other, and a function that makes one again."""
    torch.manual_seed(0)
    graph = random_graph([12], seed=0)
    x = torch.randn(12, 2, dtype=torch.float64)
    data, model = (
        Data(x=x, edge_index=torch.stack([graph.src, graph.dst])),
        GSDGNN(2, out_channels=1),
    )
    place = Place(folder=folder, partition="search", overlap=0)
    with prepared(model.double(), data, 2, place) as setup:
        engine = InProcess(setup.plan(tol=1e-10, checkpoints=True), 2)
        engine.call("start")
        yield *(host.worker for host in engine.hosts), engine.revive
