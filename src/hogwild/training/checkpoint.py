"""Checkpoints: tensors and other data in a folder, which a kill at any moment leaves whole.

A checkpoint is two files: ``tensors-<checksum>.safetensors``, and ``checkpoint.json``, which holds
the name and the SHA-256 of the first and everything that is not a tensor. The tensors are written
first, under a new name; then the JSON is replaced atomically. Nothing is pickled: loading a
checkpoint runs no code of the person who made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import CheckpointError
from hogwild.files import write_atomically

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
