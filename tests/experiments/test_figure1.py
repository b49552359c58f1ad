"""Figure 1: only the energy GNN's output is the same under all schedules."""

import json

import numpy as np
import pytest
import torch
from helpers import DOUBLE
from matplotlib.image import imread

from experiments import figure1
from experiments.__main__ import main
from experiments.computation import observe
from experiments.figure1 import BITS, linear_graph, picture, unit_gnn
from experiments.registry import EXPERIMENTS
from hogwild import simulate

PNG = b"\x89PNG"


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figure1, "QUICK", 12)
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"), "--quick"]
    assert main(["fig1", *flags, "--only", "energy"]) == 0
    picture = tmp_path / "r/quick/fig1/fig1.png"
    assert not picture.exists()  # nothing to draw yet
    capsys.readouterr()
    assert main(["fig1", *flags, "--resume", "--json"]) == 0
    said = capsys.readouterr()
    assert str(picture) in said.err
    assert picture.read_bytes()[:4] == PNG
    cells = json.loads(said.out)["fig1"]["cells"]
    assert all(len(record["values"]) == 12 for record in cells.values())
    assert cells["gnn"]["synchronous"] == 16  # 0 1 1 0 1 → 1 2 2 2 1 → 3 5 6 5 3 → . . 16 . .
    for name, spread in (("gnn", 1.0), ("gcn", 1e-3)):
        values = cells[name]["values"]
        assert max(values) - min(values) > spread
    off = [abs(v - cells["energy"]["synchronous"]) for v in cells["energy"]["values"]]
    assert max(off) < 1e-5
    assert "12 of 12" in EXPERIMENTS["fig1"].table(cells)


# -- the picture -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    path = tmp_path_factory.mktemp("fig1") / "fig1.png"
    before = torch.random.get_rng_state()
    figure = picture(path, runs=40)
    assert torch.equal(torch.random.get_rng_state(), before)
    return figure, path


def numbers(ax):
    return [text.get_text() for text in ax.texts]


def bars(ax):
    return np.array([patch.get_height() for patch in ax.patches])


def test_values(drawn):
    """(a) the bits; (b) powers of A + I times the bits, in step; (c) what was simulated."""
    a, b, c = drawn[0].axes[:3]
    assert numbers(a) == [str(bit) for bit in BITS]
    x = torch.tensor(BITS, **DOUBLE)
    step = torch.eye(5, **DOUBLE) + torch.diag(torch.ones(4, **DOUBLE), 1)
    step = step + torch.diag(torch.ones(4, **DOUBLE), -1)
    columns = [torch.linalg.matrix_power(step, layer) @ x for layer in range(4)]
    assert numbers(b) == [f"{float(columns[m][i]):g}" for i in range(5) for m in range(4)]
    _, values = observe(unit_gnn(), linear_graph(), stagger=5, delay=2, seed=0)
    assert numbers(c) == [f"{float(v):g}" for v in values.flatten()]
    assert numbers(b) != numbers(c)


def test_histograms(drawn):
    """Two that spread, and a single bar with all schedules at the synchronous output."""
    gnn, gcn, energy = drawn[0].axes[3:6]
    for ax in (gnn, gcn):
        assert bars(ax).sum() == pytest.approx(1.0)
        assert (bars(ax) > 0).sum() >= 10
    assert bars(energy).max() == 1.0
    assert (bars(energy) > 0).sum() == 1
    bar = energy.patches[int(bars(energy).argmax())]
    at = energy.lines[0].get_xdata()[0]
    assert bar.get_x() < at < bar.get_x() + bar.get_width()


def test_histogram_counts(drawn):
    """The bars of panel (d) count what the schedules ended with."""
    gnn = drawn[0].axes[3]
    outputs = simulate(unit_gnn(), linear_graph(), runs=40, rule="overwriting").h[:, 2, 0]
    for patch in gnn.patches:
        low, high = patch.get_x(), patch.get_x() + patch.get_width()
        share = float(((outputs >= low) & (outputs < high)).double().mean())
        assert patch.get_height() == pytest.approx(share, abs=1e-12)


def test_file(drawn):
    """Grey, black, blue and vermilion are all on it."""
    pixels = (imread(drawn[1])[..., :3] * 255).round()
    ink = (pixels.min(-1) < 0.9 * 255).mean()
    assert min(pixels.shape[:2]) >= 300
    assert 0.005 < ink < 0.9
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x22, 0x22, 0x22)):
        assert (np.abs(pixels - colour).max(-1) <= 2).sum() > 200
