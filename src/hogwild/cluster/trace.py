"""What the parts did over time: for progress, pictures and files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hogwild.cluster.worker import Status
from hogwild.files import write_atomically

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
