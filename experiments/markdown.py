"""Markdown tables and their statistics."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from experiments.paper import Column, Number
from experiments.record import Record, same_commit, stretches, uncommitted

NOT_RUN = "not run"
UNCOMMITTED = "‡"
"""The mark behind numbers of uncommitted code."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of rows; missing cells at the end of a row are empty."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join([*line, *[""] * (len(head) - len(line))]) + " |\n" for line in lines
    )


def summarise(values: Sequence[float | None]) -> Number | None:
    """Mean and sample deviation of *all* values that are numbers; ``None`` if there is none."""
    numbers = [v for v in values if v is not None]
    if not numbers:
        return None
    return Number(
        statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None
    )


def show(number: Number | None, column: Column) -> str:
    """One of our numbers in the column's unit, rounded as in the paper."""
    if number is None:
        return "no value"
    parts = [p * column.scale for p in (number.mean, number.deviation) if p is not None]
    return " ± ".join(f"{p:.{column.digits}f}" for p in parts)


def duration(seconds: float) -> str:
    """Seconds as text for readers."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def origin(record: Record) -> list[str]:
    """Time, hardware, commit and command: the last cells of a row about a record.

    For a training that continued elsewhere or with other code: all machines, with the time spent on
    each, and all commits, in order.
    """
    places: list[tuple[str, float]] = []
    commits: list[str] = []
    for stretch in stretches(record):
        where, seconds = place(stretch["hardware"]), stretch["seconds"]
        if places and places[-1][0] == where:
            seconds += places.pop()[1]
        places.append((where, seconds))
        commit = stretch["commit"]
        if commits and same_commit(commits[-1], commit):
            commit = max(commits.pop(), commit, key=len)
        commits.append(commit)
    hardware = places[0][0]
    if len(places) > 1:
        hardware = ", then ".join(f"{where} ({duration(seconds)})" for where, seconds in places)
    return [
        duration(record["seconds"]),
        hardware,
        ", ".join(_commit(commit) for commit in commits) + sign(record),
        f"`{record['command']}`",
    ]


def sign(record: Record) -> str:
    """The mark behind a number of this record: empty, or the mark of uncommitted code."""
    return f" {UNCOMMITTED}" if uncommitted(record) else ""


def uncommitted_note(records: Mapping[str, Record]) -> str:
    """The meaning of the mark, with the cells that have it; empty where no cell has it."""
    cells = [name for name, record in records.items() if uncommitted(record)]
    if not cells:
        return ""
    return f"{UNCOMMITTED} trained or run with uncommitted changes of the code: {', '.join(cells)}."


def place(hardware: Record) -> str:
    """The name of a machine for readers."""
    device, threads = hardware["device"], hardware["threads"]
    if "NVIDIA" in device:
        return str(device)
    return f"{device}, {threads} thread{'s' if threads > 1 else ''}"


def _commit(commit: str) -> str:
    commit, _, changes = commit.partition("+")
    return f"`{commit[:12]}`" + (f" + {changes}" if changes else "")


ORIGIN = ("time", "hardware", "commit", "command")
"""Headings of :func:`origin`."""


def folded(title: str, body: str) -> str:
    """A part of the page that opens on a click."""
    return f"<details><summary>{title}</summary>\n\n{body}\n</details>\n"
