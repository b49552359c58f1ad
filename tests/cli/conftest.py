"""A trained model for all verbs."""

import json

import pytest
from tiny_runs import TASK

from hogwild.cli import main


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a small trained model."""
    folder = tmp_path_factory.mktemp("runs") / "chains"
    flags = ["--epochs", "30", "--replicas", "2", "--lr", "0.02", "--task-option", "length=3"]
    flags += ["--model-option", "beta=1.0"]  # more convex: fewer ticks
    assert main(["train", TASK, *flags, "--folder", str(folder)]) == 0
    return str(folder)


@pytest.fixture
def printed(trained, capsys):
    """What a verb prints about that model with ``--json``, and how it exits."""

    def call(verb, *flags):
        code = main([verb, trained, "--task", TASK, "--json", *flags])
        return code, json.loads(capsys.readouterr().out)

    return call
