"""Write the tables of docs/benchmarks.md and the README from the committed results.

``python benchmarks/report.py`` rewrites the text between the markers. ``--check`` only says whether
the text would change. Results are the files that the other benchmarks have written to
benchmarks/results, with one folder per machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hogwild.files import write_atomically

HERE = Path(__file__).parent
DOCUMENTS = (HERE.parent / "docs" / "benchmarks.md", HERE.parent / "README.md")
ORDER = ("chains", "counting", "sums", "coordinates", "rgg")
RIVALS = {
    "eager": "eager recipe",
    "jax": "JAX recipe",
    "jax-converged": "JAX recipe, converged",
}
GOALS = {  # hogwild's goals for the ratios
    "cpu": {"eager": 15.0, "jax": 5.0, "jax-converged": 5.0},
    "h200": {"eager": 20.0, "jax": 10.0, "jax-converged": 5.0},
}
OWN_GOALS = {("h200", "jax", "rgg"): 3.0}  # of single tasks


def load(folder: str) -> list[dict[str, Any]]:
    """All measured cells of a machine, in a fixed order, each with its environment."""
    cells = []
    for path in sorted((HERE / "results" / folder).glob("training_step*.json")):
        run = json.loads(path.read_text())
        cells += [{**cell, "environment": run["environment"]} for cell in run["cells"]]
    return sorted(cells, key=lambda c: (ORDER.index(c["task"]), c["replicas"], -c["epochs"]))


def ratio(cell: dict[str, Any], rival: str) -> float | None:
    """Mean time of a rival divided by hogwild's mean time, on the same snapshots."""
    if rival not in cell["contenders"]:
        return None
    ours, theirs = (statistics.fmean(cell["contenders"][n]["ms"]) for n in ("hogwild", rival))
    return theirs / ours


def times(value: float) -> str:
    return f"{value:.2f}×" if value < 1.0 else f"{value:.1f}×"


def name(cell: dict[str, Any]) -> str:
    return f"{cell['task']} ({cell['size']:,}), {cell['replicas']} replica" + (
        "s" if cell["replicas"] > 1 else ""
    )


def training_step(folder: str) -> str:
    """One line per cell: our time, the rivals' times as multiples of it, residuals and missed
    tolerances."""
    cells = load(folder)
    if not cells:
        return "Not run.\n"
    place = ", ".join(f"{k} {v}" for k, v in cells[0]["environment"].items())
    head = (
        "| cell | epochs | hogwild, ms | "
        + " | ".join(RIVALS.values())
        + " | residual: hogwild | residual: recipe | recipe missed its tolerance "
        "| recipe's ∇θ off by |\n" + "|---" * 10 + "|\n"
    )
    lines = []
    for cell in cells:
        runs = cell["contenders"]
        ours = runs["hogwild"]
        ratios = ("not run" if (r := ratio(cell, rival)) is None else times(r) for rival in RIVALS)
        line = [name(cell), str(cell["epochs"]), f"{statistics.fmean(ours['ms']):.1f}", *ratios]
        line.append(f"{statistics.median(ours['residual_2']):.0e}")
        if recipe := runs.get("jax", runs.get("eager")):
            missed = recipe["missed"]
            line += [
                f"{statistics.median(recipe['residual_2']):.0e}",
                f"{statistics.fmean(missed):.0%} of {len(missed)}",
                f"{statistics.median(recipe['gradient_error']):.0e}",
            ]
        else:
            line += ["not run"] * 3
        lines.append("| " + " | ".join(line) + " |\n")
    return f"Measured with {place}.\n\n" + head + "".join(lines)


def goals(folder: str) -> str:
    """The cells that reach the goals and those that miss them, with their ratios."""
    out = "| rival | goal | reached | missed |\n|---|---|---|---|\n"
    for rival, goal in GOALS[folder].items():
        sides: tuple[list[str], list[str]] = ([], [])
        for cell in load(folder):
            if (found := ratio(cell, rival)) is not None:
                wanted = OWN_GOALS.get((folder, rival, cell["task"]), goal)
                sides[found < wanted].append(f"{cell['task']} {cell['replicas']}: {times(found)}")
        if not any(sides):
            continue  # not measured
        reached, missed = (", ".join(side) or "nowhere" for side in sides)
        own = [(t, g) for (place, r, t), g in OWN_GOALS.items() if (place, r) == (folder, rival)]
        every = ", ".join([f"{goal:.0f}×", *(f"{task} {other:.0f}×" for task, other in own)])
        out += f"| {RIVALS[rival]} | {every} | {reached} | {missed} |\n"
    return out


def written(name: str) -> Callable[[str], str]:
    """The table that a benchmark has written itself, unchanged."""

    def part(folder: str) -> str:
        path = HERE / "results" / folder / f"{name}.md"
        return path.read_text() if path.exists() else "Not run.\n"

    return part


def summary(folder: str) -> str:
    """A few sentences for the README."""
    cells = load(folder)
    if not cells:
        return "Not measured yet.\n"
    place = cells[0]["environment"]
    where = {"cpu": f"{place['threads']} CPU threads"}.get(folder, f"an {place['device']}")

    def span(rival: str, words: str) -> list[str]:
        """A part of the sentence, if the rival was measured."""
        found = [r for c in cells if (r := ratio(c, rival)) is not None]
        ends = list(dict.fromkeys(times(r) for r in (min(found), max(found)))) if found else []
        return [f"{' to '.join(ends)} as long {words}"] if found else []

    parts = [
        *span("eager", "in eager PyTorch"),
        *span("jax", "compiled by JAX (mostly without converging in its 50 iterations)"),
        *span("jax-converged", "compiled by JAX with the iterations that it needs"),
    ]
    number = len({name(c) for c in cells})
    where += f", {number} cells of task and ensemble size"
    return f"On {where}: the recipe takes {', '.join(parts)}.\n"


def epochs(folder: str) -> str:
    """Epochs of energy GNNs in a plain PyG loop, a file of benchmarks/epochs.py for every set."""
    paths = sorted((HERE / "results" / folder).glob("epochs-[A-Z]*.json"))
    if not paths:
        return "Not run.\n"
    runs = [json.loads(path.read_text()) for path in paths]
    cells = [{**cell, "clock": run["clock"]} for run in runs for cell in run["cells"]]
    cells.sort(key=lambda c: (c["set"], c["k"], c["batch"]))  # contenders keep their order
    head = ("set", "k", "batch", "contender", "clock", "first epoch, s", "later epochs, s", "× GCN",
            "× GIN", "iterations, first → last", "test accuracy")  # fmt: skip
    out = f"| {' | '.join(head)} |\n" + "| --- " * len(head) + "|\n"
    for c in cells:
        counts = c["iterations"]
        line = [c["set"], str(c["k"]), str(c["batch"]), c["contender"], c["clock"]]
        line += [f"{c['first']:.3f}", f"{c['later']:.3f}", f"{c['gcn']:.1f}", f"{c['gin']:.1f}"]
        line.append(f"{counts[0]:.1f} → {counts[-1]:.1f}" if counts else "")
        line.append(f"{100 * c['accuracy']:.0f} %")
        out += f"| {' | '.join(line)} |\n"
    place = ", ".join(f"{k} {v}" for k, v in runs[0]["environment"].items())
    return f"Measured with {place}.\n\n{out}"


PARTS: dict[str, Callable[[str], str]] = {
    "training_step": training_step,
    "goals": goals,
    "summary": summary,
    "ensemble": written("ensemble"),
    "memory": written("memory"),
    "ticks": written("ticks"),
    "ticks_one": written("ticks_one"),
    "epochs": epochs,
    "epochs_soft": written("epochs-soft"),
    "baselines": written("baselines"),
    "rules": written("rules"),
    "rules_cycles": written("rules-cycles"),
    "rules_long": written("rules-long"),
    "certificates": written("certificates"),
    "c_agent": written("c_agent"),
    "swarm_start": written("swarm_start"),
    "swarm_turns": written("swarm_turns"),
    "swarm_sizes": written("swarm_sizes"),
    "swarm_faults": written("swarm_faults"),
    "swarm_rules": written("swarm_rules"),
    "swarm_memory": written("swarm_memory"),
    "swarm_balls": written("swarm_balls"),
    "large": written("large"),
    "cluster": written("cluster"),
}


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
            write_atomically(path, new.encode())
    if check and stale:
        sys.exit("the documents do not match benchmarks/results: run python benchmarks/report.py")


if __name__ == "__main__":
    main()
