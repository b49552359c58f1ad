"""Every task with every model, by its name on the command line."""

import json

import pytest
from samples import options

from hogwild.cli import main
from hogwild.tasks import TASKS
from hogwild.training import MODELS, log


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_trains(task, model, home, tmp_path, capsys):
    given = [f"{key}={json.dumps(value)}" for key, value in options(task, home).items()]
    flags = [word for pair in given for word in ("--task-option", pair)]
    flags += ["--epochs", "2", "--log-every", "1", "--folder", str(tmp_path / "run")]
    assert main(["train", task, "--model", model, *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["model"], found["stops"]) == (task, model, [None])
    assert all(value is not None for part in found["metrics"].values() for value in part)
    first, second = (line["loss"][0] for line in log.read(tmp_path / "run" / "metrics.jsonl"))
    assert second != first  # a step was made, and it was felt
