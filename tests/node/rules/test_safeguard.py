"""The safeguard of messages: trust is lost to what diverges and won back, and nodes that messages
led far off go home, together, and try again."""

import itertools

import pytest
import torch
from frustrated import Frustrated, complete
from torch_geometric.data import Data

from hogwild import EnergyGNN, simulate
from hogwild.analysis.echoes import Echoes
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import message_rule
from hogwild.testing.problems import Quadratic, random_graph
from hogwild_node.rules.safeguard import FLOOR, LEASH, MARGIN, REST, STRIKES, WINDOW, Retreat, Trust

# -- trust -----------------------------------------------------------------------------------------

ALONE = Graph.of(torch.zeros(2, 0, dtype=torch.long), 2)  # two nodes


def watched(moves, noise=0.0, size=1.0, trust=None):
    """The trust of two nodes after these moves of the first; the second stands."""
    trust = trust or Trust(torch.zeros(1, 1, 2, dtype=torch.float64))
    for move in moves:
        seen = torch.tensor([[move, 0.0]], dtype=torch.float64)
        sizes = torch.full_like(seen, size)
        trust.watch(seen.unsqueeze(1), sizes, torch.full_like(seen, noise), ALONE.everyone)
    return trust


def growing(windows):
    return [(1.1 * MARGIN) ** (i // WINDOW) for i in range(windows * WINDOW)]


def shrinking(rate, count=300):
    return [rate**i for i in range(count)]


def swinging(count, rate=1.0):
    return [(-1) ** i * rate**i for i in range(count)]


RNG = torch.Generator().manual_seed(0)
UNEVEN = (0.8 + 0.2 * torch.rand(1500, generator=RNG, dtype=torch.float64)).tolist()
WALK = torch.randn(200, generator=RNG, dtype=torch.float64).exp().diff().tolist()
MOVES = {
    "it converges fast": (shrinking(0.5), {}, 1.0),
    "it converges slowly": (shrinking(0.999), {}, 1.0),
    "it converges unevenly": ([0.99**i * u for i, u in enumerate(UNEVEN)], {}, 1.0),
    "slowly and unevenly": ([0.9999**i * u for i, u in enumerate(UNEVEN)], {}, 1.0),
    "some moves are NaN": (
        [float("nan") if i % (2 * WINDOW) == 0 else 0.9**i for i in range(300)], {}, 1.0,
    ),
    # The first window has nothing to be compared with.
    "it begins to grow": (growing(STRIKES), {}, 1.0),
    "it grows": (growing(STRIKES + 2), {}, 0.5),
    "it grows for long": (growing(100 * STRIKES), {}, FLOOR),
    "it grows below rounding": (growing(20), {"noise": 1e3}, 1.0),
    # A limit cycle never grows, so only its turns tell.
    "it begins to swing": (swinging(STRIKES), {}, 1.0),
    "it swings": (swinging(STRIKES + 1), {}, 0.5),
    "it swings for long": (swinging(20 * STRIKES), {}, FLOOR),
    "every turn is much shorter": (swinging(300, 0.6), {}, 1.0),
    "it trembles, and is far larger": (swinging(300), {"size": 10.0}, 1.0),
    "it goes on in one direction": ([1.0] * 300, {}, 1.0),
    "a random walk": (WALK, {}, FLOOR),
}  # fmt: skip


@pytest.mark.parametrize(("moves", "options", "share"), MOVES.values(), ids=MOVES)
def test_trust_after_moves(moves, options, share):
    assert watched(moves, **options).share.tolist() == [[share, 1.0]]


def test_trust_is_won_back_and_each_failure_makes_that_longer():
    def needed(trust):
        before = float(trust.share[0, 0])
        for count, move in enumerate(1e6 * 0.999**i for i in itertools.count()):
            if float(trust.share[0, 0]) != before:
                assert float(trust.share[0, 0]) == 2 * before
                return count
            watched([move], trust=trust)

    once, again = watched(growing(STRIKES + 2)), watched(growing(3 * (STRIKES + 2)))
    assert float(again.share[0, 0]) < float(once.share[0, 0]) < 1.0
    assert needed(once) < needed(again)
    # A node that was at its wits' end for long is not given up.
    assert needed(watched(growing(500))) < 1000


def test_trust_is_lost_after_good_times_and_anew_after_a_restart():
    assert float(watched([float("nan")] * 10 * WINDOW).share[0, 0]) < 1.0
    calm = watched(shrinking(0.99, 3000))
    assert watched(growing(3 * STRIKES + 2), trust=calm).share[0, 0] < 1.0
    trust = watched(growing(100))
    trust.forget(torch.tensor([0]))
    assert trust.share.tolist() == [[1.0, 1.0]]
    assert watched(growing(STRIKES), trust=trust).share.tolist() == [[1.0, 1.0]]


# -- retreat ---------------------------------------------------------------------------------------

PATH = Graph.of(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)


def everybody(*names):
    return torch.tensor([[i in names for i in range(3)]])


@pytest.mark.parametrize(("stagger", "delay"), [pytest.param(1, 0, marks=pytest.mark.slow), (5, 2)])
def test_badly_scaled_energies_stay_bounded(stagger, delay):
    """Features a thousand times too large: without retreats, 1e5 times the answer and more. Which
    tick brings the nodes back depends on rounding; they are back by tick 200."""
    torch.manual_seed(0)
    graph = random_graph([5], seed=0, extra=0.7)
    x = 1000.0 * torch.randn(5, 3, dtype=torch.float64)
    data = Data(x=x, edge_index=torch.stack([graph.src, graph.dst]))
    model = EnergyGNN(3, out_channels=2, replicas=2, on_failure="ignore").double()
    run = simulate(
        model, data, rule="messages", stagger=stagger, delay=delay, ticks=250, tol=None,
        history=list(range(200, 250, 5)),
    )  # fmt: skip
    assert run.history is not None
    assert float(run.history.max()) < 3.0


def test_half_of_a_rest_is_waiting_and_rests_double():
    h = torch.zeros(1, 1, 3)
    retreat, at = Retreat(h, PATH.everyone), PATH.everyone
    for times in (1, 2, 3):
        stays, rests = retreat.count(everybody(1), at), 0
        assert stays.tolist() == everybody(1).tolist()
        waited = 0
        while bool(retreat.resting(at).any()):
            assert retreat.resting(at).tolist() == everybody(1).tolist()
            waited += int(stays.sum())
            rests += 1
            stays = retreat.count(everybody(), at)
        assert (rests, waited) == (REST * 2**times, REST * 2**times / 2)


def test_a_silent_neighbour_is_reported_once():
    retreat, at = Retreat(torch.zeros(1, 1, 3), PATH.everyone), PATH.everyone
    messages = torch.ones(1, 2, 4)
    assert not bool(retreat.called(messages, at).any())
    messages[..., PATH.src == 0] = 0.0
    assert retreat.called(messages, at).tolist() == everybody(1).tolist()
    assert not bool(retreat.called(messages, at).any())


def test_nodes_may_go_anywhere_before_their_first_retreat():
    retreat, at = Retreat(torch.ones(1, 1, 3), PATH.everyone), PATH.everyone
    far = torch.full((1, 1, 3), 2 * LEASH)
    assert not bool(retreat.beyond(far, at).any())
    retreat.count(everybody(2), at)
    assert retreat.beyond(far, at).tolist() == everybody(2).tolist()
    assert not bool(retreat.beyond(far / 4, at).any())
    retreat.forget(torch.tensor([2]))
    assert not bool(retreat.beyond(far, at).any())


def test_one_that_is_lost_calls_all_and_the_answer_is_the_same():
    graph = random_graph([9], seed=3, extra=0.3)
    problem = Quadratic.random(graph)
    answer, rule = problem.answer(), message_rule(problem)
    simulation = Simulation(rule, Schedule(graph), problem.start())
    for _ in range(10):
        simulation.step()
    rule.trust.share[:, 0], rule.trust.turns[:, 0] = 0.5, 10.0
    for _ in range(40):
        simulation.step()
    assert bool((rule.retreat.times > 0.0).all())
    for _ in range(1500):
        simulation.step()
        far = float((simulation.h - answer).abs().max() / answer.abs().max())
        if far < 1e-6 and not bool(rule.retreat.resting(graph.everyone).any()):
            break
    assert not bool(rule.retreat.resting(graph.everyone).any())
    assert far < 1e-6


# -- messages that diverge without a safeguard ---------------------------------------------------

V = torch.tensor(
    [[-1.0, 1, 1, 1], [-1, -1, 1, 1], [-1, -1, 1, -1], [-1, 1, -1, -1]], dtype=torch.float64
)


def problem_of(v=V, epsilon=0.005):
    b = torch.tensor([[[1.0, -0.5, 2.0, 0.3]]], dtype=torch.float64)
    return Frustrated(complete(4), v, b, epsilon)


class Unsafe(Frustrated):
    """The same energies without a safeguard of the messages."""

    @property
    def node(self):
        found = super().node
        found.dominated = True  # which is not true
        return found


def follow(rule, problem, ticks, stagger=1, delay=0):
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=0)
    simulation = Simulation(rule, schedule, problem.start())
    answer, far = problem.answer(), []
    for _ in range(ticks):
        simulation.step()
        far.append(float((simulation.h - answer).abs().max() / answer.abs().max()))
    return far


def test_messages_without_a_safeguard_diverge_on_a_frustrated_cycle():
    """A counterexample: strongly convex, quadratic, four nodes, all updating together."""
    problem = problem_of()
    assert Echoes(problem, problem.answer()).echo().radius >= 1.0
    unsafe = Unsafe(problem.graph, problem.v, problem.b, problem.epsilon)
    far = follow(message_rule(unsafe), unsafe, 200)
    assert far[-1] > 1e2
    assert far[-1] > far[100]
    assert min(far) > 1e-2


@pytest.mark.slow
def test_the_safeguard_brings_these_messages_home():
    """Measured, not proved."""
    problem = problem_of()
    far = follow(message_rule(problem), problem, 500)
    assert max(far) > 100.0
    assert far[-1] < 1e-6
