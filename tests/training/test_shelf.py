"""Batches of a task's graphs."""

import torch
from tiny_tasks import chain
from torch_geometric.data import Data

from hogwild.training.batches import Shelf


def test_shelf_numbers_nodes_as_all_graphs_together_do():
    graphs = [Data(x=torch.full((n, 1), float(n)), edge_index=chain(n)) for n in (2, 4, 3)]
    shelf = Shelf(graphs, torch.float64, torch.device("cpu"))
    taken = shelf.take(torch.tensor([0, 2]), keep=True)
    assert taken.nodes.tolist() == [0, 1, 6, 7, 8]
    assert taken.data.x.dtype == torch.float64
    assert taken.data.num_graphs == 2
    assert shelf.take(torch.tensor([0, 2])) is taken
    assert graphs[0].x.dtype == torch.float32
