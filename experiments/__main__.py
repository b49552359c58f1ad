"""Regenerate the paper's tables and figures. Run this in the root of the repository.

An experiment is a set of cells, such as chains/energy-edge. Each cell is computed by itself and
kept as one record, RESULTS/EXPERIMENT/CELL.json: the numbers of all replicas, the configuration,
the command, the commit and the hardware. --resume keeps the cells that have a record, and continues
a cell that was killed while training. Several commands with different --only may run at a time,
which fills a GPU better than one does. Tables 2 and 6 run the models of the other tables
asynchronously, and the figures beyond Figure 1 use the models of Table 1; both train the models
first if WORK does not hold them. "free" trains soft energies and PyG's layers in a loop of its own.

--quick trains a few small models, as a test of the whole mechanism (under half an hour for a table
on two cores). Its results go to RESULTS/quick. Do not compare them with the paper's. Benchmark sets
are read from $HOGWILD_DATA. Cells whose data are not available are skipped, with the reason.

--trial NAME tries other options than the protocol's: --set KEY=VALUE, as in "hogwild train --help".
Its records are kept in RESULTS/trials/NAME. The report lists the options that each trial changed
and the metric on validation graphs, so that readers can check why an option was chosen.

"python -m experiments report" trains nothing: it writes all records beside the paper's numbers into
RESULTS/../README.md. With --results experiments/results it writes the records of the repository
into the documents of the repository.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.cli import execute
from hogwild.cli.common import Outcome
from hogwild.cli.options import JSON, Option, Options, Verb, argument, pairs
from hogwild.errors import ConfigError, DataError

if TYPE_CHECKING:
    from experiments.experiment import Experiment, Results, Summary, Work

EXAMPLES = """\
  python -m experiments table1 --quick
  python -m experiments table1 --list
  python -m experiments table1 --only 'chains/*' --device cuda --resume
  python -m experiments table1 table3 --recipe paper --replicas 10
  python -m experiments table1 --only counting/gcn --trial rate --set lr=0.003 --set validation=true
  python -m experiments report"""

EXPERIMENTS = (
    "table1", "table2", "table3", "table4", "table5", "table6", "fig1", "depth", "convergence",
    "size", "staleness", "cost", "free",
)  # fmt: skip
"""Names for the help, which must not wait for torch. A test compares them with the registry."""


def run(options: Options) -> Outcome:
    """Compute cells, list them, or write the report."""
    given = argparse.Namespace(**options.as_dict())
    given.results, given.work, given.only = Path(given.results), Path(given.work), list(given.only)
    from experiments import experiment as mechanism
    from experiments import report
    from experiments.experiment import Results, Work
    from experiments.registry import experiment

    names = list(dict.fromkeys(given.experiments))
    if names == ["report"]:
        path = str(report.write(given.results))
        return Outcome(path, {"report": path})
    if "report" in names:
        raise ConfigError("report was asked for along with experiments; expected it by itself")
    chosen = [experiment(name) for name in names]
    if given.quick:
        given.results, given.work = given.results / "quick", given.work / "quick"
    changes = pairs(given.set, "--set")
    if (given.trial is None) != (not changes):
        raise ConfigError(
            f"--trial {given.trial} and --set {given.set} were given; expected both or neither: a "
            f"trial has a name and the options it changes"
        )
    if given.trial is not None:
        given.results, given.work = (
            folder / "trials" / given.trial for folder in (given.results, given.work)
        )
    results = Results(given.results)
    work = Work(
        folder=given.work,
        device=given.device,
        recipe=given.recipe,
        quick=given.quick,
        replicas=given.replicas,
        resume=given.resume,
        progress=not given.json and sys.stderr.isatty(),
        trial=given.trial,
        changes=changes,
    )
    if given.list:
        return _listed(chosen, given.only, results, work)
    for each in chosen:
        each.select(given.only)  # refuse a pattern that matches no cell, before all work
    data: dict[str, Any] = {}
    texts, good, absent = [], True, []
    for each in chosen:
        try:
            done = mechanism.run(each, work, results, given.only, _say)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; the same command with --resume keeps the cells that are done, and "
                "goes on from the last checkpoint of the one that is not, if there is one yet"
            ) from None
        except DataError as error:
            absent.append(error)
            texts.append(f"{each.name}: SKIPPED: {error}\n")
            data[each.name] = {"cells": {}, "skipped": str(error), "failed": {}}
            continue
        records = results.read(each, work.suffix)
        texts.append(f"{each.name}: {each.title}\n\n{each.table(records)}{_footer(done)}")
        data[each.name] = {"cells": records, "skipped": done.skipped, "failed": done.failed}
        good &= not done.failed
    if len(absent) == len(chosen):
        raise absent[0]
    return Outcome("\n".join(texts).rstrip(), data, good)


COMMAND = Verb(
    f"{__doc__}\nExamples:\n{EXAMPLES}",
    [
        JSON,
        argument("experiments", ", ".join(EXPERIMENTS) + ", or report", nargs="+"),
        Option(
            "only", "tuple[str, ...]", (), "cells, or patterns such as 'chains/*'; default: all",
            nargs="+", metavar="CELL",
        ),
        Option("list", "bool", False, "name the cells, compute nothing"),
        Option("quick", "bool", False, "less of everything"),
        Option("recipe", "str", "default", "default, or paper: the paper's optimiser and solver"),
        Option("replicas", "int | None", None, "folds times seeds; default: the protocol's"),
        Option("device", "str", "cpu", "of training"),
        Option(
            "trial", "str | None", None, "try other options, and keep the records", metavar="NAME"
        ),
        Option("set", "tuple[str, ...]", (), "an option that the trial changes", metavar="K=V"),
        Option("resume", "bool", False, "keep what is there, and compute the rest"),
        Option(
            "results", "str", "runs/experiments/results", "where cells are kept", metavar="DIR"
        ),
        Option(
            "work", "str", "runs/experiments", "trained models and checkpoints", metavar="DIR"
        ),
    ],
    run,
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if words is None else words
    return execute(COMMAND, words, "python -m experiments", "experiments")


def _listed(chosen: list[Experiment], only: list[str], results: Results, work: Work) -> Outcome:
    """Every selected cell, and whether it has a record."""
    lines, data = [], {}
    for each in chosen:
        records = results.read(each, work.suffix)
        cells = {name: name in records for name in each.select(only)}
        data[each.name] = cells
        lines.append(f"{each.name}: {each.title} ({sum(cells.values())} of {len(cells)} there)")
        for name, there in cells.items():
            lines.append(f"  {name:32s} {each.brief(records[name]) if there else 'not run'}")
    return Outcome("\n".join(lines), data)


def _footer(done: Summary) -> str:
    columns = {name.partition("/")[0]: why for name, why in done.skipped.items()}
    lines = [f"SKIPPED {column}: {why}" for column, why in columns.items()]
    lines += [f"FAILED {name}: {why}" for name, why in done.failed.items()]
    return "".join(f"\n{line}" for line in lines) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
