"""Configurations: recipes, TOML, and what is refused with which advice."""

import dataclasses
import json
import math

import pytest
import torch
from tiny_tasks import Sums

from hogwild import LBFGS, Anderson, Newton, Picard
from hogwild.config import SEEDS
from hogwild.errors import ConfigError
from hogwild.models.base import ImplicitConv, Kind
from hogwild.training import MODELS, Config
from hogwild.training.registry import PAPER, at_hand, build, device_of, entry


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


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config.of().lr = 1.0


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_dictionary_round_trip(recipe):
    config = Config.of(recipe=recipe, task="chains", task_options={"length": 3}, patience=5)
    assert Config.from_dict(config.as_dict()) == config


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
        ({"solver": ["newton"]}, r"solver=\['newton'\]; expected a string"),
    ],
)
def test_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        Config.of(**given)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_every_model_builds(name, replicas, recipe):
    config = Config.of(model=name, recipe=recipe)
    model = build(config, Sums(), replicas)
    assert model.kind == entry(name).kind
    assert model.replicas == replicas
    assert {p.dtype for p in model.parameters()} == {config.precision}


def test_paper_sizes_and_solvers():
    paper = Config.of(recipe="paper", model="energy-edge")
    conv = build(paper, Sums(), None).conv
    assert conv.solver == LBFGS(max_iter=50, atol=1e-5, rtol=0.0)
    assert conv.hidden_channels == 2
    assert isinstance(build(Config.of(model="energy-edge"), Sums(), None).conv.solver, Newton)
    fixed = build(Config.of(recipe="paper", model="scarselli"), Sums(), None).conv
    assert fixed.solver == Picard(max_iter=500, atol=1e-5, rtol=0.0)
    attention = build(Config.of(model="energy-attention"), Sums(), None).conv
    assert (attention.heads, attention.message) == (2, "edge")
    own = Config.of(solver="lbfgs", solver_options={"max_iter": 7})
    assert build(own, Sums(), None).conv.solver == LBFGS(max_iter=7)


def solver(**options):
    model = build(Config.of(**options), Sums(), None)
    return next(part.solver for part in model.modules() if isinstance(part, ImplicitConv))


def test_a_recipe_leaves_exact_solves_alone():
    for name in ("eignn", "max"):
        assert solver(recipe="paper", model=name) == solver(model=name)
    iterate = {"model": "eignn", "model_options": {"method": "iterate"}}
    assert solver(recipe="paper", **iterate) == PAPER[Kind.FIXED_POINT]
    assert isinstance(solver(model="max", solver="anderson"), Anderson)
    with pytest.raises(ConfigError, match="method='closed' needs none"):
        solver(model="eignn", solver="picard")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "energy-ege"}, "did you mean 'energy-edge'"),
        ({"model_options": {"hiden_channels": 3}}, "did you mean 'hidden_channels'"),
        ({"model_options": {"bta": 3}}, "did you mean 'beta'"),
        ({"model_options": {"replicas": 3}}, "decided by the task or the training"),
        ({"solver": "newtn"}, "did you mean 'newton'"),
        ({"solver": "newton", "solver_options": {"max_it": 3}}, "did you mean 'max_iter'"),
        ({"solver_options": {"max_iter": 3}}, "without a solver"),
        ({"model": "gcn", "solver": "newton"}, "solves nothing"),
        ({"model": "ignn", "solver": "newton"}, "no energy to minimise; .* anderson, picard"),
        ({"model": "max", "solver": "lbfgs"}, "no energy to minimise"),
    ],
)
def test_models_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        build(Config.of(**given), Sums(), None)


def test_what_is_unbounded_survives_json():
    config = Config.of(clip=math.inf, checkpoint_every=math.inf)
    text = json.dumps(config.as_dict(), allow_nan=False)
    assert Config.from_dict(json.loads(text)) == config


def test_the_largest_seeds_are_seeds():
    """Of replicas that count up, and of the last of very many epochs."""
    largest = {name: limit - 1 for name, limit in SEEDS.items()}
    config = Config.of(**largest, replicas=1000, epochs=10**9)
    for seed in (config.seed + config.replicas, config.data_seed * 1_000_003 + config.epochs):
        assert torch.Generator().manual_seed(seed)


def test_a_device_that_is_not_here(monkeypatch):
    config = Config.of(device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        device_of(config)
    assert at_hand(config) == dataclasses.replace(config, device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="there are 1, from cuda:0 on"):
        device_of(config)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(config) == torch.device("cuda:1")
    assert at_hand(config) is config
