"""Newton's method for fixed points, and the linear systems it solves."""

import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, assemble, batch_of, chain, columns

from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.linalg.operator import NormalEquations
from hogwild.models.contraction import Contraction, ContractionTangent, adjacency
from hogwild.nn import Nonexpansive, leaky_relu
from hogwild.nn.activations import nonexpansive
from hogwild.solvers import LinearSolver, Picard, SemismoothNewton, Status, semismooth, solve
from hogwild.testing import Affine, random_graph


def wave(a):
    return torch.sin(20.0 * a) / 20.0


ACTS = {
    "relu": nonexpansive("relu"),
    "tanh": nonexpansive("tanh"),
    "absolute value": leaky_relu(-1.0),
    "wave": Nonexpansive("wave", wave),
}


def contraction(graph, act, *, kappa=0.98, channels=3, replicas=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    w = torch.randn(replicas, channels, channels, generator=rng, **DOUBLE)
    w = kappa * w / w.abs().sum(-1, keepdim=True)
    b = torch.randn(replicas, channels, graph.num_nodes, generator=rng, **DOUBLE)
    a = adjacency(graph, None, torch.float64)
    return Contraction(graph, a, w, b, ACTS[act]), 5.0 * torch.randn(
        b.shape, generator=rng, **DOUBLE
    )


@pytest.mark.parametrize("linear", ["direct", "cg"])
@pytest.mark.parametrize("act", ACTS)
def test_finds_picards_answer(act, linear):
    problem, start = contraction(random_graph([1, 3, 12], seed=2), act)
    found = solve(problem, SemismoothNewton(atol=1e-12, linear=linear), start)
    expected = solve(problem, Picard(atol=1e-13), torch.zeros_like(start))
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, expected.value, rtol=0, atol=1e-9)


def test_exact_once_the_pieces_are_right():
    """With a ReLU the last Newton step leaves a rounding error and nothing else."""
    problem, start = contraction(random_graph([40]), "relu", replicas=1)
    found = solve(problem, SemismoothNewton(atol=1e-3, linear="direct"), start)
    assert float(found.residual) < 1e-12
    assert int(found.iterations) < 12
    again = solve(problem, SemismoothNewton(linear="direct"), found.value + 1e-6)
    assert int(again.iterations) == 1


class WrongTangent(ContractionTangent):
    """A tangent that is wrong: its inverse is -50."""

    has_blocks = False

    def apply(self, v):
        return v / -50.0

    transpose = apply


class Misled(Contraction):
    """A contraction whose tangents point the wrong way."""

    def linearise(self, h):
        right = super().linearise(h)
        return WrongTangent(right.graph, right.adjacency, right.weight, right.slope)


def test_plain_steps_converge_where_newton_steps_do_not(monkeypatch):
    """Where Newton's steps lead nowhere the iteration still converges; with endless patience it
    does not."""
    right, start = contraction(random_graph([5]), "relu", replicas=1)
    right.weight.copy_(0.98 * torch.eye(3, **DOUBLE))
    problem = Misled(right.graph, right.adjacency, right.weight, right.bias.abs(), right.act)
    solver = SemismoothNewton(atol=1e-3, max_iter=800)
    assert bool(solve(problem, solver, start).converged)
    monkeypatch.setattr(semismooth, "PATIENCE", float("inf"))
    lost = solve(problem, solver, start)
    assert int(lost.status) != Status.CONVERGED
    assert not float(lost.residual) < 1.0


def test_a_graph_alone_takes_the_same_path():
    """To rounding, also where its batch mates need Newton and it does not."""
    easy, hard = chain(4), chain(60)
    edge_index, batch = batch_of((easy, 4), (hard, 60))
    graph = Graph.of(edge_index, 64, batch)
    problem, _ = contraction(graph, "relu", replicas=1, kappa=0.98)
    problem.weight.copy_(0.98 * torch.eye(3, **DOUBLE))
    problem.bias[..., :4] = -1.0  # every unit off: the first plain step arrives
    solver = SemismoothNewton(linear="cg")
    start = torch.ones_like(problem.bias)
    whole = solve(problem, solver, start)
    assert int(whole.iterations[0, 0]) < int(whole.iterations[0, 1])
    for g in (0, 1):
        sub, nodes = problem.select(torch.tensor([0]), torch.tensor([g]))
        alone = solve(sub, solver, start[..., nodes])
        assert int(alone.iterations) == int(whole.iterations[0, g])
        torch.testing.assert_close(alone.value, whole.value[..., nodes], rtol=0, atol=1e-10)


# -- tangents -------------------------------------------------------------------------------------


def tangents():
    """(name, problem, point) of tangents in closed form and by autograd."""
    odd = Graph.of(ODD, ODD_NODES)
    yield "contraction", *contraction(odd, "tanh")
    problem = Affine.random(random_graph([1, 5]), replicas=2)
    yield "autograd", problem, torch.randn_like(problem.b)


TANGENTS = {name: (problem, h) for name, problem, h in tangents()}


@pytest.mark.parametrize("name", TANGENTS)
def test_tangent_equals_the_jacobian(name):
    problem, h = TANGENTS[name]
    tangent, size = problem.linearise(h), h[0].numel()
    for r in range(h.size(0)):

        def residual(at, r=r):
            return at - problem.step(torch.cat([h[:r], at, h[r + 1 :]]))[r : r + 1]

        expected = torch.autograd.functional.jacobian(residual, h[r : r + 1]).view(size, size)
        torch.testing.assert_close(columns(tangent.apply, h)[r], expected)
        torch.testing.assert_close(columns(tangent.transpose, h)[r], expected.T)


def test_normal_equations():
    """Blocks and products of MᵀM, on a graph with loops, parallel edges and one-way edges."""
    graph = Graph.of(ODD, ODD_NODES)
    problem, h = contraction(graph, "tanh")
    tangent = problem.linearise(h)
    dense = columns(tangent.apply, h)
    normal = NormalEquations(graph, tangent)
    expected = dense.mT @ dense
    torch.testing.assert_close(assemble(graph, *normal.blocks()), expected)
    torch.testing.assert_close(columns(normal.apply, h), expected)
    torch.testing.assert_close(normal.diagonal(), normal.blocks()[0])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("linear", ["auto", "direct", "cg"])
def test_solve_tangent_equals_dense(linear, transpose):
    problem, h = contraction(random_graph([1, 3, 20], seed=1), "relu", kappa=0.99)
    tangent, b = problem.linearise(h), torch.randn_like(h)
    dense = columns(tangent.apply, h)
    dense = dense.mT if transpose else dense
    expected = torch.linalg.solve(dense, b.flatten(1)).view_as(b)
    found = LinearSolver(linear).solve_tangent(tangent, b, 1e-12, transpose=transpose)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, expected, rtol=1e-9, atol=1e-9)


def test_direct_solves_are_refined_and_judged():
    """κ = 1 - 1e-6: the normal equations alone would leave 1e-4; what cannot be had is reported."""
    problem, h = contraction(random_graph([30]), "relu", replicas=1)
    problem.bias.add_(10.0)  # every unit on: I − J is nearly singular
    problem.weight.copy_((1.0 - 1e-6) * torch.eye(3, **DOUBLE))
    tangent, b = problem.linearise(h.abs()), torch.randn_like(h)
    found = LinearSolver("direct").solve_tangent(tangent, b, 1e-10)
    assert bool(found.converged)
    r = b - tangent.apply(found.value)
    assert float(r.norm()) <= 1e-10 * float(b.norm())
    torch.testing.assert_close(found.residual[0, 0], r.norm(), rtol=1e-2, atol=1e-14)
    assert not bool(LinearSolver("direct").solve_tangent(tangent, b, 1e-18).converged)


def test_where_bicgstab_breaks_down():
    """I − J is a quarter turn in the two channels."""
    graph = random_graph([1, 1])
    problem, h = contraction(graph, "relu", channels=2, replicas=1)
    tangent = problem.linearise(h)
    tangent.apply = lambda v: torch.stack([-v[:, 1], v[:, 0]], 1)
    tangent.transpose = lambda v: torch.stack([v[:, 1], -v[:, 0]], 1)
    b = torch.randn_like(h)
    found = LinearSolver("cg").solve_tangent(tangent, b, 1e-12)
    assert bool(found.converged.all())
    torch.testing.assert_close(tangent.apply(found.value), b)


@pytest.mark.parametrize("astray", [-3.0, -1e3, -1e80])
def test_diverged_solves_start_again(astray):
    """Far from a contraction plain iterations blow up; what is said of the residual is true."""
    graph = random_graph([3, 4])
    problem, h = contraction(graph, "relu", channels=2, replicas=1)
    tangent = problem.linearise(h)
    scale = torch.ones_like(h)
    scale[:, 0, 0] = 1.0 - astray  # of I − J
    tangent.apply = tangent.transpose = lambda v: scale * v
    b = torch.randn_like(h)
    found = LinearSolver("cg").solve_tangent(tangent, b, 1e-10)
    r = b - tangent.apply(found.value)
    residual, limit = (graph.dot(x, x).sqrt() for x in (r, 1e-10 * b))
    assert bool(found.converged.all())
    assert bool((residual <= 10 * limit).all())
    torch.testing.assert_close(found.residual, residual, rtol=1e-2, atol=1e-12)


def test_direct_without_blocks_is_refused():
    problem = Affine.random(random_graph([4]))
    with pytest.raises(ConfigError, match="linear='direct'"):
        LinearSolver("direct").solve_tangent(problem.linearise(problem.b), problem.b, 1e-10)
    with pytest.raises(ConfigError, match="'lu'"):
        SemismoothNewton(linear="lu")


def test_nothing_is_proved_unless_a_problem_says_so():
    assert Affine.random(random_graph([4])).modulus() is None
