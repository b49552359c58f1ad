"""``hogwild info``."""

import json
import tomllib
from pathlib import Path

import torch

from hogwild.cli import main

ROOT = Path(__file__).parents[2]


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert {"energy-edge", "gcn", "scarselli"} <= set(found["models"])
    assert found["options"] == {"json": True}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = str(extras["optional-dependencies"])
    assert found["optional"]
    assert all(name in named for name in found["optional"])  # nothing that nothing uses
    assert main(["info"]) == 0
    assert "energy-edge" in capsys.readouterr().out
