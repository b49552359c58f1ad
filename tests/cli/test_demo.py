"""``hogwild demo``."""

import json
from dataclasses import replace

import pytest
from tiny_runs import TINY

from hogwild.cli import main
from hogwild.demo.study import ROWS


def test_command(tmp_path, monkeypatch, capsys):
    least = replace(TINY, share=0.01, ticks=4, delays=(2,), staggers=(5,))
    monkeypatch.setattr("hogwild.demo.QUICK", least)
    path = tmp_path / "page.html"
    call = ["demo", "--quick", "--output", str(path)]
    assert main([*call, "--json"]) == 3  # four ticks are not enough, and it says so
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == str(path)
    assert set(found["errors"]) == set(ROWS)
    assert all(cell["bytes"] > 0 for cell in found["errors"]["gcn"]["asynchronous"])
    assert path.exists()


@pytest.mark.parametrize("output", ["nowhere/report.html", "."])
def test_bad_output_is_refused_before_anything_is_computed(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--output", output]) == 2
    captured = capsys.readouterr()
    assert "expected a file in a folder that exists" in captured.err
    assert "[1/" not in captured.err
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed -1" in capsys.readouterr().err
