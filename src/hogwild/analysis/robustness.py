r"""What asynchrony costs a model: the paper's second table, for any model on any data.

A model's predictions are compared between synchronous inference and a number of random schedules.
With q schedules, predictions :math:`\hat y^{(q)}` and the synchronous :math:`\hat y`,

.. math::
    \text{decrease} &= \pm\bigl(\operatorname{metric}(\hat y, y)
        - \operatorname{metric}(\hat y^{(q)}, y)\bigr) \quad\text{(positive is worse)} \\
    \text{spread}_i &= \max_o \operatorname{std}_q \hat y^{(q)}_{io} \,/\, \|\hat y\|_\infty \\
    \text{distance}_i &= \max_{o, q} |\hat y^{(q)}_{io} - \hat y_{io}| \,/\, \|\hat y\|_\infty

for every item i, a node or a graph. Spread alone can deceive: where nonlinearities saturate, all
schedules may agree on the same wrong value, which only the distance shows.

The report also has the price (ticks, updates, packets and bytes) and what is proved. That the runs
made here arrived is an observation; that all other runs arrive takes a theorem
(:func:`hogwild.certify`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.certify import Certificate, certify
from hogwild.asynchrony.impairments import BernoulliLoss, Impairment, check_impairments
from hogwild.errors import InputError
from hogwild.executors.price import Price
from hogwild.executors.price import shown as count
from hogwild.executors.run import Run, simulate
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.metrics import Metric, Score, choose, cost
from hogwild.models.base import Kind, Model
from hogwild.models.check import runnable
from hogwild.models.mode import evaluating
from hogwild.models.wrapped import WrappedGNN

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass
class Robustness:
    """How a model fares under asynchrony. Q schedules, N items (nodes or graphs); with replicas
    there is an R after Q, or in front.

    Attributes:
        model: Name of the model's class.
        kind: Its place in the paper's taxonomy.
        stagger: S.
        delay: D.
        impairments: What else went wrong.
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
        verdict: All this in a few sentences, with what to do where runs did not arrive.
        run: The simulation itself.
    """

    model: str
    kind: Kind
    stagger: int
    delay: int
    impairments: tuple[Impairment, ...]
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
    def price(self) -> Price:
        """Ticks, and what a node did and sent until its run ended."""
        return self.run.price

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
        runs, row = self.run.predictions.size(0), self.summary()
        impaired = "".join(f", {impairment!r}" for impairment in self.impairments)
        lines = [
            f"{self.model} ({self.kind}), {schedules(runs)}, S = {self.stagger}, "
            f"D = {self.delay}{impaired}; rule {self.run.rule}",
            "",
        ]
        if self.metric is not None:
            after, lost = (shown(self.metric, row, name) for name in ("asynchronous", "decrease"))
            lines += [
                f"{'':12}{'synchronous':>14}{'asynchronous':>24}{'decrease':>24}",
                f"{self.metric.name:12}{self.metric.show(row['synchronous']):>14}"
                f"{after:>24}{lost:>24}",
                "",
            ]
        title = "predictions, relative to the largest synchronous one"
        lines.append(f"{title:54}{'mean':>10}{'largest':>10}")
        for name, values in (
            ("spread over schedules", self.spread),
            ("distance from the synchronous ones", self.distance),
        ):
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
            columns |= {
                "synchronous": self.synchronous,
                "asynchronous": self.asynchronous,
                "decrease": self.decrease,
            }
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
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    metric: str | Score | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    impairments: Impairment | Sequence[Impairment] = (),
    step: str | float = "auto",
    exchange: str = "packet",
    **options: Any,
) -> Robustness:
    """What random schedules do to a model's predictions and performance.

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions, which runs as it
            is (:func:`hogwild.wrap`).
        data: A PyG ``Data``, ``Batch`` or list of ``Data``.
        runs: Number of schedules.
        stagger: S, the largest number of ticks between two updates of a node.
        delay: D, the largest age of a view in ticks.
        seed: What the schedules are a function of.
        metric: One of :data:`hogwild.metrics.METRICS` by name (``"accuracy"``, ``"error"``,
            ``"mse"``, ``"rmse"``, ``"mae"``, ``"relative error"``, ``"micro-F1"``, ``"AP"``), or a
            function of (predictions [n, out], targets) to a number. By default accuracy for
            integer targets (with one output: its sign), and the root of the mean squared error for
            floats.
        higher_is_better: Of a function; by default lower is.
        target: What predictions should be; ``data.y`` by default. Without either only the
            predictions themselves are compared.
        mask: Which items to score, [N]; all by default. Spread and distance are of all items.
        impairments: What else goes wrong (:mod:`hogwild.asynchrony.impairments`).
        step: As in :func:`hogwild.simulate`.
        exchange: As in :func:`hogwild.simulate`.
        options: Everything else goes to :func:`hogwild.simulate`: ``rule``, ``ticks``, ``tol``,
            ``progress`` …
    """
    model = runnable(model)
    impaired = check_impairments(impairments)
    data = data if isinstance(data, Data) else graphs_of(data)
    inputs = Inputs.of(data)
    prediction = _predict(model, inputs)
    target = _target(data) if target is None else target
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
    run = simulate(
        model, data, runs=runs, stagger=stagger, delay=delay, seed=seed, impairments=impaired,
        step=step, exchange=exchange, **options,
    )  # fmt: skip
    certificate = certify(
        model, data, stagger, delay, rule=run.rule, step=step, exchange=exchange,
        impairments=impaired,
    )  # fmt: skip
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
        name, model.kind, stagger, delay, impaired, prediction, spread, distance, found, before,
        after, lost, float(run.converged.double().mean()), certificate, "", run,
    )  # fmt: skip
    out.verdict = verdict(out)
    return out


def _predict(model: Model, inputs: Inputs) -> Tensor:
    """Synchronous predictions."""
    with evaluating(model), torch.no_grad():
        return model.predict(inputs)


def _target(data: Data | list[Data]) -> Tensor | None:
    """``data.y``, if there is one."""
    if isinstance(data, Data):
        return cast("Tensor | None", data.y)
    return cast("Tensor | None", Batch.from_data_list(data).y)


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
    """Sample standard deviation over schedules and replicas; NaN of a single value."""
    return float(values.std()) if values.numel() > 1 else float("nan")


def shown(metric: Metric, row: dict[str, float], name: str) -> str:
    """Mean ± deviation; the mean of a single value."""
    mean, deviation = metric.show(row[name]), row[name + "_std"]
    return mean if deviation != deviation else f"{mean} ± {metric.show(deviation)}"


# -- the verdict -----------------------------------------------------------------------------------


def verdict(of: Robustness) -> str:
    """What happened, what of it is proved, and what to do about it."""
    run = of.run
    total = run.converged.size(0)
    good = int(run.converged.flatten(1).all(1).sum())
    if good == total:
        word, why = _arrived(of)
        return (
            f"{word}: {good} of {schedules(total)} end at the synchronous answer (relative "
            f"deviation at most {float(run.deviation.max()):.1g}). {why}."
        )
    effect = _effect(of)
    if silent := [i for i in of.impairments if not i.recurs and not i.bound(of.stagger, of.delay)]:
        total_loss = BernoulliLoss(1.0) in silent
        return (
            f"Not converged, and no further tick helps: "
            f"{'no packet ever arrives' if total_loss else 'some packets may never arrive'} under "
            f"{silent[0]!r}, so that {total - good} of {schedules(total)} are up to "
            f"{float(run.deviation.max()):.2g} (relative) from the synchronous answer{effect}. "
            f"What a node never hears it cannot know, whatever the rule. What to do: let packets "
            f"through now and then."
        )
    if run.rule == "waiting" and not _completed(of):
        return (
            f"Stalls: under {total - good} of {schedules(total)} some nodes still wait for values "
            f"of the layer they need{effect}. A layer's value is sent once: lost, it is missing "
            f"for ever. What to do: {REMEDY}."
        )
    if run.rule == "overwriting":
        worse = of.decrease is not None and float(of.decrease.mean()) > 0
        return (
            f"{'Degrades' if worse else 'Depends on the schedule'}: predictions move by up to "
            f"{float(of.distance.max()):.2g} of the largest{effect}, since a node applies its "
            f"layers to whichever layer's values it last heard. What to do: {REMEDY}."
        )
    ended = f"Not converged within the {run.ticks} ticks"
    if run.stalled:
        ended = f"Stopped at tick {run.ticks}, as runs no longer come nearer"
    return (
        f"{ended}: {total - good} of {schedules(total)} are "
        f"still up to {float(run.deviation.max()):.2g} (relative) from the synchronous answer"
        f"{effect}. {_missing(of)}."
    )


REMEDY = (
    "rule='caching' gives the synchronous answer in any order and with losses, in packets of all "
    "layers; rule='resending' in smaller packets that are acknowledged"
)


def _arrived(of: Robustness) -> tuple[str, str]:
    """Whether others would arrive, too: in a word, and why. Only a theorem makes it immune."""
    if of.kind is Kind.EXPLICIT and of.stagger == 1 and of.delay == 0 and not of.impairments:
        return "In step", "With S = 1 and D = 0 all nodes update together"
    if of.certificate.guaranteed:
        bounded = of.run.staleness.bounded
        who = "Every schedule with these bounds does" if bounded else "With probability one all do"
        why = f"{who}, which is proved: {_reason(of)}"
        return "Immune", why
    return "Arrives", f"That was seen in these runs and is not proved: {_reason(of)}"


def _completed(of: Robustness) -> bool:
    """Whether nodes that wait for layers have had all of them, from packets that were wrong."""
    layers = of.certificate.constants["layers"]
    return not all(i.exact for i in of.impairments) and bool((of.run.updates >= layers).all())


def _missing(of: Robustness) -> str:
    """Why runs have not arrived, and what to do."""
    inexact = [type(i).__name__ for i in of.impairments if not i.exact]
    if inexact and float(of.run.deviation.max()) < 1.0:
        packets = " and ".join(dict.fromkeys(i.packets for i in of.impairments if not i.exact))
        return (
            f"{packets[0].upper()}{packets[1:]} end near the answer and not at it: "
            f"{', '.join(inexact)} changes what packets say ({_reason(of)}). What to do: compare "
            f"the distance above with what you can bear, or send finer packets"
        )
    if inexact:
        other = "; rule='gradient' bears coarser ones" if of.run.rule == "messages" else ""
        return (
            f"{', '.join(inexact)} changes what packets say, so much that runs do not even come "
            f"near. What to do: send finer packets{other}"
        )
    needed = of.run.ticks_needed()
    if needed is None:
        said = ["their distance has not fallen in the second half of these ticks"]
    else:
        said = [
            f"at the pace of the second half of these ticks, ticks={needed} would be enough, "
            f"{count(needed / of.run.ticks)} times as many"
        ]
    if of.run.rule == "gradient":
        said.append("rule='messages' needs fewer updates as a rule, most of all on long paths")
    elif of.run.rule == "messages" and needed is None:
        said.append("rule='gradient' may arrive where messages do not")
    elif of.kind is Kind.FIXED_POINT and needed is None and not of.certificate.guaranteed:
        said.append(
            "out of step the map need not converge unless it contracts in a (weighted) maximum "
            "norm over the nodes: look for such a norm"
        )
    proved = "is" if of.certificate.guaranteed else "is not"
    return (
        f"What to do: {'; '.join(said)}. That runs arrive in the end {proved} proved: {_reason(of)}"
    )


def _reason(of: Robustness) -> str:
    return of.certificate.reason.rstrip(".")


def schedules(count: int) -> str:
    """So many, in words."""
    return f"{count} schedule{'s' if count > 1 else ''}"


def _effect(of: Robustness) -> str:
    """What it means for the metric, as a clause."""
    if of.metric is None:
        return ""
    row = of.summary()
    before, after = of.metric.show(row["synchronous"]), shown(of.metric, row, "asynchronous")
    if before == of.metric.show(row["asynchronous"]):
        return f" and {of.metric.name} stays {before}"
    moves = "falls" if row["asynchronous"] < row["synchronous"] else "rises"
    return f" and {of.metric.name} {moves} from {before} to {after}"
