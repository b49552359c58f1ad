"""Checkpoints: exact, without pickle, whole or refused."""

import json
import math
import os

import pytest
import torch

from hogwild import EnergyGNN
from hogwild.errors import CheckpointError
from hogwild.training import checkpoint


def tensors():
    return {
        "a": torch.randn(3, 4, dtype=torch.float64),
        "b": torch.arange(5),
        "c": torch.tensor([True, False]),
        "d/e": torch.tensor([math.inf, -0.0]),
    }


def test_round_trip_is_exact(tmp_path):
    given, extra = tensors(), {"epoch": 3, "names": ["x", None], "lr": 0.1}
    checkpoint.save(tmp_path / "new" / "folder", given, extra)
    found = checkpoint.load(tmp_path / "new" / "folder")
    assert found.extra == extra
    assert found.tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def test_another_model_is_refused_and_left_alone(tmp_path):
    checkpoint.save(tmp_path, EnergyGNN(2, out_channels=1))
    for other in (
        EnergyGNN(3, out_channels=1),
        EnergyGNN(2, out_channels=1, heads=2),
        EnergyGNN(2, out_channels=1, replicas=2),
    ):
        before = [p.clone() for p in other.parameters()]
        with pytest.raises(CheckpointError, match="does not fit this EnergyGNN"):
            checkpoint.load(tmp_path, other)
        assert all(torch.equal(p, q) for p, q in zip(before, other.parameters(), strict=True))


def test_truncated_files_and_flipped_bits_are_refused(tmp_path):
    checkpoint.save(tmp_path, {"a": torch.zeros(2)})
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    flipped = (whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(0, len(whole), 3))
    for damaged in (*(whole[:size] for size in (0, 1, 7, -1)), *flipped):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(tmp_path)


def test_missing_and_damaged_indices(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint\.json"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, tensors())
    index = tmp_path / "checkpoint.json"
    whole = index.read_text()
    for text in ("", whole[: len(whole) // 2], "[]", "{}", '{"format": 1}'):
        index.write_text(text)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(tmp_path)
    index.write_text(json.dumps({**json.loads(whole), "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.load(tmp_path)
    index.write_text(whole)
    (file,) = tmp_path.glob("*.safetensors")
    file.unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_names_no_file_outside_its_folder(tmp_path):
    checkpoint.save(tmp_path / "one", tensors())
    checkpoint.save(tmp_path / "two", {"a": torch.zeros(1)})
    index = tmp_path / "one" / "checkpoint.json"
    (other,) = (tmp_path / "two").glob("*.safetensors")
    found = json.loads(index.read_text())
    index.write_text(json.dumps({**found, "tensors": f"../two/{other.name}"}))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(tmp_path / "one")


def test_extra_must_be_json(tmp_path):
    for extra in ({"a": torch.zeros(1)}, {"a": math.nan}):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            checkpoint.save(tmp_path, {}, extra)
    assert not checkpoint.exists(tmp_path)


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("call", range(1, 7))
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch, call):
    """Replacing or flushing a file is where a save can be interrupted: the old checkpoint, or the
    new one, is there afterwards, never a mixture."""
    old, new = {"a": torch.zeros(3)}, {"a": torch.ones(3)}
    checkpoint.save(tmp_path, old, {"which": "old"})
    count = 0

    def interrupted(function):
        def inner(*args, **kwargs):
            nonlocal count
            count += 1
            if count == call:
                raise Killed
            return function(*args, **kwargs)

        return inner

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted(os.fsync))
        patch.setattr(type(tmp_path), "replace", interrupted(type(tmp_path).replace))
        with pytest.raises(Killed):
            checkpoint.save(tmp_path, new, {"which": "new"})
    found = checkpoint.load(tmp_path)
    expected = {"old": old, "new": new}[found.extra["which"]]
    assert torch.equal(found.tensors["a"], expected["a"])
    checkpoint.save(tmp_path, new, {"which": "new"})
    assert torch.equal(checkpoint.load(tmp_path).tensors["a"], new["a"])
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
