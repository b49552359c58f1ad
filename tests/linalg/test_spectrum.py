"""Bounds on eigenvalues: never on the wrong side, and tight."""

import numpy as np
import pytest
import torch
from helpers import star
from scipy.sparse import csc_matrix, csr_matrix, diags

from hogwild import GSDGNN, EnergyGNN, Inputs, SoftEnergyGNN
from hogwild.linalg import spectrum as of
from hogwild.linalg.spectrum import definite, extremes, jacobi, matrices, perron, spectrum
from hogwild.testing.problems import Quadratic, _columns, random_graph


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN])
@pytest.mark.parametrize("sizes", [[1], [2, 5], [9, 1, 14]])
@pytest.mark.parametrize("dense", [0, 200])
def test_against_dense_eigenvalues(make, sizes, dense, monkeypatch):
    """With self-loops and parallel edges; by Lanczos' method, too, where that is possible."""
    monkeypatch.setattr(of, "DENSE", max(dense, 4))
    torch.manual_seed(0)
    graph, n = random_graph(sizes), sum(sizes)
    edges = torch.stack([graph.src, graph.dst])
    edges = torch.cat([edges, edges[:, :2], edges[:, :2].flip(0), torch.tensor([[0], [0]])], 1)
    model = make(3, out_channels=2, replicas=2).double()
    problem = model.problem(Inputs(torch.randn(n, 3, dtype=torch.float64), edges)).detach()
    h = torch.randn(2, 2, n, dtype=torch.float64)
    hessian = problem.evaluate(h).hessian()
    found = matrices(hessian)
    for r, limits in enumerate(spectrum(found, problem.convexity(), problem.lipschitz())):
        whole = _columns(hessian.apply, h)[r]
        order = torch.arange(2 * n).view(2, n).T.flatten()  # node by node
        np.testing.assert_allclose(found[r].toarray(), whole[order][:, order], atol=1e-12)
        values = torch.linalg.eigvalsh(whole)
        assert limits.low <= float(values[0]) * (1 + 1e-14)
        assert limits.low >= (1 - 1e-6) * float(values[0])
        assert float(values[-1]) * (1 - 1e-14) <= limits.high <= (1 + 1e-6) * float(values[-1])
        assert limits.attained == pytest.approx(float(values[-1]), rel=1e-6)


def test_a_wrong_guess_is_not_used_as_a_bound(monkeypatch):
    """Lanczos may miss an eigenvalue; the factorisation does not."""
    matrix = csc_matrix(diags(np.linspace(1.0, 10.0, 50)))
    for guess in [(2.0, 9.0), (1.0, 9.0), (2.0, 10.0), (30.0, 0.1)]:
        monkeypatch.setattr(of, "_guess", lambda _, guess=guess: guess)
        limits = extremes(matrix, 0.5, 20.0)
        assert 0.5 <= limits.low <= 1.0
        assert 10.0 <= limits.high <= 20.0


def test_large_problems_keep_the_bounds_they_have(monkeypatch):
    monkeypatch.setattr(of, "LARGEST", 3)
    problem = Quadratic.random(random_graph([4]))
    found = matrices(problem.evaluate(problem.start()).hessian())
    limits = spectrum(found, problem.convexity(), problem.lipschitz())[0]
    assert limits.low == float(problem.convexity().min())
    assert limits.high == float(problem.lipschitz().max())
    assert limits.attained <= limits.high


def test_pairs_that_are_not_coupled_take_no_place():
    """A soft energy couples no two neighbours of a hub."""
    model = SoftEnergyGNN(3, out_channels=1, hidden_channels=2).double()
    problem = model.problem(Inputs(torch.randn(30, 3, dtype=torch.float64), star(30))).detach()
    found = matrices(problem.evaluate(problem.start()).hessian())
    assert found[0].nnz <= 2 * 2 * (30 + 2 * 29)


def test_definite():
    assert definite(csc_matrix(np.array([[2.0, 1.0], [1.0, 2.0]])))
    assert not definite(csc_matrix(np.array([[1.0, 2.0], [2.0, 1.0]])))
    assert not definite(csc_matrix(np.array([[1.0, 1.0], [1.0, 1.0]])))
    assert not definite(csc_matrix(np.array([[0.0, 1.0], [1.0, 0.0]])))
    assert not definite(csc_matrix(np.diag([3.0, -1e-3, 1.0])))


def test_perron():
    """Two nodes exactly, [[3, -1], [-1, 3]]; couplings that are too large; a path, on which nothing
    comes back; and random matrices."""
    assert perron(jacobi(csc_matrix([[3.0, -1.0], [-1.0, 3.0]]))) == pytest.approx(1.0 / 3.0)
    assert perron(csr_matrix(0.6 * (np.ones((3, 3)) - np.eye(3)))) == pytest.approx(1.2)
    assert perron(csr_matrix([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])) < 0.1
    assert perron(csr_matrix((0, 0))) == 0.0
    for seed in range(5):
        found = np.random.default_rng(seed).random((9, 9)) ** 4
        radius = float(abs(np.linalg.eigvals(found)).max())
        for scale in (1.0, 0.95 / radius):
            bound = perron(csr_matrix(scale * found))
            assert scale * radius * (1 - 1e-9) <= bound <= scale * radius * (1 + 1e-6)
