"""Layers one node at a time: the same values as on the whole graph, or a refusal."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, ODD, ODD_NODES, cycle, grid, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.utils import add_self_loops, degree

from hogwild import GCN, Inputs, LayeredGNN
from hogwild.errors import AsynchronyError
from hogwild.graph import Graph
from hogwild.ops import gather
from hogwild.testing.problems import random_graph

K = 4


class Tutorial(pyg.MessagePassing):
    """A user's own GCN layer, as PyG's tutorial writes it: degrees counted in ``forward``."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(K, K)

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        root = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        return self.propagate(edge_index, x=self.lin(x), norm=root[row] * root[col])

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Mine(pyg.MessagePassing):
    """A user's own layer: a maximum over functions of both ends and the edge."""

    def __init__(self):
        super().__init__(aggr="max")
        self.lin = nn.Linear(2 * K + 2, K)

    def forward(self, x, edge_index, edge_attr):
        return x + self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i, x_j, edge_attr):
        return self.lin(torch.cat([x_i, x_j, edge_attr], -1)).tanh()


def mlp(width=K):
    return nn.Sequential(nn.Linear(width, K), nn.ReLU(), nn.Linear(K, K))


SCALERS = ["identity", "amplification", "attenuation"]
DEGREES = torch.tensor([1, 3, 5, 2])
# What a layer is called: how to make it, the width of its edge features, whether its neighbours'
# degrees matter.
LAYERS = {
    "GCNConv": (lambda: pyg.GCNConv(K, K), None, False),
    "GCNConv, improved": (lambda: pyg.GCNConv(K, K, improved=True), None, False),
    "GCNConv, max": (lambda: pyg.GCNConv(K, K, aggr="max"), None, True),
    "GATConv": (lambda: pyg.GATConv(K, 2, heads=2), None, False),
    "GATConv, edges": (lambda: pyg.GATConv(K, 2, heads=2, edge_dim=2), 2, False),
    "GATv2Conv": (lambda: pyg.GATv2Conv(K, 2, heads=2, edge_dim=2), 2, False),
    "SAGEConv": (lambda: pyg.SAGEConv(K, K), None, False),
    "SAGEConv, max": (lambda: pyg.SAGEConv(K, K, aggr="max", normalize=True), None, False),
    "GINConv": (lambda: pyg.GINConv(mlp(), train_eps=True), None, False),
    "GINEConv": (lambda: pyg.GINEConv(mlp(), edge_dim=2), 2, False),
    "PNAConv": (
        lambda: pyg.PNAConv(K, K, ["mean", "max", "std"], SCALERS, DEGREES, edge_dim=2),
        2,
        False,
    ),
    "GraphConv": (lambda: pyg.GraphConv(K, K), None, False),
    "TransformerConv": (lambda: pyg.TransformerConv(K, 2, heads=2, edge_dim=2), 2, False),
    "EdgeConv": (lambda: pyg.EdgeConv(mlp(2 * K)), None, False),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(K, K), None, False),
    "ClusterGCNConv": (lambda: pyg.ClusterGCNConv(K, K), None, False),
    "LGConv": (lambda: pyg.LGConv(), None, True),
    "SGConv": (lambda: pyg.SGConv(K, K, K=1), None, True),
    "TAGConv": (lambda: pyg.TAGConv(K, K, K=1), None, True),
    "ChebConv": (lambda: pyg.ChebConv(K, K, K=2), None, True),
    "ARMAConv": (lambda: pyg.ARMAConv(K, K, num_layers=1), None, True),
    "AntiSymmetricConv": (lambda: pyg.AntiSymmetricConv(K), None, True),
    "PDNConv": (lambda: pyg.PDNConv(K, K, 2, 3), 2, True),
    "the tutorial's": (Tutorial, None, True),
    "a user's own": (Mine, 2, False),
}


def model_of(name, replicas=None, depth=2, **options):
    make, edge_dim, _ = LAYERS[name]
    torch.manual_seed(0)
    convs = [make() for _ in range(depth)]
    return LayeredGNN(
        convs, 3, out_channels=2, hidden_channels=K, edge_dim=edge_dim, replicas=replicas, **options
    ).double()


def inputs_of(model, edge_index, n):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=random, **DOUBLE)
    if model.edge_dim is None:
        return x, edge_index
    return x, edge_index, torch.randn(edge_index.size(1), 2, generator=random, **DOUBLE)


def reference(name, model, layer, h, inputs, edge_weight):
    """PyG's own layer on the whole graph, replica by replica: [R, k, N] → [R, k, N]."""
    conv, out = LAYERS[name][0]().double(), []
    for r in range(h.size(0)):
        state = model.conv.layers[layer].conv.state_dict()
        if model.replicas is not None:
            state = {key: value[r] for key, value in state.items()}
        conv.load_state_dict(state)
        options = {} if len(inputs) == 2 else {"edge_attr": inputs[2]}
        options |= {} if edge_weight is None else {"edge_weight": edge_weight}
        with torch.no_grad():
            out.append(torch.relu(conv(h[r].mT, inputs[1], **options)).mT)
    return torch.stack(out)


WEIGHTED = ("GCNConv", "GraphConv", "LGConv", "SGConv")


@pytest.mark.parametrize(
    ("name", "replicas", "weighted"),
    [(name, replicas, False) for name in LAYERS for replicas in (None, 2)]
    + [(name, None, True) for name in WEIGHTED],
)
def test_every_layer_at_all_nodes_and_at_some(name, replicas, weighted):
    """``update`` with inboxes that hold the senders' values is PyG's layer; at the end it is the
    model's forward pass. On a graph with loops, doubled, one-way and no edges."""
    model, needs_degrees = model_of(name, replicas), LAYERS[name][2]
    inputs = inputs_of(model, ODD, ODD_NODES)
    weight = torch.rand(ODD.size(1), **DOUBLE) if weighted else None
    problem = model.problem(Inputs(*inputs, edge_weight=weight))
    graph = problem.graph
    assert (problem.replicas, problem.channels, problem.depth) == (replicas or 1, K, 2)
    assert problem.surrounded == needs_degrees
    h = problem.start()
    encoded = model.conv.encoder(inputs[0])
    assert torch.equal(h.mT, encoded if replicas else encoded.unsqueeze(0))
    nodes = torch.tensor([3, 0, 5, 1])
    at = graph.star(nodes)
    for layer in range(problem.depth):
        inbox = gather(h, graph.src)
        some = problem.update(layer, h[..., nodes], inbox[..., at.edges], at)
        expected = reference(name, model, layer, h, inputs, weight)
        h = problem.update(layer, h, inbox, graph.everyone)
        torch.testing.assert_close(h, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(some, h[..., nodes], rtol=1e-12, atol=1e-12)
    out = model.readout(h.mT if replicas else h[0].mT)
    expected = model(*inputs, edge_weight=weight)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "GraphConv", "SGConv", "a user's own"])
def test_the_inbox_is_what_is_read(name):
    """A node's value changes with its own inbox, and with nobody else's."""
    model = model_of(name, act=None)
    problem = model.problem(Inputs(*inputs_of(model, grid(3, 3), 9)))
    graph = problem.graph
    h, inbox = problem.start(), torch.randn(1, K, graph.num_edges, **DOUBLE)
    before = problem.update(0, h, inbox, graph.everyone)
    for edge in (0, 5, 11):
        moved = torch.zeros(graph.num_nodes, **DOUBLE)
        for change in (-3.0, 3.0):  # one of them is seen through a maximum
            other = inbox.clone()
            other[..., edge] += change
            after = problem.update(0, h, other, graph.everyone)
            moved = torch.maximum(moved, (after - before).abs().amax((0, 1)))
        assert (moved > 1e-6).nonzero()[:, 0].tolist() == [int(graph.dst[edge])]


def test_updates_are_differentiable():
    """In the parameters, the features and the edge weights, like the forward pass."""
    model, x = model_of("GCNConv"), torch.randn(ODD_NODES, 3, **DOUBLE).requires_grad_()
    weight = torch.rand(ODD.size(1), **DOUBLE).requires_grad_()
    problem = model.problem(Inputs(x, ODD, edge_weight=weight))
    h = problem.start()
    for layer in range(problem.depth):
        h = problem.update(layer, h, gather(h, problem.graph.src), problem.graph.everyone)
    leaves = [x, weight, *model.conv.encoder.parameters(), *model.conv.layers.parameters()]
    expected = model.embed(Inputs(x, ODD, edge_weight=weight)).value
    one = torch.autograd.grad(h.square().sum(), leaves)
    two = torch.autograd.grad(expected.square().sum(), leaves)
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 7))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=15))
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()
    nodes = draw(st.lists(node, min_size=1, max_size=n, unique=True))
    return edge_index, n, torch.tensor(nodes)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv, edges", "SGConv", "ChebConv", "PDNConv"])
@settings(max_examples=20, deadline=None)
@given(case=graphs())
def test_on_any_graph_some_nodes_compute_what_all_would(name, case):
    edge_index, n, nodes = case
    model = model_of(name, depth=1)
    inputs = inputs_of(model, edge_index, n)
    problem = model.problem(Inputs(*inputs))
    graph, h = problem.graph, problem.start()
    at = graph.star(nodes)
    found = problem.update(0, h[..., nodes], gather(h, graph.src)[..., at.edges], at)
    whole = model.embed(Inputs(*inputs)).value.mT.unsqueeze(0)
    torch.testing.assert_close(found, whole[..., nodes], rtol=1e-12, atol=1e-12)


# -- the problem ----------------------------------------------------------------------------------


def test_training_mode():
    """Batch statistics and dropout belong to training; the reason says so."""
    x, edge_index = torch.randn(6, 3, **DOUBLE), cycle(6)
    for options, words in (
        ({"norm": "batch_norm"}, ["BatchNorm", "model.eval()"]),
        ({"dropout": 0.5}, ["training mode", "dropout", "model.eval()"]),
    ):
        convs = [pyg.SAGEConv(K, K) for _ in range(2)]
        model = LayeredGNN(convs, 3, out_channels=2, **options).double()
        model(x, edge_index).sum().backward()
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        refused(partial(model.problem, Inputs(x, edge_index)), AsynchronyError, words)
        for name, b in model.named_buffers():
            assert torch.equal(b, buffers[name])  # asking leaves no trace
        problem = model.eval().problem(Inputs(x, edge_index))
        h, graph = problem.start(), problem.graph
        for layer in range(2):
            h = problem.update(layer, h, gather(h, graph.src), graph.everyone)
        torch.testing.assert_close(h[0].mT, model.embed(Inputs(x, edge_index)).value)


def test_asking_draws_no_random_numbers():
    model, x = GCN(3, out_channels=2).double(), torch.randn(4, 3, **DOUBLE)
    state = torch.get_rng_state()
    model.problem(Inputs(x, cycle(4)))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_problem_can_be_pickled_and_copied():
    """It survives pickling and copying, as agents in other processes need."""
    model, graph = GCN(3, out_channels=2).double(), random_graph([5])
    with torch.no_grad():
        problem = model.problem(
            Inputs(torch.randn(5, 3, **DOUBLE), torch.stack([graph.src, graph.dst]))
        )
        h = problem.start()
        expected = problem.update(0, h, gather(h, graph.src), graph.everyone)
    for other in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        h = other.start()
        found = other.update(0, h, gather(h, other.graph.src), other.graph.everyone)
        assert torch.equal(found, expected)
        assert isinstance(other.graph, Graph)
