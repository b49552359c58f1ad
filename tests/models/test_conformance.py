"""What all convolutions have in common: pooling, edge features, directed graphs, replicas with
features of their own, parts of a batch, and the errors about bad input."""

import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, bare, batch_of, chain, cycle, edges, star

from experiments.maximum import MaxConv, MaxGNN
from hogwild import EIGNN, GAT, GSDGNN, IGNN, EnergyGNN, Inputs, ScarselliGNN
from hogwild.errors import DTypeError, FeatureError, GraphError
from hogwild.models import EIGNNConv, GSDConv, IGNNConv, ScarselliConv
from hogwild.testing import check_model

MODELS = [GSDGNN, IGNN, EIGNN, ScarselliGNN, MaxGNN]


@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("model", MODELS)
def test_gnn(model, pool, device):
    check_model(lambda **kw: model(3, out_channels=2, pool=pool, **kw), device=device)


@pytest.mark.parametrize("model", [IGNN, EIGNN])
def test_two_levels(model, device):
    check_model(lambda **kw: model(3, out_channels=2, num_layers=2, **kw), device=device)


@pytest.mark.parametrize("conv", [MaxConv, ScarselliConv])
def test_edge_features(conv, device):
    check_model(lambda **kw: conv(3, edge_dim=2, **kw), edge_dim=2, device=device)


@pytest.mark.parametrize("model", [MaxGNN, ScarselliGNN, IGNN])
def test_directed_graphs_need_no_reverse_links(model):
    """Messages follow the edges, and nothing travels against them."""
    net = model(3, out_channels=1).double()
    net.require_asynchronous(bare(ODD, ODD_NODES))
    x = torch.randn(3, 3, **DOUBLE)
    moved = x.clone()
    moved[2] += 1.0  # 0 -> 1 -> 2: the last node is heard by nobody
    one, two = (net.embed(Inputs(v, edges((0, 1), (1, 2)))).value for v in (x, moved))
    torch.testing.assert_close(one[:2], two[:2], rtol=0, atol=1e-8)


@pytest.mark.parametrize("model", [MaxGNN, ScarselliGNN, EnergyGNN, GAT])
def test_replicas_take_features_of_their_own(model):
    net = model(3, out_channels=1, edge_dim=2, replicas=2).double()
    x, attr = torch.randn(2, 4, 3, **DOUBLE), torch.randn(8, 2, **DOUBLE)
    out = net(x, cycle(4), attr)
    for r in range(2):
        alone = net(x[r], cycle(4), attr)[r]
        torch.testing.assert_close(out[r], alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("conv", [GSDConv, IGNNConv, EIGNNConv, ScarselliConv, MaxConv])
def test_some_graphs_of_some_replicas_are_a_problem_alone(conv):
    parts = (chain(4), 4), (ODD, ODD_NODES), (star(5), 5)
    edge_index, batch = batch_of(*parts)
    n = batch.numel()
    x = torch.randn(n, 3, **DOUBLE)
    problem = conv(3, replicas=3).double().problem(Inputs(x, edge_index, None, batch)).detach()
    h = torch.randn(3, 2, n, **DOUBLE)
    sub, nodes = problem.select(torch.tensor([2, 0]), torch.tensor([1, 2]))
    picked = h[[2, 0]][..., nodes]
    torch.testing.assert_close(sub.step(picked), problem.step(h)[[2, 0]][..., nodes])


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), **DOUBLE)
BAD = {
    "width": ({"x": X[:, :2]}, FeatureError, ["(4, 2)", "[num_nodes, 3]"]),
    "edge_attr": ({"edge_attr": torch.ones(8, 2, **DOUBLE)}, FeatureError, ["(8, 2)"]),
    "nan": ({"x": X * float("nan")}, FeatureError, ["x", "finite"]),
    "integers": ({"x": X.long()}, DTypeError, ["torch.int64", "torch.float64"]),
    "index": ({"edge_index": cycle(5)[:, :8]}, GraphError, ["0 to 4", "0 to 3"]),
    "batch": ({"batch": torch.tensor([0, 1, 0, 1])}, GraphError, ["not sorted"]),
    "negative": (
        {"edge_weight": -torch.ones(8, **DOUBLE)},
        GraphError,
        ["edge_weight[0]", "-1", "nonnegative"],
    ),
    "weights": ({"edge_weight": torch.ones(3, **DOUBLE)}, GraphError, ["[8]"]),
    "h0": ({"h0": torch.zeros(3, 2, **DOUBLE)}, FeatureError, ["(3, 2)", "[4, 2]"]),
}


UNWEIGHTED = {MaxGNN: ("negative", "weights"), GAT: ("negative", "weights", "h0")}
CASES = [(m, name) for m in (*MODELS, GAT) for name in BAD if name not in UNWEIGHTED.get(m, ())]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_bad_input_is_named(model, name):
    changes, error, words = BAD[name]
    given = {"x": X, "edge_index": cycle(4)} | changes
    with pytest.raises(error) as caught:
        model(3, out_channels=1).double()(given.pop("x"), given.pop("edge_index"), **given)
    for word in words:
        assert word in str(caught.value)
