"""An agent's status as ROS 2 messages, without ROS on the agent's machine.

ROS 2 nodes hear an agent where they run with ``rmw_zenoh``, the Zenoh middleware of ROS 2. The
status travels over a second Zenoh connection to the router of ``rmw_zenoh``, never over the links
between agents. All messages are standard types:

================  ==================================  =======================================
topic             type                                content
================  ==================================  =======================================
BASE/prediction   ``std_msgs/msg/Float64MultiArray``  the prediction, [out]
BASE/residual     ``std_msgs/msg/Float64``            the residual
BASE/calm         ``std_msgs/msg/Float64``            seconds since anybody in reach was unsettled
/diagnostics      ``diagnostic_msgs/msg/…Array``      the state, and the same as text
================  ==================================  =======================================

A sample of ``rmw_zenoh`` has three parts:

- the key ``<domain>/<topic>/<type>/<hash of the type>``;
- the message in CDR (little endian, behind the header 00 01 00 00);
- an attachment of 33 bytes: sequence number and time in nanoseconds as 64-bit integers, the number
  16, and 16 bytes that name the publisher.

ROS 2 discovers nodes and publishers by liveliness tokens below ``@ros2_lv``.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild_node.errors import SetupError
from hogwild_node.transports.zenoh import _import, endpoint

if TYPE_CHECKING:
    from hogwild_node.registers import Reading

NUMBER, NUMBERS = "std_msgs/msg/Float64", "std_msgs/msg/Float64MultiArray"
DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
HASHES = {
    NUMBER: "RIHS01_705ba9c3d1a09df43737eb67095534de36fd426c0587779bda2bc51fe790182a",
    NUMBERS: "RIHS01_1025ddc6b9552d191f89ef1a8d2f60f3d373e28b283d8891ddcc974e8c55397f",
    DIAGNOSTICS: "RIHS01_5a8a36efb05fb25070fa0fb3810290c0e6cd4862b54a8fb975a1ee8dc55a333e",
}
"""Hashes of the types' definitions (ROS's REP 2016)."""
QOS = "1:2:1,10:,:,:,,"
"""Reliable, volatile, the last ten messages; deadline, lifespan and liveliness as by default."""
OK, WARN = 0, 1
"""Levels of ``diagnostic_msgs/msg/DiagnosticStatus``."""
RETRY = 1.0
"""Seconds between two attempts to reach the router."""
LARGEST_DOMAIN = 232


# -- messages --------------------------------------------------------------------------------------


class Cdr:
    """Writes a message in CDR. Numbers are aligned to their size, counted from the header's end."""

    def __init__(self) -> None:
        self._body = bytearray()

    def put(self, form: str, value: float) -> Cdr:
        """Append a number, in a format of :mod:`struct`."""
        self._body += bytes(-len(self._body) % struct.calcsize(form))
        self._body += struct.pack(f"<{form}", value)
        return self

    def text(self, value: str) -> Cdr:
        """Append a string: its length with the closing zero, its bytes, and the zero."""
        raw = value.encode() + b"\0"
        self.put("I", len(raw))
        self._body += raw
        return self

    def __bytes__(self) -> bytes:
        return b"\x00\x01\x00\x00" + bytes(self._body)


def number(value: float) -> bytes:
    """``std_msgs/msg/Float64``."""
    return bytes(Cdr().put("d", value))


def numbers(values: Sequence[float]) -> bytes:
    """``std_msgs/msg/Float64MultiArray`` with an empty layout."""
    out = Cdr().put("I", 0).put("I", 0).put("I", len(values))
    for value in values:
        out.put("d", value)
    return bytes(out)


def diagnostics(
    nanoseconds: int, level: int, name: str, message: str, hardware: str, values: dict[str, str]
) -> bytes:
    """``diagnostic_msgs/msg/DiagnosticArray`` with one status."""
    out = Cdr().put("i", nanoseconds // 10**9).put("I", nanoseconds % 10**9).text("")
    out.put("I", 1).put("B", level).text(name).text(message).text(hardware)
    out.put("I", len(values))
    for key, value in values.items():
        out.text(key).text(value)
    return bytes(out)


def attachment(sequence: int, nanoseconds: int, gid: bytes) -> bytes:
    """What ``rmw_zenoh`` attaches to every sample, 33 bytes."""
    return struct.pack("<qqB16s", sequence, nanoseconds, 16, gid)


# -- names -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """What an agent is called in ROS 2.

    Attributes:
        domain: The ROS domain.
        base: The topic that its topics are below, and the full name of its node, without the
            leading slash.
    """

    domain: int
    base: str

    @classmethod
    def of(cls, id: str, domain: int = 0, topic: str | None = None) -> Names:
        """The names of an agent; by default its topics are below ``/hogwild/agent_<id>``."""
        base = f"hogwild/agent_{re.sub('[^A-Za-z0-9_]', '_', id)}"
        base = base if topic is None else str(topic).removeprefix("/")
        if not all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", part) for part in base.split("/")):
            raise SetupError(
                f"the ROS 2 topic is {topic!r}; expected names of letters, digits and underscores "
                f"with slashes between them, for instance /hogwild/agent_7"
            )
        whole = isinstance(domain, int) and not isinstance(domain, bool)
        if not whole or not 0 <= domain <= LARGEST_DOMAIN:
            raise SetupError(
                f"the ROS 2 domain is {domain!r}; expected a whole number from 0 to "
                f"{LARGEST_DOMAIN}"
            )
        return cls(domain, base)

    def key(self, topic: str, kind: str) -> str:
        """The key of a topic's samples."""
        return f"{self.domain}/{topic}/{_dds(kind)}/{HASHES[kind]}"

    def node_token(self, session: str) -> str:
        """The liveliness token of the agent's node, in a Zenoh session."""
        return self._token(session, 0, "NN")

    def publisher_token(self, session: str, place: int, topic: str, kind: str) -> str:
        """The liveliness token of a publisher; ``place`` differs between publishers."""
        start = self._token(session, place, "MP")
        return f"{start}/{_mangled(topic)}/{_dds(kind)}/{HASHES[kind]}/{QOS}"

    def _token(self, session: str, place: int, what: str) -> str:
        space, _, node = self.base.rpartition("/")
        return f"@ros2_lv/{self.domain}/{session}/0/{place}/{what}/%/{_mangled(space)}/{node}"


def _dds(kind: str) -> str:
    """``std_msgs/msg/Float64`` as DDS writes it."""
    package, between, name = kind.split("/")
    return f"{package}::{between}::dds_::{name}_"


def _mangled(name: str) -> str:
    """A name with its leading slash in one chunk of a key."""
    return "%" + name.replace("/", "%")


# -- publishing ------------------------------------------------------------------------------------


class StatusPublisher:
    """Publishes what an agent knows to the router of ``rmw_zenoh``.

    The constructor does not wait for the router: a thread looks for it, and readings are dropped
    until it is found. Zenoh finds a router that comes back by itself.

    The connection is a Zenoh *client*. The router of ``rmw_zenoh`` does not forward from one peer
    to another, because ROS 2 nodes find each other by gossip; an agent does not gossip.

    Args:
        router: Where the router listens: ``tcp/HOST:PORT``.
        id: The agent's name.
        domain: The ROS domain.
        topic: The topic that the agent's topics are below; by default ``/hogwild/agent_<id>``.
    """

    def __init__(self, router: str, id: str, *, domain: int = 0, topic: str | None = None) -> None:
        self.zenoh, self.id, self.names = _import(), id, Names.of(id, domain, topic)
        self.router = endpoint(router, "the ROS 2 router")
        if not self.router.startswith(("tcp/", "udp/")):
            raise SetupError(
                f"the ROS 2 router has the address {router!r}; expected tcp/HOST:PORT, for "
                f"instance tcp/127.0.0.1:7447"
            )
        base = self.names.base
        self.topics = {
            f"{base}/prediction": NUMBERS, f"{base}/residual": NUMBER, f"{base}/calm": NUMBER,
            "diagnostics": DIAGNOSTICS,
        }  # fmt: skip
        self.sequence = 0
        self.publishers: dict[str, tuple[Any, bytes]] = {}
        self._session: Any = None
        self._tokens: list[Any] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._connect, daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the router has been found."""
        return bool(self.publishers)

    def publish(self, reading: Reading) -> None:
        """Send a reading, now or never."""
        publishers = self.publishers
        if not publishers:
            return
        now, self.sequence = time.time_ns(), self.sequence + 1
        for topic, raw in self._messages(reading, now).items():
            publisher, gid = publishers[topic]
            try:
                publisher.put(raw, attachment=attachment(self.sequence, now, gid))
            except self.zenoh.ZError:
                continue  # lost, as any message may be

    def _messages(self, reading: Reading, now: int) -> dict[str, bytes]:
        level = WARN if reading.silent else OK
        values = {
            "prediction": ", ".join(f"{x:.9g}" for x in reading.prediction),
            "residual": f"{reading.residual:.3g}", "calm": f"{reading.calm:.3f}",
            "staleness": f"{reading.staleness:.3f}",
            "bound": f"{reading.bound:.3g}", "updates": str(reading.updates),
            "silent neighbours": ", ".join(reading.silent),
        }  # fmt: skip
        status = diagnostics(
            now, level, f"hogwild: agent {self.id}", str(reading.state), self.id, values
        )
        raws = [
            numbers(reading.prediction.tolist()), number(reading.residual), number(reading.calm),
            status,
        ]  # fmt: skip
        return dict(zip(self.topics, raws, strict=True))

    def _connect(self) -> None:
        config = self.zenoh.Config()
        settings = {
            "mode": "client", "connect/endpoints": [self.router],
            "scouting/multicast/enabled": False, "scouting/gossip/enabled": False,
        }  # fmt: skip
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        session = None
        while session is None:
            try:
                session = self.zenoh.open(config)
            except self.zenoh.ZError:  # a client cannot open without its router
                if self._closed.wait(RETRY):
                    return
        self._session, found = session, {}
        name = str(session.info.zid())
        alive, drop = session.liveliness(), self.zenoh.CongestionControl.DROP
        self._tokens = [alive.declare_token(self.names.node_token(name))]
        for place, (topic, kind) in enumerate(self.topics.items(), 1):
            token = self.names.publisher_token(name, place, topic, kind)
            key = self.names.key(topic, kind)
            gid = hashlib.blake2b(token.encode(), digest_size=16).digest()
            found[topic] = session.declare_publisher(key, congestion_control=drop), gid
            self._tokens.append(alive.declare_token(token))
        self.publishers = found
        if self._closed.is_set():
            session.close()

    def close(self) -> None:
        """Leave the router."""
        self._closed.set()
        self._thread.join(2.0 * RETRY)
        self.publishers, session, self._session = {}, self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> StatusPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
