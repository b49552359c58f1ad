"""Runs that were stored before the widths of energies followed ``hidden_channels``."""

import json

import torch
from tiny_tasks import Sums

from hogwild import train
from hogwild.training import load

WIDE = {"hidden_channels": 32}
PAPER = {"widths": [4, 4], "message_channels": 2}


def test_an_older_run_still_loads_and_resumes(tmp_path):
    options = {"model": "energy-edge", "epochs": 1, "folder": tmp_path}
    result = train(Sums(), **options, model_options={**WIDE, **PAPER})
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for name in PAPER:  # as an older version wrote it
        del config["model_options"][name]
    file.write_text(json.dumps(config))
    loaded = load(tmp_path, task=Sums())
    for name, value in result.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    options["epochs"] = 2
    train(Sums(), **options, resume=True, model_options={**WIDE, **PAPER})
