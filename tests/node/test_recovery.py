"""What agents come back from: any history of faults, forged reports, and solves that take longer
than their neighbours wait."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import chain, cycle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_swarm import Swarm
from node.test_balls import MODELS, edges_of, states, swarm_of
from node.test_flood import EVERYTHING, flood, tell

from hogwild import GCN, Inputs
from hogwild.testing.problems import random_graph
from hogwild_node import held
from hogwild_node.agent import Edge, State
from hogwild_node.flood import PARTS, REPEAT
from hogwild_node.packets import DATA, U16, U32
from hogwild_node.reports import EMBEDDING, ENTRY, HEAD, LAST, PROFILE, Profile

LEASE = 1.0


def swarm_by(rule, name, *given, **options):
    if name == "gcn":
        return Swarm(GCN(3, out_channels=2), *given, rule=rule, **options)
    return Swarm(MODELS[name](), *given, rule=rule, **options)


def answer(swarm):
    """Who is alive, and the answers of the graph of those over the links that work."""
    alive = sorted(swarm.agents)
    place = {i: q for q, i in enumerate(alive)}
    edges = [
        [place[i], place[j]]
        for i, j in swarm.edge_index.T.tolist()
        if i in place and j in place and frozenset((str(i), str(j))) not in swarm.network.cut
    ]
    edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    with torch.no_grad():
        return alive, swarm.whole.embed(Inputs(swarm.x[alive], edges)).value.numpy()


def comes_to_rest(swarm, seconds=60.0):
    """Nothing happens any more. Once the lease is over and news of that has crossed the graph, an
    agent that says it is settled is right; and soon all say so."""
    begun, (alive, exact) = swarm.network.now, answer(swarm)
    scale = np.abs(exact).max()
    while swarm.network.now < begun + seconds:
        swarm.run(0.2)
        gap = np.stack([swarm.agents[i].read().h for i in alive]) - exact
        wrong = np.abs(gap).max(1) > 1e-6 * scale
        done = [swarm.agents[i].read().state is State.SETTLED for i in alive]
        for agent in swarm.agents.values():  # who takes no part is named
            reading, parted = agent.read(), agent.links.keys() - set(agent.members)
            assert reading.state is not State.SETTLED or parted <= set(reading.silent)
        if swarm.network.now > begun + LEASE + 1.5:
            assert not (wrong & done).any()
        if all(done) and not wrong.any():
            if swarm.options["rule"] == "balls" and swarm.options.get("radius") is None:
                for part in parts(swarm, alive):
                    assert {swarm.agents[i].read().knows for i in part} == {len(part)}
            return
    raise AssertionError(f"{states(swarm)}, {wrong} after {seconds} seconds of quiet")


EVENTS = ("kill", "start", "start", "freeze", "thaw", "cut", "heal", "features", "link")


@settings(max_examples=25, deadline=None)
@example(
    n=3, seed=0, rule=("balls", None), name="denoising", loss=0.0, copies=0.0, late=0.1,
    events=[("kill", 0, 0.1), ("freeze", 14, 1.5)],
)  # fmt: skip
@given(
    n=st.integers(2, 6), seed=st.integers(0, 999),
    rule=st.sampled_from([("balls", None), ("balls", 1), ("auto", None)]),
    name=st.sampled_from(["denoising", "edge", "ignn"]), loss=st.sampled_from([0.0, 0.3, 0.5]),
    copies=st.sampled_from([0.0, 0.3]), late=st.sampled_from([0.1, 0.3]),
    events=st.lists(
        st.tuples(
            st.sampled_from(EVENTS), st.integers(0, 99), st.sampled_from([0.0, 0.1, 0.5, 1.5, 3.0])
        ),
        max_size=10,
    ),
)  # fmt: skip
def test_after_any_history_agents_end_at_the_exact_answer(
    n, seed, rule, name, loss, copies, late, events
):
    by, radius = rule
    end_well(
        swarm_by(
            by, name, edges_of(random_graph([n], seed=seed)), n, radius=radius, seed=seed,
            loss=loss, copies=copies, delay=(0.0, late), lease=LEASE,
        ),
        events,
    )  # fmt: skip


HISTORIES = {
    "one dies": [("kill", 2, 5.0)],
    "two die and cut the graph": [("kill", 0, 0.0), ("kill", 3, 5.0)],
    "one comes back": [("kill", 2, 5.0), ("start", 2, 0.0)],
    "one restarts at once, with other features": [
        *[("features", 2, 1.0)] * 4, ("kill", 2, 0.0), ("features", 2, 0.0), ("start", 2, 0.0)
    ],
    "all restart": [
        event for i in (3, 0, 5, 1, 4, 2)
        for event in (("kill", i, 0.5), ("features", i, 0.0), ("start", i, 0.5))
    ],
    "features change while the graph is cut": [
        ("cut", 2, 0.0), ("cut", 5, 5.0), ("features", 0, 0.0), ("features", 5, 5.0),
        ("heal", 0, 0.0),
    ],
    "one thaws": [("freeze", 2, 6.0), ("thaw", 0, 0.0)],
    "a link is taken away and given back": [("link", 1, 0.0), ("features", 2, 0.0)],
    "the cycle is opened and closed": [("open", 0, 4.0), ("features", 1, 0.0), ("close", 0, 0.0)],
}  # fmt: skip


@pytest.mark.parametrize("events", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize(
    ("rule", "radius", "name"),
    [("auto", None, "normalised"), ("auto", None, "gcn"), ("balls", None, "normalised"),
     ("balls", 1, "ignn")],
)  # fmt: skip
def test_after_these_histories(rule, radius, name, events):
    swarm = swarm_by(rule, name, cycle(6), 6, radius=radius, lease=LEASE)
    swarm.run(5.0)
    end_well(swarm, events)


def end_well(swarm, events):
    """These events happen, and then nothing more."""
    frozen, n = {}, swarm.n
    for what, which, wait in events:
        happen(swarm, frozen, what, which)
        swarm.run(wait if swarm.agents else 0.0)
    while frozen:
        happen(swarm, frozen, "thaw", 0)
    for i in range(n):
        if not swarm.agents:
            swarm.agents[i] = swarm.start(i)
    swarm.network.loss = 0.0
    comes_to_rest(swarm)


def parts(swarm, alive):
    """Those alive who reach each other."""
    left = set(alive)
    pairs = [
        (i, j) for i, j in swarm.edge_index.T.tolist()
        if {i, j} <= left and frozenset((str(i), str(j))) not in swarm.network.cut
    ]  # fmt: skip
    while left:
        part = [left.pop()]
        for i in part:
            near = {b for a, b in pairs if a == i} & left
            left -= near
            part += near
        yield part


def happen(swarm, frozen, what, which):
    """One event: ``which`` says to whom."""
    i = which % swarm.n
    if what in ("kill", "start"):
        for agent in (swarm.agents.pop(i, None), frozen.pop(i, None)):
            if agent is not None:
                agent.transport.close()
        if what == "start":
            swarm.agents[i] = swarm.start(i)
    elif what == "freeze" and i in swarm.agents:
        frozen[i] = swarm.agents.pop(i)
    elif what == "thaw" and frozen:
        i = sorted(frozen)[which % len(frozen)]
        swarm.agents[i] = frozen.pop(i)
    elif what == "cut" and swarm.edge_index.numel():
        pair = swarm.edge_index[:, which % swarm.edge_index.shape[1]].tolist()
        swarm.network.cut.add(frozenset(map(str, pair)))
    elif what == "heal":
        swarm.network.cut.clear()
    elif what == "features":
        swarm.x[i] += 1.0
        for agent in (swarm.agents.get(i), frozen.get(i)):
            if agent is not None:
                agent.set_features(swarm.x[i].numpy())
    elif what in ("open", "close"):
        swarm.edge_index = chain(swarm.n) if what == "open" else cycle(swarm.n)
        for i in (0, swarm.n - 1):
            swarm.agents[i].set_neighbours(swarm.near(i))
    elif what == "link" and i in swarm.agents:  # taken away and given back
        near = {name: link.edge for name, link in swarm.agents[i].links.items()}
        swarm.agents[i].set_neighbours({})
        swarm.agents[i].set_neighbours(near)


NUMBERS = st.sampled_from([0.0, 1.0, -3.0, 1e-160, 5e-324, 1e160, 1e308, -1e308])


@st.composite
def forged(draw, n):
    """A report that somebody made up: its kind, owner, version and content."""
    owner = draw(st.sampled_from([*map(str, range(n)), "x", "y"]))
    version = draw(st.sampled_from([1, 50, LAST - 1, LAST])), draw(st.integers(0, U32 - 100))
    if draw(st.booleans()):
        return EMBEDDING, owner, version, draw(st.lists(st.floats(-9, 9), min_size=2, max_size=2))
    others = [name for name in [*map(str, range(n)), "x", "y"] if name != owner]
    near = draw(st.lists(st.sampled_from(others), unique=True))
    features = draw(st.lists(NUMBERS, min_size=3, max_size=3))
    weights = draw(st.lists(NUMBERS.map(abs), min_size=len(near), max_size=len(near)))
    return PROFILE, owner, version, (features, dict(zip(near, weights, strict=True)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_forged_reports_do_not_stay(data):
    """Somebody speaks in the name of a neighbour: absurd numbers, versions and graphs. Nothing
    breaks, no warning is printed, and some time after the last forged packet all are right."""
    n, radius = data.draw(st.integers(2, 4)), data.draw(st.sampled_from([None, 1]))
    name = data.draw(st.sampled_from(sorted(MODELS)))
    swarm = swarm_of(name, chain(n), n, radius=radius, lease=LEASE)
    swarm.run(2.0)
    for _ in range(data.draw(st.integers(1, 5))):
        agent = swarm.agents[data.draw(st.integers(0, n - 1))]
        speaker = data.draw(st.sampled_from(sorted(agent.links)))
        link = agent.links[speaker]
        if link.incarnation is None:
            continue
        number = st.integers(1, U32 - 1)
        header = agent.format.header(
            link.incarnation, DATA, sequence=data.draw(number), revision=link.revision,
            to=data.draw(st.sampled_from([0, agent.incarnation, 7])),
            known=data.draw(st.sampled_from([0, agent.revision, U16 - 1])),
            time=data.draw(st.sampled_from([0.0, agent.now, 1e11, -1e11])),
            calm=data.draw(st.sampled_from([0.0, 5.0, 1e30])),
        )  # fmt: skip
        reports = data.draw(st.lists(forged(n), max_size=8))
        memory = data.draw(st.sampled_from([0, 1, 7, 30_000]))
        body = HEAD.pack(
            data.draw(number), data.draw(number), U32 - 1, memory, agent.work.flood.scope
        )
        for kind, owner, version, content in reports:
            if kind == EMBEDDING and radius is None:
                continue
            if kind == EMBEDDING:
                raw = np.resize(content, agent.model.channels).astype(agent.format.number).tobytes()
            else:
                edges = {other: (weight, None) for other, weight in content[1].items()}
                raw = Profile(np.array(content[0]), edges).write()
            body += ENTRY.pack(kind, len(owner), *version, len(raw)) + owner.encode() + raw
        agent._receive(speaker, agent.format.packet(header, body), swarm.network.now)
        swarm.run(data.draw(st.sampled_from([0.0, 0.3])))
    end = swarm.network.now + 150.0
    while swarm.error() > 1e-6 or states(swarm) != {State.SETTLED}:
        assert swarm.network.now < end
        swarm.run(2.0)


@pytest.mark.parametrize("what", ["number", "memory", "confirmation", "report"])
def test_forged_packets_do_not_harm_a_link_for_good(what):
    """Somebody speaks once in the name of b. Soon a and b are as they were."""
    one, other = flood("a", 5), flood("b", 9)
    one.report(0, b"mine", 0.0)
    other.report(0, b"theirs", 0.0)
    tell(one, other, 0.0)
    tell(other, one, 0.1)
    one.report(1, b"unheard", 0.1)
    (body,) = one.packets("b", 0.1, **EVERYTHING)  # is lost
    sent = HEAD.unpack_from(body)[0]
    forged = {
        "number": HEAD.pack(U32 // 2, 0, 0, 0, 0), "memory": HEAD.pack(20, 0, 0, 99, 0),
        "confirmation": HEAD.pack(20, sent, U32 - 1, 0, 0),
        "report": HEAD.pack(20, 0, 0, 0, 0) + ENTRY.pack(0, 1, 50, 77, 1) + b"b" + b"?",
    }[what]  # fmt: skip
    one.hear("b", forged, 0.2)
    for turn in range(1, 1000):
        now = 0.2 + 0.1 * turn
        tell(one, other, now)
        tell(other, one, now)
    expected = {(0, "a"): b"mine", (0, "b"): b"theirs", (1, "a"): b"unheard"}
    for each, near in ((one, "b"), (other, "a")):
        assert {key: report.body for key, report in each.reports.items()} == expected
        known = {key: report.version for key, report in each.reports.items()}
        assert each.peers[near].has.items() >= known.items()


def test_every_report_is_told_again_now_and_then():
    one, other = flood("a"), flood("b")
    for kind in range(100):
        one.report(kind, b"x", 0.0)
    now, told = 0.0, set()
    while now < (PARTS + 2) * REPEAT:
        now += 0.1
        for body in one.packets("b", now, **EVERYTHING):
            if now > REPEAT:
                told |= {report.key for report in other.parse(body).reports}
            other.hear("a", body, now)
        tell(other, one, now)
    assert told == set(one.reports)


def test_a_solve_that_takes_longer_than_the_lease_is_not_taken_for_death(monkeypatch):
    """Every factorisation takes six tenths of a lease, a solve several of them."""
    swarm = swarm_of("edge", chain(3), 3, lease=LEASE)
    swarm.run(6.0)
    direction, network, slept = held._direction, swarm.network, [0.0]
    members = [list(agent.members) for agent in swarm.agents.values()]

    def slow(*given):
        """The others take their turns meanwhile, at their usual pace."""
        with monkeypatch.context() as usual:
            usual.setattr(held, "_direction", direction)
            for _ in range(6):
                network.now += 0.1 * LEASE
                slept[0] += 0.1 * LEASE
                for i in (1, 2):
                    swarm.agents[i].turn()
                    assert swarm.agents[i].members == members[i]
        return direction(*given)

    swarm.x[0] += 3.0
    swarm.agents[0].set_features(swarm.x[0].numpy())
    monkeypatch.setattr(held, "_direction", slow)
    swarm.agents[0].turn()
    monkeypatch.undo()
    assert slept[0] > 2.0 * LEASE
    reading = swarm.agents[0].read()  # it has not looked since
    assert (reading.state, reading.silent) == (State.RUNNING, ())
    assert reading.staleness > 2.0 * LEASE
    swarm.agents[0].turn()
    assert swarm.agents[0].members == members[0]
    comes_to_rest(swarm)


def test_bounds_are_of_what_is_known_now():
    """An agent that has heard news and not solved yet has no bound."""
    swarm = swarm_of("edge", chain(3), 3)
    swarm.run(6.0)
    work = swarm.agents[0].work
    assert swarm.agents[0].read().bound < 1e-9
    report = work.flood.reports[PROFILE, "2"]
    work.flood.reports[PROFILE, "2"] = replace(report, version=(99, 1))
    work.meet(swarm.agents[0].features, {"1": swarm.agents[0].links["1"]}, swarm.network.now)
    assert work.bound(True, 3, 1e-8) == math.inf
    work.update(swarm.network.now, lambda: None)
    assert work.bound(True, 3, 1e-8) < 1e-9


def test_neighbours_that_were_taken_away_take_no_memory():
    swarm = swarm_of("edge", chain(3), 3)
    swarm.run(4.0)
    one = swarm.agents[1]
    assert one.work.flood.peers["2"].has
    one.set_neighbours({"0": Edge()})
    assert not one.work.flood.peers["2"].has
    assert "2" not in one.work.ball.incarnations


@pytest.mark.parametrize("rule", ["messages", "balls"])
def test_a_tolerance_of_zero_is_meant(rule):
    swarm = Swarm(MODELS["edge"](), chain(2), 2, rule=rule, tolerance=0.0)
    assert swarm.agents[0].tolerance == 0.0
