"""Python 3.12 and 3.13, as far as it can be tried where torch is installed for one Python only: the
sources compile without a warning, and hogwild-node, which needs NumPy alone, computes the same."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import GCN, GSDGNN, IGNN, EnergyGNN
from hogwild.models.export import export

ROOT = Path(__file__).parent.parent
OTHERS = ("3.12", "3.13")
MODELS = {
    "energy": lambda: EnergyGNN(2, out_channels=1, beta=1.0),
    "attention": lambda: EnergyGNN(2, out_channels=1, beta=1.0, heads=2),
    "gsd": lambda: GSDGNN(2, out_channels=1),
    "ignn": lambda: IGNN(2, out_channels=1),
    "gcn": lambda: GCN(2, out_channels=1, num_layers=3),
}
PROGRAM = """
import json, sys
from hogwild_node.agent import Agent, Edge
from hogwild_node.model import load
from hogwild_node.transports.memory import MemoryNetwork

assert "torch" not in sys.modules
x, out = json.loads(sys.argv[1]), {}
for path in sys.argv[2:]:
    model, network, n = load(path), MemoryNetwork(delay=(0.0, 0.05), loss=0.2), len(x)
    agents = []
    for i in range(n):
        near = {str(j): Edge(str(j)) for j in (i - 1, i + 1) if 0 <= j < n}
        link = network.endpoint(str(i))
        agents.append(Agent(model, str(i), x[i], link, neighbours=near, clock=network.clock))
    for _ in range(150):
        network.now += 0.02
        for agent in agents:
            agent.turn()
    out[path] = [agent.read().prediction.tolist() for agent in agents]
print(json.dumps(out))
"""


def interpreter(version):
    """A Python of this version on this machine; ``None``: there is none."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        places = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
        return str(places[-1]) if places else None
    return found


def test_the_packages_say_which_pythons_they_are_for():
    for path in (ROOT / "pyproject.toml", ROOT / "node" / "pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        assert project["requires-python"] == ">=3.11"
        for version in ("3.11", *OTHERS):
            assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    matrix = (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
    assert 'python: ["3.11", "3.12", "3.13"]' in matrix


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_another_python(version, tmp_path):
    """Everything compiles without a warning; agents of five kinds of models give the answers that
    they give here; the command runs."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    for name in ("src", "node", "tests", "experiments", "benchmarks", "examples", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([python, "-W", "error", "-m", "compileall", "-q", tmp_path], check=True)
    subprocess.run([python, "-m", "venv", tmp_path / "env"], check=True)
    binary = tmp_path / "env" / "bin"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*words, env=clean):
        return subprocess.run(
            [str(word) for word in words], env=env, cwd=tmp_path, check=True, text=True,
            capture_output=True,
        ).stdout  # fmt: skip

    run(binary / "pip", "install", "-q", ROOT / "node")
    assert "usage: hogwild-agent" in run(binary / "hogwild-agent", "--help")
    torch.manual_seed(0)
    data = Data(x=torch.randn(5, 2, **DOUBLE), edge_index=chain(5))
    files = [tmp_path / f"{name}.hog" for name in MODELS]
    for make, file in zip(MODELS.values(), files, strict=True):
        export(make().double(), file, data=data)
    words = ["-W", "error", "-c", PROGRAM, json.dumps(data.x.tolist()), *files]
    there = json.loads(run(binary / "python", *words))
    here = json.loads(run(sys.executable, *words, env={**os.environ}))
    assert there.keys() == here.keys()
    assert len(there) == len(MODELS)
    for name, answers in here.items():
        np.testing.assert_allclose(there[name], answers, rtol=1e-9, atol=1e-12)
