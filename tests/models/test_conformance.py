"""What all convolutions have in common: pooling, edge features, directed graphs, replicas with
features of their own, parts of a batch, and the errors about bad input."""

import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, bare, batch_of, chain, cycle, edges, features, star

from experiments.maximum import MaxConv, MaxGNN
from hogwild import (
    EIGNN,
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EnergyConv,
    EnergyGNN,
    Inputs,
    ScarselliGNN,
    SoftEnergyGNN,
)
from hogwild.errors import AsynchronyError
from hogwild.models import EIGNNConv, GSDConv, IGNNConv, ScarselliConv, SoftEnergyConv
from hogwild.solvers import Anderson, Newton, SemismoothNewton
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


TIGHT = {"solver": Newton(atol=1e-12)}
CONVS = {
    "energy": lambda: EnergyConv(3, **TIGHT),
    "energy, node": lambda: EnergyConv(3, message="node", **TIGHT),
    "energy, normalize": lambda: EnergyConv(3, normalize=True, **TIGHT),
    "energy, mean": lambda: EnergyConv(3, aggr="mean", **TIGHT),
    "energy, heads": lambda: EnergyConv(3, heads=2, **TIGHT),
    "soft": lambda: SoftEnergyConv(3, hidden_channels=4, **TIGHT),
    "soft, heads": lambda: SoftEnergyConv(3, hidden_channels=4, heads=2, **TIGHT),
    "gsd": lambda: GSDConv(3),
    "ignn": lambda: IGNNConv(3, solver=SemismoothNewton(atol=1e-12)),
    "eignn": lambda: EIGNNConv(3, solver=SemismoothNewton(atol=1e-12)),
    "scarselli": lambda: ScarselliConv(3, solver=Anderson(atol=1e-12)),
    "gcn": lambda: GCN(3, out_channels=2),
    "gcn, replicas": lambda: GCN(3, out_channels=2, replicas=2),
    "gat": lambda: GAT(3, out_channels=2),
}
AVERAGING = ("energy, mean", "energy, heads")  # edges of weight zero count, too


@pytest.mark.parametrize("name", CONVS)
def test_edges_are_weights(name):
    """A node without edges has the answer that it has alone. Weight one is no weight, weight two a
    double edge, weight zero no edge."""
    torch.manual_seed(1)
    conv, x, near = CONVS[name]().double(), features(ODD_NODES), {"rtol": 0, "atol": 1e-9}
    without = conv(x, edges())
    for i in range(ODD_NODES):
        alone = conv(x[i : i + 1], edges())
        torch.testing.assert_close(without[..., i : i + 1, :], alone, **near)
    found = conv(x, ODD)
    torch.testing.assert_close(found[..., 5:, :], alone, **near)
    assert float((found - without)[..., 0, :].detach().abs().max()) > 1e-4
    if name.startswith("g") and name != "gsd":  # GCN and GAT are compared with PyG's
        return
    weight = torch.ones(ODD.size(1), **DOUBLE)
    torch.testing.assert_close(conv(x, ODD, edge_weight=weight), found, **near)
    if name not in AVERAGING:
        weight[3] = 2.0
        twice = torch.cat([ODD, ODD[:, 3:4]], 1)
        torch.testing.assert_close(conv(x, twice), conv(x, ODD, edge_weight=weight), **near)
        assert float((conv(x, twice) - found).detach().abs().max()) > 1e-6
        weight[[1, 3, 5, 8]] = 0.0
        zeroed = conv(x, ODD, edge_weight=weight)
        torch.testing.assert_close(zeroed, conv(x, ODD[:, weight > 0]), **near)
        assert float((zeroed - found).detach().abs().max()) > 1e-4


@pytest.mark.parametrize("make", [EnergyGNN, SoftEnergyGNN, GSDGNN])
def test_energies_need_reverse_links(make):
    """A one-hop energy on an undirected graph can run asynchronously; otherwise the reason."""
    for model in (make(3, out_channels=1), make(3, out_channels=1).conv):
        model.require_asynchronous(bare(cycle(4), 4))
        model.require_asynchronous(bare(edges(), 2))
        with pytest.raises(AsynchronyError, match=r"(?s)no reverse link.*4 -> 0.*to_undirected"):
            model.require_asynchronous(bare(ODD, ODD_NODES))


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
