"""A model's robustness over settings of asynchrony: stagger, delay and packet loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.advice import counted, remedy
from hogwild.analysis.robustness import Robustness, measure
from hogwild.asynchrony.impairment import Impairment, check_impairments
from hogwild.asynchrony.impairments import BernoulliLoss, Latency
from hogwild.asynchrony.schedule import check_bounds
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.executors.simulate import Case
from hogwild.models.base import Model
from hogwild.models.wrapped import runnable
from hogwild.progress import aligned, bar, shown, size, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VALUES = {
    "decrease": "mean decrease of performance",
    "spread": "mean spread of predictions",
    "distance": "largest distance of predictions",
    "converged": "share of runs converged",
    "ticks": "ticks until the last run ended",
    "updates": "updates a node",
    "packets": "packets a node sent",
    "bytes": "bytes a node sent",
    "deadline": "updates a node until within 5 % of the synchronous error",
    "deadline_bytes": "bytes a node until within 5 % of the synchronous error",
    "light_cone": "updates a node until information has crossed the graph",
}
"""What a sweep can show for every setting: entries of :meth:`Robustness.summary`, and the light
cone."""


@dataclass
class Sweep:
    """A model's robustness over settings of asynchrony.

    Attributes:
        staggers: Values of S.
        delays: Values of D, or latencies.
        losses: Rates of packet loss.
        results: The result for each (loss, S, D).
        lag: What ``delays`` are: ``"D"``, or ``"latency"``
            (:class:`~hogwild.asynchrony.Latency`).
    """

    staggers: tuple[int, ...]
    delays: tuple[int, ...]
    losses: tuple[float, ...]
    results: dict[tuple[float, int, int], Robustness]
    lag: str = "D"

    @property
    def first(self) -> Robustness:
        """The result for the first setting."""
        return next(iter(self.results.values()))

    def at(self, stagger: int, delay: int, loss: float | None = None) -> Robustness:
        """The result for one setting."""
        wanted = (self.losses[0] if loss is None else loss, stagger, delay)
        if wanted not in self.results:
            raise ConfigError(
                f"(stagger, delay, loss) = {(stagger, delay, wanted[0])} was not swept; expected "
                f"values from {self.staggers}, {self.delays}, {self.losses}"
            )
        return self.results[wanted]

    def grid(self, value: str | None = None) -> Tensor:
        """One number of every setting, [losses, staggers, delays]: one of :data:`VALUES`, by
        default ``"decrease"`` with a target and ``"spread"`` without."""
        value = self.check_value(value)
        numbers = [row[value] for row in self.rows()]
        shape = len(self.losses), len(self.staggers), len(self.delays)
        return torch.tensor(numbers, dtype=torch.float64).view(shape)

    def rows(self) -> list[dict[str, float]]:
        """One row a setting: the setting, its :meth:`Robustness.summary`, its light cone (updates a
        node until information has crossed the graph)."""
        lag = "delay" if self.lag == "D" else self.lag
        return [
            {"stagger": s, lag: d, "loss": p}
            | result.summary()
            | {"light_cone": result.deadlines.cone.mean}
            for (p, s, d), result in self.results.items()
        ]

    @property
    def heading(self) -> str:
        """What was swept, in words."""
        head = self.first
        return f"{head.model} ({head.kind}), {counted(head.settings.runs, 'schedule')} each"

    def plot(self, path: str | Path | None = None, *, value: str | None = None) -> Figure:
        """A heat map over S and D for every rate of loss; ``value`` as in :meth:`grid`."""
        from hogwild.plots.charts import heatmap

        return heatmap(self, value, path)

    def __str__(self) -> str:
        head = self.first
        known = head.metric is not None
        rows = [["loss", "S", self.lag, *["decrease"] * known, "distance", "arrived", "ticks",
                 "updates", "packets", "bytes", "light cone", "5 %: updates",
                 "5 %: bytes"]]  # fmt: skip
        for (loss, s, d), result in self.results.items():
            row, price = result.summary(), result.price
            lost = [result.metric.show(row["decrease"])] if result.metric is not None else []
            cone, near = result.deadlines.cone, result.deadlines.within()
            rows.append([
                f"{loss:.0%}", str(s), str(d), *lost, f"{row['distance']:.2g}",
                f"{result.converged:.0%}", f"{price.ticks:,}", shown(price.updates),
                shown(price.packets), size(price.bytes), shown(cone.mean) if cone.crossed else "–",
                *(["never", "–"] if near is None else [shown(near.updates), size(near.bytes)]),
            ])  # fmt: skip
        what = f"mean decrease of performance ({head.metric.name}), " if head.metric else ""
        title = (
            f"{self.heading}, rule {head.run.rule}: {what}largest distance of predictions, share "
            f"of runs that arrived; ticks, and a node's mean updates, packets and bytes; updates a "
            f"node in which information can cross the graph (light cone); updates and bytes a node "
            f"until within 5 % of the synchronous {'error' if known else 'embeddings'}"
        )
        return "\n\n".join([title, aligned(rows), wrapped(f"In time: {self.advice}")])

    @cached_property
    def advice(self) -> str:
        """Where the error is in time for least and for most, and what would help there."""
        named = {
            f"S = {s}, {self.lag} = {d}" + (f", {p:.0%} lost" if p else ""): one.deadlines
            for (p, s, d), one in self.results.items()
        }
        ready = {name: near for name, one in named.items() if (near := one.within()) is not None}
        late = [name for name in named if name not in ready]
        order = sorted(ready, key=lambda name: ready[name].ticks)
        sentences = [f"{name}: {named[name].sentence()}" for name in order[:1]]
        sentences += [f"{name}: {named[name].reached()}" for name in order[1:][-1:]]
        if late:
            some = "; ".join(late[:3]) + ("; …" if len(late) > 3 else "")
            never = f"never in these ticks in {len(late)} of {len(named)} settings ({some})"
            sentences.append(never)
        worst = late[0] if late else order[-1]
        return ". ".join([*sentences, remedy(worst, named[worst])]) + "."

    def check_value(self, value: str | None) -> str:
        """The number that :meth:`grid` shows; anything else than one of :data:`VALUES` raises."""
        known = self.first.decrease is not None
        value = ("decrease" if known else "spread") if value is None else value
        if value not in VALUES or (value == "decrease" and not known):
            names = [name for name in VALUES if known or name != "decrease"]
            raise ConfigError(f"value={value!r}; expected one of {', '.join(names)}")
        return value


def sweep(
    model: Model | nn.Module,
    data: Data | Batch | Iterable[Data],
    *,
    staggers: Sequence[int] = (1, 2, 5, 10),
    delays: Sequence[int] = (0, 2, 5),
    latencies: Sequence[int] = (),
    losses: Sequence[float] = (0.0,),
    runs: int = 5,
    impairments: Impairment | Sequence[Impairment] = (),
    progress: bool | None = None,
    **options: Any,
) -> Sweep:
    """:func:`robustness` for every combination of stagger, delay and rate of packet loss.

    ``model`` and ``data`` are as in :func:`hogwild.simulate`.

    Args:
        staggers: Values of S.
        delays: Values of D. The mean age of a packet is at most (S + 1) / 2 however large D is, so
            that large values differ little.
        latencies: Ages that all packets have in ticks (:class:`~hogwild.asynchrony.Latency`), in
            place of ``delays``.
        losses: Rates of independent packet loss
            (:class:`~hogwild.asynchrony.BernoulliLoss`), beside other impairments.
        runs: Number of schedules for each combination; all share the seed.
        impairments: What else goes wrong, in all of them.
        progress: Show a progress bar; by default in a terminal or a notebook.
        options: All other arguments of :func:`robustness` but ``compare``: sweep again with another
            ``rule``.
    """
    require_positive("runs", runs)
    for one, several in (("stagger", "staggers"), ("delay", "delays"), ("loss", "losses")):
        if one in options:
            raise ConfigError(
                f"{one}={options[one]!r} was given to a sweep, which goes over several values; "
                f"use {several}="
            )
    constant = not isinstance(latencies, Sequence) or len(latencies) > 0
    lag, lags = ("latencies", latencies) if constant else ("delays", delays)
    for name, values in (("staggers", staggers), (lag, lags), ("losses", losses)):
        if not isinstance(values, Sequence | np.ndarray) or not len(values):
            raise ConfigError(f"{name}={values!r}; expected a non-empty sequence of numbers")
    staggers = [check_bounds(s, 0)[0] for s in staggers]
    lags = [require_integer(lag, d, 0) if constant else check_bounds(1, d)[1] for d in lags]
    lossy = {loss: (BernoulliLoss(loss),) if loss else () for loss in losses}
    impaired = check_impairments(impairments)
    names = ("metric", "higher_is_better", "target", "mask")
    case = Case(runnable(model), data)
    case.score_by(*(options.pop(name, None) for name in names))
    found = Sweep(tuple(staggers), tuple(lags), tuple(losses), {}, "latency" if constant else "D")
    settings = list(product(losses, staggers, lags))
    with bar(len(settings), progress, "setting", "sweeping") as seen:
        for loss, stagger, delay in settings:
            seen.set_postfix_str(f"S = {stagger}, {found.lag} = {delay}")
            late = (Latency(delay),) if constant else ()
            made = {
                "runs": runs, "stagger": stagger, "delay": delay, "progress": False,
                "impairments": (*late, *impaired, *lossy[loss]),
            }  # fmt: skip
            found.results[loss, stagger, delay] = measure(case, (), options | made)
            seen.update()
    return found
