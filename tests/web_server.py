"""A real server on loopback, for tests."""

import contextlib
import socket
import threading
import time

import uvicorn

from hogwild.web import server as web
from hogwild.web.show import home


@contextlib.contextmanager
def served(found=None, names=()):
    """The port of a server that runs in a thread, and what its viewers share."""
    found = home() if found is None else found
    made = web.listen("127.0.0.1", 0)
    server = uvicorn.Server(web.configuration(found, names))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [made]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield made.getsockname()[1], found
    finally:
        server.should_exit = True
        thread.join(20)
        found.close()
        made.close()
        assert not thread.is_alive()


def handshake(port, path="/live", made=None, **headers):
    """A socket on which a WebSocket was asked for, and the first line of the answer."""
    head = {
        "Host": f"127.0.0.1:{port}", "Upgrade": "websocket", "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13", **headers,
    }  # fmt: skip
    made = socket.socket() if made is None else made
    made.settimeout(10.0)
    made.connect(("127.0.0.1", port))
    lines = [f"GET {path} HTTP/1.1", *(f"{key}: {value}" for key, value in head.items())]
    made.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = made.recv(1)
        if not more:
            break
        answer += more
    return made, answer.decode().partition("\r\n")[0]
