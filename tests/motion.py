"""What tests of graphs that move share."""

import torch
from torch_geometric.data import Data

from hogwild.asynchrony.moving import Scenario


def ring(ids, seed=0, chords=(), width=3, dtype=torch.float64):
    """A ring of nodes with these identities and some chords (pairs of identities); the features of
    a node are a function of its identity and the seed."""
    place = {i: n for n, i in enumerate(ids)}
    pairs = [(a, b) for a, b in zip(ids, [*ids[1:], ids[0]], strict=True) if a != b]
    pairs += [(a, b) for a, b in chords if a in place and b in place]
    ends = {(place[a], place[b]) for a, b in pairs}
    both = sorted(ends | {(b, a) for a, b in ends})
    x = [torch.randn(width, generator=torch.Generator().manual_seed(100 * seed + i)) for i in ids]
    return Data(
        x=torch.stack(x).to(dtype), edge_index=torch.tensor(both).T, node_id=torch.tensor(ids)
    )


def joining():
    """A ring of six; at tick 12 node 2 leaves, node 9 joins, a chord appears, and node 0's features
    change."""
    before = ring([0, 1, 2, 3, 4, 5], chords=[(0, 3)])
    after = ring([9, 0, 1, 3, 4, 5], chords=[(0, 3), (1, 4)])
    after.x[1] += 0.5
    return Scenario([before, after], [0, 12], length=24)
