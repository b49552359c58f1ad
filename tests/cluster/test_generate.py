"""Generated graphs: undirected, what they should be, the same in memory and in files."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from hogwild.cluster import generate
from hogwild.cluster.generate import geometric, grid, power_law
from hogwild.errors import ConfigError

MAKERS = {
    "grid": lambda **options: grid(13, 7, **options),
    "four": lambda **options: grid(5, diagonals=False, **options),
    "geometric": lambda **options: geometric(2000, **options),
    "power law": lambda **options: power_law(500, **options),
}


def pairs(whole):
    return sorted(map(tuple, whole.edge_index.T.tolist()))


@pytest.mark.parametrize("name", MAKERS)
def test_undirected_seeded_and_the_same_in_files(name, tmp_path, monkeypatch):
    make = MAKERS[name]
    first = make(channels=3)
    assert first.x.shape == (first.num_nodes, 3)
    assert pairs(first) == sorted((i, j) for j, i in pairs(first))
    assert not (first.edge_index[0] == first.edge_index[1]).any()
    filed = make(channels=3, folder=tmp_path)
    assert isinstance(filed.x, np.memmap)
    assert np.array_equal(first.edge_index, filed.edge_index)
    assert np.array_equal(first.x, filed.x)
    assert not np.array_equal(first.x, make(channels=3, seed=1).x)
    monkeypatch.setattr(generate, "CHUNK", 50)
    assert pairs(make()) == pairs(first)


def test_a_node_of_a_lattice_has_six_neighbours():
    degree = np.bincount(grid(9).edge_index[1])
    assert degree[4 * 9 + 4] == 6
    assert degree[0] == 3
    assert np.bincount(grid(9, diagonals=False).edge_index[1])[4 * 9 + 4] == 4


def test_strips_find_all_neighbours(monkeypatch):
    whole = geometric(3000)
    monkeypatch.setattr(generate, "STRIP", 100)
    cut = geometric(3000)
    pos = cut.node_fields["pos"]
    radius = np.sqrt(6 / (np.pi * 3000))
    found = cKDTree(pos).query_pairs(radius)
    assert {(min(e), max(e)) for e in pairs(cut)} == found
    assert len(pairs(cut)) == 2 * len(found) == whole.num_edges
    assert 5 < cut.num_edges / 3000 < 6.2


def test_a_power_law_has_hubs():
    degree = np.bincount(power_law(20_000).edge_index[1])
    assert 5 < degree.mean() < 6.1
    assert degree.max() > 200
    # The share of nodes of degree at least d falls as 1/d².
    share = [(degree >= d).mean() for d in (10, 40)]
    assert 8 < share[0] / share[1] < 32


def test_bad_sizes_are_refused():
    for make in (grid, geometric, power_law):
        with pytest.raises(ConfigError, match="positive integer"):
            make(0)
    with pytest.raises(ConfigError, match="degree=-1"):
        geometric(10, -1)


@pytest.mark.parametrize("nodes", [1, 2])
def test_tiny_graphs(nodes):
    assert geometric(nodes).num_nodes == nodes
    assert power_law(nodes).num_nodes == nodes
    assert grid(nodes).num_nodes == nodes**2
