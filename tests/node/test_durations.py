"""Times as people write them."""

import pytest

from hogwild_node.errors import SetupError
from hogwild_node.options import interval


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("20ms", (0.02, 0.02)), ("0.02", (0.02, 0.02)), ("15ms,25ms", (0.015, 0.025)), (0, (0, 0)),
        ([0.015, 0.025], (0.015, 0.025)), ("1s", (1.0, 1.0)), ("500us, 2ms", (0.0005, 0.002)),
    ],
)  # fmt: skip
def test_times(given, expected):
    assert interval(given) == pytest.approx(expected)


@pytest.mark.parametrize(
    "given", ["", "20 parsecs", "25ms,15ms", "1,2,3", "-1", "nan", None, [], "1.2.3"]
)
def test_other_things_are_refused(given):
    with pytest.raises(SetupError, match="expected a time such as 20ms"):
        interval(given)
