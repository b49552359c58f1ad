"""``hogwild track``."""

import json

import pytest

from hogwild.cli import main


def test_a_partition(printed):
    code, out = printed("track", "--scenario", "partition", "--spacing", "30", "--runs", "2")
    assert code == 0
    assert out["changes"] == 2
    assert out["rule"] == "messages"
    assert out["scenario"].startswith("partition: 3 frames, 90 ticks, 3 nodes")
    assert len(out["recovery_ticks"]) == len(out["moves"]) == 2
    assert len(out["recovery_ticks"][0]) == 2
    assert out["options"]["spacing"] == 30
    assert out["bytes_a_tick"] > 0


def test_what_it_prints_and_draws(trained, capsys, tmp_path):
    from tiny_runs import TASK

    flags = ["--scenario", "join-leave", "--changes", "2", "--spacing", "20", "--lease", "5"]
    picture = str(tmp_path / "track.png")
    assert main(["track", trained, "--task", TASK, *flags, "--quiet", "--plot", picture]) == 0
    text = capsys.readouterr().out
    assert "join and leave: 3 frames, 60 ticks" in text
    assert "lease 5" in text
    assert f"picture: {picture}" in text


def test_a_sequence_of_the_task(tmp_path, capsys):
    folder = str(tmp_path / "source")
    flags = ["--model", "gsdgnn", "--epochs", "2", "--folds", "2", "--folder", folder]
    for option in ("sequences=4", "moments=3", "num_nodes=6", "degree=2.0"):
        flags += ["--task-option", option]
    assert main(["train", "moving-source", *flags, "--quiet"]) == 0
    capsys.readouterr()
    gif = tmp_path / "run.gif"
    code = main(["track", folder, "--spacing", "10", "--animate", str(gif), "--json"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert out["scenario"] == "moving-source: 3 frames, 30 ticks, 6 nodes"
    assert out["score"] > 0
    assert gif.is_file()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "has no sequences; expected --scenario, one of drift, join-leave, partition"),
        (["--scenario", "drift", "--graph", "9"], "--graph 9; expected 0 to 1"),
        (["--scenario", "drift", "--rule", "caching"], "does not fit this model"),
    ],
)
def test_mistakes(trained, capsys, flags, message):
    from tiny_runs import TASK

    assert main(["track", trained, "--task", TASK, *flags]) == 2
    assert message in capsys.readouterr().err
