"""TensorBoard's event files, read back by TensorBoard."""

import sys
from pathlib import Path

import pytest
from tiny_tasks import Sums

from hogwild import train
from hogwild.cli import main
from hogwild.errors import ConfigError
from hogwild.training import log

TASK = str(Path(__file__).parents[1] / "tiny_tasks.py") + ":Sums"


def curves(folder):
    """Every scalar by its tag: (epoch, value) after (epoch, value)."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: its event files are not tested",
    )
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def expected(history):
    """The same from the history."""
    return {
        f"{key}/{r}": [(line["epoch"], pytest.approx(line[key][r])) for line in history]
        for key in ("loss", "validation")
        for r in range(2)
    }


def test_command(tmp_path, capsys):
    flags = ["--model", "gcn", "--epochs", "5", "--replicas", "2", "--log-every", "2"]
    board, folder = tmp_path / "board", tmp_path / "run"
    assert main(["train", TASK, *flags, "--tensorboard", str(board), "--folder", str(folder)]) == 0
    history = log.read(folder / "metrics.jsonl")
    assert [line["epoch"] for line in history] == [0, 2, 4]
    assert curves(board) == expected(history)


def test_epochs_that_come_again_are_there_once(tmp_path):
    options = {"model": "gcn", "epochs": 6, "replicas": 2, "log_every": 1, "resume": True}
    options |= {"folder": tmp_path / "run", "tensorboard": tmp_path / "board"}

    def stop(loop):
        if loop.epoch == 2:
            loop.save()
        if loop.epoch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Sums(), callback=stop, **options)
    result = train(Sums(), **options)
    assert curves(tmp_path / "board") == expected(result.history)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        train(Sums(), model="gcn", epochs=1, tensorboard="anywhere")
