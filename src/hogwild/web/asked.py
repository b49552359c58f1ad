"""Agents at addresses: who runs somewhere on a network, and nobody has collected their words.

An agent without certificates answers a question over UDP, or tells Zenoh sessions that subscribe,
how it is (:mod:`hogwild_node.transports`). It names its neighbours and their addresses, so that one
address finds a whole swarm. Nothing but questions and subscriptions is ever sent.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hogwild.errors import ConfigError
from hogwild.web.said import NEAR, Said
from hogwild.web.worlds import MOST
from hogwild_node.errors import NodeError
from hogwild_node.transports.udp import QUESTION
from hogwild_node.transports.zenoh import PROTOCOLS, WATCHED, endpoint, tls_settings

PLACE = re.compile(r"([a-z]+/)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):\d{1,5}")
EVERY = 0.2
"""Seconds between two questions to an agent that answers."""
SELDOM = 5.0
"""Seconds between two questions to an address that never answers, at most."""
ROOM, MOST_ROOM = 1_200, 60_000
"""Bytes of a question: an answer is not longer. One datagram has room for so many."""
PACE = 60_000.0
"""Bytes a second that one address is sent at most. Somebody may answer in the name of another, who
is then asked long questions."""


def places(text: str) -> list[str] | None:
    """Addresses, separated by commas; ``None``: the text is something else."""
    found = [part.strip() for part in text.split(",")]
    return found if all(PLACE.fullmatch(part) for part in found) else None


class Asked:
    """The words of agents at addresses, and of whom they are linked to.

    Args:
        addresses: ``HOST:PORT``, which is tried with UDP and with Zenoh, or ``PROTOCOL/HOST:PORT``,
            which is Zenoh's.
        certificates: A folder of ``hogwild keys``, of whom the agents call their controller.

    Raises:
        ConfigError: An address is none, or no host has its name; Zenoh is needed and missing; the
            certificates cannot be used.
    """

    def __init__(self, addresses: Sequence[str], certificates: Path | None = None) -> None:
        self.addresses, self.heard = list(addresses), dict[str, tuple[Said, float]]()
        self._lock, self._stop = threading.Lock(), threading.Event()
        plain = [] if certificates else [place for place in addresses if "/" not in place]
        self._zenoh: _Links | None = None
        if find_spec("zenoh") is not None:
            self._zenoh = _Links(self, certificates)
        elif len(plain) < len(addresses):
            raise ConfigError(
                "agents that talk over Zenoh, and Zenoh is missing; expected the extra: pip "
                'install "hogwild-gnn[agents]"'
            )
        for place in addresses:
            try:
                endpoint(place, "an agent to watch")
                host, _, port = place.rpartition("/")[2].rpartition(":")
                socket.getaddrinfo(host.strip("[]"), int(port))
            except NodeError as error:
                raise ConfigError(str(error)) from error
            except (OSError, UnicodeError) as error:
                raise ConfigError(
                    f"an agent to watch has the address {place!r}, which cannot be resolved "
                    f"({error}); expected HOST:PORT"
                ) from error
        self._questions = _Questions(self, plain)
        if self._zenoh is not None:
            self._zenoh.follow(addresses)
        self._thread = threading.Thread(target=self._run, name="hogwild-asked", daemon=True)
        self._thread.start()

    def lines(self) -> list[tuple[Said, float]]:
        """What every agent last said, and the seconds since."""
        now = time.monotonic()
        with self._lock:
            return [(said, now - at) for said, at in self.heard.values()]

    def close(self) -> None:
        """Ask no longer."""
        self._stop.set()
        self._thread.join(5.0)

    @property
    def ended(self) -> bool:
        """Whether nobody is asked any more."""
        return self._stop.is_set()

    def take(self, raw: bytes) -> tuple[dict[str, Any], list[str]] | None:
        """Keep a line; the line and the addresses that it tells. ``None``: it is none."""
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        if not isinstance(line, dict):
            return None
        with contextlib.suppress(ValueError):
            said = Said.of(line)
            with self._lock:
                if said.name in self.heard or len(self.heard) < MOST:
                    self.heard[said.name] = said, time.monotonic()
        told = line.get("addresses")
        told = told[:NEAR] if isinstance(told, list) else []
        return line, [at for at in told if isinstance(at, str) and PLACE.fullmatch(at)]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._questions.turn(self._stop)
            if self._zenoh is not None:
                self._zenoh.turn({*self._questions.answering})
        self._questions.close()
        if self._zenoh is not None:
            self._zenoh.close()


class _Questions:
    """Questions over UDP. A thread finds addresses of names: that may take seconds each, and agents
    may tell any names."""

    def __init__(self, asked: Asked, places: Iterable[str]) -> None:
        self.asked = asked
        self.sockets: dict[int, socket.socket] = {}
        self.names: SimpleQueue[str | None] = SimpleQueue()
        self.found: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
        self.called: dict[tuple[int, Any], set[str]] = {}
        self.room: dict[tuple[int, Any], int] = {}
        self.due: dict[tuple[int, Any], tuple[float, float]] = {}
        self.answering: set[str] = set()
        self.known: set[str] = set()
        for place in places:
            self.follow(place)
        threading.Thread(target=self._resolve, name="hogwild-names", daemon=True).start()

    def follow(self, place: str) -> None:
        """Ask at this address, too."""
        if place in self.known or len(self.known) >= MOST or "/" in place:
            return
        self.known.add(place)
        self.names.put(place)

    def _resolve(self) -> None:
        while (place := self.names.get()) is not None and not self.asked.ended:
            host, _, port = place.rpartition(":")
            with contextlib.suppress(OSError, UnicodeError, OverflowError):  # Zenoh may know it
                one = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
                self.found.put((place, one[0], one[4]))

    def _meet(self) -> None:
        """Take in the addresses that were found."""
        while not self.found.empty():
            place, family, where = self.found.get()
            self.called.setdefault((family, where), set()).add(place)
            if (family, where) in self.due:
                continue
            if family not in self.sockets:
                self.sockets[family] = made = socket.socket(family, socket.SOCK_DGRAM)
                made.setblocking(False)
            self.due[family, where] = 0.0, EVERY
            self.room[family, where] = ROOM

    def turn(self, stop: threading.Event) -> None:
        """Ask whom it is time to ask, and read what has come."""
        self._meet()
        now = time.monotonic()
        for place, (when, wait) in list(self.due.items()):
            if when <= now:
                family, where = place
                with contextlib.suppress(OSError):
                    self.sockets[family].sendto(QUESTION.ljust(self.room[place]), where)
                self.due[place] = now + max(wait, self.pause(place)), min(2.0 * wait, SELDOM)
        stop.wait(EVERY / 4)
        for family, each in self.sockets.items():
            for _ in range(4 * MOST):
                try:
                    raw, where = each.recvfrom(MOST_ROOM)
                except BlockingIOError:
                    break
                except OSError:
                    continue  # a question found nobody
                if (family, where) in self.due:
                    self._answer((family, where), raw)

    def _answer(self, place: tuple[int, Any], raw: bytes) -> None:
        found = self.asked.take(raw)
        if found is None:
            return
        line, told = found
        longer = line.get("longer")
        if isinstance(longer, int) and 0 < longer <= MOST_ROOM:
            self.room[place] = max(self.room[place], longer + 200)
        soon = time.monotonic() + max(EVERY, self.pause(place))
        self.due[place] = min(self.due[place][0], soon), EVERY
        self.answering |= self.called[place]
        for each in told:
            self.follow(each)

    def pause(self, place: tuple[int, Any]) -> float:
        """Seconds between two questions to this address at least."""
        return self.room[place] / PACE

    def close(self) -> None:
        self.names.put(None)
        for each in self.sockets.values():
            each.close()


class _Links:
    """A Zenoh session that subscribes to what agents say of themselves. It listens nowhere."""

    def __init__(self, asked: Asked, certificates: Path | None) -> None:
        import zenoh

        self.zenoh, self.asked, self.certificates = zenoh, asked, certificates
        self.session: Any = None
        self.linked: frozenset[str] = frozenset()
        self.wanted: set[str] = set()
        self.due = 0.0
        if certificates is not None:
            from hogwild_node.transports.tls import Certificates

            keys = Certificates.of(certificates)
            try:
                keys.check()
            except NodeError as error:
                raise ConfigError(str(error)) from error
            self.tls = tls_settings(keys)

    def follow(self, places: Iterable[str]) -> None:
        """Have links to these addresses, too. Zenoh's own threads call it."""
        plain = "tcp" if self.certificates is None else "tls"
        for place in places:
            with contextlib.suppress(NodeError):
                found = endpoint(place, "an agent", plain)
                if len(self.wanted) < MOST and found.split("/")[0] in PROTOCOLS:
                    self.wanted.add(found)

    def turn(self, over_udp: set[str]) -> None:
        """Open the session anew where there are other addresses; links cannot be added to one."""
        now = time.monotonic()
        places = frozenset(p for p in list(self.wanted) if p.partition("/")[2] not in over_udp)
        if now < self.due or places == self.linked:
            return
        self.close()
        self.linked, self.due = places, now + 1.0
        if not places:
            return
        config = self.zenoh.Config()
        settings: dict[str, Any] = {
            "mode": "peer", "scouting/multicast/enabled": False, "scouting/gossip/enabled": False,
            "open/return_conditions/declares": False, "listen/endpoints": [],
            "connect/endpoints": sorted(places), "transport/unicast/open_timeout": 800,
            "connect/retry": {
                "period_init_ms": 200, "period_max_ms": 4000, "period_increase_factor": 2,
            },
            **({} if self.certificates is None else self.tls),
        }  # fmt: skip
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        try:
            self.session = self.zenoh.open(config)
        except self.zenoh.ZError:
            self.linked = frozenset()  # later
            return
        heard = self.zenoh.handlers.Callback(self._heard, indirect=False)
        self.session.declare_subscriber(WATCHED, heard)

    def _heard(self, sample: Any) -> None:
        raw = sample.payload.to_bytes()
        if len(raw) <= MOST_ROOM:
            found = self.asked.take(raw)
            if found is not None:
                self.follow(found[1])

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()
