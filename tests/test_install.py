"""The packages install without the Makefile, in an environment that has nothing else."""

import os
import subprocess
import sys
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
    """``pip install`` of both packages, the command, and a first program."""
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command):
        return subprocess.run(
            [place / "bin" / command[0], *command[1:]], cwd=tmp_path, env=clean, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    run("pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT / "node", ROOT)
    assert str(place) in run("python", "-c", FIRST)
    assert "hogwild" in run("hogwild", "info")
    assert "usage: hogwild-agent" in run("hogwild-agent", "--help")
