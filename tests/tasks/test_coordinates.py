"""Coordinates: distances, not positions, are asked for."""

import math

import pytest
import torch
from torch_geometric.data import Batch

from hogwild import tasks


@pytest.fixture(scope="module")
def task():
    return tasks.get("coordinates", num_graphs=60)


def test_data(task):
    for g in task.graphs:
        assert torch.equal(g.x, torch.eye(20))
        assert ((g.pos >= 0) & (g.pos <= 1)).all()
        d = torch.cdist(g.pos, g.pos)
        near = (d <= 0.5).fill_diagonal_(False)
        joined = torch.zeros(20, 20, dtype=torch.bool)
        joined[g.edge_index[0], g.edge_index[1]] = True
        assert torch.equal(joined, near)
        torch.testing.assert_close(g.edge_attr[:, 0], d[g.edge_index[0], g.edge_index[1]])
        assert g.pair_index.shape == (2, 190)
        assert torch.linalg.matrix_power(near.double() + torch.eye(20), 19).min() > 0


def test_true_positions_in_any_frame_are_perfect(task):
    data = Batch.from_data_list(task.graphs)
    i, j = data.batch[data.pair_index]
    assert torch.equal(i, j)  # pairs never cross graphs
    assert torch.equal(i, torch.arange(60).repeat_interleave(190))
    c, s = math.cos(1.0), math.sin(1.0)
    frame = torch.tensor([[c, s], [s, -c]], dtype=torch.float64)  # a reflection, turned
    out = data.pos.double() @ frame + 3.0
    assert task.loss(out, data) < 1e-12
    assert task.metric(out, data) < 1e-6
    doubled = task.metric(2 * out, data)  # every distance d becomes 2d
    torch.testing.assert_close(
        doubled, data.y.double().square().mean().sqrt() / data.y.double().mean()
    )


def test_slope_at_zero(task):
    """All nodes at one point: a finite gradient."""
    data = Batch.from_data_list(task.graphs)
    out = torch.zeros(1200, 2, dtype=torch.float64, requires_grad=True)
    task.loss(out, data).backward()
    assert out.grad.isfinite().all()


def test_constant(task):
    """A fixed layout pays for the spread of distances (0.475) and for 20 points not being
    equidistant in the plane (0.377, their least possible stress)."""
    train = tasks.get("coordinates", num_graphs=300, seed=1).graphs
    error = task.constant(Batch.from_data_list(train), Batch.from_data_list(task.graphs))
    assert error == pytest.approx(math.hypot(0.475, 0.377), abs=0.02)
