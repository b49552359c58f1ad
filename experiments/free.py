r"""Free size: what energy GNNs of other sizes than the paper's achieve.

Every task trains a few sizes of the energy GNN that does best there in the paper. A size is the
width of embeddings, messages and networks, and the number of rounds of messages inside the one
energy. Training follows the task's protocol, with one more fold held out for validation where no
split was published. On Peptides-func and PROTEINS sizes larger than the paper's have fewer epochs.
Parameters are those of the epoch with the best validation metric, and the shown size is the one
with the best mean validation metric: nothing is chosen on test graphs. (A fold that validates one
replica tests another. The choice *of the size* has therefore seen every graph, as in every
cross-validation without an inner one.)

Published accuracies on MUTAG and PROTEINS choose the epoch on the test fold. For comparison, and
marked, the test metric of every replica r in fold f(r) is kept whenever parameters are judged, and

.. math::
    \text{each fold's best epoch:}\ \operatorname{mean}_f \operatorname{mean}_{r: f(r) = f}
    \max_t a_r(t), \qquad
    \text{a common one:}\ \max_t \operatorname{mean}_f \operatorname{mean}_{r: f(r) = f} a_r(t).

The program published with MGNNI computes the first (over 200 epochs, trained on nine folds; here
parameters are judged less often and trained on eight folds). Xu et al. (2019) describe the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import markdown, paper
from experiments.experiment import Cell, Experiment, Work
from experiments.paper import Number, Quoted
from experiments.protocols import protocol
from experiments.record import Record
from experiments.tables import idle, measured
from hogwild.training import Config, Loop
from hogwild.training.log import Log, read

COLUMNS = {
    "mutag": "energy-edge",
    "proteins": "energy-edge",
    "peptides-func": "energy-attention",
    "coordinates": "energy-attention",
    "terrain": "energy-edge",
}
"""Tasks, and the model that is best on each in the paper."""
_WIDE = {"hidden_channels": 8, "message_channels": 4, "widths": [16, 16], "readout": [32, 32]}
SIZES: dict[str, dict[str, Any]] = {
    "small": {},  # the paper's
    "small-2": {"rounds": 2},  # needs two hops: cannot run asynchronously
    "wide": _WIDE,
    "wide-2": _WIDE | {"rounds": 2},
    "large": {
        "hidden_channels": 16,
        "message_channels": 8,
        "widths": [32, 32],
        "readout": [64, 64],
    },
}
"""Options of the model, the smallest first."""
OPTIONS: dict[str, dict[str, Any]] = {"mutag": {"bonds": True}}
"""Options of tasks beside the protocol's: MUTAG has its kinds of bonds as edge features."""
SPLIT = ("peptides-func",)
"""Tasks with a published split into training, validation and test graphs."""
LOOKS = 50
"""Approximate largest number of epochs that are judged."""
FEWER = 10
"""``--quick`` divides its number of epochs by this: models are larger here."""


class Free(Experiment):
    """Sizes × tasks."""

    name = "free"
    title = "energy GNNs of any size"

    def cells(self) -> dict[str, Cell]:
        return {
            f"{c}/{size}": partial(raced, column=c, size=size) for c in COLUMNS for size in SIZES
        }

    def brief(self, record: Record) -> str:
        column = paper.COLUMNS[record["cell"].partition("/")[0]]
        validation, test = (_shown(record[k], column) for k in ("validation", "values"))
        return (
            f"{test}{column.unit} ({validation} on validation), {record['parameters']} parameters"
        )

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        def column(record: Record) -> paper.Column:
            return paper.COLUMNS[record["cell"].partition("/")[0]]

        return {
            "test": lambda record: _shown(record["values"], column(record)),
            "replicas": lambda record: str(len(record["values"])),
            "parameters": lambda record: f"{record['parameters']:,}",
            "best-epoch": lambda record: markdown.show(own_epoch(record), column(record)),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        rows, sizes, lines = [], [], []
        for name in COLUMNS:
            column, best = paper.COLUMNS[name], chosen(records, name)
            heading = column.heading + (", %" if column.unit else "")
            for size in SIZES:
                record = records.get(f"{name}/{size}")
                mark = f"**{size}**" if size == best else size
                cells = [markdown.NOT_RUN] if record is None else _numbers(record, name)
                sizes.append([heading, mark, *cells])
            quoted = [q for q in paper.FREE if name in q.cells]
            printed = "; ".join(_quoted(q, name) for q in quoted) or "—"
            if best is None:
                blank = [""] * (len(NUMBERS) - 1)
                rows.append([heading, "—", markdown.NOT_RUN, *blank, printed])
                continue
            run = sum(f"{name}/{size}" in records for size in SIZES)
            record = records[f"{name}/{best}"]
            rows.append([heading, f"{best} (of {run})", *_numbers(record, name), printed])
            lines += [_verdict(record, q, name) for q in quoted]
        out = markdown.table(["task", "size", *NUMBERS, "published"], rows)
        out += "\n\\* chosen by looking at test graphs: not what to expect of new ones.\n"
        if any(record["quick"] for record in records.values()):
            out += "\nQUICK runs: small tasks, few epochs; not to be compared.\n"
        else:
            out += "".join(f"\n- {line}" for line in lines) + ("\n" if lines else "")
        return out + "\nEvery size; the chosen one in bold.\n\n" + markdown.table(
            ["task", "size", *NUMBERS], sizes
        )  # fmt: skip

    def details(self, records: Mapping[str, Record]) -> str:
        head = ("cell", "model", "options", "replicas", "failed", "no better than a constant")
        rows = []
        for name in self.cells():
            column, _, size = name.partition("/")
            options = ", ".join(f"{k}={v}" for k, v in SIZES[size].items()) or "the paper's"
            record = records.get(name)
            if record is None:
                rows.append([name, COLUMNS[column], options, markdown.NOT_RUN])
                continue
            counts = (record["values"], record["failed"], idle(record))
            rows.append(
                [
                    name,
                    COLUMNS[column],
                    options,
                    *(str(len(some)) for some in counts),
                    *markdown.origin(record),
                ]
            )
        return markdown.table([*head, *markdown.ORIGIN], rows)


# -- a cell ----------------------------------------------------------------------------------------


def config(work: Work, column: str, size: str) -> Config:
    """How a size is trained: by the column's protocol, which also covers sizes larger than the
    paper's, except for the held-out fold."""
    plain = work.config(column, COLUMNS[column])
    if SIZES[size] and not work.quick and work.recipe == "default":
        plain = replace(plain, **protocol(column, work.protocols).grown)
    epochs = max(1, plain.epochs // FEWER) if work.quick else plain.epochs
    found = replace(
        plain,
        epochs=epochs,
        model_options={**plain.model_options, **SIZES[size]},
        task_options={**plain.task_options, **OPTIONS.get(column, {})},
    )
    if column in SPLIT:
        return found
    return replace(found, validation=True, validate_every=max(1, epochs // LOOKS))


def raced(work: Work, *, column: str, size: str) -> Record:
    """One trained size, with the test metric [T, R] at every epoch that was judged, where no split
    was published. With a published split the paper's size is the training of its table and is not
    trained again (except with ``--quick``, where epochs differ)."""
    wanted, model = config(work, column, size), COLUMNS[column]
    same = wanted == work.config(column, model)
    folder = work.training(column, model if same else f"free-{size}")
    result = (
        work.fit(wanted, folder) if column in SPLIT else work.fit(wanted, folder, Curve(folder))
    )
    members = result.members
    lines = read(Curve.path(folder))
    curve = {"epoch": [x["epoch"] for x in lines], "test": [x["test"] for x in lines]}
    return {**measured(result), "folds": members.folds, "curve": curve}


class Curve:
    """Called after every epoch: keeps the test metric of the parameters that are judged.

    The line of an epoch is written before the checkpoint of the epoch. When a killed training
    continues, lines after its checkpoint are removed and written again.
    """

    def __init__(self, folder: Path) -> None:
        self.log = Log(self.path(folder))
        self.begun = False

    @staticmethod
    def path(folder: Path) -> Path:
        """The file of the curve, beside the history of a training."""
        return folder / "test.jsonl"

    def __call__(self, loop: Loop) -> None:
        every = loop.validate_every
        if not self.begun:  # also drop the unjudged last line of a shorter training
            self.log.rewind((loop.epoch - 1) // every * every + 1)
            self.begun = True
        if loop.epoch % every == 0:
            [(_, test)] = loop.judge(loop.members.test)
        elif loop.epoch == loop.config.epochs:  # a longer training would not judge here
            [(_, test)] = loop.look(loop.members.test)
        else:
            return
        self.log.write({"epoch": loop.epoch, "test": test.tolist()})


# -- what is chosen --------------------------------------------------------------------------------


def chosen(records: Mapping[str, Record], column: str) -> str | None:
    """The size with the best mean validation metric, the smaller one of equals; ``None``: no size
    was trained."""
    sign = -1.0 if paper.COLUMNS[column].higher_is_better else 1.0
    found = {}
    for size in SIZES:
        record = records.get(f"{column}/{size}")
        number = None if record is None else markdown.summarise(record["validation"])
        if number is not None:
            found[size] = sign * number.mean
    return min(found, key=found.__getitem__, default=None)


def over_folds(values: Sequence[float | None], folds: Sequence[int]) -> Number | None:
    """The mean over the seeds of every fold, [R] → [F], then the mean and the deviation over the
    folds."""
    seeds: dict[int, list[float | None]] = {}
    for value, fold in zip(values, folds, strict=True):
        seeds.setdefault(fold, []).append(value)
    means = [markdown.summarise(some) for some in seeds.values()]
    return markdown.summarise([None if m is None else m.mean for m in means])


def common_epoch(record: Record) -> Number | None:
    """The test metric at the epoch that is best on the mean of the test folds."""
    found = [over_folds(values, record["folds"]) for values in record["curve"]["test"]]
    pick = max if record["higher_is_better"] else min
    return pick((n for n in found if n is not None), key=lambda n: n.mean, default=None)


def own_epoch(record: Record) -> Number | None:
    """The test metric of every replica at the epoch that is best on its own test fold."""
    pick = max if record["higher_is_better"] else min
    curves = zip(*record["curve"]["test"], strict=True)
    best = [pick((v for v in curve if v is not None), default=None) for curve in curves]
    return over_folds(best, record["folds"]) if best else None


# -- how it is shown -------------------------------------------------------------------------------

NUMBERS = ("parameters", "validation", "test", "common best epoch *", "each fold's best epoch *")
"""Headings of :func:`_numbers`."""


def _shown(values: Sequence[float | None], column: paper.Column) -> str:
    return markdown.show(markdown.summarise(values), column)


def _numbers(record: Record, name: str) -> list[str]:
    column = paper.COLUMNS[name]
    out = [str(record["parameters"])]
    out += [_shown(record[key], column) for key in ("validation", "values")]
    if name in SPLIT:
        return [*out, "—", "—"]
    return [*out, *(markdown.show(f(record), column) for f in (common_epoch, own_epoch))]


def _quoted(quoted: Quoted, name: str) -> str:
    number = quoted.cells[name].show(paper.COLUMNS[name].digits)
    return f"{quoted.model} {number}{'' if name in SPLIT else ' *'} ({quoted.source})"


def _verdict(record: Record, quoted: Quoted, name: str) -> str:
    """Whether we reach a published number, under the protocol of its publication."""
    column, number = paper.COLUMNS[name], quoted.cells[name]
    fair = markdown.summarise(record["values"])
    ours, where = (fair, "") if name in SPLIT else (own_epoch(record), " at each fold's best epoch")
    good = ours is not None and not column.better(number.mean, ours.mean * column.scale)
    text = f"{column.heading}: {markdown.show(ours, column)}{column.unit}{where} "
    text += f"**{'reaches' if good else 'misses'}** {number.show(column.digits)}{column.unit} "
    text += f"({quoted.model})"
    return text + (f"; honestly {markdown.show(fair, column)}{column.unit}." if where else ".")
