"""``hogwild robustness``."""

import pytest
import torch
from tiny_runs import TASK
from tiny_tasks import chain
from torch_geometric.data import Data

from hogwild import train
from hogwild.cli import common, main, robustness
from hogwild.metrics import METRICS


def test_robustness(trained, printed, capsys):
    code, found = printed("robustness", "--runs", "2", "--impair", "loss=0.3")
    assert code == 0
    assert found["rule"] == "messages"
    assert found["converged"] == 1.0
    assert found["proved"] is False
    assert found["bytes"] > found["packets"] > found["updates"] > 0
    assert found["options"]["impair"] == ["loss=0.3"]
    call = ["robustness", trained, "--task", TASK, "--runs", "2"]
    assert main([*call, "--rule", "gradient", "--ticks", "7", "--quiet"]) == 3  # nobody arrived
    text = capsys.readouterr().out
    assert "Not converged within the 7 ticks: 2 of 2" in text
    assert "--rule messages needs fewer updates" in text  # flags, not keywords
    assert "price: 7 ticks" in text
    assert main([*call, "--impair", "loss=1.0", "--ticks", "40", "--quiet"]) == 3
    text = capsys.readouterr().out
    assert "no packet ever arrives under BernoulliLoss(rate=1.0, burst=None)" in text
    assert "--rule" not in text  # no other rule helps


def test_metric(printed):
    accuracy, error = (
        printed("robustness", "--runs", "1", "--tol", "1e-2", "--metric", metric)[1]["synchronous"]
        for metric in ("accuracy", "error")
    )
    assert accuracy == pytest.approx(1.0 - error)
    assert printed("robustness", "--runs", "1", "--tol", "1e-2")[1]["synchronous"] == accuracy
    assert tuple(METRICS) == robustness.METRICS


def test_a_recorded_schedule_is_measured_again(printed, tmp_path):
    path = str(tmp_path / "schedule.npz")
    flags = ("--runs", "2", "--tol", "1e-2")
    _, first = printed("robustness", *flags, "--seed", "3", "--record", path)
    for verb in ("robustness", "simulate"):
        _, again = printed(verb, *flags, "--replay", path)
        assert again["updates"] == first["updates"]


def test_plot(trained, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "predictions.png"
    call = ["robustness", trained, "--task", TASK, "--runs", "2"]
    assert main([*call, "--plot", str(path)]) == 0
    assert f"picture: {path}" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")


def test_deadlines_and_other_rules(trained, printed, capsys):
    code, found = printed("robustness", "--compare", "all", "--runs", "2")
    assert code == 0
    assert list(found["deadlines"]) == ["messages", "gradient", "balls"]
    first = found["deadlines"]["messages"]
    assert first["looks"][0]["ticks"] == 0
    assert first["looks"][-1]["ticks"] == found["ticks"]
    assert first["light_cone"]["updates"] > 0
    assert found["advice"].startswith("6 nodes of 2 graphs are too few for advice")
    call = ["robustness", trained, "--task", TASK, "--runs", "2", "--compare", "gradient"]
    assert main([*call, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "error by deadline" in out
    assert "In time: " in out


@pytest.mark.parametrize(
    ("nodes", "pooled", "count"), [(3, True, 50), (100, True, 30), (2000, True, 2), (3, False, 2)]
)
def test_graphs_with_one_answer_are_run_in_larger_numbers(nodes, pooled, count):
    """As many as bound the time."""
    shape = (1,) if pooled else (nodes,)
    graphs = [
        Data(x=torch.ones(nodes, 1), edge_index=chain(nodes), y=torch.full(shape, i % 2))
        for i in range(180)
    ]
    result = train(graphs, model="gcn", epochs=1, folds=3)
    chosen = common.Chosen(result, 0, result.model)
    assert len(chosen.some(None)) == count
    assert len(chosen.some(5)) == 5
    assert len(chosen.graphs()) == 60
