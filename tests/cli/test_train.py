"""``hogwild train`` with tasks of the user's: what is missing or wrong is said in one line."""

from pathlib import Path

import pytest

from hogwild.cli import main
from hogwild.cli.common import value

SOURCE = (Path(__file__).parents[1] / "training" / "tiny_tasks.py").read_text()
ATTRIBUTES = (
    "name", "metric_name", "higher_is_better", "in_channels", "out_channels", "edge_dim", "pool",
    "splits", "loss", "metric",
)  # fmt: skip


def trained(folder, source, *flags, name="Chains"):
    path = folder / "my_tasks.py"
    path.write_text(source)
    return main(["train", f"{path}:{name}", "--epochs", "1", "--model", "gcn", *flags])


def complaint(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("hogwild: ")
    return lines[0]


def test_complete(tmp_path, capsys):
    assert trained(tmp_path, SOURCE) == 0


@pytest.mark.parametrize("attribute", [*ATTRIBUTES, "graphs"])
def test_an_attribute_is_missing(attribute, tmp_path, capsys):
    source = f"{SOURCE}\n\ndel Chains.{attribute}\n"
    if attribute == "graphs":
        source = SOURCE.replace("self.graphs", "self.data")
    assert trained(tmp_path, source) == 2
    assert f"my_tasks.py:Chains' lacks {attribute}; expected the attributes" in complaint(capsys)


SPLITS = "lambda self, folds=None, seed=0:"
LOSS = "lambda self, out, data, mask=None:"


@pytest.mark.parametrize(
    ("attribute", "given", "says"),
    [
        ("in_channels", "'2'", "has in_channels = '2'; expected the number of features"),
        ("in_channels", "3", "graph 0 has x of shape [5, 2]; expected [nodes, 3]"),
        ("out_channels", "0", "has out_channels = 0"),
        ("edge_dim", "1", "graph 0 has no edge_attr"),
        ("pool", "'sum'", "expected None (predictions for nodes) or 'mean'"),
        ("pool", "'mean'", "RuntimeError"),
        ("higher_is_better", "1", "expected True or False"),
        ("splits", "3", "has splits = 3; expected a method"),
        ("splits", "lambda self: []", "cannot be called as splits(folds, seed)"),
        ("splits", f"{SPLITS} []", "splits() of 'tiny chains' returned []"),
        ("splits", f"{SPLITS} None", "splits() of 'tiny chains' returned None"),
        ("splits", f"{SPLITS} [1]", "splits() of 'tiny chains' has train = None"),
        ("splits", f"{SPLITS} parts(9, 3, 0)", "expected the numbers of some of its 2 graphs"),
        ("loss", "lambda self, out: 1", "cannot be called as loss(out, data, mask)"),
        ("loss", f"{LOSS} 1.0", "the loss of 'tiny chains' is 1.0 with 1 replicas"),
        ("loss", f"{LOSS} out.sum()", "the loss of 'tiny chains' has shape [] with"),
        ("loss", f"{LOSS} out.detach().mean((1, 2))", "has no gradient"),
        ("loss", f"{LOSS} out.nothing", "AttributeError: 'Tensor' object has no attribute"),
        ("metric", f"{LOSS} 3", "the metric of 'tiny chains' is 3"),
        ("metric", f"{LOSS} {{}}[3]", "KeyError: 3 (line 73 of "),
    ],
)
def test_an_attribute_is_wrong(attribute, given, says, tmp_path, capsys):
    assert trained(tmp_path, f"{SOURCE}\n\nChains.{attribute} = {given}\n") == 2
    assert says in complaint(capsys)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def (:\n", "my_tasks.py cannot be run: SyntaxError"),
        (
            "import no_such_module\n",
            "ModuleNotFoundError: No module named 'no_such_module' (line 1",
        ),
        (SOURCE.replace("class Chains", "class Chain"), "did you mean 'Chain'?"),
        (SOURCE.replace("self.graphs = []", "raise KeyError(7)", 1), "KeyError: 7 (line 22 of"),
        (f"{SOURCE}\n\ndef Chains():\n    return None\n", "lacks name, in_channels"),
        (SOURCE.replace("x[0, c] = 1.0", "x[0, c] = float('nan')"), "NaN or infinite"),
        (SOURCE.replace("[Data(", "[print(").replace("append(Data(", "append(dict("), "non-empty"),
    ],
)
def test_a_file_is_wrong(source, says, tmp_path, capsys):
    assert trained(tmp_path, source) == 2
    assert says in complaint(capsys)


def test_targets_that_are_no_numbers(tmp_path, capsys):
    source = SOURCE.replace("torch.full((length,), c)", "torch.full((length,), float('nan'))")
    assert trained(tmp_path, source) == 3
    assert "the loss was nan: look for NaN in the targets (y)" in capsys.readouterr().out


def test_a_function_that_returns_graphs(tmp_path, capsys):
    source = f"{SOURCE}\n\ndef mine():\n    return Sums().graphs\n"
    assert trained(tmp_path, source, name="mine") == 0
    assert "gcn on own data" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["(0.9, 500)", "(0.9,500)", "0.9,500", "0.9, 500", "[0.9, 500]"])
def test_decay_as_one_writes_it(text, tmp_path, capsys):
    assert value(text) == [0.9, 500]
    assert trained(tmp_path, SOURCE, "--decay", text) == 0


@pytest.mark.parametrize("text", ["0.9", "(0.9; 500)", "(2, 500)", "(0.9, 0.5)", "()"])
def test_decay_that_is_none(text, tmp_path, capsys):
    assert trained(tmp_path, SOURCE, "--decay", text) == 2
    assert "expected (factor, every)" in complaint(capsys)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b", "a,b"), ("(a)", "(a)"), ("4,4", [4, 4]), ("none", None), ("x.py:T", "x.py:T")],
)
def test_values_of_flags(text, expected):
    assert value(text) == expected
