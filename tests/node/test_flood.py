"""Reports that flood: what is lost is told again, damaged packets change nothing, memory is
bounded."""

import math
import random
import struct

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_swarm import sealed
from node.test_balls import states, swarm_of

from hogwild_node.agent import Edge, State
from hogwild_node.flood import (
    HOLD,
    MANY,
    PACKET,
    STRAYS,
    UNKNOWN,
    Flood,
    Peer,
    after,
)  # fmt: skip
from hogwild_node.packets import HEADER, U32, BadPacket
from hogwild_node.reports import (
    EMBEDDING,
    ENTRY,
    HEAD,
    LAST,
    PROFILE,
    Profile,
    read_embedding,
)

ENDLESS = struct.pack("<2d", 1.0, math.inf)
EVERYTHING = {"passed": lambda key, older: True, "told_by": lambda source: False, "head": 36}


class Bytes(Flood):
    """A flood whose packets travel as bytes."""

    def hear(self, peer, body, now, **options):
        return self.take(peer, self.parse(body), now, **options)

    def packets(self, peer, now, **options):
        return [packet.write() for packet in self.tell(peer, now, **options)]


def flood(name, incarnation=1, *, room=1000, useful=lambda key: True):
    return Bytes(
        name, incarnation, scope=0, room=room, read=lambda key, body: body, useful=useful
    )  # fmt: skip


def tell(one, other, now, **options):
    """What one sends to the other arrives."""
    for body in one.packets(other.name, now, **(EVERYTHING | options)):
        other.hear(one.name, body, now)


# -- reports ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), loss=st.sampled_from([0.0, 0.3, 0.7]), copies=st.floats(0.0, 0.5),
    sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=40),
    first=st.sampled_from([1, U32 - 9]),
)  # fmt: skip
def test_everybody_hears_everything(seed, loss, copies, sizes, first):
    """Three in a row, whose packets are lost, doubled and shuffled; reports change meanwhile."""
    draw = random.Random(seed)
    names = ["a", "b", "c"]
    all_of = {name: flood(name, first + i) for i, name in enumerate(names)}
    for kind, size in enumerate(sizes):
        all_of[draw.choice(names)].report(kind % 256, draw.randbytes(size), 0.0)
    travelling = []
    for turn in range(800):
        now = 0.1 * turn
        for name, near in (("a", "b"), ("b", "ac"), ("c", "b")):
            for other in near:
                for body in all_of[name].packets(other, now, **EVERYTHING):
                    for _ in range(1 + (draw.random() < copies)):
                        if draw.random() >= loss:
                            travelling.append((now + draw.uniform(0.0, 0.5), name, other, body))
        if turn < 20 and draw.random() < 0.3:
            all_of[draw.choice(names)].report(draw.randrange(9), draw.randbytes(30), now)
        for packet in [p for p in travelling if p[0] <= now]:
            travelling.remove(packet)
            all_of[packet[2]].hear(packet[1], packet[3], now)
        held = [{k: (w.version, w.body) for k, w in one.reports.items()} for one in all_of.values()]
        if turn > 20 and held[0] == held[1] == held[2]:
            quiet = all_of["b"].packets("a", now + 9.0, **EVERYTHING)
            if all(len(body) == HEAD.size for body in quiet):  # everything is confirmed, too
                return
    raise AssertionError("reports did not arrive in 80 seconds")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=60), st.sampled_from([1, U32 - 20]))
def test_confirmations_are_of_what_was_heard(numbers, first):
    """Numbers go around; those that are confirmed were heard, and the newest ones all are."""
    peer, other, heard = Peer(), Peer(), set()
    for step in numbers:
        number = (first + step) % U32
        if number == 0:
            continue
        peer.note(number)
        heard.add(step)
    if not heard:
        return
    other.sent = {(first + step) % U32: (0.0, [((0, str(step)), (1, 1))]) for step in range(81)}
    other.confirm(peer.newest, peer.before, 1.0)
    told = {int(name) for _, name in other.has}
    assert told <= heard
    assert (peer.newest - first) % U32 == max(told)
    if len(numbers) < STRAYS:  # fewer never make the newest number wrong
        assert max(told) == max(heard)
        assert told == {step for step in heard if step >= max(heard) - 32}


def test_packets_have_a_size_and_a_number():
    one, other = flood("a"), flood("b")
    for kind in range(100):
        one.report(kind, bytes(500), 0.0)
    bodies = one.packets("b", 0.0, **EVERYTHING)
    assert len(bodies) == MANY
    assert all(len(body) + 36 <= PACKET for body in bodies)
    assert len({HEAD.unpack_from(body)[0] for body in bodies}) == MANY
    now = 0.0
    while len(other.reports) < 100:
        now += 0.1
        tell(one, other, now)
        tell(other, one, now)
        assert now < 10.0
    one.report(200, bytes(5000), now)  # longer than a packet: it travels alone
    assert len(one.packets("b", now, **EVERYTHING)) == 1
    tell(one, other, now + 3.0)
    assert (200, "a") in other.reports


def test_unconfirmed_reports_fill_packets_that_go_anyway():
    one, other = flood("a"), flood("b")
    one.report(0, b"first", 0.0)
    tell(one, other, 0.0)
    tell(other, one, 0.5)  # the round trip takes half a second
    one.report(1, b"second", 1.0)
    sizes = [sum(map(len, one.packets("b", 1.0 + 0.1 * k, **EVERYTHING))) for k in range(3)]
    assert sizes[0] == sizes[1] == sizes[2] > HEAD.size
    tell(one, other, 1.4)
    tell(other, one, 1.5)
    assert [len(body) for body in one.packets("b", 1.6, **EVERYTHING)] == [HEAD.size]


def test_news_is_left_to_the_neighbour_that_told_it_but_not_for_long():
    one, other = flood("a"), flood("b")
    one.report(0, b"x", 0.0)
    tell(one, other, 0.0)
    by_a = {"told_by": lambda source: source == "a"}
    assert all(len(body) == HEAD.size for body in other.packets("c", 0.1, **EVERYTHING | by_a))
    late = other.packets("c", HOLD + 0.1, **EVERYTHING | by_a)
    assert any(len(body) > HEAD.size for body in late)
    assert any(len(body) > HEAD.size for body in other.packets("d", 0.1, **EVERYTHING))


@pytest.mark.parametrize("tells", [True, False])
def test_an_owner_counts_on_from_its_former_life(tells):
    """Also where its neighbour, which passes on only newer reports, found none for it before its
    new life spoke."""
    old, near, new = flood("a", 7), flood("b"), flood("a", 3)
    newer = {} if tells else {"passed": lambda key, older: older}
    for k in range(5):
        old.report(0, bytes([k]), 0.0)
    tell(old, near, 0.0)
    near.forget("a")
    if not tells:
        tell(new, near, 0.9)  # the new life has nothing to say yet
        tell(near, new, 1.0, **newer)
    new.report(0, b"new", 1.1)
    tell(new, near, 1.1)
    assert near.reports[0, "a"].body == bytes([4])
    tell(near, new, 1.2, **newer)
    tell(new, near, 1.3)
    assert near.reports[0, "a"].body == b"new"
    assert near.reports[0, "a"].version == (6, 3)


def test_the_last_count_ends_nobody():
    """Neighbour c claims to have heard an absurd version of the agent's own report."""
    one, other = flood("a", 5), flood("b", 9)
    one.report(0, b"mine", 0.0)
    forged = HEAD.pack(1, 0, 0, 0, 0) + ENTRY.pack(0, 1, LAST, 77, 1) + b"a" + b"?"
    one.hear("c", forged, 0.1)
    tell(one, other, 0.2)
    one.report(0, b"new", 0.3)
    tell(one, other, 0.4)
    assert other.reports[0, "a"].version == (LAST, 79)
    assert other.reports[0, "a"].body == b"new"
    assert after((LAST, U32 - 1), 5) == (LAST, U32 - 1)


def test_a_newcomer_is_told_other_reports_at_every_turn():
    """As long as no round trip is known, what is under way is not sent again at once."""
    one = flood("a")
    for kind in range(100):
        one.report(kind, bytes(1000), 0.0)
    first = one.packets("b", 0.0, **EVERYTHING)
    second = one.packets("b", 0.1, **EVERYTHING)
    assert len(first) == len(second) == MANY
    assert not {body[HEAD.size :] for body in first} & {body[HEAD.size :] for body in second}
    assert one.packets("b", UNKNOWN, **EVERYTHING)[0][HEAD.size :] == first[0][HEAD.size :]


def test_late_packets_do_not_tell_of_a_memory_that_was_cleared():
    """b deletes a report of no use and says so; an older packet of b arrives after that."""
    use = set("abc")
    one, other = flood("a"), flood("b", room=2, useful=lambda key: key[1] in use)
    one.report(0, b"x", 0.0)
    tell(one, other, 0.0)
    late = other.packets("a", 0.1, **EVERYTHING)  # confirms the report
    use.remove("a")
    third = flood("c")
    third.report(0, b"y", 0.0)
    fourth = flood("d")
    fourth.report(0, b"z", 0.0)
    use.add("d")
    tell(third, other, 0.1)
    tell(fourth, other, 0.1)
    assert set(other.reports) == {(0, "c"), (0, "d")}
    use.add("a")
    tell(other, one, 0.2)
    for body in late:
        one.hear("b", body, 0.3)
    assert (0, "a") not in one.peers["b"].has
    assert any(len(body) > HEAD.size for body in one.packets("b", 9.0, **EVERYTHING))


# -- damaged packets ------------------------------------------------------------------------------


def test_profiles_are_read_as_they_were_written():
    attr = np.array([0.5, -1.0])
    for edges, width in (
        ({}, None), ({"b": (1.0, None), "long-name.7": (1.0, None)}, None),
        ({"b": (0.25, None), "c": (1.0, None)}, None), ({"b": (1.0, attr), "c": (3.0, -attr)}, 2),
    ):  # fmt: skip
        profile = Profile(np.array([1.0, 1e-300, -3.0]), edges)
        found = Profile.read("a", profile.write(), 3, width)
        np.testing.assert_array_equal(found.features, profile.features)
        assert found.degree == profile.degree
        assert list(found.edges) == list(edges)
        for name, (weight, told) in edges.items():
            assert found.edges[name][0] == weight
            np.testing.assert_array_equal(found.edges[name][1], told)


@pytest.mark.parametrize(
    ("edges", "reports"),
    [
        ({"a": (1.0, None)}, "names"), ({"b/c": (1.0, None)}, "names"),
        ({"b": (-1.0, None)}, "numbers"), ({"b": (math.nan, None)}, "numbers"),
    ],
)  # fmt: skip
def test_profiles_that_no_agent_has_are_refused(edges, reports):
    raw = Profile(np.zeros(3), edges).write()
    with pytest.raises(BadPacket, match=reports):
        Profile.read("a", raw, 3, None)
    with pytest.raises(BadPacket, match="numbers"):
        Profile.read("a", Profile(np.array([0.0, math.inf, 0.0]), {}).write(), 3, None)
    for cut in (0, 5, 26):
        with pytest.raises(BadPacket, match="size"):
            Profile.read("a", Profile(np.zeros(3), {"b": (1.0, None)}).write()[:cut], 3, None)
    with pytest.raises(BadPacket, match="size"):
        read_embedding(bytes(7), np.dtype("<f4"), 2)


@pytest.fixture(scope="module")
def listener():
    """An agent in the middle of a chain, and one packet that it would take in."""
    swarm = swarm_of("edge", chain(4), 4, radius=1)
    swarm.run(6.0)
    agent, sender = swarm.agents[1], swarm.agents[2]
    sender.set_features([5.0, 6.0, 7.0])
    swarm.network.now += 5.0
    sender.turn()
    raw = [
        r.raw
        for r in swarm.network.ways["1"].arrived(swarm.network.now)
        if len(r.raw) > HEADER.size + HEAD.size + 20
    ]
    return agent, raw[-1]


def knowledge(agent):
    """Everything that a packet could change."""
    link, reports, peers = agent.links["2"], agent.work.flood.reports, agent.work.flood.peers
    return (
        link.incarnation, link.revision, link.sequence, link.sent, link.calm, link.heard,
        {key: (report.version, report.body) for key, report in reports.items()},
        {n: (dict(p.has), p.newest, p.before, p.memory, sorted(p.sent)) for n, p in peers.items()},
    )  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_damaged_packets_change_nothing(listener, data):
    """What is refused leaves no trace, and nothing that is not refused breaks the agent."""
    agent, whole = listener
    kind = data.draw(st.sampled_from(["cut", "longer", "flip", "noise"]))
    if kind == "cut":
        raw = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "longer":
        raw = whole + data.draw(st.binary(min_size=1, max_size=40))
    elif kind == "noise":
        raw = whole[: HEADER.size] + data.draw(st.binary(max_size=200))
    else:
        place = data.draw(st.integers(HEADER.size, len(whole) - 1))
        raw = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    raw = raw if data.draw(st.booleans()) else sealed(raw)
    before, dropped = knowledge(agent), agent.counts["dropped"]
    agent._receive("2", raw, agent.now)
    if agent.counts["dropped"] > dropped:
        assert knowledge(agent) == before
    elif kind == "cut":  # at the end of a report
        assert len(raw) >= HEADER.size + HEAD.size


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: b[:10], "size"),
        (lambda b: bytes(4) + b[4:], "numbers"),
        (lambda b: b[:14] + b"\7\0" + b[16:], "radius"),
        (lambda b: b + ENTRY.pack(PROFILE, 1, 1, 1, 9) + b"z", "size"),
        (lambda b: b + ENTRY.pack(PROFILE, 1, 0, 1, 0) + b"z", "numbers"),
        (lambda b: b + ENTRY.pack(PROFILE, 1, U32 - 1, 1, 0) + b"1", "numbers"),
        (lambda b: b + ENTRY.pack(9, 1, 1, 1, 0) + b"z", "kind"),
        (lambda b: b + ENTRY.pack(PROFILE, 2, 1, 1, 0) + b"z/", "names"),
        (lambda b: b + ENTRY.pack(PROFILE, 1, 1, 1, 0) + b"\xff", "names"),
        (lambda b: b + ENTRY.pack(EMBEDDING, 1, 1, 1, 16) + b"z" + ENDLESS, "numbers"),
    ],
)  # fmt: skip
def test_why_packets_are_refused(listener, change, why):
    agent, _ = listener
    flood = agent.work.flood
    body = flood.tell("2", agent.now, **EVERYTHING)[0].write()
    with pytest.raises(BadPacket, match=why):
        flood.take("2", flood.parse(change(body)), agent.now)


# -- limits ----------------------------------------------------------------------------------------


def test_an_agent_without_room_says_so(monkeypatch):
    monkeypatch.setattr("hogwild_node.balls.LARGEST", 4)
    swarm = swarm_of("edge", chain(7), 7)
    swarm.run(20.0)
    agent = swarm.agents[0]
    assert agent.read().knows == 4
    assert agent.read().bound == math.inf
    assert agent.read().state is State.RUNNING
    assert "--radius" in agent.work.trouble
    before = sum(agent.counts["bytes"] for agent in swarm.agents.values())
    swarm.run(5.0)  # about ten turns a second, six links both ways
    spent = sum(agent.counts["bytes"] for agent in swarm.agents.values()) - before
    assert spent < 5 * 10 * 12 * 100


def test_room_is_made_for_newcomers(monkeypatch):
    """Reports of those that are gone are deleted where there is no room; the rest is told again."""
    monkeypatch.setattr("hogwild_node.balls.LARGEST", 5)
    swarm = swarm_of("edge", chain(5), 5, lease=1.0)
    swarm.run(4.0)
    for i in (3, 4):
        swarm.agents.pop(i).transport.close()
    swarm.run(4.0)
    assert swarm.error([0, 1, 2]) < 1e-9
    swarm.edge_index = torch.tensor([[0, 1, 1, 2, 2, 5, 5, 6], [1, 0, 2, 1, 5, 2, 6, 5]])
    swarm.x = torch.cat([swarm.x, torch.randn(2, 3, **DOUBLE)])
    swarm.agents[2].set_neighbours({"1": Edge(), "5": Edge()})
    for i in (5, 6):
        swarm.agents[i] = swarm.start(i)
    swarm.run(10.0)
    assert swarm.error([0, 1, 2, 5, 6]) < 1e-9
    assert states(swarm) == {State.SETTLED}
    assert any(agent.work.flood.memory for agent in swarm.agents.values())


def test_reports_that_were_refused_come_once_there_is_room(monkeypatch):
    """Some die just after room was made, and then nothing happens any more."""
    monkeypatch.setattr("hogwild_node.balls.LARGEST", 5)
    swarm = swarm_of("edge", chain(7), 7, lease=1.0)
    swarm.run(4.0)
    assert any(agent.work.flood.crowded for agent in swarm.agents.values())
    for agent in swarm.agents.values():
        agent.work.flood.tidied = swarm.network.now
    for i in (5, 6):
        swarm.agents.pop(i).transport.close()
    swarm.run(25.0)
    assert swarm.error() < 1e-9
    assert states(swarm) == {State.SETTLED}
    assert all(agent.work.trouble is None for agent in swarm.agents.values())
