"""Watching agents of which only an address is known."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest
from agents_by_hand import at_addresses, ports, wait

from hogwild.errors import ConfigError
from hogwild.web.polling import MOST_ROOM, NEAR, PACE, ROOM, Poller, places
from hogwild.web.protocol import parse
from hogwild.web.watch import Attached, watch
from hogwild_node.transports.udp import QUESTION, UDPTransport


def watching(*words):
    return contextlib.closing(watch(*words))


@contextlib.contextmanager
def liar():
    """A socket that answers what it likes, and a poller that asks it."""
    with socket.socket(type=socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(0.1)
        with contextlib.closing(Poller([f"127.0.0.1:{made.getsockname()[1]}"])) as asked:
            yield made, asked


@pytest.mark.parametrize("transport", ["udp", "zenoh"])
def test_one_address_finds_a_whole_swarm(tmp_path, transport):
    """Four agents in a chain; the page knows the first alone. One is switched off."""
    if transport == "zenoh":
        pytest.importorskip("zenoh")
    with at_addresses(tmp_path, 4, transport) as (at, agents), watching(at[0]) as found:
        wait(lambda: len(found.look().agents) == 4)
        wait(lambda: all(one.settled for one in found.look().agents.values()))
        sight = found.look()
        assert sight.ground.names == ["8", "9", "10", "11"]
        assert sight.ground.edges.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]
        agents[3].terminate()
        wait(lambda: len(found.look().agents) == 3)
        assert [agent.poll() for agent in agents[:3]] == [None] * 3


def test_with_certificates_only_the_controller_watches(tmp_path):
    pytest.importorskip("zenoh")
    pytest.importorskip("cryptography")
    from hogwild.keys import make_keys

    keys = make_keys(tmp_path / "keys", ["8", "9", "base", "7"]).folder
    with at_addresses(tmp_path, 2, "zenoh", keys=keys) as (at, _):
        with watching(at[0], str(keys / "base")) as found:
            wait(lambda: len(found.look().agents) == 2)
        with watching(at[0], str(keys / "7")) as other, watching(at[0]) as bare:
            time.sleep(3.0)
            assert not other.look().agents
            assert not bare.look().agents


def test_nobody_answers_yet():
    with socket.socket(type=socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{deaf.getsockname()[1]}"
        with watching(at) as found:
            sight = found.look()
            assert (sight.how, sight.ground.names, sight.agents) == ("waiting", [at], {})
            assert sight.banner == f"Nobody answers at {at} yet. The page asks on."
            viewer = Attached(found)
            viewer.start()
            wait(lambda: viewer.version == 1)
            viewer.put(parse('{"do": "node", "node": 0, "alive": false}'))
            assert "only watches a swarm" in viewer.take().notices[0]["text"]
            viewer.close()
            time.sleep(2.0)
            asked = 0
            deaf.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    asked += deaf.recv(MOST_ROOM) == QUESTION.ljust(ROOM)
    assert 2 <= asked <= 6  # ever more seldom


def test_answers_are_never_longer_than_questions():
    (port,) = ports(1)
    with (
        UDPTransport(f"127.0.0.1:{port}") as agent,
        socket.socket(type=socket.SOCK_DGRAM) as asker,
    ):
        asker.settimeout(5.0)
        line, called = "x" * 3000, []

        def ask(raw):
            asker.sendto(raw, ("127.0.0.1", port))
            wait(lambda: (agent.receive(), agent.questions or agent.foreign)[1], 5.0)
            agent.tell(lambda: called.append(1) or line)

        agent.tell(lambda: called.append(1) or line)
        assert not called  # nobody asked
        ask(QUESTION.ljust(1200))
        assert asker.recv(9999) == b'{"longer": 3000}'
        ask(QUESTION)
        assert asker.recv(9999) == b'{"longer": 3000}'
        ask(QUESTION.ljust(3000))
        assert asker.recv(9999) == line.encode()
        before = len(called)
        ask(b"how are you?".ljust(3000))
        assert agent.foreign == f"127.0.0.1:{asker.getsockname()[1]}"
        assert len(called) == before


LINE = {
    "id": "a", "prediction": [1.0], "updates": 3, "packets": 2, "bytes": 9, "state": "running",
    "neighbours": ["b"], "addresses": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff", b"[]", b"7", b"{}", b"[" * 5000, b'{"id": 7, "prediction": [1.0]}',
        b'{"longer": -1}', b'{"longer": 1e9}', b'{"longer": "x"}',
        json.dumps({**LINE, "addresses": "127.0.0.1:9"}).encode(),
        json.dumps({**LINE, "addresses": [7, None, "x", "http://h/1", "-:-"]}).encode(),
    ],
)  # fmt: skip
def test_answers_of_liars_change_nothing_but_their_own_words(raw):
    """A hostile agent answers anything to every question."""
    with liar() as (made, asked):
        named, began = b'"id": "a"' in raw, time.monotonic()
        while (past := time.monotonic() - began) < 0.7 or (named and not asked.heard and past < 60):
            with contextlib.suppress(TimeoutError):
                made.sendto(raw, made.recvfrom(MOST_ROOM)[1])
        assert asked._thread.is_alive()
        assert len(asked._udp.known) == 1
        assert len(asked.heard) == named


def test_a_liar_does_not_send_us_to_the_whole_world():
    asked = Poller(["127.0.0.1:9"])
    asked.close()
    many = [f"127.0.{i // 250}.{i % 250}:9" for i in range(5000)]
    assert len(asked.take(json.dumps({**LINE, "addresses": many}).encode())[1]) == NEAR


def test_names_that_take_long_to_find_hold_nobody_up(monkeypatch):
    """A liar names machines whose addresses are sought for ever; the next agent is asked on."""
    real, held = socket.getaddrinfo, threading.Event()

    def slow(host, *rest, **options):
        if host.startswith("slow"):
            held.wait(20.0)
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    told = [f"slow{i}.example:9" for i in range(50)]
    with liar() as (made, asked):
        made.settimeout(5.0)
        try:
            for _ in range(4):
                _, page = made.recvfrom(MOST_ROOM)
                made.sendto(json.dumps({**LINE, "addresses": told}).encode(), page)
            wait(lambda: asked.heard, 5.0)
            begun = time.monotonic()
            asked.close()
            assert time.monotonic() - begun < 3.0
        finally:
            held.set()
    names = [t for t in threading.enumerate() if t.name == "hogwild-names"]
    wait(lambda: not any(t.is_alive() for t in names), 5.0)


def test_long_questions_are_seldom():
    """Who answers in the name of another cannot have the page send them much."""
    got, end = [], time.monotonic() + 3.0
    with liar() as (made, _):
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                raw, page = made.recvfrom(65_000)
                got.append(len(raw))
                for _ in range(5):
                    made.sendto(b'{"longer": 59000}', page)
    assert max(got) > 59_000
    assert sum(got) <= PACE * 4.5


def test_what_is_an_address():
    assert places("127.0.0.1:21000") == ["127.0.0.1:21000"]
    assert places("tcp/pi.local:1, [::1]:7") == ["tcp/pi.local:1", "[::1]:7"]
    assert [places(text) for text in ("agents", "a/b", "C:\\x", "", "h:", ":7", "h:x")] == [
        None
    ] * 7
    for text in ("127.0.0.1:0", "127.0.0.1:99999", "http/127.0.0.1:7"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            watch(text)
    with pytest.raises(ConfigError, match=r"no-such-host.invalid:7', which cannot be resolved"):
        watch("no-such-host.invalid:7")
    with pytest.raises(ConfigError, match=r"agents is no address.*HOST:PORT"):
        watch("agents", "keys")


def test_certificates_that_cannot_be_used_are_refused_at_once(tmp_path):
    pytest.importorskip("zenoh")
    with pytest.raises(ConfigError, match=r"authority.pem is missing; expected a folder that"):
        watch("127.0.0.1:21000", str(tmp_path))
    words = [sys.executable, "-m", "hogwild", "serve", "--certificates", "keys"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "without --attach HOST:PORT" in ended.stderr
