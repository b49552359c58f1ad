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

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.certificate import Certificate
from hogwild.analysis.certify import certified
from hogwild.analysis.verdict import schedules, verdict
from hogwild.errors import InputError
from hogwild.executors.price import Price
from hogwild.executors.run import Run
from hogwild.executors.settings import Settings
from hogwild.executors.simulate import simulate
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.metrics import Metric, Score, choose, cost
from hogwild.models.base import Kind, Model
from hogwild.models.check import runnable
from hogwild.models.mode import evaluating
from hogwild.models.wrapping import WrappedGNN

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


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
        verdict: A summary in a few sentences, with advice where runs did not arrive.
        run: The simulation itself.
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
    verdict: str
    run: Run

    @property
    def settings(self) -> Settings:
        """The settings of the runs."""
        return self.run.settings

    @property
    def price(self) -> Price:
        """Ticks, and what a node did and sent until its run ended."""
        return self.run.price

    def shown(self, name: str) -> str:
        """Mean ± deviation of a number of :meth:`summary`; of a single value, its mean."""
        assert self.metric is not None
        row = self.summary()
        mean, deviation = self.metric.show(row[name]), row[name + "_std"]
        return mean if deviation != deviation else f"{mean} ± {self.metric.show(deviation)}"

    def summary(self) -> dict[str, float]:
        """The numbers of one row of a table: means (and deviations) over schedules and replicas,
        the mean spread, the largest distance, the share of runs that arrived, the price."""
        out: dict[str, float] = {}
        if self.synchronous is not None:
            assert self.asynchronous is not None
            assert self.decrease is not None
            out["synchronous"] = float(self.synchronous.mean())
            for name, values in (("asynchronous", self.asynchronous), ("decrease", self.decrease)):
                out[name], out[name + "_std"] = float(values.mean()), _deviation(values)
        out["spread"], out["distance"] = float(self.spread.mean()), float(self.distance.max())
        return out | {"converged": self.converged} | vars(self.price)

    def __str__(self) -> str:
        made = self.settings
        impaired = "".join(f", {impairment!r}" for impairment in made.impairments)
        lines = [
            f"{self.model} ({self.kind}), {schedules(made.runs)}, S = {made.stagger}, "
            f"D = {made.delay}{impaired}; rule {made.rule}",
            "",
        ]
        if self.metric is not None:
            lines += [
                f"{'':12}{'synchronous':>14}{'asynchronous':>24}{'decrease':>24}",
                f"{self.metric.name:12}{self.metric.show(self.summary()['synchronous']):>14}"
                f"{self.shown('asynchronous'):>24}{self.shown('decrease'):>24}",
                "",
            ]
        title = "predictions, relative to the largest synchronous one"
        lines.append(f"{title:54}{'mean':>10}{'largest':>10}")
        moved = {"spread over schedules": self.spread}
        moved["distance from the synchronous ones"] = self.distance
        for name, values in moved.items():
            lines.append(f"  {name:52}{float(values.mean()):>10.2g}{float(values.max()):>10.2g}")
        lines.append(f"{'runs that ended at the synchronous answer':54}{self.converged:>10.0%}")
        lines += [f"price: {self.price}", ""]
        return "\n".join([*lines, self.verdict])

    def to_frame(self) -> DataFrame:
        """One row for each schedule (and replica): performance before and after, the largest
        distance of its predictions, and the share of graphs that converged."""
        from hogwild.plots.style import need

        gap = (self.run.predictions - self.prediction).abs().amax((-2, -1))  # [Q, (R)]
        gap = gap / _size(self.prediction)
        converged = self.run.converged.double().mean(-1)
        columns: dict[str, Any] = {"run": torch.arange(gap.size(0))}
        if gap.dim() == 2:
            columns = {"run": columns["run"].unsqueeze(1), "replica": torch.arange(gap.size(1))}
        if self.asynchronous is not None:
            names = ("synchronous", "asynchronous", "decrease")
            columns |= {name: getattr(self, name) for name in names}
        columns |= {"distance": gap, "converged": converged}
        return need("pandas").DataFrame(
            {name: x.expand_as(gap).flatten().cpu().numpy() for name, x in columns.items()}
        )

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
        options: All other arguments of :func:`hogwild.simulate`: ``stagger``, ``delay``, ``seed``,
            ``impairments``, ``rule``, ``step``, ``exchange``, ``ticks``, ``tol``, ``progress`` …
    """
    model = runnable(model)
    data = data if isinstance(data, Data) else graphs_of(data)
    inputs = Inputs.of(data)
    with evaluating(model), torch.no_grad():
        prediction = model.predict(inputs)
    if target is None:
        target = (data if isinstance(data, Data) else Batch.from_data_list(data)).y
    if target is not None and target.is_floating_point() and bool(target.isnan().any()):
        raise InputError(
            f"the target holds {int(target.isnan().sum())} values that are NaN; expected numbers, "
            f"or target= and mask= without those that are missing"
        )
    found, keep = None, slice(None) if mask is None else _check_mask(mask, prediction.size(-2))
    if target is not None:
        if mask is not None and target.dim() and target.size(0) == mask.numel():
            target = target[mask]
        found = choose(metric, higher_is_better, prediction[..., keep, :], target)
    elif metric is not None:
        raise InputError(
            f"metric={metric!r} was given and data has no y; expected data.y, or target=..."
        )
    run = simulate(model, data, runs=runs, **options)
    size = _size(prediction).unsqueeze(-1)
    spread = run.predictions.std(0, correction=0).amax(-1) / size
    distance = (run.predictions - prediction).abs().amax(0).amax(-1) / size
    before = after = lost = None
    if found is not None and target is not None:
        both = (found(p[..., keep, :], target) for p in (prediction, run.predictions))
        before, after = (value.double().cpu() for value in both)
        lost = cost(after - before, found.higher_is_better)
    name = model.name if isinstance(model, WrappedGNN) else type(model).__name__
    out = Robustness(
        name, model.kind, prediction, spread, distance, found, before, after, lost,
        float(run.converged.double().mean()), certified(model, inputs, run.settings), "", run,
    )  # fmt: skip
    out.verdict = verdict(out)
    return out


def _check_mask(mask: Tensor, n: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any()):
        raise InputError(
            f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of it "
            f"set; expected a boolean [{n}], one for each prediction, with some of them set"
        )
    return mask


def _size(prediction: Tensor) -> Tensor:
    """Largest entry of the synchronous predictions, [] or [R]."""
    return prediction.abs().amax((-2, -1)).clamp_min(torch.finfo(prediction.dtype).tiny)


def _deviation(values: Tensor) -> float:
    """Sample standard deviation over schedules and replicas; NaN for a single value."""
    return float(values.std()) if values.numel() > 1 else float("nan")
