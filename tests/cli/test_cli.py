"""The command line: what it prints, what it leaves, and how it exits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

import hogwild
from hogwild.cli import VERBS, common, impair, main, parser, reproduce
from hogwild.cli.interrupt import Interruptible
from hogwild.training import log

ROOT = Path(__file__).parents[2]
TASK = str(Path(__file__).parents[1] / "training" / "tiny_tasks.py") + ":Chains"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a small trained model."""
    folder = tmp_path_factory.mktemp("runs") / "chains"
    flags = ["--epochs", "30", "--replicas", "2", "--lr", "0.02", "--task-option", "length=3"]
    assert main(["train", TASK, *flags, "--folder", str(folder)]) == 0
    return str(folder)


def test_train_leaves_a_folder(trained):
    names = {p.name for p in Path(trained).iterdir()}
    assert {"config.json", "metrics.jsonl", "result.json", "model", "state"} <= names
    config = json.loads((Path(trained) / "config.json").read_text())
    assert config["task_options"] == {"length": 3}
    assert config["lr"] == 0.02
    assert [line["epoch"] for line in log.read(Path(trained) / "metrics.jsonl")] == [0, 10, 20, 29]


def test_evaluate_finds_the_same_numbers(trained, capsys):
    assert main(["evaluate", trained, "--task", TASK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((Path(trained) / "result.json").read_text())
    assert found["metrics"]["test"] == kept["metrics"]["test"]
    assert main(["evaluate", trained, "--task", TASK]) == 0
    assert "energy-edge on tiny chains: 2 replicas" in capsys.readouterr().out


def test_simulate(trained, capsys):
    call = ["simulate", trained, "--task", TASK, "--runs", "2", "--json"]
    assert main(call) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["converged"] == [[True, True], [True, True]]
    assert main([*call, "--ticks", "5"]) == 3
    assert json.loads(capsys.readouterr().out)["converged"] == [[False, False]] * 2


def test_robustness(trained, capsys):
    call = ["robustness", trained, "--task", TASK, "--runs", "2"]
    assert main([*call, "--json", "--loss", "0.3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rule"] == "messages"
    assert found["converged"] == 1.0
    assert found["proved"] is False
    assert found["bytes"] > found["packets"] > found["updates"] > 0
    assert main([*call, "--rule", "gradient", "--ticks", "7", "--quiet"]) == 3  # nobody arrived
    text = capsys.readouterr().out
    assert "Not converged within the 7 ticks: 2 of 2" in text
    assert "--rule messages needs fewer updates" in text  # flags, not keywords
    assert "price: 7 ticks" in text
    assert main([*call, "--loss", "1", "--ticks", "300", "--quiet"]) == 3
    text = capsys.readouterr().out
    assert "no packet ever arrives under BernoulliLoss(rate=1.0, burst=None)" in text
    assert "--rule" not in text  # no other rule helps


@pytest.mark.parametrize("terminal", [True, False])
def test_long_runs_show_progress(trained, monkeypatch, capsys, terminal):
    monkeypatch.setattr("hogwild.progress.DELAY", 0.0)
    monkeypatch.setattr("hogwild.progress.LINES", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    call = ["robustness", trained, "--task", TASK, "--runs", "1", "--ticks", "50"]
    main([*call, "--rule", "gradient"])
    shown = capsys.readouterr().err
    assert re.search(r"simulating: tick \d+, deviation \d\.\de-\d\d of 1e-06", shown)
    assert "50" not in re.sub(r"tick 50\b", "", shown)  # nobody waits for the last tick allowed
    for silent in ("--quiet", "--json"):
        main([*call, silent])
        assert capsys.readouterr().err == ""


def test_steps_and_impairments_reach_the_simulation(trained, capsys):
    call = ["simulate", trained, "--task", TASK, "--runs", "1", "--ticks", "40", "--json"]

    def seen(*flags):
        main([*call, *flags])
        return json.loads(capsys.readouterr().out)

    plain = seen()
    assert plain["rule"] == "messages"
    assert seen("--step", "certified")["rule"] == seen("--step", "0.01")["rule"] == "gradient"
    assert seen("--loss", "0.9")["deviation"] != plain["deviation"]
    assert seen("--loss", "0")["deviation"] == plain["deviation"]
    half = seen("--loss", "0.5")
    assert seen("--impair", "bernoulli-loss:rate=0.5")["deviation"] == half["deviation"]
    twice = seen("--impair", "bernoulli-loss:rate=0.5", "--impair", "stragglers:fraction=1")
    assert twice["deviation"] not in (half["deviation"], plain["deviation"])
    certify = ["certify", trained, "--task", TASK, "--json"]
    assert main([*certify, "--loss", "0.3"]) == 0
    assert json.loads(capsys.readouterr().out)["guaranteed"] is False
    assert main([*certify, "--impair", "bernoulli-loss:rate=0.3,burst=2", "--step", "1e-9"]) == 0
    assert json.loads(capsys.readouterr().out)["guaranteed"] is True


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--impair", "crashs"], "--impair 'crashs': unknown impairment; did you mean 'crashes'?"),
        (["--impair", "rain"], "Expected one of: bernoulli-loss, crashes"),
        (["--impair", "crashes:downtimes=3"], "a key among rate, period, downtime, rejoin, until"),
        (["--impair", "crashes:rate"], "'rate' is no option of crashes; expected KEY=VALUE"),
        (["--impair", "crashes:rate=2"], ": --impair crashes:rate=2; expected a probability"),
        (["--impair", "crashes:rate=abc"], ": --impair crashes:rate='abc'; expected a probability"),
        (["--impair", "crashes:rejoin=soon"], "--impair crashes:rejoin='soon'; expected 'warm'"),
        (["--impair", "quantisation:step=0"], "--impair quantisation:step=0; expected a positive"),
        (["--impair", "pareto-delay:alpha=much"], "expected a number for each key"),
        (["--loss", "1.5"], "--loss 1.5; expected a probability"),
        (["--rule", "magic"], "--rule 'magic'; expected one of auto, gradient, messages"),
        (["--rule", "waiting"], "--rule 'waiting' does not fit this model"),
        (
            ["--step", "fast"],
            "--step 'fast'; expected a positive number, or one of auto, certified",
        ),
    ],
)
def test_bad_flags_of_asynchrony(trained, flags, says, capsys):
    assert main(["simulate", trained, "--task", TASK, *flags]) == 2
    assert says in capsys.readouterr().err


def test_what_the_help_names_is_what_there_is():
    """It is written down, since help does not wait for torch."""
    assert tuple(sorted(impair.known())) == impair.NAMES
    assert tuple(hogwild.rules.RULES) == common.RULES
    assert tuple(hogwild.reproduce.EXPERIMENTS) == reproduce.EXPERIMENTS


@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS if verb != "train")])
def test_help_does_not_wait_for_torch(words):
    """That of training does: its flags are the fields of a configuration that holds dtypes."""
    code = (
        "import sys\nfrom hogwild.cli import main\ntry:\n    main([*sys.argv[1:], '--help'])\n"
        "finally:\n    print(sorted({'torch', 'numpy', 'scipy', 'tqdm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: hogwild" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_and_module():
    command = [sys.executable, "-m", "hogwild"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hogwild {hogwild.__version__}\n"
    done = subprocess.run([*command, "trian"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'train'" in done.stderr


def test_certify(trained, capsys):
    call = ["certify", trained, "--task", TASK]
    proved = ["--rule", "gradient", "--step", "certified"]
    assert main([*call, "--replica", "1", *proved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guaranteed"] is True
    assert all(key.isidentifier() and key.isascii() for key in found)
    assert found["strong_convexity"] <= found["smallest_eigenvalue"] < found["largest_row_sum"]
    assert 0.0 < found["certified_step_min"] <= found["certified_step_max"]
    assert 0.0 < found["rate"] < 1.0
    assert found["period"] == 14
    assert main([*call, *proved]) == 0
    assert "convergence under asynchrony guaranteed" in capsys.readouterr().out
    assert main([*call, "--step", "1e-9", "--json"]) == 0
    assert "certified" in json.loads(capsys.readouterr().out)["own_step"]
    assert main(call) == 0
    text = capsys.readouterr().out
    assert "messages are observed to converge" in text
    assert "--rule gradient --step certified is proved" in text  # to be pasted
    assert main([*call, "--step", "fast"]) == 2
    assert "--step 'fast'; expected a positive number" in capsys.readouterr().err


def test_certify_says_what_it_speaks_of(trained, capsys):
    call = ["certify", trained, "--task", TASK, "--stagger", "3", "--delay", "1", "--json"]
    assert main([*call, "--loss", "0.3", "--impair", "crashes"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rule"], found["stagger"], found["delay"]) == ("messages", 3, 1)
    assert [text.partition("(")[0] for text in found["impairments"]] == ["Crashes", "BernoulliLoss"]
    assert main([*call, "--step", "1e-9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rule"], found["impairments"]) == ("gradient", [])


def test_config_file_and_flags(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(f"task = '{TASK}'\nmodel = 'gcn'\nepochs = 9\n[task_options]\nlength = 4\n")
    folder = tmp_path / "run"
    assert main(["train", "--config", str(path), "--epochs", "2", "--folder", str(folder)]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["epochs"]) == ("gcn", 2)
    assert config["task_options"] == {"length": 4}
    assert "gcn on tiny chains" in capsys.readouterr().out


def test_none_on_the_command_line_is_a_value(tmp_path, capsys):
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(f"task = '{TASK}'\nmodel = 'gcn'\nepochs = 1\nbatch_size = 1\npatience = 3\n")
    call = ["train", "--config", str(path), "--batch-size", "none", "--folder", str(folder)]
    assert main(call) == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["batch_size"], config["patience"]) == (None, 3)


def test_a_table_that_is_none(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(f"task = '{TASK}'\ntask_options = 'length'\n")
    for flags in ([], ["--task-option", "length=3"]):
        assert main(["train", "--config", str(path), *flags]) == 2
        assert "'length'; expected a table of options" in capsys.readouterr().err


def test_all_replicas_failed_is_not_converged(capsys):
    flags = ["--solver", "lbfgs", "--solver-option", "max_iter=1", "--epochs", "2"]
    with pytest.warns(UserWarning, match="did not converge"):
        assert main(["train", TASK, *flags]) == 3
    assert "forward solve failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["train", TASK, "--model", "energy-ege"], "did you mean 'energy-edge'"),
        (["train", TASK, "--epochs", "many"], "--epochs 'many'; expected a positive integer"),
        (["train", TASK, "--weight-decay", "-1"], "--weight-decay -1; expected a nonnegative"),
        (["train", "chains", "--task-option", "length=0"], "--task-option length=0; expected"),
        (["train", "sums", "--task-option", "seed=3", "--seed", "-1"], ": seed=-1;"),
        (["train", "chains", "--folds", "3"], "--folds 3, --validation False were asked"),
        (["train", TASK, "--model-option", "hidden"], "expected KEY=VALUE"),
        (["train", TASK, "--task-option", "lenth=3"], "lenth"),
        (["train", "no_such_file.py:Task"], "no file"),
        (["train"], "no task was given"),
        (["train", "--config", "nowhere.toml"], "no file"),
        (["train", "mine.toml"], "hogwild train --config mine.toml"),
        (["train", TASK, "--resume", "--epochs", "0"], "--epochs 0"),
        (["train", TASK, "--folder", __file__], "cannot be used (File exists)"),
        (["train", TASK, "--tensorboard", __file__, "--epochs", "1"], "File exists"),
        (["train", TASK, "--seed", "9" * 20], "--seed 99999999999999999999; expected"),
        (["evaluate", __file__], "is a file; expected the folder"),
        (["reproduce", "fig1", "report"], "expected it by itself"),
        (["evaluate", "nowhere"], "nowhere does not exist; expected the folder of a finished run"),
        (["simulate", "nowhere"], "nowhere does not exist"),
        (["evaluate", "."], "training with --resume finishes"),
        (["simulate", "."], "holds no finished run"),
    ],
)
def test_bad_input_is_one_message(given, says, capsys):
    assert main(given) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("hogwild: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_more_bad_input(trained, capsys):
    call = ["certify", trained, "--task", TASK]
    for flags, says in ((["--replica", "7"], "0 to 1"), (["--graphs", "0"], "positive"),
                        (["--stagger", "0"], "--stagger 0;")):  # fmt: skip
        assert main([*call, *flags]) == 2
        assert says in capsys.readouterr().err
    assert main(["evaluate", trained]) == 2  # a file is not run unasked
    assert "give the same task again (--task ...)" in capsys.readouterr().err
    assert main(["train", TASK, "--folder", trained]) == 2
    assert "or --resume to go on with it" in capsys.readouterr().err
    assert main(["train", TASK, "--folder", trained, "--resume", "--lr", "0.5"]) == 2
    assert "--lr 0.02, now 0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "chains", "--epocs", "3"], "did you mean '--epochs'"),
        ([], "VERB"),
    ],
)
def test_bad_usage(given, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"hogwild {verb}" in text.split("examples:")[1]
    assert "--json" in text


@pytest.mark.parametrize("verb", VERBS)
def test_examples_parse(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    lines = capsys.readouterr().out.split("examples:")[1].split("\n")
    examples = [line.split() for line in lines if line.strip().startswith("hogwild ")]
    assert examples
    for words in examples:
        assert parser(words[1:]).parse_args(words[1:]).verb == verb


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert {"energy-edge", "gcn", "max"} <= set(found["models"])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = str(extras["optional-dependencies"])
    assert found["optional"]
    assert all(name in named for name in found["optional"])  # nothing that nothing uses
    assert main(["info"]) == 0
    assert "energy-edge" in capsys.readouterr().out


def test_a_killed_run_goes_on_in_the_same_bits(tmp_path, capsys):
    """SIGKILL to a real process in the middle of its epochs and checkpoints."""
    flags = ["--model", "gsdgnn", "--epochs", "70", "--checkpoint-every", "0", "--log-every", "1"]
    folder = tmp_path / "cut"
    command = [sys.executable, "-m", "hogwild.cli", "train", TASK, *flags, "--folder", str(folder)]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(log.read(folder / "metrics.jsonl")) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "result.json").exists()
    assert main(["train", TASK, *flags, "--folder", str(folder), "--resume"]) == 0
    assert main(["train", TASK, *flags, "--folder", str(tmp_path / "whole")]) == 0
    cut, whole = (
        json.loads((f / "model" / "checkpoint.json").read_text())["sha256"]
        for f in (folder, tmp_path / "whole")
    )
    assert cut == whole


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_keeps_every_epoch(number, tmp_path, capsys):
    """A signal to a real process that would otherwise not write a checkpoint for an hour."""
    flags = ["--model", "gsdgnn", "--checkpoint-every", "3600", "--log-every", "1"]
    folder = tmp_path / "cut"
    command = [sys.executable, "-m", "hogwild.cli", "train", TASK, *flags, "--folder", str(folder)]
    process = subprocess.Popen([*command, "--epochs", "1000000"], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while len(log.read(folder / "metrics.jsonl")) < 5:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
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
    assert len(log.read(folder / "metrics.jsonl")) == done >= 5
    flags += ["--epochs", str(done + 5)]
    assert main(["train", TASK, *flags, "--folder", str(folder), "--resume"]) == 0
    assert main(["train", TASK, *flags, "--folder", str(tmp_path / "whole")]) == 0
    cut, whole = (
        json.loads((f / "model" / "checkpoint.json").read_text())["sha256"]
        for f in (folder, tmp_path / "whole")
    )
    assert cut == whole


def test_an_interrupted_reproduction_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(hogwild.reproduce, "run", interrupted)
    assert main(["reproduce", "fig1", "--results", str(tmp_path), "--work", str(tmp_path)]) == 130
    assert "the same command with --resume keeps the cells" in capsys.readouterr().err


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
