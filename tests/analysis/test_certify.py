"""`certify`: which certificate each model gets, as text and as data, under crashes, loss and wrong
packets; and what is refused."""

import json
import math

import pytest
import torch
from certified import CERTIFIED, data
from torch_geometric.data import Data

import hogwild
from experiments.maximum import MaxGNN
from hogwild import EIGNN, GCN, GSDGNN, IGNN, EnergyGNN, Inputs, ScarselliGNN
from hogwild.analysis.certify import certify
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    EventTriggered,
    GilbertElliott,
    LinkChurn,
    Quantisation,
    Stragglers,
)
from hogwild.errors import ConfigError
from hogwild.models.base import Kind

ENERGY, FIXED, EXPLICIT = Kind.OPTIMISATION, Kind.FIXED_POINT, Kind.EXPLICIT


@pytest.mark.parametrize(
    ("make", "options", "kind", "guaranteed"),
    [
        (EnergyGNN, {}, ENERGY, True),
        (GSDGNN, {}, ENERGY, True),
        (EnergyGNN, {"num_layers": 2}, ENERGY, True),
        (IGNN, {}, FIXED, True),
        (IGNN, {"num_layers": 2}, FIXED, True),
        (EIGNN, {}, FIXED, True),
        (MaxGNN, {}, FIXED, True),
        (ScarselliGNN, {}, FIXED, False),
        (ScarselliGNN, {"num_layers": 2}, FIXED, False),
        (GCN, {}, EXPLICIT, True),
    ],
)
def test_every_kind_of_model_gets_the_right_certificate(make, options, kind, guaranteed):
    """It prints the reason. As data (`hogwild certify --json`) it has names, and values of JSON."""
    torch.manual_seed(0)
    model, inputs = make(3, out_channels=2, **options).double(), data()
    found = certify(model, inputs, step="certified" if kind == ENERGY else "auto")
    assert (model.kind, found.kind, found.guaranteed) == (kind, kind, guaranteed)
    assert str(kind) in str(found)
    assert found.reason in str(found)
    assert {type(value) for value in found.constants.values()} <= {float}
    assert all(key.isidentifier() and key.isascii() for key in found.data)
    assert json.loads(json.dumps(found.data)) == found.data
    if make is EnergyGNN and not options:
        assert found.data["certified_step_min"] < found.data["certified_step_max"]
        assert found.data["strong_convexity"] == 0.04
        assert found.data["guaranteed"] is True


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, ScarselliGNN, MaxGNN, GCN])
def test_float32_models(make):
    torch.manual_seed(0)
    inputs = data()
    inputs.x = inputs.x.float()
    model = make(3, out_channels=2)
    assert certify(model, inputs).kind == model.kind
    run = hogwild.simulate(model, inputs, ticks=1500)
    assert run.h.dtype == run.predictions.dtype == torch.float32
    assert model.kind == EXPLICIT or float(run.deviation.max()) < 1e-3


def test_impairments_are_certified_with_the_bounds_they_leave():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    plain = certify(model, inputs, **CERTIFIED)
    slow = certify(model, inputs, **CERTIFIED, impairments=Stragglers(0.2, slowdown=4))
    assert float(slow.step.max()) < float(plain.step.max())
    assert slow.period == 20 + 2 * 2 + 20


def test_directed_graphs_are_not_certified():
    torch.manual_seed(0)
    one_way = Data(x=data((3,)).x, edge_index=torch.tensor([[0, 1], [1, 2]]))
    layers = GCN(3, out_channels=1, num_layers=2).double()
    for model, options in (
        (EnergyGNN(3, out_channels=2).double(), {}),
        (layers, {"rule": "resending"}),
    ):
        found = certify(model, one_way, **options)
        assert not found.guaranteed
        assert "no reverse link" in found.reason
    assert certify(layers, one_way, rule="caching").guaranteed


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


def test_rates_of_no_use_are_not_printed():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, message="node").double()
    found = certify(model, data((5,)), **CERTIFIED)
    assert found.updates > 1e6
    assert f"{found.updates:.3g}" not in str(found)
    assert "from anywhere: runs converge; the proved rate is too slow" in str(found)
    soft = hogwild.SoftEnergyGNN(3, hidden_channels=2, out_channels=1, condition=3.0).double()
    found = certify(soft, data((5,)), **CERTIFIED)
    assert f"from anywhere: 1e-6 of the error is left after {found.updates:.0f}" in str(found)


# -- wrong packets ---------------------------------------------------------------------------------


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
    # The bound grows with the error, and not faster. Where it is larger than the answer, that is
    # reported as useless.
    size = float(run.reference.abs().max())
    twice = certify(model, inputs, impairments=[impairment, Quantisation(0.02)], **options)
    assert twice.near >= 2.0 * found.near * (1 - 1e-9)
    for one in (found, twice):
        assert one.constants["largest_entry"] == pytest.approx(size)
        assert ("says nothing about the answer" in str(one)) == (one.near > size)


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


# -- crashes and unbounded loss --------------------------------------------------------------------


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
    v = model.problem(Inputs.of(inputs)).detach().adjacency.perron
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
    energy = EnergyGNN(3, out_channels=2).double()
    found = certify(energy, inputs, **CERTIFIED, impairments=impairment)
    assert not found.guaranteed
    assert ("unbounded" if hope else "may never come through") in found.reason
    assert found.step is None
