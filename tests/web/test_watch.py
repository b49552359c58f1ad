"""Watching a swarm."""

import itertools
import math
import struct
import time

import pytest
from agents_by_hand import wait

from hogwild.errors import ConfigError
from hogwild.web import watch as watching
from hogwild.web.polling import Status
from hogwild.web.watch import SILENCE, Agents, Attached, watch

LINE = {
    "id": "a", "prediction": [1.0], "updates": 3, "packets": 2, "bytes": 9, "state": "running",
    "staleness": 0.5, "residual": None, "neighbours": ["b"],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"prediction": []},
        {"prediction": "x"},
        {"prediction": [float("nan")]},
        {"prediction": None},
        {"prediction": [1e300]},
        {"updates": "many"},
        {"bytes": 10**400},
        {"state": None, "packets": None},
    ],
)
def test_what_is_no_status_is_refused(change):
    for bad in ({**LINE, **change}, [], "a", 7):
        with pytest.raises(ValueError, match=r"status line|could not convert"):
            Status.of(bad)


def test_what_is_no_address_is_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match=r"is no address.*addresses of agents"):
        watch(tmp_path)


class Lines:
    """Agents that say what a test says."""

    addresses = ()

    def __init__(self, *lines):
        self.said, self.ages = list(lines), itertools.repeat(0.0)

    def lines(self):
        return [(Status.of(line), age) for line, age in zip(self.said, self.ages, strict=False)]


def line(name, answer=1.0, near=()):
    return {
        "id": name, "prediction": [answer], "updates": 1, "packets": 1, "bytes": 1,
        "state": "running", "neighbours": list(near),
    }  # fmt: skip


def test_who_has_said_nothing_for_long_is_silent():
    source = Lines(line("a", near="b"), line("b", near="a"))
    found = Agents(source)
    assert len(found.look().agents) == 2
    source.ages = [0.0, 2 * SILENCE]
    sight = found.look()
    assert list(sight.agents) == [0]
    assert sight.ground.names == ["a", "b"]
    source.ages = [2 * SILENCE] * 2
    assert found.look().how == "silent"
    seen = Attached(found)._snapshot(found.look())
    assert all(math.isnan(each) for each in struct.unpack_from("<6f", seen, 24))  # and not 0


@pytest.mark.parametrize("answer", [5e-324, -1e-310, 1e-299, 0.0, 9e29])
def test_no_answer_ends_a_viewer(answer):
    """The smallest numbers have no tenth of their power of ten."""
    viewer = Attached(Agents(Lines(line("a", answer, "b"), line("b"))))
    viewer.start()
    try:
        wait(lambda: viewer.version > 0)
        assert viewer._thread.is_alive()
        scene = viewer.take().scene
        assert (scene["mode"], scene["edges"], scene["names"]) == ("attached", [0, 1], ["a", "b"])
        low, high = viewer.limits
        assert low <= answer <= high or abs(answer) < 1e-300
    finally:
        viewer.close()


def test_names_of_all_scripts_are_sorted():
    """A superscript counts as a digit, and is no number."""
    names = ["a10", "a9", "²", "٣", "a", "", "7" * 40]
    sight = Agents(Lines(*(line(name) for name in names))).look()
    assert sorted(sight.ground.names) == sorted(names)
    assert sight.ground.names.index("a9") < sight.ground.names.index("a10")


def test_agents_that_name_others_all_the_time_cost_little(monkeypatch):
    """A large graph takes long to lay out: it is not done at every look of every viewer."""
    laid = []
    real = watching._ground

    def slow(known):
        laid.append(len(known))
        time.sleep(0.05)
        return real(known)

    monkeypatch.setattr(watching, "_ground", slow)
    source = Lines(line("a"))
    agents = Agents(source)
    end, looks = time.monotonic() + 1.0, 0
    while time.monotonic() < end:
        looks += 1
        source.said = [line("a", 1.0, [f"other{looks}"])]
        agents.look()
    assert 1 <= len(laid) <= 3
    wait(lambda: agents.look().ground.names == sorted(["a", f"other{looks}"]))


def test_ever_new_names_take_no_memory(monkeypatch):
    monkeypatch.setattr(watching, "MOST", 5)
    source = Lines()
    agents = Agents(source)
    for i in range(20):
        source.said = [line(f"agent{i}")]
        agents._again = 0.0
        agents.look()
    assert len(agents.neighbours) == 5
