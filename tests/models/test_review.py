"""Ways to misuse a model that a user found once; each must stay fixed."""

import io
import pickle

import pytest
import torch
from helpers import cycle, star

from hogwild import EnergyConv, EnergyGNN, Inputs
from hogwild.errors import ConfigError, DTypeError, FeatureError, HogwildError
from hogwild.graph import Graph, Pattern
from hogwild.nn import PICNN
from hogwild.solvers import LBFGS, LinearSolver, Newton, Picard, Status

HALF = torch.ones(3, 3, dtype=torch.half)


@pytest.mark.parametrize("act", ["softplus", "squareplus"])
def test_models_pickle(act):
    model, x = EnergyGNN(3, out_channels=1, act=act), torch.randn(5, 3)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x, cycle(5)), model(x, cycle(5)))
    buffer = io.BytesIO()
    torch.save(model, buffer)


def test_an_indefinite_matrix_is_not_solved():
    """A factorisation that breaks down is reported, not returned as converged."""
    problem = EnergyConv(3).problem(Inputs(torch.randn(5, 3), cycle(5))).detach()
    h = problem.zeros(torch.float64, torch.device("cpu"))
    hessian = problem.evaluate(h).hessian()
    hessian.beta = -50.0
    found = LinearSolver().solve(hessian, torch.ones_like(h), 1e-10)
    assert found.status.tolist() == [[Status.NOT_FINITE]]


def test_a_hub_does_not_form_all_pairs_of_its_neighbours(monkeypatch):
    """Conjugate gradients never build the pattern, with self-loops and multi-edges either."""
    monkeypatch.setattr(Pattern, "of", lambda graph: pytest.fail("pattern was built"))
    edge_index = torch.cat([star(30), torch.tensor([[0, 1, 1], [0, 0, 0]])], 1)
    conv = EnergyConv(2, solver=Newton(linear="cg")).double()
    found = conv.embed(Inputs(torch.randn(30, 2, dtype=torch.float64), edge_index))
    assert bool(found.converged.all())


def test_diagonal_of_a_multigraph_is_exact():
    """Linear in the edges, and equal to the diagonal of the assembled blocks."""
    edge_index = torch.cat([cycle(6), torch.tensor([[0, 1, 1, 3], [0, 0, 0, 3]])], 1)
    conv = EnergyConv(2).double()
    problem = conv.problem(Inputs(torch.randn(6, 2, dtype=torch.float64), edge_index)).detach()
    h = torch.randn(1, 2, 6, dtype=torch.float64)
    diagonal = problem.evaluate(h).hessian().diagonal()
    torch.testing.assert_close(diagonal, problem.evaluate(h).hessian().blocks()[0])


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ConfigError, lambda: EnergyConv(3, solver=Newton)),
        (ConfigError, lambda: EnergyConv(3, solve_dtype=torch.bfloat16)),
        (ConfigError, lambda: EnergyConv(3, solve_dtype="float64")),
        (ConfigError, lambda: EnergyConv(3, heads=True)),
        (ConfigError, lambda: EnergyConv(3, beta=float("inf"))),
        (ConfigError, lambda: EnergyGNN(3, out_channels=0)),
        (ConfigError, lambda: Newton(max_iter=1e3)),
        (ConfigError, lambda: LBFGS(max_backtracks=0)),
        (HogwildError, lambda: EnergyConv(3)([[1.0] * 3], cycle(3))),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), [[0], [1]])),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), torch.tensor(1))),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), cycle(3), h0=[0.0])),
        (DTypeError, lambda: EnergyConv(3)(torch.randn(3, 3), cycle(3), h0=torch.ones(3, 2) * 1j)),
        (FeatureError, lambda: EnergyConv(3).energy(torch.ones(4, 2), Inputs(torch.ones(3, 3), cycle(3)))),
        (DTypeError, lambda: EnergyConv(3, solve_dtype=None).half()(HALF, cycle(3))),
        (FeatureError, lambda: PICNN(2, 2, (4, 1))(torch.randn(5, 2), torch.randn(5, 1))),
    ],
)  # fmt: skip
def test_misuse_is_refused(error, call):
    with pytest.raises(error):
        call()


def test_edge_weight_in_the_place_of_edge_attr():
    with pytest.raises(FeatureError, match="did you mean edge_weight"):
        EnergyConv(3)(torch.randn(4, 3), cycle(4), torch.ones(8))


def test_replaced_data_is_another_graph():
    edge_index = cycle(4)
    graph = Graph.of(edge_index, 4)
    edge_index.data = cycle(3)
    assert Graph.of(edge_index, 4) is not graph


def test_float32_fixed_point_solvers_measure_the_gradient():
    """Relative to the terms of the gradient, not to the embeddings."""
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    conv = EnergyConv(3, solve_dtype=None, solver=Picard(max_iter=200_000, rtol=1e-5))
    exact = EnergyConv(3)
    exact.load_state_dict(conv.state_dict())
    gap = (conv(x, cycle(4)) - exact(x, cycle(4))).abs().max() / exact(x, cycle(4)).abs().max()
    assert float(gap.detach()) < 1e-3
