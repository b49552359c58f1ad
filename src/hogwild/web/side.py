"""One side of the page: a model and a rule on a world that changes, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.asynchrony.moving import Frame
from hogwild.asynchrony.schedule import Tick
from hogwild.executors.simulation import Settings, Simulation
from hogwild.executors.track import Course
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model
from hogwild.models.warm import Stream
from hogwild.problems.base import FixedPoint, Objective
from hogwild.rules import fitting

MOST_DELAY = 20
"""The longest delay that may be asked for, in ticks."""
RESTART = 150
"""Ticks after which rules that stop begin anew: without it they could not follow a change."""
DRAWN = 400
"""Packets of one tick that are drawn at most."""
TINY = 1e-300


def settings(stagger: int, delay: int, loss: float, seed: int, rule: str) -> Settings:
    """How nodes run on the page. There is always one impairment, so that any settings can follow
    any others."""
    return Settings(
        stagger=stagger, delay=delay, seed=seed, rule=rule, impairments=(BernoulliLoss(loss),)
    )


@dataclass
class Packets:
    """Packets that were heard or lost at one tick, one entry each."""

    time: int
    sender: np.ndarray
    receiver: np.ndarray
    age: np.ndarray
    lost: np.ndarray

    @classmethod
    def of(cls, tick: Tick, ends: np.ndarray, before: Tensor) -> Packets:
        """What a tick delivers that is newer than what receivers held ``before`` [E']; ``ends``
        [2, E] are the numbers of the nodes at the ends of all edges. Of very many, some."""
        lost = torch.zeros_like(tick.view, dtype=torch.bool) if tick.lost is None else tick.lost
        heard = tick.view > before
        if tick.fetched is not None:
            heard = heard & tick.fetched
        chosen = (heard | lost).nonzero()[:, 0]
        if chosen.numel() > DRAWN:
            chosen = chosen[:: -(-chosen.numel() // DRAWN)]
        edges, gone = tick.edges[chosen].numpy(), lost[chosen].numpy()
        age = (tick.time - tick.view[chosen]).clamp(0, 255).numpy()
        return cls(tick.time, ends[0, edges], ends[1, edges], np.where(gone, 0, age), gone)


@dataclass
class Seen:
    """What there is to see of one side at one moment, by the numbers of all nodes [n]."""

    error: float
    """Distance from the exact answer (largest entry), relative to the answer's largest entry."""
    task_error: float
    """Share of nodes that are wrong, or the root of the mean squared error."""
    residual: float
    """Largest entry of the gradient of the energy, or of F(h) − h; NaN: layers have none."""
    updates: float
    packets: float
    bytes: float
    answer: np.ndarray
    staleness: np.ndarray
    done: np.ndarray


@dataclass
class Side:
    """A model and a rule on a world.

    Args:
        model: The model.
        wanted: How nodes run.
        classes: Whether the model's output is a logit.
        nodes: Number of nodes that there may be; identities are below it.
    """

    model: Model
    wanted: Settings
    classes: bool
    nodes: int
    since: int = 0  # the tick at which all nodes last began

    def __post_init__(self) -> None:
        self.course = Course(self.model, self.wanted, RESTART, depth=MOST_DELAY)
        self.stream = Stream(self.model)
        self.rules: list[str] = []
        self.view = torch.zeros(0, dtype=torch.long)  # [E] time of the packet that is held

    # -- changes -----------------------------------------------------------------------------------

    def enter(self, true: Frame, believed: Frame) -> None:
        """The graph is now ``true``, and nodes believe in ``believed``."""
        self.frame, self.inputs = true, Inputs.of(true.data)
        self.problem = self.model.problem(self.inputs).detach()
        self.rules = list(fitting(self.problem))
        self.exact = self.stream.update(true.data).value  # [m, k]
        self.exact_answer = self._read(self.exact)
        self.believe(believed)

    def believe(self, believed: Frame) -> None:
        """Nodes believe in this graph from now on."""
        before = self.course.simulation
        self.course.enter(believed)
        if self.course.simulation is not before:
            if before is not None and self.course.anew:
                self.since = self.course.simulation.time
            self._look_around(believed.ids)

    def retime(self, wanted: Settings) -> None:
        """Nodes run with other bounds and losses from now on."""
        self.wanted = wanted
        self.course.retime(wanted)
        if self.course.anew:
            self.since = self.simulation.time
        view = self.view
        self._look_around(self.course.frame.ids)
        self.view = view

    def _look_around(self, ids: Tensor) -> None:
        graph = self.simulation.graph
        self.ids = ids.numpy()
        self.ends = self.ids[torch.stack([graph.src, graph.dst]).numpy()]
        timetable: Any = self.simulation.timetable
        begin = torch.full((graph.num_edges,), self.simulation.time, dtype=torch.long)
        self.view = timetable.view.clone() if hasattr(timetable, "view") else begin

    # -- ticks -------------------------------------------------------------------------------------

    @property
    def simulation(self) -> Simulation:
        """The simulation of the moment."""
        return self.course.simulation

    @property
    def rule(self) -> str:
        """The rule that nodes follow."""
        return self.course.settings.rule

    def step(self) -> Packets:
        """One tick."""
        time = self.simulation.time
        if self.simulation.rule.ends and time - self.since >= RESTART:
            self.since = time
            self.course.begin_anew()
            self._look_around(self.course.frame.ids)
        tick = self.course.step()
        before = self.view[tick.edges]
        self.view[tick.edges] = tick.view
        return Packets.of(tick, self.ends, before)

    def look(self) -> Seen:
        """What there is to see now."""
        simulation, m = self.simulation, self.frame.ids.numel()
        k, ids = self.exact.size(-1), self.frame.ids.numpy()
        h = self.course.h[0, -k:, :m]  # [k, m]
        gap = float((h.T - self.exact).abs().max()) if m else 0.0
        out = self._read(h.T.contiguous())
        spent = self.course.spent()[:, 0].double() / max(m, 1)
        age = (simulation.time - self.view).clamp_min(0)
        oldest = torch.zeros(simulation.graph.num_nodes, dtype=torch.long)
        oldest.scatter_reduce_(0, simulation.graph.dst, age, "amax")
        return Seen(
            gap / max(float(self.exact.abs().max()) if m else 0.0, TINY),
            self.task_error(out),
            self._residual(h),
            float(spent[0]),
            float(spent[1]),
            float(spent[2]),
            self._all(ids, out),
            self._all(ids, oldest[:m]),
            self._all(ids, (~simulation.active[:m]).long()),
        )

    def _all(self, ids: np.ndarray, values: Tensor) -> np.ndarray:
        whole = np.full(self.nodes, np.nan, np.float32)
        whole[ids] = values.numpy()
        return whole

    def _read(self, h: Tensor) -> Tensor:
        """The answers [m] of embeddings [m, k]."""
        out = self.model.read(h.to(self.exact.dtype), self.inputs)[:, 0]
        return torch.sigmoid(out) if self.classes else out

    def task_error(self, answer: Tensor) -> float:
        """Share of nodes that are wrong, or the root of the mean squared error, of answers [m]."""
        y = self.frame.data.get("y")
        if y is None or y.size(0) != answer.numel() or not answer.numel():
            return float("nan")
        if self.classes:
            return float(((answer > 0.5) != (y.reshape(-1) > 0.5)).double().mean())
        return float((answer - y.reshape(answer.numel(), -1)[:, 0]).square().mean().sqrt())

    def _residual(self, h: Tensor) -> float:
        at = h.unsqueeze(0)
        if not h.numel() or at.size(1) != self.problem.channels:
            return float("nan")
        if isinstance(self.problem, Objective):
            return float(self.problem.evaluate(at).gradient.abs().max())
        if isinstance(self.problem, FixedPoint):
            return float(self.problem.residual(at).abs().max())
        return float("nan")
