"""The mechanism: cells are computed once, kept whole, chosen by name, and resumed inside."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.experiment import Experiment, Results, Work, run
from experiments.protocols import PROTOCOLS, Protocol
from experiments.record import Training, commit
from experiments.registry import EXPERIMENTS, experiment
from hogwild.errors import CheckpointError, ConfigError, ConvergenceError, DataError
from hogwild.training import MODELS

TINY = {
    "chains": Protocol(
        "chains", 2, always={"task_options": {"length": 4}}, default={"epochs": 12, "lr": 0.02}
    ),
    "counting": Protocol(
        "counting", 3, always={"task_options": {"sizes": [1, 2, 3]}, "folds": 3},
        default={"epochs": 12},
    ),
}  # fmt: skip


class Squares(Experiment):
    """Cells that are no trouble, but for those asked to be."""

    name, title = "squares", "squares of numbers"

    def __init__(self, trouble=None):
        self.trouble = trouble or {}
        self.computed = []

    def cells(self):
        def cell(i, work):
            self.computed.append(i)
            if i in self.trouble:
                raise self.trouble[i]
            return {"value": i * i}

        return {f"{'even' if i % 2 == 0 else 'odd'}/{i}": lambda w, i=i: cell(i, w)
                for i in range(4)}  # fmt: skip

    def table(self, records):
        return ", ".join(f"{k}: {v['value']}" for k, v in records.items())

    def details(self, records):
        return ""


@pytest.fixture
def place(tmp_path):
    return Work(tmp_path / "work", protocols=TINY), Results(tmp_path / "results")


def test_cells_are_kept_and_resumed(place):
    work, results = place
    squares = Squares()
    assert run(squares, work, results, ["even/*"]).done == ["even/0", "even/2"]
    with pytest.raises(ConfigError, match=r"even/0.json exists \(and 1 more\).*--resume"):
        run(squares, work, results)
    assert squares.computed == [0, 2]
    done = run(squares, replace(work, resume=True), results)
    assert (done.done, done.kept) == (["odd/1", "odd/3"], ["even/0", "even/2"])
    assert squares.computed == [0, 2, 1, 3]
    assert squares.table(results.read(squares)) == "even/0: 0, odd/1: 1, even/2: 4, odd/3: 9"


def test_a_record_says_where_it_comes_from(place):
    work, results = place
    lines = []
    run(Squares(), replace(work, quick=True, recipe="paper"), results, ["odd/3"], lines.append)
    record = json.loads((results.folder / "squares/odd/3.paper.json").read_text())
    assert record["value"] == 9
    assert record["quick"] is True
    command = "python -m experiments squares --only odd/3 --quick --recipe paper"
    assert record["command"] == command
    assert re.fullmatch(r"[0-9a-f]{40}(\+changes)?|unknown", record["commit"])
    assert record["hardware"]["device"]
    assert record["hardware"]["threads"] >= 1
    assert {"hogwild", "python", "torch", "torch_geometric"} == set(record["versions"])
    assert record["seconds"] >= 0
    assert record["date"].endswith("+00:00")
    assert lines[0].startswith("[1/1] squares odd/3")
    assert not results.read(Squares())  # the other recipe's are others


def test_trouble_in_one_cell_leaves_the_others(place):
    work, results = place
    squares = Squares({1: ConvergenceError("no"), 2: DataError("there is no file")})
    done = run(squares, work, results)
    assert done.done == ["even/0", "odd/3"]
    assert done.failed == {"odd/1": "no"}
    assert done.skipped == {"even/2": "there is no file"}
    assert set(results.read(squares)) == {"even/0", "odd/3"}


def test_data_that_are_not_there_are_sought_once(place):
    work, results = place
    squares, lines = Squares({0: DataError("not here")}), []
    with pytest.raises(DataError, match="nothing of squares could be computed: not here"):
        run(squares, work, results, ["even/*"], lines.append)
    assert squares.computed == [0]
    assert lines[1] == "[2/2] squares even/2: SKIPPED, as even above"


def test_one_experiment_without_data_leaves_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    poor = Squares({i: DataError("no such file") for i in range(4)})
    monkeypatch.setitem(EXPERIMENTS, "poor", poor)
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w")]
    assert main(["poor", "squares", *flags]) == 0
    said = capsys.readouterr()
    assert "SKIPPED" in said.out
    assert "even/2: 4" in said.out
    assert poor.computed == [0, 1]  # each column once
    assert main(["poor", *flags[:1], str(tmp_path / "other")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_record_is_there_whole_or_not_at_all(place, monkeypatch):
    work, results = place
    squares = Squares()

    def dies(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            run(squares, work, results, ["odd/1"])
    assert [p.name for p in (results.folder / "squares/odd").iterdir()] == []
    results.path("squares", "odd/1").write_text("{")
    with pytest.raises(CheckpointError, match=r"odd/1\.json is damaged"):
        results.read(squares)


def test_unknown_names_get_a_suggestion(place):
    work, results = place
    with pytest.raises(ConfigError, match="unknown experiment 'tabel1'; did you mean 'table1'"):
        experiment("tabel1")
    with pytest.raises(ConfigError, match="matches 'chains/gnc'; did you mean 'chains/gcn'"):
        run(EXPERIMENTS["table1"], work, results, ["chains/gnc"])
    with pytest.raises(ConfigError, match="recipe='papre'; did you mean 'paper'"):
        Work(results.folder, recipe="papre")
    with pytest.raises(ConfigError, match="unknown column 'chain'; did you mean 'chains'"):
        work.config("chain", "gcn")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_enumerate(name, tmp_path):
    """Every cell has a column with a protocol, and its file a place of its own."""
    cells = EXPERIMENTS[name].cells()
    assert cells
    assert all(callable(cell) for cell in cells.values())
    results = Results(tmp_path)
    assert len({results.path(name, cell) for cell in cells}) == len(cells)
    assert EXPERIMENTS[name].table({})
    assert EXPERIMENTS[name].details({})
    assert not results.read(EXPERIMENTS[name])


@pytest.mark.parametrize("column", PROTOCOLS)
@pytest.mark.parametrize("quick", [False, True])
def test_a_protocol_is_the_same_for_all_models(column, quick):
    """But for options that rivals have in its default recipe, and for the size of soft energies."""
    own = PROTOCOLS[column].own
    assert not own.keys() & {"energy-edge", "energy-attention"}
    for recipe in ("default", "paper"):
        common = [m for m in MODELS if m != "soft" and (recipe == "paper" or m not in own)]
        configs = [
            PROTOCOLS[column].config(m, recipe=recipe, quick=quick).as_dict() for m in common
        ]
        assert all(c | {"model": ""} == configs[0] | {"model": ""} for c in configs)
        assert configs[0]["recipe"] == recipe
    assert PROTOCOLS[column].config("gcn", replicas=7).replicas == 7
    for name, options in own.items():
        found = PROTOCOLS[column].config(name)
        assert all(getattr(found, key) == value for key, value in options.items())


def test_quick_keeps_what_a_model_has_of_its_own():
    """Else a quick table shows a rival at its worst. The learning rate decays as many times."""
    column = PROTOCOLS["counting"]
    full, less = (column.config("energy-node", quick=quick) for quick in (False, True))
    assert (less.lr, less.decay[0]) == (full.lr, full.decay[0]) == (0.003, 0.9)
    assert less.epochs == column.quick["epochs"]
    assert full.epochs // full.decay[1] == less.epochs // less.decay[1]
    assert PROTOCOLS["sums"].config("energy-node", quick=True).batch_size == 50


def test_a_trial_is_kept(tmp_path, capsys):
    """Its record is not among those of the table, and says what was changed."""
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"), "--quick"]
    call = ["table1", "--only", "chains/gcn", *flags]
    change = ["--set", "epochs=2", "--set", "task_options={length=5}"]
    assert main([*call, "--trial", "short", *change]) == 0
    record = json.loads((tmp_path / "r/quick/trials/short/table1/chains/gcn.json").read_text())
    assert (record["trial"], record["config"]["epochs"]) == ("short", 2)
    assert record["changes"] == {"epochs": 2, "task_options": {"length": 5}}
    assert "--trial short --set epochs=2 --set 'task_options={length = 5}'" in record["command"]
    assert not (tmp_path / "r/quick/table1").exists()
    for lone in (["--trial", "short"], change):
        assert main([*call, *lone]) == 2
        assert "expected both or neither" in capsys.readouterr().err
    assert main([*call, "--trial", "bad", "--set", "epoch=2"]) == 2
    assert "epoch" in capsys.readouterr().err


def test_trained_models_are_used_again(place):
    work, _ = place
    first = work.trained("chains", "gcn")
    before = (first.folder / "result.json").stat().st_mtime_ns
    again = work.trained("chains", "gcn")
    assert again.metrics["test"].tolist() == first.metrics["test"].tolist()
    assert (first.folder / "result.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="trained with replicas=2, and 3 was asked for"):
        replace(work, replicas=3).trained("chains", "gcn")


def test_unfinished_training_is_not_gone_on_with_unasked(place):
    work, _ = place
    result = work.trained("chains", "gcn")
    (result.folder / "result.json").unlink()
    with pytest.raises(ConfigError, match="unfinished training run; expected --resume"):
        work.trained("chains", "gcn")
    again = replace(work, resume=True).trained("chains", "gcn")
    assert again.metrics["test"].tolist() == result.metrics["test"].tolist()


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3", '{"cell": "odd/1"}'])
def test_damaged_records_are_refused(place, text):
    work, results = place
    run(Squares(), work, results, ["even/2"])
    path = results.path("squares", "even/2")
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"even/2\.json is damaged: .*; remove it"):
        results.read(Squares())
    (path.parent / "about.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"about\.json is damaged"):
        Training.about(path.parent)


def test_a_record_of_another_cell_is_refused(place):
    work, results = place
    run(Squares(), work, results, ["even/2"])
    results.path("squares", "even/2").rename(results.path("squares", "even/0"))
    with pytest.raises(CheckpointError, match="the record of 'even/2', not of 'even/0'"):
        results.read(Squares())


def test_a_record_names_the_commit_it_was_trained_at(place):
    """Trained before, recorded now."""
    work, results = place
    folder = work.trained("chains", "gcn").folder
    about = Training.about(folder) | {"commit": "before", "seconds": 1234.5}
    (folder / "about.json").write_text(json.dumps(about))
    run(EXPERIMENTS["table1"], work, results, ["chains/gcn"])
    record = results.read(EXPERIMENTS["table1"])["chains/gcn"]
    assert (record["commit"], record["seconds"]) == ("before", 1234.5)
    run(EXPERIMENTS["table2"], work, results, ["chains/gcn"])
    record = results.read(EXPERIMENTS["table2"])["chains/gcn"]
    assert record["commit"] == commit()
    assert record["trained"]["commit"] == "before"
    assert record["seconds"] < 1234


def test_every_experiment_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in EXPERIMENTS)


def test_command_line(tmp_path, monkeypatch, capsys):
    for column, protocol in TINY.items():
        monkeypatch.setitem(PROTOCOLS, column, replace(protocol, quick={"replicas": 1}))
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w")]
    call = ["table1", "--only", "chains/gcn", "chains/max*", *flags]
    assert main(call) == 2
    assert "no cell of table1 matches 'chains/max*'" in capsys.readouterr().err
    call = ["table1", "--only", "chains/g??", *flags, "--quick", "--json"]
    assert main(call) == 0
    found = json.loads(capsys.readouterr().out)["table1"]["cells"]
    assert set(found) == {"chains/gcn", "chains/gat"}
    assert (tmp_path / "r/quick/table1/chains/gcn.json").exists()
    assert main(call) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*call[:-1], "--resume"]) == 0
    assert "there already" in capsys.readouterr().err
    assert main(["table1", "--list", "--quick", *flags]) == 0
    text = capsys.readouterr().out
    assert "2 of 45 there" in text
    assert re.search(r"chains/energy-edge +not run", text)
    assert main(["tabel1"]) == 2
    assert "did you mean 'table1'" in capsys.readouterr().err
