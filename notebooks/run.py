"""Execute notebooks and keep their outputs: ``python notebooks/run.py [NOTEBOOK …]``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
QUIET = "import warnings\nwarnings.filterwarnings('ignore', 'IProgress not found')  # of tqdm"


def executed(path: Path) -> Any:
    """The notebook with the outputs of all cells; an error in a cell is raised."""
    book = nbformat.read(path, 4)
    hidden = nbformat.v4.new_code_cell(QUIET)
    book.cells.insert(0, hidden)  # not part of the notebook
    NotebookClient(book, timeout=600, kernel_name="python3").execute()
    book.cells.remove(hidden)
    for number, cell in enumerate((c for c in book.cells if c.cell_type == "code"), 1):
        cell.execution_count, cell.metadata = number, {}
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = number
    return book


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(HERE.glob("*.ipynb")))
    for path in parser.parse_args().notebooks:
        nbformat.write(executed(path), path)
        print(path)


if __name__ == "__main__":
    main()
