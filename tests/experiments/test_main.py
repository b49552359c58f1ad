"""``python -m experiments``: its help, its refusals, and what it says when it is interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import experiment
from experiments.registry import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def test_the_help_lists_every_experiment():
    """It is written down, since help does not wait for torch."""
    assert tuple(EXPERIMENTS) == command.EXPERIMENTS


def test_help_does_not_wait_for_torch():
    words = [sys.executable, "-X", "importtime", "-m", "experiments", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m experiments")
    for line in command.EXAMPLES.splitlines():
        assert line in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "hogwild.cli.common" in imported
    assert not {"torch", "numpy", "scipy", "tqdm"} & imported


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["fig1", "report"], "expected it by itself"),
        (["tabel1"], "unknown experiment 'tabel1'; did you mean 'table1'"),
        (["table1", "--replicas", "0"], "--replicas 0; expected"),
        (["table1", "--recipe", "papre"], "--recipe papre; did you mean 'paper'"),
    ],
)
def test_bad_input_is_one_message(given, says, capsys):
    assert command.main(given) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("experiments: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_interrupted_it_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    folders = ["--results", str(tmp_path), "--work", str(tmp_path)]
    assert command.main(["fig1", *folders]) == 130
    assert "the same command with --resume keeps the cells" in capsys.readouterr().err
