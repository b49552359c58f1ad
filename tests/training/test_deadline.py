"""Training for a deadline: nodes answer better in time, the limit stays exact, runs resume."""

import json

import pytest
import torch
from tiny_runs import QUICK, TASK, parameters
from tiny_tasks import Chains, Sums
from torch_geometric.data import Batch

from hogwild import load, simulate, train
from hogwild.cli import main
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.training import in_time
from hogwild.training.deadline import Deadline
from hogwild.training.predict import inputs_of

SHORT = {**QUICK, "deadline": 4, "epochs": 4}


@pytest.mark.parametrize("rule", ["messages", "gradient"])
def test_the_limit_stays_exact(rule):
    """A trained model converges to its solver's answer."""
    result = train(Chains(), **SHORT, deadline_options={"rule": rule})
    assert not result.failed
    data = Batch.from_data_list(Chains().graphs).apply(
        lambda t: t.double() if t.is_floating_point() else t
    )
    run = simulate(result.model, data, rule=rule)
    assert run.converged.all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"unroll": 9}, marks=pytest.mark.slow),
    ],
)
def test_answers_in_time_become_better(options):
    task = Chains(length=5)
    common = {"model": "energy-edge", "epochs": 50, "lr": 0.03}
    plain = train(task, **common)
    aimed = train(task, **common, deadline=10, deadline_options={**options, "rule": "gradient"})
    data = Batch.from_data_list(task.graphs).apply(
        lambda t: t.double() if t.is_floating_point() else t
    )
    deadline = Deadline(10, rule="gradient")
    with torch.no_grad():
        late = [
            sum(task.loss(deadline.answers(r.model, data, s)[0], data) for s in range(3))
            for r in (plain, aimed)
        ]
    assert late[1] < 0.9 * late[0]


def test_interrupted_and_resumed_is_uninterrupted(tmp_path):
    options = {**SHORT, "batch_size": 4, "checkpoint_every": 0.0}
    options["deadline_options"] = {"rule": "gradient", "unroll": 3}
    whole = train(Sums(), **options)
    train(Sums(), folder=tmp_path, **{**options, "epochs": 2})
    resumed = train(Sums(), folder=tmp_path, resume=True, **options)
    assert torch.equal(parameters(whole), parameters(resumed))
    with pytest.raises(ConfigError, match="deadline"):
        train(Sums(), folder=tmp_path, resume=True, **{**options, "deadline": 5})
    again = load(tmp_path, Sums())
    assert again.model.conv.guess is not None
    assert torch.equal(parameters(again), parameters(resumed))


def test_a_replica_ends_as_if_it_was_alone():
    some = {**SHORT, "folds": 3}
    both = train(Sums(), **{**some, "replicas": 2})
    alone = train(Sums(), **{**some, "replicas": 1})
    assert torch.allclose(parameters(both)[0], parameters(alone)[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_says_how_nodes_answer_at_the_deadline(dtype, tmp_path):
    result = train(Chains(), **SHORT, dtype=dtype, folder=tmp_path)
    late = result.metrics["test at the deadline"]
    assert late.shape == (2,)
    assert "after 4 updates a node" in result.summary()
    again = load(tmp_path, Chains())
    assert torch.equal(again.metrics["test at the deadline"], late)
    assert torch.equal(again.evaluate()["test at the deadline"], late)


def test_the_command(capsys):
    options = ["--deadline", "3", "--deadline-option", "rule=gradient", "--epochs", "2"]
    assert main(["train", TASK, *options, "--json", "--quiet"]) == 0
    config = json.loads(capsys.readouterr().out)["options"]
    assert config["deadline"] == 3
    assert config["deadline_options"] == {"rule": "gradient"}
    assert config["model_options"]["start"] == "learned"


def broken(model, data, *rest):
    """An answer at the deadline without finite gradients, for replica 1."""
    out = model.read(torch.zeros(2, data.num_nodes, 2), inputs_of(model, data))
    return out * torch.tensor([1.0, torch.inf])[:, None, None]


def test_terms_without_finite_gradients_are_counted_and_said(monkeypatch):
    monkeypatch.setattr(Deadline, "synchronous", lambda self, *given: broken(*given))
    options = {**SHORT, "replicas": 2, "epochs": 5, "log_every": 1, "dtype": "float32"}
    with pytest.warns(UserWarning, match="replica 1 learned nothing from the deadline in 5 train"):
        result = train(Chains(), **options)
    assert not result.failed
    assert [row["left_out"] for row in result.history] == [[0, n] for n in range(1, 6)]
    monkeypatch.setattr(in_time, "LEAVE", 3)
    with pytest.warns(UserWarning, match="in 3 training steps"):
        result = train(Chains(), **options)
    assert result.failed == [1]
    assert "not finite in 3 training steps in a row" in result.stops[1].reason


def test_fixed_points_have_deadlines():
    result = train(Chains(), model="ignn", epochs=4, deadline=3)
    assert not result.failed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": 0}, "deadline=0"),
        ({"deadline": 2.5}, "deadline=2.5"),
        ({"deadline_options": {"unroll": 3}}, "without a deadline"),
        ({"deadline": 3, "deadline_options": {"unrolls": 3}}, "'unroll'"),
        ({"deadline": 3, "deadline_options": {"unroll": 0}}, "unroll=0"),
        ({"deadline": 3, "deadline_options": {"weight": 0}}, "weight=0"),
        (
            {"deadline": 3, "deadline_options": {"method": "stiffness"}},
            "method is no longer an option",
        ),
        ({"deadline": 3, "deadline_options": {"stagger": 0}}, "stagger=0"),
        ({"deadline": 3, "deadline_options": {"rule": "caching"}}, "rule='caching'"),
        ({"deadline": 3, "model": "gcn"}, "no problem to solve|layers"),
        ({"deadline": 3, "model_options": {"num_layers": 2}}, "2 layers"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ConfigError, match=words):
        train(Chains(), **{"model": "energy-edge", "epochs": 1, **options})


def test_energies_that_no_node_can_compute():
    with pytest.raises(AsynchronyError, match="rounds=2"):
        train(Chains(), epochs=1, deadline=3, model_options={"rounds": 2})
