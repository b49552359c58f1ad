"""Models by name: what is built, with which solver, on which device."""

import dataclasses

import pytest
import torch
from tiny_tasks import Sums

from hogwild.errors import ConfigError
from hogwild.models.base import Kind
from hogwild.solvers import LBFGS, Newton, Picard
from hogwild.training import MODELS, Config
from hogwild.training.registry import (
    PAPER,
    at_hand,
    build,
    device_of,
    entry,
    spelled_out,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_every_model_builds(name, replicas, recipe):
    config = Config.of(model=name, recipe=recipe)
    model = build(config, Sums(), replicas)
    assert model.kind == entry(name).layer.kind
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
    found = build(Config.of(recipe="paper", model="eignn"), Sums(), None).conv
    assert found.solver == PAPER[Kind.FIXED_POINT]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "energy-ege"}, "did you mean 'energy-edge'"),
        ({"model_options": {"hiden_channels": 3}}, "did you mean 'hidden_channels'"),
        ({"model_options": {"bta": 3}}, "did you mean 'beta'"),
        ({"model_options": {"replicas": 3}}, "decided by the task or the training"),
    ],
)
def test_models_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        build(Config.of(**given), Sums(), None)


def test_a_device_that_is_not_here(monkeypatch):
    config = Config.of(device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there are 0 CUDA devices"):
        device_of(config)
    assert at_hand(config) == dataclasses.replace(config, device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="there are 1 CUDA devices, from cuda:0 on"):
        device_of(config)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(config) == torch.device("cuda:1")
    assert at_hand(config) is config


def widths(model):
    return [w.size(-2) for w in model.conv.update_nets[0].wy[:-1]], model.conv.message_channels


@pytest.mark.parametrize(
    ("k", "expected"), [(2, ([4, 4], 2)), (8, ([4, 4], 2)), (32, ([8, 8], 4)), (64, ([16, 16], 8))]
)
def test_the_widths_of_energies_follow_the_embeddings(k, expected):
    config = spelled_out(Config.of(model="energy-edge", model_options={"hidden_channels": k}))
    assert widths(build(config, Sums(), None)) == expected
    named = {"widths": [3, 5], "message_channels": 1, "hidden_channels": k}
    config = spelled_out(Config.of(model="energy-edge", model_options=named))
    assert widths(build(config, Sums(), None)) == ([3, 5], 1)


def test_an_option_says_how_graphs_are_pooled(monkeypatch):
    """Whether nodes or graphs are predicted, the task says."""
    task, none = Sums(), Config.of(model="soft", model_options={"pool": None})
    attention = Config.of(model="soft", model_options={"pool": "attention"})
    assert build(attention, task, None).readout.pool == "attention"
    assert build(Config.of(model="soft"), task, None).readout.pool == "mean"
    with pytest.raises(ConfigError, match="tiny sums predicts for graphs; expected a way to pool"):
        build(none, task, None)
    monkeypatch.setattr(task, "pool", None)
    assert build(none, task, None).readout.pool is None
    with pytest.raises(ConfigError, match=r"pool='attention' of soft, but .* predicts for nodes"):
        build(attention, task, None)
