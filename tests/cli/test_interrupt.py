"""Runs that are killed or interrupted go on in the same bits."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tiny_runs import TASK

from hogwild.cli import main
from hogwild.cli.training import Interruptible
from hogwild.training.checkpoint import read_history


def wait_for(epochs, folder, process):
    """Wait until a training process has logged so many epochs."""
    deadline = time.monotonic() + 60
    while len(read_history(folder / "metrics.jsonl")) < epochs:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)


def resume_as_if_uninterrupted(flags, cut, whole):
    """The run in ``cut``, resumed, ends in the same bits as one that was never interrupted."""
    assert main(["train", TASK, *flags, "--folder", str(cut), "--resume"]) == 0
    assert main(["train", TASK, *flags, "--folder", str(whole)]) == 0
    first, second = (
        json.loads((f / "model" / "checkpoint.json").read_text())["sha256"] for f in (cut, whole)
    )
    assert first == second


def test_a_killed_run_goes_on_in_the_same_bits(tmp_path, capsys):
    """SIGKILL to a real process in the middle of its epochs and checkpoints."""
    flags = ["--model", "gsdgnn", "--epochs", "25", "--checkpoint-every", "0", "--log-every", "1"]
    folder = tmp_path / "cut"
    command = [sys.executable, "-m", "hogwild", "train", TASK, *flags, "--folder", str(folder)]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL)
    try:
        wait_for(3, folder, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "result.json").exists()
    resume_as_if_uninterrupted(flags, folder, tmp_path / "whole")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_keeps_every_epoch(number, tmp_path, capsys):
    """A signal to a real process that would otherwise not write a checkpoint for an hour."""
    flags = ["--model", "gsdgnn", "--checkpoint-every", "3600", "--log-every", "1"]
    folder = tmp_path / "cut"
    command = [sys.executable, "-m", "hogwild", "train", TASK, *flags, "--folder", str(folder)]
    process = subprocess.Popen([*command, "--epochs", "1000000"], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(5, folder, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "finishing this epoch" in said
    (done,) = map(int, re.findall(r"interrupted after (\d+) epochs", said))
    assert f"kept in {folder}: the same command with --resume goes on from there" in said
    assert len(read_history(folder / "metrics.jsonl")) == done >= 5
    flags += ["--epochs", str(done + 5)]
    resume_as_if_uninterrupted(flags, folder, tmp_path / "whole")


def test_interrupting_twice_does_not_wait():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interruptible("runs/chains") as interruptible:
        with pytest.raises(KeyboardInterrupt, match="last checkpoint in runs/chains"):
            signal.raise_signal(signal.SIGINT)  # no epoch has ended
        interruptible.epoch = 3
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt, match="last checkpoint"):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with Interruptible(None):  # there is nothing to save
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
