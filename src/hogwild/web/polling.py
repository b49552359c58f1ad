"""Discover agents by address, and poll what they say of themselves.

An agent without certificates answers a question over UDP, or tells Zenoh sessions that subscribe,
how it is (:mod:`hogwild_node.transports`). It names its neighbours and their addresses, so that one
address finds a whole swarm. Only questions and subscriptions are sent. Everything that arrives is
checked: anybody may have written it.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hogwild.errors import ConfigError
from hogwild.web.worlds import MOST
from hogwild_node.errors import NodeError
from hogwild_node.transports.udp import QUESTION
from hogwild_node.transports.zenoh import PROTOCOLS, WATCHED, config_of, endpoint, tls_settings

PLACE = re.compile(r"([a-z]+/)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):\d{1,5}")
EVERY, SELDOM = 0.2, 5.0
"""Seconds between two questions to an agent that answers; at most, to one that never does."""
ROOM, MOST_ROOM = 1_200, 60_000
"""Bytes of a question: an answer is not longer. One datagram has room for so many."""
PACE = 60_000.0
"""Bytes a second that one address is sent at most. Somebody may answer in the name of another, who
is then asked long questions."""
LARGEST = 1e30
"""Numbers in status lines are smaller: a page draws them in single precision."""
NAME, NEAR = 40, 256
"""Characters of a name, and neighbours of one agent, that are kept."""


@dataclass(frozen=True)
class Status:
    """How one agent is, by its last status line.

    Attributes:
        name: Its name.
        answer: The first output of its model.
        staleness: Age in seconds of the oldest packet that its answer rests on.
        settled: Whether it says that it has settled.
        spent: Updates, packets, bytes.
        residual: How far it is from being settled.
        neighbours: The names of its neighbours.
    """

    name: str
    answer: float
    staleness: float
    settled: bool
    spent: tuple[float, ...]
    residual: float
    neighbours: frozenset[str]

    @classmethod
    def of(cls, line: Any) -> Status:
        """From a status line.

        Raises:
            ValueError: It is none.
        """
        try:
            answer = float(line["prediction"][0])
            spent = [float(line[name]) for name in ("updates", "packets", "bytes")]
            stale, residual = (float(line.get(name) or 0.0) for name in ("staleness", "residual"))
            settled, name, near = line["state"] == "settled", line["id"], line.get("neighbours", [])
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"no status line of an agent ({error})") from error
        if not isinstance(name, str) or not isinstance(near, list):
            raise ValueError("a status line without a name, or without neighbours")
        if not all(abs(value) < LARGEST for value in (answer, stale, residual, *spent)):
            raise ValueError("a status line with numbers that are not finite, or too large")
        others = frozenset(other[:NAME] for other in near[:NEAR] if isinstance(other, str))
        return cls(name[:NAME], answer, stale, settled, tuple(spent), residual, others)


def places(text: str) -> list[str] | None:
    """Addresses, separated by commas; ``None``: the text is something else."""
    found = [part.strip() for part in text.split(",")]
    return found if all(PLACE.fullmatch(part) for part in found) else None


class Poller:
    """The status lines of agents at addresses, and of those that they are linked to.

    Args:
        addresses: ``HOST:PORT``, which is tried with UDP and with Zenoh, or ``PROTOCOL/HOST:PORT``,
            which is Zenoh's.
        certificates: A folder of ``hogwild keys``, of whom the agents call their controller.

    Raises:
        ConfigError: An address is none, or no host has its name; Zenoh is needed and missing; the
            certificates cannot be used.
    """

    def __init__(self, addresses: Sequence[str], certificates: Path | None = None) -> None:
        self.addresses, self.heard = list(addresses), dict[str, tuple[Status, float]]()
        self._lock, self._stop = threading.Lock(), threading.Event()
        plain = [] if certificates else [place for place in addresses if "/" not in place]
        self._zenoh: _Zenoh | None = None
        if find_spec("zenoh") is not None:
            self._zenoh = _Zenoh(self, certificates)
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
        self._udp = _UDP(self, plain)
        if self._zenoh is not None:
            self._zenoh.follow(addresses)
        self._thread = threading.Thread(target=self._run, name="hogwild-polling", daemon=True)
        self._thread.start()

    def lines(self) -> list[tuple[Status, float]]:
        """The last status of every agent, and the seconds since."""
        now = time.monotonic()
        with self._lock:
            return [(status, now - at) for status, at in self.heard.values()]

    def close(self) -> None:
        """Poll no longer."""
        self._stop.set()
        self._thread.join(5.0)

    @property
    def ended(self) -> bool:
        """Whether nobody is polled any more."""
        return self._stop.is_set()

    def take(self, raw: bytes) -> tuple[dict[str, Any], list[str]] | None:
        """Keep a status line; the line and the addresses in it. ``None``: it is none."""
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        if not isinstance(line, dict):
            return None
        with contextlib.suppress(ValueError):
            found = Status.of(line)
            with self._lock:
                if found.name in self.heard or len(self.heard) < MOST:
                    self.heard[found.name] = found, time.monotonic()
        more = line.get("addresses")
        more = more[:NEAR] if isinstance(more, list) else []
        return line, [at for at in more if isinstance(at, str) and PLACE.fullmatch(at)]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._udp.turn(self._stop)
            if self._zenoh is not None:
                self._zenoh.turn({*self._udp.answering})
        self._udp.close()
        if self._zenoh is not None:
            self._zenoh.close()


class _UDP:
    """Questions over UDP. A thread finds addresses of names: that may take seconds each, and agents
    may tell any names."""

    def __init__(self, poller: Poller, addresses: Iterable[str]) -> None:
        self.poller = poller
        self.sockets: dict[int, socket.socket] = {}
        self.names: SimpleQueue[str | None] = SimpleQueue()
        self.found: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
        self.called: dict[tuple[int, Any], set[str]] = {}
        self.room: dict[tuple[int, Any], int] = {}
        self.due: dict[tuple[int, Any], tuple[float, float]] = {}
        self.answering: set[str] = set()
        self.known: set[str] = set()
        for place in addresses:
            self.follow(place)
        threading.Thread(target=self._resolve, name="hogwild-names", daemon=True).start()

    def follow(self, place: str) -> None:
        """Poll this address, too."""
        if place in self.known or len(self.known) >= MOST or "/" in place:
            return
        self.known.add(place)
        self.names.put(place)

    def _resolve(self) -> None:
        while (place := self.names.get()) is not None and not self.poller.ended:
            host, _, port = place.rpartition(":")
            with contextlib.suppress(OSError, UnicodeError, OverflowError):  # Zenoh may know it
                one = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
                self.found.put((place, one[0], one[4]))

    def turn(self, stop: threading.Event) -> None:
        """Send the questions that are due, and read what has come."""
        while not self.found.empty():
            name, family, where = self.found.get()
            self.called.setdefault((family, where), set()).add(name)
            if family not in self.sockets:
                self.sockets[family] = made = socket.socket(family, socket.SOCK_DGRAM)
                made.setblocking(False)
            self.due.setdefault((family, where), (0.0, EVERY))
            self.room.setdefault((family, where), ROOM)
        now = time.monotonic()
        for place, (when, wait) in list(self.due.items()):
            if when <= now:
                family, where = place
                with contextlib.suppress(OSError):
                    self.sockets[family].sendto(QUESTION.ljust(self.room[place]), where)
                self.due[place] = now + max(wait, self._pause(place)), min(2.0 * wait, SELDOM)
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
        found = self.poller.take(raw)
        if found is None:
            return
        line, more = found
        longer = line.get("longer")
        if isinstance(longer, int) and 0 < longer <= MOST_ROOM:
            self.room[place] = max(self.room[place], longer + 200)
        soon = time.monotonic() + max(EVERY, self._pause(place))
        self.due[place] = min(self.due[place][0], soon), EVERY
        self.answering |= self.called[place]
        for each in more:
            self.follow(each)

    def _pause(self, place: tuple[int, Any]) -> float:
        """Seconds between two questions to this address at least."""
        return self.room[place] / PACE

    def close(self) -> None:
        self.names.put(None)
        for each in self.sockets.values():
            each.close()


class _Zenoh:
    """A Zenoh session that subscribes to what agents say of themselves. It listens nowhere."""

    def __init__(self, poller: Poller, certificates: Path | None) -> None:
        import zenoh

        self.zenoh, self.poller, self.plain = zenoh, poller, "tcp"
        self.session: Any = None
        self.linked: frozenset[str] = frozenset()
        self.wanted: set[str] = set()
        self.due, self.tls = 0.0, dict[str, Any]()
        if certificates is not None:
            from hogwild_node.transports.tls import Certificates

            keys = Certificates.of(certificates)
            try:
                keys.check()
            except NodeError as error:
                raise ConfigError(str(error)) from error
            self.plain, self.tls = "tls", tls_settings(keys)

    def follow(self, addresses: Iterable[str]) -> None:
        """Have links to these addresses, too. Zenoh's own threads call it."""
        for place in addresses:
            with contextlib.suppress(NodeError):
                found = endpoint(place, "an agent", self.plain)
                if len(self.wanted) < MOST and found.split("/")[0] in PROTOCOLS:
                    self.wanted.add(found)

    def turn(self, over_udp: set[str]) -> None:
        """Open the session anew where there are other addresses; links cannot be added to one."""
        now = time.monotonic()
        wanted = frozenset(p for p in list(self.wanted) if p.partition("/")[2] not in over_udp)
        if now < self.due or wanted == self.linked:
            return
        self.close()
        self.linked, self.due = wanted, now + 1.0
        if not wanted:
            return
        settings: dict[str, Any] = {
            "mode": "peer",
            "open/return_conditions/declares": False, "listen/endpoints": [],
            "connect/endpoints": sorted(wanted), "transport/unicast/open_timeout": 800,
            "connect/retry": {
                "period_init_ms": 200, "period_max_ms": 4000, "period_increase_factor": 2,
            },
            **self.tls,
        }  # fmt: skip
        try:
            self.session = self.zenoh.open(config_of(settings))
        except self.zenoh.ZError:
            self.linked = frozenset()  # later
            return
        heard = self.zenoh.handlers.Callback(self._heard, indirect=False)
        self.session.declare_subscriber(WATCHED, heard)

    def _heard(self, sample: Any) -> None:
        raw = sample.payload.to_bytes()
        if len(raw) <= MOST_ROOM and (found := self.poller.take(raw)) is not None:
            self.follow(found[1])

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()
