"""A few small graphs, and an energy GNN for them."""

import torch
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.testing.problems import random_graph


def graphs(sizes=(1, 5, 12), seed=1, channels=3):
    graph = random_graph(list(sizes), seed=seed)
    rng = torch.Generator().manual_seed(seed)
    data = Data(
        x=torch.randn(graph.num_nodes, channels, generator=rng, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
    )
    data.batch = graph.batch
    return data


def energy(**options):
    torch.manual_seed(0)
    return EnergyGNN(3, 2, **options).double()
