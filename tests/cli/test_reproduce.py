"""``hogwild reproduce``."""

import hogwild
from hogwild.cli import main, reproduce


def test_an_interrupted_reproduction_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(hogwild.reproduce, "run", interrupted)
    assert main(["reproduce", "fig1", "--results", str(tmp_path), "--work", str(tmp_path)]) == 130
    assert "the same command with --resume keeps the cells" in capsys.readouterr().err


def test_a_report_comes_by_itself(capsys):
    assert main(["reproduce", "fig1", "report"]) == 2
    assert "expected it by itself" in capsys.readouterr().err


def test_what_the_help_names_is_what_there_is():
    """It is written down, since help does not wait for torch."""
    assert tuple(hogwild.reproduce.EXPERIMENTS) == reproduce.EXPERIMENTS
