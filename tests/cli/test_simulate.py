"""``hogwild simulate``."""

import re
import sys

import pytest
from tiny_runs import TASK

from hogwild.asynchrony.trace import Trace
from hogwild.cli import main


def test_simulate(printed):
    code, found = printed("simulate", "--runs", "2")
    assert code == 0
    assert found["converged"] == [[True, True], [True, True]]
    code, found = printed("simulate", "--runs", "2", "--ticks", "5")
    assert code == 3
    assert found["converged"] == [[False, False]] * 2


def test_balls_have_a_radius(printed, trained, capsys):
    flags = ["--runs", "2", "--rule", "balls"]
    code, found = printed("simulate", *flags)
    assert code == 0
    assert (found["rule"], found["options"]["radius"]) == ("balls", None)
    assert found["solved"] > found["updates"]
    code, small = printed("simulate", *flags, "--radius", "1")
    assert code == 0
    assert small["options"]["radius"] == 1
    assert small["ticks"] > found["ticks"]
    assert printed("certify", "--rule", "balls")[1]["guaranteed"]
    assert main(["simulate", trained, "--task", TASK, "--radius", "1"]) == 2
    assert "--radius 1 was given with --rule 'auto'" in capsys.readouterr().err


def test_ticks_have_a_length(printed, trained, capsys):
    _, found = printed("simulate", "--tick", "0.05")
    looks = found["deadlines"]["looks"]
    assert all(row["seconds"] == 0.05 * row["ticks"] for row in looks)
    assert "seconds" not in printed("simulate")[1]["deadlines"]["looks"][0]
    for verb in ("simulate", "robustness"):
        assert main([verb, trained, "--task", TASK, "--tick", "2"]) == 0
        assert "seconds  updates" in capsys.readouterr().out
        assert main([verb, trained, "--task", TASK, "--tick", "0"]) == 2
        assert "--tick 0.0; expected the length of a tick" in capsys.readouterr().err


def test_resolved_options_are_printed(printed, trained):
    flags = ["--step", "0.01", "--impair", "reordering", "--ticks", "100"]
    _, found = printed("simulate", "--runs", "1", *flags)
    options = found["options"]
    assert (options["folder"], options["task"], options["json"]) == (trained, TASK, True)
    assert (options["runs"], options["stagger"], options["tol"]) == (1, 5, 1e-6)
    assert (options["step"], options["impair"]) == (0.01, ["reordering"])
    assert options["replica"] in (0, 1)  # found out, since none was asked for
    again = printed("simulate", "--runs", "1", "--replica", str(options["replica"]))[1]
    assert again["options"]["replica"] == options["replica"]


def test_a_recorded_schedule_is_replayed(printed, tmp_path, capsys):
    path = str(tmp_path / "traces" / "schedule.npz")
    flags = ["--runs", "2", "--impair", "loss=0.3", "--seed", "7"]
    code, first = printed("simulate", *flags, "--record", path)
    assert code == 0
    assert Trace.load(path).about["seed"] == 7
    code, again = printed("simulate", "--runs", "2", "--replay", path)  # no --impair, no --seed
    assert code == 0
    for key in ("deviation", "converged", "ticks", "updates", "total_packets", "bytes"):
        assert again[key] == first[key]
    assert printed("simulate", "--runs", "2", "--seed", "8")[1]["deviation"] != first["deviation"]


def test_a_schedule_that_cannot_be_replayed(trained, tmp_path, capsys):
    path, call = tmp_path / "schedule.npz", ["simulate", trained, "--task", TASK, "--runs", "1"]
    assert main([*call, "--replay", str(path)]) == 2
    assert f"{path}: No such file" in capsys.readouterr().err
    path.write_text("no trace")
    assert main([*call, "--replay", str(path)]) == 2
    assert "is not a readable trace" in capsys.readouterr().err
    assert main([*call, "--record", str(path)]) == 0
    assert f"schedule: {path}" in capsys.readouterr().out
    assert main([*call, "--replay", str(path), "--graphs", "1"]) == 2
    assert "the trace belongs to another graph" in capsys.readouterr().err


def test_exchanges_differ(printed):
    flags = ["--runs", "1", "--rule", "gradient", "--ticks", "30"]
    packet, exact = (
        printed("simulate", *flags, "--exchange", kind)[1]["deviation"]
        for kind in ("packet", "exact")
    )
    assert packet == printed("simulate", *flags)[1]["deviation"]
    assert packet != exact


def test_no_tolerance_goes_on_for_all_ticks(printed):
    found = printed("simulate", "--runs", "1", "--ticks", "9", "--tol", "none")[1]
    assert found["ticks"] == 9
    assert found["options"]["tol"] is None


def test_history(printed):
    _, found = printed("simulate", "--runs", "1", "--ticks", "9", "--history", "4")
    assert found["history"]["ticks"] == [0, 4, 8]
    assert found["history"]["deviation"][-1] == found["deviation"]
    assert "history" not in printed("simulate", "--runs", "1", "--ticks", "9")[1]


def test_plot(trained, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, call = tmp_path / "deviation.svg", ["simulate", trained, "--task", TASK, "--runs", "1"]
    assert main([*call, "--plot", str(path)]) == 0
    assert f"picture: {path}" in capsys.readouterr().out
    assert path.read_text().startswith("<?xml")
    assert main([*call, "--plot", "deviation.mp3"]) == 2  # before anything runs
    said = capsys.readouterr()
    assert "--plot deviation.mp3 does not end in a picture's format; expected one of" in said.err
    assert said.out == ""


def test_a_picture_without_matplotlib(trained, monkeypatch, capsys):
    monkeypatch.setattr("hogwild.cli.common.find_spec", lambda name: None)
    assert main(["simulate", trained, "--task", TASK, "--plot", "a.png"]) == 2
    assert "pip install 'hogwild-gnn[plots]'" in capsys.readouterr().err


def test_steps_and_impairments_reach_the_simulation(printed):
    def seen(*flags):
        return printed("simulate", "--runs", "1", "--ticks", "20", "--graphs", "1", *flags)[1]

    plain = seen()
    assert plain["rule"] == "messages"
    assert seen("--step", "certified")["rule"] == seen("--step", "0.01")["rule"] == "gradient"
    assert seen("--impair", "loss=0.9")["deviation"] != plain["deviation"]
    assert seen("--impair", "loss=0")["deviation"] == plain["deviation"]
    half = seen("--impair", "loss=0.5")
    assert seen("--impair", "loss=0.5,burst=none")["deviation"] == half["deviation"]
    assert seen("--impair", "delay=5")["deviation"] == seen("--delay", "5")["deviation"]
    twice = seen("--impair", "loss=0.5,burst=none", "--impair", "stragglers=1")
    assert twice["deviation"] not in (half["deviation"], plain["deviation"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--impair", "crashs"],
            "unknown impairment 'crashs'; did you mean 'crashes'?",
        ),
        (["--impair", "rain"], "expected one of: crashes, delay, duplication"),
        (["--impair", "crashes,downtimes=3"], "a key among rate, period, downtime, rejoin, until"),
        (["--impair", "crashes,rate"], "'rate' is no option of crashes; expected KEY=VALUE"),
        (["--impair", "crashes=2"], ": --impair crashes=2: crashes.rate=2; expected a probability"),
        (["--impair", "crashes=abc"], "crashes.rate='abc'; expected a probability"),
        (["--impair", "crashes,rejoin=soon"], "crashes.rejoin='soon'; expected 'warm'"),
        (["--impair", "quantisation=0"], "quantisation.unit=0; expected a positive"),
        (["--impair", "pareto-delay=much"], "alpha='much'; expected a positive number"),
        (["--impair", "loss=1.5"], "--impair loss=1.5: loss.rate=1.5; expected a probability"),
        (["--rule", "magic"], "--rule 'magic'; expected one of auto, gradient, messages"),
        (["--rule", "waiting"], "--rule 'waiting' does not fit this model"),
        (
            ["--step", "fast"],
            "--step 'fast'; expected a positive number, or one of auto, certified",
        ),
        (["--stagger", "0"], "--stagger 0;"),
        (["--delay", "-1"], "--delay -1;"),
        (["--runs", "0"], "--runs 0; expected a positive integer"),
        (["--ticks", "0"], "--ticks 0; expected a positive integer"),
        (["--tol", "0"], "--tol 0.0; expected a positive number"),
        (["--history", "0"], "--history 0; expected a positive integer"),
        (
            ["--impair", "event-triggered", "--exchange", "exact"],
            "--exchange 'exact', whose first exchange always sends",
        ),
    ],
)
def test_bad_flags_of_asynchrony(trained, flags, says, capsys):
    assert main(["simulate", trained, "--task", TASK, *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_long_runs_show_progress(trained, monkeypatch, capsys, terminal):
    monkeypatch.setattr("hogwild.progress.DELAY", 0.0)
    monkeypatch.setattr("hogwild.progress.LINES", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    call = ["robustness", trained, "--task", TASK, "--runs", "1", "--ticks", "50"]
    main([*call, "--rule", "gradient"])
    shown = capsys.readouterr().err
    assert re.search(r"simulating: tick \d+, deviation \d\.\de-\d\d of 1e-06", shown)
    assert "50" not in re.sub(r"tick 50\b", "", shown)  # nobody waits for the last tick allowed
    for silent in ("--quiet", "--json"):
        main([*call, silent])
        assert capsys.readouterr().err == ""
