"""A trained model in one file, ``model.hog``: what is copied to every robot.

The file is a `safetensors <https://github.com/huggingface/safetensors>`_ file: eight bytes with the
length of a JSON header, the header, and the tensors. The header's metadata holds everything that is
not a tensor, as JSON under ``"hogwild"``. Nothing is pickled: loading a model runs no code of
whoever made it. The *name* of a model is a hash of its content, which the exporter computes. Agents
put the name into every packet, so that agents with different models never mix. A *checksum* shows
damage on the way to the robot; it is not a signature.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hogwild_node.errors import ModelFileError
from hogwild_node.ops import Array

FORMAT = 1
"""Raised whenever an older version could not read what is written."""
LARGEST_HEADER = 1 << 24
_DTYPES = {"F64": "<f8", "F32": "<f4"}


@dataclass(frozen=True)
class ModelFile:
    """The content of a file.

    Attributes:
        config: What is not a tensor: the kind of the model, its sizes and options.
        tensors: The parameters by name, in float64.
        name: The model's name on the network: sixteen hexadecimal digits.
    """

    config: dict[str, Any]
    tensors: dict[str, Array]
    name: str


def _content(config: Mapping[str, Any], tensors: Mapping[str, Array]) -> Iterator[bytes]:
    """Everything that a model consists of."""
    yield json.dumps([FORMAT, dict(config)], sort_keys=True).encode()
    for key in sorted(tensors):
        yield key.encode() + b"\0" + str(tensors[key].shape).encode()
        yield np.ascontiguousarray(tensors[key], "<f8").tobytes()


def name_of(config: Mapping[str, Any], tensors: Mapping[str, Array]) -> str:
    """The name of a model with this content."""
    import hashlib  # OpenSSL takes 4 MB of a robot's memory; only the exporter needs it

    digest = hashlib.sha256()
    for part in _content(config, tensors):
        digest.update(part)
    return digest.hexdigest()[:16]


def _checksum(name: str, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> int:
    found = zlib.crc32(name.encode())
    for part in _content(config, tensors):
        found = zlib.crc32(part, found)
    return found


def serialise(config: Mapping[str, Any], tensors: Mapping[str, Array]) -> bytes:
    """The bytes of a file with this content."""
    name = name_of(config, tensors)
    about = {
        "format": FORMAT, "name": name, "checksum": _checksum(name, config, tensors),
        "config": dict(config),
    }  # fmt: skip
    header: dict[str, Any] = {"__metadata__": {"hogwild": json.dumps(about, sort_keys=True)}}
    parts, end = [], 0
    for key in sorted(tensors):
        data = np.ascontiguousarray(tensors[key], "<f8").tobytes()
        start, end = end, end + len(data)
        shape = list(tensors[key].shape)
        header[key] = {"dtype": "F64", "shape": shape, "data_offsets": [start, end]}
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def load(path: str | Path) -> ModelFile:
    """Read a file and check that it is whole.

    Raises:
        ModelFileError: There is no such file, it is damaged, or another version wrote it.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror}); expected a model file that "
            f"`hogwild export RUN --out model.hog` wrote"
        ) from error
    try:
        return parse(raw)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def parse(raw: bytes) -> ModelFile:
    """The content of a file with these bytes."""
    try:
        size = int.from_bytes(raw[:8], "little")
        if len(raw) < 8 or not 2 <= size <= min(LARGEST_HEADER, len(raw) - 8):
            raise ValueError("its first eight bytes are no length of a header")
        header = json.loads(raw[8 : 8 + size])
        about = json.loads(header.pop("__metadata__")["hogwild"])
        written = about["format"]
        if written != FORMAT:
            raise ModelFileError(
                f"the model has format {written!r}; this version reads format {FORMAT}: install "
                f"the version of hogwild-node that belongs to the exporter, or export again"
            )
        data, tensors = memoryview(raw)[8 + size :], {}
        for key, entry in header.items():
            start, stop = entry["data_offsets"]
            kind = np.dtype(_DTYPES[entry["dtype"]])
            part = np.frombuffer(data[start:stop], kind).reshape(entry["shape"])
            tensors[key] = part.astype(np.float64)
        config, name, expected = about["config"], str(about["name"]), about["checksum"]
    except ModelFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"the file is damaged, or it is not a model file ({error}); copy it again, or write it "
            f"with `hogwild export RUN --out model.hog`"
        ) from error
    if _checksum(name, config, tensors) != expected:
        raise ModelFileError(
            "the content does not match the checksum in the file: the file is damaged; copy it "
            "again"
        )
    return ModelFile(config, tensors, name)
