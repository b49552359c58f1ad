"""Fronts are batched so that padding and calls together cost little."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.solvers.batching import batches

CLASSES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(1, 500)), min_size=1, max_size=8
)


def cost(parts, shapes, counts, call):
    return sum(call + shapes[p].max(0).sum() ** 3.0 * counts[p].sum() for p in parts)


def partitions(n):
    """All partitions of n classes."""
    if n == 0:
        yield []
        return
    for rest in partitions(n - 1):
        yield [*rest, [n - 1]]
        for i in range(len(rest)):
            yield [*rest[:i], [*rest[i], n - 1], *rest[i + 1 :]]


def arrays(classes):
    data = np.array(classes)
    return data[:, :2], data[:, 2]


@given(CLASSES, st.sampled_from([0.0, 1e3, 1e6, 1e9]))
def test_every_class_is_in_one_batch_and_joining_pays(classes, call):
    shapes, counts = arrays(classes)
    found = batches(shapes, counts, call)
    assert sorted(c for batch in found for c in batch) == list(range(len(classes)))
    alone = cost([[c] for c in range(len(classes))], shapes, counts, call)
    assert cost(found, shapes, counts, call) <= alone * (1 + 1e-12)


@given(CLASSES.filter(lambda x: len(x) <= 6), st.floats(1e3, 1e8))
def test_nearly_as_cheap_as_the_best_partition(classes, call):
    shapes, counts = arrays(classes)
    best = min(cost(p, shapes, counts, call) for p in partitions(len(classes)))
    assert cost(batches(shapes, counts, call), shapes, counts, call) <= 2.0 * best


@pytest.mark.parametrize(("call", "expected"), [(0.0, 3), (math.inf, 1)])
def test_free_and_unaffordable_calls(call, expected):
    assert len(batches(np.array([[4, 2], [6, 2], [4, 0]]), np.array([7, 1, 1]), call)) == expected


def test_a_root_is_not_padded_to_the_boundaries_of_others():
    """Many pivots and no boundary, few pivots and a wide one: together they would be both."""
    shapes, counts = np.array([[40, 0], [38, 0], [4, 30]]), np.array([100, 100, 100])
    assert sorted(batches(shapes, counts, 2e6)) == [[0, 1], [2]]
