"""Plain UDP: for links so lossy that TCP would only wait, and where nothing may be installed.

A packet is a datagram. A sender is known by its address, which is no proof of who it is: use Zenoh
with TLS where strangers can reach the network.

Whoever sends :data:`QUESTION` is told how the agent is. The answer is never longer than the
question, which may be padded: nobody can have an agent send more to a victim than they send
themselves. Where it would be longer, the answer says only how long.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from hogwild_node.errors import SetupError, TransportError
from hogwild_node.transports import Received, Transport, split

LARGEST = 65_507
STAMP = 35
"""Linux's SO_TIMESTAMPNS: the kernel says when a datagram arrived. An agent reads it only at its
next turn; without the kernel's time its packets would seem to take as long as turns are apart."""
MANY = 4096
"""Datagrams that are read at a time at most, so that a flood cannot hold an agent up."""
QUESTION = b"hogwild: how are you?\n"
MOST_QUESTIONS = 8
"""Questions that are answered in a turn at most."""


def address(text: str | None, whose: str) -> tuple[str, int]:
    """``HOST:PORT`` as a pair."""
    found = split(text or "")
    if found is None:
        raise SetupError(
            f"{whose} has the address {text!r}; expected HOST:PORT, for instance 127.0.0.1:21001"
        )
    return found


def _arrival(extra: list[tuple[int, int, bytes]]) -> float | None:
    """When a datagram arrived, by :func:`time.monotonic`; ``None``: the kernel does not say."""
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == STAMP and len(data) >= 16:
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            waited = time.time() - seconds - 1e-9 * nanoseconds
            return time.monotonic() - max(waited, 0.0)
    return None


class UDPTransport(Transport):
    """One agent's links over UDP.

    Args:
        listen: Where the agent listens, ``HOST:PORT``; on loopback by default.
    """

    def __init__(self, listen: str) -> None:
        host, port = address(listen, "the agent")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind((host, port))
        except OSError as error:
            self.socket.close()
            raise TransportError(
                f"cannot listen on {listen}: {error.strerror}; expected a free port of this machine"
            ) from error
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, STAMP, 1)
        self.addresses: dict[str, tuple[str, int]] = {}
        self.names: dict[tuple[str, int], str] = {}
        self.foreign: str | None = None
        """The first address without a neighbour from which a datagram came."""
        self.questions: dict[Any, int] = {}

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        addresses: dict[str, tuple[str, int]] = {}
        for name, text in neighbours.items():
            host, port = address(text, f"neighbour {name}")
            try:
                found = socket.getaddrinfo(host, port, self.socket.family, socket.SOCK_DGRAM)
            except (OSError, UnicodeError) as error:
                raise SetupError(
                    f"neighbour {name} has the address {text!r}, which cannot be resolved "
                    f"({error}); expected HOST:PORT"
                ) from error
            where = str(found[0][4][0]), int(found[0][4][1])
            if where in addresses.values():
                raise SetupError(
                    f"neighbour {name} has the address {text!r} of another neighbour; expected an "
                    f"address for each"
                )
            addresses[name] = where
        self.addresses = addresses
        self.names = {where: name for name, where in self.addresses.items()}

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        try:
            self.socket.sendto(raw, self.addresses[to])
        except OSError:
            return  # lost, as any datagram may be

    def arrived(self) -> list[Received]:
        found: list[Received] = []
        for _ in range(MANY):
            try:
                raw, extra, _, where = self.socket.recvmsg(LARGEST, 64)
            except BlockingIOError:
                break
            except OSError:
                continue  # an earlier datagram was refused by its receiver
            name = self.names.get(where[:2])
            if name is not None:
                found.append(Received(name, raw, _arrival(extra)))
            elif raw.startswith(QUESTION):
                if len(self.questions) < MOST_QUESTIONS:
                    self.questions[where] = len(raw)
            elif self.foreign is None:
                self.foreign = f"{where[0]}:{where[1]}"
        return found

    def refusal(self, name: str) -> str | None:
        if self.foreign is None:
            return None
        return f"no packet from it; packets come from {self.foreign}, where no neighbour listens"

    def tell(self, line: Callable[[], str]) -> None:
        questions, self.questions = self.questions, {}
        raw = line().encode() if questions else b""
        for where, room in questions.items():
            said = raw if len(raw) <= room else json.dumps({"longer": len(raw)}).encode()
            with contextlib.suppress(OSError):
                self.socket.sendto(said[:room], where)

    def close(self) -> None:
        self.socket.close()
