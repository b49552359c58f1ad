"""The command line as a whole: help, version, usage, exit codes."""

import json
import subprocess
import sys

import pytest

import hogwild
from hogwild.cli import VERBS, agents, common, main, verb
from hogwild.cli.options import parse
from hogwild.errors import ConvergenceError
from hogwild_node import packets

HELP = """\
import sys, time
from hogwild.cli import VERBS, main
for words in [[], *([name] for name in VERBS)]:
    begun = time.process_time()
    try:
        main([*words, "--help"])
    except SystemExit as ended:
        assert ended.code == 0
    assert time.process_time() - begun < 0.5
assert not {"torch", "numpy", "scipy", "tqdm"} & set(sys.modules)
"""


def test_help_does_not_wait_for_torch():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: hogwild") == 1 + len(VERBS)


def test_version_and_module():
    command = [sys.executable, "-m", "hogwild"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hogwild {hogwild.__version__}\n"
    done = subprocess.run([*command, "trian"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'train'" in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "chains", "--epocs", "3"], "did you mean '--epochs'"),
        (["train", "chains", "--epoch", "3"], "did you mean '--epochs'"),  # in full, or not at all
        (
            ["simulate", "runs", "--stager=3"],
            "argument '--stager'; did you mean '--stagger'",
        ),
        (["evaluate", "one", "two"], "unknown argument 'two'"),
        (["simulate"], "required: FOLDER"),
        (["--json", "info"], "'--json' comes before the verb; expected hogwild info --json"),
        ([], "VERB"),
    ],
)
def test_bad_usage(given, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def shown(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", VERBS)
def test_help_has_examples(name, capsys):
    text = shown(capsys, name)
    assert "--json" in text
    lines = text.split("examples:")[1].split("\n")
    examples = [line.split() for line in lines if line.strip().startswith("hogwild ")]
    assert examples
    for _, named, *words in examples:
        assert named == name
        assert parse(verb(name), words, "hogwild")


def test_the_help_lists_every_precision():
    assert tuple(packets.PRECISIONS) == agents.PRECISIONS


def test_help_names_every_verb_and_exit_code(capsys):
    text = shown(capsys)
    assert all(f"\n  {name} " in text for name in VERBS)
    assert all(f" {code} " in text for code in (0, 1, 2, 3, 130))


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConvergenceError("epochs=3 were few"), 3, "hogwild: not converged: epochs=3 were few"),
        (FileNotFoundError(2, "No such file", "a.npz"), 2, "hogwild: a.npz: No such file"),
        (KeyboardInterrupt(), 130, "hogwild: interrupted"),
    ],
)
def test_exit_codes(error, code, says, monkeypatch, capsys):
    def fails(options):
        raise error

    monkeypatch.setattr(verb("info"), "run", fails)
    assert main(["info"]) == code
    assert says in capsys.readouterr().err


def test_what_is_unexpected_is_not_hidden(monkeypatch):
    def fails(options):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(verb("info"), "run", fails)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        main(["info"])


@pytest.mark.parametrize(("converged", "code"), [(True, 0), (False, 3)])
def test_outcomes(converged, code, monkeypatch, capsys):
    done = common.Outcome("said", {"found": float("nan")}, converged, {"json": "resolved"})
    monkeypatch.setattr(verb("info"), "run", lambda options: done)
    assert main(["info"]) == code
    assert capsys.readouterr().out == "said\n"
    assert main(["info", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found == {"found": None, "options": {"json": "resolved"}}
