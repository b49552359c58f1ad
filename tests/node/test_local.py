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


@pytest.fixture
def case(name):
    """A problem, and its embeddings."""
    graph = random_graph([1, 4, 9], seed=3)
    if name == "quadratic":
        problem = Quadratic.random(graph, replicas=2)
    else:
        conv = EnergyConv(3, hidden_channels=2, **VARIANTS[name]).double()
        x, edge_index = (
            torch.randn(graph.num_nodes, 3, **DOUBLE),
            torch.stack([graph.src, graph.dst]),
        )
        problem = conv.problem(Inputs(x, edge_index, None, graph.batch)).detach()
    return problem, torch.randn(problem.replicas, problem.channels, graph.num_nodes, **DOUBLE)


@pytest.mark.parametrize("name", [*VARIANTS, "quadratic"])
def test_local_energies_add_up(case):
    """To the gradient and the Hessian of the whole energy; curvatures of majorising parabolas lie
    above the true ones."""
    problem, h = case
    graph, heard = problem.graph, gather(h, problem.graph.src)
    model = problem.node.quadratic(h, heard, graph.everyone)
    for own, toward in (
        problem.node.local(h, heard, graph.everyone), (model.own, model.toward),
    ):  # fmt: skip
        total = own + scatter(toward, graph.src, graph.num_nodes)
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

    above = problem.node.quadratic(h, heard, graph.everyone, majorise=1.0)
    for field in ("b", "c", "u"):
        gap = (getattr(above, field) - getattr(model, field)).movedim(-1, 1)
        assert gap.numel() == 0 or float(torch.linalg.eigvalsh(gap).min()) >= -1e-10


@pytest.mark.parametrize("extra", LOOPS, ids=["simple", "multigraph"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ENERGIES)
def test_local_energies(name, graph, extra):
    """In NumPy and in torch."""
    problem, h = pose(name, graph, extra)
    at, inbox = problem.graph.everyone, torch.randn(*h.shape[:2], problem.graph.num_edges).double()
    given = h, inbox, h + torch.randn_like(h), inbox + torch.randn_like(inbox)

    def found(node, at, h, inbox, *far):
        models = (
            node.quadratic(h, inbox, at), node.quadratic(h, inbox, at, majorise=0.7),
            node.bounding(h, inbox, at, far),
        )  # fmt: skip
        parts = ("own", "toward", "b", "x", "c", "j", "u")
        for one in (node.local(h, inbox, at), node.row_bounds(at)):
            yield from ((x, 1e-12) for x in one)
        # The chord of an activation over a short reach is a small difference of large numbers.
        for model, tol in zip(models, (1e-12, 1e-12, 1e-8), strict=True):
            yield from ((getattr(model, part), tol) for part in parts)

    mine = found(numpy(problem.node), star(at), *(x.numpy() for x in given))
    for (one, tol), (other, _) in zip(mine, found(problem.node, at, *given), strict=True):
        close(one, other, tol)


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
