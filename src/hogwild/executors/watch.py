"""How far each run of a simulation is from the synchronous answer, and how good it predicts.

A score is a metric with its targets and the items that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import InputError
from hogwild.executors.deadlines import Looks
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Simulation
from hogwild.metrics import Metric, choose
from hogwild.metrics import Score as Function

PATIENCE, MARGIN = 500, 0.01
"""Runs with wrong packets have stalled after at least ``PATIENCE`` ticks in which no distance from
the answer fell by the share ``MARGIN``."""
NUMBER = 4
"""Bytes of a number on the wire: a float32."""
SHARE = 50
"""Looks at a run are at most a fiftieth of its ticks apart, so that its price is right to 2 %."""


def looks(t: int) -> bool:
    """Whether a run is looked at after tick ``t``: after every tick at first, less often later."""
    return t % max(1, t // SHARE) == 0


class Watch:
    """Measures the distance of every run from the synchronous answer, and ends runs.

    Args:
        simulation: The simulation.
        targets: The answers of all levels, [R, k, Q·N] each.
        channels: Width of the model's embeddings: those of the last levels.
        settings: The tolerance, what is recorded, and the impairments.
        ticks: Ticks after which the simulation ends in any case.
        score: From the model's embeddings [R, k, Q·N] to the task's error; ``None``:
            there is no target.
    """

    def __init__(
        self,
        simulation: Simulation,
        targets: list[Tensor],
        channels: int,
        settings: Settings,
        ticks: int,
        score: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.simulation, self.graph, self.targets = simulation, simulation.graph, targets
        self.channels, self.settings, self.ticks = channels, settings, ticks
        self.widths = [target.size(1) for target in targets]
        tiny = torch.finfo(targets[-1].dtype).tiny
        self.scales = [self.graph.norm(target).clamp_min(tiny) for target in targets]  # [R, Q·G]
        self.deviation = self._distance()
        self.halfway: tuple[int, Tensor] | None = None
        self.reached = torch.full_like(self.deviation[0], -1, dtype=torch.long)
        exact = all(impairment.exact for impairment in settings.impairments)
        self.stall = None if exact else Stall()
        self.stalled = False
        self.times: list[int] = []
        self.history: list[Tensor] = []
        self.embeddings: list[Tensor] = []
        self.score, self.looks = score, Looks()
        self._note(0)

    def _note(self, ticks: int) -> None:
        """Note what the runs have cost after so many ticks, and what they are worth."""
        tally, error = self.simulation.tally, None if self.score is None else self.score(self.h)
        solved = self.simulation.solved
        counts = (tally.updates, tally.packets, NUMBER * tally.numbers, solved)
        each = [count.view(self.settings.runs, -1) for count in counts]
        self.looks.note(ticks, each, self.deviation, error)

    @property
    def goal(self) -> float | None:
        """The deviation at which runs end; ``None``: they do not end at a deviation."""
        return None if self.simulation.rule.ends else self.settings.tol

    @property
    def h(self) -> Tensor:
        """The model's embeddings, [R, k, Q·N]."""
        return self.simulation.h[:, -self.channels :]

    def _distance(self) -> Tensor:
        """Distance relative to the level's answer, largest over the levels, [R, Q·G]."""
        levels = self.simulation.h.split(self.widths, 1)
        found = [
            self.graph.norm(h - target) / scale
            for h, target, scale in zip(levels, self.targets, self.scales, strict=True)
        ]
        return torch.stack(found).amax(0)

    def look(self, t: int) -> bool:
        """Look at the runs after tick ``t``; returns whether nothing is left to do."""
        times, half = self.settings.history, self.ticks // 2
        record = t % times == 0 if isinstance(times, int) else times is not None and t in times
        if not (record or looks(t) or t in (half, self.ticks - 1)):
            return False
        self.deviation = self._distance()
        over = self._over(t, record)
        if over or t == self.ticks - 1 or self.looks.due(t + 1):
            self._note(t + 1)
        return over

    def _over(self, t: int, record: bool) -> bool:
        """Whether nothing is left to do after tick ``t``."""
        half = self.ticks // 2
        if self.halfway is None and t >= half:
            self.halfway = t, self.deviation
        if record:
            self.times.append(t)
            self.history.append(self.deviation.clone())
            if self.settings.keep_embeddings:
                self.embeddings.append(self.h.clone())
        if self.simulation.rule.ends:
            return self.simulation.finished
        if self.goal is None:
            return False
        fresh = (self.deviation <= self.goal).all(0) & (self.reached < 0)
        if bool(fresh.any()):
            self.reached[fresh] = t
            self.simulation.retire(fresh[self.graph.batch].nonzero()[:, 0])
        over = self.reached >= 0
        if self.stall is not None and not bool(over.all()):
            over = over | self.stall.look(t, torch.stack([self.deviation, self._total()]))
            self.stalled = bool(over.all())
        return bool(over.all())

    def _total(self) -> Tensor:
        """Sum of all distances from the answers, [R, Q·G]. While news still travels, this sum
        falls even where the largest distance does not."""
        gaps = (self.simulation.h - torch.cat(self.targets, 1)).abs().sum(1)
        return self.graph.sum(gaps)


class Stall:
    """Knows when runs last came nearer to the answer: one of their distances fell by
    :data:`MARGIN`."""

    def __init__(self) -> None:
        self.best = self.since = torch.empty(0)

    def look(self, t: int, distances: Tensor) -> Tensor:
        """Which runs have not come nearer for half of all ticks, and for long, [Q·G], by their
        distances [kinds, R, Q·G] after tick ``t``."""
        if not self.best.numel():
            self.best, self.since = distances, torch.full_like(distances, t)
        better = distances < (1.0 - MARGIN) * self.best
        self.best = torch.where(better, distances, self.best)
        self.since = torch.where(better, t, self.since)
        return (t - self.since >= max(PATIENCE, t // 2)).flatten(0, 1).all(0)


@dataclass(frozen=True)
class Score:
    """A metric of predictions [..., N, out] against given targets.

    Attributes:
        metric: The metric.
        target: The targets of the items that count.
        keep: Which items count, [N]; ``None``: all.
    """

    metric: Metric
    target: Tensor
    keep: Tensor | None = None

    def __call__(self, prediction: Tensor) -> Tensor:
        """The metric of predictions [..., N, out], [...] in double precision on the CPU."""
        chosen = prediction if self.keep is None else prediction[..., self.keep, :]
        return self.metric(chosen, self.target).double().cpu()


def score_of(
    prediction: Tensor,
    data: Data | Sequence[Data],
    metric: str | Function | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
) -> Score | None:
    """The score of predictions like these, [..., N, out]; ``None``: there are no targets. The
    other arguments are those of :func:`hogwild.robustness`; targets that do not fit raise."""
    if target is None:
        target = (data if isinstance(data, Data) else Batch.from_data_list(list(data))).y
    keep = None if mask is None else _check_mask(mask, prediction.size(-2))
    if target is None:
        if metric is not None:
            raise InputError(
                f"metric={metric!r} was given and data has no y; expected data.y, or target=..."
            )
        return None
    if target.is_floating_point() and bool(target.isnan().any()):
        raise InputError(
            f"NaN values in the target: {int(target.isnan().sum())}; expected numbers, "
            f"or target= and mask= without those that are missing"
        )
    chosen = prediction
    if keep is not None:
        chosen = prediction[..., keep, :]
        if target.dim() and target.size(0) == keep.numel():
            target = target[keep]
    return Score(choose(metric, higher_is_better, chosen, target), target, keep)


def _check_mask(mask: Tensor, n: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any()):
        raise InputError(
            f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of it "
            f"set; expected a boolean [{n}], one for each prediction, with some of them set"
        )
    return mask
