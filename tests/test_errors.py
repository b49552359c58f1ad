"""Checks of arguments."""

import numpy as np
import pytest

from hogwild.errors import ConfigError, require_integer, require_positive

INTEGERS = [np.int8, np.int32, np.int64, np.uint16]


@pytest.mark.parametrize("kind", INTEGERS)
def test_checks_return_python_integers(kind):
    for found in (require_positive("n", kind(3)), require_integer("n", kind(3), 0)):
        assert type(found) is int
        assert found == 3
    for bad in (kind(0), np.bool_(True), True, np.float64(2), 2.0, "2"):
        with pytest.raises(ConfigError, match="n="):
            require_positive("n", bad)
