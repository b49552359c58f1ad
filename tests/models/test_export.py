"""From a trained model to a node without torch: the same numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain, complete, star
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from hogwild import (
    EIGNN,
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    Inputs,
    LayeredGNN,
    ScarselliGNN,
    SoftEnergyGNN,
)
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.models.export import described, export, packed, tolerances
from hogwild.nn.activations import NONEXPANSIVE, SQUAREPLUS
from hogwild_node import model as node_models
from hogwild_node.c99 import generate
from hogwild_node.errors import ModelFileError
from hogwild_node.local import LocalEnergy
from hogwild_node.model import Neighbour

MODELS = {
    "edge": lambda **o: EnergyGNN(3, out_channels=2, **o),
    "edge features": lambda **o: EnergyGNN(3, out_channels=2, edge_dim=2, **o),
    "node": lambda **o: EnergyGNN(3, out_channels=2, message="node", **o),
    "heads": lambda **o: EnergyGNN(3, out_channels=2, heads=3, edge_dim=2, **o),
    "averaged heads": lambda **o: EnergyGNN(3, out_channels=2, heads=2, concat=False, **o),
    "mean": lambda **o: EnergyGNN(3, out_channels=2, aggr="mean", act="squareplus", **o),
    "normalised": lambda **o: EnergyGNN(3, out_channels=2, normalize=True, gate="relu", **o),
    "wide": lambda **o: EnergyGNN(3, out_channels=2, hidden_channels=8, widths=(6, 5), **o),
    "soft": lambda **o: SoftEnergyGNN(
        3, out_channels=2, edge_dim=2, condition=7.0, **{"hidden_channels": 3} | o
    ),
    "soft, mean": lambda **o: SoftEnergyGNN(
        3, out_channels=2, aggr="mean", width=9, **{"hidden_channels": 3} | o
    ),
    "denoising": lambda **o: GSDGNN(3, out_channels=2, **o),
    "ignn": lambda **o: IGNN(3, out_channels=2, act="leaky_relu", **o),
    "ignn, tanh": lambda **o: IGNN(3, out_channels=2, act="tanh", hidden_channels=4, **o),
    "eignn": lambda **o: EIGNN(3, out_channels=2, **o),
    "eignn, no encoder": lambda **o: EIGNN(3, out_channels=2, hidden_channels=3, **o),
    "gcn": lambda **o: GCN(3, out_channels=2, **o),
    "gcn, tanh": lambda **o: GCN(3, out_channels=2, act="tanh", num_layers=2, bias=False, **o),
}
GRAPHS = {"chain": (chain(5), 5), "star": (star(9), 9), "complete": (complete(5), 5)}


def trained(name, **options):
    """A model whose features are standardised, as training leaves it."""
    torch.manual_seed(0)
    model = MODELS[name](**options).double()
    if name.startswith("soft"):  # fresh parameters ignore half of what they read
        for p in model.conv.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.3)
    for part in (model.features.nodes, model.features.edges):
        if part is not None:
            part.fit(5.0 + 3.0 * torch.randn(20, part.channels, **DOUBLE))
    return model


def given(model, edge_index, n):
    torch.manual_seed(1)
    attr = None if model.edge_dim is None else torch.randn(edge_index.size(1), 2, **DOUBLE)
    weight = None
    if not isinstance(model, GCN | EIGNN):  # edges of equal weight both ways
        rank = edge_index.sum(0)
        weight = 0.5 + 0.1 * rank.double()
    return Inputs(5.0 + torch.randn(n, 3, **DOUBLE), edge_index, attr, edge_weight=weight)


def neighbours(inputs, i, tell):
    """What node i knows of its neighbours, which ``tell`` their features, and the senders."""
    src, dst = inputs.edge_index
    weight = torch.ones(src.numel(), **DOUBLE) if inputs.edge_weight is None else inputs.edge_weight
    degree = 1.0 + torch.zeros(inputs.num_nodes, **DOUBLE).index_add(0, dst, weight)
    edges = (dst == i).nonzero()[:, 0]
    place = {pair: e for e, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True))}

    def attr(e):
        return None if inputs.edge_attr is None else inputs.edge_attr[e].numpy()

    found = [
        Neighbour(
            tell(inputs.x[src[e]].numpy()), float(degree[src[e]]), attr(e), float(weight[e]),
            attr(place[i, int(src[e])]),
        )
        for e in edges
    ]  # fmt: skip
    return found, src[edges]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_node_computes_what_it_computes_in_the_whole_graph(name, graph, tmp_path):
    model, (edge_index, n) = trained(name), GRAPHS[graph]
    inputs = given(model, edge_index, n)
    called = export(model, tmp_path / "model.hog")
    alone = node_models.load(tmp_path / "model.hog")
    assert alone.name == called
    problem = model.problem(inputs).detach()
    torch.manual_seed(2)
    h = torch.randn(1, problem.channels, n, **DOUBLE)
    for i in range(n):
        near, senders = neighbours(inputs, i, alone.encode)
        rule = "messages" if "messages" in alone.rules else "auto"  # one side of each edge
        local = alone.build(alone.encode(inputs.x[i].numpy()), near, rule)
        at = node_models.star_of(len(near))
        mine, heard = h[..., i : i + 1], h[..., senders]
        whole = problem.graph.star(torch.tensor([i]))
        if isinstance(local, LocalEnergy):
            expected = problem.node.local(mine, heard, whole)
            found = local.local(mine.numpy(), heard.numpy(), at)
            np.testing.assert_allclose(
                alone.start(local), problem.start()[..., i : i + 1], rtol=1e-12, atol=1e-12
            )
        elif name.startswith("gcn"):
            expected = [problem.update(0, mine, heard, whole), problem.start()[..., i : i + 1]]
            found = [local.update(0, mine.numpy(), heard.numpy(), at), alone.start(local)]
        else:
            expected = [problem.node.update(mine, heard, whole)]
            found = [local.update(mine.numpy(), heard.numpy(), at)]
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, two.detach().numpy(), rtol=1e-12, atol=1e-12)
        prediction = model.readout(mine[0].mT)[0]
        np.testing.assert_allclose(
            alone.predict(mine[0, :, 0].numpy()), prediction.detach().numpy(), rtol=1e-12
        )


def test_a_replica(tmp_path):
    model = trained("edge", replicas=3)
    export(model, tmp_path / "one.hog", replica=1)
    file = node_models.load(tmp_path / "one.hog")
    weight = model.conv.update_nets[0].wy[0][1]
    np.testing.assert_array_equal(file.tensors["conv.update_nets.0.wy.0"], weight.detach().numpy())
    for replica in (None, 3, -1):
        with pytest.raises(ConfigError, match="replica"):
            export(model, tmp_path / "no.hog", replica=replica)
    assert not (tmp_path / "no.hog").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EnergyGNN(3, out_channels=1, num_layers=2), "Stack"),
        (lambda: EnergyGNN(3, out_channels=1, pool="mean"), "predicts for whole graphs"),
        (
            lambda: ScarselliGNN(3, out_channels=1),
            "ScarselliConv cannot run without torch; expected a SoftEnergyConv",
        ),
        (lambda: GAT(3, out_channels=1), "plain GCN"),
        (
            lambda: EnergyGNN(3, out_channels=1, act=replace(SQUAREPLUS, name="softplus")),
            "act='softplus' is an activation of your own",
        ),
        (
            lambda: IGNN(3, out_channels=1, act=replace(NONEXPANSIVE["identity"], name="tanh")),
            "act='tanh' is an activation of your own",
        ),
        (lambda: LayeredGNN([GATConv(4, 4)], 3, out_channels=1), "plain GCN"),
        (lambda: GCN(3, out_channels=1, norm=torch.nn.LayerNorm(10)), "plain GCN"),
    ],
)
def test_what_no_node_can_run_is_refused_with_the_reason(make, words, tmp_path):
    with pytest.raises(AsynchronyError, match=words):
        export(make(), tmp_path / "model.hog")
    assert not list(tmp_path.iterdir())


def test_the_name_is_the_content(tmp_path):
    model = trained("edge")
    first = export(model, tmp_path / "a.hog")
    assert export(model, tmp_path / "b.hog") == first
    assert (tmp_path / "a.hog").read_bytes() == (tmp_path / "b.hog").read_bytes()
    with torch.no_grad():
        next(model.parameters()).add_(1e-9)
    assert export(model, tmp_path / "c.hog") != first


def test_other_readers_of_the_format_agree(tmp_path):
    from safetensors.numpy import load_file

    export(trained("heads"), tmp_path / "model.hog")
    file = node_models.load(tmp_path / "model.hog")
    theirs = load_file(tmp_path / "model.hog")
    assert theirs.keys() == file.tensors.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(tensor, file.tensors[name])


@pytest.mark.parametrize("at", [0, 3, 20, 400, -9, -1])
def test_a_damaged_file_is_refused(at, tmp_path):
    export(trained("edge"), tmp_path / "model.hog")
    raw = bytearray((tmp_path / "model.hog").read_bytes())
    raw[at] ^= 0x55
    (tmp_path / "bad.hog").write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"bad.hog: .*(damaged|format)"):
        node_models.load(tmp_path / "bad.hog")
    (tmp_path / "short.hog").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ModelFileError, match=r"short\.hog"):
        node_models.load(tmp_path / "short.hog")
    with pytest.raises(ModelFileError, match=r"none.hog cannot be read.*hogwild export"):
        node_models.load(tmp_path / "none.hog")


def test_agents_settle_at_what_the_precision_of_packets_allows():
    """Large embeddings make the residual of rounded packets large; the file says how large."""
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=0.05).double()
    with torch.no_grad():
        for p in model.conv.parameters():
            p.mul_(2.0)
    data = Data(x=30.0 * torch.randn(4, 3, **DOUBLE), edge_index=chain(4))
    found = tolerances(model, data)
    assert found["float64"] == 1e-8
    assert found["float32"] > 1e-3
    small = Data(x=0.0 * data.x, edge_index=data.edge_index)
    assert tolerances(model, small)["float32"] < found["float32"]
    config, _ = described(model)
    assert "tolerance" not in config


def test_a_name_that_ends_in_c_means_c(tmp_path):
    model = GSDGNN(3, out_channels=2)
    export(model, tmp_path / "node.c", dtype="float64")
    text = (tmp_path / "node.c").read_text()
    assert text == generate(packed(model), dtype="float64")
    with pytest.raises(ConfigError, match="max_degree=0; expected a positive"):
        export(model, tmp_path / "node.c", max_degree=0)
    with pytest.raises(ConfigError, match="cannot be written in C"):
        export(GCN(3, out_channels=1), tmp_path / "gcn.c")
    assert [path.name for path in tmp_path.iterdir()] == ["node.c"]
