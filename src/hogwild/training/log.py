"""The history of a run, in memory and as lines of JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hogwild.errors import CheckpointError
from hogwild.files import write_atomically


def plain(value: Any) -> Any:
    """The value with ``None`` for numbers that are not finite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a history; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        found = [json.loads(line) for line in lines]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    for number, line in enumerate(found, 1):
        if not isinstance(line, dict) or "epoch" not in line:
            raise CheckpointError(f"{path} is damaged: line {number} is not about an epoch")
    return found


class Log:
    """Writes the lines of a history to a file, where one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []

    def rewind(self, epoch: int) -> None:
        """Remove the lines from ``epoch`` on, which will be written again."""
        if self.path is not None:
            self.lines = [line for line in read(self.path) if line["epoch"] < epoch]
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            write_atomically(self.path, text.encode())

    def write(self, line: dict[str, Any]) -> None:
        """Add a line."""
        line = plain(line)
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
