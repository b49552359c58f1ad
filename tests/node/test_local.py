"""A node's rule, written over its own embedding and its inbox, against the whole problem."""

import pytest
import torch
from helpers import DOUBLE
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_nodes import ENERGIES, GRAPHS, LOOPS, PAIRWISE, close, numpy, pairwise, pose, star

from hogwild import EnergyConv, Inputs
from hogwild.ops import gather, mtv, mv, scatter
from hogwild.testing.problems import Quadratic, random_graph
from hogwild_node.local import BothSides

VARIANTS = {
    "edge": {},
    "node": {"message": "node"},
    "attention": {"heads": 3},
    "averaged heads": {"heads": 2, "concat": False, "message": "node"},
    "normalised": {"normalize": True},
    "replicas": {"replicas": 2},
}


def problems(name):
    graph = random_graph([1, 4, 9], seed=3)
    if name == "quadratic":
        return Quadratic.random(graph, replicas=2)
    conv = EnergyConv(3, hidden_channels=2, **VARIANTS[name]).double()
    x = torch.randn(graph.num_nodes, 3, dtype=torch.float64)
    with torch.no_grad():
        return conv.problem(
            Inputs(x, torch.stack([graph.src, graph.dst]), None, graph.batch)
        ).detach()


@pytest.mark.parametrize("name", [*VARIANTS, "quadratic"])
def test_local_gradients_add_up_to_the_gradient(name):
    problem = problems(name)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes, dtype=torch.float64)
    own, toward = problem.node.local(h, gather(h, graph.src), graph.everyone)
    total = own + scatter(toward, graph.src, graph.num_nodes)
    torch.testing.assert_close(total, problem.evaluate(h).gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*VARIANTS, "quadratic"])
def test_some_nodes_compute_what_all_would(name):
    problem = problems(name)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes, dtype=torch.float64)
    inbox = torch.randn(*h.shape[:2], graph.num_edges, dtype=torch.float64)
    own, toward = problem.node.local(h, inbox, graph.everyone)
    nodes = torch.tensor([7, 0, 11, 2])
    at = graph.star(nodes)
    assert torch.equal(graph.dst[at.edges], nodes[at.slot])
    assert at.edges.numel() == int(graph.in_degree[nodes].sum())
    some, some_toward = problem.node.local(h[..., nodes], inbox[..., at.edges], at)
    torch.testing.assert_close(some, own[..., nodes], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(some_toward, toward[..., at.edges], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*VARIANTS, "quadratic"])
def test_local_quadratic_models_add_up_to_the_hessian(name):
    problem = problems(name)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes, dtype=torch.float64)
    model = problem.node.quadratic(h, gather(h, graph.src), graph.everyone)
    total = model.own + scatter(model.toward, graph.src, graph.num_nodes)
    torch.testing.assert_close(total, problem.evaluate(h).gradient, rtol=1e-12, atol=1e-12)

    d = torch.randn_like(h)
    there, here = gather(d, graph.src), gather(d, graph.dst)
    pair = scatter(mv(model.j, there), graph.dst, graph.num_nodes)
    own = mv(model.b, d) + scatter(mv(model.x, there), graph.dst, graph.num_nodes)
    edge = mtv(model.x, here) + mv(model.c, there)
    edge = edge + mtv(model.j, gather(mv(model.u, pair), graph.dst))
    product = own + scatter(edge, graph.src, graph.num_nodes)
    hessian = problem.evaluate(h).hessian()
    torch.testing.assert_close(product, hessian.apply(d), rtol=1e-10, atol=1e-12)

    blocks = scatter(model.toward_curvature().flatten(1, 2), graph.src, graph.num_nodes)
    diagonal = model.b + blocks.view_as(model.b)
    torch.testing.assert_close(diagonal, hessian.diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["edge", "node", "attention"])
def test_majorising_curvature_dominates_the_true_one(name):
    problem = problems(name)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes, dtype=torch.float64)
    true = problem.node.quadratic(h, gather(h, graph.src), graph.everyone)
    above = problem.node.quadratic(h, gather(h, graph.src), graph.everyone, majorise=1.0)
    for field in ("b", "c", "u"):
        gap = (getattr(above, field) - getattr(true, field)).movedim(-1, 1)
        assert float(torch.linalg.eigvalsh(gap).min()) >= -1e-10


@pytest.mark.parametrize("extra", LOOPS, ids=["simple", "multigraph"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ENERGIES)
def test_local_energies(name, graph, extra):
    problem, h = pose(name, graph, extra)
    mine, at = numpy(problem.node), problem.graph.everyone
    inbox = torch.randn(*h.shape[:2], problem.graph.num_edges).double()
    far = (h + torch.randn_like(h), inbox + torch.randn_like(inbox))
    theirs = [
        problem.node.local(h, inbox, at),
        problem.node.row_bounds(at),
        *(
            tuple(getattr(model, part) for part in ("own", "toward", "b", "x", "c", "j", "u"))
            for model in (
                problem.node.quadratic(h, inbox, at),
                problem.node.quadratic(h, inbox, at, majorise=0.7),
                problem.node.bounding(h, inbox, at, far),
            )
        ),
    ]
    h, inbox, at, far = h.numpy(), inbox.numpy(), star(at), tuple(x.numpy() for x in far)
    own = [
        mine.local(h, inbox, at),
        mine.row_bounds(at),
        *(
            tuple(getattr(model, part) for part in ("own", "toward", "b", "x", "c", "j", "u"))
            for model in (
                mine.quadratic(h, inbox, at),
                mine.quadratic(h, inbox, at, majorise=0.7),
                mine.bounding(h, inbox, at, far),
            )
        ),
    ]
    for place, (ours, others) in enumerate(zip(own, theirs, strict=True)):
        for a, b in zip(ours, others, strict=True):
            # The chord of an activation over a short reach is a small difference of large numbers.
            close(a, b, 1e-12 if place < 4 else 1e-8)


def test_parts_keep_the_constants_of_the_whole_graph():
    """Degrees and normalisations are those of the whole graph, whatever part is looked at."""
    for name in ("gsd", "ignn", "normalised"):
        problem, h = pose(name)
        graph = problem.graph
        nodes = torch.tensor([2, 4, 5])
        at = graph.star(nodes)
        inbox = graph.everyone.current(h)
        if name == "ignn":
            whole = problem.node.update(h, inbox, graph.everyone)
            part = problem.node.update(h[..., nodes], inbox[..., at.edges], at)
        else:
            whole = problem.node.local(h, inbox, graph.everyone)[0]
            part = problem.node.local(h[..., nodes], inbox[..., at.edges], at)[0]
        close(part, whole[..., nodes])


# -- both sides of every edge ---------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRWISE)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.lists(st.tuples(*[st.integers(0, 4)] * 2), max_size=9))
def test_both_sides_of_every_edge(name, seed, pairs):
    """What a node computes at old embeddings of its neighbours is the gradient of E there, and its
    block is the sum of all parts. Loops and parallel edges count."""
    problem = pairwise(name, seed, pairs, 5)
    graph, everyone = problem.graph, problem.graph.everyone
    both = BothSides(problem.node, graph.src, graph.reverse)
    h, old = torch.randn(2, 2, 2, 5, **DOUBLE)
    nodes = torch.randperm(5)[:3]
    at = graph.star(nodes)
    own = h[..., nodes]
    inbox = at.own_view(own, gather(old, graph.src[at.edges]))
    found = both.gradient(own, inbox, at)
    for place, node in enumerate(nodes.tolist()):
        mixed = old.clone()
        mixed[..., node] = h[..., node]
        exact = problem.evaluate(mixed).gradient[..., node]
        torch.testing.assert_close(found[..., place], exact)
    at_h = both.gradient(h, everyone.current(h), everyone)
    torch.testing.assert_close(at_h, problem.evaluate(h).gradient)
    parts = problem.node.quadratic(h, everyone.current(h), everyone, majorise=1.0)
    whole = parts.b + scatter(parts.toward_curvature(), graph.src, 5)
    torch.testing.assert_close(both.block(h, everyone), whole)  # the same at all points
    torch.testing.assert_close(both.block(own, at), whole[..., nodes])
