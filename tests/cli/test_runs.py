"""``hogwild simulate``, ``robustness``, ``sweep``, ``certify`` and ``track``."""

import json
import re
import sys

import pytest
import torch
from tiny_runs import TASK
from tiny_tasks import chain
from torch_geometric.data import Data

from hogwild import train
from hogwild.asynchrony.trace import Trace
from hogwild.cli import common, main
from hogwild.cli.options import Options

RUN = ("--runs", "1", "--tol", "0.1")
GRID = ("--staggers", "1,5", "--delays", "0,2", "--losses", "0,0.3", *RUN)


# -- simulate --------------------------------------------------------------------------------------


def test_simulate(printed):
    code, found = printed("simulate", "--runs", "2")
    assert code == 0
    assert found["converged"] == [[True, True], [True, True]]
    code, found = printed("simulate", "--runs", "2", "--ticks", "5")
    assert code == 3
    assert found["converged"] == [[False, False]] * 2


def test_balls_have_a_radius(printed, text):
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
    assert "--radius 1 was given with --rule auto" in text(2, "simulate", "--radius", "1")


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


def test_a_recorded_schedule_is_replayed(printed, tmp_path):
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
    _, measured = printed("robustness", "--runs", "2", "--tol", "1e-2", "--record", path)
    for verb in ("robustness", "simulate"):
        _, again = printed(verb, "--runs", "2", "--tol", "1e-2", "--replay", path)
        assert again["updates"] == measured["updates"]


def test_a_schedule_that_cannot_be_replayed(text, tmp_path):
    path, call = tmp_path / "schedule.npz", ["simulate", "--runs", "1"]
    assert f"{path}: No such file" in text(2, *call, "--replay", str(path))
    path.write_text("no trace")
    assert "is not a readable trace" in text(2, *call, "--replay", str(path))
    assert f"schedule: {path}" in text(0, *call, "--record", str(path))
    said = text(2, *call, "--replay", str(path), "--graphs", "1")
    assert "the trace belongs to another graph" in said


def test_history_and_tolerance(printed):
    found = printed("simulate", "--runs", "1", "--ticks", "9", "--history", "4")[1]
    assert found["history"]["ticks"] == [0, 4, 8]
    assert found["history"]["deviation"][-1] == found["deviation"]
    found = printed("simulate", "--runs", "1", "--ticks", "9", "--tol", "none")[1]
    assert found["ticks"] == 9
    assert found["options"]["tol"] is None
    assert "history" not in found


def test_a_picture_without_matplotlib(text, monkeypatch):
    monkeypatch.setattr("hogwild.cli.common.find_spec", lambda name: None)
    assert "pip install 'hogwild-gnn[plots]'" in text(2, "simulate", "--plot", "a.png")


def test_options_reach_the_simulation(printed):
    def seen(*flags):
        return printed("simulate", "--runs", "1", "--ticks", "20", "--graphs", "1", *flags)[1]

    plain = seen()
    assert plain["rule"] == "messages"
    assert seen("--step", "certified")["rule"] == seen("--step", "0.01")["rule"] == "gradient"
    assert seen("--impair", "loss=0.9")["deviation"] != plain["deviation"]
    assert seen("--impair", "loss=0")["deviation"] == plain["deviation"]
    half = seen("--impair", "loss=0.5")
    assert seen("--impair", "loss=0.5,burst=none")["deviation"] == half["deviation"]
    twice = seen("--impair", "loss=0.5,burst=none", "--impair", "stragglers=1")
    assert twice["deviation"] not in (half["deviation"], plain["deviation"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("simulate --impair crashs", "unknown impairment 'crashs'; did you mean 'crashes'?"),
        ("simulate --impair rain", "expected one of: crashes, event-trig"),
        ("simulate --impair crashes,downtimes=3", "a key among rate, period, downtime, rejoin, un"),
        ("simulate --impair crashes,rate", "'rate' is no option of crashes; expected KEY=VALUE"),
        ("simulate --impair crashes=2", ": --impair crashes=2: crashes.rate=2; expected a probab"),
        ("simulate --impair crashes=abc", "crashes.rate='abc'; expected a probability"),
        ("simulate --impair crashes,rejoin=soon", "crashes.rejoin='soon'; expected 'warm'"),
        ("simulate --impair quantisation=0", "quantisation.unit=0; expected a positive"),
        ("simulate --impair pareto-delay=much", "alpha='much'; expected a positive number"),
        ("simulate --rule magic", "--rule magic; expected one of auto, messages, gradient"),
        ("simulate --rule resending", "--rule resending does not fit this model"),
        ("simulate --step fast", "--step fast; expected a positive number, or one of auto, cert"),
        ("simulate --stagger 0", "--stagger 0;"),
        ("simulate --delay -1", "--delay -1;"),
        ("simulate --runs 0", "--runs 0; expected a positive integer"),
        ("simulate --ticks 0", "--ticks 0; expected a positive integer"),
        ("simulate --tol 0", "--tol 0.0; expected a positive number"),
        ("simulate --history 0", "--history 0; expected a positive integer"),
        (
            "simulate --plot deviation.mp3",
            "--plot deviation.mp3 does not end in a picture's format; expected one of",
        ),
        ("sweep --staggers 0,1", "--staggers 0; expected an integer of at least 1"),
        ("sweep --delays -1", "--delays -1; expected an integer"),
        ("sweep --latencies -1", "--latencies -1; expected an integer"),
        ("sweep --losses 2", "--losses 2.0; expected a probability"),
        ("certify --replica 7", "0 to 1"),
        ("certify --graphs 0", "positive"),
        ("certify --stagger 0", "--stagger 0;"),
        ("certify --step fast", "--step fast; expected a positive number"),
        ("track", "has no sequences; expected --scenario, one of drift, join-leave, partition"),
        ("track --scenario drift --graph 9", "--graph 9; expected 0 to 1"),
        ("track --scenario drift --rule caching", "does not fit this model"),
    ],
)
def test_bad_flags(words, says, text):
    assert says in text(2, *words.split())


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


@pytest.mark.parametrize(
    ("words", "name", "begins"),
    [
        ("simulate --runs 1", "deviation.svg", b"<?xml"),
        ("robustness --runs 2", "predictions.png", b"\x89PNG"),
        ("sweep --staggers 1,5 --delays 0 --runs 1 --value converged", "map.png", b"\x89PNG"),
    ],
)
def test_plot(words, name, begins, text, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    assert f"picture: {path}" in text(0, *words.split(), "--plot", str(path))
    assert path.read_bytes().startswith(begins)


# -- robustness ------------------------------------------------------------------------------------


def test_robustness(printed, text):
    code, found = printed("robustness", "--runs", "2", "--impair", "loss=0.3")
    assert code == 0
    assert found["rule"] == "messages"
    assert found["converged"] == 1.0
    assert found["proved"] is False
    assert found["bytes"] > found["packets"] > found["updates"] > 0
    assert found["options"]["impair"] == ["loss=0.3"]
    call = ["robustness", "--runs", "2", "--quiet"]
    said = text(3, *call, "--rule", "gradient", "--ticks", "7")  # nobody arrived
    assert "Not converged within the 7 ticks: 2 of 2" in said
    assert "--rule messages, which needs fewer updates" in said  # flags, not keywords
    assert "price: 7 ticks" in said
    said = text(3, *call, "--impair", "loss=1.0", "--ticks", "40")
    assert "no packet ever arrives under BernoulliLoss(rate=1.0, burst=None)" in said
    assert "--rule" not in said  # no other rule helps


def test_deadlines_and_other_rules(printed, text):
    code, found = printed("robustness", "--compare", "all", "--runs", "2")
    assert code == 0
    assert list(found["deadlines"]) == ["messages", "gradient", "balls"]
    first = found["deadlines"]["messages"]
    assert first["looks"][0]["ticks"] == 0
    assert first["looks"][-1]["ticks"] == found["ticks"]
    assert first["light_cone"]["updates"] > 0
    assert found["advice"].startswith("6 nodes of 2 graphs are too few for advice")
    said = text(0, "robustness", "--runs", "2", "--compare", "gradient", "--quiet")
    assert "error by deadline" in said
    assert "In time: " in said


@pytest.mark.parametrize(
    ("nodes", "pooled", "count"), [(3, True, 50), (100, True, 30), (2000, True, 2), (3, False, 2)]
)
def test_graphs_with_one_answer_are_run_in_larger_numbers(nodes, pooled, count):
    """As many as bound the time."""
    shape = (1,) if pooled else (nodes,)
    graphs = [
        Data(x=torch.ones(nodes, 1), edge_index=chain(nodes), y=torch.full(shape, i % 2))
        for i in range(180)
    ]
    result = train(graphs, model="gcn", epochs=1, folds=3)
    for given, taken in ((None, count), (5, 5)):
        chosen = common.Chosen(result, 0, result.model, Options(graphs=given))
        assert len(chosen.some()) == taken
    assert len(chosen.graphs()) == 60


# -- sweep -----------------------------------------------------------------------------------------


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


# -- certify ---------------------------------------------------------------------------------------


def test_certify(printed, text):
    proved = ["--rule", "gradient", "--step", "certified"]
    code, found = printed("certify", "--replica", "1", *proved)
    assert code == 0
    assert found["guaranteed"] is True
    assert all(key.isidentifier() and key.isascii() for key in found)
    assert found["strong_convexity"] <= found["smallest_eigenvalue"] < found["largest_row_sum"]
    assert 0.0 < found["certified_step_min"] <= found["certified_step_max"]
    assert 0.0 < found["rate"] < 1.0
    assert found["period"] == 14
    assert found["options"]["replica"] == 1
    assert "convergence under asynchrony guaranteed" in text(0, "certify", *proved)
    assert printed("certify", "--step", "1e-9")[1]["guaranteed"] is True
    said = text(0, "certify")
    assert "messages are observed to converge" in said
    assert "--rule gradient --step certified is proved" in said  # to be pasted


# -- track -----------------------------------------------------------------------------------------


def test_a_partition(printed):
    code, out = printed("track", "--scenario", "partition", "--spacing", "30", "--runs", "2")
    assert code == 0
    assert out["changes"] == 2
    assert out["rule"] == "messages"
    assert out["scenario"].startswith("partition: 3 frames, 90 ticks, 3 nodes")
    assert len(out["recovery_ticks"]) == len(out["moves"]) == 2
    assert len(out["recovery_ticks"][0]) == 2
    assert out["options"]["spacing"] == 30
    assert out["bytes_a_tick"] > 0


def test_what_track_prints_and_draws(text, tmp_path):
    flags = ["--scenario", "join-leave", "--changes", "2", "--spacing", "20", "--lease", "5"]
    picture = str(tmp_path / "track.png")
    said = text(0, "track", *flags, "--quiet", "--plot", picture)
    assert "join and leave: 3 frames, 60 ticks" in said
    assert "lease 5" in said
    assert f"picture: {picture}" in said


def test_a_sequence_of_the_task(tmp_path, capsys):
    folder = str(tmp_path / "source")
    flags = ["--model", "gsdgnn", "--epochs", "2", "--folds", "2", "--folder", folder]
    for option in ("sequences=4", "moments=3", "num_nodes=6", "degree=2.0"):
        flags += ["--task-option", option]
    assert main(["train", "moving-source", *flags, "--quiet"]) == 0
    capsys.readouterr()
    code = main(["track", folder, "--spacing", "10", "--json"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert out["scenario"] == "moving-source: 3 frames, 30 ticks, 6 nodes"
    assert out["score"] > 0
