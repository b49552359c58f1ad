"""The paper's numbers: Tables 1 to 6 of *GNNs Gone Hogwild* (Solodova et al., ICLR 2025), as data.

Errors, accuracies and F1 are in percent; average precision and mean absolute error are plain.
Models and columns have this library's names. Quoted rows (an asterisk in the paper) are from other
work, with many more parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple


class Number(NamedTuple):
    """A cell: mean and standard deviation, or an upper bound where the paper gives only this."""

    mean: float
    deviation: float | None = None
    below: bool = False

    def show(self, digits: int) -> str:
        """The number as printed, with at least this many digits."""
        parts = [p for p in (self.mean, self.deviation) if p is not None]
        return ("< " if self.below else "") + " ± ".join(_decimal(p, digits) for p in parts)


def _decimal(value: float, digits: int) -> str:
    return f"{value:.{max(digits, len(repr(value).partition('.')[2]))}f}"


class Quoted(NamedTuple):
    """A row from other work."""

    model: str
    source: str
    cells: Mapping[str, Number]


@dataclass(frozen=True)
class Column:
    """What a column shows.

    Attributes:
        heading: Name for readers.
        scale: Factor from our metric to the paper's unit.
        digits: Number of digits after the point.
        higher_is_better: Whether higher values are better.
    """

    heading: str
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = False

    @property
    def unit(self) -> str:
        """The unit behind a number."""
        return " %" if self.scale == 100.0 else ""

    def better(self, a: float, b: float) -> bool:
        """Whether a is better than b."""
        return a > b if self.higher_is_better else a < b


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        title: What the table shows.
        columns: Names of tasks.
        rows: Model → column → number.
        bold: (model, column) of the cells set in bold: the best ones.
        quoted: Rows from other work.
        replicas: Number of trainings (Tables 2 and 6: schedules) that a cell averages; ``None``:
            the paper does not say.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Number]]
    bold: frozenset[tuple[str, str]] = frozenset()
    quoted: tuple[Quoted, ...] = field(default=())
    replicas: int | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Rows: the paper's models, then soft energies."""
        return (*self.rows, *SOFT)

    def printed(self, model: str, column: str) -> str:
        """The paper's number, or a dash where the paper does not have this row."""
        if model not in self.rows:
            return "—"
        return self.rows[model][column].show(COLUMNS[column].digits)

    def best(self, column: str) -> tuple[str, Number]:
        """The best model of a column and its number, without quoted rows."""
        sign = -1.0 if COLUMNS[column].higher_is_better else 1.0
        model = min(self.rows, key=lambda m: sign * self.rows[m][column].mean)
        return model, self.rows[model][column]


COLUMNS: dict[str, Column] = {
    "chains": Column("chains"),
    "counting": Column("counting"),
    "sums": Column("sums"),
    "coordinates": Column("coordinates"),
    "terrain": Column("terrain (MNIST)"),
    "mutag": Column("MUTAG", higher_is_better=True),
    "proteins": Column("PROTEINS", higher_is_better=True),
    "ppi": Column("PPI (micro-F1)", higher_is_better=True),
    "peptides-func": Column("Peptides-func (AP)", 1.0, 3, higher_is_better=True),
    "peptides-struct": Column("Peptides-struct (MAE)", 1.0, 3),
}
LABELS = {
    "ignn": "IGNN",
    "gsdgnn": "GSDGNN",
    "energy-node": "energy GNN, node-wise",
    "energy-edge": "energy GNN, edge-wise",
    "energy-attention": "energy GNN + attention",
    "gcn": "GCN",
    "gat": "GAT",
    "max": "MaxGNN",
    "soft": "soft energy",
    "soft-wide": "soft energy, wide",
}
"""Names of the models for readers."""
SOFT = ("soft", "soft-wide")
"""Soft energies of the paper's size and of free size, which the paper does not have."""
IMPLICIT = ("ignn", "gsdgnn", "energy-node", "energy-edge", "energy-attention")
SYNTHETIC = ("chains", "counting", "sums", "coordinates", "terrain")
BENCHMARKS = ("mutag", "proteins", "ppi", "peptides-func", "peptides-struct")


def _row(columns: tuple[str, ...], *cells: tuple[float, ...]) -> dict[str, Number]:
    return {
        c: Number(cell[0], cell[1] if len(cell) > 1 else None)
        for c, cell in zip(columns, cells, strict=True)
    }


def _below(columns: tuple[str, ...], bound: float) -> dict[str, Number]:
    """Losses for which the paper gives only a bound: 0.1 % (Table 6: of the synchronous
    performance)."""
    return {c: Number(bound * COLUMNS[c].scale / 100, below=True) for c in columns}


_TU, _PPI, _LRGB = BENCHMARKS[:2], BENCHMARKS[2:3], BENCHMARKS[3:]
_s, _b, _tu, _ppi, _lrgb = (partial(_row, c) for c in (SYNTHETIC, BENCHMARKS, _TU, _PPI, _LRGB))

TABLES: dict[str, Table] = {
    "table1": Table(
        "Synchronous error on the synthetic tasks",
        SYNTHETIC,
        {
            "ignn": _s((26.9, 13.3), (40.2, 5.5), (12.8, 0.8), (52.0, 5.5), (30.4, 0.7)),
            "gsdgnn": _s((35.9, 6.3), (40.3, 0.6), (13.3, 0.2), (44.0, 1.0), (29.3, 0.6)),
            "energy-node": _s((15.8, 17.9), (19.5, 1.7), (12.2, 0.7), (41.3, 2.4), (13.8, 0.8)),
            "energy-edge": _s((1.2, 2.2), (4.0, 3.6), (4.9, 3.3), (33.5, 3.2), (13.0, 0.6)),
            "energy-attention": _s((0.25, 0.5), (3.6, 3.8), (6.0, 4.0), (30.9, 1.8), (13.8, 0.8)),
            "gcn": _s((47.0, 0.0), (40.7, 1.0), (13.1, 0.3), (53.2, 0.9), (29.7, 0.5)),
            "gat": _s((47.0, 0.0), (41.5, 0.8), (12.9, 0.5), (39.3, 1.0), (15.3, 3.2)),
        },
        frozenset({
            *(("energy-attention", column) for column in ("chains", "counting", "coordinates")),
            ("energy-edge", "sums"), ("energy-edge", "terrain"),
        }),
        replicas=50,
    ),
    "table2": Table(
        "Performance lost by asynchrony on the synthetic tasks",
        SYNTHETIC,
        {
            "gcn": _s((38.8, 3.3), (584.6, 42.4), (2.6, 0.2), (63.4, 0.0), (37.4, 10.3)),
            "gat": _s((6.6, 1.8), (250.3, 58.6), (45.1, 2.1), (97.0, 34.4), (50.4, 3.5)),
            **{model: _below(SYNTHETIC, 0.1) for model in IMPLICIT},
        },
        replicas=5,
    ),
    "table3": Table(
        "Accuracy of graph classification",
        _TU,
        {
            "energy-edge": _tu((87.6, 3.4), (72.5, 0.3)),
            "energy-attention": _tu((79.5, 1.8), (72.5, 0.5)),
            "ignn": _tu((73.0, 0.6), (71.8, 1.3)),
            "gsdgnn": _tu((78.4, 2.2), (72.8, 0.8)),
            "gcn": _tu((78.0, 1.4), (73.7, 0.5)),
            "gat": _tu((76.1, 1.5), (71.7, 3.2)),
        },
        frozenset({("energy-edge", "mutag"), ("gcn", "proteins")}),
        (
            Quoted("GCN, 5 layers, width 64", "Xu et al., 2019", _tu((85.6, 5.8), (76.0, 3.2))),
            Quoted("IGNN, 3 layers, width 32", "Gu et al., 2020", _tu((89.3, 6.7), (77.7, 3.4))),
            Quoted("GIN, 5 layers, width 64", "Xu et al., 2019", _tu((89.4, 5.6), (76.2, 1.9))),
        ),
        replicas=50,
    ),
    "table4": Table(
        "Micro-F1 of node classification on PPI",
        _PPI,
        {
            "energy-edge": _ppi((76.2,)),
            "energy-attention": _ppi((76.0,)),
            "ignn": _ppi((75.5,)),
            "gsdgnn": _ppi((76.0,)),
            "gat": _ppi((74.3,)),
            "gcn": _ppi((76.2,)),
        },
        frozenset({("energy-edge", "ppi"), ("gcn", "ppi")}),
        (
            Quoted("MLP", "Gu et al., 2020", _ppi((46.2,))),
            Quoted("GCN", "Gu et al., 2020", _ppi((59.2,))),
            Quoted("GraphSAGE, widths 512, 512, 726", "Veličković et al., 2018", _ppi((76.8,))),
            Quoted("GAT, 3 layers, width 1024", "Veličković et al., 2018", _ppi((97.3,))),
            Quoted("IGNN, widths 1024, 512, 512, 256, 121", "Gu et al., 2020", _ppi((97.6,))),
        ),
    ),
    "table5": Table(
        "The Long Range Graph Benchmark's peptides",
        _LRGB,
        {
            "energy-edge": _lrgb((0.348,), (0.367,)),
            "energy-attention": _lrgb((0.381,), (0.402,)),
            "ignn": _lrgb((0.211,), (0.426,)),
            "gsdgnn": _lrgb((0.343,), (0.375,)),
            "gcn": _lrgb((0.362,), (0.366,)),
            "gat": _lrgb((0.355,), (0.335,)),
        },
        frozenset({("energy-attention", "peptides-func"), ("gat", "peptides-struct")}),
    ),
    "table6": Table(
        "Performance lost by asynchrony on the benchmark sets",
        BENCHMARKS,
        {
            "gcn": _b((16.0, 10.2), (24.0, 4.9), (25.1, 9.5), (0.194, 0.085), (0.734, 0.041)),
            "gat": _b((28.0, 11.7), (40.0, 5.8), (29.4, 12.3), (0.494, 0.031), (0.335, 0.115)),
            **{m: _below(BENCHMARKS, 0.1) for m in IMPLICIT if m != "energy-node"},
        },
        replicas=5,
    ),
}  # fmt: skip
