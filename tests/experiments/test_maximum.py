"""Best walks against scipy's shortest paths, under every kind of schedule."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, chain, columns, edges
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import dijkstra

from experiments.maximum import MaxConv, MaxProblem
from hogwild import Inputs
from hogwild.graph import Graph
from hogwild.problems.base import FixedPoint
from hogwild.solvers import Picard, solve
from hogwild.testing import check_model


@pytest.mark.parametrize(
    "options", [{}, {"hidden_channels": 5, "widths": ()}, {"least": 1.0}], ids=str
)
def test_conv(options, device):
    check_model(lambda **kw: MaxConv(3, **options, **kw), device=device)


# -- the answer -----------------------------------------------------------------------------------


def best_walks(problem):
    """max_j a_j − dist(j → i) by Dijkstra's algorithm, [R, k, N]."""
    graph, n = problem.graph, problem.graph.num_nodes
    out = torch.empty_like(problem.encoding)
    for r in range(problem.replicas):
        for c in range(problem.channels):
            length = np.full((n, n), np.inf)  # row: sender, column: receiver
            ends = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
            for (j, i), d in zip(ends, problem.decrement[r, c].tolist(), strict=True):
                length[j, i] = min(length[j, i], d)
            distance = dijkstra(np.ma.masked_invalid(length).filled(0.0))
            value = problem.encoding[r, c].numpy()[:, None] - distance
            out[r, c] = torch.from_numpy(value.max(0))
    return out


@st.composite
def problems(draw):
    """Any multigraph with self-loops, one or two replicas and channels."""
    n = draw(st.integers(1, 10))
    node = st.integers(0, n - 1)
    edge_index = edges(*draw(st.lists(st.tuples(node, node), max_size=25)))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    replicas, k = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    encoding = torch.randn(replicas, k, n, **DOUBLE)
    decrement = 0.05 + torch.rand(replicas, k, edge_index.size(1), **DOUBLE)
    return MaxProblem(Graph.of(edge_index, n), encoding, decrement)


EXACT = Picard(atol=0.0, rtol=0.0)


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_solution_is_the_best_walk(problem):
    """From h = a in fewer steps than nodes, with nothing left to move; and from anywhere."""
    found = solve(problem, EXACT, problem.encoding.clone())
    torch.testing.assert_close(found.value, best_walks(problem), rtol=0, atol=1e-12)
    assert int(found.iterations.max()) < problem.graph.num_nodes
    assert float(found.residual.max()) == 0.0
    for start in (-10.0, 10.0):
        again = solve(problem, EXACT, problem.encoding + start * torch.rand_like(problem.encoding))
        assert torch.equal(again.value, found.value)
        assert float(again.residual.max()) == 0.0


def test_model_against_the_best_walk():
    """Encoder and decrements as documented, on a graph with everything odd."""
    conv = MaxConv(3, hidden_channels=2, edge_dim=2, least=0.02).double()
    x, attr = torch.randn(ODD_NODES, 3, **DOUBLE), torch.randn(ODD.size(1), 2, **DOUBLE)
    weight, bias = conv.decrement.weight[0], conv.decrement.bias[0]
    ends = torch.cat([x[ODD[1]], x[ODD[0]], attr], 1)  # receiver, sender, edge
    decrement = 0.02 + torch.log1p(torch.exp(ends @ weight.T + bias))
    problem = MaxProblem(
        Graph.of(ODD, ODD_NODES),
        conv.encoder(x).detach().T.unsqueeze(0),
        decrement.detach().T.unsqueeze(0),
    )
    found = conv.embed(Inputs(x, ODD, attr))
    torch.testing.assert_close(found.value.detach(), best_walks(problem)[0].T)
    torch.testing.assert_close(found.value[5], conv.encoder(x)[5])  # isolated: its own encoding
    assert float(found.residual) == 0.0


# -- what is proved -------------------------------------------------------------------------------


STALENESS, PERIOD = 3, 4


def asynchronous(problem, start, rounds, seed):
    """Some nodes at a time, each at least once a period; what an inbox holds is up to three steps
    old, may be older than what it held before, and may have been held before."""
    rng = torch.Generator().manual_seed(seed)
    graph, n = problem.graph, problem.graph.num_nodes
    history = [start]
    for t in range(rounds * (PERIOD + STALENESS)):
        awake = torch.rand(n, generator=rng) < 0.3
        awake |= (torch.arange(n) + t) % PERIOD == 0
        at = graph.star(nodes := awake.nonzero()[:, 0])
        age = torch.randint(STALENESS + 1, (at.edges.numel(),), generator=rng)
        seen = torch.stack(history[::-1])[age.clamp_max(len(history) - 1)]  # [E', R, k, N]
        inbox = seen.gather(-1, graph.src[at.edges].view(-1, 1, 1, 1).expand(*seen.shape[:-1], 1))
        h = history[-1].clone()
        h[..., nodes] = problem.update(h[..., nodes], inbox[..., 0].permute(1, 2, 0), at)
        history = [*history[-STALENESS:], h]
    return h


@settings(max_examples=25, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_any_schedule_finds_the_same_bits(problem, seed):
    """From below after one round more than a best walk can have edges, from above after as many
    rounds as it takes wrong values to decay."""
    exact = solve(problem, EXACT, problem.encoding.clone()).value
    least = float(problem.decrement.min()) if problem.graph.num_edges else 1.0
    for start in (problem.encoding, problem.encoding - 7.0, problem.encoding + 3.0):
        decay = 1 + int((float(start.max()) - float(exact.min())) / least)
        rounds = max(problem.graph.num_nodes, decay)
        assert torch.equal(asynchronous(problem, start, rounds, seed), exact)


# -- the gradient ---------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_pullback_and_adjoint(problem):
    """The pullback is autograd's; the adjoint solves (Jᵀ − I) λ = g exactly."""
    found = solve(problem, EXACT, problem.encoding.clone()).value
    for h in (found, torch.randn_like(found)):
        v = torch.randn_like(h)
        torch.testing.assert_close(problem.pullback(h, v), FixedPoint.pullback(problem, h, v))
    g = torch.randn_like(found)
    transposed = columns(lambda v: problem.pullback(found, v) - v, found)
    dense = torch.linalg.solve(transposed, g.flatten(1)).view_as(g)
    torch.testing.assert_close(problem.adjoint(found, g), dense)


def test_ties_go_to_oneself_then_to_the_first_edge():
    """Two neighbours with equal news, and a third equal to what the node knows itself."""
    graph = Graph.of(edges((2, 0), (1, 0), (3, 4)), 5)
    encoding = torch.tensor([[[0.0, 2.0, 2.0, 2.0, 1.0]]], **DOUBLE).requires_grad_()
    decrement = torch.ones(1, 1, 3, **DOUBLE).requires_grad_()
    problem = MaxProblem(graph, encoding, decrement)
    h = torch.tensor([[[1.0, 2.0, 2.0, 2.0, 1.0]]], **DOUBLE)
    assert torch.equal(problem.step(h), h)
    assert problem.senders(h).tolist() == [[[2, 5, 5, 5, 5, 5]]]
    grads = torch.autograd.grad(problem.residual(h).sum(), (encoding, decrement))
    assert grads[0].tolist() == [[[0.0, 1.0, 1.0, 1.0, 1.0]]]
    assert grads[1].tolist() == [[[-1.0, 0.0, 0.0]]]


def test_gradient_along_a_long_chain():
    """Every edge of the best walk counts once for each node beyond it, 400 hops and exactly."""
    n = 401
    conv, x = MaxConv(1, hidden_channels=1, widths=()).double(), torch.zeros(n, 1, **DOUBLE)
    with torch.no_grad():
        conv.encoder.weight[0].fill_(1.0)
        conv.encoder.bias[0].zero_()
        conv.decrement.weight[0].zero_()
    x[0] = 1000.0
    x.requires_grad_()
    found = conv.embed(Inputs(x, chain(n)))
    assert int(found.iterations) == n - 1
    found.value.sum().backward()
    assert float(x.grad[0]) == n
    assert float(x.grad[1:].abs().max()) == 0.0
    slope = float(torch.sigmoid(conv.decrement.bias[0].detach()))
    hops = n * (n - 1) / 2
    assert float(conv.decrement.bias[0].grad) == pytest.approx(-hops * slope, rel=1e-12)
