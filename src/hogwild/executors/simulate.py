"""``hogwild.simulate``: run a model on graphs asynchronously; and the same with gradients."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Timetable
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import AsynchronyError, ConfigError, InputError, require_positive
from hogwild.executors.run import Monitor, Run
from hogwild.executors.simulation import Settings, Simulation
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.linalg.solution import Solution
from hogwild.metrics import Metric
from hogwild.metrics import Score as Function
from hogwild.metrics import choose as metric_for
from hogwild.models.base import Model
from hogwild.models.layered import LayeredGNN
from hogwild.models.program import StackProblem
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import runnable
from hogwild.nn.norm import BatchNorm
from hogwild.rules import AnyProblem, choose, fitting

ABOUT = ("stagger", "delay", "seed", "runs", "bounds")
"""What a trace says about the settings that it was drawn with, beside their impairments."""


def simulate(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    *,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    runs: int = 1,
    rule: str = "auto",
    step: str | float = "auto",
    radius: int | None = None,
    impairments: Impairment | Sequence[Impairment] = (),
    ticks: int = 20_000,
    tol: float | None = 1e-6,
    history: int | Collection[int] | None = None,
    keep_embeddings: bool = False,
    record: bool | str | Path = False,
    replay: Trace | str | Path | None = None,
    metric: str | Function | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a model asynchronously (Algorithm 1), on many graphs and under many schedules at once.

    The levels of a stack run together: each level reads the moving embeddings of the level below
    (:mod:`hogwild.rules.levels`).

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions, which runs as it
            is (:func:`hogwild.wrap`).
        data: A PyG ``Data``, ``Batch`` or list of ``Data``: whole graphs. Parts of a graph are
            refused where a sampler has marked them (``n_id`` and the like). Parts without such a
            mark, such as those of ``Data.subgraph``, cannot be recognised.
        stagger: S, the largest number of ticks between two turns of a node; 1: all together.
        delay: D, the largest age of a packet in ticks; 0: no delay. Ages are random, and their mean
            is at most (S + 1) / 2 however large D is (:mod:`hogwild.asynchrony.schedule`).
            :class:`~hogwild.asynchrony.Latency` gives all packets one age.
        seed: The schedules are a function of this number, on every machine.
        runs: Number of independent schedules.
        rule: What a node does: ``"auto"``, or the name of a rule that fits the model
            (:func:`hogwild.rules.fitting`). ``"auto"`` is ``"gradient"`` for soft energies of a
            condition number up to 100, ``"messages"`` for other energies, ``"fixed-point"`` for
            fixed points, and ``"caching"`` for layers: it ends at the synchronous answer. The
            paper's rules are ``"gradient"`` and ``"overwriting"``.
        step: ``"auto"``, ``"certified"`` or a number, for gradient steps. With
            ``rule="auto"``, all but ``"auto"`` select gradient steps.
        radius: With ``rule="balls"``: the hops within which a node solves for others, too.
        impairments: What else goes wrong (:mod:`hogwild.asynchrony.impairments`).
        ticks: The simulation ends after this many ticks in any case.
        tol: A run ends when its relative deviation from the synchronous embeddings is at most
            this. ``None``: runs go on for all ticks. Runs with impairments that make packets wrong
            (``exact = False``) also end when they stall: when the best distance of each run has
            not improved by 1 % during half of all ticks so far, and during at least 500.
        history: Record the deviation every so many ticks, or at these ticks.
        keep_embeddings: Record the embeddings at the same ticks, too.
        record: Keep the schedule in ``Run.trace``. A path also writes it to this file.
        replay: A trace to follow instead of a new schedule, with the bounds that it was drawn
            with; ``stagger``, ``delay`` and ``seed`` are then not used.
        metric: What the error by deadline (:attr:`Run.deadlines`) measures, against ``data.y``;
            this argument and the next three are those of :func:`hogwild.robustness`. Where none of
            the four is given and ``data.y`` does not fit, there is no such error.
        higher_is_better: Of a metric of your own.
        target: Targets other than ``data.y``.
        mask: Which items to score.
        progress: Show a progress bar; by default in a terminal or a notebook.
    """
    settings = Settings(
        stagger, delay, seed, runs, rule, step, check_impairments(impairments), ticks, tol,
        history, keep_embeddings, radius,
    )  # fmt: skip
    case = Case(runnable(model), data)
    case.score_by(metric, higher_is_better, target, mask)
    return case.run(settings, record, replay, progress)


class Case:
    """A model on graphs. What several runs and certificates need of it is computed once."""

    def __init__(self, model: Any, data: Any) -> None:
        self.model = model
        self.data = data if isinstance(data, Data | Inputs) else graphs_of(data)
        self.inputs = Inputs.of(self.data)
        self.score: Score | None = None
        self.note = ""  # why there is no score

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        with evaluating(self.model), torch.no_grad():
            yield

    @cached_property
    def problem(self) -> AnyProblem:
        """The problem of one run; :class:`~hogwild.errors.AsynchronyError` where there is none."""
        with self._quietly():
            self.model.require_asynchronous(self.inputs)
            problem: AnyProblem = self.model.problem(self.inputs).detach()
        return problem

    @cached_property
    def solution(self) -> Solution:
        """The synchronous answer."""
        with self._quietly():
            self.model.require_asynchronous(self.inputs)
            solution: Solution = self.model.embed(self.inputs)
        return solution

    @property
    def answer(self) -> Tensor:
        """The synchronous embeddings, [(R,) N, k]."""
        return self.solution.value

    @cached_property
    def prediction(self) -> Tensor:
        """The synchronous predictions, [(R,) N, out]."""
        with self._quietly():
            prediction: Tensor = self.model.read(self.answer, self.inputs)
        return prediction

    def score_by(self, *given: Any) -> None:
        """Choose how predictions are scored, by the last four arguments of :func:`score_of`. Where
        none is given and the targets do not fit, there is no score, and a note why."""
        try:
            self.score = score_of(self.prediction, self.data, *given)
        except InputError as error:
            if any(argument is not None for argument in given):
                raise
            self.note = f"no error of the task: {error}"

    def run(
        self,
        settings: Settings,
        record: bool | str | Path = False,
        replay: Trace | str | Path | None = None,
        progress: bool | None = None,
    ) -> Run:
        """Runs with these settings; the other arguments are those of :func:`simulate`."""
        begun = clock.perf_counter()
        if isinstance(replay, str | Path):
            replay = Trace.load(replay)
        with self._quietly():
            problem = self.model.problem(self.inputs.repeat(settings.runs)).detach()
            settings = replace(settings, rule=choose(problem, settings.rule, settings.step))
            told = {name: getattr(settings, name) for name in ABOUT}
            told["impairments"] = [repr(impairment) for impairment in settings.impairments]
            if replay is None:
                timetable: Timetable = settings.schedule(problem.graph)
                ticks = settings.ticks
            else:  # with the bounds of the recording, not of this call
                timetable, told = Replay(replay, problem.graph), told | replay.about
                ticks = min(settings.ticks, timetable.length)
            bounds = None if told["bounds"] is None else tuple(told["bounds"])
            made = settings.rule_on(problem, bounds)
            simulation = Simulation(
                made, timetable, problem.start(), impairments=settings.impairments
            )
            monitor = Monitor(simulation, settings, ticks, self)
            trace = Trace.of(timetable, told) if record else None
            monitor.run(trace, progress)
            if trace is not None and not isinstance(record, bool):
                trace.save(record)
            return monitor.report(bounds, trace, replay, clock.perf_counter() - begun)


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
    return Score(metric_for(metric, higher_is_better, chosen, target), target, keep)


def _check_mask(mask: Tensor, n: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any()):
        raise InputError(
            f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of it "
            f"set; expected a boolean [{n}], one for each prediction, with some of them set"
        )
    return mask


# -- with gradients --------------------------------------------------------------------------------


def asynchronous_forward(
    model: Model,
    data: Inputs | Data | Batch | Iterable[Data],
    *,
    updates: int | None = None,
    **options: Any,
) -> Tensor:
    r"""The predictions of a model under one random schedule, differentiable in parameters and
    features, to train models under random schedules:

    .. math:: \min_\theta\; \mathbb E_{\text{schedule}}\;
              \ell\bigl(\hat y_\theta(\text{schedule}), y\bigr).

    Draw another schedule, ``seed=iteration``, in every iteration. The schedule is that of
    :func:`hogwild.simulate` with the same seed (and ``runs=1``), and so are the predictions.
    Explicit models run with ``rule="overwriting"``, since those of ``rule="caching"`` are
    ``model(...)``, which overwriting gives with S = 1 and D = 0. Dropout is drawn anew at every
    update, by each node for itself. The answer of an implicit model does not depend on the
    schedule, but the time until it is there does: with ``updates=20`` the predictions are those
    after 20 updates of a node, and the model learns to answer in time.

    Args:
        model: A :class:`~hogwild.LayeredGNN`, such as GCN and GAT, or an implicit model of one
            layer; with replicas, all of them go through the same schedule.
        data: A PyG ``Data``, ``Batch`` or list of ``Data``; or :class:`~hogwild.Inputs`.
        updates: Updates of a node until its embedding is read, on average over nodes; for implicit
            models, which never end by themselves.
        options: ``stagger``, ``delay``, ``seed`` and ``impairments`` as in
            :func:`hogwild.simulate`. The impairments must leave packets as they were sent. For
            implicit models also ``rule`` and ``step``.

    Shapes:
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out], as the model's.
    """
    inputs = Inputs.of(data)
    h = asynchronous_embed(model, inputs, updates=updates, **options)
    return model.read(h.to(inputs.x.dtype), inputs)


def asynchronous_embed(
    model: Model, inputs: Inputs, *, updates: int | None = None, **options: Any
) -> Tensor:
    """The embeddings [N, k] or [R, N, k] that :func:`asynchronous_forward` reads."""
    if not isinstance(model, Model):
        raise ConfigError(
            f"{type(model).__name__} is not trained under schedules; expected a model of hogwild: "
            f"a LayeredGNN such as GCN or GAT, PyG's layers in a new hogwild.LayeredGNN, or an "
            f"implicit model such as EnergyGNN with updates=..."
        )
    settings = Settings(**options)
    for impairment in settings.impairments:
        if not impairment.exact:
            raise ConfigError(
                f"{impairment!r} changes what packets say, in steps that have no gradient; "
                f"expected impairments of the schedule only, such as BernoulliLoss or Stragglers"
            )
    if any(isinstance(m, _BatchNorm | BatchNorm) and m.training for m in model.modules()):
        raise AsynchronyError(
            "a BatchNorm in training mode normalises over all nodes at hand, and an asynchronous "
            "node knows only itself and its neighbours; expected norms of single nodes, such as "
            "torch.nn.LayerNorm, or BatchNorms in evaluation mode (norm.eval())"
        )
    layered = isinstance(model, LayeredGNN)
    if layered and updates is not None:
        raise ConfigError(
            f"updates={updates!r} was given for a model that ends after its last layer; expected "
            f"none"
        )
    if not layered and updates is None:
        raise ConfigError(
            f"{type(model).__name__} was given without updates=..., and its answer in the limit "
            f"does not depend on the schedule; expected the number of updates after which nodes "
            f"answer, or model(...) for the limit"
        )
    ticks = math.inf
    if updates is not None:  # turns are (S + 1) / 2 ticks apart; no node has a turn at tick 0
        turns = require_positive("updates", updates)
        ticks = 1 + math.ceil(turns * (settings.stagger + 1) / 2)
    with evaluating(model) if layered else nullcontext():
        model.require_asynchronous(inputs)  # whether a layer is local is not seen through dropout
        problem = model.problem(inputs)
    if isinstance(problem, StackProblem):
        raise ConfigError(
            "the model is a stack of several layers, and gradients go through one; expected "
            "num_layers=1"
        )
    known = [name for name, rule in fitting(problem).items() if rule.differentiable]
    wanted = known[0] if layered and settings.rule == "auto" else settings.rule
    name = choose(problem, wanted, settings.step)
    if name not in known and (layered or torch.is_grad_enabled()):
        raise ConfigError(
            f"rule={name!r} has no gradients; expected one of {', '.join(known)}. Nodes that cache "
            f"or resend end at model(...): train a model with layers in step for them"
        )
    rule = replace(settings, rule=name).rule_on(problem, settings.bounds)
    simulation = Simulation(rule, settings.schedule(problem.graph), problem.start())
    while not simulation.finished and simulation.time < ticks:
        simulation.step()
    h = simulation.h
    return h[0].mT if model.replicas is None else h.mT
