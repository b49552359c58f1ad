"""The server: who may speak to it, and what becomes of those who misbehave."""

import contextlib
import json
import os
import resource
import socket
import struct
import time
import urllib.error
import urllib.request

import pytest
from web_server import handshake, served
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from hogwild.errors import ConfigError
from hogwild.web import server as web
from hogwild.web.server import host_is_fine


@pytest.fixture(scope="module")
def running():
    with served(names=["swarm.example"]) as found:
        yield found


@pytest.fixture
def port(running):
    yield running[0]
    settle(running[1], 0)  # whoever has gone leaves no session behind


def settle(found, count):
    """Wait until so many sessions are left."""
    for _ in range(1000):
        if len(found.sessions) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{len(found.sessions)} sessions are left; expected {count}")


def get(port, path="/", host=None):
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    asked.add_header("Host", f"127.0.0.1:{port}" if host is None else host)
    return urllib.request.urlopen(asked, timeout=20)


def viewer(port, **options):
    return connect(f"ws://127.0.0.1:{port}/live", max_size=None, **options)


def said(connection, kind):
    """The next JSON message of this kind."""
    while True:
        message = connection.recv(timeout=30)
        if isinstance(message, str):
            found = json.loads(message)
            if found["is"] == kind:
                return found


def snapshot(connection):
    """The next snapshot: its scene and its tick."""
    while True:
        message = connection.recv(timeout=30)
        if isinstance(message, bytes):
            return struct.unpack_from("<6I", message)


def test_the_page_is_served_and_may_load_nothing_else(port):
    with get(port) as page:
        text = page.read().decode()
        assert "<h1>" in text
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
    for name in ("main.js", "style.css", "graph.js", "icon.svg"):
        with get(port, f"/{name}") as file:
            assert file.status == 200
            assert file.headers["x-content-type-options"] == "nosniff"
    # Nothing in the files asks another machine for anything.
    for path in web.STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/trained", "/nothing"])
def test_no_other_file_is_served(port, path):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(port, path)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "[::1]:80", "10.1.2.3", "swarm.example"]
)
def test_hosts_that_cannot_be_rebound_are_served(port, host):
    assert get(port, host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "a b"]
)
def test_other_hosts_are_not(port, host):
    with pytest.raises(urllib.error.HTTPError, match=r"421|400"):
        get(port, host=host)
    assert not host_is_fine(host, [])


def test_only_pages_of_this_server_may_open_a_websocket(port):
    own = f"http://127.0.0.1:{port}"
    for origin, fine in [
        (own, True), ("http://evil.example", False), ("null", False), (f"{own}.evil", False),
        ("http://127.0.0.1:1", False), (f"file://127.0.0.1:{port}", False), ("http://[", False),
    ]:  # fmt: skip
        made, answer = handshake(port, Origin=origin)
        made.close()
        assert answer.startswith("HTTP/1.1 101" if fine else "HTTP/1.1 403"), origin
    made, answer = handshake(port, Host="evil.example", Origin="http://evil.example")
    made.close()
    assert answer.startswith("HTTP/1.1 403")


def test_every_viewer_has_a_session_of_their_own(port):
    with viewer(port) as one, viewer(port) as two:
        assert said(one, "hello")["limits"]["nodes"] == [4, 2000]
        assert said(two, "scene")["dead"] == []
        one.send(json.dumps({"do": "node", "node": 4, "alive": False}))
        while said(one, "scene")["dead"] != [4]:
            pass
        two.send(json.dumps({"do": "pause", "paused": True}))
        found = said(two, "scene")
        assert found["paused"]
        assert found["dead"] == []
        first = snapshot(one)[2]
        while snapshot(one)[2] <= first:  # it goes on
            pass


def test_malformed_messages_are_answered_in_words_and_survived(port):
    with viewer(port) as one:
        for message in ("{", "[]", b"\x00\xff", '{"do": "move", "node": 0, "x": 9, "y": 0}'):
            one.send(message)
        assert "not JSON" in said(one, "notice")["text"]
        one.send(json.dumps({"do": "speed", "ticks": 60}))
        while said(one, "scene")["timing"]["speed"] != 60:
            pass


def masked(text):
    """A text message as a client sends it."""
    mask = os.urandom(4)
    return (
        bytes([0x81, 0x80 | len(text)]) + mask + bytes(c ^ mask[i % 4] for i, c in enumerate(text))
    )


def ending(made):
    """The code with which the server closes a WebSocket; ``None``: it just ends."""
    made.settimeout(30.0)
    stream = made.makefile("rb")
    while True:
        try:
            first = stream.read(2)
            if len(first) < 2:
                return None
            size = first[1]
            if size >= 126:
                size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
            body = stream.read(size)
        except ConnectionError:
            return None
        if first[0] == 0x88:
            return int.from_bytes(body[:2], "big")


@pytest.mark.parametrize("kind", ["malformed", "commands", "large", "enormous"])
def test_a_hostile_client_costs_nobody_else_anything(running, port, kind):
    """10,000 messages that are no commands, 10,000 commands, and messages of megabytes, which close
    the connection."""
    sent = {
        "malformed": (100, 100 * masked(b"{" * 40)),
        "commands": (100, 100 * masked(b'{"do": "again"}')),
        "large": (100, struct.pack(">BBQ4s", 0x81, 0xFF, 10**5, b"mask") + bytes(10**5)),
        "enormous": (1, struct.pack(">BBQ4s", 0x81, 0xFF, 10**12, b"mask") + bytes(10**5)),
    }
    count, content = sent[kind]
    with viewer(port) as bystander:
        said(bystander, "scene")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made, answer = handshake(port)
        assert answer.startswith("HTTP/1.1 101")
        with contextlib.suppress(OSError):  # the server no longer listens
            for _ in range(count):
                made.sendall(content)
        tick = snapshot(bystander)[2]
        while snapshot(bystander)[2] <= tick + 5:
            pass
        assert kind in ("malformed", "commands") or ending(made) in (1009, None)
        made.close()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100_000  # kB: of what was sent nothing is kept
        tick = snapshot(bystander)[2]
        while snapshot(bystander)[2] <= tick + 5:
            pass
        settle(running[1], 1)


def test_more_viewers_than_there_is_room_for(running, port):
    """The first eight watch on; the others are told why they cannot, and cost nothing."""
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(viewer(port)) for _ in range(web.VIEWERS)]
        for each in first:
            said(each, "hello")
        for _ in range(4):
            with viewer(port) as late:
                assert "close a page" in said(late, "notice")["text"]
                with pytest.raises(ConnectionClosed) as ended:
                    late.recv(timeout=30)
                assert ended.value.rcvd.code == 1013
        assert len(running[1].sessions) == web.VIEWERS
        for each in (first[0], first[-1]):
            tick = snapshot(each)[2]
            while snapshot(each)[2] <= tick:
                pass


def test_a_viewer_that_never_reads_keeps_nobody_waiting(running, port):
    """Its session computes on and keeps the newest snapshot alone; it ends with its connection."""
    with viewer(port) as bystander:
        said(bystander, "scene")
        bystander.send(json.dumps({"do": "world", "task": "field", "nodes": 500, "seed": 3}))
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made, answer = handshake(port, made=made)
        assert answer.startswith("HTTP/1.1 101")
        world = b'{"do":"world","task":"field","nodes":2000,"seed":3}'
        made.sendall(masked(world) + masked(b'{"do":"speed","ticks":120}'))
        seen, grown = 0, []
        with contextlib.closing(made):
            while seen < 80:  # the bystander goes on all the while
                seen += snapshot(bystander)[3] == 500
                grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert grown[-1] - grown[len(grown) // 2] < 50_000  # kB: its snapshots do not pile up
        settle(running[1], 1)


def test_a_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port={number} .* expected a free port"):
            web.listen("127.0.0.1", number)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "http://localhost:"), ("0.0.0.0", "http://localhost:")]
)
def test_the_address_of_the_page(host, shown):
    made = web.listen(host, 0)
    with made:
        assert web.address(made).startswith(shown)
