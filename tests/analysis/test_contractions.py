"""Contractions in a maximum norm: fixed points, answers that move, and solves of balls."""

import math

import pytest
import torch
from certified import data
from helpers import DOUBLE
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from motion import ring
from torch_geometric.data import Data

import hogwild
from experiments.maximum import MaxGNN
from hogwild import EIGNN, IGNN, Inputs, Scenario, certify, track
from hogwild.analysis.contractions import certify_fixed_point, follow
from hogwild.asynchrony.impairments import BernoulliLoss, EventTriggered, Quantisation
from hogwild.errors import ConfigError
from hogwild.executors.simulation import Settings
from hogwild.graph import Graph
from hogwild.models.contraction import Adjacency, Contraction
from hogwild.nn.activations import nonexpansive
from hogwild.ops import gather
from hogwild.testing.problems import Affine, random_graph

# -- fixed points ----------------------------------------------------------------------------------


def test_a_euclidean_contraction_may_diverge():
    """Why the norm matters: the counterexample of the documentation."""
    cos, sin = math.cos(2.25), math.sin(2.25)
    f = 0.98 * torch.tensor([[cos, -sin], [sin, cos]], **DOUBLE)
    assert float(torch.linalg.matrix_norm(f, 2)) < 1.0
    first, second = torch.eye(2, **DOUBLE), torch.eye(2, **DOUBLE)
    first[0], second[1] = f[0], f[1]  # one node updates, then the other
    radius = float(torch.linalg.eigvals(second @ first).abs().max())
    assert radius == pytest.approx(1.57, abs=0.01)
    assert float(torch.linalg.eigvals(f.abs()).abs().max()) > 1.0  # the test that sees it


def test_the_rate_of_a_contraction_is_its_worst_modulus_every_s_plus_d_ticks():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2, replicas=3).double(), data()
    found = certify(model, inputs, 4, 3)
    moduli = model.problem(Inputs.of(inputs)).detach().modulus()
    assert found.rate == found.constants["modulus"] == float(moduli.max()) > float(moduli.min())
    assert found.period == 7
    assert found.updates == pytest.approx(math.log(1e-6) / math.log(found.rate) * 7 / 2.5)


def test_the_bound_of_a_contraction_is_attained():
    """Two nodes that hear nothing but each other, h = κ·(other), and packets wrong by δ: an error
    of κδ / (1 - κ), which the bound must not miss and cannot improve on."""
    graph, one, zero = random_graph([2]), torch.ones(2, **DOUBLE), torch.zeros(2, **DOUBLE)
    kappa = torch.full((1, 1, 1), 0.8, **DOUBLE)
    problem = Contraction(
        graph, Adjacency(one, zero, one), kappa, zero[None, None], nonexpansive("identity")
    )
    assert float(problem.displacement(0.1)) == pytest.approx(0.8 * 0.1 / 0.2)
    h = zero[None, None]
    for _ in range(200):
        h = problem.node.update(h, gather(h, graph.src) + 0.1, graph.everyone)
    assert float(h.max()) == pytest.approx(float(problem.displacement(0.1)))


def test_maxima_stay_near_while_packet_errors_are_below_the_decrements():
    """As the table of the documentation has it."""
    torch.manual_seed(0)
    model, inputs = MaxGNN(3, out_channels=2, least=0.1).double(), data()
    least = float(model.problem(Inputs.of(inputs)).decrement.detach().min())
    found = certify(model, inputs, impairments=EventTriggered(0.9 * least))
    assert 0.0 < found.near < math.inf
    found = certify(model, inputs, impairments=EventTriggered(1.1 * least))
    assert found.near is None
    assert "need not end at the synchronous answer; no bound" in found.reason
    assert "less than the decrease along every edge" in found.reason


# -- answers that move -----------------------------------------------------------------------------

SETTLED, LENGTH = 60, 80


def drifting(seed, size, jumps, every):
    """A ring whose features stand still for some time and then move every so many ticks: by a
    random walk, or there and back."""
    random = torch.Generator().manual_seed(seed)
    whole = ring(list(range(5)), seed=seed, chords=[(0, 2)])
    frames, away = [whole], torch.zeros_like(whole.x)
    times = list(range(SETTLED, SETTLED + LENGTH, every))
    for _ in times:
        away = (-away if jumps else away) + size * torch.randn(
            away.shape, generator=random, **DOUBLE
        )
        frame = whole.clone()
        frame.x = whole.x + away
        frames.append(frame)
    return whole, Scenario(frames, [0, *times], length=SETTLED + LENGTH)


@settings(max_examples=16, deadline=None)
@given(
    kind=st.sampled_from([IGNN, EIGNN]),
    seed=st.integers(0, 10_000),
    size=st.floats(1e-3, 0.3),
    jumps=st.booleans(),
    stagger=st.integers(1, 5),
    delay=st.integers(0, 4),
    every=st.sampled_from([1, 2, 5, 20]),
)
def test_contractions_follow_within_the_bound(kind, seed, size, jumps, stagger, delay, every):
    torch.manual_seed(seed)
    model = kind(3, out_channels=1, kappa=0.5) if kind is IGNN else kind(3, out_channels=1)
    model = model.double()
    whole, scenario = drifting(seed, size, jumps, every)
    seen = track(model, scenario, stagger=stagger, delay=delay, seed=seed)
    proved = certify(model, whole, stagger, delay, drift=seen.drift)
    assume(seen.drift > 0.0)  # a ReLU may be off for every input: the answer then stays at zero
    kappa = proved.constants["modulus"]
    # The bound is on the end: what is left of the start shrinks by κ every S + D ticks. The ratio
    # of the norms in the proof can be read from the bound itself.
    ratio = proved.tracking * (1 - kappa) / (seen.drift * (stagger + kappa * delay))
    left = kappa ** (SETTLED // (stagger + delay) - 1) * float(seen.error[0].max())
    assert float(seen.error[SETTLED:].max()) <= proved.tracking + ratio * left
    assert proved.constants["drift"] == seen.drift


def pair(every, stagger, delay):
    """Two nodes with h_i = κ h_j + b_i, where b grows steadily."""
    torch.manual_seed(0)
    model = EIGNN(1, out_channels=1, hidden_channels=1).double()
    whole, frames = ring([0, 1], width=1), []
    for t in range(0, 400, every):
        frame = whole.clone()
        frame.x = torch.full((2, 1), 0.01 * t, **DOUBLE)
        frames.append(frame)
    scenario = Scenario(frames, list(range(0, 400, every)), length=400)
    seen = track(model, scenario, stagger=stagger, delay=delay)
    return seen, certify(model, whole, stagger, delay, drift=seen.drift)


@pytest.mark.parametrize("every", [1, 2, 5, 20])
def test_the_bound_of_contractions_is_too_large_by_a_known_factor(every):
    """A change is seen whole by a node that has no turn at once. So the bound is at most
    (S + κ D) / (1 − κ) times as large as the distance, however often changes come."""
    seen, proved = pair(every, 5, 2)
    kappa, away = proved.constants["modulus"], float(seen.error[200:].max())
    assert away <= proved.tracking <= 1.001 * (5 + kappa * 2) / (1 - kappa) * away


def test_the_bound_of_contractions_is_nearly_attained():
    """All updates are late alike."""
    seen, proved = pair(1, 1, 0)
    kappa = proved.constants["modulus"]
    # Every tick: e' = κ e + d, and the error is seen after the update: κ e + d − d.
    assert proved.tracking == pytest.approx(seen.drift / (1 - kappa), rel=1e-6)
    assert float(seen.error[-1].max()) == pytest.approx(kappa * proved.tracking, rel=1e-3)


def test_bounds_on_answers_that_move():
    """They are proportional to the drift; of energies none is proved."""
    whole, model = ring(list(range(5))), IGNN(3, out_channels=1).double()
    one, ten = (certify(model, whole, drift=d).tracking for d in (0.1, 1.0))
    assert ten == pytest.approx(10 * one)
    assert certify(model, whole, drift=0.0).tracking == 0.0
    assert certify(model, whole).tracking is None
    found = certify(hogwild.EnergyGNN(3, out_channels=1).double(), whole, drift=0.1)
    assert found.tracking is None
    assert "no bound on the distance is proved" in str(found)
    with pytest.raises(ConfigError, match="drift=-1"):
        certify(model, whole, drift=-1)


class Pair(Affine):
    """h_i = κ h_j + b_i for two neighbours, whose modulus is known."""

    def modulus(self):
        return torch.full((1, 1), self.kappa, **DOUBLE)

    def weights(self):
        return torch.ones(2, **DOUBLE)


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_the_bound_of_contractions_is_attained_where_all_packets_are_late(delay):
    """Two nodes that update at every tick from packets that are all D ticks old."""
    graph, one = Graph.of(torch.tensor([[0, 1], [1, 0]]), 2), torch.ones(1, 1, 2, **DOUBLE)
    sent = [0.0 * one] * (delay + 1)
    for t in range(400):
        problem = Pair(graph, one[..., :1], 0.01 * t * one, one[0, 0], kappa=0.8)
        away = float((sent[-1] - problem.answer()).abs().max())  # before the updates of this tick
        sent.append(
            problem.update(sent[-1], graph.everyone.current(sent[-1 - delay]), graph.everyone)
        )
    given_ = problem, Settings(1, delay), problem.answer
    proved = follow(certify_fixed_point(*given_), *given_, 0.01 / 0.2)
    assert away == pytest.approx(proved.tracking, rel=1e-6)


# -- balls -----------------------------------------------------------------------------------------

PATH = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])


def line():
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=PATH)


def balls(model, **options):
    torch.manual_seed(0)
    return certify(model(3, out_channels=1), line(), rule="balls", **options)


@pytest.mark.parametrize("model", [hogwild.EnergyGNN, hogwild.GSDGNN, IGNN])
def test_balls_that_reach_every_node_are_proved_and_in_time(model):
    for radius in (None, 4):
        found = balls(model, radius=radius, stagger=3, delay=2)
        assert found.guaranteed
        assert found.constants["hops"] == 4
        assert found.constants["ticks_to_whole"] == 4 * 5
    torch.manual_seed(0)
    options = {"rule": "balls", "stagger": 3, "delay": 2, "runs": 20, "ticks": 20, "tol": None}
    run = hogwild.simulate(model(3, out_channels=1), line(), **options)
    assert float(run.deviation.max()) < 1e-6


def test_balls_without_a_bound_on_losses_are_a_matter_of_time():
    found = balls(hogwild.EnergyGNN, impairments=BernoulliLoss(0.5))
    assert found.guaranteed
    assert "with that probability" in found.reason
    assert not balls(hogwild.EnergyGNN, impairments=BernoulliLoss(1.0)).guaranteed
    assert not balls(hogwild.EnergyGNN, impairments=Quantisation(0.1)).guaranteed


def test_smaller_balls_have_the_rate_of_the_dominance():
    wide = balls(hogwild.GSDGNN, radius=0)
    assert wide.guaranteed
    rho = wide.constants["dominance"]
    assert wide.rate == pytest.approx(rho)
    two = balls(hogwild.GSDGNN, radius=2, stagger=5, delay=2)
    assert two.rate == pytest.approx(rho**2)
    assert two.period == 4 * 7 + 5
    maps = balls(IGNN, radius=2)
    assert maps.rate == pytest.approx(maps.constants["modulus"] ** 3)
    assert maps.period == 3 * 7 + 5
    other = balls(hogwild.EnergyGNN, radius=1)
    assert not other.guaranteed
    assert "observed" in other.reason


def test_balls_on_directed_graphs_and_stacks_are_refused():
    one_way = Data(x=torch.randn(3, 3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    found = certify(IGNN(3, out_channels=1), one_way, rule="balls")
    assert not found.guaranteed
    assert "cannot run under this rule" in found.reason
    stack = hogwild.EnergyGNN(3, out_channels=1, num_layers=2)
    assert not certify(stack, line(), rule="balls").guaranteed
    with pytest.raises(ConfigError, match="whose problems move"):
        hogwild.simulate(stack, line(), rule="balls")
