"""The files of a run: checkpoints, its state in one of them, and its folder.

A checkpoint is two files: ``tensors-<checksum>.safetensors``, and ``checkpoint.json``, which holds
the name and the SHA-256 of the first and everything that is not a tensor. The tensors are written
first, under a new name; then the JSON is replaced atomically. Nothing is pickled: loading a
checkpoint runs no code of the person who made it.

The next epoch is a function of the state of a run: the current and the best parameters, the
optimiser's memory, warm starts, the random state, and which replicas have stopped.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hogwild.config import GONE, Config
from hogwild.errors import CheckpointError, ConfigError
from hogwild.files import write_atomically

if TYPE_CHECKING:
    from hogwild.training.loop import Loop

INDEX = "checkpoint.json"
FORMAT = 1
"""The version of the format; it changes whenever older versions of the library cannot read it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        tensors: The tensors by name, on the CPU.
        extra: Everything else, as it was in JSON.
    """

    tensors: dict[str, Tensor]
    extra: dict[str, Any]


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
    index = {
        "format": FORMAT,
        "tensors": name,
        "bytes": len(content),
        "sha256": checksum,
        "extra": dict(extra or {}),
    }
    try:
        described = json.dumps(index, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"extra holds a value that JSON cannot hold ({error}); expected numbers, strings, "
            f"lists and dictionaries, and tensors among the tensors"
        ) from error
    write_atomically(folder / name, content)
    write_atomically(folder / INDEX, described)
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

    path = Path(folder) / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        version, name = index["format"], index["tensors"]
        expected, checksum, extra = index["bytes"], index["sha256"], index["extra"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} holds no {INDEX}; expected a folder written by "
            f"hogwild.training.checkpoint.save"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {error}); expected the JSON that "
            f"hogwild.training.checkpoint.save wrote: restore it from a copy"
        ) from error
    if version != FORMAT:
        raise CheckpointError(
            f"{path} is of format {version}; this version of hogwild reads format {FORMAT}"
        )
    file = path.parent / Path(name).name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} names {name}, which cannot be read ({error.strerror}); restore it from a copy"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise CheckpointError(
            f"{file} is damaged: {len(content)} bytes of SHA-256 {found[:16]}…, expected "
            f"{expected} bytes of {checksum[:16]}…; restore it from a copy"
        )
    try:
        tensors = deserialise(content)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is no safetensors file ({error})") from error
    if model is not None:
        fit(model, tensors, str(folder))
    return Checkpoint(tensors, extra)


@torch.no_grad()
def fit(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Put tensors into a model, all of them or none."""
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = [
        f"{k} {list(tensors[k].shape)} instead of {list(own[k].shape)}"
        for k in sorted(own.keys() & tensors.keys())
        if own[k].shape != tensors[k].shape
    ]
    if missing or unknown or wrong:
        parts = (("missing", missing), ("unknown", unknown), ("of another shape", wrong))
        what = "; ".join(f"{name}: {', '.join(v[:3])}" for name, v in parts if v)
        raise CheckpointError(
            f"{where} does not fit this {type(model).__name__} ({what}); expected the same "
            f"architecture, sizes and number of replicas it was saved with"
        )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


# -- the state of a run ----------------------------------------------------------------------------

_KEPT = ("alive", "best_score", "best_loss", "best_epoch", "loss", "score")
"""Tensors of a loop, beside the model, the optimiser and the warm starts."""


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
    tensors |= {f"optimiser/{k}": v for k, v in loop.optimiser.state()}
    tensors |= {f"loop/{k}": getattr(loop, k) for k in _KEPT}
    tensors["random/cpu"] = torch.get_rng_state()
    if loop.shelf.device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(loop.shelf.device)
    if loop.warm.value is not None:
        tensors["warm"] = loop.warm.value
    extra: dict[str, Any] = {
        "epoch": loop.epoch,
        "judged": loop.judged,
        "data": loop.shelf.counts,
        "config": loop.config.as_dict(),
        "stops": [None if s is None else asdict(s) for s in loop.stops],
    }
    return tensors, extra


def restore(loop: Loop, found: Checkpoint, where: str) -> dict[str, Tensor]:
    """Put a new loop into the state of a checkpoint in the folder ``where``; returns the random
    state."""
    device, counts = loop.shelf.device, loop.shelf.counts
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
        for name, _ in loop.optimiser.state():
            setattr(loop.optimiser, name, groups["optimiser"][name].to(device))
        for name in _KEPT:
            setattr(loop, name, groups["loop"][name].to(device))
        loop.warm.value = groups["warm"][""].to(device) if "warm" in groups else None
        loop.stops = [None if s is None else Stop(**s) for s in found.extra["stops"]]
        loop.epoch = found.extra["epoch"]
        loop.judged = found.extra["judged"]
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
