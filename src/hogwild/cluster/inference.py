"""Inference on a graph in parts, without barriers: :func:`infer`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.cluster.bound import error_bar
from hogwild.cluster.engine import Disorder, Engine, Watch
from hogwild.cluster.host import KINDS
from hogwild.cluster.result import GUARANTEES, ClusterRun, Trace
from hogwild.cluster.setup import Place, Setup, Source, engine_for, prepared
from hogwild.cluster.worker import Status
from hogwild.cluster.writer import OVERLAP
from hogwild.errors import ConfigError, DataError, is_number
from hogwild.models.gnn import ConvGNN
from hogwild.models.gsd import GSDConv
from hogwild.models.mode import evaluating

GATHER = 50_000_000
"""Most numbers of all embeddings that are gathered in this process without being asked for."""


def infer(
    model: nn.Module,
    graph: Source,
    workers: int | None = None,
    *,
    tol: float = 1e-6,
    work: str = "solve",
    folder: str | Path | None = None,
    partition: str = "auto",
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    restarts: int = 5,
    seconds: float | None = None,
    barriers: bool = False,
    slow: dict[int, float] | None = None,
    disorder: Disorder | None = None,
    overlap: int = OVERLAP,
    gather: bool | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> ClusterRun:
    """The embeddings and predictions of a model on a graph that is cut into parts.

    Every part has a worker of its own, which solves for its nodes with the embeddings of other
    parts as last received. Nobody waits for anybody. The result is that of ``model(graph)``, and
    has a bound on the distance from the exact answer. Parts solve in float64.

    Args:
        model: A model with one implicit layer, such as :class:`~hogwild.EnergyGNN`.
        graph: A PyG ``Data``, ``Inputs``, a :class:`~hogwild.cluster.Whole`, a
            :class:`~hogwild.cluster.Store`, or the path of a file or a store.
        workers: Number of parts and workers; by default 1, or the parts of a store. One worker
            runs in this process without Ray.
        tol: Relative error at which the parts are settled.
        work: What a part does between two exchanges: ``"solve"``, or the name of a node's rule
            (``"messages"``, ``"gradient"``, ``"fixed-point"``).
        folder: Where the parts, their checkpoints and their answers are kept. All nodes of a
            cluster must see it. A run in the same folder continues an interrupted one. By default
            a temporary folder.
        partition: How the graph is cut: ``"auto"``, ``"metis"``, ``"coordinates"``, ``"search"``.
        address: Address of a running cluster of Ray; by default Ray starts on this machine.
        cpus: CPUs that Ray reserves for each worker.
        gpus: GPUs that Ray reserves for each worker; with one or more, workers compute on them.
        restarts: How often each worker is started again after its process or node has died.
        seconds: How long the workers work at most.
        barriers: Let all workers wait for each other after every update (for comparisons).
        slow: How many times longer an update of a worker takes, by part (for comparisons).
        disorder: Run all workers in this process, in the order of a seed, with delays and losses.
        overlap: Most rings of other parts' nodes for which a part solves, too. More of them leave
            fewer exchanges, where what a node knows reaches far.
        gather: Whether the answers of all parts are returned; by default up to
            50 million numbers. With a ``folder`` they are in files, too.
        seed: Seed of the partition.
        watch: Called with the seconds and the statuses of all parts, a few times a second.
    """
    if not is_number(tol) or not 0 < tol < 1:
        raise ConfigError(f"tol={tol!r}; expected a relative error between 0 and 1")
    if seconds is not None and not (is_number(seconds) and seconds >= 0):
        raise ConfigError(f"seconds={seconds!r}; expected a number, 0 or more, or None")
    if work not in KINDS:
        raise ConfigError(f"work={work!r}; expected one of {', '.join(KINDS)}")
    place = Place(
        folder=folder, partition=partition, address=address, cpus=cpus, gpus=gpus,
        restarts=restarts, disorder=disorder, overlap=overlap, seed=seed,
    )  # fmt: skip
    with prepared(model, graph, workers, place) as setup:
        plan = setup.plan(tol=tol, checkpoints=setup.folder / "checkpoints")
        with engine_for(plan, setup, barriers=barriers, slow=slow) as engine:
            trace = Trace()
            try:
                return engine.patiently(
                    lambda: _run(engine, setup, trace, work, seconds, gather, watch)
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_interrupted(setup)) from None
            except OSError as error:
                if error.errno is None:  # of Ray, and not of a file
                    raise
                raise DataError(
                    f"a worker cannot write to {setup.folder} ({error}); expected room for "
                    f"checkpoints and answers: make room, and the same call goes on"
                ) from error


def _interrupted(setup: Setup) -> str:
    if not setup.keeps:
        return "interrupted; with a folder, the same call goes on from where it was"
    return f"interrupted; the parts are in {setup.folder}, and the same call goes on from there"


def _run(
    engine: Engine,
    setup: Setup,
    trace: Trace,
    work: str,
    seconds: float | None,
    gather: bool | None,
    watch: Watch | None,
) -> ClusterRun:
    last: list[Status] = []
    began = time.monotonic()

    def told(_: float, statuses: list[Status]) -> bool | None:
        last[:] = statuses
        spent = time.monotonic() - began
        trace.add(spent, statuses)
        return None if watch is None else watch(spent, statuses)

    engine.call("start", work)
    done = engine.iterate(told, seconds)
    spent = time.monotonic() - began
    if setup.keeps:
        engine.call("save")
    measures = [m for m in engine.call("measure") if m is not None]
    bar = error_bar(measures, _rounding(setup.model))
    stalled = any(status.stalled for status in last)
    model, store = setup.model, setup.store
    numbers = store.num_nodes * model.hidden_channels * (model.replicas or 1)
    gather = numbers <= GATHER if gather is None else gather
    files: list[Path] = []
    if setup.keeps:
        files = engine.call("write_answer", setup.folder / "answer")
        trace.save(setup.folder / "trace.json")
    h, prediction = gathered(engine, setup) if gather else (None, None)
    kind = measures[0].kind if measures else "map"
    if isinstance(model.conv, GSDConv):
        kind = "denoising"
    return ClusterRun(
        h=h,
        prediction=prediction,
        error_bar=bar,
        converged=done and not stalled and all(m.settled for m in measures),
        workers=store.num_parts,
        work=work,
        updates=[status.updates for status in last],
        bytes=[status.bytes for status in last],
        seconds=spent,
        restarts=engine.restarts,
        files=files,
        trace=trace,
        part=np.array(store.parts) if gather else None,
        partition="" if setup.partition is None else str(setup.partition),
        guarantee=GUARANTEES[kind],
    )


def _rounding(model: ConvGNN) -> float:
    """The relative error of an embedding that is returned in the dtype of the parameters."""
    dtype = next(model.parameters()).dtype
    return torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0


@torch.no_grad()
def gathered(engine: Engine, setup: Setup) -> tuple[Tensor, Tensor | None]:
    """The embeddings and predictions of all nodes, in the order of the whole graph."""
    answers: list[Any] = engine.call("answer")
    n = setup.store.num_nodes

    def whole(place: int) -> Tensor | None:
        first = next((a[place] for a in answers if a[place] is not None), None)
        if first is None:
            return None
        out = np.zeros((*first.shape[:-2], n, first.shape[-1]), dtype=first.dtype)
        for answer in answers:
            out[..., answer[0], :] = answer[place]
        return torch.from_numpy(out)

    h, prediction = whole(1), whole(2)
    assert h is not None
    if prediction is None and setup.inputs is not None:  # the readout pools
        with evaluating(setup.model):
            prediction = setup.model.read(h.to(setup.inputs.x), setup.inputs)
    return h, prediction
