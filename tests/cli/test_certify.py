"""``hogwild certify``."""

import json

import pytest
from tiny_runs import TASK

from hogwild.cli import main


def test_certify(trained, capsys):
    call = ["certify", trained, "--task", TASK]
    proved = ["--rule", "gradient", "--step", "certified"]
    assert main([*call, "--replica", "1", *proved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guaranteed"] is True
    assert all(key.isidentifier() and key.isascii() for key in found)
    assert found["strong_convexity"] <= found["smallest_eigenvalue"] < found["largest_row_sum"]
    assert 0.0 < found["certified_step_min"] <= found["certified_step_max"]
    assert 0.0 < found["rate"] < 1.0
    assert found["period"] == 14
    assert found["options"]["replica"] == 1
    assert main([*call, *proved]) == 0
    assert "convergence under asynchrony guaranteed" in capsys.readouterr().out
    assert main([*call, "--step", "1e-9", "--json"]) == 0
    assert "certified" in json.loads(capsys.readouterr().out)["own_step"]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert "messages are observed to converge" in said
    assert "--rule gradient --step certified is proved" in said  # to be pasted
    assert main([*call, "--step", "fast"]) == 2
    assert "--step 'fast'; expected a positive number" in capsys.readouterr().err


def test_certify_prints_rule_and_step(printed):
    where = ("certify", "--stagger", "3", "--delay", "1")
    found = printed(*where, "--impair", "crashes", "--impair", "loss=0.3")[1]
    assert (found["rule"], found["stagger"], found["delay"]) == ("messages", 3, 1)
    assert [text.partition("(")[0] for text in found["impairments"]] == ["Crashes", "BernoulliLoss"]
    found = printed(*where, "--step", "1e-9")[1]
    assert (found["rule"], found["impairments"]) == ("gradient", [])


def test_impairments(printed):
    code, found = printed("certify", "--impair", "loss=0.3")
    assert code == 0
    assert found["guaranteed"] is False
    bounded = ["--impair", "loss=0.3,burst=2", "--step", "1e-9"]
    code, found = printed("certify", *bounded)
    assert code == 0
    assert found["guaranteed"] is True


def test_letters_of_the_exact_exchange_are_one_tick_younger(printed):
    flags = ["--rule", "gradient", "--step", "certified"]
    packet, exact = (
        printed("certify", *flags, "--exchange", kind)[1] for kind in ("packet", "exact")
    )
    assert exact["certified_step_max"] > packet["certified_step_max"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--replica", "7"], "0 to 1"),
        (["--graphs", "0"], "positive"),
        (["--stagger", "0"], "--stagger 0;"),
    ],
)
def test_bad_input(trained, flags, says, capsys):
    assert main(["certify", trained, "--task", TASK, *flags]) == 2
    assert says in capsys.readouterr().err
