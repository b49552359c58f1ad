"""Inference on a graph in parts, without barriers: :func:`infer`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.cluster.cutting import OVERLAP
from hogwild.cluster.setup import Place, Setup, Source, prepared
from hogwild.cluster.work import ErrorBar, error_bar
from hogwild.cluster.worker import Disorder, Executor, Status, Watch
from hogwild.errors import ConfigError, DataError, is_number
from hogwild.files import write_atomically
from hogwild.models.gsd import GSDConv
from hogwild.models.validation import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATHER = 50_000_000
"""Most numbers of all embeddings that are gathered in this process without being asked for."""


GUARANTEES = {
    "contraction": "proved: the map is a contraction in a weighted maximum norm, so that parts "
    "reach the answer in any order and with any bounded delays",
    "denoising": "proved: the Hessian has no positive entry off its diagonal, so that parts reach "
    "the answer in any order and with any bounded delays",
    "energy": "parts damp their steps where they overshoot; convergence is observed, and the error "
    "bar is proved",
    "map": "nothing is proved about this map",
}
"""What is known about convergence, by the kind of problem."""


CLOSE = 0.005
"""Two rows of a trace are at least this share of the time since the start apart."""


@dataclass
class Trace:
    """The parts over time; T times, P parts.

    Attributes:
        times: Seconds since the start, [T].
        residual_ratio: Residual of each part relative to its limit, [T, P].
        residual: Largest absolute entry of each part's residual, [T, P].
        updates: Updates of each part so far, [T, P].
        age: Seconds since each part last heard a part that it reads, the longest, [T, P].
        bytes: Bytes that each part has sent so far, [T, P].
    """

    times: list[float] = field(default_factory=list)
    residual_ratio: list[list[float]] = field(default_factory=list)
    residual: list[list[float]] = field(default_factory=list)
    updates: list[list[int]] = field(default_factory=list)
    age: list[list[float]] = field(default_factory=list)
    bytes: list[list[int]] = field(default_factory=list)

    def add(self, seconds: float, statuses: list[Status]) -> None:
        """Note the parts at one time. The newest row always stays, the others are apart."""
        if len(self.times) > 1 and self.times[-1] - self.times[-2] < CLOSE * self.times[-1]:
            for rows in vars(self).values():
                rows.pop()
        self.times.append(seconds)
        self.age.append([max(s.ages.values(), default=0.0) for s in statuses])
        for name in ("residual_ratio", "residual", "updates", "bytes"):
            getattr(self, name).append([getattr(s, name) for s in statuses])

    def save(self, path: str | Path) -> Path:
        """Write the trace as JSON."""
        return write_atomically(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """The trace in a file."""
        return cls(**json.loads(Path(path).read_bytes()))


@dataclass
class ClusterRun:
    """What :func:`hogwild.cluster.infer` found.

    Attributes:
        h: The embeddings, [N, k] or [R, N, k]; ``None`` if they were left in ``files``.
        prediction: The output of the readout, [N, out], [R, N, out], or of pooled graphs;
            ``None`` likewise.
        error_bar: How far the embeddings may be from the exact answer.
        converged: Whether all parts are settled within the tolerance.
        workers: Number of parts.
        updates: Updates of each part.
        bytes: Bytes that each part sent.
        seconds: Seconds from the first update to the end, without the start of Ray.
        restarts: How often a worker died and was made again.
        files: Files with the answers of the parts, if the run has a folder.
        trace: The parts over time.
        part: The part of every node, [N], for pictures; ``None`` for graphs on the disk.
        partition: The partition in words.
        guarantee: What is proved about convergence, in words.
    """

    h: Tensor | None
    prediction: Tensor | None
    error_bar: ErrorBar
    converged: bool
    workers: int
    updates: list[int]
    bytes: list[int]
    seconds: float
    restarts: int
    files: list[Path] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    part: Any = None
    partition: str = ""
    guarantee: str = ""

    def __str__(self) -> str:
        head = "converged" if self.converged else "NOT converged"
        mended = f", {self.restarts} restarts" if self.restarts else ""
        many = "worker" if self.workers == 1 else "workers"
        lines = [
            f"{head} with {self.workers} {many} in {self.seconds:.2f} s{mended}: {self.error_bar}",
            f"{sum(self.updates)} updates ({min(self.updates)} to {max(self.updates)} a part), "
            f"{sum(self.bytes) / 1e6:.3g} MB sent",
        ]
        lines += [x for x in (self.partition, self.guarantee) if x]
        if self.files:
            lines.append(f"answers: {self.files[0].parent}")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """The numbers, for programs."""
        names = ("converged", "workers", "updates", "bytes", "seconds", "restarts")
        return {
            **{name: getattr(self, name) for name in names},
            "residual": self.error_bar.residual,
            "error": self.error_bar.error,
            "relative_error": self.error_bar.relative,
            "files": [str(path) for path in self.files],
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """The residual of every part over time."""
        from hogwild.plots.courses import residuals

        return residuals(self, path)


def infer(
    model: nn.Module,
    graph: Source,
    workers: int | None = None,
    *,
    tol: float = 1e-6,
    folder: str | Path | None = None,
    partition: str = "auto",
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    restarts: int = 5,
    seconds: float | None = None,
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
        graph: A PyG ``Data``, ``Inputs``, a :class:`~hogwild.cluster.Store`, or the path of a file
            or a store.
        workers: Number of parts and workers; by default 1, or the parts of a store. One worker
            runs in this process without Ray.
        tol: Relative error at which the parts are settled.
        folder: Where the parts, their checkpoints and their answers are kept. All nodes of a
            cluster must see it. A run in the same folder continues an interrupted one. By default
            a temporary folder.
        partition: How the graph is cut: ``"auto"``, ``"metis"``, ``"search"``.
        address: Address of a running cluster of Ray; by default Ray starts on this machine.
        cpus: CPUs that Ray reserves for each worker.
        gpus: GPUs that Ray reserves for each worker; with one or more, workers compute on them.
        restarts: How often each worker is started again after its process or node has died.
        seconds: How long the workers work at most.
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
    place = Place(
        folder=folder, partition=partition, address=address, cpus=cpus, gpus=gpus,
        restarts=restarts, disorder=disorder, overlap=overlap, seed=seed,
    )  # fmt: skip
    trace = Trace()
    with (
        prepared(model, graph, workers, place) as setup,
        setup.executor(tol, checkpoints=True) as parts,
    ):
        try:
            return parts.patiently(lambda: _run(parts, setup, trace, seconds, gather, watch))
        except KeyboardInterrupt:
            again = "interrupted; with a folder, the same call goes on from where it was"
            if folder is not None:
                again = f"interrupted; the same call goes on from the parts in {setup.folder}"
            raise KeyboardInterrupt(again) from None
        except OSError as error:
            if error.errno is None:  # of Ray, and not of a file
                raise
            raise DataError(
                f"a worker cannot write to {setup.folder} ({error}); expected room for "
                f"checkpoints and answers: make room, and the same call goes on"
            ) from error


def _run(
    executor: Executor,
    setup: Setup,
    trace: Trace,
    seconds: float | None,
    gather: bool | None,
    watch: Watch | None,
) -> ClusterRun:
    last: list[Status] = []
    began = time.monotonic()

    def note(_: float, statuses: list[Status]) -> bool | None:
        last[:] = statuses
        spent = time.monotonic() - began
        trace.add(spent, statuses)
        return None if watch is None else watch(spent, statuses)

    executor.call("start")
    done = executor.iterate(note, seconds)
    spent = time.monotonic() - began
    model, folder = setup.model, setup.place.folder
    measures = executor.call("measure")
    # Embeddings are returned in the dtype of the parameters.
    dtype = next(model.parameters()).dtype
    rounding = torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0
    files: list[Path] = []
    if folder is not None:
        executor.call("save")
        files = executor.call("write_answer", Path(folder).absolute() / "answer")
        trace.save(Path(folder) / "trace.json")
    h = prediction = part = None
    numbers = setup.num_nodes * model.hidden_channels * (model.replicas or 1)
    if numbers <= GATHER if gather is None else gather:
        h, prediction = gathered(executor, setup)
        alone = torch.zeros(setup.num_nodes, dtype=torch.int32)
        part = alone if setup.store is None else setup.store.parts
    kind = "denoising" if isinstance(model.conv, GSDConv) else measures[0].kind
    stalled = any(status.stalled for status in last)
    return ClusterRun(
        h=h,
        prediction=prediction,
        error_bar=error_bar(measures, rounding),
        converged=done and not stalled and all(m.settled for m in measures),
        workers=len(measures),
        updates=[status.updates for status in last],
        bytes=[status.bytes for status in last],
        seconds=spent,
        restarts=executor.restarts,
        files=files,
        trace=trace,
        part=part,
        partition="" if setup.partition is None else str(setup.partition),
        guarantee=GUARANTEES[kind],
    )


@torch.no_grad()
def gathered(executor: Executor, setup: Setup) -> tuple[Tensor, Tensor | None]:
    """The embeddings and predictions of all nodes, in the order of the whole graph."""
    answers = executor.call("answer")
    back = np.argsort(np.concatenate([answer["nodes"] for answer in answers]))

    def joined(name: str) -> Tensor:
        return torch.from_numpy(
            np.concatenate([answer[name] for answer in answers], -2)[..., back, :]
        )

    h = joined("h")
    if "prediction" in answers[0]:
        return h, joined("prediction")
    if setup.inputs is None:
        return h, None
    with evaluating(setup.model):  # the readout pools
        return h, setup.model.read(h.to(setup.inputs.x), setup.inputs)
