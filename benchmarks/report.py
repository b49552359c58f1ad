"""The sentences about speed in the README, from the records of ``training_step.py``.

``python benchmarks/report.py`` fills in the marks of the README; ``--check`` only says whether the
text would change. Every benchmark writes its own tables, beside its records.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from harness import RESULTS
from training_step import ratio, times

from hogwild.files import write_atomically

README = Path(__file__).parent.parent / "README.md"
WORDS = {
    "jax": "(mostly without converging in its 50 iterations)",
    "jax-converged": "with the iterations that it needs",
}


def summary(folder: str) -> str:
    """A sentence about the records of a machine."""
    record = json.loads((RESULTS / folder / "training_step.json").read_text())
    place, cells = record["environment"], record["cells"]
    where = f"{place['threads']} CPU threads" if folder == "cpu" else f"an {place['device']}"
    parts = []
    for rival, words in WORDS.items():
        found = [r for cell in cells if (r := ratio(cell, rival)) is not None]
        ends = list(dict.fromkeys(times(r) for r in (min(found), max(found)))) if found else []
        parts += [f"{' to '.join(ends)} as long {words}"] if ends else []
    return f"On {where}, {len(cells)} cells: the recipe takes {', '.join(parts)}."


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    old = README.read_text()
    new = re.sub(
        r"<!-- summary (\w+) -->.*?<!-- end -->",
        lambda m: f"<!-- summary {m[1]} -->\n\n{summary(m[1])}\n\n<!-- end -->",
        old,
        flags=re.DOTALL,
    )
    if not flags.parse_args().check:
        write_atomically(README, new.encode())
    elif new != old:
        sys.exit("the README does not match its records: run python benchmarks/report.py")


if __name__ == "__main__":
    main()
