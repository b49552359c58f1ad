"""Krylov methods equal dense solves, graph by graph."""

import pytest
import torch
from helpers import DOUBLE, columns

from hogwild.linalg.krylov import System, bicgstab, block_jacobi, cg, cg_transposed
from hogwild.solvers import Status
from hogwild.testing import Affine, Quadratic, random_graph

SIZES = [1, 2, 5, 30]


def symmetric(sizes=SIZES, replicas=3):
    """A positive definite map, a right-hand side and the dense answer."""
    problem = Quadratic.random(random_graph(sizes), replicas=replicas)
    return problem, problem.evaluate(problem.b).hessian(), problem.b, problem.answer()


def unsymmetric(sizes=SIZES, replicas=3):
    """The same for I − J of a contraction."""
    problem = Affine.random(random_graph(sizes), replicas=replicas)
    shift = problem.step(torch.zeros_like(problem.b))

    def apply(v):
        return v - (problem.step(v) - shift)

    return problem, apply, problem.b, problem.answer()


@pytest.mark.parametrize("precondition", [False, True])
def test_cg_equals_dense(precondition):
    problem, hessian, b, answer = symmetric()
    options = {"precondition": block_jacobi(hessian)} if precondition else {}
    found = cg(System(hessian.apply, b, problem.graph, rtol=1e-12), **options)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, answer, rtol=1e-9, atol=1e-11)
    assert found.status.shape == found.residual.shape == found.iterations.shape == (3, 4)


@pytest.mark.parametrize("method", ["transposed", "bicgstab"])
def test_unsymmetric_equals_dense(method):
    problem, apply, b, answer = unsymmetric()
    found = run(method, apply, b, problem.graph, rtol=1e-12)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, answer, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_reported_residual_is_true(scale):
    """‖b − A x‖₂ of every graph, at any scale of b."""
    problem, hessian, b, _ = symmetric()
    found = cg(System(hessian.apply, scale * b, problem.graph, rtol=1e-8))
    r = scale * b - hessian.apply(found.value)
    true = problem.graph.dot(r, r).sqrt()
    norm = problem.graph.dot(b, b).sqrt() * scale
    assert bool((true <= 1.01e-8 * norm).all())
    torch.testing.assert_close(found.residual, true, rtol=1e-3, atol=1e-13 * scale)


METHODS = ["cg", "transposed", "bicgstab"]


def transposed(operator, like):
    """The transpose of a linear function."""
    return lambda v: torch.func.vjp(operator, torch.zeros_like(like))[1](v)[0]


def run(method, operator, b, graph, rtol=1e-10, **options):
    """The method on a Hessian (CG) or on a function (the others)."""
    if method == "cg":
        return cg(System(operator.apply, b, graph, rtol), **options)
    if method == "transposed":
        return cg_transposed(System(operator, b, graph, rtol), transposed(operator, b), **options)
    return bicgstab(System(operator, b, graph, rtol), **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_graph_stops_by_itself(method):
    """Iterations and answers of a graph are those it has alone."""
    problem, operator, b, _ = symmetric() if method == "cg" else unsymmetric()

    options = {"rtol": 1e-9}
    together = run(method, operator, b, problem.graph, **options)
    for g in range(len(SIZES)):
        sub, nodes = problem.select(torch.arange(3), torch.tensor([g]))
        if method == "cg":
            own = sub.evaluate(sub.b).hessian()
        else:

            def own(v, sub=sub):
                return v - (sub.step(v) - sub.step(torch.zeros_like(v)))

        alone = run(method, own, sub.b, sub.graph, **options)
        gap = (alone.iterations[:, 0] - together.iterations[:, g]).abs().max()
        assert int(gap) <= 1
        torch.testing.assert_close(alone.value, together.value[..., nodes], rtol=1e-7, atol=1e-9)
    assert len(together.iterations.unique()) > 1


@pytest.mark.parametrize("method", METHODS)
def test_non_convergence_is_reported(method):
    """Too few iterations: MAX_ITERATIONS where the residual is large, CONVERGED where not."""
    problem, operator, b, _ = symmetric([1, 40], 1) if method == "cg" else unsymmetric([1, 40], 1)
    found = run(method, operator, b, problem.graph, max_iter=3)
    assert found.status.tolist() == [[Status.CONVERGED, Status.MAX_ITERATIONS]]
    assert found.iterations.tolist()[0][1] == 3
    assert float(found.residual[0, 1]) > 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_nan_stays_in_its_graph(method):
    problem, operator, b, answer = symmetric() if method == "cg" else unsymmetric()
    b = b.clone()
    b[1, 0, 1] = float("nan")  # graph 1 of replica 1
    found = run(method, operator, b, problem.graph, rtol=1e-12)
    bad = torch.zeros(3, 4, dtype=torch.bool)
    bad[1, 1] = True
    assert torch.equal(found.status == Status.NOT_FINITE, bad)
    assert torch.equal(found.converged, ~bad)
    clean = ~bad[:, problem.graph.batch].unsqueeze(1).expand_as(answer)
    torch.testing.assert_close(found.value[clean], answer[clean], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_zero_right_hand_side(method):
    """b = 0 has the answer 0 after no iteration, also beside other graphs."""
    problem, operator, b, _ = symmetric() if method == "cg" else unsymmetric()
    b = b * (problem.graph.batch != 2)
    found = run(method, operator, b, problem.graph)
    assert bool(found.converged.all())
    assert found.iterations[:, 2].tolist() == [0, 0, 0]
    assert float(found.value[..., problem.graph.batch == 2].abs().max()) == 0.0


def test_bicgstab_says_where_it_breaks_down():
    """A quarter turn has ⟨r, A r⟩ = 0: it fails and says so; the other does not fail."""
    problem, *_ = unsymmetric([1, 2], 1)

    def turn(v):
        return torch.stack([-v[:, 1], v[:, 0]], 1)

    b = torch.randn(1, 2, 3, **DOUBLE)
    found = bicgstab(System(turn, b, problem.graph), max_iter=50)
    assert found.status.tolist() == [[Status.MAX_ITERATIONS] * 2]
    assert bool(torch.isfinite(found.value).all())
    assert bool(run("transposed", turn, b, problem.graph).converged.all())


def test_absolute_tolerance_and_tolerance_per_graph():
    problem, hessian, b, _ = symmetric()
    tight = torch.tensor([1e-12, 1e-12, 1e-12, 1e-2], **DOUBLE).expand(3, 4)
    mixed = cg(System(hessian.apply, b, problem.graph, rtol=tight))
    full = cg(System(hessian.apply, b, problem.graph, rtol=1e-12))
    assert bool((mixed.iterations[:, 3] < full.iterations[:, 3]).all())
    assert torch.equal(mixed.iterations[:, :3], full.iterations[:, :3])
    loose = cg(System(hessian.apply, b, problem.graph, rtol=0.0), floor=1e6)
    assert int(loose.iterations.max()) == 0
    assert bool(loose.converged.all())


def test_block_jacobi_is_the_inverse_diagonal():
    """M⁻¹ inverts every node's own k × k block, and nothing else."""
    problem, hessian, b, _ = symmetric([4, 3], 2)
    dense = columns(block_jacobi(hessian), b)
    k, n = problem.channels, problem.graph.num_nodes
    for i in range(n):
        at = torch.arange(k) * n + i
        block = columns(hessian.apply, b)[:, at][:, :, at]
        torch.testing.assert_close(dense[:, at][:, :, at], torch.linalg.inv(block))
    outside = dense.view(2, k, n, k, n).clone()
    for i in range(n):
        outside[:, :, i, :, i] = 0.0
    assert float(outside.abs().max()) == 0.0
