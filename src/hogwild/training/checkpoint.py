"""The files of a run: checkpoints, its state in one of them, its folder and its history.

A checkpoint is two files: ``tensors-<checksum>.safetensors``, and ``checkpoint.json``, which holds
the name and the SHA-256 of the first and everything that is not a tensor. The tensors are written
first, under a new name; then the JSON is replaced atomically. Nothing is pickled: loading a
checkpoint runs no code of the person who made it.

The next epoch is a function of the state of a run: the current and the best parameters, the
optimiser's memory, warm starts, the random state, and which replicas have stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hogwild.config import GONE, Config
from hogwild.errors import CheckpointError, ConfigError
from hogwild.files import plain, write_atomically

if TYPE_CHECKING:
    from hogwild.training.loop import Loop

INDEX = "checkpoint.json"
FORMAT = 1
"""The version of the format; it changes whenever older versions of the library cannot read it."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    tensors: dict[str, Tensor]
    """The tensors by name, on the CPU."""
    extra: dict[str, Any]
    """Everything else, as it was in JSON."""


def save(
    folder: str | Path,
    model: nn.Module | Mapping[str, Tensor],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, in place of an older one.

    Args:
        folder: The folder; it is created if it does not exist.
        model: A module, whose ``state_dict`` is saved, or tensors by name.
        extra: Anything that JSON can hold.
    """
    from safetensors.torch import save as serialise

    folder = Path(folder)
    tensors = model.state_dict() if isinstance(model, nn.Module) else model
    content = serialise({k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()})
    checksum = hashlib.sha256(content).hexdigest()
    name = f"tensors-{checksum[:16]}.safetensors"
    index = {"format": FORMAT, "tensors": name, "sha256": checksum, "extra": dict(extra or {})}
    text = json.dumps(index, indent=1, allow_nan=False)
    write_atomically(folder / name, content)
    write_atomically(folder / INDEX, text.encode())
    # Older tensors, and left-overs of killed runs.
    for pattern in ("tensors-*.safetensors", ".tensors-*", f".{INDEX}.*"):
        for old in folder.glob(pattern):
            if old.name != name:
                old.unlink(missing_ok=True)


def exists(folder: str | Path) -> bool:
    """Whether a checkpoint was ever completed in this folder."""
    return (Path(folder) / INDEX).is_file()


def load(folder: str | Path, model: nn.Module | None = None) -> Checkpoint:
    """Read a checkpoint, and put its tensors into ``model`` if one is given.

    Raises:
        CheckpointError: There is no checkpoint, a file is damaged, or the tensors do not fit the
            model, which is then unchanged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as deserialise

    if not exists(folder):
        raise CheckpointError(
            f"{folder} holds no {INDEX}; expected a folder written by "
            f"hogwild.training.checkpoint.save"
        )
    try:
        index = json.loads((Path(folder) / INDEX).read_text(encoding="utf-8"))
        version, name, checksum, extra = (
            index[key] for key in ("format", "tensors", "sha256", "extra")
        )
        if version != FORMAT:
            raise CheckpointError(
                f"{folder} is of format {version}; this version of hogwild reads format {FORMAT}"
            )
        content = (Path(folder) / Path(name).name).read_bytes()
        if hashlib.sha256(content).hexdigest() != checksum:
            raise ValueError(f"the SHA-256 of {name} is not {checksum[:16]}…")
        tensors = deserialise(content)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is damaged ({type(error).__name__}: {error}); expected what "
            f"hogwild.training.checkpoint.save wrote: restore it from a copy"
        ) from error
    if model is not None:
        fit(model, tensors, str(folder))
    return Checkpoint(tensors, extra)


def fit(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Put tensors into a model, all of them or none."""
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: list(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in own | given if own.get(name) != given.get(name))
    if wrong:
        what = ", ".join(f"{k} {given.get(k)} instead of {own.get(k)}" for k in wrong[:3])
        raise CheckpointError(
            f"{where} does not fit this {type(model).__name__} ({what}); expected the same "
            f"architecture, sizes and number of replicas it was saved with"
        )
    model.load_state_dict(dict(tensors))


# -- the state of a run ----------------------------------------------------------------------------

_KEPT = ("alive", "best_score", "best_loss", "best_epoch", "loss", "score")
"""Tensors of a loop, beside the model, the optimiser and the warm starts."""
_NUMBERS = ("epoch", "judged")


@dataclass(frozen=True)
class Stop:
    """Why a replica stopped before the last epoch."""

    epoch: int  # at which it stopped
    failed: bool  # there was an error; otherwise validation no longer improved
    reason: str  # in words


def state_of(loop: Loop) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and everything else, for :func:`save`."""
    tensors = {f"model/{k}": v for k, v in loop.model.state_dict().items()}
    tensors |= {f"best/{k}": v for k, v in loop.best.items()}
    tensors |= {f"optimiser/{k}": v for k, v in loop.optimiser.state().items()}
    tensors |= {f"loop/{k}": getattr(loop, k) for k in _KEPT}
    tensors["random/cpu"] = torch.get_rng_state()
    if loop.batches.device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(loop.batches.device)
    if loop.warm.value is not None:
        tensors["warm"] = loop.warm.value
    extra: dict[str, Any] = {name: getattr(loop, name) for name in _NUMBERS}
    stops = [None if s is None else asdict(s) for s in loop.stops]
    extra |= {"data": loop.batches.counts, "config": loop.config.as_dict(), "stops": stops}
    return tensors, extra


def restore(loop: Loop, found: Checkpoint, where: str) -> dict[str, Tensor]:
    """Put a new loop into the state of a checkpoint in the folder ``where``; returns the random
    state."""
    device, counts = loop.batches.device, loop.batches.counts
    before = found.extra.get("data")
    if before not in (None, counts):
        raise CheckpointError(
            f"{where} is of a run on other data: {before}, now {counts}; expected the same graphs, "
            f"or a new folder"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    try:
        fit(loop.model, groups["model"], where)
        best = groups["best"]
        loop.best = {k: best[k].to(device).view_as(v) for k, v in loop.best.items()}
        for name in loop.optimiser.state():
            setattr(loop.optimiser, name, groups["optimiser"][name].to(device))
        for name in _KEPT:
            setattr(loop, name, groups["loop"][name].to(device))
        for name in _NUMBERS:
            setattr(loop, name, found.extra[name])
        loop.warm.value = groups["warm"][""].to(device) if "warm" in groups else None
        loop.stops = [None if s is None else Stop(**s) for s in found.extra["stops"]]
        return groups["random"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{where} is no checkpoint of a training run ({error!r}); expected a folder that one "
            f"was made in, or a new one"
        ) from error


# -- the folder of a run ---------------------------------------------------------------------------

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
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another run uses {folder}; wait until it has ended, or give another folder"
                ) from None
        yield


def check_folder(folder: Path, config: Config, resume: bool) -> bool:
    """Whether the folder holds a checkpoint to resume from; changes nothing.

    Raises:
        ConfigError: There is a run, and ``resume`` is false or its options differ.
        CheckpointError: The checkpoint is damaged or gone.
    """
    path = folder / "config.json"
    kept = exists(folder / "state")
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
    gone = {k: None for k in GONE if before.get(k)}
    differ = sorted(k for k in now | gone if k not in FREE and before.get(k) != now.get(k))
    if differ:
        k = differ[0]
        raise ConfigError(
            f"{folder} holds a run with other options: {k}={before.get(k)!r}, now {now.get(k)!r}"
            f"{f' (and {len(differ) - 1} more)' if differ[1:] else ''}; expected the same ones, or "
            f"a new folder"
        )
    if not kept:
        raise CheckpointError(
            f"{folder} holds a finished run, but its checkpoint ({folder / 'state'}) is gone; "
            f"expected hogwild.training.load({str(folder)!r}), or a new folder"
        )
    return True


def write_config(folder: Path, config: Config) -> None:
    """Write the configuration: from now on the folder holds a run."""
    write_atomically(folder / "config.json", _text(config).encode())


def _text(config: Config) -> str:
    return json.dumps(config.as_dict(), indent=1, default=str)


# -- the history -----------------------------------------------------------------------------------


def read_history(path: Path) -> list[dict[str, Any]]:
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
    """The history of a run, in memory and, where a path is given, as lines of JSON."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []

    def rewind(self, epoch: int) -> None:
        """Remove the lines from ``epoch`` on, which will be written again."""
        if self.path is not None:
            self.lines = [line for line in read_history(self.path) if line["epoch"] < epoch]
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            write_atomically(self.path, text.encode())

    def write(self, line: dict[str, Any]) -> None:
        """Add a line."""
        line = plain(line)
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
