"""The folder of a run: which run uses it, and whether the run in it can be resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hogwild.config import Config
from hogwild.errors import CheckpointError, ConfigError
from hogwild.files import write_atomically
from hogwild.training import checkpoint
from hogwild.training.registry import as_stored

FREE = {"epochs", "checkpoint_every", "device"}
"""Options that may change when a run is resumed."""


@contextmanager
def claimed(folder: Path | None) -> Iterator[None]:
    """Within this context no other run can use the folder, which is created if it does not exist.
    With ``None`` it does nothing.

    Two runs in one folder would remove each other's checkpoints. The claim is the system's lock on
    a file, which ends with the process (there is none on Windows and on file systems without
    locks).
    """
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("wb")
    except OSError as error:
        raise ConfigError(
            f"folder={str(folder)!r} cannot be used ({error.strerror}); expected a folder that can "
            f"be created or written to"
        ) from error
    with file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another run uses {folder}; wait until it has ended, or give another folder"
                ) from None
            except OSError:  # a file system without locks
                pass
        yield


def check(folder: Path, config: Config, resume: bool) -> bool:
    """Whether the folder holds a checkpoint to resume from; changes nothing.

    Raises:
        ConfigError: There is a run, and ``resume`` is false or its options differ.
        CheckpointError: The checkpoint is damaged or gone.
    """
    path = folder / "config.json"
    kept = checkpoint.exists(folder / "state")
    if not path.exists() or not (kept or (folder / "result.json").exists()):
        return False  # nothing is lost: the run ended before its first checkpoint
    if not resume:
        raise ConfigError(
            f"{folder} already holds a run; expected a new folder, or resume=True to resume it"
        )
    try:
        before: dict[str, Any] = dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    now = json.loads(_text(config))
    if isinstance(before.get("model_options"), dict):
        before["model_options"] = as_stored(str(before.get("model")), before["model_options"])
    differ = sorted(k for k in now if k not in FREE and before.get(k) != now[k])
    if differ:
        k = differ[0]
        raise ConfigError(
            f"{folder} holds a run with other options: {k}={before.get(k)!r}, now {now[k]!r}"
            f"{f' (and {len(differ) - 1} more)' if differ[1:] else ''}; expected the same ones, or "
            f"a new folder"
        )
    if not kept:
        raise CheckpointError(
            f"{folder} holds a finished run, but its checkpoint ({folder / 'state'}) is gone; "
            f"expected hogwild.training.load({str(folder)!r}), or a new folder"
        )
    return True


def write(folder: Path, config: Config) -> None:
    """Write the configuration: from now on the folder holds a run."""
    write_atomically(folder / "config.json", _text(config).encode())


def _text(config: Config) -> str:
    return json.dumps(config.as_dict(), indent=1, default=str)
