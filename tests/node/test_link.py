"""Links between two agents: nothing that happens to either of them ends a link for good."""

import itertools
import struct
from collections import Counter, deque

import numpy as np
import pytest
import torch
from c_nodes import CC, CAgent
from helpers import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_swarm import Swarm, sealed
from node.test_c99_agent import Mixed

from hogwild import GSDGNN, EnergyGNN, Inputs
from hogwild_node.agent import REFRESH, State
from hogwild_node.packets import DATA, HELLO, U32

IN_C = [set(), *(pytest.param({*c}, marks=pytest.mark.skipif(CC is None, reason="no C compiler"))
                 for c in ((1,), (0, 1)))]  # fmt: skip
KINDS = pytest.mark.parametrize("in_c", IN_C, ids=["python", "mixed", "c"])
LEASE = 2.0


def two(in_c=frozenset(), seconds=4.0, **options):
    """Two agents after some time; ``said`` has the last packets from one to the other."""
    options = {"lease": LEASE, "rule": "gradient"} | options
    given = EnergyGNN(3, out_channels=2, beta=1.0), chain(2), 2
    swarm = Mixed(*given, in_c, **options) if in_c else Swarm(*given, **options)
    swarm.said, swarm.sent, post = {}, Counter(), swarm.network.post

    def noted(sender, to, raw):
        swarm.said[int(sender), raw[1]] = raw
        swarm.sent[int(sender), raw[1]] += 1
        post(sender, to, raw)

    swarm.network.post = noted
    swarm.run(seconds)
    return swarm


def moves(swarm):
    """Both agents get other features."""
    for i, agent in swarm.agents.items():
        swarm.x[i] = swarm.x[i].roll(1)
        agent.set_features(swarm.x[i].numpy())


def comes_right(swarm, what, seconds=30.0):
    """Soon all agents are linked and right."""
    end = swarm.network.now + seconds
    with torch.no_grad():
        exact = swarm.whole.embed(Inputs(swarm.x, swarm.edge_index)).value.numpy()

    def right():
        gaps = [np.abs(agent.h.ravel() - exact[i]).max() for i, agent in swarm.agents.items()]
        linked = all(agent.members for agent in swarm.agents.values())
        return linked and max(gaps) < 1e-3 * np.abs(exact).max()

    while not right():
        assert swarm.network.now < end, what
        swarm.run(0.5)


def forged(swarm, i, kind, **fields):
    """Somebody speaks to agent i as its neighbour: its last packet, with other fields."""
    raw = swarm.said[1 - i, kind]
    places = {
        "incarnation": (8, "<I"), "sequence": (12, "<I"), "to": (16, "<I"), "revision": (20, "<H"),
        "known": (22, "<H"), "calm": (32, "<f"), "feature": (48, "<d"),
    }  # fmt: skip
    for name, change in fields.items():
        place, form = places[name]
        (value,) = struct.unpack_from(form, raw, place)
        value = (
            change
            if name in ("to", "calm", "feature")
            else (value + change) % 256 ** struct.calcsize(form)
        )
        raw = raw[:place] + struct.pack(form, value) + raw[place + struct.calcsize(form) :]
    swarm.agents[i]._receive(str(1 - i), sealed(raw), swarm.network.now)


def restarts(swarm, i):
    swarm.agents.pop(i).transport.close()
    swarm.agents[i] = swarm.start(i)


def stalls(swarm, *who):
    """Agents take no turns for longer than the lease."""
    gone = {i: swarm.agents.pop(i) for i in who}
    if swarm.agents:
        swarm.run(1.25 * LEASE if gone else 0.0)
    else:
        swarm.network.now += 1.25 * LEASE
    swarm.agents |= gone


HISTORIES = {
    "nothing": lambda swarm, i: None,
    "it restarts": restarts,
    "a hello of nobody": lambda swarm, i: forged(swarm, i, HELLO, incarnation=5),
    "an old hello": lambda swarm, i: forged(swarm, i, HELLO, revision=-1, feature=9.0),
    "a hello far ahead": lambda swarm, i: forged(swarm, i, HELLO, revision=30_000, feature=9.0),
    "a hello half around": lambda swarm, i: forged(swarm, i, HELLO, revision=32_768, feature=9.0),
    "the next hello": lambda swarm, i: forged(swarm, i, HELLO, revision=1, feature=9.0),
    "the same hello": lambda swarm, i: forged(swarm, i, HELLO, feature=9.0),
    "data far ahead": lambda swarm, i: forged(swarm, i, DATA, sequence=2**31 - 5),
    "it is deaf": lambda swarm, i: forged(swarm, i, DATA, sequence=2**31 - 5, to=0),
    "it knows much": lambda swarm, i: forged(swarm, i, DATA, sequence=1, known=20_000),
}


@KINDS
def test_links_recover_from_all_pairs_of_histories(in_c):
    """Something happens to each of the two, and none, one or both of them stall. Soon after, both
    know the other's features, follow them when they change, and are right."""
    swarm, who_stalls = two(in_c), itertools.cycle([(), (0,), (0, 1)])
    for both in itertools.product(HISTORIES, repeat=2):
        for i, what in enumerate(both):
            HISTORIES[what](swarm, i)
        stalls(swarm, *next(who_stalls))
        swarm.run(0.5)
        comes_right(swarm, both)
        before = swarm.sent.copy()
        moves(swarm)
        swarm.run(3.0)  # about ten turns a second
        comes_right(swarm, both)
        assert all(swarm.sent[i, DATA] > before[i, DATA] + 10 for i in (0, 1)), both


PLACES = {
    "incarnation": [None, 0, 1],
    "revision": [0, 1, 300, 32_768, 40_000],
    "mutual": [False, True],
    "known": [0, 1, 7, 32_768, 40_000],
    "sequence": [None, 0, 2**31, 2**32 - 1],
    "last": [-1e9, -3.0, 0.0],
    "heard": [-1e9, -3.0, 0.0],
    "retired": [0, 1, 2],
    "told": [0, 1],
}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), rule=st.sampled_from(["messages", "balls"]))
def test_links_recover_from_all_pairs_of_states(data, rule):
    """Whatever the two know of each other, true or not."""
    swarm = two(rule=rule)
    for i, agent in swarm.agents.items():
        link, other = agent.links[str(1 - i)], swarm.agents[1 - i].incarnation
        drawn = {name: data.draw(st.sampled_from(values), name) for name, values in PLACES.items()}
        drawn["last"] += swarm.network.now
        drawn["heard"] += swarm.network.now
        if drawn["incarnation"] is not None:
            drawn["incarnation"] = (other + drawn["incarnation"] - 1) % (U32 - 1) + 1
        else:
            drawn["features"] = None
        drawn["retired"] = deque([other, other ^ 1][: drawn["retired"]], 16)
        for name, value in drawn.items():
            setattr(link, name, value)
    swarm.run(8.0)
    assert all(agent.members == [str(1 - i)] for i, agent in swarm.agents.items())
    moves(swarm)
    swarm.run(0.5)
    comes_right(swarm, rule)


@pytest.mark.parametrize("rule", ["messages", "balls"])
@pytest.mark.parametrize("seed", range(4))
def test_swarms_whose_members_stall_end_at_the_exact_answer(rule, seed):
    swarm = Swarm(GSDGNN(3, out_channels=2), chain(4), 4, rule=rule, seed=seed, lease=LEASE)
    first = swarm.agents.pop(0)
    first.turn()  # one turn, and then nothing for longer than the lease
    swarm.run(1.25 * LEASE)
    swarm.agents[0] = first
    for _ in range(6):
        swarm.run(float(swarm.random.uniform(0.0, 1.0)))
        stalls(swarm, *swarm.random.choice(4, swarm.random.integers(1, 4), replace=False).tolist())
    swarm.run(12.0)
    assert swarm.error() < 1e-6
    readings = [agent.read() for agent in swarm.agents.values()]
    assert all(r.state is State.SETTLED and not r.silent for r in readings)


@KINDS
@pytest.mark.parametrize(
    ("delay", "loss"), [((0.0, 0.0), 0.0), ((0.02, 0.2), 0.3), ((0.6, 0.6), 0.0)]
)
def test_features_that_change_at_every_turn(in_c, delay, loss):
    """Fifty times a second, from the first turn on, also over links that are much slower: the
    agents link and stay linked, and where nothing is lost they know the newest features."""
    swarm = two(in_c, seconds=0.0, delay=delay, loss=loss)
    for turn in range(400):
        swarm.network.now += 0.02
        moves(swarm)
        told = swarm.sent.copy()
        for agent in swarm.agents.values():
            agent.turn()
        assert all(swarm.sent[i, HELLO] == told[i, HELLO] + 1 for i in (0, 1))
        if turn > 150:
            assert all(agent.members for agent in swarm.agents.values()), turn
        if turn > 150 and not delay[1] and 1 not in in_c:
            np.testing.assert_array_equal(swarm.agents[1].links["0"].features, swarm.x[0])
    swarm.network.loss = 0.0
    comes_right(swarm, delay)


@KINDS
def test_flipped_bits_never_enter(in_c):
    """Two in five packets have a wrong bit or two."""
    swarm = two(in_c, seconds=0.0)
    post, flips = swarm.network.post, np.random.default_rng(0)

    def spoiled(sender, to, raw):
        if flips.random() < 0.4:
            raw = bytearray(raw)
            for place in flips.integers(0, 8 * len(raw), flips.integers(1, 3)):
                raw[place // 8] ^= 1 << place % 8
        post(sender, to, bytes(raw))

    swarm.network.post = spoiled
    swarm.run(60.0)
    assert swarm.error() < 1e-6
    for i, agent in swarm.agents.items():
        if i not in in_c:
            assert agent.counts["dropped: damaged"] > 20
            np.testing.assert_array_equal(agent.links[str(1 - i)].features, swarm.x[1 - i])
            assert agent.read().state is State.SETTLED


@KINDS
def test_hellos_are_repeated_and_one_revision_has_one_content(in_c):
    swarm = two(in_c, 12.0)
    for i, agent in swarm.agents.items():

        def dropped(i=i, agent=agent):
            return agent.dropped if i in in_c else agent.counts["dropped: revision"]

        before = dropped()
        forged(swarm, i, HELLO)
        assert dropped() == before
        forged(swarm, i, HELLO, feature=9.0)
        assert dropped() == before + 1
    sent = swarm.sent.copy()
    swarm.run(4.0 * REFRESH)
    assert all(3 <= swarm.sent[i, HELLO] - sent[i, HELLO] <= 12 for i in (0, 1))


def settled(agent):
    return agent.settled if isinstance(agent, CAgent) else agent.read().state is State.SETTLED


@KINDS
@pytest.mark.parametrize(
    ("lost", "seconds"), [((HELLO, DATA), 0.8 * LEASE), ((HELLO,), 12.0)],
    ids=["everything", "hellos"],
)  # fmt: skip
def test_nobody_settles_without_news_of_new_features(in_c, lost, seconds):
    """The link of two settled agents loses packets, and one of them has other features: from half
    of the time to settle on, none claims the wrong answer. The link stays."""
    swarm = two(in_c, 20.0, delay=(0.0, 0.02), settle_after=1.0)
    assert all(map(settled, swarm.agents.values()))
    post, begun = swarm.network.post, swarm.network.now

    def lossy(sender, to, raw):
        if raw[1] not in lost:
            post(sender, to, raw)

    swarm.network.post = lossy
    swarm.x[0] += 1.0
    swarm.agents[0].set_features(swarm.x[0].numpy())
    while swarm.network.now < begun + seconds:
        swarm.run(0.1)
        if swarm.network.now > begun + 0.7:
            assert not any(map(settled, swarm.agents.values()))
    assert all(agent.members for agent in swarm.agents.values())
    swarm.network.post = post
    comes_right(swarm, lost)
    swarm.run(8.0)
    assert all(map(settled, swarm.agents.values()))


@KINDS
def test_the_same_features_in_a_lost_hello_disturb_nobody(in_c):
    swarm = two(in_c, 20.0, delay=(0.0, 0.02))
    post, lost = swarm.network.post, Counter()

    def lossy(sender, to, raw):
        lost[int(sender)] += raw[1] == HELLO
        if raw[1] != HELLO:
            post(sender, to, raw)

    swarm.network.post = lossy
    for _ in range(30):
        swarm.run(0.1 * REFRESH)
        assert all(map(settled, swarm.agents.values()))
    assert lost[0] > 2
    assert lost[1] > 2


@KINDS
def test_calm_of_a_silent_neighbour_counts_for_a_quarter_of_the_time_to_settle(in_c):
    swarm = two(in_c, 12.0, delay=(0.0, 0.0))
    one, settle_after = swarm.agents[0], 1.0 if 0 in in_c else 2.0
    swarm.agents.pop(1)
    forged(swarm, 0, DATA, sequence=1, calm=0.125)
    heard = swarm.network.now
    (made,) = struct.unpack_from("<d", swarm.said[1, DATA], 24)
    for wait in (0.01, 0.05, 0.1, 0.4, 0.9):
        swarm.network.now += wait
        one.turn()
        age, silent = swarm.network.now - made, swarm.network.now - heard
        calm = 0.125 + min(age, settle_after / 4) if silent <= settle_after / 2 else 0.0
        assert one.calm == pytest.approx(calm, abs=1e-6)
    assert silent > settle_after / 2
