"""Trust: lost to what diverges, kept by what converges, and won back."""

import pytest
import torch

from hogwild.graph import Graph
from hogwild_node.rules.safeguard import FLOOR, MARGIN, STRIKES, WINDOW, Trust

ALONE = Graph.of(torch.zeros(2, 0, dtype=torch.long), 2)  # two nodes


def watched(moves, noise=0.0, trust=None, size=1.0):
    """What is left of the two nodes' trust after these moves of the first; the second stands."""
    trust = trust or Trust(torch.zeros(1, 1, 2, dtype=torch.float64))
    for move in moves:
        seen = torch.tensor([[move, 0.0]], dtype=torch.float64)
        sizes = torch.full_like(seen, size)
        trust.watch(seen.unsqueeze(1), sizes, torch.full_like(seen, noise), ALONE.everyone)
    return trust


def growing(windows):
    return [(1.1 * MARGIN) ** (i // WINDOW) for i in range(windows * WINDOW)]


def falling(start):
    while True:
        yield start
        start *= 0.999


@pytest.mark.parametrize("rate", [0.5, 0.999])
def test_what_converges_is_trusted(rate):
    assert watched([rate**i for i in range(300)]).share.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("rate", [0.99, 0.9999])
def test_what_converges_unevenly_is_trusted(rate):
    rng = torch.Generator().manual_seed(0)
    uneven = 0.8 + 0.2 * torch.rand(1500, generator=rng, dtype=torch.float64)
    assert watched([rate**i * float(u) for i, u in enumerate(uneven)]).share.tolist() == [
        [1.0, 1.0]
    ]


def test_trust_in_growing_moves_falls_to_its_floor():
    # The first window has nothing to be compared with.
    assert watched(growing(STRIKES)).share.tolist() == [[1.0, 1.0]]
    assert watched(growing(STRIKES + 2)).share.tolist() == [[0.5, 1.0]]
    assert watched(growing(100 * STRIKES)).share.tolist() == [[FLOOR, 1.0]]


def test_growth_below_rounding_does_not_count():
    assert watched(growing(20), noise=1e3).share.tolist() == [[1.0, 1.0]]


def test_nan_moves_lose_trust_and_the_next_move_does_not():
    assert float(watched([float("nan")] * 10 * WINDOW).share[0, 0]) < 1.0
    gaps = [float("nan") if i % (2 * WINDOW) == 0 else 0.9**i for i in range(300)]
    assert watched(gaps).share.tolist() == [[1.0, 1.0]]


def test_trust_is_won_back_and_each_failure_makes_that_longer():
    def needed(trust):
        before, count = float(trust.share[0, 0]), 0
        moves = falling(1e6)
        while float(trust.share[0, 0]) == before:
            watched([next(moves)], trust=trust)
            count += 1
        assert float(trust.share[0, 0]) == 2 * before
        return count

    once = watched(growing(STRIKES + 2))
    again = watched(growing(3 * (STRIKES + 2)))
    assert float(again.share[0, 0]) < float(once.share[0, 0]) < 1.0
    assert needed(once) < needed(again)
    # A node that was at its wits' end for long is not given up.
    assert needed(watched(growing(500))) < 1000


def test_divergence_after_long_convergence_loses_trust():
    """What was gained in good times is soon spent."""
    calm = watched([0.99**i for i in range(3000)])
    assert watched(growing(3 * STRIKES + 2), trust=calm).share[0, 0] < 1.0


def test_a_node_that_starts_again_trusts_again():
    trust = watched(growing(100))
    trust.forget(torch.tensor([0]))
    assert trust.share.tolist() == [[1.0, 1.0]]
    assert watched(growing(STRIKES), trust=trust).share.tolist() == [[1.0, 1.0]]


def swinging(count, rate=1.0):
    return [(-1) ** i * rate**i for i in range(count)]


def test_a_limit_cycle_of_constant_amplitude_loses_trust():
    """It never grows, so only its turns tell."""
    assert watched(swinging(STRIKES)).share.tolist() == [[1.0, 1.0]]
    assert watched(swinging(STRIKES + 1)).share.tolist() == [[0.5, 1.0]]
    assert watched(swinging(20 * STRIKES)).share.tolist() == [[FLOOR, 1.0]]


@pytest.mark.parametrize(
    ("moves", "size"),
    [
        (swinging(300, 0.6), 1.0),  # every turn is much shorter than the last
        (swinging(300), 10.0),  # it trembles, and the embedding is far larger
        ([1.0] * 300, 1.0),  # it goes on and on in one direction
    ],
)
def test_other_moves_do_not_count_as_turns(moves, size):
    assert watched(moves, size=size).share.tolist() == [[1.0, 1.0]]


def test_a_random_walk_loses_trust():
    """Its moves neither grow nor do all of them turn."""
    rng = torch.Generator().manual_seed(0)
    places = torch.randn(200, generator=rng, dtype=torch.float64).exp()
    moves = (places[1:] - places[:-1]).tolist()
    assert float(watched(moves).share[0, 0]) == FLOOR
