"""The notebooks run, and what they show is there."""

import importlib.util
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_four():
    assert [book.stem for book in BOOKS] == ["graphsage", "motes", "moving_swarm", "quick_start"]


@pytest.mark.slow
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_notebook(book):
    pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not executed")
    if book.stem == "motes" and not os.environ.get("HOGWILD_DATA"):
        pytest.skip("HOGWILD_DATA is not set: the positions of the motes are not at hand")
    spec = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = [
        output
        for cell in module.executed(book).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(shown) == 1
