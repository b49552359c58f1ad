"""``hogwild export`` and ``swarm``: a model for agents, or C; a swarm of real agents."""

import pytest

from hogwild_node import model


def test_a_model_and_its_c(printed, trained, tmp_path, capsys):
    hog, c = tmp_path / "model.hog", tmp_path / "node.c"
    code, data = printed("export", "--out", str(hog))
    assert code == 0
    assert data["name"] == model.load(hog).name
    assert data["bytes"] == hog.stat().st_size
    flags = ["--dtype", "float64", "--max-degree", "5"]
    assert printed("export", "--out", str(c), *flags)[1]["name"] == data["name"]
    first = c.read_text()
    assert "#define HOG_SLOTS         5" in first
    assert "typedef double hog_real;" in first


def test_refusals(text, tmp_path):
    c = str(tmp_path / "node.c")
    said = text(2, "export", "--out", c, "--max-degree", "0")
    assert "--max-degree 0; expected a positive" in said


def test_a_swarm_ends_at_the_answer_and_leaves_its_schedule(printed, tmp_path):
    schedule, kept = tmp_path / "swarm.npz", tmp_path / "kept"
    flags = ["--transport", "udp", "--loss", "0.1", "--keep", str(kept)]
    code, said = printed("swarm", *flags, "--record", str(schedule))
    assert code == 0
    assert said["deviation"] <= 1e-3
    assert (kept / "model.hog").exists()
    again = printed("simulate", "--graphs", "1", "--runs", "1", "--replay", str(schedule))[1]
    assert again["deviation"][0][0] == pytest.approx(said["deviation"], abs=2e-3)
