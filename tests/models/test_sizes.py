"""The table of sizes in the documentation is the truth."""

import re
from pathlib import Path

import pytest

import hogwild

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = re.findall(r"^\| `(.+?)` \| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)


def test_the_table_is_there():
    assert len(ROWS) >= 9


@pytest.mark.parametrize(("code", "count"), ROWS)
def test_size(code, count):
    model = eval(code, {name: getattr(hogwild, name) for name in hogwild.__all__})
    assert sum(p.numel() for p in model.parameters()) == int(count.replace(",", ""))
