"""Tasks on sequences."""

import pytest
import torch
from torch_geometric.data import Batch

import hogwild
from hogwild.errors import ConfigError
from hogwild.tasks import get


def test_folds_hold_whole_sequences():
    task = get("moving-source", sequences=6, moments=4, num_nodes=5, degree=2.0)
    assert len(task.graphs) == 24
    for split in task.splits(3, validation=True):
        parts = [set((part // 4).tolist()) for part in (split.train, split.val, split.test)]
        assert set.union(*parts) == set(range(6))
        assert sum(map(len, parts)) == 6
        assert len(split.test) == 4 * len(parts[2])


def test_a_sequence_moves_and_its_sensors_stay():
    task = get("moving-source", sequences=2, moments=5, num_nodes=8, degree=3.0)
    frames = task.sequence(1)
    assert len(frames) == 5
    assert all(torch.equal(frame.pos, frames[0].pos) for frame in frames)
    assert not torch.equal(frames[0].y, frames[4].y)
    with pytest.raises(ConfigError, match="sequence 2 was asked for; expected 0 to 1"):
        task.sequence(2)


def test_true_positions_are_perfect():
    task = get("moving-swarm", sequences=2, moments=3, num_nodes=8, noise=0.0)
    data = Batch.from_data_list(task.sequence(0))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert float(task.metric(data.pos @ turn + 3.0, data)) < 1e-2
    gap = data.pos[data.edge_index[0]] - data.pos[data.edge_index[1]]
    torch.testing.assert_close(data.edge_attr[:, 0], gap.norm(dim=-1), rtol=0, atol=1e-5)


def test_measured_distances_are_wrong_by_the_noise_alike_at_both_ends():
    task = get("moving-swarm", sequences=4, moments=5, noise=0.05)
    data = Batch.from_data_list(task.graphs)
    gap = data.pos[data.edge_index[0]] - data.pos[data.edge_index[1]]
    wrong = data.edge_attr[:, 0] - gap.norm(dim=-1)
    assert float(wrong.std()) == pytest.approx(0.05, rel=0.1)
    one = task.graphs[0]
    table = torch.zeros(20, 20)
    table[one.edge_index[0], one.edge_index[1]] = one.edge_attr[:, 0]
    assert torch.equal(table, table.T)


def test_train_and_track():
    """A few epochs on sequences, and the trained model on one of them."""
    options = {"sequences": 4, "moments": 3, "num_nodes": 6, "degree": 2.0}
    result = hogwild.train(
        "moving-source", model="gsdgnn", epochs=3, folds=2, replicas=1, task_options=options,
        progress=False,
    )  # fmt: skip
    frames = result.task.sequence(0)
    scenario = hogwild.Scenario(frames, [0, 20, 40], length=60)
    seen = hogwild.track(result.model, scenario)
    assert seen.score.shape == (60, 1)


def test_sensors_read_the_source():
    """Without noise a reading is 1 / (1 + d² / 0.2²)."""
    frames = get("moving-source", sequences=1, moments=10, num_nodes=20, noise=0.0).sequence(0)
    for frame in frames:
        d = (frame.x[:, 1:] - frame.y).square().sum(-1)
        torch.testing.assert_close(frame.x[:, 0], 1 / (1 + d / 0.04), rtol=0, atol=1e-5)
    assert not torch.equal(frames[0].y, frames[5].y)
