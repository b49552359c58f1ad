r"""What asynchrony costs a model: the paper's second table, for any model on any data.

A model's predictions are compared between synchronous inference and a number of random schedules.
With q schedules, predictions :math:`\hat y^{(q)}` and the synchronous :math:`\hat y`,

.. math::
    \text{decrease} &= \pm\bigl(\operatorname{metric}(\hat y, y)
        - \operatorname{metric}(\hat y^{(q)}, y)\bigr) \quad\text{(positive is worse)} \\
    \text{spread}_i &= \max_o \operatorname{std}_q \hat y^{(q)}_{io} \,/\, \|\hat y\|_\infty \\
    \text{distance}_i &= \max_{o, q} |\hat y^{(q)}_{io} - \hat y_{io}| \,/\, \|\hat y\|_\infty

for every item i, a node or a graph. The spread alone can deceive: where nonlinearities saturate,
all schedules may agree on the same wrong value. Only the distance shows that.

The report also has the price (ticks, updates, packets and bytes) and what is proved. Runs that
arrive here are an observation; that all other runs arrive needs a proof (:func:`hogwild.certify`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.advice import advice, counted, table, verdict
from hogwild.analysis.certificate import Certificate
from hogwild.analysis.certify import certified
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.executors.deadlines import Deadlines, Price
from hogwild.executors.run import Run
from hogwild.executors.simulate import Case
from hogwild.executors.simulation import Settings
from hogwild.metrics import Metric, Score, cost
from hogwild.models.base import Kind, Model
from hogwild.models.wrapped import WrappedGNN, runnable
from hogwild.progress import wrapped
from hogwild.rules import about, fitting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ENOUGH = 10
"""Nodes or graphs without which an error is no base for advice."""


@dataclass
class Robustness:
    """What asynchrony does to a model. Q schedules, N items (nodes or graphs); with replicas
    there is an R after Q, or in front.

    Attributes:
        model: Name of the model's class.
        kind: Its place in the paper's taxonomy.
        prediction: Synchronous predictions, [N, out].
        spread: Standard deviation of each item's predictions over schedules, largest output,
            relative to the largest synchronous prediction, [N].
        distance: Largest distance of each item's predictions from the synchronous ones, likewise
            relative, [N].
        metric: What performance is measured by; ``None`` without a target.
        synchronous: Performance of synchronous inference, [] or [R].
        asynchronous: Performance of each schedule, [Q].
        decrease: Performance lost in each schedule, [Q]; positive is worse.
        converged: Share of runs (of graphs under schedules) that ended at the synchronous answer.
        certificate: What is proved of this rule, with this step and these impairments.
        run: The simulation itself.
        scored: How many nodes or graphs the metric is of.
        others: Runs with other rules under the same schedules, by rule (``compare``).
        left_out: Rules that ``compare="all"`` left out since they cannot run here, and why.
    """

    model: str
    kind: Kind
    prediction: Tensor
    spread: Tensor
    distance: Tensor
    metric: Metric | None
    synchronous: Tensor | None
    asynchronous: Tensor | None
    decrease: Tensor | None
    converged: float
    certificate: Certificate
    run: Run
    scored: int
    others: dict[str, Run] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of the runs."""
        return self.run.settings

    @property
    def price(self) -> Price:
        """Ticks, and what a node did and sent until its run ended."""
        return self.run.price

    @property
    def deadlines(self) -> Deadlines:
        """What the runs had cost, and the task's error, at each deadline."""
        return self.run.deadlines

    @property
    def compared(self) -> dict[str, Deadlines]:
        """The deadlines of this rule and of the others that it was compared with, by rule."""
        return {run.rule: run.deadlines for run in (self.run, *self.others.values())}

    @cached_property
    def verdict(self) -> str:
        """A summary in a few sentences, with advice where runs did not arrive."""
        return verdict(self)

    @cached_property
    def advice(self) -> str:
        """How many updates and bytes for which error, which rule to take, and what would help."""
        if self.metric is not None and self.scored < ENOUGH:
            return f"{self.items} are too few for advice; expected at least {ENOUGH}."
        return advice(self.compared)

    @property
    def items(self) -> str:
        """What is scored, in words."""
        rows, graphs = self.prediction.size(-2), self.run.converged.size(-1)
        of = f" of {counted(graphs, 'graph')}"
        if rows == self.run.h.size(-2):
            return counted(self.scored, "node") + of
        return counted(self.scored, "graph") + of * (self.scored < rows)

    def shown(self, name: str) -> str:
        """Mean ± deviation of a number of :meth:`summary`; of a single value, or of values that are
        all equal, their mean."""
        assert self.metric is not None
        row = self.summary()
        mean, deviation = self.metric.show(row[name]), row[name + "_std"]
        return f"{mean} ± {self.metric.show(deviation)}" if deviation > 0 else mean

    def summary(self) -> dict[str, float]:
        """The numbers of one row of a table: means (and deviations) over schedules and replicas,
        the mean spread, the largest distance, the share of runs that arrived, the price; and the
        updates and bytes of a node until the error was within 5 % of the synchronous one (NaN:
        never)."""
        out: dict[str, float] = {}
        if self.synchronous is not None:
            assert self.asynchronous is not None
            assert self.decrease is not None
            out["synchronous"] = float(self.synchronous.mean())
            for name, values in (("asynchronous", self.asynchronous), ("decrease", self.decrease)):
                alone = values.numel() < 2
                out[name] = float(values.mean())
                out[name + "_std"] = float("nan") if alone else float(values.std())
        out["spread"], out["distance"] = float(self.spread.mean()), float(self.distance.max())
        near = self.deadlines.within()
        out |= {"converged": self.converged} | vars(self.price)
        out["deadline"] = float("nan") if near is None else near.updates
        return out | {"deadline_bytes": float("nan") if near is None else near.bytes}

    def __str__(self) -> str:
        made = self.settings
        impaired = "".join(f", {impairment!r}" for impairment in made.impairments)
        lines = [
            f"{self.model} ({self.kind}), {counted(made.runs, 'schedule')}, S = {made.stagger}, "
            f"D = {made.delay}{impaired}; rule {made.rule}",
            "",
        ]
        if self.metric is not None:
            row = (
                f"{self.metric.name:12}{self.metric.show(self.summary()['synchronous']):>14}"
                f"{self.shown('asynchronous'):>24}{self.shown('decrease'):>24}"
            )
            over = f"; each ± is over {counted(made.runs, 'schedule')}" if "±" in row else ""
            lines += [
                f"{'':12}{'synchronous':>14}{'asynchronous':>24}{'decrease':>24}",
                row, f"of {self.items}{over}", "",
            ]  # fmt: skip
        title = "predictions, relative to the largest synchronous one"
        lines.append(f"{title:54}{'mean':>10}{'largest':>10}")
        moved = {"spread over schedules": self.spread}
        moved["distance from the synchronous ones"] = self.distance
        for name, values in moved.items():
            lines.append(f"  {name:52}{float(values.mean()):>10.2g}{float(values.max()):>10.2g}")
        lines.append(f"{'runs that ended at the synchronous answer':54}{self.converged:>10.0%}")
        lines += [f"price: {self.price}", "", str(self.deadlines), ""]
        if self.others:
            lines += [table(self.compared), ""]
        lines += [wrapped(f"Left out: {name}: {why}.") for name, why in self.left_out.items()]
        lines += [""] if self.left_out else []
        return "\n".join([*lines, wrapped(f"In time: {self.advice}"), "", self.verdict])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Performance of every schedule, and asynchronous against synchronous predictions."""
        from hogwild.plots.charts import comparison

        return comparison(self, path)


def robustness(
    model: Model | nn.Module,
    data: Data | Batch | Iterable[Data],
    *,
    runs: int = 5,
    metric: str | Score | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    compare: str | Sequence[str] = (),
    **options: Any,
) -> Robustness:
    """What random schedules do to a model's predictions and performance.

    ``model`` and ``data`` are as in :func:`hogwild.simulate`.

    Args:
        runs: Number of schedules.
        metric: One of :data:`hogwild.metrics.METRICS` by name, or a function of (predictions
            [n, out], targets) to a number. By default accuracy for integer targets (with one
            output: its sign), and the root of the mean squared error for floats.
        higher_is_better: Whether higher values of your own function are better; by default, lower
            values are.
        target: The targets of the predictions; ``data.y`` by default. Without targets only the
            predictions themselves are compared.
        mask: Which items to score, [N]; all by default. Spread and distance are of all items.
        compare: Other rules to run under the same schedules: names of rules, or ``"all"`` for all
            that can run here. Their cost and error are printed beside. Rules that have no use for
            ``step`` run with ``"auto"``.
        options: All other arguments of :func:`hogwild.simulate`: ``stagger``, ``delay``, ``seed``,
            ``impairments``, ``rule``, ``step``, ``radius`` (of balls, also where they are
            compared), ``ticks``, ``tol``, ``progress`` …
    """
    case = Case(runnable(model), data)
    case.score_by(metric, higher_is_better, target, mask)
    return measure(case, compare, {"runs": runs} | options)


def measure(case: Case, compare: str | Sequence[str], options: dict[str, Any]) -> Robustness:
    """:func:`robustness` of a model on graphs, with the other arguments of
    :func:`hogwild.simulate`."""
    if not isinstance(compare, Collection):
        raise ConfigError(f"compare={compare!r}; expected names of rules, or 'all'")
    names = (compare,) if isinstance(compare, str) else tuple(compare)
    others = _others(case, names)
    how = {name: options[name] for name in ("record", "replay", "progress") if name in options}
    given = {name: value for name, value in options.items() if name not in how}
    with_radius = any("radius" in about(rule).options for rule in others)
    first = _by(options.get("rule", "auto"), given) if with_radius else given
    run = case.run(Settings(**first), **how)
    prediction, score, name = case.prediction, case.score, type(case.model).__name__
    tiny = torch.finfo(prediction.dtype).tiny
    size = prediction.abs().amax((-2, -1), keepdim=True).clamp_min(tiny).squeeze(-1)  # [1], [R, 1]
    spread = run.predictions.std(0, correction=0).amax(-1) / size
    distance = (run.predictions - prediction).abs().amax(0).amax(-1) / size
    metric = before = after = lost = None
    count = prediction.size(-2)
    if score is not None:
        metric, before, after = score.metric, score(prediction), score(run.predictions)
        lost = cost(after - before, metric.higher_is_better)
        count = count if score.keep is None else int(score.keep.sum())
    out = Robustness(
        case.model.name if isinstance(case.model, WrappedGNN) else name, case.model.kind,
        prediction, spread, distance, metric, before, after, lost,
        float(run.converged.double().mean()), certified(case, run.settings), run, count,
    )  # fmt: skip
    how.pop("record", None)  # the file holds the schedule of the first rule
    for rule in others:
        if rule == run.rule:
            continue
        step = options.get("step", "auto")
        other = _by(rule, given) | {"step": step if about(rule).takes(step) else "auto"}
        try:
            out.others[rule] = case.run(Settings(**other), **how)
        except (AsynchronyError, ConfigError) as error:
            if names != ("all",):
                raise
            out.left_out[rule] = str(error)
    return out


def _by(rule: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of runs by one of several rules: a radius is for balls only."""
    has_radius = rule != "auto" and "radius" in about(rule).options
    return options | {"rule": rule, "radius": options.get("radius") if has_radius else None}


def _others(case: Case, names: Sequence[str]) -> list[str]:
    """The names of the rules to compare with."""
    if not names:
        return []
    fit = list(fitting(case.problem))
    if names == ("all",):
        return fit
    for name in names:
        if name not in fit:
            raise ConfigError(
                f"compare={name!r}: this rule does not fit the model; expected some of "
                f"{', '.join(fit)}, or 'all'"
            )
    return list(dict.fromkeys(names))
