"""Arrays that grow chunk by chunk, in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Rows:
    """Collects rows [n, …] of one dtype. With a folder they go into a file as they come, and
    :meth:`done` maps the file into memory; without one they stay in memory.

    Args:
        folder: The folder of the file, or ``None``.
        name: The name of the file, without its ending.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / f"{name}.rows"
        self.count, self.like = 0, np.empty(0)
        self.parts: list[Array] = []
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")

    def add(self, rows: Array) -> None:
        """Append rows. The first rows decide the dtype and the width."""
        if not self.count:
            self.like = np.empty((0, *rows.shape[1:]), rows.dtype)
        rows = np.ascontiguousarray(rows, dtype=self.like.dtype)
        self.count += len(rows)
        if self.path is None:
            self.parts.append(rows)
        else:
            with self.path.open("ab") as file:
                rows.tofile(file)

    def done(self) -> Array:
        """All rows; in a file, memory-mapped and copied on writing."""
        if self.path is None or not self.count:
            return np.concatenate([self.like, *self.parts])
        shape = (self.count, *self.like.shape[1:])
        return np.memmap(self.path, self.like.dtype, mode="c", shape=shape)
