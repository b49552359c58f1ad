"""The packages install without the Makefile, in an environment that has nothing else."""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIRST = """
import torch
from torch_geometric.data import Data

import hogwild

path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
data = Data(x=torch.randn(3, 2), edge_index=path)
model = hogwild.EnergyGNN(2, out_channels=1)
print(hogwild.__file__)
assert model(data.x, data.edge_index).shape == (3, 1)
assert hogwild.simulate(model, data).converged.all()
"""


@pytest.mark.slow
def test_a_clean_environment(tmp_path):
    """Both packages from their source distributions, the commands, a first program and the page."""
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command, where=tmp_path):
        ended = subprocess.run(
            [place / "bin" / command[0], *command[1:]], cwd=where, env=clean, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("pip", "install", "-q", "hatchling")
    for root in (ROOT / "node", ROOT):
        run("python", "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, where=root)
    (node,), (whole,) = tmp_path.glob("hogwild_node-*.gz"), tmp_path.glob("hogwild_gnn-*.gz")
    run("pip", "install", "-q", "-c", ROOT / "constraints.txt", node, f"{whole}[web]")
    assert str(place) in run("python", "-c", FIRST)
    assert "hogwild" in run("hogwild", "info")
    assert "usage: hogwild-agent" in run("hogwild-agent", "--help")
    page = subprocess.Popen(
        [place / "bin" / "hogwild", "serve", "--port", "0"], cwd=tmp_path, env=clean,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        where = next(filter(None, (re.search(r"http://\S+", line) for line in page.stderr)))
        with urllib.request.urlopen(where.group(), timeout=60) as answer:
            assert b"Which answer survives?" in answer.read()
    finally:
        page.terminate()
        page.communicate()
