"""Features of any scale: the condition number of a fresh model, and the advice to standardise."""

import warnings

import pytest
import torch
from helpers import DOUBLE, chain, columns
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from hogwild import GCN, EnergyGNN
from hogwild.errors import FeatureWarning
from hogwild.models.validation import large_features
from hogwild.nn.standardize import FARTHEST
from hogwild.testing import random_graph

WORST = 1e3
KINDS = {"edge": {}, "node": {"message": "node"}, "heads": {"heads": 2}, "wide": {"widths": (8, 8)}}


def condition(model, data):
    """The larger condition number of ∇²E at zero and at the solution, from dense matrices."""
    problem = model.problem(data).detach()
    h = model.embed(data).value.detach().mT.unsqueeze(0)
    found = []
    for at in (torch.zeros_like(h), h):
        dense = columns(problem.evaluate(at).hessian().apply, at)
        spectrum = torch.linalg.eigvalsh(dense)
        found.append(float((spectrum[:, -1] / spectrum[:, 0]).max()))
    return max(found)


@st.composite
def features(draw, n):
    """Columns of any scale and shift: ordinary, heavy-tailed, constant, with one far outlier."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        column = torch.randn(n, generator=random, **DOUBLE)
        kind = draw(st.sampled_from(["ordinary", "heavy", "constant", "outlier", "indicator"]))
        if kind == "heavy":
            column = (3 * column).exp()
        elif kind == "constant":
            column = torch.ones_like(column)
        elif kind == "outlier":
            column[draw(st.integers(0, n - 1))] = draw(st.sampled_from([-1e9, -1e3, 1e3, 1e9]))
        elif kind == "indicator":
            column = (column > 1).double()
        scale = 10.0 ** draw(st.floats(-6, 6))
        made.append(scale * (column + draw(st.sampled_from([0.0, -5.0, 1e3]))))
    return torch.stack(made, 1)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(KINDS)))
def test_a_fresh_standardised_model_is_well_conditioned(data, seed, kind):
    n = data.draw(st.integers(2, 14))
    who = random_graph([n], extra=data.draw(st.floats(0, 2)), seed=seed)
    graph = Data(x=data.draw(features(n)), edge_index=torch.stack([who.src, who.dst]))
    torch.manual_seed(seed)
    model = EnergyGNN(graph.x.size(1), out_channels=1, **KINDS[kind]).double().standardize(graph)
    assert condition(model, graph) < WORST


def test_outliers_among_many_nodes_are_bounded():
    """Among n values one outlier can be √n deviations from the mean: here 100."""
    x = torch.zeros(10_000, 2, **DOUBLE)
    x[:, 0] = torch.randn(10_000, **DOUBLE)
    x[:, 1] = torch.linspace(-1, 1, 10_000, **DOUBLE)
    x[7] = 1e6
    model = EnergyGNN(2, out_channels=1).double()
    model.standardize(Data(x=x, edge_index=chain(4)))
    even = model.features.nodes(x)
    torch.testing.assert_close(even[7], torch.full((2,), FARTHEST, **DOUBLE))
    assert condition(model, Data(x=x[:12], edge_index=chain(12))) < WORST
    x[7] = 0.0  # without the outlier the deviation is one
    model.standardize(Data(x=x, edge_index=chain(4)))
    even = model.features.nodes(x)
    torch.testing.assert_close(even.std(0, correction=0), torch.ones(2, **DOUBLE))


def large(scale=800.0):
    return Data(x=scale * torch.linspace(0, 1, 5, **DOUBLE).view(-1, 1) ** 3, edge_index=chain(5))


def test_raw_large_features_give_one_warning_with_the_remedy():
    data, model = large(), EnergyGNN(1, out_channels=1).double()
    with pytest.warns(FeatureWarning, match=r"x has entries up to 800.*model.standardize\(data\)"):
        model(data.x, data.edge_index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(data.x, data.edge_index)  # once


@pytest.mark.parametrize("case", ["standardised", "small", "in use", "explicit"])
def test_no_warning(case):
    data = large(1.0 if case == "small" else 800.0)
    model = (GCN if case == "explicit" else EnergyGNN)(1, out_channels=1).double()
    if case == "standardised":
        model.standardize(data)
    if case == "in use":
        model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(data.x, data.edge_index)


def test_large_features_with_gradients_are_named_without_a_warning_of_torch():
    x = torch.full((2, 1), 800.0, dtype=torch.float64, requires_grad=True)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "x has entries up to 800" in large_features(x=x)
    finally:
        torch.set_warn_always(before)
