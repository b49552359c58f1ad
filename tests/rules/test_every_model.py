"""Every implicit model, under random schedules: the answer is the solver's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from hogwild import EIGNN, GSDGNN, IGNN, EnergyGNN, MaxGNN, ScarselliGNN, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    Duplication,
    GeometricDelay,
    LinkChurn,
    Reordering,
    Stragglers,
)
from hogwild.testing.problems import random_graph

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2),
    "energy, attention": lambda: EnergyGNN(3, out_channels=2, heads=2),
    "denoising": lambda: GSDGNN(3, out_channels=2),
    "IGNN": lambda: IGNN(3, out_channels=2),
    "EIGNN": lambda: EIGNN(3, out_channels=2),
    "Scarselli": lambda: ScarselliGNN(3, out_channels=2),
    "maximum": lambda: MaxGNN(3, out_channels=2),
}
BOUNDED = [
    GeometricDelay(0.5, cap=6),
    Reordering(0.3),
    Duplication(0.3),
    BernoulliLoss(0.3, burst=3),
    LinkChurn(0.3, period=60, downtime=10),
    Stragglers(0.2, slowdown=3),
    Crashes(0.2, period=60, downtime=10, until=150, rejoin="cold"),
]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 4),
    st.lists(st.sampled_from(BOUNDED), max_size=2, unique=True),
)
def test_every_implicit_model_ends_at_the_solvers_answer(name, seed, stagger, delay, impairments):
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    graph = random_graph([int(n) for n in torch.randint(1, 9, (3,))], seed=seed)
    data = Data(
        x=torch.randn(graph.num_nodes, 3, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
        batch=graph.batch,
    )
    run = simulate(
        model, data, stagger=stagger, delay=delay, seed=seed, impairments=impairments,
        ticks=6000, tol=1e-6,
    )  # fmt: skip
    assert bool(run.converged.all()), run
    assert all(run.assumptions.values()) or not run.staleness.bounded


@pytest.mark.parametrize("name", ["energy", "denoising"])
def test_certified_steps_on_small_well_conditioned_cases(name):
    torch.manual_seed(2)
    make = {"energy": EnergyGNN, "denoising": GSDGNN}[name]
    graph = random_graph([2, 4], seed=2)
    data = Data(
        x=torch.randn(6, 3, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
        batch=graph.batch,
    )
    run = simulate(
        make(3, 2, beta=1.0).double(),
        data,
        step="certified",
        stagger=2,
        delay=1,
        ticks=20_000,
        tol=1e-6,
    )
    assert bool(run.converged.all()), run
