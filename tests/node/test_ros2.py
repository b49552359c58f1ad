"""Status messages for ROS 2: bytes as rosbags writes them, through a router on loopback."""

import contextlib
import math
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hogwild import EnergyGNN
from hogwild.executors.swarm import free_ports
from hogwild.models.export import export
from hogwild_node.errors import SetupError
from hogwild_node.registers import Reading, State

rosbags = pytest.importorskip("rosbags.typesys")
zenoh = pytest.importorskip("zenoh")
from hogwild_node import ros2  # noqa: E402
from hogwild_node.ros2 import DIAGNOSTICS, NUMBER, NUMBERS, Names, StatusPublisher  # noqa: E402
from hogwild_node.transports.zenoh import config_of  # noqa: E402

STORE = rosbags.get_typestore(rosbags.Stores.ROS2_JAZZY)
TYPES = STORE.types
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)


def written(kind, *fields):
    """A message as rosbags writes it."""
    return bytes(STORE.serialize_cdr(TYPES[kind](*fields), kind))


# -- bytes -----------------------------------------------------------------------------------------


@given(st.lists(FLOATS, max_size=5))
def test_numbers(values):
    layout = TYPES["std_msgs/msg/MultiArrayLayout"]([], 0)
    assert ros2.numbers(values) == written(NUMBERS, layout, np.array(values))


@given(st.integers(0, 2**60), TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=4))
def test_diagnostics(now, name, message, hardware, values):
    header = TYPES["std_msgs/msg/Header"](
        TYPES["builtin_interfaces/msg/Time"](now // 10**9, now % 10**9), ""
    )
    pairs = [TYPES["diagnostic_msgs/msg/KeyValue"](key, value) for key, value in values.items()]
    one = TYPES["diagnostic_msgs/msg/DiagnosticStatus"](1, name, message, hardware, pairs)
    told = ros2.diagnostics(now, 1, name, message, hardware, values)
    assert told == written(DIAGNOSTICS, header, [one])


# -- names -----------------------------------------------------------------------------------------


def test_what_names_refuse():
    assert Names("robot-7").base == "hogwild/agent_robot_7"
    for wrong in ("/a//b", "a b", "7a", "", "a/*"):
        with pytest.raises(SetupError, match="ROS 2 topic"):
            Names("7", 0, wrong)
    for wrong in (-1, 233, "0"):
        with pytest.raises(SetupError, match="ROS 2 domain"):
            Names("7", wrong)
    for wrong in ("nowhere", "tls/127.0.0.1:7447", "tcp/127.0.0.1"):
        with pytest.raises(SetupError, match="ROS 2 router"):
            StatusPublisher(wrong, "7")


def test_tokens_are_those_of_an_independent_client():
    sdk = pytest.importorskip("zenoh_ros2_sdk.keyexpr")
    entity = pytest.importorskip("zenoh_ros2_sdk.entity")
    qos = pytest.importorskip("zenoh_ros2_sdk.qos").QosProfile.decode(ros2.QOS)
    assert (qos.history_depth, qos.durability.name) == (10, "VOLATILE")
    assert (qos.reliability.name, qos.liveliness.name) == ("RELIABLE", "AUTOMATIC")
    names, topic = Names("7", 3), "hogwild/agent_7/calm"
    node = entity.NodeEntity(3, "z", 0, "agent_7", "/hogwild")
    assert names.node_token("z") == sdk.node_liveliness_keyexpr(node)
    kind, type_hash = "std_msgs::msg::dds_::Float64_", ros2.HASHES[NUMBER]
    one = entity.EndpointEntity(
        node, 2, entity.EntityKind.PUBLISHER, f"/{topic}", kind, type_hash, ros2.QOS
    )
    assert names.publisher_token("z", 2, topic, NUMBER) == sdk.endpoint_liveliness_keyexpr(one)
    assert names.key(topic, NUMBER) == sdk.topic_keyexpr(3, f"/{topic}", kind, type_hash)


# -- through a router ------------------------------------------------------------------------------


def router(port):
    """A router with the settings of rmw_zenoh that matter here: it does not join peers."""
    settings = {"mode": "router", "listen/endpoints": [f"tcp/127.0.0.1:{port}"]}
    settings["routing/router/peers_failover_brokering"] = False
    return zenoh.open(config_of(settings))


def ros_node(port):
    """A session as a node of rmw_zenoh opens one: a peer that gossips."""
    settings = {"mode": "peer", "listen/endpoints": ["tcp/127.0.0.1:0"]}
    settings |= {"connect/endpoints": [f"tcp/127.0.0.1:{port}"], "scouting/gossip/enabled": True}
    return zenoh.open(config_of(settings))


def until(condition, seconds=10.0):
    """What a condition gives once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found
    return found


READING = Reading(
    h=np.array([1.0]), prediction=np.array([0.5, -2.0]), residual=1e-7, bound=math.inf, calm=1.5,
    state=State.SETTLED, updates=12, silent=("3",),
)  # fmt: skip
KIND_OF = {ros2._dds(kind): kind for kind in ros2.HASHES}


def decoded(sample):
    """The topic and the message of a sample, as rosbags reads it, and its attachment."""
    domain, *topic, kind, type_hash = str(sample.key_expr).split("/")
    assert (domain, type_hash) == ("3", STORE.hash_rihs01(KIND_OF[kind]))
    message = STORE.deserialize_cdr(sample.payload.to_bytes(), KIND_OF[kind])
    return "/".join(topic), message, sample.attachment.to_bytes()


def test_a_ros_node_hears_the_status():
    """The router comes late, and goes and comes again."""
    (port,) = free_ports(1)
    publisher = StatusPublisher(f"tcp/127.0.0.1:{port}", "7", domain=3)
    with contextlib.closing(publisher):
        publisher.publish(READING)  # nobody is there: nothing happens
        assert not publisher.connected
        for _ in range(2):
            with router(port), ros_node(port) as node:
                ears = node.declare_subscriber("3/**", zenoh.handlers.FifoChannel(999))
                heard = {}

                def hears(ears=ears, heard=heard):
                    publisher.publish(READING)
                    while (sample := ears.try_recv()) is not None:
                        topic, *rest = decoded(sample)
                        heard.setdefault(topic, []).append(rest)
                    return min(map(len, heard.values()), default=0) >= 3 and len(heard) == 4

                until(hears)

                def tokens(node=node):
                    replies = list(node.liveliness().get("@ros2_lv/3/**"))
                    return len(replies) == 5 and [str(reply.ok.key_expr) for reply in replies]

                found = until(tokens)
        assert sum("/NN/" in token for token in found) == 1
        assert sum("/MP/" in token for token in found) == 4
    last = {topic: told[-1][0] for topic, told in heard.items()}
    base = "hogwild/agent_7"
    assert last[f"{base}/prediction"].data.tolist() == [0.5, -2.0]
    assert last[f"{base}/residual"].data == 1e-7
    assert last[f"{base}/calm"].data == 1.5
    (one,) = last["diagnostics"].status
    assert (one.level, one.message, one.hardware_id) == (1, "settled", "7")
    values = {pair.key: pair.value for pair in one.values}
    assert (values["silent neighbours"], values["updates"]) == ("3", "12")
    gids = set()
    for told in heard.values():
        numbered = [int.from_bytes(raw[:8], "little") for _, raw in told]
        assert numbered == sorted(set(numbered))
        assert all(len(raw) == 33 and raw[16] == 16 for _, raw in told)
        stamps = [int.from_bytes(raw[8:16], "little") for _, raw in told]
        assert all(abs(stamp - time.time_ns()) < 60e9 for stamp in stamps)
        gids |= {raw[17:] for _, raw in told}
    assert len(gids) == 4


@pytest.fixture
def agent(tmp_path):
    """Run an agent with these options; what it says."""
    torch.manual_seed(0)
    model = str(tmp_path / "model.hog")
    export(EnergyGNN(3, out_channels=2, beta=1.0).double(), model)
    command = [
        sys.executable, "-m", "hogwild_node.command", "--model", model, "--id", "7", "--features",
        "1,2,3", "--seconds", "4", "--transport", "udp",
    ]  # fmt: skip

    def run(*words):
        listen = ("--listen", f"127.0.0.1:{free_ports(1)[0]}")
        return subprocess.run(
            [*command, *listen, *words], capture_output=True, text=True, timeout=60
        )

    return run


def test_the_agent_publishes_to_an_independent_client(agent):
    """zenoh-ros2-sdk, which others wrote, receives what `hogwild-agent` sends."""
    sdk = pytest.importorskip("zenoh_ros2_sdk")
    (port,), heard = free_ports(1), []
    with contextlib.ExitStack() as stack:
        stack.enter_context(router(port))
        ears = sdk.ROS2Subscriber(
            "/robots/r7/calm", NUMBER, heard.append, "float64 data", router_port=port, domain_id=5,
            type_hash=ros2.HASHES[NUMBER],
        )  # fmt: skip
        stack.callback(ears.session_mgr.session.close)
        stack.callback(ears.close)
        found = agent(
            "--ros2", f"tcp/127.0.0.1:{port}", "--ros2-domain", "5", "--ros2-topic", "/robots/r7",
            "--ros2-every", "0.2",
        )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    assert len(heard) >= 5
    assert heard[-1].data > heard[0].data >= 0.0  # alone, it grows calmer


def test_the_agent_runs_without_a_router(agent):
    where = f"tcp/127.0.0.1:{free_ports(1)[0]}"
    found = agent("--ros2", where)
    assert found.returncode == 0
    assert len(found.stderr.splitlines()) == 1
    assert f"no router of ROS 2 at {where}" in found.stderr
    found = agent("--ros2-domain", "1")
    assert found.returncode == 2
    assert "ros2_domain without ros2" in found.stderr
