"""Problems whose nodes compute alone, in NumPy."""

from dataclasses import fields, replace

import numpy as np
import torch
from helpers import DOUBLE
from problems.test_pairwise import Huber

from hogwild import Inputs
from hogwild.graph import Graph
from hogwild.models import EIGNNConv, EnergyConv, GSDConv, IGNNConv, SoftEnergyConv
from hogwild_node import Star
from hogwild_node.local import BothSides
from hogwild_node.tree import walk

MODELS = {
    "edge": lambda: EnergyConv(3, hidden_channels=2),
    "node": lambda: EnergyConv(3, hidden_channels=3, message="node"),
    "heads": lambda: EnergyConv(3, hidden_channels=2, heads=2),
    "averaged heads": lambda: EnergyConv(3, hidden_channels=2, heads=2, concat=False),
    "edge features": lambda: EnergyConv(3, hidden_channels=2, edge_dim=2),
    "normalised": lambda: EnergyConv(3, hidden_channels=1, normalize=True),
    "squareplus": lambda: EnergyConv(3, hidden_channels=2, act="squareplus", widths=(5,)),
    "affine": lambda: EnergyConv(3, hidden_channels=2, widths=()),
    "replicas": lambda: EnergyConv(3, hidden_channels=2, replicas=3),
    "wide": lambda: EnergyConv(3, hidden_channels=8),
    "gsd": lambda: GSDConv(3, hidden_channels=2),
    "soft": lambda: SoftEnergyConv(3, hidden_channels=2, width=3),
    "ignn": lambda: IGNNConv(3, hidden_channels=2, act="tanh"),
    "eignn": lambda: EIGNNConv(3, hidden_channels=2),
}


ENERGIES = [name for name in MODELS if name not in ("ignn", "eignn")]


GRAPHS = {
    "cycles": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 2)],
    "lonely": [(0, 1)],
    "star": [(0, i) for i in range(1, 9)],
}


def numpy(x):
    """The same structure in NumPy."""
    return walk(x, lambda array, _: array.detach().numpy())


def star(at):
    found = {f.name: getattr(at, f.name) for f in fields(Star)}
    return Star(**{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in found.items()})


def pose(name, graph="cycles", extra=()):
    """A problem, its graph and embeddings; ``extra`` edges may be loops and repeat others."""
    torch.manual_seed(0)
    pairs = GRAPHS[graph]
    n = max(max(pair) for pair in pairs) + 2  # one node has no neighbours
    edge_index = torch.tensor([*pairs, *[(j, i) for i, j in pairs], *extra]).T.contiguous()
    conv = MODELS[name]().double()
    attr = torch.randn(edge_index.size(1), 2).double() if name == "edge features" else None
    x = torch.randn(n, 3).double()
    problem = conv.problem(Inputs(x, edge_index, attr)).detach()
    return problem, torch.randn(problem.replicas, problem.channels, n).double()


def close(mine, theirs, tol=1e-12):
    theirs = theirs.numpy() if isinstance(theirs, torch.Tensor) else theirs
    np.testing.assert_allclose(mine, theirs, rtol=tol, atol=tol * np.abs(theirs).max(initial=1.0))


PAIRWISE = ["soft", "heads", "gsd", "own"]


def pairwise(name, seed, pairs, n):
    """A pairwise energy on a graph with these pairs of nodes as edges both ways, in any order; the
    edges of a pair have different weights and features."""
    torch.manual_seed(seed)
    loops = [(i, j) for i, j in pairs if i == j]
    both = loops + [e for i, j in pairs if i != j for e in ((i, j), (j, i))]
    edge_index = torch.tensor(both, dtype=torch.long).reshape(-1, 2)[torch.randperm(len(both))].T
    e = edge_index.size(1)
    x, weight = torch.randn(n, 3, **DOUBLE), torch.rand(e, **DOUBLE)
    if name == "own":
        return Huber(Graph.of(edge_index, n), torch.randn(2, 2, n, **DOUBLE), weight, 3.0)
    conv, attr = GSDConv(3, hidden_channels=2, replicas=2), None
    if name in ("soft", "heads"):
        options = {"width": 3} if name == "soft" else {"width": 4, "heads": 2, "local_channels": 3}
        conv = SoftEnergyConv(3, hidden_channels=2, edge_dim=2, replicas=2, **options)
        attr = torch.randn(e, 2, **DOUBLE)
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(torch.randn_like(p))
        return conv.double().problem(Inputs(x, edge_index, attr, edge_weight=weight)).detach()


LOOPS = [(), ((0, 0), (1, 0), (1, 0), (0, 1), (0, 1))]


def alone(model, graph, node, both=False):
    """The model and the star of one node: all that a robot has. With ``both`` it computes both
    sides of its edges."""
    at = graph.star(torch.tensor([node]))
    wide = at.with_senders(graph.src, graph.reverse) if both else at
    mine = numpy(model.at(wide))
    return BothSides(mine) if both else mine, replace(star(at), nodes=None, edges=None)
