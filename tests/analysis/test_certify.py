"""`certify`: which certificate each model gets, and what is refused."""

import math

import pytest
import torch
from certified import CERTIFIED, data
from torch_geometric.data import Data

import hogwild
from experiments.maximum import MaxGNN
from hogwild import EIGNN, GCN, GSDGNN, IGNN, EnergyGNN, ScarselliGNN
from hogwild.analysis.certify import certify
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    EventTriggered,
    Quantisation,
    Stragglers,
)
from hogwild.errors import ConfigError
from hogwild.models.base import Kind


def test_every_kind_of_model_gets_the_right_certificate(capsys):
    torch.manual_seed(0)
    inputs = data()
    cases = [
        (EnergyGNN(3, out_channels=2), Kind.OPTIMISATION, True),
        (GSDGNN(3, out_channels=2), Kind.OPTIMISATION, True),
        (EnergyGNN(3, out_channels=2, num_layers=2), Kind.OPTIMISATION, True),
        (
            ScarselliGNN(3, out_channels=2, num_layers=2),
            Kind.FIXED_POINT,
            False,
        ),
        (IGNN(3, out_channels=2, num_layers=2), Kind.FIXED_POINT, True),
        (IGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (EIGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (ScarselliGNN(3, out_channels=2), Kind.FIXED_POINT, False),
        (MaxGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (GCN(3, out_channels=2), Kind.EXPLICIT, True),
    ]
    for model, kind, guaranteed in cases:
        step = "certified" if kind == Kind.OPTIMISATION else "auto"
        found = certify(model.double(), inputs, step=step)
        printed = str(found)
        assert model.kind == found.kind == kind
        assert found.guaranteed is guaranteed
        assert str(kind) in printed
        assert found.reason in printed
    assert hogwild.certify is certify


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, ScarselliGNN, MaxGNN, GCN])
def test_float32_models(make):
    torch.manual_seed(0)
    inputs = data()
    inputs.x = inputs.x.float()
    model = make(3, out_channels=2)
    assert certify(model, inputs).kind == model.kind
    run = hogwild.simulate(model, inputs, ticks=1500)
    assert run.h.dtype == run.predictions.dtype == torch.float32
    assert model.kind == Kind.EXPLICIT or float(run.deviation.max()) < 1e-3


def test_impairments_are_certified_with_the_bounds_they_leave():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    plain = certify(model, inputs, **CERTIFIED)
    slow = certify(model, inputs, **CERTIFIED, impairments=Stragglers(0.2, slowdown=4))
    assert float(slow.step.max()) < float(plain.step.max())
    assert slow.period == 20 + 2 * 2 + 20
    lost = certify(model, inputs, **CERTIFIED, impairments=[BernoulliLoss(0.1)])
    assert not lost.guaranteed
    assert "unbounded" in lost.reason


def test_directed_graphs_are_not_certified():
    torch.manual_seed(0)
    one_way = Data(x=data((3,)).x, edge_index=torch.tensor([[0, 1], [1, 2]]))
    found = certify(EnergyGNN(3, out_channels=2).double(), one_way)
    assert not found.guaranteed
    assert "no reverse link" in found.reason


@pytest.mark.parametrize(
    "options",
    [
        {"stagger": 0},
        {"delay": -1},
        {"step": -1.0},
        {"step": "fast"},
        {"step": None},
        {"rule": "magic"},
        {"rule": "fixed-point"},
    ],
)
def test_bad_options(options):
    with pytest.raises(ConfigError, match="expected"):
        certify(EnergyGNN(3, out_channels=2).double(), data(), **options)


def test_a_model_in_training_mode_is_certified_in_evaluation_mode():
    """Dropout is not taken for a layer that looks beyond its neighbours."""
    model = GCN(3, out_channels=2, dropout=0.5).double().train()
    assert "depends on the schedule" in certify(model, data(), rule="overwriting").reason
    assert model.training


def test_a_certificate_is_about_the_given_rule_and_step():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    for options, proved, word in [
        ({}, False, "messages are observed"),
        ({"rule": "messages"}, False, "messages are observed"),
        ({"rule": "gradient"}, False, "step='auto' are observed"),
        ({"step": "certified"}, True, "strongly convex"),
        ({"rule": "gradient", "step": "certified"}, True, "strongly convex"),
        ({"rule": "gradient", "step": 0.1}, False, "larger than the smallest certified"),
    ]:
        found = certify(model, inputs, **options)
        assert found.guaranteed is proved
        assert found.near == (0.0 if proved else None)
        assert (found.rate is not None) is proved
        assert word in found.reason
        assert found.step is not None


@pytest.mark.parametrize(
    "impairment", [Quantisation(0.02), EventTriggered(0.01)], ids=["quantised", "triggered"]
)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: IGNN(3, out_channels=2, act="tanh", kappa=0.9), {}),
        (lambda: EIGNN(3, out_channels=2), {}),
        (lambda: MaxGNN(3, out_channels=2, least=0.1), {}),
        (lambda: GSDGNN(3, out_channels=2, gamma=4.0, beta=1.0), CERTIFIED),
        (lambda: EnergyGNN(3, out_channels=2, beta=2.0), CERTIFIED),
    ],
    ids=["IGNN", "EIGNN", "maximum", "denoising", "energy"],
)
def test_runs_end_within_the_bound(make, options, impairment):
    torch.manual_seed(0)
    model, inputs = make().double(), data()
    found = certify(model, inputs, impairments=impairment, **options)
    assert not found.guaranteed
    assert found.rate is None
    assert found.constants["packet_error"] == 0.01
    assert 0.0 < found.near < math.inf
    assert f"within {found.near:.3g} of" in str(found)
    run = hogwild.simulate(model, inputs, ticks=300, tol=None, impairments=impairment, **options)
    distance = float((run.h - run.reference).abs().max())
    assert distance <= found.near
    assert distance > 0.0 or isinstance(model, MaxGNN)  # a maximum may survive by luck
    # The bound grows with the error, and not faster.
    twice = certify(model, inputs, impairments=[impairment, Quantisation(0.02)], **options)
    assert twice.near >= 2.0 * found.near * (1 - 1e-9)


def test_stacks_under_wrong_packets_are_not_certified():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2, num_layers=2).double(), data()
    found = certify(model, inputs, impairments=Quantisation(0.01))
    assert not found.guaranteed
    assert found.near is None
    assert found.levels[0].near > 0.0
    assert "passes its error on" in found.reason


def test_a_trigger_with_threshold_zero_changes_nothing():
    model, inputs = IGNN(3, out_channels=2).double(), data()
    assert certify(model, inputs, impairments=EventTriggered(0.0)).guaranteed


def test_a_rule_that_cannot_run_is_not_guaranteed():
    one_way = Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    model = GCN(2, out_channels=1, num_layers=2)
    found = certify(model, one_way, rule="resending")
    assert not found.guaranteed
    assert "no reverse link" in found.reason
    assert certify(model, one_way, rule="caching").guaranteed
