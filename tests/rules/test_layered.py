"""Rules for layers: who is exact, under what, at what price."""

import helpers
import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, HARSH, ODD, ODD_NODES, chain, grid
from torch_geometric.data import Data

from hogwild import GAT, GCN, LayeredGNN, certify, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GilbertElliott,
    ParetoDelay,
)
from hogwild.errors import AsynchronyError, ConfigError

MODELS = {
    "gcn": lambda: GCN(3, out_channels=2, num_layers=4),
    "gcn, replicas": lambda: GCN(3, out_channels=2, num_layers=3, replicas=2),
    "gat": lambda: GAT(3, out_channels=2, num_layers=3, edge_dim=2),
    "layered": lambda: LayeredGNN(
        [pyg.SAGEConv(4, 4) for _ in range(3)], 3, out_channels=2, norm="batch_norm"
    ),
    "wrapped": lambda: pyg.GAT(3, 6, 3, 2, heads=2, edge_dim=2, jk="cat"),
}


def graphs(sizes=(5, 6), edges=False):
    return helpers.graphs(sizes, edge_dim=2 if edges else None)


def model_of(name):
    torch.manual_seed(0)
    return MODELS[name]().double().eval()


@pytest.mark.parametrize("rule", ["resending", "caching"])
@pytest.mark.parametrize("name", MODELS)
def test_exact_under_everything(name, rule):
    """S = 5, D = 2, a third of packets lost, slow nodes, packets overtaken and doubled, crashes
    that lose the memory."""
    run = simulate(
        model_of(name), graphs(edges="gat" in name or name == "wrapped"), runs=2, rule=rule,
        impairments=HARSH, tol=1e-12,
    )  # fmt: skip
    assert run.rule == rule
    assert float(run.deviation.max()) <= 1e-12
    assert bool((run.reached >= 0).all())


@pytest.mark.parametrize("rule", ["resending", "caching"])
@pytest.mark.parametrize(
    "impairment",
    [GilbertElliott(0.2, 0.2), ParetoDelay(cap=30), BernoulliLoss(0.7)],
    ids=lambda i: type(i).__name__,
)
def test_exact_under_long_outages(rule, impairment):
    run = simulate(model_of("gcn"), graphs(), runs=2, rule=rule, impairments=impairment, tol=1e-12)
    assert float(run.deviation.max()) <= 1e-12


@pytest.mark.parametrize("impairments", [(), HARSH], ids=["calm", "harsh"])
def test_caching_is_as_fast_as_news_travels(impairments):
    """A node's layer ℓ is right as soon as it has heard its neighbours' right values of layer ℓ,
    and not before: at every tick, at every node, as the schedule's light cone says."""
    torch.manual_seed(0)
    model, depth = pyg.GraphSAGE(3, 4, 4, 4, act="tanh").double().eval(), 4
    data = graphs((9,))
    run = simulate(
        model, data, rule="caching", impairments=impairments, record=True, history=1,
        keep_embeddings=True, tol=None, ticks=80,
    )  # fmt: skip
    layers = (run.embeddings[:, 0] - run.reference).abs().unflatten(-1, (depth, 4)).amax(-1)
    seen = (layers <= 1e-12).long().cumprod(-1).sum(-1)  # [T, N] layers that are right, from below
    right = torch.zeros(data.num_nodes, dtype=torch.long)
    before = [right]  # before[t]: at the beginning of tick t
    for t, tick in enumerate(run.trace.ticks):
        right = right.clone()
        sender = data.edge_index[0, tick.at.edges]
        for position, node in enumerate(tick.at.nodes.tolist()):
            edges = (tick.at.slot == position).nonzero()[:, 0].tolist()
            heard = [int(before[int(tick.view[e])][sender[e]]) for e in edges]
            right[node] = min(depth, 1 + min(heard, default=depth))
        before.append(right)
        assert seen[t].tolist() == right.tolist(), t
    assert bool((right == depth).all())


def test_caching_takes_no_longer_than_proved():
    """All is right at tick L (S + D)."""
    for stagger, delay in ((1, 0), (5, 2), (3, 6)):
        model = model_of("gcn")
        run = simulate(model, graphs(), stagger=stagger, delay=delay, runs=5, rule="caching",
                       history=1, tol=1e-12)  # fmt: skip
        bound = model.conv.num_layers * (stagger + delay)
        assert int(run.reached.max()) <= bound
        if (stagger, delay) == (1, 0):
            assert int(run.updates.max()) == model.conv.num_layers
        found = certify(model, graphs(), stagger, delay, rule="caching")
        assert found.guaranteed
        assert found.constants["ticks_to_answer"] == bound


@pytest.mark.parametrize("rule", ["overwriting", "resending", "caching"])
def test_what_is_proved(rule):
    found = certify(model_of("gcn"), graphs(), rule=rule)
    assert found.guaranteed == (rule != "overwriting")
    lossy = certify(model_of("gcn"), graphs(), rule=rule, impairments=BernoulliLoss(0.1, burst=3))
    assert lossy.guaranteed == (rule in ("resending", "caching"))
    why = {"overwriting": "depends on", "resending": "acknowledged", "caching": "crossed L hops"}
    assert why[rule] in found.reason


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_caching_for_every_model_with_layers(name):
    """One name means one rule, whoever made the model: the answer is the synchronous one."""
    model, data = model_of(name), graphs(edges="gat" in name or name == "wrapped")
    run = simulate(model, data, runs=2, impairments=BernoulliLoss(0.3))
    assert run.rule == "caching"
    assert bool(run.converged.all())
    found = certify(model, data)
    assert found.reason == certify(model, data, rule="caching").reason
    assert found.guaranteed


# -- the price -------------------------------------------------------------------------------------


def test_numbers_in_packets():
    """Of a wrapped model whose layers are 3, 4 and 6 wide, on two nodes, by hand, in step.

    Resending: values of layer 1 (tick 1); of layers 1 and 2, the former not yet acknowledged
    (tick 2); of layer 2 (tick 3); an acknowledgement (tick 4); then silence."""
    torch.manual_seed(0)
    model = pyg.Sequential(
        "x, edge_index",
        [(pyg.SAGEConv(a, b), "x, edge_index -> x") for a, b in ((3, 4), (4, 6), (6, 2))],
    )
    data = Data(x=torch.randn(2, 3, **DOUBLE), edge_index=chain(2))
    options = {"stagger": 1, "delay": 0, "tol": None, "ticks": 20}
    for rule, packets, numbers in (
        ("resending", 4, (2 + 4) + (2 + 4 + 6) + (2 + 6) + 2),
        ("caching", 19, 19 * (3 + 4 + 6)),
    ):
        run = simulate(model.double().eval(), data, rule=rule, **options)
        assert float(run.deviation.max()) <= 1e-12, rule
        assert run.packets.tolist() == [[packets] * 2], rule
        assert run.bytes.tolist() == [[4 * numbers] * 2], rule
        assert run.updates.tolist() == [[19 if rule == "caching" else 3] * 2], rule
    overwriting = simulate(
        GCN(3, out_channels=2).double(), data, rule="overwriting", stagger=1, delay=0
    )
    assert overwriting.bytes.tolist() == [[4 * 5 * 10] * 2]


def test_resending_falls_silent_and_speaks_again():
    """Whoever has everything and has been heard sends nothing; a node that lost its memory is told
    again."""
    data, model = graphs(), model_of("gcn")
    short, long = (
        simulate(model, data, rule="resending", impairments=BernoulliLoss(0.3), tol=None, ticks=t)
        for t in (150, 250)
    )
    assert float(short.deviation.max()) <= 1e-12
    assert torch.equal(short.packets, long.packets)
    late = Crashes(0.5, period=80, downtime=10, rejoin="cold", until=100)
    run = simulate(
        model, data, rule="resending", impairments=[late, BernoulliLoss(0.3)], tol=None, ticks=250
    )
    assert float(run.deviation.max()) <= 1e-12
    assert int(run.packets.sum()) > int(short.packets.sum())


def test_resending_needs_reverse_links():
    data = Data(x=torch.randn(ODD_NODES, 3, **DOUBLE), edge_index=ODD)
    with pytest.raises(
        AsynchronyError, match=r"2 of 10 edges have no reverse link.*rule='caching'"
    ):
        simulate(GCN(3, out_channels=2).double(), data, rule="resending")
    run = simulate(GCN(3, out_channels=2).double(), data, rule="caching", tol=1e-12)
    assert bool(run.converged.all())


def test_loops_and_doubled_edges():
    index = torch.cat([grid(2, 3), torch.tensor([[0, 1, 2], [1, 0, 2]])], 1)
    data = Data(x=torch.randn(6, 3, **DOUBLE), edge_index=index)
    for rule in ("resending", "caching"):
        for model in (GCN(3, out_channels=2).double(), pyg.GraphConv(3, 2).double()):
            run = simulate(model, data, runs=2, rule=rule, tol=1e-12)
            assert float(run.deviation.max()) <= 1e-12, rule


def test_rules_of_other_models_are_refused():
    for rule in ("gradient", "messages", "fixed-point"):
        with pytest.raises(ConfigError, match=f"rule='{rule}' does not fit.*auto, caching"):
            simulate(GCN(3, out_channels=2).double(), graphs(), rule=rule)
