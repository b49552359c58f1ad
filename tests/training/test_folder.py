"""The folder of a run: interrupted and resumed, extended, refused, damaged."""

import json
import math
import shutil

import pytest
import torch
from tiny_runs import QUICK, parameters, poison
from tiny_tasks import Sums

import hogwild
from hogwild import load, train
from hogwild.errors import CheckpointError, ConfigError
from hogwild.training.checkpoint import read_history


class Kill(BaseException):
    """Stands for a kill."""


def killed_at(epoch):
    def callback(loop):
        if loop.epoch == epoch:
            raise Kill

    return callback


def test_a_finished_run_whose_state_is_gone(tmp_path):
    """Is not trained again over what is there."""
    result = train(Sums(), model="gcn", epochs=2, folder=tmp_path)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CheckpointError, match="holds a finished run, but its checkpoint"):
        train(Sums(), model="gcn", epochs=3, folder=tmp_path, resume=True)
    assert torch.equal(load(tmp_path, Sums()).metrics["test"], result.metrics["test"])


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"model": "gcn", "batch_size": 4},
                                     {"recipe": "paper", "epochs": 12}])  # fmt: skip
def test_interrupted_and_resumed_is_uninterrupted(tmp_path, options):
    options = {**QUICK, "checkpoint_every": 0.0, **options}
    whole = train(Sums(), folder=tmp_path / "whole", **options)
    for epoch in (1, 5, 11):  # several kills of one run
        with pytest.raises(Kill):
            train(Sums(), folder=tmp_path / "cut", resume=True, callback=killed_at(epoch),
                  **options)  # fmt: skip
    resumed = train(Sums(), folder=tmp_path / "cut", resume=True, **options)
    assert torch.equal(parameters(whole), parameters(resumed))
    for part in whole.metrics:
        assert torch.equal(whole.metrics[part], resumed.metrics[part])

    def timeless(folder):
        lines = read_history(folder / "metrics.jsonl")
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")
    assert torch.equal(whole.best_epoch, resumed.best_epoch)


def test_killed_before_the_first_checkpoint(trained, tmp_path):
    with pytest.raises(Kill):
        train(Sums(), folder=tmp_path, callback=killed_at(2), **QUICK)
    with pytest.raises(CheckpointError, match="no finished run"):
        load(tmp_path, task=Sums())
    resumed = train(Sums(), folder=tmp_path, resume=True, **QUICK)
    assert torch.equal(parameters(resumed), parameters(trained[0]))


def test_stopped_replicas_stay_stopped_after_resuming(tmp_path):
    options = {**QUICK, "checkpoint_every": 0.0, "replicas": 3}

    def callback(loop):
        poison(1, 4)(loop)
        killed_at(8)(loop)

    with pytest.raises(Kill):
        train(Sums(), folder=tmp_path, callback=callback, **options)
    resumed = train(Sums(), folder=tmp_path, resume=True, **options)
    whole = train(Sums(), callback=poison(1, 4), **options)
    assert resumed.stops == whole.stops
    assert resumed.stops[1].epoch == 4
    assert torch.equal(parameters(resumed), parameters(whole))


SMALL = {"task_options": {"sizes": range(1, 13)}, "folds": 4}


def test_folder(trained, finished):
    result, folder = trained[0], finished
    names = {p.name for p in folder.iterdir()}
    assert {"config.json", "metrics.jsonl", "result.json", "model", "state"} <= names
    assert json.loads((folder / "config.json").read_text())["model"] == "energy-node"
    again = load(folder, task=Sums())
    assert torch.equal(parameters(again), parameters(result))
    assert again.as_dict() == result.as_dict()
    assert again.config == result.config
    assert again.history == result.history
    with pytest.raises(ConfigError, match="already holds a run"):
        train(Sums(), folder=folder, **QUICK)
    with pytest.raises(ConfigError, match=r"other options: lr=0\.005, now 0\.5"):
        train(Sums(), folder=folder, resume=True, **{**QUICK, "lr": 0.5})


def test_without_its_graphs_a_run_has_its_models_and_metrics(trained, finished):
    result, alone = trained[0], load(finished)
    assert alone.summary() == load(finished, task=Sums()).summary()
    graph = result.graph(0)
    assert torch.equal(alone.model.predict(graph), result.model.predict(graph))
    for needs in (alone.evaluate, lambda: alone.graph(0), lambda: alone.tested(0)):
        with pytest.raises(ConfigError, match="give the same task again"):
            needs()


def test_a_run_that_broke_before_its_first_checkpoint_does_not_keep_the_folder(tmp_path):
    """A mistake in a callback or a loss is corrected and tried again, with other options, too."""

    def broken(loop):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Sums(), folder=tmp_path, callback=broken, **QUICK)
    assert (tmp_path / "config.json").exists()
    result = train(Sums(), folder=tmp_path, **{**QUICK, "lr": 0.01})
    assert torch.equal(parameters(result), parameters(train(Sums(), **{**QUICK, "lr": 0.01})))
    assert load(tmp_path, task=Sums()).history == result.history


def test_summary_names_validation_only_where_graphs_were_held_out():
    assert "val " not in hogwild.train("counting", "gcn", epochs=1, **SMALL).summary()
    assert "val " in hogwild.train("counting", "gcn", epochs=1, validation=True, **SMALL).summary()


def test_a_finished_run_can_be_extended(finished):
    longer = {**QUICK, "epochs": 18}
    extended = train(Sums(), folder=finished, resume=True, **longer)
    assert [line["epoch"] for line in extended.history] == [0, 4, 8, 11, 12, 16, 17]
    assert torch.equal(parameters(extended), parameters(train(Sums(), **longer)))


def test_fewer_epochs_than_were_trained_are_refused(finished):
    """The folder would hold one thing and say another."""
    before = (finished / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"holds a run of 12 epochs already, and epochs=3"):
        train(Sums(), folder=finished, resume=True, **{**QUICK, "epochs": 3})
    assert (finished / "config.json").read_text() == before


def test_one_run_at_a_time_in_a_folder(trained, tmp_path):
    refused = []

    def intrude(loop):
        if loop.epoch == 3:
            with pytest.raises(ConfigError, match="another run uses") as error:
                train(Sums(), folder=tmp_path, resume=True, **QUICK)
            refused.append(error)

    result = train(Sums(), folder=tmp_path, callback=intrude, **QUICK)
    assert len(refused) == 1
    assert torch.equal(parameters(result), parameters(trained[0]))
    train(Sums(), folder=tmp_path, resume=True, **QUICK)  # the claim ended with the run


def test_without_checkpoints_in_between(tmp_path):
    options = {**QUICK, "epochs": 4, "checkpoint_every": math.inf}
    result = train(Sums(), folder=tmp_path, **options)
    again = load(tmp_path, task=Sums())
    assert again.config == result.config
    assert again.config.checkpoint_every == math.inf
    longer = {**options, "epochs": 6}
    assert train(Sums(), folder=tmp_path, resume=True, **longer).config.epochs == 6


def test_files_are_refused_as_folders(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"folder='.*' cannot be used \("):
            train(Sums(), folder=folder, **QUICK)
        with pytest.raises(CheckpointError, match="expected the folder of a finished run"):
            load(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_damaged_files_beside_the_state_are_refused(text, finished):
    for name in ("metrics.jsonl", "config.json"):
        whole = (finished / name).read_text()
        (finished / name).write_text(text + "\n")
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            train(Sums(), folder=finished, resume=True, **QUICK)
        (finished / name).write_text(whole)


def test_a_run_of_a_device_that_is_not_here_is_used_here(trained, finished, monkeypatch):
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps({**config, "device": "cuda"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    again = load(finished, task=Sums())
    assert again.config.device == "cpu"
    assert torch.equal(again.evaluate()["test"], trained[0].metrics["test"])
