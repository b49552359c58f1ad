"""Energies that are evaluated in blocks of nodes equal those that are held in memory."""

import pytest
import torch
from helpers import assert_second_derivatives
from torch_geometric.data import Batch, Data

from hogwild import EnergyGNN, Inputs
from hogwild.errors import GraphError
from hogwild.problems import energy
from hogwild.solvers import LBFGS, Newton
from hogwild_node.tree import arrays

NODES = 40
VARIANTS = {
    "edge-wise": {},
    "edge features": {"edge_dim": 2},
    "node-wise": {"message": "node"},
    "normalised": {"normalize": True},
    "mean": {"aggr": "mean", "hidden_channels": 3},
    "attention": {"heads": 2, "edge_dim": 2},
    "averaged heads": {"heads": 3, "concat": False},
    "replicas": {"replicas": 3},
}


def graph(seed=0, nodes=NODES, count=150, loops=True):
    """Unsorted edges, with isolated nodes, and perhaps self-loops and parallel edges."""
    random = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes - 3, (2, count), generator=random)
    if not loops:
        ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)
        ends = ends[:, torch.randperm(ends.size(1), generator=random)]
    attr = torch.randn(ends.size(1), 2, generator=random, dtype=torch.float64)
    x = torch.randn(nodes, 3, generator=random, dtype=torch.float64)
    return Data(x=x, edge_index=ends, edge_attr=attr)


@pytest.fixture
def large(monkeypatch):
    """Every graph counts as large, and blocks are small."""

    def switch(on=True):
        monkeypatch.setattr(energy, "LARGE", {"cpu": 0 if on else 1 << 40})
        monkeypatch.setattr(energy, "BLOCK_EDGES", 37)

    switch()
    return switch


def build(solver=None, **options):
    torch.manual_seed(1)
    solver = solver or Newton(linear="cg")
    return EnergyGNN(3, out_channels=1, solver=solver, **options).double()


def pose(model, data, large):
    """The problem held in memory, and in blocks."""
    if model.edge_dim is None:
        data = Inputs(data.x, data.edge_index, batch=data.batch)
    large(False)
    whole = model.problem(data)
    assert len(whole.blocks) == 1
    large()
    return whole, model.problem(data)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("loops", [True, False])
def test_values_and_derivatives(name, loops, large):
    model, data = build(**VARIANTS[name]), graph(loops=loops)
    whole, blocks = pose(model, data, large)
    assert len(list(blocks.blocks)) > 3
    h = torch.randn(whole.replicas, whole.channels, NODES, dtype=torch.float64)
    one, two = whole.evaluate(h), blocks.evaluate(h)
    for part in ("value", "noise", "gradient", "scale"):
        close(getattr(one, part), getattr(two, part))
    v = torch.randn_like(h)
    close(one.hessian().apply(v), two.hessian().apply(v))
    reach = torch.full((whole.replicas, 1), 2.0, dtype=torch.float64)
    close(one.secant(reach).apply(v), two.secant(reach).apply(v))
    close(one.hessian().diagonal(), two.hessian().diagonal())
    for some, same in zip(one.hessian().blocks(), two.hessian().blocks(), strict=True):
        close(some, same)
    close(whole.row_bounds(), blocks.row_bounds())
    close(whole.convexity(), blocks.convexity())
    assert torch.equal(whole.start(), blocks.start())


def test_second_derivatives(large, monkeypatch):
    """The backward pass of a block, which computes it again, is differentiated itself."""
    model, data = (
        build(Newton(linear="cg", atol=1e-11), edge_dim=2, heads=2),
        graph(nodes=12, count=40),
    )
    monkeypatch.setattr(energy, "BLOCK_EDGES", 11)
    assert len(model.problem(data).blocks) > 1

    def solve(x, attr, *_):
        return model.embed(Inputs(x, data.edge_index, attr)).value

    leaves = [t.requires_grad_() for t in (data.x, data.edge_attr)]
    assert_second_derivatives(solve, leaves)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_gradients(name, large):
    """The residual is computed again, block by block, in the backward pass."""
    model, data = build(**VARIANTS[name]), graph()
    whole, blocks = pose(model, data, large)
    h = torch.randn(whole.replicas, whole.channels, NODES, dtype=torch.float64)
    weights = torch.randn_like(h)
    parameters = list(model.conv.parameters())
    one, two = (
        torch.autograd.grad((p.residual(h) * weights).sum(), parameters, allow_unused=True)
        for p in (whole, blocks)
    )
    for a, b in zip(one, two, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("solver", [Newton(linear="cg"), LBFGS()])
@pytest.mark.parametrize("name", ["edge features", "replicas"])
def test_embeddings_and_training_steps(name, solver, large):
    data = graph()
    if name != "edge features":
        data.edge_attr = None
    found = []
    for on in (False, True):
        large(on)
        model = build(solver, **VARIANTS[name])
        solution = model.embed(data)
        assert bool(solution.converged.all())
        solution.value.square().sum().backward()
        found.append((solution.value.detach(), [p.grad for p in model.conv.parameters()]))
    (h, gradient), (same, equal) = found
    torch.testing.assert_close(h, same, rtol=0, atol=1e-6)
    for a, b in zip(gradient, equal, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_some_graphs_and_replicas_of_a_batch(large):
    batch = Batch.from_data_list([graph(seed, nodes) for seed, nodes in enumerate((20, 9, 30))])
    model = build(replicas=3, edge_dim=2)
    whole, blocks = pose(model, batch, large)
    close(whole.start(), blocks.start())
    replicas, graphs = torch.tensor([0, 2]), torch.tensor([1, 2])
    one, nodes = whole.select(replicas, graphs)
    two, same = blocks.select(replicas, graphs)
    assert torch.equal(nodes, same)
    close(one.start(), whole.start()[replicas][..., nodes])
    close(one.start(), two.start())
    h = torch.randn(2, 2, nodes.numel(), dtype=torch.float64)
    close(one.evaluate(h).value, two.evaluate(h).value)
    close(one.evaluate(h).gradient, two.evaluate(h).gradient)
    close(one.evaluate(h).hessian().apply(h), two.evaluate(h).hessian().apply(h))


def test_the_energy_is_differentiable(large):
    model, data = build(edge_dim=2), graph()
    found = []
    for on in (False, True):
        large(on)
        h = torch.ones(NODES, 2, dtype=torch.float64, requires_grad=True)
        inputs = [h, *model.conv.parameters()]
        found.append(torch.autograd.grad(model.energy(h, data).sum(), inputs, allow_unused=True))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_detached_problems_have_no_gradients(large):
    """Neither the problem nor the networks that it poses later."""
    _, problem = pose(build(), graph(), large)
    h = torch.randn(problem.start().shape, dtype=torch.float64)
    assert problem.evaluate(h).gradient.requires_grad
    found = problem.detach()
    assert not found.evaluate(h).gradient.requires_grad
    assert not any(x.requires_grad for x, _ in arrays(found.node))
    assert torch.equal(found.evaluate(h).gradient, problem.evaluate(h).gradient)


def test_nodes_of_a_network_compute_the_same(large):
    whole, blocks = pose(build(), graph(), large)
    h = torch.randn(1, 2, NODES, dtype=torch.float64)
    star = whole.graph.everyone
    for a, b in zip(
        whole.node.local(h, star.current(h), star),
        blocks.node.local(h, star.current(h), star),
        strict=True,
    ):
        close(a, b)


def test_invalid_edges_are_refused(large):
    with pytest.raises(GraphError, match="names nodes"):
        build().embed(Data(x=torch.ones(2, 3).double(), edge_index=torch.tensor([[0], [5]])))


def test_no_edges(large):
    data = Data(x=graph().x, edge_index=torch.empty(2, 0, dtype=torch.long))
    whole, blocks = pose(build(), data, large)
    h = torch.randn(1, 2, NODES, dtype=torch.float64)
    close(whole.evaluate(h).gradient, blocks.evaluate(h).gradient)
    close(whole.evaluate(h).hessian().apply(h), blocks.evaluate(h).hessian().apply(h))
