"""The worlds of the page."""

import numpy as np
import pytest
import torch
from torch_geometric.utils import is_undirected

from hogwild.errors import ConfigError
from hogwild.web.worlds import TASKS, World


@pytest.mark.parametrize("task", TASKS)
def test_a_world_is_a_function_of_its_seed(task):
    first, second, other = World.make(task, 30, 4), World.make(task, 30, 4), World.make(task, 30, 5)
    data = first.data()
    assert torch.equal(data.x, second.data().x)
    assert torch.equal(data.edge_index, second.data().edge_index)
    assert not np.array_equal(first.position, other.position)
    assert is_undirected(data.edge_index)
    assert data.x.dtype == torch.float64
    assert (first.position >= 0).all()
    assert (first.position <= 1).all()


def test_targets_are_what_the_tasks_say():
    rumour = World.make("rumour", 20, 1)
    data = rumour.data()
    assert data.x.sum() == 1.0
    assert data.x[rumour.told].argmax() == data.y[0]
    assert (rumour.again().data().y == 1 - data.y).all()  # the opposite answer
    average = World.make("average", 20, 1).data()
    torch.testing.assert_close(average.y, average.x.mean().expand(20, 1))
    alive = np.arange(20) != 3
    left = World.make("average", 20, 1).data(alive)
    torch.testing.assert_close(left.y[0, 0], average.x[torch.from_numpy(alive)].mean())


def test_a_point_that_moves_takes_its_reading_and_its_edges_along():
    world = World.make("field", 30, 2)
    moved = world.move(0, 0.9, 2.0)
    np.testing.assert_array_equal(moved.position[0], [0.9, 1.0])  # it stays in the square
    np.testing.assert_array_equal(moved.position[1:], world.position[1:])
    before, after = world.data(), moved.data()
    assert not torch.equal(before.y[0], after.y[0])
    assert torch.equal(before.x[1:], after.x[1:])
    assert set(map(tuple, after.edge_index.T.tolist())) != set(
        map(tuple, before.edge_index.T.tolist())
    )


def test_the_dead_are_left_out():
    world = World.make("field", 12, 0)
    alive = np.ones(12, bool)
    alive[[2, 5]] = False
    data = world.data(alive)
    assert data.node_id.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]
    assert torch.equal(data.x, world.data().x[torch.from_numpy(alive)])


@pytest.mark.parametrize("nodes", [3, 2001])
def test_sizes_have_limits(nodes):
    with pytest.raises(ConfigError, match="expected 4 to 2000"):
        World.make("field", nodes)
