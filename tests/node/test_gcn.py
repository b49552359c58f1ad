"""A trained GCN runs on nodes without torch: the same numbers."""

import pytest
import torch
from tiny_nodes import alone, close
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv

import hogwild_node
from hogwild import GCN, Inputs, LayeredGNN
from hogwild.models.program import LayeredProblem

MODELS = {
    "gcn": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=3),
    "no bias": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, bias=False),
    "replicas": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=3, replicas=2),
    "leaky": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, act=nn.LeakyReLU(0.1)),
    "tanh": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, act="tanh"),
    "no loops": lambda: LayeredGNN([GCNConv(4, 4, add_self_loops=False)] * 2, 3, out_channels=2),
    "improved": lambda: LayeredGNN([GCNConv(4, 4, improved=True)] * 2, 3, out_channels=2),
}
PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 2)]
LOOPS = [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1)]


def pose(name="gcn", extra=(), weighted=False):
    """A GCN on a graph with a node of its own; ``extra`` edges may be loops and repeat others."""
    torch.manual_seed(0)
    edges = torch.tensor([*PAIRS, *[(j, i) for i, j in PAIRS], *extra]).T.contiguous()
    model = MODELS[name]().double().eval()
    for p in model.parameters():
        p.copy_(torch.randn_like(p) * 0.7)
    weight = torch.rand(edges.size(1)).double() if weighted else None
    return model.problem(Inputs(torch.randn(7, 3).double(), edges, edge_weight=weight))


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("extra", [(), LOOPS], ids=["simple", "multigraph"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_layer_is_that_of_pyg(name, extra, weighted):
    problem = pose(name, extra, weighted)
    assert isinstance(problem.node, hogwild_node.GCN)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes).double()
    inbox = torch.randn(*h.shape[:2], graph.num_edges).double()
    for layer in range(problem.depth):
        theirs = problem.update(layer, h, inbox, graph.everyone)
        close(problem.node.update(layer, h, inbox, graph.everyone), theirs)
        for node in range(graph.num_nodes):
            model, at = alone(problem.node, graph, node)
            edges = graph.star(torch.tensor([node])).edges.numpy()
            mine = model.update(layer, h[..., [node]].numpy(), inbox[..., edges].numpy(), at)
            close(mine, theirs[..., [node]])


def test_other_layers_stay_with_torch():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1], [1, 0]])
    dropped = GCN(3, out_channels=2, hidden_channels=4, dropout=0.5).train()
    normed = GCN(3, out_channels=2, hidden_channels=4, norm=nn.LayerNorm(4)).eval()
    for model in (LayeredGNN([SAGEConv(4, 4)], 3, out_channels=2).eval(), normed):
        problem = model.problem(Inputs(torch.randn(2, 3), edges))
        assert problem.node is problem
        assert isinstance(problem.node, LayeredProblem)
    problem = dropped.eval().problem(Inputs(torch.randn(2, 3), edges))
    assert isinstance(problem.node, hogwild_node.GCN)
    dropped.train()
    assert problem.node is problem  # a node draws its own dropout
