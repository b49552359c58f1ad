"""The session of one viewer."""

import json
import struct
import threading
import time

import pytest

from hogwild.web.protocol import parse
from hogwild.web.session import Session


class Viewer:
    """Reads what a session leaves for its viewer."""

    def __init__(self, **options):
        self.woken = threading.Event()
        self.session = Session(wake=self.woken.set, **options)
        self.scene, self.tick, self.errors, self.notices = None, 0, [], []

    def send(self, **values):
        self.session.put(parse(json.dumps(values)))

    def read(self):
        screen = self.session.take()
        self.scene = screen.scene or self.scene
        self.notices += [each["text"] for each in screen.notices]
        if screen.snapshot is not None:
            _, version, self.tick, n, sides, _ = struct.unpack_from("<6I", screen.snapshot)
            self.errors, at = [], 24
            for _ in range(sides):
                self.errors.append(struct.unpack_from("<f", screen.snapshot, at)[0])
                count = struct.unpack_from("<I", screen.snapshot, at + 32)[0]
                at += 36 + 6 * n + -2 * n % 4 + 8 * count
            assert at == len(screen.snapshot)
            assert version <= self.session.stage.version
        return screen

    def until(self, good, what):
        for _ in range(3000):
            self.read()
            if self.scene is not None and good(self):
                return
            self.woken.wait(0.02)
            self.woken.clear()
        raise AssertionError(f"{what}: {self.tick}, {self.errors}, {self.notices}")


@pytest.fixture
def viewer():
    made = Viewer()
    made.send(do="speed", ticks=120)
    made.send(do="world", task="field", nodes=20, seed=3)
    made.session.start()
    made.until(lambda v: v.scene["nodes"] == 20 and v.tick > 0, "no first snapshot")
    yield made
    made.session.close()
    made.session.join()


def test_the_energy_gnn_recovers_from_a_killed_node_and_the_gcn_does_not(viewer):
    viewer.until(lambda v: v.errors[0] < 1e-6, "did not arrive")
    assert viewer.errors[1] > 0.1
    viewer.send(do="node", node=5, alive=False)
    viewer.until(lambda v: v.scene["dead"] == [5], "nobody died")
    assert 5 not in viewer.scene["edges"]
    viewer.until(lambda v: v.errors[0] > 1e-4, "the answer did not change")
    viewer.until(lambda v: v.errors[0] < 1e-6, "did not recover")
    assert viewer.errors[1] > 0.1
    viewer.send(do="node", node=5, alive=True)
    viewer.until(lambda v: v.scene["dead"] == [] and v.errors[0] > 1e-4, "nobody was revived")
    viewer.until(lambda v: v.errors[0] < 1e-6, "did not recover again")


def test_dragging_changes_the_graph(viewer):
    before = viewer.scene["edges"]
    viewer.send(do="move", node=0, x=0.5, y=0.5)
    viewer.until(lambda v: v.scene["edges"] != before, "no edge changed")
    assert viewer.scene["position"][:2] == [0.5, 0.5]
    viewer.until(lambda v: v.errors[0] < 1e-6, "did not follow")


def test_models_rules_tasks_and_features_can_be_chosen(viewer):
    viewer.send(do="side", side=1, model="energy", rule="gradient")
    viewer.until(lambda v: v.scene["sides"][1]["rule"] == "gradient", "no gradient steps")
    assert viewer.scene["sides"][1]["rules"] == ["messages", "gradient", "balls"]
    viewer.send(do="world", task="rumour", nodes=12, seed=2)
    viewer.until(lambda v: v.scene["task"]["name"] == "rumour", "no other task")
    assert viewer.scene["told"] is not None
    assert [side["model"] for side in viewer.scene["sides"]] == ["energy", "energy"]
    exact = viewer.scene["sides"][0]["exact"]
    viewer.send(do="readings")
    viewer.until(lambda v: v.scene["sides"][0]["exact"] != exact, "the same answer")
    viewer.until(lambda v: v.errors[0] < 1e-2, "did not follow")


def test_what_cannot_be_done_is_said_in_words(viewer):
    viewer.send(do="side", side=0, model="gcn", rule="gradient")
    viewer.until(lambda v: v.scene["sides"][0]["model"] == "gcn", "no other model")
    assert viewer.scene["sides"][0]["rule"] == "caching"  # the rule that fits
    assert "it runs with caching" in viewer.notices[-1]
    viewer.send(do="node", node=99, alive=False)
    viewer.until(lambda v: "there is no node 99; the last one is 19" in v.notices, "no word")
    viewer.send(do="world", task="given", nodes=20, seed=0)
    viewer.until(lambda v: any("hogwild serve FOLDER" in t for t in v.notices), "no word")
    viewer.send(do="world", task="field", nodes=4, seed=3)
    viewer.until(lambda v: v.scene["nodes"] == 4, "no other world")
    for node in range(3):
        viewer.send(do="node", node=node, alive=False)
    viewer.until(lambda v: any("two nodes must live" in t for t in v.notices), "no word")
    viewer.until(lambda v: v.scene["dead"] == [0, 1], "too many died")
    tick = viewer.tick
    viewer.until(lambda v: v.tick > tick, "the session has ended")


def test_a_pause_stops_time(viewer):
    viewer.send(do="pause", paused=True)
    viewer.until(lambda v: v.scene["paused"], "no pause")
    viewer.read()
    time.sleep(0.3)
    viewer.read()
    tick = viewer.tick
    time.sleep(0.3)
    viewer.read()
    assert viewer.tick == tick
    viewer.send(do="pause", paused=False)
    viewer.until(lambda v: v.tick > tick, "time stands still")


def test_a_slow_viewer_gets_the_newest_snapshot_and_nothing_piles_up(viewer):
    viewer.read()
    tick = viewer.tick
    for i in range(500):  # all about one thing
        viewer.send(do="speed", ticks=60 + i % 60)
    assert len(viewer.session.commands) <= 1
    time.sleep(1.0)
    viewer.read()
    assert viewer.tick > tick + 10
    for node in range(100):
        viewer.send(do="node", node=node, alive=True)
    assert len(viewer.session.commands) <= 64
    for _ in range(100):
        viewer.session.refuse("this")
    assert len(viewer.session.take().notices) <= 8


def test_a_session_ends(viewer):
    viewer.session.close()
    viewer.session.join()
    assert viewer.session.closed
