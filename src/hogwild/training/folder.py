"""The folder of a run: whose it is, and whether a run in it can be gone on with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hogwild.config import BEFORE, Config
from hogwild.errors import CheckpointError, ConfigError
from hogwild.files import write_atomically
from hogwild.training import checkpoint

FREE = {"epochs", "checkpoint_every", "device"}
"""Options that may change without changing what was done."""


@contextmanager
def claimed(folder: Path | None) -> Iterator[None]:
    """While entered, no other run may use the folder, which is made if need be; ``None``: nothing.

    Two runs would remove each other's checkpoints as left-overs. The claim is the system's lock on
    a file (not on Windows, nor on file systems without locks), so that a kill ends it.
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
            f"be made or written to"
        ) from error
    with file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another run is at work in {folder}; expected to wait for it, or another "
                    f"folder"
                ) from None
            except OSError:  # no locks here
                pass
        yield


def check(folder: Path, config: Config, resume: bool) -> bool:
    """Whether there is a checkpoint in the folder to go on from; changes nothing.

    Raises:
        ConfigError: There is a run, and it is not to be gone on with or has other options.
        CheckpointError: What it would go on from is damaged or gone.
    """
    path = folder / "config.json"
    kept = checkpoint.exists(folder / "state")
    if not path.exists() or not (kept or (folder / "result.json").exists()):
        return False  # a run that ended before its first checkpoint left nothing to lose
    if not resume:
        raise ConfigError(
            f"{folder} already holds a run; expected a new folder, or resume=True to go on with it"
        )
    try:
        before: dict[str, Any] = BEFORE | dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    now = json.loads(_text(config))
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
            f"{folder} holds a finished run, and what to go on from ({folder / 'state'}) is gone; "
            f"expected hogwild.training.load({str(folder)!r}), or a new folder"
        )
    return True


def write(folder: Path, config: Config) -> None:
    """Keep the configuration: from now on the folder holds a run."""
    write_atomically(folder / "config.json", _text(config).encode())


def _text(config: Config) -> str:
    return json.dumps(config.as_dict(), indent=1, default=str)
