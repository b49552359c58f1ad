"""The result of a run on parts, and what the parts did over time (for progress and pictures)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hogwild.cluster.bound import ErrorBar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


import json
from dataclasses import asdict

from hogwild.cluster.worker import Status
from hogwild.files import write_atomically

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


MOST = 2000
"""Most rows of a trace; beyond it every second row is dropped."""


@dataclass
class Trace:
    """The parts over time; T times, P parts.

    Attributes:
        times: Seconds since the start, [T].
        unrest: Residual of each part relative to its limit, [T, P].
        residual: Largest absolute entry of each part's residual, [T, P].
        updates: Updates of each part so far, [T, P].
        age: Seconds since each part last heard a part that it reads, the longest, [T, P].
        bytes: Bytes that each part has sent so far, [T, P].
    """

    times: list[float] = field(default_factory=list)
    unrest: list[list[float]] = field(default_factory=list)
    residual: list[list[float]] = field(default_factory=list)
    updates: list[list[int]] = field(default_factory=list)
    age: list[list[float]] = field(default_factory=list)
    bytes: list[list[int]] = field(default_factory=list)
    _stride: int = 1
    _skipped: int = 0

    def add(self, seconds: float, statuses: list[Status]) -> None:
        """Note the parts at one time."""
        row = {
            "times": seconds,
            "unrest": [s.unrest for s in statuses],
            "residual": [s.residual for s in statuses],
            "updates": [s.updates for s in statuses],
            "age": [max(s.ages.values(), default=0.0) for s in statuses],
            "bytes": [s.bytes for s in statuses],
        }
        self._skipped += 1
        last = self._skipped < self._stride and bool(self.times)
        for name, value in row.items():
            rows = getattr(self, name)
            if last and len(rows) > 1:
                rows[-1] = value  # the newest row always stays
            else:
                rows.append(value)
        if not last:
            self._skipped = 0
        if len(self.times) > MOST:
            self._stride *= 2
            for name in row:
                setattr(self, name, getattr(self, name)[::2])

    @property
    def rates(self) -> list[float]:
        """Updates a second of each part, over the last tenth of the time."""
        if len(self.times) < 2:
            return [0.0 for _ in (self.updates[-1] if self.updates else [])]
        then = min(int(0.9 * len(self.times)), len(self.times) - 2)
        spent = max(self.times[-1] - self.times[then], 1e-9)
        pairs = zip(self.updates[-1], self.updates[then], strict=True)
        return [(now - before) / spent for now, before in pairs]

    def save(self, path: str | Path) -> Path:
        """Write the trace as JSON."""
        told = {k: v for k, v in asdict(self).items() if not k.startswith("_")}
        return write_atomically(path, json.dumps(told).encode())

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
        work: What the parts did between two exchanges: ``"solve"`` or the name of a rule.
        updates: Updates of each part with that work.
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
    work: str
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
            f"work between exchanges: {self.work}",
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
        names = ("converged", "workers", "work", "updates", "bytes", "seconds", "restarts")
        return {
            **{name: getattr(self, name) for name in names},
            "residual": self.error_bar.residual,
            "error": self.error_bar.error,
            "relative_error": self.error_bar.relative,
            "files": [str(path) for path in self.files],
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """The residual of every part over time."""
        from hogwild.plots.cluster import convergence

        return convergence(self, path)
