"""Tables of docs/benchmarks.md and the README from the committed results, so that they agree.

``python benchmarks/report.py`` rewrites the text between the markers; ``--check`` only says whether
it would change. Results are JSON files written by training_step.py and scaling.py, in
benchmarks/results, one folder a machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENTS = (HERE.parent / "docs" / "benchmarks.md", HERE.parent / "README.md")
ORDER = ("chains", "counting", "sums", "coordinates", "rgg")


def load(folder: str) -> list[dict[str, Any]]:
    """All measured cells of a machine, in a fixed order, each with its environment."""
    cells = []
    for path in sorted((HERE / "results" / folder).glob("training_step*.json")):
        run = json.loads(path.read_text())
        cells += [{**cell, "environment": run["environment"]} for cell in run["cells"]]
    return sorted(cells, key=lambda c: (ORDER.index(c["task"]), c["replicas"]))


def ratio(cell: dict[str, Any], rival: str) -> str:
    """Mean time of a rival over mean time of hogwild, on the same snapshots."""
    if rival not in cell["contenders"]:
        return "not run"
    ours, theirs = (statistics.fmean(cell["contenders"][n]["ms"]) for n in ("hogwild", rival))
    return f"{theirs / ours:.1f}"


def name(cell: dict[str, Any]) -> str:
    return f"{cell['task']} ({cell['size']:,}), {cell['replicas']} replica" + (
        "s" if cell["replicas"] > 1 else ""
    )


def training_step(folder: str) -> str:
    """One line a cell: our time, the rivals' as multiples of it, and what they left undone."""
    cells = load(folder)
    if not cells:
        return "Not run.\n"
    place = ", ".join(f"{k} {v}" for k, v in cells[0]["environment"].items())
    head = (
        "| cell | hogwild, ms | eager recipe | JAX recipe | JAX recipe, converged | residual: "
        "hogwild | residual: recipe | recipe missed its tolerance | recipe's ∇θ off by |\n"
        + "|---" * 9
        + "|\n"
    )
    lines = []
    for cell in cells:
        runs = cell["contenders"]
        ours = runs["hogwild"]
        recipe = runs.get("jax", runs.get("eager"))
        lines.append(
            f"| {name(cell)} | {statistics.fmean(ours['ms']):.1f} "
            + "".join(f"| {ratio(cell, r)}× " for r in ("eager", "jax", "jax-converged"))
            + f"| {statistics.median(ours['residual_2']):.0e} "
            f"| {statistics.median(recipe['residual_2']):.0e} "
            f"| {statistics.fmean(recipe['missed']):.0%} of {len(recipe['missed'])} "
            f"| {statistics.median(recipe['gradient_error']):.0e} |\n"
        )
    text = f"Measured with {place}.\n\n" + head + "".join(lines)
    return text.replace("not run×", "not run")


def scaling(folder: str) -> str:
    """The table written by scaling.py, as it is."""
    path = HERE / "results" / folder / "scaling.md"
    return path.read_text() if path.exists() else "Not run.\n"


def summary(folder: str) -> str:
    """One sentence for the README."""
    cells = load(folder)
    if not cells:
        return "Not measured yet.\n"

    def values(rival: str) -> list[float]:
        return [float(r) for c in cells if (r := ratio(c, rival)) != "not run"]

    def span(rival: str) -> str:
        return f"{min(values(rival)):.1f} to {max(values(rival)):.1f}"

    return (
        f"A training step (solve, adjoint, parameter gradient) on one CPU thread, over "
        f"{len(cells)} cells of task and ensemble size, with a residual of 1e-8: the paper's "
        f"recipe in eager PyTorch takes {span('eager')} times as long and compiled by JAX "
        f"{span('jax')} times, mostly without converging in its 50 iterations; given the "
        f"iterations it needs, the compiled one takes {span('jax-converged')} times as long "
        f"(measured on {len(values('jax-converged'))} of these cells).\n"
    )


PARTS = {"training_step": training_step, "scaling": scaling, "summary": summary}


def render(text: str) -> str:
    """Fill every ``<!-- PART FOLDER -->`` … ``<!-- end -->`` pair."""

    def fill(match: re.Match[str]) -> str:
        body = PARTS[match[1]](match[2]).strip()
        return f"<!-- {match[1]} {match[2]} -->\n\n{body}\n\n<!-- end -->"

    return re.sub(r"<!-- (\w+) ([\w-]+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    stale = False
    check = parser.parse_args().check
    for path in DOCUMENTS:
        old = path.read_text()
        new = render(old)
        stale |= new != old
        if not check:
            path.write_text(new)
    if check and stale:
        sys.exit("the documents do not match benchmarks/results: run python benchmarks/report.py")


if __name__ == "__main__":
    main()
