"""Bounds on the distance at which nodes follow an answer that moves, on random cases."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from motion import ring

from hogwild import EIGNN, GSDGNN, IGNN, EnergyGNN, Scenario, certify, track
from hogwild.analysis.contractions import certify_fixed_point
from hogwild.errors import ConfigError
from hogwild.executors.simulation import Settings
from hogwild.graph import Graph
from hogwild.testing.problems import Affine

SETTLED, LENGTH = 60, 80


def drifting(seed, size, jumps, every):
    """A ring whose features stand still for some time and then move every so many ticks: by a
    random walk, or there and back."""
    random = torch.Generator().manual_seed(seed)
    data = ring(list(range(5)), seed=seed, chords=[(0, 2)])
    frames, away = [data], torch.zeros_like(data.x)
    times = list(range(SETTLED, SETTLED + LENGTH, every))
    for _ in times:
        step = size * torch.randn(data.x.shape, generator=random, dtype=torch.float64)
        away = (away if not jumps else -away) + step
        frame = data.clone()
        frame.x = data.x + away
        frames.append(frame)
    return data, Scenario(frames, [0, *times], length=SETTLED + LENGTH)


CASES = {
    "seed": st.integers(0, 10_000),
    "size": st.floats(1e-3, 0.3),
    "jumps": st.booleans(),
    "stagger": st.integers(1, 5),
    "delay": st.integers(0, 4),
    "every": st.sampled_from([1, 2, 5, 20]),
}


@settings(max_examples=16, deadline=None)
@given(kind=st.sampled_from([IGNN, EIGNN]), **CASES)
def test_contractions_follow_within_the_bound(kind, seed, size, jumps, stagger, delay, every):
    torch.manual_seed(seed)
    model = kind(3, out_channels=1, kappa=0.5) if kind is IGNN else kind(3, out_channels=1)
    model = model.double()
    data, scenario = drifting(seed, size, jumps, every)
    seen = track(model, scenario, stagger=stagger, delay=delay, seed=seed)
    proved = certify(model, data, stagger, delay, drift=seen.drift)
    assume(seen.drift > 0.0)  # a ReLU may be off for every input: the answer then stays at zero
    kappa = proved.constants["modulus"]
    # The bound is on the end: what is left of the start shrinks by κ every S + D ticks. The ratio
    # of the norms in the proof can be read from the bound itself.
    ratio = proved.tracking * (1 - kappa) / (seen.drift * (stagger + kappa * delay))
    left = kappa ** (SETTLED // (stagger + delay) - 1) * float(seen.error[0].max())
    assert float(seen.error[SETTLED:].max()) <= proved.tracking + ratio * left
    assert proved.constants["drift"] == seen.drift


@settings(max_examples=6, deadline=None)
@given(**CASES)
def test_certified_steps_follow_within_the_bound(seed, size, jumps, stagger, delay, every):
    torch.manual_seed(seed)
    model = GSDGNN(3, out_channels=1).double()
    data, scenario = drifting(seed, size, jumps, every)
    options = {"rule": "gradient", "step": "certified"}
    seen = track(model, scenario, stagger=stagger, delay=delay, seed=seed, **options)
    proved = certify(model, data, stagger, delay, drift=seen.drift, **options)
    assert float(seen.error[1:].max()) <= proved.tracking + float(seen.error[0].max())


@pytest.mark.parametrize("every", [1, 2, 5, 20])
def test_the_bound_of_contractions_is_too_large_by_a_known_factor(every):
    """A change is seen whole by a node that has no turn at once. So the bound is at most
    (S + κ D) / (1 − κ) times as large as the distance, however often changes come."""
    torch.manual_seed(0)
    model, stagger, delay = EIGNN(1, out_channels=1, hidden_channels=1).double(), 5, 2
    data, frames = ring([0, 1], width=1), []
    for t in range(0, 400, every):
        frame = data.clone()
        frame.x = torch.full((2, 1), 0.01 * t, dtype=torch.float64)
        frames.append(frame)
    seen = track(model, Scenario(frames, list(range(0, 400, every)), length=400),
                 stagger=stagger, delay=delay)  # fmt: skip
    proved = certify(model, data, stagger, delay, drift=seen.drift)
    kappa, away = proved.constants["modulus"], float(seen.error[200:].max())
    assert away <= proved.tracking <= 1.001 * (stagger + kappa * delay) / (1 - kappa) * away


def test_the_bound_of_contractions_is_nearly_attained():
    """Two nodes with h_i = κ h_j + b_i: where b grows steadily, all updates are late alike."""
    torch.manual_seed(0)
    model = EIGNN(1, out_channels=1, hidden_channels=1).double()
    data = ring([0, 1], width=1)
    frames = []
    for t in range(400):
        frame = data.clone()
        frame.x = torch.full((2, 1), 0.01 * t, dtype=torch.float64)
        frames.append(frame)
    seen = track(model, Scenario(frames, list(range(400)), length=400), stagger=1, delay=0)
    proved = certify(model, data, 1, 0, drift=seen.drift)
    kappa = proved.constants["modulus"]
    # Every tick: e' = κ e + d, and the error is seen after the update: κ e + d − d.
    assert proved.tracking == pytest.approx(seen.drift / (1 - kappa), rel=1e-6)
    assert float(seen.error[-1].max()) == pytest.approx(kappa * proved.tracking, rel=1e-3)


def test_the_bound_is_proportional_to_the_drift():
    data = ring(list(range(5)))
    options = {"rule": "gradient", "step": "certified"}
    for model, given_ in (
        (GSDGNN(3, out_channels=1).double(), options),
        (IGNN(3, out_channels=1).double(), {}),
    ):
        one, ten = (certify(model, data, drift=d, **given_).tracking for d in (0.1, 1.0))
        assert ten == pytest.approx(10 * one)
        assert certify(model, data, drift=0.0, **given_).tracking == 0.0
        assert certify(model, data, **given_).tracking is None


def test_what_is_not_proved_is_not_claimed():
    data, energy = ring(list(range(5))), EnergyGNN(3, out_channels=1).double()
    found = certify(energy, data, drift=0.1)
    assert found.tracking is None
    assert "no bound on the distance is proved" in str(found)
    certified = certify(energy, data, drift=0.1, rule="gradient", step="certified")
    assert certified.tracking > certified.constants["largest_entry"]
    assert "says nothing about the answer" in certified.reason
    with pytest.raises(ConfigError, match="drift=-1"):
        certify(energy, data, drift=-1)


class Pair(Affine):
    """h_i = κ h_j + b_i for two neighbours, whose modulus is known."""

    def modulus(self):
        return torch.full((1, 1), self.kappa, dtype=torch.float64)

    def weights(self):
        return torch.ones(2, dtype=torch.float64)


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_the_bound_of_contractions_is_attained_where_all_packets_are_late(delay):
    """Two nodes that update at every tick from packets that are all D ticks old."""
    graph, one = (
        Graph.of(torch.tensor([[0, 1], [1, 0]]), 2),
        torch.ones(1, 1, 2, dtype=torch.float64),
    )
    sent = [0.0 * one] * (delay + 1)
    for t in range(400):
        problem = Pair(graph, one[..., :1], 0.01 * t * one, one[0, 0], kappa=0.8)
        away = float((sent[-1] - problem.answer()).abs().max())  # before the updates of this tick
        sent.append(
            problem.update(sent[-1], graph.everyone.current(sent[-1 - delay]), graph.everyone)
        )
    proved = certify_fixed_point(problem, Settings(1, delay), problem.answer, drift=0.01 / 0.2)
    assert away == pytest.approx(proved.tracking, rel=1e-6)
