"""The session of one viewer: two sides on one world, in a thread of its own.

The thread applies commands, ticks, and leaves the newest scene and the newest snapshot where the
connection finds them. Whoever is slow misses some, and nothing piles up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hogwild.asynchrony.lease import Beliefs
from hogwild.asynchrony.scenario import Frame
from hogwild.asynchrony.trace import Trace
from hogwild.errors import HogwildError
from hogwild.models.base import Model
from hogwild.web.given import Given
from hogwild.web.kept import Recording, Screen, Timing
from hogwild.web.protocol import GIVEN, Command, snapshot
from hogwild.web.scene import described, limits, pairs, rounded
from hogwild.web.shelf import trained
from hogwild.web.side import Packets, Side, settings
from hogwild.web.worlds import World

LEASE = 20
"""Ticks for which a node counts on a neighbour that is gone."""
RATE = 30.0
"""Snapshots a second at most."""
WAITING = 64
"""Commands that may wait at most; those about the same thing count once."""
USUAL = (("energy", "auto"), ("gcn", "auto"))
"""The models and rules to begin with."""


class Session:
    """What one viewer sees and does.

    Args:
        given: A model and a graph from the command line.
        replay: A recorded schedule of this graph.
        wake: Called, from the thread, whenever there is something new to send.
    """

    def __init__(
        self,
        given: Given | None = None,
        replay: Trace | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.given, self.from_file, self.wake = given, replay, wake
        self.timing, self.paused, self.closed = Timing(), False, False
        self.world: World | Given = World.make("field", 60, 3) if given is None else given
        self.choice = list(USUAL) if given is None else given.choice
        self.dead: set[int] = set()
        self.version = 0
        self.recording: Recording | None = None
        self.replaying: Recording | None = None
        self.same: bool | None = None  # whether a replay ended in the same bits
        self.sides: list[Side] = []
        self._models: dict[tuple[str, str], Model] = {}
        self._lock = threading.Condition()
        self._screen = Screen()
        self._todo: dict[tuple[Any, ...], Command] = {}
        self._thread = threading.Thread(target=self._run, name="hogwild-session", daemon=True)

    # -- from the connection -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; the thread stops after its tick."""
        with self._lock:
            self.closed = True
            self._lock.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    def refuse(self, why: str) -> None:
        """Tell the viewer that a message was refused."""
        self._say(f"The server refused {why}.", "error")

    def put(self, command: Command) -> None:
        """Have a command carried out; a later one about the same thing replaces an earlier one."""
        with self._lock:
            self._todo.pop(command.subject, None)
            if len(self._todo) >= WAITING:
                self._say("Too many commands at once: some were dropped.")
                return
            self._todo[command.subject] = command
            self._lock.notify()

    def take(self) -> Screen:
        """Everything new since the last call."""
        with self._lock:
            out, self._screen = self._screen, Screen()
        return out

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        with torch.no_grad():
            try:
                self._prepare()
                self._begin()
                self._loop()
            except Exception as error:  # a session ends in words, never in silence
                self._say(f"This session has ended by an error: {error}", "error")
                raise
            finally:
                self.closed = True
                self.wake()

    def _prepare(self) -> None:
        """Begin with what the page asks for first, rather than with something else before it."""
        with self._lock:
            if self._lock.wait_for(lambda: bool(self._todo) or self.closed, 0.25):
                self._lock.wait(0.02)  # the rest of it
            todo, self._todo = self._todo, {}
        for command in todo.values():
            given = command.values
            try:
                if command.name == "world" and given["task"] != GIVEN:
                    self.world = World.make(**given)
                    self.choice, self.from_file = list(USUAL), None
                elif command.name == "speed":
                    self.timing.speed = given["ticks"]
                elif command.name == "timing" and self.from_file is None:
                    vars(self.timing).update(given)
                elif command.name == "side" and GIVEN not in (given["model"], self.world.task):
                    self.choice[given["side"]] = given["model"], given["rule"]
                else:
                    self._todo.setdefault(command.subject, command)
            except HogwildError as error:
                self._say(str(error), "error")

    def _loop(self) -> None:
        due = shown = time.monotonic()
        heard: list[list[Packets]] = [[] for _ in self.sides]
        new = True  # whether there is anything that was not shown
        while not self.closed:
            with self._lock:
                todo, self._todo = list(self._todo.values()), {}
                if not todo and self._still and not new:
                    self._lock.wait(0.5)
                    due = time.monotonic()
                    continue
            for command in todo:
                self._obey(command)
            if todo:
                heard, new = [[] for _ in self.sides], True
            now = time.monotonic()
            if not self._still:
                if now < due and not todo:
                    time.sleep(min(due - now, 0.05))
                    continue
                if now >= due:
                    self._tick(heard)
                    new = True
                    due = max(due + 1.0 / self.timing.speed, now - 0.2)  # no catching up for long
            if new and (todo or self._still or time.monotonic() - shown >= 1.0 / RATE):
                self._show(heard)
                heard = [[] for _ in self.sides]
                shown, new = time.monotonic(), False

    @property
    def _still(self) -> bool:
        """Whether nothing moves now."""
        return self.paused or all(side.over for side in self.sides)

    def _tick(self, heard: list[list[Packets]]) -> None:
        for side, packets in zip(self.sides, heard, strict=True):
            if not side.over:
                packets.append(side.step())
                del packets[:-40]
        now = self.sides[0].simulation.time
        if self.replaying is not None:
            if all(side.over for side in self.sides):
                self._compare()
            return
        if self.beliefs.due is not None and now >= self.beliefs.due:
            believed = self.beliefs.at(now)
            for side in self.sides:
                side.believe(believed)
        if self.recording is not None and self.recording.running:
            self.recording.h = self.sides[0].simulation.h.clone()
            if self.recording.noted() or self.sides[0].recorded is None:
                self._stop_recording()
                self._new_scene()

    def _compare(self) -> None:
        """Whether the replay ended where the recording did."""
        assert self.replaying is not None
        h, same_model = self.replaying.h, self.choice[0] == self.replaying.choice[0]
        self.same = None
        if h is not None and same_model:
            self.same = torch.equal(h, self.sides[0].simulation.h)
        self._new_scene()

    # -- commands ----------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        try:
            getattr(self, f"_do_{command.name}")(**command.values)
        except HogwildError as error:
            self._say(str(error), "error")
            self._new_scene()

    def _do_world(self, task: str, nodes: int, seed: int) -> None:
        if task == GIVEN:
            if self.given is None:
                raise HogwildError("no model was given; start: hogwild serve FOLDER")
            self.world, self.choice = self.given, self.given.choice
        else:
            self.world = World.make(task, nodes, seed)
            self.choice = [
                mine if pair[0] == GIVEN else pair
                for mine, pair in zip(USUAL, self.choice, strict=True)
            ]
        self._begin()

    def _do_side(self, side: int, model: str, rule: str) -> None:
        if (model == GIVEN) != isinstance(self.world, Given):
            raise HogwildError(f"the model {model} was not trained for this task; choose another")
        before = list(self.choice)
        self.choice[side] = (model, rule)
        try:
            self._begin(keep=True)
        except HogwildError:
            self.choice = before
            self._begin(keep=True)
            raise

    def _do_timing(self, stagger: int, delay: int, loss: float) -> None:
        if self.replaying is not None:
            raise HogwildError("a replay follows its schedule; go back to live first")
        self.timing.stagger, self.timing.delay, self.timing.loss = stagger, delay, loss
        self._stop_recording()
        for side in self.sides:
            side.retime(self._settings(side.rule))
        self._new_scene()

    def _do_speed(self, ticks: int) -> None:
        self.timing.speed = ticks
        self._new_scene()

    def _do_pause(self, paused: bool) -> None:
        self.paused = paused
        self._new_scene()

    def _do_node(self, node: int, alive: bool) -> None:
        self._require_change(node)
        dead = self.dead - {node} if alive else self.dead | {node}
        if len(dead) > self.world.nodes - 2:
            raise HogwildError("two nodes must live at least; revive one first")
        self.dead = dead
        self._change()

    def _do_move(self, node: int, x: float, y: float) -> None:
        self._require_change(node)
        if isinstance(self.world, Given):
            raise HogwildError("the edges of this graph do not follow from places; kill a node")
        self.world = self.world.move(node, x, y)
        self._change()

    def _do_readings(self) -> None:
        self._require_change(0)
        if isinstance(self.world, Given):
            raise HogwildError("the features of this graph are given; choose another task")
        self.world = self.world.again()
        self._change()

    def _do_again(self) -> None:
        self.dead = set()
        self._begin()

    def _do_replay(self) -> None:
        recording = self.recording
        if recording is None or not recording.trace.ticks:
            raise HogwildError("nothing has been recorded yet; start again and wait a moment")
        recording.running = False
        self.sides[0].recorded = None
        self.replaying, self.world, self.dead = recording, recording.world, set()
        self._begin(keep=True)

    def _do_live(self) -> None:
        self.replaying = None
        self._begin()

    def _require_change(self, node: int) -> None:
        if self.replaying is not None:
            raise HogwildError("a replay cannot be changed; go back to live first")
        if node >= self.world.nodes:
            raise HogwildError(f"there is no node {node}; the last one is {self.world.nodes - 1}")

    # -- the world ---------------------------------------------------------------------------------

    def _settings(self, rule: str) -> Any:
        t = self.timing
        return settings(t.stagger, t.delay, t.loss, self.world.seed, rule)

    def _model(self, name: str) -> Model:
        if name == GIVEN:
            assert self.given is not None
            return self.given.model
        key = self.world.task, name
        if key not in self._models:
            self._models[key] = trained(*key)
        return self._models[key]

    def _true(self, tick: int) -> Frame:
        alive = np.ones(self.world.nodes, bool)
        alive[sorted(self.dead)] = False
        data = self.world.data(alive)
        return Frame(tick, data, data.node_id)

    def _begin(self, keep: bool = False) -> None:
        """All nodes begin at tick 0; ``keep``: with the nodes that are dead, and the replay."""
        self.same = None
        if not keep:
            self.dead, self.replaying = set(), None
        if self.from_file is not None and self.recording is None:
            assert self.given is not None
            self.recording = Recording(self.from_file, self.given, [], running=False)
            self.replaying = self.recording
        trace = None if self.replaying is None else self.replaying.trace
        frame, n = self._true(0), self.world.nodes
        self.beliefs = Beliefs(LEASE)
        believed = self.beliefs.see(frame)
        sides = []
        for model, rule in self.choice:
            side = Side(
                self._model(model), self._settings(rule), self.world.classes, n, trace=trace
            )
            try:
                side.enter(frame, believed)
            except HogwildError:
                if rule == "auto":
                    raise
                side = Side(
                    self._model(model), self._settings("auto"), self.world.classes, n, trace=trace
                )
                side.enter(frame, believed)
            sides.append(side)
        self.sides = sides
        self.choice = [(m, s.rule) for (m, _), s in zip(self.choice, sides, strict=True)]
        if self.replaying is None and not self.dead:
            self._record()
        self._new_scene()

    def _record(self) -> None:
        side = self.sides[0]
        about = {"bounds": side.wanted.bounds, "seed": self.world.seed}
        trace = Trace.of(side.simulation.timetable, about)
        side.recorded = trace
        self.recording = Recording(trace, self.world, list(self.choice))

    def _stop_recording(self) -> None:
        if self.recording is not None and self.recording.running:
            self.recording.running = False
            self.sides[0].recorded = None

    def _change(self) -> None:
        """The graph or its features have changed."""
        self._stop_recording()
        frame = self._true(self.sides[0].simulation.time)
        believed = self.beliefs.see(frame)
        for side in self.sides:
            side.enter(frame, believed)
        self._new_scene()

    # -- what the viewer gets ----------------------------------------------------------------------

    def _say(self, text: str, kind: str = "note") -> None:
        with self._lock:
            self._screen.notices.append({"is": "notice", "kind": kind, "text": text})
        self.wake()

    def _new_scene(self) -> None:
        self.version += 1
        world, about = self.world, self.world.about
        data, dead = self.sides[0].frame.data, sorted(self.dead)
        low, high = (about.low, about.high) if about.low < about.high else limits(self.sides)
        recording = self.recording
        scene = {
            "is": "scene", "version": self.version,
            "mode": "live" if self.replaying is None else "replay",
            "task": {
                "name": world.task, "title": about.title, "question": about.question,
                "answer": about.answer, "low": low, "high": high, "classes": about.classes,
            },
            "nodes": world.nodes, "seed": world.seed, "told": world.told,
            "movable": not isinstance(world, Given),
            "position": rounded(world.position.ravel(), 4),
            "edges": pairs(data.edge_index, data.node_id), "dead": dead,
            "timing": dict(vars(self.timing)), "paused": self.paused,
            "sides": [
                described(side, model)
                for side, (model, _) in zip(self.sides, self.choice, strict=True)
            ],
            "recorded": 0 if recording is None else len(recording.trace.ticks),
            "recording": recording is not None and recording.running,
            "same": self.same,
        }  # fmt: skip
        with self._lock:
            self._screen.scene = scene
        self.wake()

    def _show(self, heard: list[list[Packets]]) -> None:
        tick = max(side.simulation.time for side in self.sides)
        sides = [
            (side.look(), side.simulation.time - side.since, packets)
            for side, packets in zip(self.sides, heard, strict=True)
        ]
        packed = snapshot(self.version, tick, sides)
        with self._lock:
            self._screen.snapshot = packed
        self.wake()
