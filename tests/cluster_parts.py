"""Workers in this process, for tests that look at single packets."""

from contextlib import contextmanager

import torch
from torch_geometric.data import Data

from hogwild import GSDGNN
from hogwild.cluster.setup import Place, prepared
from hogwild.cluster.worker import Disorder
from hogwild.testing import random_graph


@contextmanager
def pair(folder):
    """Two workers that read each other, and a function that makes one again."""
    torch.manual_seed(0)
    graph = random_graph([12], seed=0)
    x = torch.randn(12, 2, dtype=torch.float64)
    data = Data(x=x, edge_index=torch.stack([graph.src, graph.dst]))
    model = GSDGNN(2, out_channels=1).double()
    place = Place(folder=folder, partition="search", overlap=0, disorder=Disorder())
    with prepared(model, data, 2, place) as setup:
        engine = setup.executor(1e-10, checkpoints=True)
        engine.call("start")
        yield *(host.worker for host in engine.hosts), engine.revive
