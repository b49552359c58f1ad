"""Fronts are batched so that padding and calls together cost little."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.linalg.fronts import batches


def classes(most):
    """Shapes and counts of up to so many classes, and what a call costs."""
    number = st.floats(0.0, 4.0).map(lambda e: round(10.0**e))
    shape = st.tuples(st.integers(1, 40), st.integers(0, 40))
    found = st.dictionaries(shape, number, min_size=1, max_size=most)
    call = st.floats(2.0, 9.0).map(lambda e: 10.0**e)
    return st.tuples(found.map(list), found.map(lambda d: list(d.values())), call).map(cut)


def cut(drawn):
    shapes, counts, call = drawn
    size = min(len(shapes), len(counts))
    return np.array(shapes[:size]), np.array(counts[:size]), call


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


def plainly(shapes, counts, call):
    """The same greedy joining, every union anew."""
    parts = [[c] for c in range(len(counts))]
    while len(parts) > 1:
        pairs = [(a, b) for a in parts for b in parts if a is not b]
        one, other = min(pairs, key=lambda p: gain(p, shapes, counts))
        if gain((one, other), shapes, counts) > call:
            break
        parts = [p for p in parts if p is not one and p is not other] + [one + other]
    return parts


def gain(pair, shapes, counts):
    one, other = pair
    return cost([one + other], shapes, counts, 0.0) - cost(pair, shapes, counts, 0.0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(classes(14))
def test_the_cheapest_union_comes_first(drawn):
    shapes, counts, call = drawn
    found = batches(shapes, counts, call)
    assert sorted(c for batch in found for c in batch) == list(range(len(counts)))
    # Where several unions are equally cheap, the one that comes first decides what follows.
    expected = cost(plainly(shapes, counts, call), shapes, counts, call)
    assert cost(found, shapes, counts, call) == pytest.approx(expected, rel=0.1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(classes(6))
def test_nearly_as_cheap_as_the_best_partition_of_six_classes(drawn):
    shapes, counts, call = drawn
    best = min(cost(p, shapes, counts, call) for p in partitions(len(counts)))
    assert cost(batches(shapes, counts, call), shapes, counts, call) <= 2.0 * best


@pytest.mark.parametrize(("call", "expected"), [(0.0, 3), (math.inf, 1)])
def test_free_and_unaffordable_calls(call, expected):
    assert len(batches(np.array([[4, 2], [6, 2], [4, 0]]), np.array([7, 1, 1]), call)) == expected


def test_a_root_is_not_padded_to_the_boundaries_of_others():
    """Many pivots and no boundary, few pivots and a wide one: together they would be both."""
    shapes, counts = np.array([[40, 0], [38, 0], [4, 30]]), np.array([100, 100, 100])
    assert sorted(batches(shapes, counts, 2e6)) == [[0, 1], [2]]


def test_joining_makes_nothing_too_wide():
    shapes, counts = np.array([[7, 1], [6, 2], [5, 2]]), np.array([1, 1, 1])
    assert batches(shapes, counts, math.inf, widest=8) == [[0], [1, 2]]
