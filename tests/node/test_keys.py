"""Certificates: who may take part in a swarm, over real Zenoh sessions on loopback."""

import contextlib
import json
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import EnergyGNN, keys
from hogwild.cli import main
from hogwild.errors import ConfigError
from hogwild.executors.swarm import free_ports, run
from hogwild.keys import make_keys, names_of
from hogwild.models.export import export
from hogwild_node.agent import Agent, Edge
from hogwild_node.errors import SetupError, TransportError
from hogwild_node.model import load
from hogwild_node.transports.tls import Certificates

pytest.importorskip("cryptography")
zenoh = pytest.importorskip("zenoh")
from hogwild_node.transports.zenoh import ZenohTransport, config_of, tls_settings  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys of three agents and a controller."""
    return make_keys(tmp_path_factory.mktemp("swarm") / "keys", ["0", "1", "2", "base"]).folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Keys of the same names, from another authority."""
    return make_keys(tmp_path_factory.mktemp("foreign") / "keys", ["0", "1"]).folder


@pytest.fixture(scope="module")
def expired(folder, tmp_path_factory):
    """The folder of agent 1, with a certificate of the right authority that ended yesterday."""
    where = tmp_path_factory.mktemp("expired")
    signer, authority = keys._load(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "EARLY", timedelta(days=9))
        end = datetime.now(UTC) - timedelta(days=1)
        own, certificate = keys._made("1", end, authority, signer)
    (where / "1").mkdir()
    files = {"authority.pem": authority, "certificate.pem": certificate, "key.pem": own}
    keys._write(where / "1", files)
    return where / "1"


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "model.hog"
    export(EnergyGNN(3, out_channels=2, beta=1.0).double(), path)
    return str(path)


# -- the files -------------------------------------------------------------------------------------


def test_files_are_private_and_nothing_is_overwritten(tmp_path):
    made = make_keys(tmp_path / "keys", ["7", "bob"])
    files = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    assert {str(path.relative_to(made.folder)) for path in files} == {
        "authority.pem", "authority.key",
        *(f"{n}/{f}" for n in ("7", "bob") for f in ("authority.pem", "certificate.pem", "key.pem"))
    }  # fmt: skip
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE((made.folder / "7").stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match=r"has keys for bob; expected new names"):
        make_keys(made.folder, ["new", "bob"])
    assert not (made.folder / "new").exists()
    assert not make_keys(made.folder, ["new"]).created
    assert {path: path.read_bytes() for path in files} == files
    for name in ("7", "bob", "new"):
        Certificates.of(made.folder / name).check(name)  # one authority signed all of them


def test_what_keys_refuse(tmp_path):
    for name in ("..", "a/b", "", "a" * 65, "é"):
        with pytest.raises(ConfigError, match="an agent is named"):
            make_keys(tmp_path / "no", [name])
    with pytest.raises(ConfigError, match="named twice"):
        make_keys(tmp_path / "no", ["1", "1"])
    with pytest.raises(ConfigError, match="days=0"):
        make_keys(tmp_path / "no", ["1"], days=0)
    assert not (tmp_path / "no").exists()
    made = make_keys(tmp_path / "keys", ["1"]).folder
    with pytest.raises(ConfigError, match=r"the authority in .* ends on"):
        make_keys(made, ["2"], days=5000)
    (made / "authority.key").rename(made / "hidden")
    with pytest.raises(ConfigError, match=r"has authority\.pem and not authority\.key"):
        make_keys(made, ["2"])
    (made / "authority.key").write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        make_keys(made, ["2"])
    other = make_keys(tmp_path / "other", ["1"]).folder
    (made / "authority.key").write_bytes((other / "authority.key").read_bytes())
    with pytest.raises(ConfigError, match="do not belong together"):
        make_keys(made, ["2"])


def test_names():
    assert names_of("0-3") == ["0", "1", "2", "3"]
    assert names_of("8-9,bob,robot-1") == ["8", "9", "bob", "robot-1"]
    with pytest.raises(ConfigError, match="goes up"):
        names_of("3-0")


def test_the_command(tmp_path, capsys):
    where = str(tmp_path / "keys")
    assert main(["keys", where, "--ids", "0-2", "--controller", "base", "--days", "30"]) == 0
    said = capsys.readouterr().out
    for words in ("a new authority", "keys of 3 agents", "--controller base", "keep it here"):
        assert words in said
    assert main(["keys", where, "--ids", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agents"] == ["3"]
    assert main(["keys", where, "--ids", "3"]) == 2
    assert "has keys for 3" in capsys.readouterr().err
    assert main(["keys", where]) == 2
    assert "expected --ids" in capsys.readouterr().err


# -- links -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def linked(folder, *names, controller=None):
    """Transports of agents that are all neighbours, and their addresses."""
    ports = free_ports(len(names))
    where = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    with contextlib.ExitStack() as stack:
        found = {}
        for name in names:
            found[name] = stack.enter_context(
                ZenohTransport(
                    name, "m", where[name], controller=controller,
                    certificates=Certificates.of(folder / name),
                )
            )  # fmt: skip
            found[name].connect({j: where[j] for j in names if j != name})
        yield found, where


@contextlib.contextmanager
def outsider(address, certificates, **changes):
    """A plain Zenoh session with these certificates that connects to an agent."""
    settings = tls_settings(certificates) | {
        "mode": "peer", "connect/endpoints": [f"tls/{address}"], "listen/endpoints": [],
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 200},
    }  # fmt: skip
    settings |= {f"transport/link/tls/{key}": value for key, value in changes.items()}
    with zenoh.open(config_of(settings)) as session:
        yield session


def until(condition, seconds=5.0):
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def heard(agent, session, key, times=15):
    """How many messages of a session under this key an agent reads."""
    assert until(lambda: session.info.peers_zid())
    count = 0
    for _ in range(times):
        session.put(key, b"{}")
        time.sleep(0.03)
        count += len(agent.receive()) + len(agent.control())
    return count


def test_two_agents_with_certificates_find_the_answer():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=1.0).double()
    data = Data(x=torch.randn(2, 3, **DOUBLE), edge_index=chain(2))
    seen = run(model, data, tls=True, seconds=30.0, rate=30.0, precision="float64")
    assert seen.deviation < 1e-6
    assert seen.settled[-1] == 1.0
    with pytest.raises(ConfigError, match="expected transport='zenoh'"):
        run(model, data, tls=True, transport="udp")


def test_each_may_say_only_its_own_words(folder):
    """A certificate of the same authority lets nobody speak for others, nor listen for them."""
    with linked(folder, "0", "1", controller="base") as (agents, where):
        agents["1"].close()
        told = {
            ("1", "data/1/0"): True, ("1", "hello/1/0"): True, ("1", "control/0"): False,
            ("2", "data/1/0"): False, ("2", "data/2/0"): False, ("2", "control/0"): False,
            ("base", "control/0"): True, ("base", "data/1/0"): False,
            ("base", "data/base/0"): False,
        }  # fmt: skip
        for name in ("1", "2", "base"):
            with outsider(where["0"], Certificates.of(folder / name)) as session:
                for (who, key), may in told.items():
                    if who == name:
                        assert (heard(agents["0"], session, f"hogwild/m/{key}") > 0) == may, key
                ears = session.declare_subscriber(
                    "hogwild/m/data/0/1", zenoh.handlers.FifoChannel(99)
                )
                wide = session.declare_subscriber("hogwild/**", zenoh.handlers.FifoChannel(99))

                def listened(ears=ears):
                    agents["0"].send("1", b"x", hello=False)
                    return ears.try_recv() is not None

                assert until(listened, 3.0 if name == "1" else 1.0) == (name == "1")
                assert wide.try_recv() is None or name == "1"


def test_without_a_controller_nobody_controls(folder):
    with (
        linked(folder, "0") as (agents, where),
        outsider(where["0"], Certificates.of(folder / "base")) as session,
    ):
        assert heard(agents["0"], session, "hogwild/m/control/0") == 0
    with pytest.raises(SetupError, match="without certificates"):
        ZenohTransport("0", "m", where["0"], controller="base")
    mine = Certificates.of(folder / "0")
    named = ZenohTransport("0", "m", where["0"], certificates=mine, controller="1")
    with pytest.raises(SetupError, match="both named 1"):
        named.connect({"1": "127.0.0.1:9"})


def test_one_word_of_the_controller_arrives(folder):
    """As docs/agents.md shows it: a client that connects, says one word, and leaves."""
    with linked(folder, "0", controller="base") as (agents, where):
        settings = {"mode": "client", "connect/endpoints": [f"tls/{where['0']}"]}
        settings |= tls_settings(Certificates.of(folder / "base"))
        with zenoh.open(config_of(settings)) as session:
            session.put("hogwild/m/control/0", b"{}")
        assert until(agents["0"].control) == [b"{}"]


def test_an_agent_at_anothers_address_hears_nothing(folder):
    """Addresses prove nothing: agent 2 listens where agent 0 looks for agent 1."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with (
        ZenohTransport("0", "m", ports[0], certificates=Certificates.of(folder / "0")) as agent,
        ZenohTransport("2", "m", ports[1], certificates=Certificates.of(folder / "2")) as other,
    ):
        other.connect({"0": ports[0]})
        agent.connect({"1": ports[1]})
        ears = other.session.declare_subscriber("hogwild/m/*/0/1", zenoh.handlers.FifoChannel(99))
        assert until(lambda: agent.session.info.peers_zid())
        for _ in range(20):
            agent.send("1", b"secret", hello=False)
            other.send("0", b"lie", hello=False)
            time.sleep(0.03)
        assert ears.try_recv() is None
        assert agent.receive() == other.receive() == []
        assert agent.refusal("1") == "it shows the certificate of 2"


def test_strangers_get_no_link(folder, foreign, expired):
    with linked(folder, "0") as (agents, where):
        mine = Certificates.of(folder / "1")
        with outsider(where["0"], mine) as session:
            assert until(lambda: session.info.peers_zid())
        cases = {
            "foreign": (Certificates.of(foreign / "1"), {}),
            "foreign, but trusting": (Certificates(mine.authority, *_pair(foreign / "1")), {}),
            "expired": (Certificates.of(expired), {}),
            "no certificate": (mine, {"connect_certificate": None, "connect_private_key": None,
                                      "enable_mtls": False}),
        }  # fmt: skip
        for case, (certificates, changes) in cases.items():
            with outsider(where["0"], certificates, **changes) as session:
                assert not until(lambda s=session: s.info.peers_zid(), 1.0), case
                assert not agents["0"].session.info.peers_zid(), case


def _pair(folder):
    found = Certificates.of(folder)
    return found.certificate, found.key


def test_failing_to_change_neighbours_keeps_the_former(folder, model_file):
    """Whatever is wrong with the new addresses."""
    with linked(folder, "0", "1") as (agents, where):
        agent = Agent(
            load(model_file), "0", np.zeros(3), agents["0"], neighbours={"1": Edge(where["1"])}
        )
        for wrong in ("nowhere", "127.0.0.1:99999", "tcp/127.0.0.1:21000", "127.0.0.1:0"):
            with pytest.raises(SetupError, match=r"HOST:PORT|not encrypted"):
                agent.set_neighbours({"1": Edge(where["1"]), "2": Edge(wrong)})
            assert list(agent.links) == ["1"]
        with pytest.MonkeyPatch.context() as patch:  # the port is lost while links change
            opened = []

            def fails_once(config, real=zenoh.open):
                opened.append(config)
                if len(opened) == 1:
                    raise zenoh.ZError("in use")
                return real(config)

            patch.setattr(agents["0"].zenoh, "open", fails_once)
            with pytest.raises(TransportError, match="in use"):
                agent.set_neighbours({})

        def talks():
            agents["1"].send("0", b"x", hello=False)
            return agents["0"].receive()

        assert until(talks)


# -- the agent's command ---------------------------------------------------------------------------


def command(model, *words):
    return [
        sys.executable, "-m", "hogwild_node.command", "--model", model, "--features", "1,2,3",
        "--seconds", "6", *map(str, words),
    ]  # fmt: skip


def refused(model, *words):
    """The one line in which an agent says what is wrong, before it starts."""
    found = subprocess.run(command(model, *words), capture_output=True, text=True, timeout=60)
    assert found.returncode == 2, found.stderr
    assert len(found.stderr.splitlines()) == 1, found.stderr
    return found.stderr


def test_certificates_that_neighbours_would_refuse(folder, foreign, expired, model_file, tmp_path):
    here = ("--listen", f"127.0.0.1:{free_ports(1)[0]}", "--id", "1")

    def said(where, *more):
        return refused(model_file, *here, "--certificates", where, *more)

    assert "authority.pem is missing; expected" in said(tmp_path / "nowhere")
    assert "is the certificate of 0, and this agent is 1" in said(folder / "0")
    assert "has expired" in said(expired)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, source in (("authority", folder), ("certificate", foreign), ("key", foreign)):
        (mixed / f"{name}.pem").write_bytes((source / "1" / f"{name}.pem").read_bytes())
    assert "unable to get local issuer" in said(mixed)
    (mixed / "key.pem").write_bytes((folder / "1" / "key.pem").read_bytes())
    assert "key values mismatch" in said(mixed)
    (mixed / "key.pem").write_text("nonsense")
    assert "cannot be used" in said(mixed)
    assert "not encrypted" in said(folder / "1", "--neighbours", "0=tcp/127.0.0.1:21000")
    assert "without certificates" in refused(model_file, *here, "--controller", "base")


@pytest.mark.parametrize("case", ["another authority", "no certificate"])
def test_agents_say_why_there_is_no_link(case, folder, foreign, model_file):
    """Agent 0 has certificates; agent 1 has foreign ones, or none. Each says so in one line."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    own = ["--certificates", foreign / "1"] if case == "another authority" else []
    processes = [
        subprocess.Popen(
            command(model_file, "--id", i, "--listen", ports[i], *certificates,
                    "--neighbours", f"{1 - i}={ports[1 - i]}"),
            stderr=subprocess.PIPE, text=True,
        )
        for i, certificates in enumerate([["--certificates", folder / "0"], own])
    ]  # fmt: skip
    for i, process in enumerate(processes):
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert len(said.splitlines()) == 1, said
        assert f"no link to neighbour {1 - i} at {ports[1 - i]}: it" in said
        assert "certificate" in said
