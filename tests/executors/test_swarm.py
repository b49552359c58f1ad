"""Swarms: real processes on loopback."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import GCN, GSDGNN, EnergyGNN, simulate
from hogwild.errors import ConfigError, InputError
from hogwild.executors.swarm import Faults, free_ports, run
from hogwild.models.export import export

TRANSPORTS = ["udp", "zenoh"]


def case(n=4):
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=1.0).double()
    return model, Data(x=torch.randn(n, 3, **DOUBLE), edge_index=chain(n))


def mine():
    """The agents that this test started and that still run."""
    found = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True
    ).stdout
    return [line for line in found.splitlines() if "hogwild_node.command" in line]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_find_the_answer_and_end(transport):
    if transport == "zenoh":
        pytest.importorskip("zenoh")
    model, data = case()
    seen = run(model, data, transport=transport, seconds=40.0, rate=30.0, precision="float64")
    assert seen.deviation < 1e-6
    assert seen.settled[-1] == 1.0
    assert seen.false_alarms == 0
    assert seen.updates > 0
    assert seen.bytes > seen.packets > 0
    assert "price of an agent" in str(seen)
    assert seen.reached(1e-6) <= seen.settled_at <= seen.seconds
    assert seen.reached(1e-6, "work") <= seen.updates <= seen.turns
    assert not mine()
    # The simulator replays what the processes did.
    replayed = simulate(model, data, replay=seen.trace, tol=1e-6)
    assert replayed.converged.all()
    assert float(replayed.price.updates) <= seen.reached(1e-6, "work") + 1.0
    assert len(seen.trace.ticks) <= 4 * seen.updates


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_that_solve_what_they_know(transport):
    if transport == "zenoh":
        pytest.importorskip("zenoh")
    model, data = case(6)
    seen = run(
        model, data, transport=transport, rule="balls", seconds=40.0, rate=30.0,
        faults=Faults(loss=0.2, kill=0.2, kill_at=2.0, revive_at=5.0, seed=1), lease=0.8,
    )  # fmt: skip
    assert [what for _, what in seen.events] == ["1 killed", "1 revived", "1 back"]
    assert seen.deviation < 1e-7  # with packets of float32: profiles are exact
    assert seen.settled[-1] == 1.0
    assert seen.false_alarms == 0
    assert not mine()


def test_balls_have_a_radius_and_fit_models_that_are_solved():
    model, data = case()
    with pytest.raises(ConfigError, match="expected rule='balls'"):
        run(model, data, radius=2)
    with pytest.raises(ConfigError, match="does not fit this model"):
        run(
            GCN(3, out_channels=2), Data(x=data.x.float(), edge_index=data.edge_index), rule="balls"
        )


def test_killed_agents_are_dropped_and_come_back(tmp_path):
    torch.manual_seed(0)
    model = GSDGNN(3, out_channels=2).double()
    data = Data(x=torch.randn(4, 3, **DOUBLE), edge_index=chain(4))
    faults = Faults(kill=0.25, kill_at=2.0, revive_at=5.0, seed=1, loss=0.1)
    seen = run(
        model, data, faults=faults, transport="udp", lease=0.8, seconds=40.0, rate=30.0,
        precision="float64",
    )  # fmt: skip
    assert [what for _, what in seen.events] == ["1 killed", "1 revived", "1 back"]
    assert seen.alive == [0, 1, 2, 3]
    assert seen.deviation < 1e-6
    seen.plot(tmp_path / "swarm.png")
    assert (tmp_path / "swarm.png").stat().st_size > 5000
    assert not mine()


def test_a_partition_heals():
    model, data = case()
    faults = Faults(partition=True, partition_at=2.0, heal_at=5.0, seed=1)
    seen = run(
        model, data, faults=faults, transport="udp", lease=0.8, seconds=40.0, rate=30.0,
        precision="float64", show=True,
    )  # fmt: skip
    assert [what for _, what in seen.events] == ["2 links cut", "2 links healed"]
    parted = [e for t, e in zip(seen.times, seen.error, strict=True) if 4.0 < t < 5.0]
    assert min(parted) < 1e-3  # of the graph without these links
    assert seen.deviation < 1e-6
    assert seen.trace is None


def test_what_a_swarm_refuses():
    model, data = case()
    with pytest.raises(ConfigError, match=r"loss=1\.5"):
        Faults(loss=1.5)
    with pytest.raises(InputError, match="2 graphs"):
        run(model, [data, data])


# -- the command -----------------------------------------------------------------------------------


def agent(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "hogwild_node.command", *words],
        capture_output=True, text=True, timeout=60, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.hog"
    export(case()[0], path)
    return str(path)


GOOD = {"id": "1", "features": "0.1,0.2,0.3", "transport": "udp", "seconds": "0.5"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "nowhere.hog"}, ["nowhere.hog", "cannot be read", "hogwild export"]),
        ({"features": "1,2"}, ["2 numbers", "expected 3"]),
        ({"features": "1,x,2"}, ["'1,x,2'", "expected numbers"]),
        ({"features": None}, ["features is missing", "--features"]),
        ({"neighbours": "3"}, ["'3'", "no address", "NAME=HOST:PORT"]),
        ({"neighbours": "3=nowhere"}, ["neighbour 3", "'nowhere'", "HOST:PORT"]),
        ({"listen": "127.0.0.1"}, ["'127.0.0.1'", "HOST:PORT"]),
        ({"rule": "caching"}, ["'caching'", "does not fit", "messages, gradient"]),
        ({"config": "nowhere.toml"}, ["nowhere.toml", "TOML"]),
        ({"transport": "zenoh", "certificates": "nowhere"}, ["authority.pem", "hogwild keys"]),
        ({"certificates": "nowhere"}, ["certificates", "transport=udp", "encrypts nothing"]),
        ({"state": ""}, ["state is empty"]),
        ({"neighbours": "2=a..b:21000"}, ["neighbour 2", "'a..b:21000'"]),
        ({"neighbours": "2=127.0.0.1:²"}, ["neighbour 2", "HOST:PORT"]),
        ({"neighbours": "2=127.0.0.1:2000,2=127.0.0.1:2001"}, ["named twice"]),
        ({"neighbours": "2=127.0.0.1:2000,3=127.0.0.1:2000"}, ["two neighbours", "127.0.0.1:2000"]),
        ({"lease": "inf"}, ["lease is inf", "a positive number"]),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_line(change, words, model_file):
    if change.get("transport") == "zenoh":
        pytest.importorskip("zenoh")
    options = {"model": model_file, "listen": f"127.0.0.1:{free_ports(1)[0]}"} | GOOD | change
    flags = [part for k, v in options.items() if v is not None for part in (f"--{k}", v)]
    found = agent(*flags)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1, found.stderr
    for word in words:
        assert word in found.stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_port_in_use(transport, model_file):
    if transport == "zenoh":
        pytest.importorskip("zenoh")
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    with contextlib.closing(socket.socket(socket.AF_INET, kind)) as taken:
        taken.bind(("127.0.0.1", 0))
        if transport == "zenoh":
            taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        found = agent("--model", model_file, "--id", "1", "--features", "1,2,3", "--seconds", "1",
                      "--transport", transport, "--listen", where)  # fmt: skip
    assert found.returncode == 2
    assert where in found.stderr
    assert "Traceback" not in found.stderr


def test_help_teaches_and_no_torch_is_imported(model_file):
    shown = agent("--help")
    assert shown.returncode == 0
    assert "robot7.toml" in shown.stdout
    code = (
        "import sys; sys.argv = ['x', *sys.argv[1:]]; from hogwild_node.command import main; "
        "code = main(); assert code == 0; assert 'torch' not in sys.modules"
    )
    flags = [f"--{k}={v}" for k, v in GOOD.items()]
    where = f"127.0.0.1:{free_ports(1)[0]}"
    found = subprocess.run(
        [sys.executable, "-c", code, f"--model={model_file}", f"--listen={where}", *flags],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("model = 5", "model is 5; expected a text"),
        ("listen = 5", "listen is 5; expected a text"),
        ("seed = 1.5", "seed is 1.5; expected a whole number"),
        ("radius = 1.5", "radius is 1.5; expected a whole number"),
        ("radius = 2", "expected rule='balls'"),
        ("id = true", "id is True; expected a name"),
        ("features = [true, false, true]", "expected numbers"),
    ],
)
def test_values_of_the_wrong_kind_in_a_file(line, words, model_file, tmp_path):
    config = {"model": f'"{model_file}"', "id": '"1"', "features": "[1, 2, 3]"}
    key = line.split(" = ")[0]
    rest = [f"{k} = {v}" for k, v in config.items() if k != key]
    (tmp_path / "robot.toml").write_text("\n".join([line, *rest]))
    found = agent("--config", str(tmp_path / "robot.toml"), "--transport", "udp")
    assert found.returncode == 2
    assert words in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_file_asks_for_balls(model_file, tmp_path):
    where = f"127.0.0.1:{free_ports(1)[0]}"
    lines = [f'model = "{model_file}"', 'id = "1"', "features = [1, 2, 3]", 'rule = "balls"']
    (tmp_path / "robot.toml").write_text("\n".join([*lines, "radius = 2", "seconds = 1"]))
    found = agent(
        "--config", str(tmp_path / "robot.toml"), "--transport", "udp", "--listen", where,
        "--status", "0.2",
    )  # fmt: skip
    assert found.returncode == 0
    said = json.loads(found.stdout.splitlines()[-1])
    assert (said["knows"], said["whole"], said["updates"]) == (1, True, 1)
    assert said["bound"] < 1e-12


def test_a_state_file_that_is_something_else_is_not_overwritten(model_file, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("a novel")
    where = f"127.0.0.1:{free_ports(1)[0]}"
    flags = [f"--{k}={v}" for k, v in GOOD.items()]
    found = agent(f"--model={model_file}", f"--listen={where}", *flags, "--state", str(precious))
    assert found.returncode == 2
    assert "not the saved state" in found.stderr
    assert precious.read_text() == "a novel"


def test_an_agent_stops_soon_at_a_low_rate_and_names_who_is_missing(model_file):
    where, nobody = (f"127.0.0.1:{port}" for port in free_ports(2))
    options = GOOD | {"seconds": "4", "rate": "2", "lease": "0.5", "status": "9"}
    flags = [f"--{k}={v}" for k, v in options.items()]
    command = [f"--model={model_file}", f"--listen={where}", *flags, "--neighbours", f"7={nobody}"]
    found = agent(*command)
    assert found.returncode == 0
    assert json.loads(found.stdout.splitlines()[-1])["silent"] == ["7"]
    assert f"no link to neighbour 7 at {nobody}" in found.stderr
    begun = time.monotonic()
    agent(
        *[
            w.replace("--rate=2", "--rate=0.01").replace("--seconds=4", "--seconds=1")
            for w in command
        ]
    )
    assert time.monotonic() - begun < 20.0


@pytest.mark.parametrize(
    "times", [{"kill_at": 3.0, "revive_at": 1.0}, {"thaw_at": 2.0}, {"kill_at": float("nan")}]
)
def test_times_of_faults_are_in_order(times):
    with pytest.raises(ConfigError, match="the second later than the first"):
        Faults(**times)
