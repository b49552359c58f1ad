"""``hogwild export``: a model for agents, or C."""

import pytest
from tiny_runs import TASK

from hogwild.cli import main
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
    c.unlink()
    assert main(["export", str(hog), "--out", str(c), *flags]) == 0
    assert "next: cc -std=c99" in capsys.readouterr().out
    assert c.read_text() == first


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--out", "other.hog"], "is a model file already; expected --out FILE.c"),
        (["--out", "node.c", "--replica", "1"], "takes no --replica"),
        (["--out", "node.c", "--max-degree", "0"], "--max-degree 0; expected a positive"),
    ],
)
def test_what_a_model_file_refuses(flags, words, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", trained, "--task", TASK, "--out", "model.hog"]) == 0
    assert main(["export", "model.hog", *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "node.c").exists()
