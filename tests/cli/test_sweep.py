"""``hogwild sweep``."""

import pytest
from tiny_runs import TASK

from hogwild.analysis.sweep import VALUES
from hogwild.cli import main, sweep

RUN = ("--runs", "1", "--tol", "0.1")
GRID = ("--staggers", "1,5", "--delays", "0,2", "--losses", "0,0.3", *RUN)


def test_sweep_is_robustness_at_every_setting(printed):
    code, found = printed("sweep", *GRID)
    assert code == 0
    settings = [(row["loss"], row["stagger"], row["delay"]) for row in found["settings"]]
    assert settings == [(p, s, d) for p in (0.0, 0.3) for s in (1, 5) for d in (0, 2)]
    assert found["options"]["staggers"] == [1, 5]
    _, one = printed("robustness", *RUN, "--stagger", "5", "--delay", "2", "--impair", "loss=0.3")
    last = found["settings"][-1]
    assert all(one[key] == value for key, value in last.items() if key in one)
    latency = ("--staggers", "5", "--latencies", "2", "--losses", "0.3", *RUN)
    (late,) = printed("sweep", *latency)[1]["settings"]
    impaired = ("--impair", "latency=2", "--impair", "loss=0.3")
    _, one = printed("robustness", *RUN, "--stagger", "5", "--delay", "2", *impaired)
    assert all(one[key] == value for key, value in late.items() if key in one)
    assert (late["loss"], late["stagger"], late["latency"]) == (0.3, 5, 2)
    code, found = printed("sweep", *GRID, "--ticks", "3")
    assert code == 3


def test_other_rules_beside(trained, printed, capsys):
    grid = ("--staggers", "1,5", "--delays", "0", *RUN)
    code, found = printed("sweep", *grid, "--compare", "gradient")
    assert code == 0
    assert [(row["stagger"], row["rule"]) for row in found["compared"]] == [
        (s, rule) for s in (1, 5) for rule in ("messages", "gradient")
    ]
    alone = printed("sweep", *grid, "--rule", "gradient")[1]["settings"]
    assert [row["updates"] for row in found["compared"][1::2]] == [row["deadline"] for row in alone]
    assert "compared" not in printed("sweep", *grid)[1]
    assert main(["sweep", trained, "--task", TASK, *grid, "--compare", "all"]) == 0
    out = capsys.readouterr().out
    assert "until within 5 % of the synchronous error, by rule:" in out
    assert "balls" in out


def test_plot(trained, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "map.png"
    call = ["sweep", trained, "--task", TASK, "--staggers", "1,5", "--delays", "0", "--runs", "1"]
    assert main([*call, "--plot", str(path), "--value", "converged"]) == 0
    assert f"picture: {path}" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")
    assert tuple(VALUES) == sweep.VALUES


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--staggers", "0,1"], "--staggers 0; expected an integer of at least 1"),
        (["--delays", "-1"], "--delays -1; expected an integer"),
        (["--latencies", "-1"], "--latencies -1; expected an integer"),
        (["--losses", "2"], "--losses 2.0; expected a probability"),
        (["--runs", "0"], "--runs 0; expected a positive integer"),
    ],
)
def test_bad_settings(trained, flags, says, capsys):
    assert main(["sweep", trained, "--task", TASK, *flags]) == 2
    assert says in capsys.readouterr().err
