"""A certificate as text and as data, and under crashes and unbounded loss."""

import json

import pytest
import torch
from certified import CERTIFIED, data

import hogwild
from experiments.maximum import MaxGNN
from hogwild import GCN, GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild.analysis.certify import certify
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GilbertElliott,
    LinkChurn,
    Quantisation,
)
from hogwild.models.base import Kind


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: IGNN(3, out_channels=2, act="tanh", kappa=0.9), {}),
        (lambda: EnergyGNN(3, out_channels=2), CERTIFIED),
    ],
    ids=["IGNN", "energy"],
)
def test_a_bound_larger_than_the_answer_is_reported_as_useless(make, options):
    torch.manual_seed(0)
    model, inputs = make().double(), data()
    size = float(hogwild.simulate(model, inputs, ticks=1, **options).reference.abs().max())
    for step in (1e-9, 1.0):
        found = certify(model, inputs, impairments=Quantisation(step), **options)
        assert found.constants["largest_entry"] == pytest.approx(size)
        assert (found.near > size) == (step == 1.0)
        assert ("says nothing about the answer" in str(found)) == (found.near > size)


def test_constants_are_plain_numbers():
    for model in (
        EnergyGNN(3, out_channels=2),
        GSDGNN(3, out_channels=2),
        IGNN(3, out_channels=2),
        MaxGNN(3, out_channels=2),
    ):
        for impairment in (Quantisation(0.01), ()):
            found = certify(model.double(), data(), impairments=impairment)
            assert {type(value) for value in found.constants.values()} <= {float}


def test_no_rate_before_cold_crashes_end():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2).double(), data()
    cold = certify(model, inputs, impairments=Crashes(rejoin="cold", until=300))
    warm = certify(model, inputs, impairments=Crashes(rejoin="warm", until=300))
    assert cold.guaranteed
    assert warm.guaranteed
    assert cold.since == 300 + cold.period - 2  # S more ticks, until all are back
    assert warm.since == 0
    assert cold.rate == warm.rate
    assert f"from tick {cold.since} on" in str(cold)
    assert "nothing is proved about the time before" in cold.reason


def test_the_rate_holds_once_cold_crashes_have_ended():
    torch.manual_seed(0)
    inputs = data((9,))
    model = IGNN(3, out_channels=2, act="identity", kappa=0.95).double()
    crashes = Crashes(0.5, period=40, downtime=10, until=45, rejoin="cold")
    found = certify(model, inputs, impairments=crashes)
    problem = model.problem(Inputs(inputs.x, inputs.edge_index)).detach()
    v = problem.adjacency.perron
    run = hogwild.simulate(
        model, inputs, impairments=crashes, tol=None, history=1, keep_embeddings=True, ticks=400
    )
    error = ((run.embeddings[:, 0] - run.reference).abs().amax(-1) / v).amax(-1)
    assert float(error[45:60].max()) > 0.1 * float(error[0])  # crashes have thrown it back
    # A view after `since` may hold embeddings from D ticks before it.
    last, window = found.period + 2, error[found.since - 2 :]
    for t in range(len(window) - last):
        assert float(window[t + last]) <= found.rate * float(window[: t + 3].max()) + 1e-12


@pytest.mark.parametrize(
    ("impairment", "hope"),
    [
        (BernoulliLoss(0.9), True),
        (BernoulliLoss(1.0), False),
        (GilbertElliott(0.1, 0.3), True),
        (GilbertElliott(0.1, 0.0), False),
        (GilbertElliott(0.1, 0.0, bad=0.5), True),
        (GilbertElliott(0.0, 0.1, good=1.0, bad=0.0), False),
        (GilbertElliott(0.1, 0.1, good=1.0, bad=1.0), False),
        (LinkChurn(0.9, period=6, downtime=4), True),
        (LinkChurn(1.0, period=6, downtime=4), False),
        ([BernoulliLoss(0.5), GilbertElliott()], True),
    ],
)
def test_unbounded_loss(impairment, hope):
    """Fixed points still converge, with probability one; certified steps need a bound."""
    torch.manual_seed(0)
    inputs = data()
    for model in (
        IGNN(3, out_channels=2),
        MaxGNN(3, out_channels=2),
        IGNN(3, out_channels=2, num_layers=2),
    ):
        found = certify(model.double(), inputs, impairments=impairment)
        assert found.guaranteed is hope
        assert found.rate is None
        assert ("probability one" in found.reason) is hope
    energy = certify(
        EnergyGNN(3, out_channels=2).double(), inputs, **CERTIFIED, impairments=impairment
    )
    assert not energy.guaranteed
    assert "unbounded" in energy.reason
    assert energy.step is None


def test_a_certificate_as_data():
    """What `hogwild certify --json` prints: keys that are names, values that JSON knows."""
    torch.manual_seed(0)
    inputs = data()
    for model in (
        EnergyGNN(3, out_channels=2),
        IGNN(3, out_channels=2),
        GCN(3, out_channels=2),
        EnergyGNN(3, out_channels=2, num_layers=2),
    ):
        step = "certified" if model.kind == Kind.OPTIMISATION else "auto"
        found = certify(model.double(), inputs, step=step).data
        assert all(key.isidentifier() and key.isascii() for key in found)
        assert json.loads(json.dumps(found)) == found
    found = certify(EnergyGNN(3, out_channels=2).double(), inputs, step="certified").data
    assert found["certified_step_min"] < found["certified_step_max"]
    assert found["strong_convexity"] == 0.04
    assert found["guaranteed"] is True
