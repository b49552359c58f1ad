"""The document of all experiments, from their records: the paper's numbers beside ours.

``python -m experiments report --results experiments/results`` rewrites the text between ``<!-- NAME
-->`` and ``<!-- end -->`` in ``experiments/README.md``. The prose around it is written by hand. The
README of the project has Table 1 (``<!-- headline -->``). ``docs/results.md`` has single numbers,
``<!--= EXPERIMENT[@TRIAL] CELL [ASPECT] -->…<!--/-->``, and pictures. For any other folder of
results the report is a document beside the folder, and no other file changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from experiments import markdown, paper, trials
from experiments.experiment import SUFFIXES, Experiment, Results
from experiments.record import Record
from experiments.registry import EXPERIMENTS
from experiments.tables import Synchronous
from hogwild.errors import ConfigError, among
from hogwild.files import write_atomically

MARK = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def part(experiment: Experiment, results: Results) -> str:
    """Everything about one experiment: our recipe, then the other recipes that were used."""
    out = ""
    for recipe, suffix in SUFFIXES.items():
        records = results.read(experiment, suffix)
        if recipe != "default":
            if not records:
                continue
            out += f"\n**With `--recipe {recipe}`**\n\n"
        if any(record["quick"] for record in records.values()):
            raise ConfigError(
                f"{results.folder / experiment.name} holds quick runs, which are not to be "
                f"compared with the paper; expected them in {results.folder / 'quick'}"
            )
        picture = results.folder / experiment.name / f"{experiment.name}{suffix}.png"
        if picture.exists():
            place = picture.relative_to(results.folder.parent).as_posix()
            out += f"![{experiment.title}]({place})\n\n"
        out += experiment.table(records)
        if note := markdown.uncommitted_note(records):
            out += f"\n{note}\n"
        out += "\n" + markdown.folded("every cell", experiment.details(records))
    return out


def render(text: str, results: Results) -> str:
    """Fill every pair of marks; each experiment has one.

    Raises:
        ConfigError: A mark names no experiment, or an experiment has no mark.
    """
    found = MARK.findall(text)
    for name in found:
        if name not in EXPERIMENTS and name != trials.NAME:
            raise ConfigError(f"the mark <!-- {name} --> names no experiment; "
                              f"{among(EXPERIMENTS, name)}")  # fmt: skip
    for name in EXPERIMENTS:
        if name not in found:
            raise ConfigError(
                f"the document has no <!-- {name} --> … <!-- end -->; expected one for every "
                f"experiment"
            )

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        body = trials.table(results) if name == trials.NAME else part(EXPERIMENTS[name], results)
        body = body.strip()
        return f"<!-- {match[1]} -->\n\n{body}\n\n<!-- end -->"

    return MARK.sub(fill, text)


NUMBER = re.compile(r"<!--=\s+([\w@-]+)\s+(\S+)(?:\s+([\w-]+))?\s+-->.*?<!--/-->", re.DOTALL)
UNCOMMITTED = re.compile(r"<!-- uncommitted -->\n.*?<!-- end -->", re.DOTALL)
PICTURE = re.compile(r"\]\(figures/([\w-]+)\.png\)")


def render_numbers(text: str, results: Results) -> str:
    """Fill every single number. ``CELL`` with ``.paper`` behind it means that recipe, and
    ``EXPERIMENT@TRIAL`` the record of a trial. With an :meth:`aspect <Experiment.aspects>` it is
    another value of the cell.

    A number of a record whose code was not committed has a mark behind it. The mark is explained
    between ``<!-- uncommitted -->`` and ``<!-- end -->``.

    Raises:
        ConfigError: There is no such experiment, cell or aspect, or no place for that explanation.
    """
    marked: dict[str, Record] = {}

    def fill(match: re.Match[str]) -> str:
        where, cell, aspect = match.groups()
        name, at, trial = where.partition("@")
        if name not in EXPERIMENTS:
            raise ConfigError(f"{match[0]!r} names no experiment; {among(EXPERIMENTS, name)}")
        source = Results(results.folder / trials.NAME / trial) if at else results
        experiment, (plain, dot, recipe) = EXPERIMENTS[name], cell.partition(".")
        if plain not in experiment.cells():
            raise ConfigError(f"{match[0]!r} names no cell; {among(experiment.cells(), plain)}")
        aspects = experiment.aspects()
        if aspect is not None and aspect not in aspects:
            raise ConfigError(f"{match[0]!r} names no aspect; {among(aspects, aspect)}")
        record = source.read(experiment, dot + recipe).get(plain)
        show = experiment.number if aspect is None else aspects[aspect]
        try:
            shown = markdown.NOT_RUN if record is None else show(record) + markdown.sign(record)
        except KeyError as error:
            raise ConfigError(
                f"{match[0]!r} asks for {error}, which that record does not have; expected an "
                f"aspect that it has"
            ) from error
        if record is not None:
            marked[f"{where} {cell}"] = record
        return f"<!--= {' '.join(filter(None, match.groups()))} -->{shown}<!--/-->"

    text = NUMBER.sub(fill, text)
    note = markdown.uncommitted_note(marked)
    if note and not UNCOMMITTED.search(text):
        raise ConfigError(
            f"the document has no <!-- uncommitted --> … <!-- end -->; expected one, for: {note}"
        )
    filled = f"<!-- uncommitted -->\n\n{note}\n\n<!-- end -->"
    return UNCOMMITTED.sub(lambda match: filled, text)


HEADLINE = re.compile(r"<!-- headline -->\n.*?<!-- end -->", re.DOTALL)


def headline(results: Results) -> str:
    """Table 1 for the project's README: our numbers, mean ± deviation over all replicas."""
    experiment = EXPERIMENTS["table1"]
    assert isinstance(experiment, Synchronous)
    records = results.read(experiment)
    columns = {c: paper.COLUMNS[c] for c in experiment.paper.columns}
    rows, medians = [], []
    for model in experiment.paper.models:
        row = [paper.LABELS[model]]
        for name, column in columns.items():
            record = records.get(f"{name}/{model}")
            row.append(experiment.ours(record, column))
            if record is not None and skewed(record["values"]):
                row[-1] += " §"
                median = experiment.aspects()["median"](record)
                medians.append(f"{row[0]} on {column.heading} {median}{column.unit}")
        rows.append(row)
    best = [experiment.paper.best(c)[1].show(k.digits) for c, k in columns.items()]
    rows.append(["*the paper's best*", *(f"*{number}*" for number in best)])
    heads = ["model", *(c.heading + (", %" if c.unit else "") for c in columns.values())]
    few = experiment.few if any("†" in cell for row in rows for cell in row) else None
    notes = [*filter(None, [few, markdown.uncommitted_note(records)])]
    if medians:
        notes.append(f"§ a few trainings went astray and move the mean; median: "
                     f"{', '.join(medians)}.")  # fmt: skip
    return markdown.table(heads, rows) + "".join(f"\n{note}\n" for note in notes)


def skewed(values: Sequence[float | None]) -> bool:
    """Whether the mean is misleading: the deviation is more than three times as large."""
    found = markdown.summarise(values)
    return found is not None and found.deviation is not None and found.deviation > 3 * found.mean


def skeleton() -> str:
    """A document with titles and marks only."""
    parts = (f"## {e.title}\n\n<!-- {e.name} -->\n<!-- end -->\n" for e in EXPERIMENTS.values())
    end = f"\n## Trials\n\n<!-- {trials.NAME} -->\n<!-- end -->\n"
    return "# Experiments\n\n" + "\n".join(parts) + end


def write(folder: Path) -> Path:
    """Update or create the document beside a folder of results, and its pictures.

    Raises:
        ConfigError: There are no records, or the document is not a report, and no file has changed;
            or ``docs/results.md`` names a missing value, and the report has been written.
    """
    path, results = folder.parent / "README.md", Results(folder)
    if not any(results.read(e, s) for e in EXPERIMENTS.values() for s in SUFFIXES.values()):
        raise ConfigError(
            f"{folder} holds no records (quick runs, in {folder / 'quick'}, do not count); "
            f"expected some, as made by: python -m experiments table1 --results {folder}"
        )
    text = path.read_text(encoding="utf-8") if path.exists() else skeleton()
    if EXPERIMENTS.keys().isdisjoint(MARK.findall(text)):
        raise ConfigError(
            f"{path} is not a report, for it has no place for any experiment (<!-- table1 --> … "
            f"<!-- end -->), and was left as it is; the report of {folder} would be there: move "
            f"that into a folder of its own, or choose another --results folder"
        )
    render(text, results)  # an error here leaves the pictures unchanged
    for each in EXPERIMENTS.values():
        for suffix in SUFFIXES.values():
            with suppress(ImportError):  # without matplotlib, too
                each.draw(results, suffix)
    write_atomically(path, render(text, results).encode())
    home = folder.resolve().parent.parent
    if folder.resolve() == home / "experiments" / "results":
        write_documents(home, results)
    return path


def write_documents(home: Path, results: Results) -> None:
    """Update the results and pictures in the project's README and ``docs``."""
    front, written = home / "README.md", home / "docs" / "results.md"
    if front.exists() and HEADLINE.search(text := front.read_text(encoding="utf-8")):
        write_atomically(front, render_headline(text, results).encode())
    if written.exists() and NUMBER.search(text := written.read_text(encoding="utf-8")):
        write_atomically(written, render_numbers(text, results).encode())
    for page, name in pictures(home):
        drawn = results.folder / name / f"{name}.png"
        shown = page.parent / "figures" / drawn.name
        if not drawn.exists():
            raise ConfigError(f"{page} shows {shown.name}; expected it as {drawn}")
        shown.parent.mkdir(exist_ok=True)
        write_atomically(shown, drawn.read_bytes())


def pictures(home: Path) -> list[tuple[Path, str]]:
    """Pages of the documentation with the pictures of experiments that they show."""
    pages = sorted((home / "docs").glob("*.md"))
    shown = [(p, name) for p in pages for name in PICTURE.findall(p.read_text(encoding="utf-8"))]
    return [(p, name) for p, name in shown if name in EXPERIMENTS]


def render_headline(text: str, results: Results) -> str:
    """The project's README with Table 1 filled in."""
    filled = f"<!-- headline -->\n\n{headline(results).strip()}\n\n<!-- end -->"
    return HEADLINE.sub(lambda match: filled, text)
