"""Models as users write them, and graphs for them."""

import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE
from torch import nn
from torch_geometric.data import Data

from hogwild.testing.problems import random_graph


def graphs(sizes=(7, 9), dtype=torch.float64, seed=1):
    graph, rng = random_graph(list(sizes), seed=seed), torch.Generator().manual_seed(seed)
    n, m = graph.num_nodes, graph.num_edges
    return Data(
        x=torch.randn(n, 3, generator=rng, **DOUBLE).to(dtype),
        edge_index=torch.stack([graph.src, graph.dst]),
        edge_attr=torch.randn(m, 2, generator=rng, **DOUBLE).to(dtype),
        edge_weight=torch.rand(m, generator=rng, **DOUBLE).to(dtype),
        edge_type=torch.randint(3, (m,), generator=rng),
        pos=torch.randn(n, 2, generator=rng, **DOUBLE).to(dtype),
        batch=graph.batch,
    )


def in_turn(*parts):
    """The arguments of PyG's Sequential for modules one after the other, convolutions with the
    edges. A Sequential that is built in a module that can be imported, as this one, changes the
    forward of the class, and with it the Sequentials of test files."""
    call = {True: "x, edge_index -> x", False: "x -> x"}
    return "x, edge_index", [(m, call[isinstance(m, pyg.MessagePassing)]) for m in parts]


class Given(nn.Module):
    """Two convolutions and a function of (this, data's attributes) between the tensors."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Relations(Given):
    def forward(self, x, edge_index, edge_type):
        return self.b(self.a(x, edge_index, edge_type).relu(), edge_index, edge_type)


class OfData(Given):
    def forward(self, data):
        return self.b(self.a(data.x, data.edge_index).relu(), data.edge_index).log_softmax(-1)
