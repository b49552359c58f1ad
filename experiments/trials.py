"""Trials of other options than a protocol's, with their records.

``python -m experiments table1 --only counting/gcn --trial rate --set lr=0.003`` keeps its record in
``RESULTS/trials/rate/table1/counting/gcn.json``. The report shows the metric on validation graphs,
by which an option may be chosen. Test graphs appear in the tables only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments import markdown
from experiments.record import Record, read

if TYPE_CHECKING:
    from experiments.experiment import Results

NAME = "trials"
"""Name of the folder of trials, and of their mark in the report."""


def records(results: Results) -> Iterator[Record]:
    """All trials, by name."""
    for path in sorted((results.folder / NAME).glob("*/**/*.json")):
        yield read(path, "trial", "changes", "cell", "command", "seconds", "commit", "hardware")


def table(results: Results) -> str:
    """One line for every cell of every trial."""
    rows = []
    for record in records(results):
        changes = ", ".join(f"{key}={value}" for key, value in record["changes"].items())
        values = record.get("validation") or []
        found = markdown.summarise(values)
        shown = "no validation graphs"
        if found is not None:
            parts = (p for p in (found.mean, found.deviation) if p is not None)
            shown = " ± ".join(f"{p:.4g}" for p in parts)
        rows.append(
            [record["trial"], f"{record['experiment']} {record['cell']}", changes, shown,
             str(len(record.get("values", []))), *markdown.origin(record)]
        )  # fmt: skip
    if not rows:
        return "No trial is kept yet.\n"
    head = ("trial", "cell", "changed", "validation", "replicas")
    return markdown.table([*head, *markdown.ORIGIN], rows)
