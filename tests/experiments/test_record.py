"""Records say where they come from, also those of a run that moved."""

import json
import time

import pytest

import hogwild
from experiments import markdown
from experiments.record import Training, commit, same_commit
from hogwild.training.checkpoint import save


def test_commit_outside_a_checkout(monkeypatch, tmp_path):
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(hogwild, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv("HOGWILD_COMMIT", "abc")
    assert commit() == "abc"
    monkeypatch.delenv("HOGWILD_COMMIT")
    assert commit() == "unknown"


def test_time_adds_up_over_interruptions(tmp_path):
    assert Training.about(tmp_path) == {}
    with Training(tmp_path, "cpu") as watch:
        watch(time.sleep(0.02))
    first = Training.about(tmp_path)["seconds"]
    with pytest.raises(ZeroDivisionError), Training(tmp_path, "cpu") as watch:
        1 / (watch(time.sleep(0.02)) or 0)
    about = Training.about(tmp_path)
    assert about["seconds"] >= first + 0.02 >= 0.04
    assert about["commit"] == commit()
    assert "earlier" not in about  # the same code on the same machine


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path, monkeypatch):
    """Time, code and machine of every stretch."""
    abacus = {"device": "NVIDIA Abacus", "threads": 1}
    about = {"seconds": 600.0, "commit": "a" * 40, "hardware": abacus, "versions": {"torch": "0"}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    for told in ("b" * 40, "b" * 40, "b" * 12):  # one stretch, though interrupted
        monkeypatch.setenv("HOGWILD_COMMIT", told)
        with Training(tmp_path, "cpu") as watch:
            monkeypatch.setenv("HOGWILD_COMMIT", "c" * 40)  # not what is running
            watch._write()
    found = Training.about(tmp_path)
    assert found["earlier"] == [about]
    assert found["commit"] == "b" * 12
    assert 600.0 < found["seconds"] < 660.0
    with Training(tmp_path, "cpu"):
        pass  # refused, or nothing left to do
    assert Training.about(tmp_path) == found
    save(tmp_path / "new" / "state", {})
    with Training(tmp_path / "new", "cpu"):
        pass  # killed before anything was noted; nothing left to do
    assert Training.about(tmp_path / "new")["commit"] == "c" * 40
    with Training(tmp_path, "cpu") as watch:
        watch()
    found = Training.about(tmp_path)
    assert [stretch["commit"] for stretch in found["earlier"]] == ["a" * 40, "b" * 12]
    assert found["commit"] == "c" * 40


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [("abc1234", "abc1234def", True), ("abc1234def", "abc1234", True), ("abc", "abd", False),
     ("abc+changes", "abc+changes", True), ("abc", "abc+changes", False)],
)  # fmt: skip
def test_commits_may_be_abbreviated(a, b, same):
    assert same_commit(a, b) is same


def test_stretches_are_shown_in_order():
    abacus, slate = ({"device": d, "threads": 2} for d in ("NVIDIA Abacus", "a slate"))
    places = [(600.0, "a" * 40, abacus), (60.0, "b" * 7, slate), (60.0, "b" * 40, slate)]
    earlier = [{"seconds": s, "commit": c, "hardware": h} for s, c, h in places]
    record = {"seconds": 840.0, "commit": "a" * 40, "hardware": abacus, "command": "x"}
    assert markdown.origin(record) == ["14 min", "NVIDIA Abacus", f"`{'a' * 12}`", "`x`"]
    time_, hardware, commits, _ = markdown.origin(record | {"earlier": earlier})
    assert time_ == "14 min"
    slate_ = "a slate, 2 threads (2 min)"
    assert hardware == f"NVIDIA Abacus (10 min), then {slate_}, then NVIDIA Abacus (2 min)"
    assert commits == ", ".join(f"`{c * 12}`" for c in "aba")
