"""Soft energies: the bound on the condition number, the start, and derivatives."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    DOUBLE,
    ODD,
    ODD_NODES,
    assemble,
    batch_of,
    chain,
    check_local_energies,
    columns,
    complete,
    cycle,
    edges,
    star,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from hogwild import Inputs, Readout, SoftEnergyGNN, certify, simulate
from hogwild.errors import AsynchronyError, ConfigError, GraphError
from hogwild.models import SoftEnergyConv
from hogwild.models.export import export
from hogwild.models.gsd import GSDProblem
from hogwild.models.soft import CAP, Slow, condition_of
from hogwild.ops import scatter
from hogwild.solvers import LBFGS, Newton, solve
from hogwild.tasks import Chains
from hogwild.testing import check_model
from hogwild_node.networks import ATTENTION_SLOPE
from hogwild_node.soft import bounded, knowing, scales


def conv_of(**options):
    return SoftEnergyConv(3, **{"hidden_channels": 4} | options).double()


@torch.no_grad()
def disturb(conv, scale=1.0):
    """Parameters far from the start."""
    for p in conv.parameters():
        p.add_(torch.randn_like(p), alpha=scale)
    return conv


def problem_on(edge_index, n, batch=None, disturbed=1.0, **options):
    conv = disturb(conv_of(**options), disturbed)
    weight, x = torch.rand(edge_index.size(1), **DOUBLE), torch.randn(n, 3, **DOUBLE)
    edge_attr = None
    if conv.edge_dim is not None:
        edge_attr = torch.randn(edge_index.size(1), conv.edge_dim, **DOUBLE)
    inputs = Inputs(x, edge_index, edge_attr, batch, edge_weight=weight)
    return conv.problem(inputs).detach()


# -- the answer -----------------------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "edges": {"edge_dim": 2, "width": 7},
    "mean": {"aggr": "mean", "condition": 2001.0, "beta": 0.1},
    "sum": {"aggr": "sum", "max_degree": 3, "reach": 4.0},
    "heads": {"heads": 2, "width": 6, "edge_dim": 2},
    "local": {"local_channels": 3},
    "rate": {"rate": 0.1},
    "all": {"aggr": "add", "max_degree": 2.5, "heads": 4, "local_channels": 5, "rate": 2.0},
    "cg": {"solver": Newton(linear="cg"), "widths": ()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_conv(name, device):
    options = OPTIONS[name]

    def make(**more):
        conv = SoftEnergyConv(3, **{"hidden_channels": 4} | options | more)
        return disturb(conv, 0.3)

    check_model(make, edge_dim=options.get("edge_dim"), device=device)


STAGES = {
    "nodes": {},
    "graphs": {"pool": "mean", "num_layers": 2, "encoder": None},
    "attention": {"pool": "attention", "norm": "layer", "jk": "cat", "num_layers": 2},
    "largest": {"pool": "max", "jk": "last", "num_layers": 2, "encoder": (5, 3)},
    "evaluation": {"norm": "batch", "dropout": 0.5, "residual": False, "num_layers": 2},
}


@pytest.mark.parametrize("name", STAGES)
def test_gnn(name, device):
    """The anchors are affine: differences must not meet a kink of their ReLUs."""
    options = {"out_channels": 2, "hidden_channels": 4, "widths": ()} | STAGES[name]
    check_model(
        lambda **kw: SoftEnergyGNN(3, **options | kw).train(name != "evaluation"), device=device
    )


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_layers_correct_the_layer_below(norm):
    """The solution is h + argmin E, with g = MLP([norm([x ‖ h]) ‖ 1/√d]); the biases of edges read
    the same from both ends."""
    torch.manual_seed(0)
    model = SoftEnergyGNN(5, out_channels=1, hidden_channels=3, num_layers=2, norm=norm).double()
    disturb(model, 0.5)
    inputs = Inputs(torch.randn(6, 5, **DOUBLE), cycle(6))
    x = F.leaky_relu(model.features.encoder(inputs.x), 0.1)
    first, second = model.conv.levels
    h = first(x, inputs.edge_index)
    given = torch.cat([x, h], -1)
    read = given if norm is None else second.norm(given.mT[None])[0].mT
    around = second.problem(Inputs(given, inputs.edge_index))
    second.residual = False
    alone = second.problem(Inputs(given, inputs.edge_index))
    second.residual, local = True, alone.local
    known = torch.cat([read, torch.full((6, 1), 3**-0.5, **DOUBLE)], -1)
    torch.testing.assert_close(local.anchor[0].mT, second.encoder(known))
    ends = torch.cat([known[inputs.edge_index[1]], known[inputs.edge_index[0]]], -1)
    torch.testing.assert_close(local.bias[0], second.coupling["bias"]() @ ends.mT)
    change = solve(alone.detach(), Newton(atol=1e-11), alone.start().detach()).value[0].mT
    found = second(given, inputs.edge_index)
    torch.testing.assert_close(found, h + change, rtol=0, atol=1e-7)
    anywhere = torch.randn_like(around.start())
    moved = alone.evaluate(anywhere - h.mT).gradient
    torch.testing.assert_close(around.evaluate(anywhere).gradient, moved)
    torch.testing.assert_close(model.embed(inputs).value, found, rtol=0, atol=1e-9)
    torch.testing.assert_close(model(inputs.x, cycle(6)), model.readout(found))


def test_sizes_follow_the_width():
    """Layers read k encoded numbers, and graphs are pooled at width k."""
    model = SoftEnergyGNN(1433, out_channels=6, hidden_channels=8, num_layers=2, pool="mean")
    biases = [conv.coupling["bias"]() for conv in model.conv.levels]
    assert [bias.shape for bias in biases] == [(8, 2 * 9), (8, 2 * 17)]
    assert (model.readout.node.channels, model.readout.graph.channels) == ((8, 8, 8), (8, 8, 6))
    assert max(p.numel() for p in model.parameters()) == 8 * 1433
    assert len(str(model).splitlines()) == 5


def test_dropout_in_training_only():
    torch.manual_seed(0)
    options = {"out_channels": 1, "hidden_channels": 8, "dropout": 0.5, "encoder": None}
    model, x = SoftEnergyGNN(4, **options).double(), torch.randn(6, 4, **DOUBLE)
    anchors = [model.conv.problem(Inputs(x, cycle(6))).start() for _ in range(2)]
    assert not torch.equal(*anchors)
    assert not torch.equal(model(x, cycle(6)), model(x, cycle(6)))
    model.eval()
    assert torch.equal(model(x, cycle(6)), model(x, cycle(6)))
    plain = SoftEnergyGNN(4, **options | {"dropout": 0.0}).double()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x, cycle(6)), plain(x, cycle(6)))


def test_the_parameters_follow_from_the_seed():
    """The draws have one order, whatever the order of a set is in this process."""
    conv = SoftEnergyConv(3, hidden_channels=4, heads=2, local_channels=3)
    torch.manual_seed(0)
    conv._draw()
    torch.manual_seed(0)
    starts = {name: part.start for name, part in conv.coupling.items()}
    torch.nn.init.orthogonal_(torch.empty(4, 4))
    for name in ("inner_bias", "score"):
        size = starts[name].shape
        assert torch.equal(starts[name], torch.empty(size).normal_(0.0, 1.0 / size[-1] ** 0.5))


def test_reset_parameters_draws_all_and_forgets_running_means():
    options = {"out_channels": 1, "norm": "batch", "pool": "attention", "num_layers": 2}
    model, other = (SoftEnergyGNN(3, **options) for _ in range(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fixed = {k for k, value in other.state_dict().items() if torch.equal(value, before[k])}
    assert {"conv.levels.1.norm.mean", "conv.levels.0.coupling.bias.start"} < fixed
    model(torch.randn(6, 3), cycle(6))
    disturb(model).reset_parameters()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) is (name in fixed), name


SOLVERS = Newton(atol=1e-10), Newton(atol=1e-10, linear="cg"), LBFGS(atol=1e-9, max_iter=5000)


@pytest.mark.parametrize("condition", [2.0, 41.0, 2001.0])
def test_solvers_agree(condition):
    edge_index, batch = batch_of((chain(30), 30), (complete(6), 6))
    problem = problem_on(edge_index, batch.numel(), batch, condition=condition)
    first, *others = (solve(problem, s, problem.start()) for s in SOLVERS)
    assert bool(first.converged.all())
    for other in others:
        assert bool(other.converged.all())
        torch.testing.assert_close(other.value, first.value, rtol=0, atol=1e-7)


# -- the bound ------------------------------------------------------------------------------------


aggregations = st.one_of(
    st.sampled_from([{"aggr": "symmetric"}, {"aggr": "mean"}]),
    st.builds(lambda most: {"aggr": "sum", "max_degree": most}, st.floats(0, 20)),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_eigenvalues_are_bounded(data):
    """On any graph, for any parameters and features, at any point: β ≤ ∇²E ≤ κβ."""
    n = data.draw(st.integers(1, 7))
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=20))
    weight = st.lists(st.floats(0, 100), min_size=len(pairs), max_size=len(pairs))
    options = data.draw(aggregations) | {
        "condition": data.draw(st.floats(1.5, 1e4)),
        "beta": data.draw(st.floats(0.1, 10)),
        "width": data.draw(st.sampled_from([None, 6])),
        "heads": data.draw(st.sampled_from([None, 1, 2])),
        "local_channels": data.draw(st.sampled_from([0, 2, 7])),
    }
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    conv = disturb(conv_of(**options), data.draw(st.sampled_from([0.0, 0.1, 1.0, 30.0])))
    x = data.draw(st.sampled_from([1.0, 100.0])) * torch.randn(n, 3, **DOUBLE)
    w = torch.tensor(data.draw(weight), **DOUBLE)
    problem = conv.problem(Inputs(x, edges(*pairs), edge_weight=w)).detach()
    h = data.draw(st.sampled_from([0.0, 1.0, 100.0])) * torch.randn(1, 4, n, **DOUBLE)
    hessian = columns(problem.evaluate(h).hessian().apply, h)[0]
    found = torch.linalg.eigvalsh(hessian)
    room = 1.0 + 1e-9
    assert float(found[0]) * room >= conv.beta
    assert float(found[-1]) <= float(problem.lipschitz()) * room
    assert float(problem.lipschitz()) <= conv.condition * conv.beta * room
    assert bool((problem.row_bounds().flatten() * room >= hessian.abs().sum(1)).all())


def test_block_bounds_do_not_cancel():
    """Two channels whose products of both matrices cancel, one of them without curvature."""
    conv = conv_of(hidden_channels=1, width=2)
    problem = conv.problem(Inputs(torch.zeros(2, 3, **DOUBLE), edges((0, 1)))).detach()
    root, signs = 0.5**0.5, torch.tensor([[[1.0], [-1.0]]], **DOUBLE)
    local = replace(
        problem.local, receiver=torch.full((1, 2, 1), root, **DOUBLE), sender=root * signs,
        low=torch.zeros(1, 2, 1, **DOUBLE), bias=1e4 * signs,
    )  # fmt: skip
    problem = replace(problem, local=local)
    h = problem.start()
    across = columns(problem.evaluate(h).hessian().apply, h)[0, 0, 1].abs()
    assert 1.0 < float(across) <= float(problem.block_bounds()[1].min())


@pytest.mark.parametrize("local_channels", [0, 4])
def test_the_bound_is_attained(local_channels):
    """Two nodes, opposite signals, steepest slopes, without a self-loop in the degree: almost κ,
    also with node-local terms that read the whole embedding."""
    conv = conv_of(condition=101.0, local_channels=local_channels)
    with torch.no_grad():
        conv.coupling["slopes"].change.fill_(50.0)
        if local_channels:
            conv.coupling["inner_slopes"].change.fill_(50.0)
            conv.coupling["inner"].change.copy_(torch.eye(4))
    weight = torch.full((2,), 1e9, **DOUBLE)
    inputs = Inputs(torch.randn(2, 3, **DOUBLE), chain(2), edge_weight=weight)
    problem = conv.problem(inputs).detach()
    hessian = columns(problem.evaluate(problem.start()).hessian().apply, problem.start())
    assert float(torch.linalg.eigvalsh(hessian[0])[-1]) == pytest.approx(101.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6), st.floats(-6, 6))
def test_spectral_norms(seed, w, k, log):
    torch.manual_seed(seed)
    matrix = 10.0**log * torch.randn(2, w, k, **DOUBLE)
    found = bounded(matrix)
    assert float(torch.linalg.matrix_norm(found, 2).max()) <= 1.0 + 1e-12
    torch.testing.assert_close(bounded(matrix.numpy()), found.numpy())
    orthonormal = torch.linalg.qr(torch.randn(6, k, **DOUBLE))[0]
    torch.testing.assert_close(bounded(orthonormal), orthonormal)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_influence_falls_with_every_hop(data):
    """At any point the answer of a node moves by at most 2 ρ^d times a move of the anchor d hops
    away, with ρ = exp(−1 / reach)."""
    reach = data.draw(st.floats(0.2, 5))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    heads = data.draw(st.sampled_from([None, 2]))
    options = data.draw(aggregations) | {"reach": reach, "heads": heads, "beta": 3.0}
    n = 9
    problem = problem_on(chain(n), n, local_channels=data.draw(st.sampled_from([0, 3])), **options)
    h = torch.randn(1, 4, n, **DOUBLE)
    inverse = torch.linalg.inv(columns(problem.evaluate(h).hessian().apply, h)[0])
    blocks = problem.local.beta * inverse.reshape(4, n, 4, n).permute(1, 3, 0, 2)
    found = torch.linalg.matrix_norm(blocks, 2)
    hops = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    assert bool((found <= 2.0 * torch.exp(-hops / reach) + 1e-12).all())


def test_reach():
    assert condition_of(3.0) == pytest.approx(36.67, abs=0.01)
    assert conv_of(reach=3.0).condition == condition_of(3.0)
    assert conv_of().condition == 41.0
    for reach in (0.1, 1.0, 30.0):
        root = condition_of(reach) ** 0.5
        assert ((root - 1.0) / (root + 1.0)) ** reach == pytest.approx(torch.exp(-torch.ones(1)))


# -- the options ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_edge_weights_are_a_mask(data):
    """An edge of weight zero is no edge, and gradients of the answer with respect to weights equal
    differences, with every scaling and with attention."""
    heads = data.draw(st.sampled_from([None, 2]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    options = data.draw(aggregations) | {"heads": heads, "local_channels": 2}
    conv = disturb(conv_of(edge_dim=2, solver=Newton(atol=1e-11), **options))
    n = data.draw(st.integers(1, 6))
    node = st.integers(0, n - 1)
    edge_index = edges(*data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=15)))
    x, attr = torch.randn(n, 3, **DOUBLE), torch.randn(edge_index.size(1), 2, **DOUBLE)
    keep = torch.rand(edge_index.size(1)) < 0.6
    weight = torch.where(keep, 0.1 + torch.rand(keep.numel(), **DOUBLE), 0.0)

    def answer(w):
        return conv.embed(Inputs(x, edge_index, attr, edge_weight=w)).value

    fewer = Inputs(x, edge_index[:, keep], attr[keep], edge_weight=weight[keep])
    torch.testing.assert_close(answer(weight), conv.embed(fewer).value, rtol=0, atol=1e-9)
    factor = torch.randn(n, 4, **DOUBLE)
    (slope,) = torch.autograd.grad((factor * answer(weight.requires_grad_())).sum(), weight)
    assert bool(slope.isfinite().all())
    move = torch.where(keep, torch.randn_like(weight), 0.0)
    with torch.no_grad():
        up, down = (float((factor * answer(weight + s * 1e-5 * move)).sum()) for s in (1, -1))
    assert (up - down) / 2e-5 == pytest.approx(float((slope * move).sum()), rel=1e-4, abs=1e-4)


def test_attention_is_a_softmax_of_scores():
    torch.manual_seed(0)
    conv = disturb(conv_of(heads=2, width=6, edge_dim=2), 3.0)
    e, n = ODD.size(1), ODD_NODES
    x, attr, mask = (
        torch.randn(n, 3, **DOUBLE),
        torch.randn(e, 2, **DOUBLE),
        torch.rand(e, **DOUBLE),
    )
    found = conv.problem(Inputs(x, ODD, attr, edge_weight=mask)).detach().local
    degree = 1.0 + scatter(mask, ODD[1], n)
    known = knowing(x.mT[None], degree)[0].mT
    score, out = (conv.coupling[name]().detach() for name in ("score", "score_out"))
    power, share = torch.empty(2, e, **DOUBLE), torch.empty(2, e, **DOUBLE)
    for i in range(e):
        j, to = ODD[:, i].tolist()
        hidden = score @ torch.cat([known[to], known[j], attr[i]])
        hidden = torch.where(hidden > 0, hidden, ATTENTION_SLOPE * hidden) * out[:, 0]
        power[:, i] = (CAP * torch.tanh(hidden.view(2, 3).sum(1) / CAP)).exp()
    for i in range(e):
        into = ODD[1] == ODD[1, i]
        share[:, i] = mask[i] * power[:, i] / (mask * power)[:, into].sum(1) * mask[into].sum()
    torch.testing.assert_close(found.weight[0], share)
    here, there = 1.0 + scatter(share, ODD[1], n), 1.0 + scatter(share, ODD[0], n)
    torch.testing.assert_close(found.here[0], here[:, ODD[1]] ** -0.5)
    torch.testing.assert_close(found.there[0], there[:, ODD[0]] ** -0.5)


def test_mean_and_sum_keep_a_constant_signal():
    """A star, whose hub and leaves have different degrees; symmetric scaling does not keep it."""
    edge_index, n = star(9), 9
    for aggr, most in (("mean", None), ("sum", 5), ("symmetric", None)):
        inputs = Inputs(torch.zeros(n, 3, **DOUBLE), edge_index)
        problem = conv_of(aggr=aggr, max_degree=most).problem(inputs)
        constant = torch.ones(1, 4, n, **DOUBLE)
        coupled = problem.evaluate(constant).gradient - (constant - problem.start())
        assert bool((coupled.detach().abs() < 1e-12).all()) is (aggr != "symmetric")


def test_sum_weighs_edges_alike_up_to_the_largest_degree():
    degrees = torch.tensor([1.0, 2.0, 5.0, 6.0], **DOUBLE)  # one plus the neighbours
    here, there = scales("sum", degrees, degrees.new_ones(4), 4)
    torch.testing.assert_close(here, torch.tensor([5.0, 5.0, 5.0, 6.0], **DOUBLE) ** -0.5)
    torch.testing.assert_close(there, here)


def test_rate_scales_the_steps_of_adam():
    """The first step of Adam moves every entry by the learning rate."""
    moved = {}
    for rate in (1.0, 0.25):
        torch.manual_seed(0)
        conv = conv_of(rate=rate, local_channels=2, heads=2)
        before = {name: part().detach().clone() for name, part in conv.coupling.items()}
        optimizer = torch.optim.Adam(conv.parameters(), lr=0.01, eps=1e-30)
        inputs = Inputs(torch.randn(6, 3, **DOUBLE), cycle(6))
        conv.embed(inputs).value.square().sum().backward()
        optimizer.step()
        moved[rate] = {n: part().detach() - before[n] for n, part in conv.coupling.items()}
    assert float(moved[1.0]["receiver"].abs().min()) == pytest.approx(0.01)
    for name in ("receiver", "sender", "slopes", "bias", "inner", "score_out"):
        torch.testing.assert_close(moved[0.25][name], 0.25 * moved[1.0][name], msg=name)


def test_rate_zero_holds_the_coupling():
    conv = conv_of(rate=0, heads=2, local_channels=2)
    assert {name.split(".")[0] for name, _ in conv.named_parameters()} == {"encoder"}
    assert conv.coupling["receiver"]().abs().max() > 0


def test_weight_decay_pulls_to_the_start():
    part = Slow(3, rate=0.5)
    part.restart(torch.ones(3))
    with torch.no_grad():
        part.change.fill_(2.0)
    optimizer = torch.optim.SGD(part.parameters(), lr=1.0, weight_decay=1.0)
    part.change.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(part(), torch.ones(3))


# -- the start ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fresh_parameters_denoise_a_signal(data):
    """The energy of GSDGNN with γ = β / 2 and the weight (κ − 1) γ / 4 along edges, half of it with
    node-local terms; on undirected graphs with self-loops and parallel edges."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    condition = data.draw(st.floats(1.5, 1000))
    n = data.draw(st.integers(1, 7))
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=12))
    one, back = edges(*pairs), edges(*[(j, i) for i, j in pairs])
    edge_index, weight = torch.cat([one, back], 1), torch.rand(len(pairs), **DOUBLE).repeat(2)
    options = {"heads": data.draw(st.sampled_from([None, 2]))}
    options["local_channels"] = data.draw(st.sampled_from([0, 3]))
    share = 0.5 if options["local_channels"] else 1.0
    conv = conv_of(condition=condition, width=6, solver=Newton(atol=1e-11), **options)
    inputs = Inputs(torch.randn(n, 3, **DOUBLE), edge_index, edge_weight=weight)
    problem = conv.problem(inputs).detach()
    gamma = 0.5 * conv.beta
    smooth = GSDProblem.of(
        problem.graph, gamma, 0.25 * share * (condition - 1.0) * gamma, problem.start(), weight
    )
    h = torch.randn(1, 4, n, **DOUBLE)
    torch.testing.assert_close(problem.evaluate(h).gradient, smooth.evaluate(h).gradient)
    exact = solve(smooth, Newton(), smooth.start()).value[0].mT
    torch.testing.assert_close(conv.embed(inputs).value, exact, rtol=0, atol=1e-8)


def test_a_bit_crosses_a_chain():
    """The task chains: every one of 30 nodes learns the class that its first node knows."""
    torch.manual_seed(0)
    task = Chains(length=30)
    data = Batch.from_data_list(task.graphs)
    model = SoftEnergyGNN(2, hidden_channels=8, out_channels=1, condition=1001.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for _ in range(150):
        out = model(data.x, data.edge_index, batch=data.batch)
        if float(task.metric(out.detach(), data)) == 0.0:
            return
        optimizer.zero_grad()
        task.loss(out, data).backward()
        optimizer.step()
    pytest.fail("some nodes have not learned the class")


# -- the problem ----------------------------------------------------------------------------------

GRAPHS = {"chain": (chain(4), 4), "complete": (complete(4), 4), "odd": (ODD, ODD_NODES)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    "options", [{"replicas": 2, "heads": 2, "local_channels": 3}, {"aggr": "mean", "edge_dim": 2}]
)
def test_derivatives(name, options):
    """The gradient is that of the value, the Hessian that of the gradient; blocks and the node's
    quadratic models agree with the Hessian."""
    problem = problem_on(*GRAPHS[name], **options)
    h = torch.randn_like(problem.start()).requires_grad_()
    (slope,) = torch.autograd.grad(problem.evaluate(h).value.sum(), h)
    torch.testing.assert_close(problem.evaluate(h).gradient.detach(), slope)
    at = problem.evaluate(h.detach())
    hessian = columns(at.hessian().apply, h.detach())
    exact = columns(
        lambda v: torch.func.jvp(lambda y: problem.evaluate(y).gradient, (h.detach(),), (v,))[1],
        h.detach(),
    )
    torch.testing.assert_close(hessian, exact)
    torch.testing.assert_close(assemble(problem.graph, *at.hessian().blocks()), hessian)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [{}, {"heads": 2, "local_channels": 3}])
def test_local_energies(name, options):
    """Those of the node; its majorising models lie above."""
    problem = problem_on(*GRAPHS[name], replicas=2, **options)
    graph, node, n = problem.graph, problem.node, problem.graph.num_nodes
    everyone = graph.everyone

    def energies(h, inbox):
        along = node.energies(node.arguments(h, inbox, everyone))
        return node.alone(h) + scatter(along, graph.dst, n)

    h, inbox, own, toward = check_local_energies(problem, energies)
    above = node.quadratic(h, inbox, everyone, majorise=1.0)
    d, e = torch.randn_like(h), torch.randn_like(inbox)
    here = everyone.spread(d)
    growth = 0.5 * torch.einsum("ran,rabn,rbn->rn", d, above.b, d) + scatter(
        torch.einsum("rae,rabe,rbe->re", here, above.x, e)
        + 0.5 * torch.einsum("rae,rabe,rbe->re", e, above.c, e),
        graph.dst,
        n,
    )
    linear = (own * d).sum(1) + scatter((toward * e).sum(1), graph.dst, n)
    rise = energies(h + d, inbox + e) - energies(h, inbox)
    assert bool((rise <= linear + growth + 1e-9).all())


def test_newton_where_the_energy_is_negative():
    """ψ falls below zero on one side; rounding is judged by the size of its terms."""
    torch.manual_seed(1)
    conv = conv_of(condition=20001.0, solver=Newton(max_iter=30))
    disturb(conv)
    with torch.no_grad():
        conv.coupling["slopes"].change.mul_(3.0)
    for n in (2, 3, 9):
        assert bool(conv.embed(Inputs(torch.randn(n, 3, **DOUBLE), chain(n))).converged)


# -- without a clock ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["gradient", "messages", "balls"])
def test_out_of_step(rule):
    torch.manual_seed(0)
    model = SoftEnergyGNN(3, hidden_channels=3, out_channels=1, condition=11.0).double()
    data = Data(torch.randn(6, 3, **DOUBLE), cycle(6))
    assert bool(simulate(model, data, rule=rule).converged.all())


def test_certificate_names_the_condition_number():
    model = SoftEnergyGNN(3, hidden_channels=3, out_channels=1, condition=11.0).double()
    disturb(model.conv)
    found = certify(model, Inputs(torch.randn(6, 3, **DOUBLE), cycle(6)), rule="gradient")
    assert found.constants["condition_number_everywhere"] <= 11.0 + 1e-9
    assert found.constants["condition_number"] <= found.constants["condition_number_everywhere"]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"condition": 1.0}, "condition=1.0; expected a number above 1"),
        ({"condition": "big"}, "condition='big'; expected a number above 1"),
        ({"condition": 5.0, "reach": 2.0}, "condition=5.0 and reach=2.0 were given"),
        ({"reach": 0.0}, "reach=0.0; expected a number of hops, at least 0.1"),
        ({"beta": 0.0}, "beta=0.0"),
        ({"rate": -1.0}, "rate=-1.0; expected a number from 0 on"),
        ({"aggr": "max"}, "aggr='max'; expected one of symmetric, mean, sum"),
        ({"aggr": "sum"}, "aggr='sum' with max_degree=None; expected a number of neighbours"),
        ({"max_degree": 3}, "aggr='symmetric' with max_degree=3"),
        ({"heads": 0}, "heads=0; expected a positive integer"),
        ({"heads": 3}, "heads=3 do not divide the 4 channels"),
        ({"local_channels": -1}, "local_channels=-1; expected an integer of at least 0"),
        ({"width": 3}, "width=3; expected at least hidden_channels=4"),
        ({"edge_dim": 0}, "edge_dim=0"),
        ({"norm": "graph"}, "norm='graph'; expected None, 'layer' or 'batch'"),
        ({"dropout": 1.0}, "dropout=1.0; expected a probability"),
        ({"residual": True}, "residual=True was given with in_channels=3 and hidden_channels=4"),
    ],
)
def test_bad_options(options, told):
    with pytest.raises(ConfigError, match=told):
        conv_of(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"in_channels": -1, "encoder": None}, "in_channels=-1 was given without an encoder"),
        ({"in_channels": -2}, "in_channels=-2; expected a positive integer"),
        ({"encoder": 8}, "encoder=8; expected hidden widths"),
        ({"encoder": (4, 0)}, r"encoder=\(4, 0\)"),
        ({"jk": "lstm", "num_layers": 2}, "jk='lstm'; expected one of"),
        ({"jk": "lstm"}, "jk='lstm'; expected one of"),
        ({"pool": "median"}, "pool='median'"),
        ({"norm": "pair"}, "norm='pair'; expected None, 'layer' or 'batch'"),
        ({"dropout": "much"}, "dropout='much'; expected a probability"),
        ({"out_channels": None}, "SoftEnergyGNN was built without out_channels"),
        ({"readout": "wide"}, "readout='wide'"),
        ({"readout": Readout(8, out_channels=2)}, "beside a Readout"),
    ],
)
def test_bad_options_of_models(options, told):
    with pytest.raises(ConfigError, match=told):
        SoftEnergyGNN(**{"in_channels": 3, "hidden_channels": 8, "out_channels": 2} | options)


def test_agents_have_no_attention(tmp_path):
    model = SoftEnergyGNN(3, hidden_channels=4, out_channels=1, heads=2)
    with pytest.raises(AsynchronyError, match="heads=2: the scale of an edge depends on"):
        export(model, tmp_path / "model.hog")


def test_a_part_of_a_graph_has_no_attention():
    degrees = torch.full((3, 2), 4.0)
    inputs = Inputs(torch.randn(3, 3), chain(3), degrees=degrees)
    with pytest.raises(GraphError, match=r"attention \(heads=2\) needs the whole graph"):
        SoftEnergyConv(3, hidden_channels=4, heads=2).problem(inputs)


def test_a_start_of_another_precision():
    """Without ``solve_dtype`` the solve runs in the precision of the features."""
    conv = SoftEnergyConv(3, hidden_channels=4, solve_dtype=None)
    inputs = Inputs(torch.randn(5, 3), chain(5))
    found = conv.embed(inputs, torch.randn(5, 4, **DOUBLE)).value
    torch.testing.assert_close(found, conv.embed(inputs).value, rtol=0, atol=1e-4)
