"""Certificates of fixed points: contractions in a maximum norm, and maxima."""

import math

import pytest
import torch
from certified import data
from helpers import DOUBLE

from experiments.maximum import MaxGNN
from hogwild import IGNN, Inputs
from hogwild.analysis.certify import certify
from hogwild.asynchrony.impairments import (
    EventTriggered,
)
from hogwild.models.contraction import Adjacency, Contraction
from hogwild.nn.activations import nonexpansive
from hogwild.ops import gather
from hogwild.testing.problems import random_graph


def test_a_euclidean_contraction_may_diverge():
    """Why the norm matters: the counterexample of the documentation."""
    angle = 2.25
    f = 0.98 * torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        dtype=torch.float64,
    )
    assert float(torch.linalg.matrix_norm(f, 2)) < 1.0
    first, second = torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    first[0], second[1] = f[0], f[1]  # one node updates, then the other
    radius = float(torch.linalg.eigvals(second @ first).abs().max())
    assert radius == pytest.approx(1.57, abs=0.01)
    assert float(torch.linalg.eigvals(f.abs()).abs().max()) > 1.0  # the test that sees it


def test_the_rate_of_a_contraction_is_its_worst_modulus_every_s_plus_d_ticks():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2, replicas=3).double(), data()
    found = certify(model, inputs, 4, 3)
    problem = model.problem(Inputs(inputs.x, inputs.edge_index, None, inputs.batch))
    moduli = problem.detach().modulus()
    assert found.rate == found.constants["modulus"] == float(moduli.max()) > float(moduli.min())
    assert found.period == 7
    assert found.updates == pytest.approx(math.log(1e-6) / math.log(found.rate) * 7 / 2.5)


def test_the_bound_of_a_contraction_is_attained():
    """Two nodes that hear nothing but each other, h = κ·(other), and packets wrong by δ: an error
    of κδ / (1 - κ), which the bound must not miss and cannot improve on."""
    graph = random_graph([2])
    problem = Contraction(
        graph,
        Adjacency(torch.ones(2, **DOUBLE), torch.zeros(2, **DOUBLE), torch.ones(2, **DOUBLE)),
        torch.full((1, 1, 1), 0.8, **DOUBLE),
        torch.zeros(1, 1, 2, **DOUBLE),
        nonexpansive("identity"),
    )
    assert float(problem.displacement(0.1)) == pytest.approx(0.8 * 0.1 / 0.2)
    h = torch.zeros(1, 1, 2, **DOUBLE)
    for _ in range(200):
        h = problem.node.update(h, gather(h, graph.src) + 0.1, graph.everyone)
    assert float(h.max()) == pytest.approx(float(problem.displacement(0.1)))


def test_maxima_stay_near_while_packet_errors_are_below_the_decrements():
    """As the table of the documentation has it."""
    torch.manual_seed(0)
    model, inputs = MaxGNN(3, out_channels=2, least=0.1).double(), data()
    problem = model.problem(Inputs(inputs.x, inputs.edge_index, None, inputs.batch))
    least = float(problem.decrement.detach().min())
    found = certify(model, inputs, impairments=EventTriggered(0.9 * least))
    assert 0.0 < found.near < math.inf
    found = certify(model, inputs, impairments=EventTriggered(1.1 * least))
    assert found.near is None
    assert "need not end at the synchronous answer; no bound" in found.reason
    assert "less than the decrease along every edge" in found.reason
