"""The committed document says what the committed data say."""

import json
import re
import shutil
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.experiment import Results
from experiments.protocols import protocol
from experiments.registry import EXPERIMENTS
from experiments.report import (
    NUMBER,
    headline,
    part,
    pictures,
    render,
    render_headline,
    render_numbers,
    skeleton,
)
from hogwild.errors import ConfigError
from hogwild.training.registry import spelled_out

HERE = Path(__file__).parents[2] / "experiments"
FIX = "run: python -m experiments report --results experiments/results"


def record(*values, **more):
    """A record of Table 1, made up."""
    return {
        "values": list(values), "failed": [0], "constant": [0.5] * len(values), "quick": False,
        "higher_is_better": False, "seconds": 7200.0, "commit": "0123456789abcdef",
        "hardware": {"device": "an abacus", "threads": 2}, "command": "python -m experiments x",
        "config": {"task": "chains"}, **more,
    }  # fmt: skip


def test_document_matches_the_data():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert render(text, Results(HERE / "results")) == text, FIX


def test_readme_matches_the_data():
    text = (HERE.parent / "README.md").read_text(encoding="utf-8")
    assert "<!-- headline -->" in text
    assert render_headline(text, Results(HERE / "results")) == text, FIX
    assert render_headline(text.replace(" ± ", " +- "), Results(HERE / "results")) == text


def test_headline_has_deviations_and_marks(tmp_path):
    results = Results(tmp_path)
    results.write("table1", "chains/gcn", "", record(0.1, 0.2))
    results.write("table1", "sums/gcn", "", record(*[0.25] * 50, config={"task": "sums"}))
    (line,) = (line for line in headline(results).splitlines() if "| GCN" in line)
    assert line == "| GCN | 15.0 ± 7.1 † | not run | 25.0 ± 0.0 | not run | not run |"
    assert "fewer than the paper's 50 trainings" in headline(results)


def test_trials_are_listed(tmp_path, capsys):
    """What was changed and what came out on validation graphs; test graphs are not looked at."""
    assert "No trial is kept yet" in render(skeleton(), Results(tmp_path))
    about = {"trial": "rate", "changes": {"lr": 0.003}, "validation": [0.5, 0.7]}
    more = {"experiment": "table1", "cell": "chains/gcn"} | about
    Results(tmp_path / "trials" / "rate").write("table1", "chains/gcn", "", record(0.9, **more))
    (line,) = (x for x in render(skeleton(), Results(tmp_path)).splitlines() if "| rate" in x)
    assert line.startswith("| rate | table1 chains/gcn | lr=0.003 | 0.6 ± 0.1414 | 1 |")
    assert "0.9" not in line


def test_no_paragraph_is_broken_by_a_comment():
    """To Markdown, a line that begins with ``<!--`` ends the paragraph and begins raw HTML."""
    for name in ("docs/results.md", "README.md"):
        lines = (HERE.parent / name).read_text(encoding="utf-8").splitlines()
        broken = [
            f"{name}:{number}: {line[:60]}"
            for number, line in enumerate(lines, 1)
            if re.match(r" {0,3}<!--[=/]", line)
        ]
        assert not broken, f"reflow these lines so that no line begins with a mark: {broken}"


def test_results_match_the_data():
    """Every number of the written result, and every picture."""
    path = HERE.parent / "docs" / "results.md"
    text = path.read_text(encoding="utf-8")
    assert NUMBER.search(text)
    assert render_numbers(text, Results(HERE / "results")) == text, FIX
    shown_here = pictures(HERE.parent)
    assert {name for _, name in shown_here} == {"convergence", "size"}
    for page, name in shown_here:
        shown = (page.parent / "figures" / f"{name}.png").read_bytes()
        assert shown == (HERE / "results" / name / f"{name}.png").read_bytes(), FIX


def test_every_cell_was_trained_by_the_protocol_in_force():
    """A protocol that changes takes the cells it no longer describes with it."""
    checked = 0
    for name in ("table1", "table3", "table4", "table5"):
        for path in (HERE / "results" / name).glob("*/*.json"):
            found = json.loads(path.read_text(encoding="utf-8"))
            column, _, model = found["cell"].partition("/")
            was = found["config"]
            if was.get("on_failure") == "stop":  # the word for it when the cell was trained
                was["on_failure"] = "raise"
            of = {"recipe": found["recipe"], "replicas": was["replicas"]}
            config = spelled_out(protocol(column).config(model, **of))
            now = json.loads(json.dumps(config.as_dict()))
            for options in (was, now):  # early records lack what a model's name stands for
                options |= {f"model {k}": v for k, v in options.pop("model_options").items()}
            both = (was.keys() & now.keys()) - {"device", "checkpoint_every"}
            assert {"epochs", "lr", "batch_size", "task_options"} <= both
            differ = {k: (was[k], now[k]) for k in both if was[k] != now[k]}
            assert not differ, f"{path.name} of {column}: (then, now) = {differ}; run it again"
            checked += 1
    assert checked > 40


def test_single_numbers(tmp_path):
    results = Results(tmp_path)
    results.write("table1", "chains/gcn", ".paper", record(0.01, 0.03))
    text = "<!--= table1 chains/gcn.paper -->?<!--/--> and <!--= table1 chains/gcn -->?<!--/-->"
    shown = render_numbers(text, results)
    assert re.sub("<!--.*?-->", "", shown) == "2.0 ± 1.4 % and not run"
    assert render_numbers(shown.replace("2.0", "1.0"), results) == shown
    trial = text.replace("table1", "table1@rate")
    assert re.sub("<!--.*?-->", "", render_numbers(trial, results)) == "not run and not run"
    Results(tmp_path / "trials/rate").write("table1", "chains/gcn", "", record(0.05))
    assert re.sub("<!--.*?-->", "", render_numbers(trial, results)) == "not run and 5.0 %"
    for wrong in (text.replace("table1", "table9"), text.replace("gcn.", "gnc.")):
        with pytest.raises(ConfigError, match="names no"):
            render_numbers(wrong, results)


def test_uncommitted_code_is_marked(tmp_path):
    """Of the record itself, or of the training that its models come from."""
    results, text = Results(tmp_path), "<!--= table1 chains/gcn -->?<!--/-->\n"
    place = "\n<!-- uncommitted -->\n<!-- end -->\n"
    results.write("table1", "chains/gcn", "", record(0.01))
    assert "‡" not in render_numbers(text + place, results) + render(skeleton(), results)
    trained = {"commit": "0123456789abcdef", "earlier": [{"commit": "fedcba+changes"}]}
    results.write("table1", "chains/gcn", "", record(0.01, trained=trained))
    shown = render_numbers(text + place, results)
    assert "1.0 % ‡<!--/-->" in shown
    note = "‡ trained or run with uncommitted changes of the code: "
    assert f"{note}table1 chains/gcn.\n" in shown
    assert render_numbers(shown, results) == shown
    assert f"{note}chains/gcn.\n" in part(EXPERIMENTS["table1"], results)
    assert note in headline(results)
    with pytest.raises(ConfigError, match="expected one, for: ‡ trained or run with uncommitted"):
        render_numbers(text, results)


def test_a_mean_that_hides_its_median_has_a_footnote(tmp_path):
    results = Results(tmp_path)
    results.write("table1", "chains/gcn", "", record(*[0.1] * 49, 90.0))
    results.write("table1", "chains/gat", "", record(*[0.1] * 49, 0.2))
    text = headline(results)
    assert text.count("§") == 2
    assert "median: GCN on chains 10.0 %." in text


def test_aspects_of_cells(tmp_path):
    """What a sentence can say of a cell beside its number."""
    results = Results(tmp_path)
    results.write("table1", "chains/gcn", "", record(0.01, 0.02, 0.06))
    text = "".join(f"<!--= table1 chains/gcn {a} -->?<!--/-->; " for a in ("replicas", "median"))
    assert re.sub("<!--.*?-->", "", render_numbers(text, results)) == "3; 2.0; "
    with pytest.raises(ConfigError, match="names no aspect; did you mean 'median'"):
        render_numbers(text.replace("median", "medain"), results)
    there, text = Results(HERE / "results"), "<!--= convergence chains/ignn messages -->?<!--/-->"
    with pytest.raises(ConfigError, match="asks for 'messages', which that record does not have"):
        render_numbers(text, there)


def test_every_line_says_where_it_comes_from(tmp_path):
    results = Results(tmp_path)
    changed = {"commit": "0123456789abcdef+changes"}
    results.write("table1", "chains/gcn", "", record(0.47, 0.5, **changed))
    lines = part(EXPERIMENTS["table1"], results).splitlines()
    (line,) = (line for line in lines if line.startswith("| chains/gcn"))
    expected = ["chains/gcn", "48.5 ± 2.1", "47.0 ± 0.0", "48.5", "2", "1", "1", "2.0 h"]
    expected += ["an abacus, 2 threads", "`0123456789ab` + changes ‡", "`python -m experiments x`"]
    assert [cell.strip() for cell in line.strip("|").split("|")] == expected


def test_the_other_recipe_has_its_own_table(tmp_path):
    results = Results(tmp_path)
    assert "--recipe" not in part(EXPERIMENTS["table1"], results)
    results.write("table1", "chains/gcn", ".paper", record(0.1))
    ours, paper = part(EXPERIMENTS["table1"], results).split("**With `--recipe paper`**")
    assert "10.0 † / 47.0 ± 0.0" in paper
    assert "10.0" not in ours


def test_quick_runs_are_refused(tmp_path):
    results = Results(tmp_path)
    results.write("table1", "chains/gcn", "", record(0.1, quick=True))
    with pytest.raises(ConfigError, match="holds quick runs"):
        render(skeleton(), results)


def test_marks_and_experiments_correspond(tmp_path):
    results = Results(tmp_path)
    text = skeleton()
    with pytest.raises(ConfigError, match="<!-- tabel1 --> names no experiment; did you mean"):
        render(text.replace("<!-- table1 -->", "<!-- tabel1 -->"), results)
    with pytest.raises(ConfigError, match="has no <!-- table1 -->"):
        render(re.sub(r"<!-- table1 -->\n<!-- end -->", "", text), results)


def test_command(tmp_path, capsys):
    """Prose stays, generated parts are new; without a document one is made."""
    shutil.copy(HERE / "README.md", tmp_path / "README.md")
    results = Results(tmp_path / "results")
    results.write("table1", "chains/gcn", "", record(0.123))
    assert main(["report", "--results", str(results.folder), "--json"]) == 0
    path = Path(json.loads(capsys.readouterr().out)["report"])
    text = path.read_text()
    assert "12.3 † / 47.0 ± 0.0" in text
    assert "How to read the tables" in text
    path.unlink()
    assert main(["report", "--results", str(results.folder)]) == 0
    assert "12.3 † / 47.0 ± 0.0" in path.read_text()


@pytest.mark.parametrize("text", ["# Mine\n", "# Mine\n\n<!-- headline -->\n\n?\n\n<!-- end -->\n"])
def test_other_documents_are_left_as_they_are(tmp_path, capsys, text):
    (tmp_path / "README.md").write_text(text)
    results = Results(tmp_path / "results")
    results.write("table1", "chains/gcn", "", record(0.123))
    assert main(["report", "--results", str(results.folder)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'README.md'} is not a report" in said
    assert "left as it is" in said
    assert "another --results folder" in said
    assert (tmp_path / "README.md").read_text() == text


def test_no_records_no_report(tmp_path, capsys):
    """Neither without a folder nor with quick runs only; but another recipe's are enough."""
    results = Results(tmp_path / "at" / "all")
    command = ["report", "--results", str(results.folder)]
    for _ in range(2):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"{results.folder} holds no records" in said
        assert f"python -m experiments table1 --results {results.folder}" in said
        assert not list(tmp_path.rglob("README.md"))
        Results(results.folder / "quick").write("table1", "chains/gcn", "", record(1, quick=True))
    results.write("table1", "chains/gcn", ".paper", record(0.123))
    assert main(command) == 0


@pytest.mark.parametrize("what", [["report"], ["table1", "--only", "chains/gcn", "--quick"]])
def test_a_file_is_no_folder_of_results(tmp_path, what, capsys):
    file = tmp_path / "README.md"
    file.write_text("text")
    work = tmp_path / "work"
    assert main([*what, "--results", str(file), "--work", str(work)]) == 2
    assert f"{file} is a file; expected a folder of results" in capsys.readouterr().err
    assert file.read_text() == "text"
    assert not work.exists()  # nothing was trained in vain


def test_only_the_project_s_own_results_go_into_its_documents(tmp_path):
    front, written = tmp_path / "README.md", tmp_path / "docs" / "results.md"
    written.parent.mkdir()
    front.write_text("<!-- headline -->\n<!-- end -->\n")
    written.write_text("<!--= table1 chains/gcn -->?<!--/-->\n")
    for name in ("mine", "experiments"):
        before = front.read_text(), written.read_text()
        assert "?" in before[1]
        results = Results(tmp_path / name / "results")
        results.write("table1", "chains/gcn", "", record(0.123))
        assert main(["report", "--results", str(results.folder)]) == 0
        assert (results.folder.parent / "README.md").exists()
        assert ((front.read_text(), written.read_text()) == before) == (name == "mine")
    assert "12.3 %" in written.read_text()
