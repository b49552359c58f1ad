"""How this library writes files: a reader never sees half of one."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


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
    finally:
        beside.unlink(missing_ok=True)
    if os.name == "posix":  # the entry in the folder, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path
