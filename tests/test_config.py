"""Configurations: recipes, TOML, and what is refused with which advice."""

import json
import math

import pytest
import torch

from hogwild.config import SEEDS
from hogwild.errors import ConfigError
from hogwild.training import Config


def test_recipes():
    ours, paper = Config.of(), Config.of(recipe="paper")
    assert (ours.lr, ours.weight_decay, ours.clip) == (0.005, 1e-4, 1.0)
    assert ours.precision == torch.float64  # unless the task says otherwise
    assert (paper.lr, paper.decay, paper.epochs) == (0.002, (0.98, 200), 5000)
    assert paper.clip == math.inf
    assert paper.on_failure == "ignore"
    assert paper.lr_at(199) == 0.002
    assert paper.lr_at(400) == pytest.approx(0.002 * 0.98**2, rel=1e-15)
    assert Config.of(recipe="paper", lr=0.1).lr == 0.1


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_dictionary_round_trip(recipe):
    """Through JSON, which has neither infinity nor ranges."""
    options = {"task_options": {"sizes": range(1, 4)}, "checkpoint_every": math.inf}
    config = Config.of(recipe=recipe, task="counting", patience=5, **options)
    text = json.dumps(config.as_dict(), allow_nan=False)
    assert Config.from_dict(json.loads(text)) == config
    assert config.task_options == {"sizes": [1, 2, 3]}


def test_toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'task = "sums"\nmodel = "gcn"\nlr = 0.1\ndecay = [0.5, 10]\nclip = inf\n'
        "[model_options]\nhidden_channels = 4\n"
    )
    config = Config.of(**Config.read(path))
    assert config == Config.of(
        task="sums",
        model="gcn",
        lr=0.1,
        decay=(0.5, 10),
        clip=math.inf,
        model_options={"hidden_channels": 4},
    )
    path.write_text("lr = = 3")
    with pytest.raises(ConfigError, match="TOML"):
        Config.read(path)
    with pytest.raises(ConfigError, match="no file"):
        Config.read(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epocs": 3}, "did you mean 'epochs'"),
        ({"recipe": "papr"}, "did you mean 'paper'"),
        ({"epochs": 0}, "epochs=0; expected a positive integer"),
        ({"epochs": 2.5}, "epochs=2.5"),
        ({"replicas": True}, "replicas=True"),
        ({"lr": -1}, "lr=-1; expected a positive number"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"decay": 0.9}, "decay=0.9"),
        ({"decay": (1.5, 10)}, r"decay=\(1.5, 10\)"),
        ({"dtype": "bfloat16"}, "float32 or float64"),
        ({"device": "tpux"}, "device='tpux'"),
        ({"on_failure": "stop"}, "raise, warn, ignore"),
        ({"warm_start": 1}, "true or false"),
        ({"model_options": 3}, "table of options"),
        ({"patience": -3}, "patience=-3"),
        ({"lr": math.inf}, "lr=inf; expected a finite number"),
        ({"weight_decay": math.inf}, "weight_decay=inf"),
        ({"seed": 2**63}, f"seed={2**63}; expected an integer below {2**63}"),
        ({"data_seed": 2**44}, f"data_seed={2**44}; expected an integer below {2**44}"),
        ({"device": "meta"}, "device='meta'; expected cpu, cuda or cuda:1"),
        ({"model": ["gcn"]}, r"model=\['gcn'\]; expected a string"),
    ],
)
def test_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        Config.of(**given)


def test_the_largest_seeds_are_accepted():
    """Of replicas that count up, and of the last of very many epochs."""
    largest = {name: limit - 1 for name, limit in SEEDS.items()}
    config = Config.of(**largest, replicas=1000, epochs=10**9)
    for seed in (config.seed + config.replicas, config.data_seed * 1_000_003 + config.epochs):
        assert torch.Generator().manual_seed(seed)
