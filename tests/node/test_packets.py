"""Packets: what is written is read, and nothing else is."""

import copy
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from c_nodes import filed
from helpers import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_swarm import Swarm, sealed

from hogwild import GSDGNN, EnergyGNN, SoftEnergyGNN
from hogwild_node import model as node_models
from hogwild_node.agent import Agent
from hogwild_node.packets import DATA, HELLO, PRECISIONS, BadPacket, Format
from hogwild_node.registers import Registers

NAME = "0123456789abcdef"
GRADIENT = Format(NAME, "gradient", 3, 2, 6, 2, 2)
MESSAGES = Format(NAME, "messages", 3, 2, 14 + 6, 2, 2)
CACHING = Format(NAME, "caching", 3, 50, 0, 0, 10, "float64")
FORMATS = {"gradient": GRADIENT, "messages": MESSAGES, "caching": CACHING}


def drawn(form, seed=0):
    """Random content; curvature blocks are symmetric."""
    random = np.random.default_rng(seed)
    said, letter = random.normal(size=form.broadcast_width), random.normal(size=form.letter_width)
    if form.block:
        block = random.normal(size=(form.block, form.block))
        letter[-(form.block**2) :] = (block + block.T).ravel()
    return said, letter


PACKETS = {
    "gradient steps, `SoftEnergyGNN` and `GSDGNN`": ("gradient", (SoftEnergyGNN, GSDGNN)),
    "gradient steps, `EnergyGNN`": ("gradient", (EnergyGNN,)),
    "messages": ("messages", (SoftEnergyGNN, GSDGNN, EnergyGNN)),
}


@pytest.mark.parametrize("what", PACKETS)
def test_the_documented_table_of_sizes(what):
    """The bytes that agents send, with 2, 8 and 64 channels and in every precision."""
    rule, models = PACKETS[what]
    text = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
    for make in models:
        cells = []
        for k in (2, 8, 64):
            model = node_models.of(filed(make(3, out_channels=1, hidden_channels=k)))
            told = model.encode(np.zeros(3))
            packets = [
                Registers(model, rule, told, precision=name, tolerance=1.0, h=None).format
                for name in PRECISIONS
            ]
            said, letter = drawn(packets[0])
            for form in packets:
                assert len(form.data(form.header(1), said, letter)) == form.data_size
            cells.append(", ".join(f"{form.data_size:,}" for form in packets))
        assert f"| {what} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name):
    form = FORMATS[name]
    said, letter = drawn(form)
    header = form.header(7, DATA, sequence=9, to=3, revision=5, known=4, time=1.5, calm=0.25)
    raw = form.data(header, said, letter)
    assert len(raw) == form.data_size
    assert form.read(raw) == header
    found = form.read_data(raw)
    rtol = 1e-7 if form.precision == "float32" else 0.0
    np.testing.assert_allclose(found[0], said, rtol=rtol)
    np.testing.assert_allclose(found[1], letter, rtol=rtol)
    hello = form.hello(form.header(7, HELLO), 3.5, np.array([1.0, 2.0, 3.0]))
    assert form.read(hello).kind == HELLO
    degree, features = form.read_hello(hello)
    assert degree == 3.5
    np.testing.assert_array_equal(features, [1.0, 2.0, 3.0])


WRONG = [
    (lambda raw: raw[:10], "short"),
    (lambda raw: b"\1" + raw[1:], "version"),
    (lambda raw: raw[:1] + b"\7" + raw[2:], "kind"),
    (lambda raw: raw[:2] + b"\0" + raw[3:], "rule"),
    (lambda raw: raw[:3] + b"\3" + raw[4:], "kind"),
    (lambda raw: raw[:4] + b"\xff" + raw[5:], "model"),
    (lambda raw: raw + b"\0", "size"),
    (lambda raw: raw[:-4], "size"),
    (lambda raw: raw[:8] + b"\xff" + raw[9:], "damaged"),
    (lambda raw: raw[:36] + b"\xff" + raw[37:], "damaged"),
    (lambda raw: raw[:-1] + b"\xff", "damaged"),
    (lambda raw: sealed(raw[:24] + struct.pack("<d", math.nan) + raw[32:]), "numbers"),
    (lambda raw: sealed(raw[:32] + struct.pack("<f", math.nan) + raw[36:]), "numbers"),
    (lambda raw: sealed(raw[:32] + struct.pack("<f", -1.0) + raw[36:]), "numbers"),
]
"""What somebody may do to a packet, and why it is refused then."""


@pytest.mark.parametrize(("change", "why"), WRONG)
def test_what_is_not_of_this_format_is_refused(change, why):
    raw = GRADIENT.data(GRADIENT.header(1), *drawn(GRADIENT))
    with pytest.raises(BadPacket, match=why):
        GRADIENT.read(change(raw))


def test_numbers_that_are_infinite_as_float32_are_refused():
    said, letter = drawn(GRADIENT)
    said[0] = 1e300
    raw = GRADIENT.data(GRADIENT.header(1), said, letter)
    with pytest.raises(BadPacket, match="numbers"):
        GRADIENT.read_data(raw)


@pytest.fixture(scope="module")
def listener():
    """An agent with one neighbour that has said hello."""
    swarm = Swarm(EnergyGNN(3, out_channels=2, beta=1.0), chain(2), 2)
    swarm.run(3.0)
    return swarm.agents[0]


WHAT = ("version", "kind", "rule", "width", "model", "size", "number", "time", "calm",
        "incarnation", "sequence", "content", "bits")  # fmt: skip
ENDLESS = [math.nan, math.inf, -math.inf]


@st.composite
def damaged(draw):
    """What one field of a packet becomes: a careless or hostile sender writes all others well."""
    what = draw(st.sampled_from(WHAT))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32))).uniform(-9.0, 9.0, 32)
    more = {"calm": [math.nan, -1.0], "time": [*ENDLESS, 1e12, -1e300]}
    bad = draw(st.sampled_from(more.get(what, ENDLESS)))
    return what, draw(st.booleans()), numbers, bad, draw(st.integers(1, 2**31 - 1))


def spoil(agent, what, hello, numbers, bad, by):
    """A packet of the neighbour to the agent, with one field that is wrong."""
    form, link = agent.format, agent.links["1"]
    head = {"sequence": link.sequence + 1, "revision": link.revision, "time": 1.0}
    incarnation = link.incarnation
    if what == "incarnation":  # the agent's own hello that comes back, or data before a hello
        incarnation = agent.incarnation if hello else (incarnation + by) % 2**32
    if what == "sequence":
        head["sequence"] = link.sequence - by + 1
        head["revision"] = (link.revision - 1 - by % 2**14) % 2**16
    if what in ("time", "calm"):
        head[what] = bad
    hello = hello or what == "content"  # another one with the revision that is known
    said, letter, features = (
        numbers[:n].copy() for n in (form.broadcast_width, form.letter_width, form.features)
    )
    if what == "number":
        said[by % form.broadcast_width] = features[by % form.features] = bad
    header = form.header(incarnation, HELLO if hello else DATA, **head)
    raw = form.hello(header, 2.0, features) if hello else form.data(header, said, letter)
    if what == "bits":  # damage on the way
        bits = int.from_bytes(raw, "little") ^ 1 << by % (8 * len(raw)) ^ 1 << by % 97
        return bits.to_bytes(len(raw), "little") if by % (8 * len(raw)) != by % 97 else raw[:-1]
    if what == "size":
        return sealed(raw[: -(by % 30) - 1] if by % 2 else raw + bytes(by % 40 + 1))
    if what in WHAT[:5]:
        place = WHAT.index(what)
        raw = raw[:place] + bytes([(raw[place] + 3 + by % 251) % 256]) + raw[place + 1 :]
        return sealed(raw)
    return raw


@settings(max_examples=2000, deadline=None)
@given(st.one_of(st.binary(max_size=200), damaged()), st.sampled_from(["1", "stranger"]))
def test_malformed_packets_never_enter_and_never_crash(listener, given, sender):
    """Nothing of the packet enters the state, and the packet is counted."""
    agent, link = listener, listener.links["1"]
    raw = given if isinstance(given, bytes) else spoil(agent, *given)
    before, dropped = copy.deepcopy(vars(link)), agent.counts["dropped"]
    agent._receive(sender, raw, agent.now)
    assert agent.counts["dropped"] == dropped + 1
    np.testing.assert_equal(vars(link), before)


def test_old_packets_and_old_incarnations_are_dropped(listener):
    agent: Agent = listener
    link, form = agent.links["1"], agent.format
    said, letter = np.ones(form.broadcast_width), np.zeros(form.letter_width)

    def receive(incarnation, sequence):
        raw = form.data(form.header(incarnation, DATA, sequence=sequence), said, letter)
        before = agent.counts["received"]
        agent._receive("1", raw, agent.now)
        return agent.counts["received"] > before

    now, first = link.sequence, link.incarnation
    assert not receive(first, now)
    assert not receive(first, now - 1)
    assert not receive(first + 1, now + 1)  # data of an incarnation that has not said hello
    assert receive(first, now + 1)
    hello = form.hello(form.header(first + 1, HELLO, revision=9), 2.0, np.zeros(3))
    agent._receive("1", hello, agent.now)
    assert link.incarnation == first + 1
    assert link.sequence is None
    assert receive(first + 1, 1)
    assert not receive(first, now + 5)  # the old incarnation is gone for good
    agent._receive("1", form.hello(form.header(first, HELLO), 2.0, np.zeros(3)), agent.now)
    assert link.incarnation == first + 1
