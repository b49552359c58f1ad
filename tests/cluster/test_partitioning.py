"""Partitioners: every node has a part, parts are balanced, and few edges are cut."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import Inputs
from hogwild.cluster.cutting import METHODS, Partition, partition
from hogwild.errors import ConfigError


def graph(ends, nodes):
    return Inputs(torch.ones(nodes, 1), torch.from_numpy(ends).contiguous())


def lattice(side):
    node = np.arange(side * side).reshape(side, side)
    pairs = [(node[:, 1:], node[:, :-1]), (node[1:], node[:-1])]
    ends = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], 1)
    ends = np.concatenate([ends, ends[::-1]], 1)
    return graph(ends, side * side)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_a_lattice_is_cut_well(method, parts):
    if method == "metis":
        pytest.importorskip("pymetis")
    found = partition(lattice(30), parts, method=method)
    assert found.part.shape == (900,)
    assert set(found.part.tolist()) == set(range(parts))
    assert found.balance < 1.1
    assert found.edge_cut < {1: 1e-9, 2: 0.04, 7: 0.18, 16: 0.3}[parts]
    assert str(parts) in str(found)


def test_measures_are_counted():
    whole = graph(np.array([[0, 1, 2, 2], [1, 2, 2, 0]]), 4)
    found = Partition.of(whole, np.array([0, 0, 1, 1]), 2)
    assert (found.edge_cut, found.balance) == (0.5, 1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.lists(st.tuples(*[st.integers(0, 8)] * 2)))
def test_any_graph_and_any_number_of_parts(nodes, parts, pairs):
    """Also more parts than nodes, isolated nodes, self-loops and parallel edges."""
    pairs = [(i, j) for i, j in pairs if max(i, j) < nodes]
    whole = graph(np.array(pairs, dtype=np.int64).reshape(-1, 2).T, nodes)
    found = partition(whole, parts)
    sizes = np.bincount(found.part, minlength=parts)
    assert sizes.sum() == nodes
    assert sizes.max() <= -(-nodes // parts)


def test_without_metis(monkeypatch):
    """As if pymetis were not installed."""
    monkeypatch.setattr("hogwild.cluster.cutting.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    whole = lattice(10)
    assert partition(whole, 4).method == "search"
    with pytest.raises(ConfigError, match="needs pymetis: pip install"):
        partition(whole, 4, method="metis")


def test_bad_options_are_refused():
    whole = lattice(3)
    with pytest.raises(ConfigError, match="expected one of"):
        partition(whole, 2, method="magic")
    with pytest.raises(ConfigError, match="num_parts=0"):
        partition(whole, 0)
