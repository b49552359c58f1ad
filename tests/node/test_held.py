"""Solves of some nodes in NumPy against those in torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import DOUBLE
from models.test_export import MODELS
from torch import Tensor

from hogwild import GCN, IGNN, Inputs
from hogwild.engines import engine_for
from hogwild.models.export import described, packed
from hogwild.problems.base import FixedPoint
from hogwild.problems.pinned import pinned
from hogwild.solvers import Newton, SemismoothNewton
from hogwild.solvers.loop import solve as solve_in_torch
from hogwild.testing.problems import Affine, Quadratic, random_graph
from hogwild_node import model as node_models
from hogwild_node.held import Piece, solve
from hogwild_node.model import Part
from hogwild_node.model_file import ModelFile
from hogwild_node.star import Star

SOLVED = sorted({*MODELS} - {name for name in MODELS if isinstance(MODELS[name](), GCN)})


def drawn(model, n=9, seed=0):
    """Random features on a random graph, whose edges have weights."""
    torch.manual_seed(seed)
    graph = random_graph([n], seed=seed)
    edge_index = torch.stack([graph.src, graph.dst])
    attr = None if model.edge_dim is None else torch.randn(edge_index.size(1), 2, **DOUBLE)
    weight = 0.5 + 0.1 * edge_index.sum(0).double()  # of equal weight both ways
    return Inputs(torch.randn(n, 3, **DOUBLE), edge_index, attr, edge_weight=weight)


def part_of(inputs, encode):
    """The whole graph, as a node knows it."""
    n, (src, dst) = inputs.num_nodes, inputs.edge_index.numpy()
    weight = np.ones(dst.size) if inputs.edge_weight is None else inputs.edge_weight.numpy()
    degree = 1.0 + np.bincount(dst, weight, n)
    attr = None if inputs.edge_attr is None else inputs.edge_attr.numpy()
    x, star = (
        np.stack([encode(row) for row in inputs.x.numpy()]),
        Star(n, dst, ends=np.concatenate([dst, src])),
    )
    return Part(star, x, x, degree, np.bincount(dst, minlength=n), degree[src], weight, attr, src)


def posed(name, seed=0, odd=0.0):
    torch.manual_seed(seed)
    model = MODELS[name]().double().eval()
    inputs = drawn(model, seed=seed)
    inputs.x[2] += odd
    if name.startswith("eignn"):  # it reads no weights
        inputs = replace(inputs, edge_weight=None)
    alone = node_models.of(packed(model))
    with torch.no_grad():
        problem = model.problem(inputs).detach()
    return problem, alone.build_part(part_of(inputs, alone.encode)), inputs.edge_index.numpy()


def piece_of(local, edge_index, free):
    src, dst = edge_index
    star = Star(len(free), dst, ends=np.concatenate([dst, src]))
    return Piece(local, star, src, free)


@pytest.mark.parametrize("held_share", [0.0, 0.4])
@pytest.mark.parametrize("name", SOLVED)
def test_solves_equal_those_in_torch(name, held_share):
    problem, local, edge_index = posed(name)
    n = problem.graph.num_nodes
    random = np.random.default_rng(0)
    free, h = random.random(n) >= held_share, random.normal(size=(1, problem.channels, n))
    free[0] = True
    found = solve(piece_of(local, edge_index, free), h)
    held_problem = pinned(problem, torch.from_numpy(free), torch.from_numpy(h))
    maps = isinstance(problem, FixedPoint)
    solver = SemismoothNewton(atol=1e-13) if maps else Newton(atol=1e-12, linear="cg")
    with torch.no_grad():
        answer = solve_in_torch(held_problem, solver, torch.from_numpy(h)).value.numpy()
    assert found.good
    assert found.residual <= found.norm <= 1e-9
    np.testing.assert_allclose(found.h, answer, rtol=0.0, atol=1e-9)
    np.testing.assert_array_equal(found.h[..., ~free], h[..., ~free])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_energies_are_solved_from_far_away(scale):
    problem, local, edge_index = posed("edge", seed=3)
    n = problem.graph.num_nodes
    h = scale * np.random.default_rng(2).normal(size=(1, problem.channels, n))
    piece = piece_of(local, edge_index, np.ones(n, dtype=bool))
    near, far = solve(piece, np.zeros_like(h)), solve(piece, h)
    assert far.good
    np.testing.assert_allclose(far.h, near.h, atol=1e-9)


def test_energies_with_kinks_are_solved():
    """Large weights make an energy nearly piecewise linear; steps then end where it still falls."""
    problem, local, edge_index = posed("edge", seed=4)
    n = problem.graph.num_nodes
    steep = replace(local, round=replace(local.round, weight=300.0 * local.round.weight), beta=1e-3)
    piece = piece_of(steep, edge_index, np.ones(n, dtype=bool))
    found = solve(piece, np.random.default_rng(0).normal(size=(1, problem.channels, n)))
    assert found.good
    scale = np.abs(steep.quadratic(found.h, found.h[..., piece.src], piece.star).b).max()
    assert found.residual <= 1e-10 * scale


@pytest.mark.parametrize("odd", [50.0, 100.0, 1e3, 1e4])
def test_a_solve_with_an_odd_reading_arrives_or_says_that_it_has_not(odd):
    """One reading is many standard deviations off, and solves begin at the answer without it."""
    arrived = 0
    for seed in range(6):
        plain, (problem, local, edge_index) = posed("edge", seed)[0], posed("edge", seed, odd)
        with torch.no_grad():
            before = engine_for(plain, Newton()).solve(None).value
            answer = engine_for(problem, Newton(max_iter=3000)).solve(before)
        found = solve(piece_of(local, edge_index, np.ones(9, dtype=bool)), before.numpy())
        if found.good and bool(answer.converged.all()):
            size = float(answer.value.abs().max())
            np.testing.assert_allclose(found.h, answer.value.numpy(), rtol=0, atol=1e-6 * size)
        arrived += found.good
    assert arrived == 6 if odd <= 1e3 else arrived >= 1


@pytest.mark.parametrize("kind", [Quadratic, Affine])
def test_known_answers(kind):
    graph = random_graph([1, 2, 12], seed=5)
    problem = kind.random(graph, seed=5)
    local = problem.node.map(Tensor.numpy)
    piece = piece_of(local, np.stack([graph.src, graph.dst]), np.ones(graph.num_nodes, dtype=bool))
    found = solve(piece, problem.start().numpy())
    assert found.good
    np.testing.assert_allclose(found.h, problem.answer().numpy(), atol=1e-8)


def test_what_has_no_answer_is_not_good():
    problem, local, edge_index = posed("edge")
    n = problem.graph.num_nodes
    piece = piece_of(local, edge_index, np.ones(n, dtype=bool))
    assert not solve(piece, np.full((1, problem.channels, n), np.nan)).good
    torch.manual_seed(0)
    model = IGNN(3, out_channels=2, hidden_channels=4, act="leaky_relu").double().eval()
    config, tensors = described(model)
    wild = tensors | {"matrix": 30.0 * np.eye(4) + tensors["matrix"]}  # expands
    alone = node_models.of(ModelFile(config | {"act": "identity"}, wild, "0" * 16))
    inputs = drawn(model)
    diverging = alone.build_part(part_of(inputs, alone.encode))
    piece = piece_of(diverging, inputs.edge_index.numpy(), np.ones(9, dtype=bool))
    assert not solve(piece, np.ones((1, 4, 9))).good
