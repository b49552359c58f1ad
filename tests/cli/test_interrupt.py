"""Runs that are killed or interrupted go on in the same bits."""

import json
import os
import signal
import subprocess
import sys
import time

from tiny_runs import TASK

import hogwild
from hogwild.cli import main
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


def test_an_interrupted_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(**given):
        raise KeyboardInterrupt

    monkeypatch.setattr(hogwild, "train", interrupted)
    assert main(["train", TASK, "--folder", str(tmp_path)]) == 130
    said = capsys.readouterr().err
    assert said.startswith("hogwild: interrupted; --resume goes on from the last checkpoint in ")
