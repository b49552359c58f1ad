"""``hogwild train`` and ``evaluate``: what they leave, where options come from, and what they say
of a user's tasks where something is missing or wrong."""

import json
from pathlib import Path

import pytest
from samples import options
from tiny_runs import TASK

from hogwild.cli import main
from hogwild.tasks import TASKS
from hogwild.training import MODELS
from hogwild.training.checkpoint import read_history

SOURCE = (Path(__file__).parents[1] / "tiny_tasks.py").read_text()
ATTRIBUTES = (
    "name", "metric_name", "higher_is_better", "in_channels", "out_channels", "edge_dim", "pool",
    "splits", "loss", "metric",
)  # fmt: skip


def train(folder, source, *flags, name="Chains"):
    path = folder / "my_tasks.py"
    path.write_text(source)
    return main(["train", f"{path}:{name}", "--epochs", "1", "--model", "gcn", *flags])


def complaint(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("hogwild: ")
    return lines[0]


@pytest.mark.parametrize("attribute", [*ATTRIBUTES, "graphs"])
def test_an_attribute_is_missing(attribute, tmp_path, capsys):
    source = f"{SOURCE}\n\ndel Chains.{attribute}\n"
    if attribute == "graphs":
        source = SOURCE.replace("self.graphs", "self.data")
    assert train(tmp_path, source) == 2
    assert f"my_tasks.py:Chains' lacks {attribute}; expected the attributes" in complaint(capsys)


SPLITS = "lambda self, folds=None, seed=0:"
LOSS = "lambda self, out, data, mask=None:"


@pytest.mark.parametrize(
    ("attribute", "given", "says"),
    [
        ("in_channels", "'2'", "has in_channels = '2'; expected a positive integer"),
        ("in_channels", "3", "graph 0 has x of shape [5, 2]; expected [nodes, 3]"),
        ("out_channels", "0", "has out_channels = 0"),
        ("edge_dim", "1", "graph 0 has no edge_attr"),
        ("pool", "'min'", "expected None (nodes) or one of mean, add"),
        ("higher_is_better", "1", "expected true or false"),
        ("splits", "3", "has splits = 3; expected a method"),
        ("splits", "lambda self: []", "cannot be called as splits(folds, seed)"),
        ("splits", f"{SPLITS} []", "splits() of 'tiny chains' returned []"),
        ("splits", f"{SPLITS} None", "splits() of 'tiny chains' returned None"),
        ("splits", f"{SPLITS} [1]", "splits() of 'tiny chains' has train = None"),
        ("splits", f"{SPLITS} parts(9, 3, 0)", "expected the numbers of some of its 2 graphs"),
        ("loss", "lambda self, out: 1", "cannot be called as loss(out, data, mask)"),
        ("loss", f"{LOSS} 1.0", "the loss of 'tiny chains' is 1.0 with 1 replicas"),
        ("loss", f"{LOSS} out.sum()", "the loss of 'tiny chains' has shape [] with"),
        ("loss", f"{LOSS} out.detach().mean((1, 2))", "has no gradient"),
        ("metric", f"{LOSS} 3", "the metric of 'tiny chains' is 3"),
    ],
)
def test_an_attribute_is_wrong(attribute, given, says, tmp_path, capsys):
    assert train(tmp_path, f"{SOURCE}\n\nChains.{attribute} = {given}\n") == 2
    assert says in complaint(capsys)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (SOURCE.replace("class Chains", "class Chain"), "did you mean 'Chain'?"),
        (f"{SOURCE}\n\ndef Chains():\n    return None\n", "lacks name, in_channels"),
        (SOURCE.replace("x[0, c] = 1.0", "x[0, c] = float('nan')"), "NaN or infinite"),
        (SOURCE.replace("[Data(", "[print(").replace("append(Data(", "append(dict("), "non-empty"),
    ],
)
def test_a_file_is_wrong(source, says, tmp_path, capsys):
    assert train(tmp_path, source) == 2
    assert says in complaint(capsys)


def test_targets_that_are_no_numbers(tmp_path, capsys):
    source = SOURCE.replace("torch.full((length,), c)", "torch.full((length,), float('nan'))")
    assert train(tmp_path, source) == 3
    assert "the loss was nan: look for NaN in the targets (y)" in capsys.readouterr().out


def test_a_function_that_returns_graphs(tmp_path, capsys):
    source = f"{SOURCE}\n\ndef mine():\n    return Sums().graphs\n"
    assert train(tmp_path, source, name="mine") == 0
    assert "gcn on own data" in capsys.readouterr().out


def test_config_file_and_flags(tmp_path, capsys):
    path = tmp_path / "run.toml"
    given = f"task = '{TASK}'\nmodel = 'gcn'\nepochs = 9\nbatch_size = 1\npatience = 3\n"
    path.write_text(f"{given}[task_options]\nlength = 4\n")
    folder = tmp_path / "run"
    flags = ["--epochs", "2", "--batch-size", "none", "--folder", str(folder)]
    assert main(["train", "--config", str(path), *flags]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["epochs"]) == ("gcn", 2)
    assert (config["batch_size"], config["patience"]) == (None, 3)
    assert config["task_options"] == {"length": 4}
    assert "gcn on tiny chains" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["train", TASK, "--model", "energy-ege"], "did you mean 'energy-edge'"),
        (["train", TASK, "--epochs", "many"], "--epochs many; expected a positive integer"),
        (["train", TASK, "--weight-decay", "-1"], "--weight-decay -1; expected a nonnegative"),
        (["train", "chains", "--task-option", "length=0"], "--task-option length=0; expected"),
        (["train", "sums", "--task-option", "seed=3", "--seed", "-1"], ": seed=-1;"),
        (["train", TASK, "--decay", "(0.9; 500)"], "expected (factor, every)"),
        (["train", "chains", "--folds", "3"], "--folds 3, --validation False were asked"),
        (["train", TASK, "--model-option", "hidden"], "expected KEY=VALUE"),
        (["train", TASK, "--task-option", "lenth=3"], "lenth"),
        (["train", "no_such_file.py:Task"], "no file"),
        (["train"], "no task was given"),
        (["train", "--config", "nowhere.toml"], "no file"),
        (["train", "mine.toml"], "hogwild train --config mine.toml"),
        (["train", TASK, "--resume", "--epochs", "0"], "--epochs 0"),
        (["train", TASK, "--folder", __file__], "cannot be used (File exists)"),
        (["train", TASK, "--seed", "9" * 20], "--seed 99999999999999999999; expected"),
    ],
)
def test_bad_input_is_one_message(given, says, capsys):
    assert main(given) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("hogwild: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_folder_that_holds_a_run(trained, capsys):
    assert main(["train", TASK, "--folder", trained]) == 2
    assert "or --resume to resume it" in capsys.readouterr().err
    assert main(["train", TASK, "--folder", trained, "--resume", "--lr", "0.5"]) == 2
    assert "--lr 0.02, now 0.5" in capsys.readouterr().err


def test_resolved_options_are_printed(tmp_path, capsys):
    """Those of the recipe, the file and the task's choice, too, as they lie in the folder."""
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(f"task = '{TASK}'\nmodel = 'gcn'\nepochs = 9\n")
    call = ["train", "--config", str(path), "--recipe", "paper", "--epochs", "1"]
    assert main([*call, "--folder", str(folder), "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert (options["model"], options["epochs"], options["lr"]) == ("gcn", 1, 0.002)
    assert (options["config"], options["folder"]) == (str(path), str(folder))
    kept = json.loads((folder / "config.json").read_text())
    assert {name: options[name] for name in kept} == kept


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
        (__file__, "holds no finished run, or is damaged (NotADirectoryError"),
        (str(tmp_path), "training with --resume finishes"),
        (str(tmp_path), "holds no finished run"),
    ):
        assert main([verb, folder]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.err.startswith("hogwild: ")
        assert captured.out == ""


# Every model on nodes, on graphs and with edge features; every task with a solve and with layers.
PAIRS = [
    (task, model)
    if task in ("coordinates", "peptides-func") or model in ("energy-edge", "gcn")
    else pytest.param(task, model, marks=pytest.mark.slow)
    for task in TASKS
    for model in MODELS
]


@pytest.mark.parametrize(("task", "model"), PAIRS)
def test_every_task_trains_with_every_model(task, model, home, tmp_path, capsys):
    given = [f"{key}={json.dumps(value)}" for key, value in options(task, home).items()]
    flags = [word for pair in given for word in ("--task-option", pair)]
    flags += ["--epochs", "2", "--log-every", "1", "--folder", str(tmp_path / "run")]
    assert main(["train", task, "--model", model, *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["model"], found["stops"]) == (task, model, [None])
    assert all(value is not None for part in found["metrics"].values() for value in part)
    first, second = (line["loss"][0] for line in read_history(tmp_path / "run" / "metrics.jsonl"))
    assert second != first  # a step was made, and it was felt
