"""Problems: the step of some nodes, derivatives by default, and parts of a graph."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, columns
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_nodes import PAIRWISE, pairwise
from torch import Tensor
from torch_geometric.data import Data

from experiments.maximum import MaxGNN
from hogwild import EIGNN, GSDGNN, IGNN, EnergyGNN, Inputs, ScarselliGNN
from hogwild.graph import Star
from hogwild.ops import gather
from hogwild.testing.problems import Affine, random_graph
from hogwild_node.local import LocalEnergy


def test_fixed_point_update_of_some_nodes():
    graph = random_graph([1, 4, 9], seed=3)
    problem = Affine.random(graph, replicas=2)
    h = torch.randn(2, 2, graph.num_nodes, dtype=torch.float64)
    nodes = torch.tensor([3, 13, 0])
    at = graph.star(nodes)
    some = problem.update(h[..., nodes], gather(h, graph.src)[..., at.edges], at)
    torch.testing.assert_close(some, problem.step(h)[..., nodes])
    v = torch.randn_like(h)
    slow = super(Affine, problem).pullback(h, v)
    torch.testing.assert_close(problem.pullback(h, v), slow)


# -- parts of a graph ------------------------------------------------------------------------------

PARTS = {
    "energy": lambda: EnergyGNN(3, out_channels=2, normalize=True),
    "energy, node-wise": lambda: EnergyGNN(3, out_channels=2, message="node", aggr="mean"),
    "energy, attention": lambda: EnergyGNN(3, out_channels=2, heads=2),
    "denoising": lambda: GSDGNN(3, out_channels=2),
    "ignn": lambda: IGNN(3, out_channels=2),
    "eignn": lambda: EIGNN(3, out_channels=2),
    "scarselli": lambda: ScarselliGNN(3, out_channels=2),
    "maximum": lambda: MaxGNN(3, out_channels=2),
}
NODES = torch.tensor([4, 1, 7])


def updated(local, h, heard, star):
    """What nodes compute: their own numbers, and those they send along each edge."""
    if isinstance(local, LocalEnergy):
        return local.local(h, heard, star)
    return (local.update(h, heard, star),)


def posed(name):
    torch.manual_seed(0)
    graph = random_graph([12], seed=1)
    inputs = Inputs(torch.randn(12, 3, **DOUBLE), torch.stack([graph.src, graph.dst]))
    model = PARTS[name]().double()
    return model, inputs, model.problem(inputs).detach()


def cut(problem, nodes):
    """Some nodes of a problem, with the constants of the whole graph; the nodes with the edges into
    them; the edges' senders, and the edges."""
    at = problem.graph.star(nodes)
    star = Star(at.size, at.slot, senders=at.senders, labels=at.labels)
    return problem.node.at(at), star, problem.graph.src[at.edges], at.edges


@pytest.mark.parametrize("name", PARTS)
def test_a_part_computes_what_its_nodes_compute_in_the_whole(name):
    _, _, problem = posed(name)
    h = torch.randn(1, problem.channels, 12, **DOUBLE)
    everyone = problem.graph.everyone
    whole = updated(problem.node, h, everyone.current(h), everyone)
    local, star, senders, edges = cut(problem, NODES)
    mine = updated(local, h[..., NODES], h[..., senders], star)
    for found, expected, at in zip(mine, whole, (NODES, edges), strict=False):
        torch.testing.assert_close(found, expected[..., at], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["energy", "energy, attention", "denoising", "ignn", "eignn"])
def test_a_part_runs_on_numpy(name):
    """A part holds a node's numbers and nothing of torch: what a robot runs."""
    _, _, problem = posed(name)
    local, star, senders, _ = cut(problem, NODES)
    h = torch.randn(1, problem.channels, 12, **DOUBLE)
    own, heard = h[..., NODES], h[..., senders]
    alone = Star(star.size, star.slot.numpy())
    found = updated(local.map(Tensor.numpy), own.numpy(), heard.numpy(), alone)
    for mine, theirs in zip(found, updated(local, own, heard, star), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["energy", "denoising", "ignn", "eignn"])
def test_a_subgraph_is_another_problem(name):
    """Degrees and normalisations belong to the whole graph: recomputed they are other numbers."""
    model, inputs, problem = posed(name)
    data, kept = Data(x=inputs.x, edge_index=inputs.edge_index), torch.arange(6)
    sub = model.problem(data.subgraph(kept)).detach()
    h, everyone = torch.randn(1, problem.channels, 6, **DOUBLE), sub.graph.everyone
    recomputed = updated(sub.node, h, everyone.current(h), everyone)[0]
    local, star, senders, _ = cut(problem, kept)
    heard = torch.zeros(1, problem.channels, star.degree, **DOUBLE)
    inside = senders < 6
    heard[..., inside] = h[..., senders[inside]]
    assert float((recomputed - updated(local, h, heard, star)[0]).abs().max()) > 1e-3


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRWISE)
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(*[st.integers(0, 4)] * 2), max_size=9),
    st.sampled_from([0.0, 1.0, 30.0]),
)
def test_block_bounds(name, seed, pairs, scale):
    """H ≤ diag(r), and the norms of its blocks between nodes are at most diag(q) in the same sense,
    also with several edges between two nodes and with loops."""
    problem = pairwise(name, seed, pairs, 5)
    h = scale * torch.randn(2, 2, 5, **DOUBLE)
    dense = columns(problem.evaluate(h).hessian().apply, h)
    r, q = (x.expand_as(h) for x in problem.block_bounds())
    root = r.flatten(1).rsqrt()
    assert float(torch.linalg.eigvalsh(root[:, :, None] * dense * root[:, None]).max()) <= 1 + 1e-9
    norms = torch.linalg.matrix_norm(dense.view(2, 2, 5, 2, 5).permute(0, 2, 4, 1, 3), 2)
    norms = norms - torch.diag_embed(norms.diagonal(dim1=1, dim2=2))
    alone = q[:, 0] == 0.0
    assert bool((norms.sum(2)[alone] == 0.0).all())
    root = torch.where(alone, 1.0, q[:, 0]).rsqrt()
    apart = root[:, :, None] * norms * root[:, None]
    assert float(torch.linalg.matrix_norm(apart, 2).max()) <= 1 + 1e-9
    if name == "soft":
        top = problem.lipschitz()[:, :, None]
        assert bool((r <= top * (1 + 1e-9)).all())
        assert bool((q <= 0.5 * (top - problem.local.beta) * (1 + 1e-9)).all())


@pytest.mark.parametrize("made", [IGNN, GSDGNN, EnergyGNN])
def test_pieces_are_described_as_the_model_says(made):
    """Messages about a piece have as many numbers as those about the whole."""
    graph = random_graph([4, 5], seed=2)
    edges = torch.stack([graph.src, graph.dst])
    weight = torch.rand(edges.size(1))
    problem = made(5, out_channels=2).problem(
        Inputs(torch.randn(9, 5), edges, batch=graph.batch, edge_weight=weight)
    )
    every = torch.arange(9), torch.arange(edges.size(1))
    some, _ = problem.select(torch.tensor([0]), torch.tensor([1]))
    found = [p.numbers_per_node_and_edge for p in (problem, problem.gathered(graph, *every), some)]
    assert found == [(5, 1)] * 3
