"""The paper's numbers agree with each other."""

import pytest

from experiments.paper import COLUMNS, IMPLICIT, LABELS, TABLES, Number
from hogwild.tasks import TASKS

SYNCHRONOUS = [n for n in TABLES if n not in ("table2", "table6")]


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_complete(name):
    table = TABLES[name]
    for model, row in table.rows.items():
        assert model in LABELS
        assert tuple(row) == table.columns
    for quoted in table.quoted:
        assert tuple(quoted.cells) == table.columns


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_bold_is_the_best_of_the_column(name):
    """What the paper prints in bold is the best mean of its own rows, ties included."""
    table = TABLES[name]
    for column in table.columns:
        _, best = table.best(column)
        ties = {(m, column) for m, row in table.rows.items() if row[column].mean == best.mean}
        assert {cell for cell in table.bold if cell[1] == column} == ties


def test_columns_are_tasks():
    for name, column in COLUMNS.items():
        assert TASKS[name].higher_is_better is column.higher_is_better


def test_constant_predictors_bound_what_was_learned():
    """Chains: a GCN of five layers hears 6 of 100 nodes. Sums: nobody is worse than a constant."""
    rows = TABLES["table1"].rows
    assert {rows[m]["chains"].mean for m in ("gcn", "gat")} == {100 * (1 - 0.06) / 2}
    assert all(row["sums"].mean < 14.2 for row in rows.values())


def test_asynchrony_costs_explicit_models_only():
    for name in ("table2", "table6"):
        for model, row in TABLES[name].rows.items():
            assert all(n.below is (model in IMPLICIT) for n in row.values())
            assert all(n.mean > 0 for n in row.values())


def test_the_text_and_the_tables_of_the_paper_agree():
    """Section 5 and the appendix: edge-wise beats node-wise everywhere; attention wins AP."""
    rows = TABLES["table1"].rows
    for column in TABLES["table1"].columns:
        assert rows["energy-edge"][column].mean < rows["energy-node"][column].mean
        assert rows["energy-node"][column].mean < rows["ignn"][column].mean
        assert rows["energy-node"][column].mean < rows["gsdgnn"][column].mean
    assert TABLES["table5"].best("peptides-func")[0] == "energy-attention"


def test_numbers_print_as_printed():
    assert Number(0.25, 0.5).show(1) == "0.25 ± 0.5"
    assert Number(47.0, 0.0).show(1) == "47.0 ± 0.0"
    assert Number(0.381).show(3) == "0.381"
    assert Number(0.1, below=True).show(1) == "< 0.1"
