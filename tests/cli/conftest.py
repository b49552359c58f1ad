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


@pytest.fixture
def text(trained, capsys):
    """What a verb prints for people about that model, where it exits with this code: its output,
    or the error where it refuses."""

    def call(code, verb, *flags):
        assert main([verb, trained, "--task", TASK, *flags]) == code
        said = capsys.readouterr()
        if code == 2:  # before anything runs
            assert said.out == ""
            assert said.err.startswith("hogwild: ")
            assert "Traceback" not in said.err
            return said.err
        return said.out

    return call
