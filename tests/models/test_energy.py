"""Energy GNNs: conformance, what odd graphs mean, fresh parameters, raw features."""

import copy
import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain, circulant, columns, cycle, edges, features, refused
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader

from hogwild import EnergyConv, EnergyGNN, Inputs
from hogwild.errors import ConfigError
from hogwild.nn import PICNN
from hogwild.solvers import Newton
from hogwild.testing import check_model
from hogwild.testing.problems import random_graph
from hogwild_node.activations import ACTIVATIONS

VARIANTS = {
    "edge": {},
    "node": {"message": "node", "widths": (2,)},
    "mean": {"aggr": "mean", "widths": (2,)},
    "normalize": {"normalize": True, "widths": (2,)},
    "heads": {"heads": 2, "widths": (2,)},
    "heads-averaged": {"heads": 3, "concat": False, "widths": (2,)},
    "node-heads": {"message": "node", "heads": 2, "widths": (2,)},
    "wide": {"hidden_channels": 5, "message_channels": 3, "widths": (6,)},
    "deep": {"widths": (3, 4, 5)},
    "affine": {"widths": ()},
    "squareplus": {"act": "squareplus", "widths": (2,)},
    "relu-gates": {"gate": "relu", "widths": (2,)},
    "cg": {"solver": Newton(linear="cg"), "widths": (2,)},
}


def small(device):
    """Three graphs: a node, an edge, and a graph with cycles."""
    return random_graph([1, 2, 6], device=device)


COVERED = {"node", "heads", "affine", "deep"}  # by other variants, and edge features
CONVS = [
    pytest.param(options, id=name, marks=[pytest.mark.slow] if name in COVERED else [])
    for name, options in VARIANTS.items()
]


@pytest.mark.parametrize("options", CONVS)
def test_conv(options, device):
    check_model(lambda **kw: EnergyConv(3, **options, **kw), device=device, graph=small(device))


@pytest.mark.parametrize("name", ["edge", "node-heads"])
def test_edge_features(name, device):
    options = VARIANTS[name] | {"widths": (2,)}  # deeper ones are in test_conv
    check_model(
        lambda **kw: EnergyConv(3, edge_dim=2, **options, **kw),
        edge_dim=2, device=device, graph=small(device),
    )  # fmt: skip


@pytest.mark.parametrize("pool", [None, "mean"])
def test_gnn(pool, device):
    check_model(
        lambda **kw: EnergyGNN(3, out_channels=2, pool=pool, widths=(2,), **kw),
        device=device, graph=small(device),
    )  # fmt: skip


def test_stacked(device):
    check_model(
        lambda **kw: EnergyGNN(3, out_channels=2, num_layers=2, widths=(2,), **kw),
        device=device, graph=small(device),
    )  # fmt: skip


TIGHT = Newton(atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EnergyGNN(3, out_channels=1, num_layers=0), ["num_layers=0", "positive integer"]),
        (lambda: EnergyGNN(3, out_channels=1, pool="min"), ["'min'", "'mean'"]),
        (lambda: Newton(atol=-1.0), ["atol=-1.0", "nonnegative"]),
        (lambda: Newton(rtol=float("nan")), ["rtol=nan", "nonnegative"]),
        (lambda: Newton(max_iter=-1), ["max_iter=-1", "at least 0"]),
        (lambda: Newton(linear="lu"), ["'lu'", "direct", "cg"]),
    ],
)
def test_other_constructor_errors(make, words):
    refused(make, ConfigError, words)


def conv_of(**options):
    torch.manual_seed(1)
    return EnergyConv(3, solver=TIGHT, **options).double()


OPTIONS = {
    "edge": {},
    "node": {"message": "node"},
    "mean": {"aggr": "mean"},
    "normalize": {"normalize": True},
    "heads": {"heads": 2},
}


def test_self_loop_is_one_more_message():
    """m_i gains m(h_i, h_i, x_i, x_i), beside the self message that every node has."""
    conv, x, h = conv_of(), features(1), features(1)[:, :2]
    m = conv.loop_nets[0](x, h)
    message = conv.message_nets[0](torch.cat([x, x], 1), h.repeat_interleave(2, 1))
    for count in range(3):
        at = torch.cat([m + count * message, h], 1)
        expected = conv.update_nets[0](x, at)[0, 0] + 0.02 * h.square().sum()
        got = conv.energy(h, Inputs(x, edges(*[(0, 0)] * count)))[0]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_directed_graphs_solve(options):
    """The gradient vanishes at the answer, and direction matters."""
    conv, x = conv_of(**options), features(4)
    one_way = edges((0, 1), (1, 2), (2, 3), (3, 1))
    found = conv.embed(Inputs(x, one_way))
    assert bool(found.converged.all())
    h = found.value.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(conv.energy(h, Inputs(x, one_way)).sum(), h)
    assert float(gradient.abs().max()) <= 1e-11
    assert float((found.value - conv(x, one_way.flip(0))).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_float32_solve_agrees_with_float64(options):
    torch.manual_seed(0)
    conv = EnergyConv(3, replicas=4, **options)
    x = torch.randn(20, 3)
    exact = conv(x, cycle(20))
    rough = copy.deepcopy(conv)
    rough.solve_dtype = None
    found = rough.embed(Inputs(x, cycle(20)))
    assert bool(found.converged.all())
    assert found.residual.dtype == torch.float32
    torch.testing.assert_close(found.value, exact, rtol=1e-3, atol=1e-3)
    grads = [
        torch.autograd.grad(h.square().sum(), list(model.parameters()))
        for model, h in ((conv, exact), (rough, found.value))
    ]
    for a, b in zip(*grads, strict=True):
        size = max(float(a.abs().max()), 1e-2)
        torch.testing.assert_close(b, a, rtol=0, atol=2e-2 * size)


WORST = 1e3


# PICNN widths, hidden_channels, degree; edge-wise, and one for the other kinds of messages
QUICK = [(2, 2, 1), (2, 2, 50), (64, 2, 50), (64, 64, 1)]
GRID = [
    (width, k, degree)
    for width in (2, 8, 64)
    for k in (2, 8, 64)
    for degree in (1, 5, 50)
    if k * degree <= 400
]


KINDS = {"edge": {}, "node": {"message": "node"}, "heads": {"heads": 2}, "mean": {"aggr": "mean"}}


def condition(problem, h, dense):
    """Condition number of ∇²E(h), [R], up to ``dense`` unknowns; λ_max / β, a bound, beyond."""
    hessian = problem.evaluate(h).hessian()
    if h[0].numel() <= dense:
        spectrum = torch.linalg.eigvalsh(columns(hessian.apply, h))
        return spectrum[:, -1] / spectrum[:, 0]
    v = torch.randn_like(h)
    for _ in range(40):
        v = v / v.flatten(1).norm(dim=1)[:, None, None]
        new = hessian.apply(v)
        top = (new * v).sum((1, 2))
        v = new
    return 1.1 * top / problem.design.beta  # power iteration approaches from below


def check(width, k, degree, kind, *, replicas, dense=120):
    torch.manual_seed(0)
    conv = EnergyConv(
        3,
        hidden_channels=k,
        widths=(width, width),
        replicas=replicas,
        solver=Newton(linear="cg"),
        **KINDS[kind],
    ).double()
    n = degree + 2 + degree % 2
    x, edge_index = torch.randn(n, 3, **DOUBLE), circulant(n, degree)
    problem = conv.problem(Inputs(x, edge_index)).detach()
    assert problem.graph.in_degree.unique().tolist() == [degree]
    start = problem.start()
    assert float(condition(problem, start, dense).max()) < WORST
    found = conv.embed(Inputs(x, edge_index))
    solution = found.value.detach().mT.contiguous()
    assert float(condition(problem, solution, dense).max()) < WORST


@pytest.mark.parametrize(("width", "k", "degree", "kind"), [
    *((*sizes, "edge") for sizes in QUICK),
    *((2, 2, 50, kind) for kind in ("node", "heads", "mean")),
    (64, 64, 1, "node"),
])  # fmt: skip
def test_fresh_energy_is_well_conditioned(width, k, degree, kind):
    """λ_max / λ_min < 1e3 at the start and at the solution, at the extremes."""
    check(width, k, degree, kind, replicas=4 if k * width < 100 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "k", "degree"), GRID)
def test_fresh_energy_is_well_conditioned_on_a_grid(width, k, degree, kind):
    check(width, k, degree, kind, replicas=4 if k * degree <= 100 else 1, dense=450)


def fading(conv):
    """Factor by which what the first node of a chain knows fades from hop to hop, [R]."""
    chain = torch.stack([torch.arange(29), torch.arange(1, 30)])
    edge_index = torch.cat([chain, chain.flip(0)], 1)
    x = torch.zeros(2, 30, 2, **DOUBLE)
    x[0, 0, 0] = x[1, 0, 1] = 1.0
    one, other = (conv.embed(Inputs(x_, edge_index)).value for x_ in x)
    difference = (one - other).norm(dim=-1)
    return (difference[:, 8] / difference[:, 2]) ** (1 / 6)


@pytest.mark.parametrize("heads", [None, 2])
@torch.no_grad()
def test_fresh_messages_are_about_differences(heads):
    """What a node knows carries over several hops, unlike with independent weights on both ends of
    an edge; node-wise messages cannot be about differences."""
    torch.manual_seed(0)
    conv = EnergyConv(2, heads=heads, replicas=50).double()
    assert float(fading(conv).median()) > 0.5
    assert float(fading(conv).min()) > 0.3
    for module in conv.modules():
        if isinstance(module, PICNN):
            module.reset_parameters()  # without what EnergyConv does to it
    assert float(fading(conv).median()) < 0.35
    conv.reset_parameters()
    assert float(fading(conv).median()) > 0.5


@pytest.fixture
def data_home():
    """The user's HOGWILD_DATA; the test is skipped without it."""
    place = os.environ.get("HOGWILD_DATA")
    if not place:
        pytest.skip("HOGWILD_DATA is not set: raw features are not tested")
    return Path(place)


def train(graphs, classes, loss, epochs):
    """Twenty lines of PyG. ``on_failure="raise"`` is the default: a failed solve ends the loop."""
    torch.manual_seed(1)
    model = EnergyGNN(graphs[0].x.size(1), out_channels=classes, pool="mean")
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005)
    most = 0
    for _ in range(epochs):
        for batch in DataLoader(graphs, batch_size=128, shuffle=True):
            size = batch.num_graphs
            found = model.embed(
                Inputs(batch.x, batch.edge_index, batch=batch.batch, batch_size=size)
            )
            most = max(most, int(found.iterations.max()))
            optimiser.zero_grad()
            loss(model.readout(found.value, batch.batch, size), batch.y).backward()
            optimiser.step()
    return most


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS", "ENZYMES"])
def test_tu_data_sets_train_for_twenty_epochs(name, data_home, tmp_path):
    source = data_home / "TUDataset" / name / "raw"
    if not source.is_dir():
        pytest.skip(f"HOGWILD_DATA has no TUDataset/{name}: it is not tested")
    shutil.copytree(source, tmp_path / name / "raw")
    graphs = list(TUDataset(str(tmp_path), name, use_node_attr=True))
    classes = 1 + max(int(graph.y) for graph in graphs)
    assert train(graphs, classes, cross_entropy, 20) < 1000


@pytest.mark.slow
def test_peptides_train(data_home):
    """Categories of atoms as numbers; some hundred graphs."""
    source = data_home / "peptides-func" / "peptides_func.npz"
    if not source.is_file():
        pytest.skip("HOGWILD_DATA has no peptides-func: it is not tested")
    file = np.load(source)
    graphs, node, bond = [], 0, 0
    x, bonds = torch.from_numpy(file["x"]).float(), torch.from_numpy(file["bonds"]).long()
    for g in range(256):
        nodes, count = int(file["num_nodes"][g]), int(file["num_bonds"][g])
        pairs = bonds[bond : bond + count].T
        edge_index = torch.cat([pairs, pairs.flip(0)], 1)
        y = torch.from_numpy(file["y"][g]).float().view(1, -1)
        graphs.append(Data(x=x[node : node + nodes], edge_index=edge_index, y=y))
        node, bond = node + nodes, bond + count
    assert train(graphs, graphs[0].y.size(1), binary_cross_entropy_with_logits, 5) < 1000


@pytest.mark.parametrize("act", ["softplus", "squareplus"])
def test_models_pickle(act):
    model, x = EnergyGNN(3, out_channels=1, act=act), torch.randn(5, 3)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x, cycle(5)), model(x, cycle(5)))
    buffer = io.BytesIO()
    torch.save(model, buffer)


@pytest.mark.parametrize(("name", "value"), [("act", ACTIVATIONS["squareplus"]), ("gate", "relu")])
def test_networks_that_change_are_solved_as_they_are(name, value):
    conv, x, edge_index = conv_of(), torch.randn(4, 3, **DOUBLE), chain(4)
    conv(x, edge_index)
    for net in conv.networks:
        setattr(net, name, value)
    expected = conv_of(**{name: value if name == "gate" else "squareplus"})
    expected.load_state_dict(conv.state_dict())
    torch.testing.assert_close(conv(x, edge_index), expected(x, edge_index), rtol=0, atol=1e-10)
