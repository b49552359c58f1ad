"""Sparse Hessians, their extreme eigenvalues, and bounds on their couplings."""

import numpy as np
import pytest
import torch
from helpers import star
from scipy.sparse import csc_matrix, csr_matrix, diags
from torch_geometric.data import Data

from hogwild import GSDGNN, EnergyGNN, Inputs, SoftEnergyGNN, certify
from hogwild.linalg import spectrum as of
from hogwild.linalg.spectrum import extremes, jacobi, matrices, perron
from hogwild.testing.problems import _columns, random_graph


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
    for r, found in enumerate(matrices(hessian)):
        whole = _columns(hessian.apply, h)[r]
        order = torch.arange(2 * n).view(2, n).T.flatten()  # node by node
        np.testing.assert_allclose(found.toarray(), whole[order][:, order], atol=1e-12)
        values = torch.linalg.eigvalsh(whole)
        assert extremes(found) == pytest.approx((float(values[0]), float(values[-1])), rel=1e-6)


def test_matrices_that_are_too_large_have_none(monkeypatch):
    monkeypatch.setattr(of, "DENSE", 3)
    monkeypatch.setattr(of, "LARGEST", 3)
    assert extremes(csc_matrix(diags(np.linspace(1.0, 10.0, 50)))) is None
    model = EnergyGNN(3, out_channels=2).double()
    found = certify(model, Data(x=torch.randn(3, 3), edge_index=star(3)), step=1e-9)
    assert "condition_number" not in found.constants
    assert found.guaranteed


def test_pairs_that_are_not_coupled_take_no_place():
    """A soft energy couples no two neighbours of a hub."""
    model = SoftEnergyGNN(3, out_channels=1, hidden_channels=2).double()
    problem = model.problem(Inputs(torch.randn(30, 3, dtype=torch.float64), star(30))).detach()
    found = matrices(problem.evaluate(problem.start()).hessian())
    assert found[0].nnz <= 2 * 2 * (30 + 2 * 29)


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
