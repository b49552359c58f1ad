"""Values of flags."""

import pytest

from hogwild.cli.values import value


@pytest.mark.parametrize("text", ["(0.9, 500)", "(0.9,500)", "0.9,500", "0.9, 500", "[0.9, 500]"])
def test_lists_as_one_writes_them(text):
    assert value(text) == [0.9, 500]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b", "a,b"), ("(a)", "(a)"), ("4,4", [4, 4]), ("none", None), ("x.py:T", "x.py:T")],
)
def test_values_of_flags(text, expected):
    assert value(text) == expected
