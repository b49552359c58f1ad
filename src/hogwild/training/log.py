"""The history of a run: in memory, as lines of JSON, and for TensorBoard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hogwild.errors import CheckpointError, ConfigError
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
    """Writes the lines of a history to a file of JSON lines and to a folder for TensorBoard, where
    these are given."""

    def __init__(self, path: Path | None, tensorboard: str | Path | None = None) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.tensorboard = tensorboard
        self.board: Any = None
        if tensorboard is not None:
            try:
                import torch.utils.tensorboard  # noqa: F401  (fails before the first epoch)
            except ImportError as error:
                raise ConfigError(
                    f"tensorboard={str(tensorboard)!r} needs the package tensorboard ({error}): "
                    f"pip install tensorboard, or leave the option out"
                ) from error

    def rewind(self, epoch: int) -> None:
        """Remove the lines from ``epoch`` on, which will be written again."""
        if self.tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.tensorboard), purge_step=epoch or None)
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
        if self.board is not None:
            for key in ("loss", "validation"):
                for r, value in enumerate(line[key]):
                    if value is not None:
                        self.board.add_scalar(f"{key}/{r}", value, line["epoch"])

    def close(self) -> None:
        """End the history."""
        if self.board is not None:
            self.board.close()
