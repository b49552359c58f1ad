"""A view of a tracked run from outside: how far each node is from the answer of the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.scenario import Frame, Numbering, Scenario
from hogwild.executors.run import NUMBER
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Simulation
from hogwild.executors.tracked import Track
from hogwild.graph.inputs import Inputs
from hogwild.metrics import choose
from hogwild.models.base import Model
from hogwild.models.stream import Stream
from hogwild_node.rules.base import Pairs

if TYPE_CHECKING:
    from hogwild.executors.track import Course

BACK = 30
"""How many frames back an answer is looked for that the embeddings are nearest to."""


class Observer:
    """Measures a tracked run.

    Q runs; U nodes that are ever there, numbered in the order in which they appear.
    """

    def __init__(
        self,
        model: Model,
        scenario: Scenario,
        runs: int,
        every: int,
        score: Callable[[Tensor, Data], float] | None,
        keep: bool,
    ) -> None:
        self.model, self.scenario, self.runs, self.every = model, scenario, runs, every
        self.keep, self.given = keep, score
        self.numbers, self.ids = Numbering(), scenario.ids
        self.stream = Stream(model)
        self.frame: Frame | None = None
        self.inputs: Inputs | None = None
        count = self.ids.numel()
        self.bill = torch.zeros(3, runs, count, dtype=torch.long)
        self.node_ticks = 0
        self.answer = torch.zeros(0)  # [U, k] of the present frame
        self.answers: list[Tensor] = []  # [U, k], NaN where a node is not there
        self.moves: list[float] = []
        self.spoken = Spoken(runs)
        self.base = torch.zeros(runs, dtype=torch.long)  # updates when the frame began
        self.records: dict[str, list[Tensor]] = {
            name: []
            for name in ("error", "lag", "since", "updates", "packets", "bytes", "score", "h")
        }
        self.times: list[int] = []
        name = getattr(score, "__name__", "score")
        self.score_name = "score" if name == "<lambda>" else name
        self.best: list[float] = []  # the score of the exact answer of every frame

    # -- the bill ----------------------------------------------------------------------------------

    def add(self, nodes: Tensor, *counts: Tensor) -> None:
        """Add updates, packets and bytes [Q · N] of these nodes, by their numbers [N]."""
        for row, count in zip(self.bill, counts, strict=True):
            row[:, nodes] += count.view(self.runs, -1).cpu()

    def _spent(self, course: Course) -> Tensor:
        """Updates, packets and bytes so far, [3, Q]."""
        tally = course.simulation.tally
        running = (tally.updates, tally.packets, NUMBER * tally.numbers)
        now = torch.stack([x.view(self.runs, -1).sum(1).cpu() for x in running])
        return self.bill.sum(-1) + now

    # -- frames ------------------------------------------------------------------------------------

    def enter(self, frame: Frame, course: Course) -> None:
        """The graph has changed, for the nodes or in truth."""
        true = self.scenario.at(frame.time)
        if true is self.frame:
            return
        self.frame, self.inputs = true, Inputs.of(true.data)
        self.places = self.numbers(true.ids)
        value = self.stream.update(true.data).value
        answer = torch.full((self.ids.numel(), value.size(-1)), torch.nan, dtype=torch.float64)
        answer[self.places] = value.double().cpu()
        if self.answers:
            moved = (answer - self.answers[-1]).abs().amax(-1)
            self.moves.append(float(moved[~moved.isnan()].square().mean().sqrt()))
        self.answers.append(answer)
        self.answer = value
        self.base = self._spent(course)[0]
        self._measure(value)

    def _measure(self, value: Tensor) -> None:
        """How good the exact answer is."""
        assert self.frame is not None
        assert self.inputs is not None
        self.score = self.given
        y = self.frame.data.get("y")
        out = self.model.read(value, self.inputs)
        if self.score is None and y is not None and y.dim() and y.size(0) == out.size(0):
            metric = choose(None, None, out, y)
            self.score_name = "share of wrong nodes" if metric.higher_is_better else metric.name
            if metric.higher_is_better:  # accuracy: its complement
                self.score = lambda out, data: 1.0 - float(metric(out, data.y))
            else:
                self.score = lambda out, data: float(metric(out, data.y))
        if self.score is not None:
            self.best.append(float(self.score(out, self.frame.data)))

    # -- ticks -------------------------------------------------------------------------------------

    def look(self, t: int, course: Course) -> None:
        """Look at the run after tick ``t``."""
        assert self.frame is not None
        self.node_ticks += self.frame.ids.numel()
        h = self.spoken.look(course.simulation, course.names.nodes, self.answer.size(-1))
        if t % self.every and t != self.scenario.length - 1:
            return
        n = self.frame.ids.numel()
        own = h.view(h.size(0), self.runs, -1)[..., :n].permute(1, 2, 0)  # [Q, N, k]
        error = torch.full((self.runs, self.ids.numel()), torch.nan, dtype=torch.float64)
        gap = (own.double() - self.answer.double()).abs().amax(-1).cpu()
        error[:, self.places] = gap
        spent = self._spent(course)
        self.times.append(t)
        found = {
            "error": error,
            "lag": self._lag(t, own),
            "since": (spent[0] - self.base).double() / n,
            "updates": spent[0],
            "packets": spent[1],
            "bytes": spent[2],
        }
        if self.score is not None:
            data, inputs = self.frame.data, self.inputs
            assert inputs is not None
            outs = [self.model.read(one.to(self.answer.dtype), inputs) for one in own]
            found["score"] = torch.tensor([float(self.score(out, data)) for out in outs])
        if self.keep:
            whole = torch.full((*error.shape, own.size(-1)), torch.nan, dtype=own.dtype)
            whole[:, self.places] = own.cpu()
            found["h"] = whole
        for name, value in found.items():
            self.records[name].append(value)

    def _lag(self, t: int, own: Tensor) -> Tensor:
        """Ticks since the answer was replaced that the embeddings are nearest to, [Q]."""
        past = torch.stack(self.answers[-BACK:])[:, self.places]  # [F, N, k]
        gap = (own.double().cpu().unsqueeze(1) - past).square().sum(-1)  # [Q, F, N]
        distance = gap.nanmean(-1)  # nodes that were not there do not count
        distance = torch.where(distance.isnan(), torch.inf, distance)
        nearest = past.size(0) - 1 - distance.flip(-1).argmin(-1)  # of equals, the latest
        starts = self.scenario.times[: len(self.answers)][-BACK:]
        replaced = torch.tensor([*starts[1:], t])
        return t - replaced[nearest]

    def report(self, settings: Settings, restart: int | None, lease: int, seconds: float) -> Track:
        """What was seen."""
        assert self.frame is not None
        stacked = {name: torch.stack(each) for name, each in self.records.items() if each}
        return Track(
            scenario=self.scenario,
            ids=self.ids,
            times=self.times,
            error=stacked["error"],
            lag=stacked["lag"],
            since=stacked["since"],
            updates=stacked["updates"],
            packets=stacked["packets"],
            bytes=stacked["bytes"],
            score=stacked.get("score"),
            exact_score=self.best or None,
            score_name=self.score_name,
            answers=torch.stack(self.answers),
            moves=torch.tensor(self.moves, dtype=torch.float64),
            embeddings=stacked.get("h"),
            node_ticks=self.node_ticks,
            settings=settings,
            restart=restart,
            lease=lease,
            seconds=seconds,
        )


class Spoken:
    """The embeddings that nodes would answer with: those that they have, or, of rules that stop,
    those of the last complete pass."""

    def __init__(self, runs: int = 1) -> None:
        self.runs = runs
        self.held: Tensor | None = None  # [k, Q · N] results of the last complete pass
        self.told: Tensor | None = None  # numbers of the nodes of ``held``

    def look(self, simulation: Simulation, nodes: Tensor, k: int) -> Tensor:
        """The last k channels [k, Q · N]; ``nodes`` [N] are the numbers of the nodes."""
        h = simulation.h[0, -k:]
        if not simulation.rule.ends:
            return h
        if self.held is None:
            self.held, self.told = simulation.start[0, -k:].clone(), nodes
        elif self.told is None or not torch.equal(nodes, self.told):
            assert self.told is not None
            new = simulation.start[0, -k:].clone()
            here, there = _copies(nodes, self.told, self.runs)
            new[:, here] = self.held[:, there]
            self.held, self.told = new, nodes
        everyone = torch.arange(h.size(-1), device=h.device)
        done = simulation.rule.finished(everyone)
        if done is not None:
            self.held = torch.where(done, h, self.held)
        return self.held


def _copies(now: Tensor, before: Tensor, runs: int) -> Pairs:
    """Where the nodes that stay are in ``runs`` copies, and where they were."""
    equal = now[:, None] == before[None]
    here, there = equal.nonzero().unbind(1)
    run = torch.arange(runs)[:, None]
    first, second = here + now.numel() * run, there + before.numel() * run
    return first.flatten(), second.flatten()
