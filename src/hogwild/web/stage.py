"""What a viewer watches and changes: two sides on one world.

A stage knows no thread and no clock: whoever holds it says when it ticks
(:mod:`hogwild.web.session`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hogwild.asynchrony.moving import Beliefs, Frame
from hogwild.errors import HogwildError
from hogwild.models.base import Model
from hogwild.web.pretrained import MODELS, trained
from hogwild.web.protocol import GIVEN, Command, rounded
from hogwild.web.side import Packets, Seen, Side, settings
from hogwild.web.worlds import UserWorld, World

LEASE = 20
"""Ticks for which a node counts on a neighbour that is gone."""
USUAL = (("energy", "auto"), ("gcn", "overwriting"))
"""The models and rules to begin with."""
TICKS_SHOWN = 40
"""Ticks whose packets one snapshot shows at most."""


class Stage:
    """Two sides on one world.

    Args:
        given: A model and a graph from the command line.

    Attributes:
        sleeps: Whether nodes do not begin yet: commands only say with what.
        stale: Whether there is a new scene to be shown.
    """

    def __init__(self, given: UserWorld | None = None) -> None:
        self.given = given
        self.timing: dict[str, Any] = {"stagger": 5, "delay": 2, "loss": 0.0, "speed": 20}
        self.paused = False
        self.world: World | UserWorld = World.make("field", 60, 3) if given is None else given
        self.choice = list(USUAL) if given is None else [(GIVEN, rule) for rule in given.rules]
        self.dead: set[int] = set()
        self.version, self.stale, self.sleeps = 0, False, False
        self.sides: list[Side] = []
        self._models: dict[tuple[str, str], Model] = {}

    # -- time --------------------------------------------------------------------------------------

    @property
    def time(self) -> int:
        """Ticks since all nodes began."""
        return max(side.simulation.time for side in self.sides)

    def tick(self, heard: list[list[Packets]]) -> None:
        """One tick of both sides; the packets that they heard are added to ``heard``."""
        for side, packets in zip(self.sides, heard, strict=True):
            packets.append(side.step())
            del packets[:-TICKS_SHOWN]
        now = self.sides[0].simulation.time
        if self.beliefs.due is not None and now >= self.beliefs.due:
            believed = self.beliefs.at(now)
            for side in self.sides:
                side.believe(believed)

    # -- commands ----------------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        """Carry out a command.

        Raises:
            HogwildError: It cannot be done; the text says why, for the viewer.
        """
        getattr(self, f"do_{command.name}")(**command.values)
        self.stale = True

    def do_world(self, task: str, nodes: int, seed: int) -> None:
        """Another world."""
        if task == GIVEN:
            if self.given is None:
                raise HogwildError("no model was given; start: hogwild serve FOLDER")
            self.world, self.choice = self.given, [(GIVEN, rule) for rule in self.given.rules]
        else:
            self.world = World.make(task, nodes, seed)
            self.choice = [
                mine if pair[0] == GIVEN else pair
                for mine, pair in zip(USUAL, self.choice, strict=True)
            ]
        self.begin()

    def do_side(self, side: int, model: str, rule: str) -> None:
        """Another model or rule on one side; all nodes begin anew."""
        if (model == GIVEN) != isinstance(self.world, UserWorld):
            raise HogwildError(f"the model {model} was not trained for this task; choose another")
        before = list(self.choice)
        self.choice[side] = (model, rule)
        try:
            self.begin(keep=True)
        except HogwildError:
            self.choice = before
            self.begin(keep=True)
            raise
        found = self.choice[side][1]
        if rule not in ("auto", found):
            raise HogwildError(f"this model cannot run with the rule {rule}; it runs with {found}")

    def do_timing(self, stagger: int, delay: int, loss: float) -> None:
        """What the sliders say."""
        self.timing.update(stagger=stagger, delay=delay, loss=loss)
        for side in self.sides:
            side.retime(self._settings(side.rule))

    def do_speed(self, ticks: int) -> None:
        """Ticks a second."""
        self.timing["speed"] = ticks

    def do_pause(self, paused: bool) -> None:
        """Stop time, or let it go on."""
        self.paused = paused

    def do_node(self, node: int, alive: bool) -> None:
        """Kill or revive a node."""
        self._require_node(node)
        dead = self.dead - {node} if alive else self.dead | {node}
        if len(dead) > self.world.nodes - 2:
            raise HogwildError("two nodes must live at least; revive one first")
        self.dead = dead
        self._change()

    def do_move(self, node: int, x: float, y: float) -> None:
        """Put a node at another place."""
        self._require_node(node)
        if isinstance(self.world, UserWorld):
            raise HogwildError("the edges of this graph do not follow from places; kill a node")
        self.world = self.world.move(node, x, y)
        self._change()

    def do_readings(self) -> None:
        """Other features."""
        if isinstance(self.world, UserWorld):
            raise HogwildError("the features of this graph are given; choose another task")
        self.world = self.world.again()
        self._change()

    def do_again(self) -> None:
        """All nodes live and begin anew."""
        self.dead = set()
        self.begin()

    def _require_node(self, node: int) -> None:
        if node >= self.world.nodes:
            raise HogwildError(f"there is no node {node}; the last one is {self.world.nodes - 1}")

    # -- the world ---------------------------------------------------------------------------------

    def begin(self, keep: bool = False) -> None:
        """All nodes begin at tick 0; ``keep``: with the nodes that are dead."""
        if self.sleeps:
            return
        self.stale = True
        if not keep:
            self.dead = set()
        frame = self._frame(0)
        self.beliefs = Beliefs(LEASE)
        believed = self.beliefs.see(frame)
        self.sides = [self._side(*pair, frame, believed) for pair in self.choice]
        self.choice = [(m, s.rule) for (m, _), s in zip(self.choice, self.sides, strict=True)]

    def _side(self, model: str, rule: str, frame: Frame, believed: Frame) -> Side:
        """A side with this rule, or with the usual one where it does not fit the model."""
        world = self.world
        side = Side(self._model(model), self._settings(rule), world.classes, world.nodes)
        try:
            side.enter(frame, believed)
        except HogwildError:
            if rule == "auto":
                raise
            return self._side(model, "auto", frame, believed)
        return side

    def _settings(self, rule: str) -> Any:
        bounds = {name: self.timing[name] for name in ("stagger", "delay", "loss")}
        return settings(**bounds, seed=self.world.seed, rule=rule)

    def _model(self, name: str) -> Model:
        if name == GIVEN:
            assert self.given is not None
            return self.given.model
        key = self.world.task, name
        if key not in self._models:
            self._models[key] = trained(*key)
        return self._models[key]

    def _frame(self, tick: int) -> Frame:
        """The graph of the living nodes."""
        alive = np.ones(self.world.nodes, bool)
        alive[sorted(self.dead)] = False
        data = self.world.data(alive)
        return Frame(tick, data, data.node_id)

    def _change(self) -> None:
        """The graph or its features have changed."""
        if self.sleeps:
            return
        frame = self._frame(self.sides[0].simulation.time)
        believed = self.beliefs.see(frame)
        for side in self.sides:
            side.enter(frame, believed)

    # -- what there is to see ----------------------------------------------------------------------

    def scene(self) -> dict[str, Any]:
        """The scene of now, under a new number."""
        self.version, self.stale = self.version + 1, False
        world, about = self.world, self.world.about
        data, dead = self.sides[0].frame.data, sorted(self.dead)
        low, high = (about.low, about.high) if about.low < about.high else self._limits()
        i, j = data.node_id.numpy()[data.edge_index.numpy()]
        return {
            "is": "scene", "version": self.version,
            "mode": "live",
            "task": {
                "name": world.task, "title": about.title, "question": about.question,
                "answer": about.answer, "low": low, "high": high, "classes": about.classes,
            },
            "nodes": world.nodes, "seed": world.seed, "told": world.told,
            "movable": not isinstance(world, UserWorld),
            "position": rounded(world.position.ravel(), 4),
            "edges": np.stack([i, j], 1)[i < j].ravel().tolist(), "dead": dead,
            "timing": dict(self.timing), "paused": self.paused,
            "sides": [
                _about(side, model)
                for side, (model, _) in zip(self.sides, self.choice, strict=True)
            ],
        }  # fmt: skip

    def _limits(self) -> tuple[float, float]:
        """Smallest and largest exact answer, a little apart."""
        every = np.concatenate([side.exact_answer.numpy() for side in self.sides])
        low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
        return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)

    def looks(self, heard: list[list[Packets]]) -> list[tuple[Seen, int, list[Packets]]]:
        """What there is to see of every side, the ticks since its nodes began, its packets."""
        return [
            (side.look(), side.simulation.time - side.since, packets)
            for side, packets in zip(self.sides, heard, strict=True)
        ]


def _about(side: Side, model: str) -> dict[str, Any]:
    """What a page is told of a side."""
    exact = np.full(side.nodes, np.nan)
    exact[side.frame.ids.numpy()] = side.exact_answer.numpy()
    kind, in_step = MODELS.get(model), side.task_error(side.exact_answer)
    return {
        "model": model,
        "title": "Your model" if kind is None else kind.title,
        "about": "from the folder on the command line" if kind is None else kind.about,
        "rule": side.rule,
        "rules": side.rules,
        "ends": bool(side.simulation.rule.ends),
        "in_step": in_step if math.isfinite(in_step) else None,
        "exact": rounded(exact),
    }
