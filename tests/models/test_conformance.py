"""Models of fixed points: with edge features, with a readout, and for some nodes only."""

import pytest
import torch
from helpers import DOUBLE

from experiments.maximum import MaxConv, MaxGNN
from hogwild import Inputs, ScarselliGNN
from hogwild.models import ScarselliConv
from hogwild.testing import check_model
from hogwild.testing.problems import random_graph


@pytest.mark.parametrize("conv", [MaxConv, ScarselliConv])
def test_edge_features(conv, device):
    check_model(lambda **kw: conv(3, edge_dim=2, **kw), edge_dim=2, device=device)


@pytest.mark.parametrize("model", [MaxGNN, ScarselliGNN])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_gnn(model, pool, device):
    check_model(lambda **kw: model(3, out_channels=2, pool=pool, **kw), device=device)


@pytest.mark.parametrize(("conv", "close"), [(MaxConv, 0.0), (ScarselliConv, 1e-7)])
def test_some_nodes_compute_what_all_would(conv, close):
    graph = random_graph([1, 4, 9], seed=3)
    edge_index = torch.stack([graph.src, graph.dst])
    inputs = Inputs(torch.randn(14, 3, **DOUBLE), edge_index, None, graph.batch)
    problem = conv(3, replicas=2).double().problem(inputs).detach()
    inbox = torch.randn(2, 2, graph.num_edges, **DOUBLE)  # stale, unrelated to h
    h, nodes = torch.randn(2, 2, 14, **DOUBLE), torch.tensor([3, 13, 0])
    at = graph.star(nodes)
    some = problem.update(h[..., nodes], inbox[..., at.edges], at)
    whole = problem.update(h, inbox, graph.everyone)[..., nodes]
    torch.testing.assert_close(some, whole, rtol=close, atol=close)
