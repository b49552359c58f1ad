"""``hogwild evaluate``."""

import json
from pathlib import Path

import pytest
from tiny_runs import TASK

from hogwild.cli import main


def test_evaluate_finds_the_same_numbers(trained, capsys):
    assert main(["evaluate", trained, "--task", TASK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((Path(trained) / "result.json").read_text())
    assert found["metrics"]["test"] == kept["metrics"]["test"]
    assert found["options"] == {"json": True, "folder": trained, "task": TASK}
    assert main(["evaluate", trained, "--task", TASK]) == 0
    assert "energy-edge on tiny chains: 2 replicas" in capsys.readouterr().out


def test_a_file_is_not_run_unasked(trained, capsys):
    assert main(["evaluate", trained]) == 2
    assert "give the same task again (--task ...)" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["evaluate", "simulate", "robustness", "sweep", "certify"])
def test_a_folder_without_a_run(verb, tmp_path, capsys):
    for folder, says in (
        ("nowhere", "nowhere does not exist; expected the folder of a finished run"),
        (__file__, "is a file; expected the folder"),
        (str(tmp_path), "training with --resume finishes"),
        (str(tmp_path), "holds no finished run"),
    ):
        assert main([verb, folder]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.err.startswith("hogwild: ")
        assert captured.out == ""


def test_a_task_that_lacks_something(trained, tmp_path, capsys):
    """The file has changed since training: the message names it, and there is no traceback."""
    source = Path(TASK.rpartition(":")[0]).read_text()
    path = tmp_path / "changed.py"
    path.write_text(f"{source}\n\ndel Chains.metric\n")
    assert main(["evaluate", trained, "--task", f"{path}:Chains"]) == 2
    said = capsys.readouterr().err
    assert "changed.py:Chains' lacks metric; expected the attributes" in said
    assert len(said.splitlines()) == 1
