"""Cells side by side: their order, their records, and a cell that fails."""

import json

import pytest

from experiments import __main__ as command
from experiments import beside
from experiments.registry import experiment


def test_cells_that_took_longest_begin_first():
    cells = ["sums/gcn", "chains/energy-node", "chains/gat"]
    found = beside.longest_first(experiment("table1"), cells)
    assert found == ["chains/energy-node", "chains/gat", "sums/gcn"]


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
    assert "exit code 2: experiments: --recipe 'papre'; did you mean 'paper'" in lines[0]


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
