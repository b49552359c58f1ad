"""How this library writes files: a reader never sees half of one."""

from __future__ import annotations

import math
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from hogwild.errors import ConfigError


def require_writable(path: str | Path, given: str) -> None:
    """Raise, before long work, unless a file can be written here; ``given`` is what the user gave.

    The file itself is not touched: an empty file beside it is made and removed. Its folder is
    created if it does not exist.

    Raises:
        ConfigError: The file could not be written.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{given} is a folder; expected a file")
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise ConfigError(
            f"{given} cannot be written ({error.strerror}); expected a file in a folder that can "
            f"be written to"
        ) from error


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a file so that it is on the disk as a whole, or not at all.

    The content goes into a file beside it, ``.<name>.<random>``, which is then renamed. Several
    processes or threads may write the same file: the last one wins. An older file stays until then,
    also if writing fails.

    Args:
        path: The file; its folder is created if it does not exist.
        content: The whole content.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        if error.filename == str(beside):
            error.filename = str(path)  # the name that was given says more than the one beside it
        raise
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    if os.name == "posix":  # the entry in the folder, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path


def plain(value: Any) -> Any:
    """The value with ``None`` for numbers that are not finite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value
