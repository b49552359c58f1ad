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

import contextlib
import hashlib
import re
import struct
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hogwild_node.errors import SetupError
from hogwild_node.transports.zenoh import _import, config_of, endpoint

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


def cdr(*fields: tuple[str, Any]) -> bytes:
    """A message in CDR: numbers in a format of :mod:`struct`, aligned to their size, counted from
    the header's end; texts (``"s"``) as their length with the closing zero, bytes and zero."""
    body = bytearray()
    for form, value in fields:
        raw = value.encode() + b"\0" if form == "s" else b""
        form, value = ("I", len(raw)) if raw else (form, value)
        body += bytes(-len(body) % struct.calcsize(form)) + struct.pack(f"<{form}", value) + raw
    return b"\x00\x01\x00\x00" + bytes(body)


def number(value: float) -> bytes:
    """``std_msgs/msg/Float64``."""
    return cdr(("d", value))


def numbers(values: Sequence[float]) -> bytes:
    """``std_msgs/msg/Float64MultiArray`` with an empty layout."""
    return cdr(("I", 0), ("I", 0), ("I", len(values)), *(("d", value) for value in values))


def diagnostics(
    nanoseconds: int, level: int, name: str, message: str, hardware: str, values: dict[str, str]
) -> bytes:
    """``diagnostic_msgs/msg/DiagnosticArray`` with one status."""
    pairs = [("s", text) for pair in values.items() for text in pair]
    return cdr(
        ("i", nanoseconds // 10**9), ("I", nanoseconds % 10**9), ("s", ""), ("I", 1), ("B", level),
        ("s", name), ("s", message), ("s", hardware), ("I", len(values)), *pairs,
    )  # fmt: skip


def attachment(sequence: int, nanoseconds: int, gid: bytes) -> bytes:
    """What ``rmw_zenoh`` attaches to every sample, 33 bytes."""
    return struct.pack("<qqB16s", sequence, nanoseconds, 16, gid)


# -- names -----------------------------------------------------------------------------------------


class Names:
    """What an agent is called in ROS 2.

    Args:
        id: The agent's name.
        domain: The ROS domain.
        topic: The topic that its topics are below; by default ``/hogwild/agent_<id>``.

    Attributes:
        base: That topic without the leading slash, which is also the full name of the agent's node.
    """

    def __init__(self, id: str, domain: int = 0, topic: str | None = None) -> None:
        base = f"hogwild/agent_{re.sub('[^A-Za-z0-9_]', '_', id)}"
        self.domain, self.base = domain, base if topic is None else topic.removeprefix("/")
        if not all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", part) for part in self.base.split("/")):
            raise SetupError(
                f"the ROS 2 topic is {topic!r}; expected names of letters, digits and underscores "
                f"with slashes between them, for instance /hogwild/agent_7"
            )
        if domain not in range(LARGEST_DOMAIN + 1):
            raise SetupError(
                f"the ROS 2 domain is {domain!r}; expected a whole number from 0 to "
                f"{LARGEST_DOMAIN}"
            )

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
        self.zenoh, self.id, self.names = _import(), id, Names(id, domain, topic)
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
        self.publishers: list[tuple[Any, bytes]] = []
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
        if not self.publishers:
            return
        now, self.sequence = time.time_ns(), self.sequence + 1
        for (publisher, gid), raw in zip(
            self.publishers, self._messages(reading, now), strict=True
        ):
            with contextlib.suppress(self.zenoh.ZError):  # lost, as any message may be
                publisher.put(raw, attachment=attachment(self.sequence, now, gid))

    def _messages(self, reading: Reading, now: int) -> list[bytes]:
        """One message for each topic."""
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
        return [
            numbers(reading.prediction.tolist()), number(reading.residual), number(reading.calm),
            status,
        ]  # fmt: skip

    def _connect(self) -> None:
        config = config_of({"mode": "client", "connect/endpoints": [self.router]})
        session = None
        while session is None:
            try:
                session = self.zenoh.open(config)
            except self.zenoh.ZError:  # a client cannot open without its router
                if self._closed.wait(RETRY):
                    return
        self._session, found = session, []
        name = str(session.info.zid())
        alive, drop = session.liveliness(), self.zenoh.CongestionControl.DROP
        self._tokens = [alive.declare_token(self.names.node_token(name))]
        for place, (topic, kind) in enumerate(self.topics.items(), 1):
            token = self.names.publisher_token(name, place, topic, kind)
            key = self.names.key(topic, kind)
            gid = hashlib.blake2b(token.encode(), digest_size=16).digest()
            found.append((session.declare_publisher(key, congestion_control=drop), gid))
            self._tokens.append(alive.declare_token(token))
        self.publishers = found
        if self._closed.is_set():
            session.close()

    def close(self) -> None:
        """Leave the router."""
        self._closed.set()
        self._thread.join(2.0 * RETRY)
        self.publishers, session, self._session = [], self._session, None
        if session is not None:
            session.close()
