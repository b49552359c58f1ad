"""Cells side by side: their order, their records, and a cell that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import beside
from experiments.registry import experiment

ROOT = Path(__file__).parents[2]


def test_cells_are_computed_by_processes_of_their_own(tmp_path, capsys):
    words = ["table1", "--quick", "--only", "chains/gcn", "chains/gsdgnn", "--replicas", "1"]
    words += ["--trial", "short", "--set", "epochs=2", "--jobs", "2", "--json"]
    words += ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    assert command.main(words) == 0
    said = capsys.readouterr()
    assert said.err.count("done (") == 2
    cells = json.loads(said.out)["table1"]["cells"]
    assert set(cells) == {"chains/gcn", "chains/gsdgnn"}
    folder = tmp_path / "results" / "quick" / "trials" / "short" / "table1" / "chains"
    assert {path.name for path in folder.iterdir()} == {"gcn.json", "gsdgnn.json"}
    assert "--jobs" not in cells["chains/gcn"]["command"]  # the command of this cell
    assert command.main(words) == 2
    assert "expected --resume" in capsys.readouterr().err


def test_a_process_that_fails_is_said(tmp_path):
    """It says what the process said last."""
    lines = []
    done = beside.compute(
        experiment("table1"), ["chains/gcn"], 2, ["--recipe", "papre"], lines.append
    )
    assert done == {}
    assert "exit code 2: experiments: --recipe papre; did you mean 'paper'" in lines[0]


def test_records_are_kept_with_resume_only(tmp_path, capsys):
    """Also those of experiments behind the first one, before anything is computed."""
    there = tmp_path / "results" / "table3" / "mutag" / "gcn.json"
    there.parent.mkdir(parents=True)
    there.write_text("{}")
    folders = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    assert command.main(["table1", "table3", "--jobs", "2", *folders]) == 2
    said = capsys.readouterr().err
    assert "expected --resume" in said
    assert "table1" not in said


def test_interrupted(tmp_path):
    """Whoever interrupts this process only: those that it started end, too, and are waited for."""
    words = [sys.executable, "-m", "experiments", "table1", "--only", "chains/*", "--jobs", "2"]
    words += ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    process = subprocess.Popen(
        words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until = time.monotonic() + 600
        while not list(tmp_path.glob("work/training/chains/*/config.json")):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[1]
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "the same command with --resume" in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["table2", "--jobs", "2"], "its cells share trained models"),
        (["table1", "--jobs", "0"], "--jobs 0; expected"),
    ],
)
def test_refusals(given, says, capsys):
    assert command.main(given) == 2
    assert says in capsys.readouterr().err
