"""Ready-made scenarios."""

import numpy as np
import pytest
import torch
from motion import ring

from hogwild.asynchrony.scenarios import (
    drifting,
    join_and_leave,
    partition,
    swarm,
)
from hogwild.errors import ConfigError

MADE = {
    "swarm": lambda seed: swarm(10, degree=3, changes=4, seed=seed),
    "drift": lambda seed: drifting(ring(list(range(6))), changes=4, seed=seed),
    "join": lambda seed: join_and_leave(ring(list(range(12))), changes=4, seed=seed, share=0.3),
}


@pytest.mark.parametrize("name", MADE)
def test_a_scenario_is_a_function_of_its_seed(name):
    one, same, other = (MADE[name](seed) for seed in (1, 1, 2))
    assert one.times == same.times
    for a, b in zip(one, same, strict=True):
        assert torch.equal(a.data.x, b.data.x)
        assert torch.equal(a.data.edge_index, b.data.edge_index)
        assert torch.equal(a.ids, b.ids)
    assert any(
        a.data.x.shape != b.data.x.shape or not torch.equal(a.data.x, b.data.x)
        for a, b in zip(one, other, strict=True)
    )


def test_a_swarm_has_the_degree_asked_for_and_does_not_gather():
    found = swarm(60, degree=6, changes=80, speed=0.05, seed=3)
    degrees = [frame.data.edge_index.size(1) / 60 for frame in found]
    assert np.mean(degrees) == pytest.approx(6, rel=0.05)
    assert np.mean(degrees[-40:]) == pytest.approx(np.mean(degrees[:40]), rel=0.2)
    moved = found.frames[1].data.pos - found.frames[0].data.pos
    assert float(moved.norm(dim=-1).max()) <= 0.05 + 1e-6
    y = found.frames[-1].data.y
    torch.testing.assert_close(y, found.frames[0].data.x.mean(0).expand_as(y))


def test_nodes_join_and_leave_with_their_features():
    whole = ring(list(range(30)))
    found = join_and_leave(whole, changes=6, share=0.3, seed=0)
    sizes = [frame.ids.numel() for frame in found]
    assert sizes[0] == 30
    assert min(sizes) < 30
    assert set(found.frames[2].ids.tolist()) - set(found.frames[1].ids.tolist())  # some come back
    for frame in found:
        torch.testing.assert_close(frame.data.x, whole.x[frame.ids])


def test_a_partition_cuts_exactly_the_edges_between_the_halves():
    data = ring(list(range(8)))
    data.edge_attr = torch.arange(16.0)[:, None]
    half = torch.tensor([True, True, True, False, False, False, False, True])  # nearest to node 0
    broken = partition(data).frames[1].data
    crossing = half[data.edge_index[0]] != half[data.edge_index[1]]
    assert int(crossing.sum()) == 4
    assert torch.equal(broken.edge_index, data.edge_index[:, ~crossing])
    assert torch.equal(broken.edge_attr, data.edge_attr[~crossing])
    with pytest.raises(ConfigError, match="heals=5"):
        partition(data, breaks=10, heals=5)
