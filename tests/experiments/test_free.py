"""Free size: what is chosen is chosen on validation, and what looks at test graphs says so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import free, paper
from experiments.__main__ import main
from experiments.experiment import Results, Work, run
from experiments.free import chosen, common_epoch, own_epoch
from experiments.protocols import PROTOCOLS, Protocol
from experiments.registry import EXPERIMENTS
from hogwild.tasks import Coordinates
from hogwild.training import Loop, train
from hogwild.training.ensemble import Members
from hogwild.training.registry import build

FREE = EXPERIMENTS["free"]
TASK = {"num_graphs": 9, "num_nodes": 3, "radius": 1.5}
TINY = {
    "coordinates": Protocol(
        "coordinates", 6,
        always={"task_options": TASK, "folds": 3, "batch_size": 4, "reshuffle": False},
        default={"epochs": 7, "lr": 0.05, "checkpoint_every": 0.0}, quick={"replicas": 3},
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def _few_looks(monkeypatch):
    """Epochs 2, 4, 6 and the last one, 7."""
    monkeypatch.setattr(free, "LOOKS", 3)


def place(folder):
    return Work(folder / "work", protocols=TINY, resume=True), Results(folder / "results")


def trained(folder, *sizes):
    """Records of some sizes on graphs of three nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free, "LOOKS", 3)
        work, results = place(folder)
        done = run(FREE, work, results, [f"coordinates/{size}" for size in sizes])
        assert done.done == [f"coordinates/{size}" for size in sizes]
        return results.read(FREE)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("free"), "small", "wide")


def test_every_replica_is_kept_at_every_look(records):
    check_looks(records)


@pytest.mark.slow
def test_every_replica_of_every_size_is_kept(tmp_path):
    check_looks(trained(tmp_path, *free.SIZES))


def check_looks(records):
    counts = [record["parameters"] for record in records.values()]
    assert counts == sorted(set(counts))  # the smallest first: ties go to it
    for record in records.values():
        assert record["folds"] == [0, 1, 2, 0, 1, 2]
        assert record["curve"]["epoch"] == [2, 4, 6, 7]
        assert [len(values) for values in record["curve"]["test"]] == [6] * 4
        seen = 0
        for r, epoch in enumerate(record["best_epoch"]):
            if epoch > 0:  # parameters that were kept are those that the curve has at their epoch
                there = record["curve"]["test"][record["curve"]["epoch"].index(epoch)][r]
                assert record["values"][r] == pytest.approx(there, rel=1e-6)
                seen += 1
        assert seen


def test_a_fold_is_held_out(records):
    task = Coordinates(**TASK)
    config = free.config(Work(Path("nowhere"), protocols=TINY), "coordinates", "wide")
    assert config.as_dict() == records["coordinates/wide"]["config"]
    members = Members.of(config, task, 6, torch.device("cpu"))
    parts = torch.stack([members.train, members.val, members.test])
    assert torch.equal(parts.sum(0), torch.ones(6, 9))  # every graph in one part
    assert torch.equal(parts.sum(2), torch.full((3, 6), 3))


class Kill(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize(("epoch", "before"), [(4, False), (5, True)])
def test_the_curve_survives_a_kill(records, tmp_path, monkeypatch, epoch, before):
    """Just after a checkpoint, or just before one that would have been: no line is lost or twice
    there."""
    (work, results), save = place(tmp_path), Loop.save

    def dies(self):
        if not before or self.epoch != epoch:
            save(self)
        if self.epoch == epoch:
            raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "save", dies)
        with pytest.raises(Kill):
            run(FREE, work, results, ["coordinates/small"])
    folder = work.training("coordinates", "free-small")
    state = json.loads((folder / "state" / "checkpoint.json").read_text())
    assert state["extra"]["epoch"] == epoch - before
    with free.Curve.path(folder).open("a") as file:
        file.write('{"epoch": 6, "test": [')  # cut short
    run(FREE, work, results, ["coordinates/small"])
    found, whole = results.read(FREE)["coordinates/small"], records["coordinates/small"]
    for key in ("curve", "values", "validation", "best_epoch"):
        assert found[key] == whole[key]


def test_the_curve_of_a_run_that_was_extended(tmp_path):
    """The last look of the shorter one, at no multiple of the others, is not in it; nor was it a
    judgement."""
    task = Coordinates(**TASK)
    plain = {"model": "energy-node", "folds": 3, "replicas": 3, "validation": True}
    found = []
    for steps in ((11,), (7, 11)):
        folder = tmp_path / str(len(steps))
        for epochs in steps:
            options = {**plain, "epochs": epochs, "validate_every": 3, "folder": folder}
            result = train(task, resume=True, callback=free.Curve(folder), **options)
        curve = [json.loads(line) for line in free.Curve.path(folder).read_text().splitlines()]
        found.append((curve, result.best_epoch.tolist()))
    assert [line["epoch"] for line in found[0][0]] == [3, 6, 9, 11]
    assert found[0] == found[1]


def test_a_record_is_made_again_from_the_trained_model(records, tmp_path):
    work, results = place(tmp_path)
    run(FREE, work, results, ["coordinates/small"])
    results.path("free", "coordinates/small").unlink()
    folder = work.training("coordinates", "free-small")
    before = (folder / "result.json").stat().st_mtime_ns
    run(FREE, work, results, ["coordinates/small"])
    assert (folder / "result.json").stat().st_mtime_ns == before
    found = results.read(FREE)["coordinates/small"]
    assert found["curve"] == records["coordinates/small"]["curve"]
    assert folder != work.training("coordinates", "small")


def made_up(cell, validation, values, test, **more):
    """Four replicas: two folds, two seeds."""
    return {
        "cell": cell, "validation": validation, "values": values, "folds": [0, 1, 0, 1],
        "curve": {"epoch": [10, 20], "test": test}, "higher_is_better": True, "quick": False,
        "parameters": 7, "failed": [], "constant": [0.5] * 4, "seconds": 1.0, "commit": "c",
        "hardware": {"device": "an abacus", "threads": 1}, "command": "x", **more,
    }  # fmt: skip


CURVE = [[0.5, 0.7, 0.9, 0.6], [0.8, 0.6, 0.7, 0.7]]
SMALL = made_up("mutag/small", [0.8] * 4, [0.5, 0.6, 0.7, 0.8], CURVE)
WIDE = made_up("mutag/wide", [0.7, 0.8, 0.8, 0.8], [0.95] * 4, [[1.0] * 4] * 2)


def test_best_epochs_by_hand():
    # Epoch 10: folds (0.5 + 0.9) / 2 and (0.7 + 0.6) / 2; epoch 20: 0.75 and 0.65, better.
    assert common_epoch(SMALL) == pytest.approx((0.7, 0.005**0.5, False))
    # Each replica's best: 0.8, 0.7, 0.9, 0.7; folds 0.85 and 0.7.
    assert own_epoch(SMALL) == pytest.approx((0.775, 0.15 / 2**0.5, False))
    lower = SMALL | {"higher_is_better": False}
    assert common_epoch(lower) == pytest.approx((0.675, 0.05 / 2**0.5, False))
    assert own_epoch(lower) == pytest.approx((0.6, 0.0, False))  # 0.5, 0.6, 0.7, 0.6
    gone = SMALL | {"curve": {"test": [[None, 0.7, 0.9, 0.6], [None, 0.6, None, 0.7]]}}
    assert own_epoch(gone) == pytest.approx((0.8, 0.2 / 2**0.5, False))
    assert common_epoch(gone).mean == pytest.approx((0.9 + 0.65) / 2)


def test_the_size_is_chosen_on_validation():
    both = {"mutag/small": SMALL, "mutag/wide": WIDE}
    assert chosen(both, "mutag") == "small"  # though the other one is better on test graphs
    assert chosen(both | {"mutag/wide": WIDE | {"validation": [0.8] * 4}}, "mutag") == "small"
    assert chosen(both | {"mutag/wide": WIDE | {"validation": [0.9] * 4}}, "mutag") == "wide"
    assert chosen({}, "mutag") is None
    errors = {f"terrain/{r['cell'][6:]}": r for r in both.values()}
    assert chosen(errors, "terrain") == "wide"  # less is better


def test_table_on_numbers_made_up():
    small = made_up("peptides-func/small", [0.5] * 4, [0.6] * 4, CURVE)
    records = {"mutag/small": SMALL, "mutag/wide": WIDE, "peptides-func/small": small}
    first, second = FREE.table(records).split("Every size")
    rows = {line.split(" | ")[0].strip("| "): line for line in first.splitlines()}
    numbers = "7 | 80.0 ± 0.0 | 65.0 ± 12.9 | 70.0 ± 7.1 | 77.5 ± 10.6"
    assert rows["MUTAG, %"] == (
        f"| MUTAG, % | small (of 2) | {numbers} | MGNNI 91.9 * (Liu et al., 2022) |"
    )
    assert "| 0.600 ± 0.000 | — | — | GCN 0.593 ± 0.002 (Dwivedi" in rows["Peptides-func (AP)"]
    assert "| — | not run |" in rows["PROTEINS, %"]
    assert "MGNNI 79.2 *" in rows["PROTEINS, %"]
    assert (
        "- MUTAG: 77.5 ± 10.6 % at each fold's best epoch **misses** 91.9 % (MGNNI); "
        "honestly 65.0 ± 12.9 %.\n"
    ) in first
    assert "- Peptides-func (AP): 0.600 ± 0.000 **reaches** 0.593 ± 0.002 (GCN).\n" in first
    assert "**misses** 0.686 ± 0.005 (GCN, tuned)" in first
    assert f"| MUTAG, % | **small** | {numbers} |" in second
    assert second.count("not run") == 22
    details = FREE.details(records)
    assert "| mutag/wide | energy-edge | hidden_channels=8, " in details
    assert details.count("not run") == 22
    widths = {len(line.split(" | ")) for line in details.splitlines()}
    assert len(widths) == 1


def test_columns():
    for column, model in free.COLUMNS.items():
        config = free.config(Work(Path("nowhere")), column, "large")
        assert (config.model, config.validation) == (model, column not in free.SPLIT)
        assert config.epochs / config.validate_every > 2  # and once at the end
        plain = replace(PROTOCOLS[column].config(model), **PROTOCOLS[column].grown)
        same = replace(config, model_options={}, task_options={}, validation=False,
                       validate_every=plain.validate_every)  # fmt: skip
        assert same == replace(plain, task_options={})
        for table in paper.TABLES.values():
            if column in table.columns and table.title[:4] != "Perf":
                best = table.best(column)[1].mean
                assert table.rows[model][column].mean == pytest.approx(best, rel=0.02)
    assert free.config(Work(Path("nowhere")), "mutag", "wide").task_options == {"bonds": True}


def test_larger_sizes_may_have_options_of_their_own():
    grown = replace(TINY["coordinates"], grown={"epochs": 2})
    plain = Work(Path("nowhere"), protocols={"coordinates": grown})
    assert free.config(plain, "coordinates", "wide").epochs == 2
    assert free.config(plain, "coordinates", "small").epochs == 7
    for other in (replace(plain, recipe="paper"), replace(plain, quick=True)):
        small, wide = (free.config(other, "coordinates", size) for size in ("small", "wide"))
        assert small == replace(wide, model_options=small.model_options)


def test_with_a_published_split_the_paper_s_size_is_not_trained_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(free, "SPLIT", ("coordinates",))
    work, results = place(tmp_path)
    run(EXPERIMENTS["table1"], work, results, ["coordinates/energy-attention"])
    run(FREE, work, results, ["coordinates/small", "coordinates/wide"])
    (table,) = results.read(EXPERIMENTS["table1"]).values()
    found = results.read(FREE)
    small, wide = found["coordinates/small"], found["coordinates/wide"]
    for key in ("values", "validation", "config", "parameters"):
        assert small[key] == table[key]
    assert wide["parameters"] > small["parameters"]
    assert small["curve"] == wide["curve"] == {"epoch": [], "test": []}  # nobody asks for it
    names = {path.name for path in work.training("coordinates", "any").parent.iterdir()}
    assert names == {"energy-attention", "free-wide"}


@pytest.mark.parametrize("size", free.SIZES)
@pytest.mark.parametrize("model", ["energy-edge", "energy-attention"])
def test_sizes_are_built(model, size):
    config = free.config(Work(Path("nowhere"), protocols=TINY), "coordinates", size)
    built = build(replace(config, model=model), Coordinates(**TASK), None)
    options = free.SIZES[size]
    assert built.conv.hidden_channels == options.get("hidden_channels", 2)
    assert built.conv.rounds == options.get("rounds", 1)


def test_smaller_sizes_come_first():
    """Ties go to the smaller size."""
    work, task = Work(Path("nowhere"), protocols=TINY), Coordinates(**TASK)
    built = [build(free.config(work, "coordinates", size), task, None) for size in free.SIZES]
    counts = [sum(p.numel() for p in model.parameters()) for model in built]
    assert counts == sorted(set(counts))


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PROTOCOLS, "coordinates", TINY["coordinates"])
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"), "--quick"]
    assert main(["free", "--only", "coordinates/small", *flags]) == 0
    said = capsys.readouterr()
    assert "QUICK" in said.out
    assert "| coordinates, % | small (of 1) |" in said.out
    assert "parameters (" in said.err
    record = json.loads((tmp_path / "r/quick/free/coordinates/small.json").read_text())
    assert record["folds"] == [0, 1, 2]
    assert record["curve"]["epoch"] == [1]
    assert record["command"] == "python -m experiments free --only coordinates/small --quick"
    assert main(["free", "--list", *flags]) == 0
    assert "free: energy GNNs of any size (1 of 25 there)" in capsys.readouterr().out
