"""The record of a cell or of a training, and its provenance."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch_geometric

import hogwild
from hogwild.errors import CheckpointError
from hogwild.files import write_atomically
from hogwild.training import checkpoint

Record = dict[str, Any]
"""The record of a cell as JSON."""
PERIOD = 30.0
"""Seconds between two notes of the training time so far."""


def read(path: Path, *keys: str) -> Record:
    """A record from its file, with at least these keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; remove it") from error
    missing = [key for key in keys if key not in found] if isinstance(found, dict) else list(keys)
    if missing:
        raise CheckpointError(f"{path} is damaged: it has no {missing[0]!r}; remove it")
    return dict(found)


def provenance(device: str) -> Record:
    """Where and with what a record was made."""
    cuda = torch.device(device).type == "cuda"
    return {
        "commit": commit(),
        "hardware": {
            "device": torch.cuda.get_device_name(device) if cuda else _processor(),
            "threads": torch.get_num_threads(),
        },
        "versions": {
            "hogwild": hogwild.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
        },
        "date": _today(),
    }


def _today() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """``$HOGWILD_COMMIT``, for copies without git; else the commit of the checkout from which both
    the experiments and the library run, with ``+changes`` where the tracked code of either differs
    from it; else unknown."""
    if told := os.environ.get("HOGWILD_COMMIT"):
        return told
    here, library = (Path(file).resolve().parent for file in (__file__, hogwild.__file__))

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A library that is installed elsewhere does not have the commit of this repository.
    if git("ls-files", "--error-unmatch", "__init__.py", f"{library}/__init__.py") is not None:
        head = git("rev-parse", "HEAD")
        if head:  # records and the report may change, the code may not
            changed = git("status", "--porcelain", "-uno", "--", "*.py", str(library))
            return head + ("+changes" if changed else "")
    return "unknown"


def _processor() -> str:
    """The name of the CPU, as far as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"


class Training:
    """Around a training: writes into its folder how long the training took, over all interruptions,
    and its provenance. Called after every epoch.

    A training that continues elsewhere, or with other code, keeps a list ``earlier``: seconds,
    commit, hardware and versions of every part before the last.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        found, self.now = self.about(folder), provenance(device)  # of the running code
        self.before: float = found.get("seconds", 0.0)
        self.earlier = stretches(found) if found else []
        if self.earlier and _same_place(self.earlier[-1], self.now):
            self.earlier.pop()  # the same part continues
        self.began = self.written = time.monotonic()
        self.known, self.trained = bool(found), False

    @staticmethod
    def about(folder: Path) -> Record:
        """The notes about a training: ``seconds``, :func:`provenance` and, if there are any,
        ``earlier`` parts; empty before the training began."""
        path = folder / "about.json"
        return read(path, "seconds", "commit", "hardware") if path.exists() else {}

    def __call__(self, loop: object = None) -> None:
        self.trained = True
        if time.monotonic() - self.written >= PERIOD:
            self._write()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        # A training that was refused or already finished is not a part.
        if self.trained or (not self.known and checkpoint.exists(self.folder / "state")):
            self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        seconds = self.before + self.written - self.began
        about = {"seconds": seconds, **self.now, "date": _today()}
        if self.earlier:
            about["earlier"] = self.earlier
        write_atomically(self.folder / "about.json", json.dumps(about, indent=1).encode())


def stretches(record: Record) -> list[Record]:
    """Seconds, commit, hardware and versions of all parts of a training, in order."""
    earlier: list[Record] = record.get("earlier", [])
    last: Record = {k: record[k] for k in ("commit", "hardware", "versions") if k in record}
    last["seconds"] = record["seconds"] - sum(stretch["seconds"] for stretch in earlier)
    return [*earlier, last]


def uncommitted(record: Record) -> bool:
    """Whether any code of a record, or of the training of its models, was not committed, so that
    readers cannot look it up."""
    return any("+" in commit for commit in _commits(record))


def _commits(found: object) -> Iterator[str]:
    """All commits of a record: its own, and those of parts and of trained models."""
    if isinstance(found, list):
        found = dict(enumerate(found))
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "commit":
                yield value
            elif isinstance(value, dict | list):
                yield from _commits(value)


def same_commit(a: str, b: str) -> bool:
    """Whether two commits are equal; either may be abbreviated."""
    one, other = sorted((a, b), key=len)
    return other.startswith(one) and "+" not in other[len(one) :]


def _same_place(a: Record, b: Record) -> bool:
    return a["hardware"] == b["hardware"] and same_commit(a["commit"], b["commit"])
