"""Multifrontal factorisation equals dense solves; it declines where separators are large."""

import numpy as np
import pytest
import torch
from helpers import (
    DOUBLE,
    assemble,
    batch_of,
    chain,
    circulant,
    complete,
    cycle,
    edges,
    grid,
    star,
    tree,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import EnergyConv, Inputs
from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.linalg import dissection, fronts
from hogwild.solvers import LinearSolver, Newton

DISSECT, DENSE = 0, 1 << 30
GRAPHS = {
    "one node": (edges(), 1),
    "no edges": (edges(), 7),
    "chain": (chain(40), 40),
    "tree": (tree(45), 45),
    "star": (star(40), 40),
    "cycle": (cycle(37), 37),
    "grid": (grid(6, 7), 42),
    "complete": (complete(24), 24),
    "pieces": (torch.cat([chain(20), cycle(15) + 20, grid(3, 4) + 35], 1), 50),
    "odd": (torch.cat([cycle(25), edges((0, 0), (3, 4), (3, 9), (24, 7))], 1), 26),
}
MIXED = batch_of(*GRAPHS.values(), (chain(40), 40), (star(40), 40))


def random_matrix(graph, k, replicas, seed=0):
    """Blocks of a random positive definite matrix on the graph's pattern, and the matrix."""
    rng = torch.Generator().manual_seed(seed)
    pattern = graph.pattern
    off = torch.randn(replicas, k, k, pattern.rows.numel(), generator=rng, **DOUBLE)
    diagonal = torch.randn(replicas, k, k, graph.num_nodes, generator=rng, **DOUBLE)
    diagonal = diagonal + diagonal.transpose(1, 2)
    dense = assemble(graph, diagonal, off)
    shift = 0.3 + dense.abs().sum(-1).view(replicas, k, graph.num_nodes)  # Gershgorin
    diagonal.diagonal(dim1=1, dim2=2).add_(shift.transpose(1, 2))
    return diagonal, off, dense + torch.diag_embed(shift.flatten(1))


def check(graph, k, replicas, dense_width, seed=0, call=fronts.CALL_WORK["cpu"]):
    diagonal, off, dense = random_matrix(graph, k, replicas, seed)
    plan = fronts.Plan(graph, k, dense_width, call=call)
    rhs = torch.randn(replicas, k, graph.num_nodes, **DOUBLE)
    before = rhs.clone()
    factor = plan.factor(diagonal, off)
    expected = torch.linalg.solve(dense, rhs.flatten(1)).view_as(rhs)
    torch.testing.assert_close(factor.solve(rhs), expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(rhs, before)
    # The factor can be used again.
    torch.testing.assert_close(factor.solve(2.0 * rhs), 2.0 * expected, rtol=1e-9, atol=1e-12)
    return plan


@pytest.fixture(autouse=True)
def _fresh_analyses(monkeypatch):
    monkeypatch.setattr(dissection, "_ANALYSED", {})


@pytest.mark.parametrize(("k", "replicas"), [(1, 3), (2, 1), (5, 2)])
@pytest.mark.parametrize("dense_width", [DISSECT, DENSE], ids=["dissect", "dense"])
@pytest.mark.parametrize("name", GRAPHS)
def test_solve_equals_dense(name, dense_width, k, replicas):
    graph = Graph.of(*GRAPHS[name])
    plan = check(graph, k, replicas, dense_width)
    if dense_width == DENSE:
        assert len(plan.groups) == 1
        assert plan.size == (graph.num_nodes * k) ** 2
    elif name in ("chain", "tree", "cycle"):
        plan = check(graph, k, replicas, dense_width, call=0.0)  # nothing is padded
        assert len(plan.groups) > 1
        assert plan.size < (graph.num_nodes * k) ** 2
        assert not plan.pads.numel()


CALLS, WIDTHS = [0.0, 1e4, float("inf")], [DISSECT, 48, DENSE]
MIXTURES = [  # the quick ones hold every pair of values
    pytest.param(*(width, k, call), marks=[pytest.mark.slow] if (a + b + c) % 3 else [])
    for a, width in enumerate(WIDTHS)
    for b, k in enumerate((1, 2, 5))
    for c, call in enumerate(CALLS)
]


@pytest.mark.parametrize(("dense_width", "k", "call"), MIXTURES)
def test_mixed_batch(dense_width, k, call):
    """Graphs of all kinds at once, some of them equal, some dense and some dissected."""
    edge_index, batch = MIXED
    graph = Graph.of(edge_index, batch.numel(), batch)
    if dense_width == DENSE and k == 5:
        dense_width = 200  # keeps the largest dense front within MAX_WIDTH
    plan = check(graph, k, 2, dense_width, call=call)
    if call == float("inf"):  # one batch a height
        assert len(plan.groups) <= 1 + max(f.height for o in plan.orders for f in o.fronts)


def test_equal_graphs_share_one_analysis():
    parts = [(chain(60), 60)] * 5
    edge_index, batch = batch_of(*parts)
    check(Graph.of(edge_index, batch.numel(), batch), 2, 1, DISSECT)
    assert len(dissection._ANALYSED) == 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=4),
    density=st.floats(0.0, 2.5),
    k=st.sampled_from([1, 2, 3]),
    leaf=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 10**6),
)
def test_random_multigraphs(sizes, density, k, leaf, seed):
    """Directed, with self-loops, multi-edges and isolated nodes; leaves down to one unknown."""
    rng = np.random.default_rng(seed)
    parts = [(edges(*rng.integers(n, size=(int(density * n), 2)).tolist()), n) for n in sizes]
    edge_index, batch = batch_of(*parts)
    graph = Graph.of(edge_index, batch.numel(), batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dissection, "_ANALYSED", {})
        patch.setattr(fronts, "LEAF_WIDTH", leaf)
        check(graph, k, 1, DISSECT, seed)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True)
@given(n=st.integers(1, 120), extra=st.floats(0.0, 1.0), seed=st.integers(0, 10**6))
def test_random_sparse_graphs(n, extra, seed):
    rng = np.random.default_rng(seed)
    more = edges(*rng.integers(n, size=(int(extra * n), 2)).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dissection, "_ANALYSED", {})
        patch.setattr(fronts, "LEAF_WIDTH", 4)
        check(Graph.of(torch.cat([tree(n, seed), more], 1), n), 2, 1, DISSECT, seed)


def test_chain_is_linear():
    """Storage of a chain grows linearly with its length."""
    sizes = [fronts.Plan(Graph.of(chain(n), n), 2, DISSECT).size for n in (256, 1024)]
    assert sizes[1] < 5 * sizes[0]


def test_nan_stays_in_its_graph():
    """A graph whose matrix is NaN does not spoil its batch mates through shared padding."""
    edge_index, batch = batch_of((chain(5), 5), (chain(30), 30))
    graph = Graph.of(edge_index, 35, batch)
    diagonal, off, dense = random_matrix(graph, 2, 1)
    diagonal[..., :5] = float("nan")
    rhs = torch.randn(1, 2, 35, **DOUBLE)
    x = fronts.Plan(graph, 2, DISSECT).factor(diagonal, off).solve(rhs)
    own = torch.cat([torch.arange(5, 35), 35 + torch.arange(5, 35)])
    expected = torch.linalg.solve(dense[0][own][:, own], rhs[..., 5:].flatten())
    torch.testing.assert_close(x[..., 5:].flatten(), expected, rtol=1e-9, atol=1e-12)
    assert not bool(torch.isfinite(x[..., :5]).any())


@pytest.fixture
def low_limits(monkeypatch):
    """Limits that an expander of 60 nodes exceeds and a chain of 60 does not."""
    monkeypatch.setattr(fronts, "MAX_WIDTH", 24)
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    monkeypatch.setattr(fronts, "DENSE_WIDTH", 8)


def expander(n):
    """A random 6-regular-ish graph: no small separators."""
    rng = np.random.default_rng(0)
    pairs = {tuple(sorted(p)) for p in rng.integers(n, size=(3 * n, 2)).tolist() if p[0] != p[1]}
    return torch.cat([cycle(n), *(edges((i, j), (j, i)) for i, j in sorted(pairs))], 1)


def test_too_wide(low_limits):
    with pytest.raises(fronts.TooWide):
        fronts.Plan(Graph.of(expander(60), 60), 2, 8)
    with pytest.raises(fronts.TooWide):
        fronts.Plan(Graph.of(circulant(60, 20), 60), 2, 8)
    assert fronts.plan_for(Graph.of(expander(60), 60), 2, 1) is None


def test_too_many_elements(low_limits, monkeypatch):
    monkeypatch.setattr(fronts, "MAX_ELEMENTS", 500)
    with pytest.raises(fronts.TooWide):
        fronts.Plan(Graph.of(chain(200), 200), 2, 8)


def test_newton_falls_back_to_cg_with_the_same_answer(monkeypatch):
    torch.manual_seed(0)
    edge_index = expander(60)
    conv = EnergyConv(3, solver=Newton(atol=1e-11)).double()
    x = torch.randn(60, 3, **DOUBLE)
    expected = conv(x, edge_index)
    monkeypatch.setattr(fronts, "MAX_WIDTH", 24)
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    again = edge_index.clone()  # a graph without a memoised plan
    problem = conv.problem(Inputs(x, again)).detach()
    assert fronts.plan_for(problem.graph, 2, 1) is None
    torch.testing.assert_close(conv(x, again), expected, rtol=0, atol=1e-9)
    hessian = problem.evaluate(problem.start()).hessian()
    with pytest.raises(ConfigError, match="no small separators"):
        LinearSolver("direct").solve(hessian, torch.ones(1, 2, 60, **DOUBLE), 1e-10)


@pytest.mark.parametrize("n", [1, 3])
def test_a_graph_without_edges_is_factorised(monkeypatch, n):
    """Also where small graphs are not dense ones anyway, as on a GPU."""
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    assert fronts.plan_for(Graph.of(torch.empty(2, 0, dtype=torch.long), n), 2, 1) is not None


def test_plans_are_made_once():
    graph = Graph.of(chain(30), 30)
    assert fronts.plan_for(graph, 2, 1) is fronts.plan_for(graph, 2, 1)
    assert fronts.plan_for(graph, 2, 1) is not fronts.plan_for(graph, 3, 1)


def test_a_plan_serves_any_number_of_replicas(monkeypatch):
    """Replicas converge and leave; the plan stays."""
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    edge_index, batch = MIXED
    graph = Graph.of(edge_index, len(batch), batch)
    plan = fronts.plan_for(graph, 2, 8)
    assert plan is not None
    assert fronts.plan_for(graph, 2, 3) is plan


def test_plans_for_many_replicas_must_fit(monkeypatch):
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    size = fronts.plan_for(Graph.of(chain(200), 200), 2, 1).size
    monkeypatch.setattr(fronts, "MAX_TOTAL", 10 * size)
    assert fronts.plan_for(Graph.of(chain(200), 200), 2, 10) is not None
    graph = Graph.of(chain(200), 200)
    assert fronts.plan_for(graph, 2, 11) is None
    plan = fronts.plan_for(graph, 2, 10)
    assert plan is not None  # what was refused to eleven is not refused to ten
    assert fronts.plan_for(graph, 2, 11) is None  # nor is what ten have given to eleven
    assert fronts.plan_for(graph, 2, 9) is plan
    graph = Graph.of(chain(200), 200)
    assert fronts.plan_for(graph, 2, 11) is None
    part, _, _ = graph.select(torch.tensor([0]))
    assert fronts.plan_for(part, 2, 5) is not None


def test_roots_come_last_and_together():
    """Of a long chain and a short one, which has fewer heights."""
    edge_index, batch = batch_of((chain(300), 300), (chain(60), 60), (chain(30), 30))
    plan = fronts.Plan(Graph.of(edge_index, len(batch), batch), 2, DISSECT, call=float("inf"))
    roots = [group for group in plan.groups if not group.boundary.size(1)]
    assert [group.count for group in roots] == [3]
    assert roots[0] is plan.groups[-1]


def test_graphs_that_had_no_plan_get_none(monkeypatch):
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    edge_index, batch = batch_of((expander(200), 200), (chain(60), 60))
    graph = Graph.of(edge_index, len(batch), batch)
    assert fronts.plan_for(graph, 2, 1) is None
    sub, _, _ = graph.select(torch.tensor([1]))
    assert fronts.plan_for(sub, 2, 1) is None  # though a chain of its own would have one
    assert fronts.plan_for(sub, 2, 1, force=True) is not None


def test_selected_graphs_are_not_analysed_again(monkeypatch):
    monkeypatch.setattr(fronts, "DENSE_WORK", 0.0)
    edge_index, batch = MIXED
    graph = Graph.of(edge_index, len(batch), batch)
    whole = fronts.plan_for(graph, 2, 1)
    some = torch.tensor([2, 3, 6, 9, 11])
    sub, _, _ = graph.select(some)
    again, _, _ = sub.select(torch.tensor([1, 4]))
    monkeypatch.setattr(fronts, "eliminate", None)
    plan, third = fronts.plan_for(sub, 2, 1), fronts.plan_for(again, 2, 1)
    assert all(a is whole.orders[g] for a, g in zip(plan.orders, some.tolist(), strict=True))
    for part, found in ((sub, plan), (again, third)):
        diagonal, off, dense = random_matrix(part, 2, 3)
        rhs = torch.randn(3, 2, part.num_nodes, **DOUBLE)
        expected = torch.linalg.solve(dense, rhs.flatten(1)).view_as(rhs)
        torch.testing.assert_close(found.factor(diagonal, off).solve(rhs), expected)
