"""What NumPy's part of the arithmetic adds to NumPy."""

import numpy as np
import pytest


def test_singular_systems_are_not_a_number():
    """One bad system leaves the others of its batch alone."""
    from hogwild_node.ops import NUMPY

    a = np.stack([np.eye(2), np.zeros((2, 2))])
    x = NUMPY.solve(a, np.ones((2, 2, 1)))
    assert np.array_equal(x[0], np.ones((2, 1)))
    assert np.isnan(x[1]).all()
    assert np.isnan(NUMPY.inverse(a)[1]).all()


def test_an_unknown_library_is_named():
    from hogwild_node import namespace

    with pytest.raises(TypeError, match="a list was given; expected an array"):
        namespace([1.0])
