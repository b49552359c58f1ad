"""Adjacency matrices of small graphs, by NumPy alone, and models on learned edge weights."""

from dataclasses import replace

import numpy as np
from helpers import ODD, ODD_NODES, chain, cycle, edges, star
from torch import nn

from hogwild import Inputs


def dense(edge_index, n, weight=None):
    """Ã of one graph, in NumPy."""
    a = np.zeros((n, n))
    weight = np.ones(edge_index.size(1)) if weight is None else weight.detach().numpy()
    np.add.at(a, (edge_index[1].numpy(), edge_index[0].numpy()), weight)
    a += np.eye(n)
    degree = a.sum(1)
    return a / np.sqrt(np.outer(degree, degree))


GRAPHS = {
    "chain": (chain(7), 7),
    "star": (star(6), 6),
    "odd cycle": (cycle(5), 5),
    "directed": (edges((0, 1), (1, 2), (2, 0), (2, 3), (3, 1)), 4),
    "multigraph": (ODD, ODD_NODES),
}


def radius(matrix):
    return float(np.abs(np.linalg.eigvals(matrix)).max())


class OnWeights(nn.Module):
    """A model on edge weights that are a function of the features; a subclass has ``weigh``."""

    def __init__(self, model):
        super().__init__()
        self.model, self.kind = model, model.kind

    def embed(self, inputs, h0=None):
        sender, receiver = (inputs.x[ends] for ends in inputs.edge_index)
        weight = self.weigh(sender, receiver)
        return self.model.embed(replace(inputs, edge_weight=weight), h0)

    def predict(self, inputs):
        return self.embed(inputs).value

    def forward(self, *args, h0=None):
        return self.embed(Inputs(*args), h0).value
