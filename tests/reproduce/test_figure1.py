"""Figure 1: only the energy GNN's output is the same under all schedules."""

import json

import pytest

from hogwild.cli import main
from hogwild.reproduce import EXPERIMENTS

PNG = b"\x89PNG"


def test_figure(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"), "--quick"]
    assert main(["reproduce", "fig1", *flags, "--only", "energy"]) == 0
    picture = tmp_path / "r/quick/fig1/fig1.png"
    assert not picture.exists()  # nothing to draw yet
    capsys.readouterr()
    assert main(["reproduce", "fig1", *flags, "--resume", "--json"]) == 0
    said = capsys.readouterr()
    assert str(picture) in said.err
    assert picture.read_bytes()[:4] == PNG
    cells = json.loads(said.out)["fig1"]["cells"]
    assert all(len(record["values"]) == 50 for record in cells.values())
    assert cells["gnn"]["synchronous"] == 16  # 0 1 1 0 1 → 1 2 2 2 1 → 3 5 6 5 3 → . . 16 . .
    for name, spread in (("gnn", 1.0), ("gcn", 1e-3)):
        values = cells[name]["values"]
        assert max(values) - min(values) > spread
    off = [abs(v - cells["energy"]["synchronous"]) for v in cells["energy"]["values"]]
    assert max(off) < 1e-5
    assert "50 of 50" in EXPERIMENTS["fig1"].table(cells)
