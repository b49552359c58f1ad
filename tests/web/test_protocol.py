"""What page and server say to each other."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.web.protocol import COMMANDS, LONGEST, MAGIC, ProtocolError, parse, snapshot
from hogwild.web.side import Packets, Seen

GOOD = {
    "world": {"task": "rumour", "nodes": 60, "seed": 1},
    "side": {"side": 1, "model": "gcn", "rule": "caching"},
    "timing": {"stagger": 5, "delay": 2, "loss": 0.3},
    "speed": {"ticks": 20},
    "pause": {"paused": True},
    "node": {"node": 3, "alive": False},
    "move": {"node": 3, "x": 0.5, "y": 1},
    "readings": {},
    "again": {},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_read(name):
    found = parse(json.dumps({"do": name, **GOOD[name]}))
    assert found.name == name
    assert found.values == GOOD[name]


BAD = [
    ("", "not JSON"),
    ("[" * 900, "not JSON"),
    ("NaN", "not JSON"),
    ("[]", "expected an object"),
    ("{}", "no command"),
    ('{"do": "again", "do ": 1}', "expected no field"),
    ('{"do": ["again"]}', "no command"),
    ('{"do": "__init__"}', "no command"),
    ('{"do": "speed"}', "expected ticks"),
    ('{"do": "speed", "ticks": 1e3}', "from 1 to 120"),
    ('{"do": "speed", "ticks": true}', "an integer"),
    ('{"do": "speed", "ticks": 121}', "from 1 to 120"),
    ('{"do": "pause", "paused": 1}', "true or false"),
    ('{"do": "timing", "stagger": 5, "delay": 2, "loss": NaN}', "not JSON"),
    ('{"do": "timing", "stagger": 5, "delay": 2, "loss": 1e999}', "out of range"),
    ('{"do": "move", "node": 0, "x": -0.1, "y": 0}', "from 0 to 1"),
    ('{"do": "world", "task": "../etc", "nodes": 9, "seed": 0}', "one of rumour"),
    ('{"do": "world", "task": "field", "nodes": 2001, "seed": 0}', "to 2000"),
    ('{"do": "again"' + " " * LONGEST + "}", "expected 1000 at most"),
    (b'{"do": "again"}', "binary"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_everything_else_is_refused_in_words(text, why):
    with pytest.raises(ProtocolError, match=why):
        parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
SOME = st.dictionaries(
    st.sampled_from(["do", "node", "alive", "x", "y", "ticks", "side", "model", "rule", "paused"]),
    JSON | st.sampled_from(sorted(COMMANDS)),
)


@settings(max_examples=60)
@given(st.one_of(st.text(max_size=60), st.binary(max_size=60), (JSON | SOME).map(json.dumps)))
def test_nothing_else_comes_out_of_any_message(message):
    """A command has its fields, and every field is within its limits; or it is refused."""
    try:
        found = parse(message)
    except ProtocolError:
        return
    fields = COMMANDS[found.name]
    assert found.values.keys() == fields.keys()
    assert all(field.fine(found.values[key]) for key, field in fields.items())


def test_later_commands_about_the_same_thing_replace_earlier_ones():
    def subject(**values):
        return parse(json.dumps(values)).subject

    first = subject(do="move", node=1, x=0, y=0)
    assert first == subject(do="move", node=1, x=1, y=1)
    assert first != subject(do="move", node=2, x=0, y=0)
    assert subject(do="node", node=1, alive=True) != first


def test_a_snapshot_can_be_read_back():
    answer = np.array([0.5, np.nan, -2.0], np.float32)
    stale = np.array([3.0, np.nan, 300.0], np.float32)
    done = np.array([0.0, np.nan, 1.0], np.float32)
    packets = Packets(
        7, np.array([0, 2]), np.array([2, 0]), np.array([4, 0]), np.array([False, True])
    )
    seen = Seen(0.25, 0.5, np.nan, 10.0, 20.0, 300.0, answer, stale, done)
    raw = snapshot(9, 8, [(seen, 8, [packets])])
    assert struct.unpack_from("<6I", raw) == (MAGIC, 9, 8, 3, 1, 0)
    numbers = struct.unpack_from("<8f", raw, 24)
    assert numbers[:2] == (0.25, 0.5)
    assert np.isnan(numbers[2])
    assert numbers[3:] == (10.0, 20.0, 300.0, 8.0, 0.0)
    assert struct.unpack_from("<I", raw, 56) == (2,)
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4", 3, 60), answer)
    assert list(raw[72:75]) == [3, 0, 255]
    assert list(raw[75:78]) == [0, 2, 1]
    assert raw[78:80] == b"\0\0"  # what follows begins at a multiple of four
    assert struct.unpack_from("<2H4B", raw, 80) == (0, 2, 1, 4, 0, 0)
    assert struct.unpack_from("<2H4B", raw, 88) == (2, 0, 1, 0, 1, 0)
    assert len(raw) == 96
