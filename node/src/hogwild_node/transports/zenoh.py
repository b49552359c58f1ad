"""Zenoh in peer mode: no router, no broker, one hop.

Agent i publishes to agent j under ``hogwild/<model>/<kind>/<i>/<j>`` and reads its neighbours' keys
addressed to itself. Scouting and gossip are off, so that peers do not forward: the transport itself
enforces one hop. Of each neighbour the newest hello and the newest data packets are kept, each with
the time at which it arrived. Whoever subscribes to ``hogwild/<model>/status/<i>`` is told how agent
i is, five times a second.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hogwild_node.errors import SetupError, TransportError
from hogwild_node.transports import Received, Transport, split

if TYPE_CHECKING:
    from hogwild_node.transports.tls import Certificates

KINDS = {"hello": 1, "data": 32}
"""Kinds of packets, and how many of each an agent keeps until its next turn."""
STATUS_PERIOD = 0.2
"""Seconds between two status lines to those who watch."""
WATCHED = "hogwild/*/status/*"
PROTOCOLS = ("tcp", "udp", "tls", "quic")


def _import() -> Any:
    try:
        import zenoh
    except ImportError as error:
        raise SetupError(
            "Zenoh is not installed; install it with `pip install 'hogwild-node[zenoh]'`, or use "
            "--transport udp"
        ) from error
    return zenoh


def config_of(settings: Mapping[str, Any]) -> Any:
    """Zenoh's configuration of a session that looks for nobody beyond its addresses."""
    config = _import().Config()
    alone = {"scouting/multicast/enabled": False, "scouting/gossip/enabled": False}
    for key, value in (alone | dict(settings)).items():
        config.insert_json5(key, json.dumps(value))
    return config


def endpoint(text: str | None, whose: str, default: str = "tcp") -> str:
    """An address as Zenoh's locator: ``tcp/HOST:PORT``, where no protocol is named."""
    found = text or ""
    if "/" not in found:
        found = f"{default}/{found}"
    protocol, _, rest = found.partition("/")
    if protocol not in PROTOCOLS or split(rest) is None:
        raise SetupError(
            f"{whose} has the address {text!r}; expected HOST:PORT, or PROTOCOL/HOST:PORT with one "
            f"of {', '.join(PROTOCOLS)}"
        )
    return found


def tls_settings(certificates: Certificates) -> dict[str, Any]:
    """Zenoh's settings for mutual TLS. Whoever connects needs them too, a controller for
    instance."""
    return {
        f"transport/link/tls/{key}": value
        for key, value in {
            "root_ca_certificate": str(certificates.authority),
            "listen_certificate": str(certificates.certificate),
            "listen_private_key": str(certificates.key),
            "connect_certificate": str(certificates.certificate),
            "connect_private_key": str(certificates.key),
            "enable_mtls": True,
            "verify_name_on_connect": False,  # certificates name agents, and not their addresses
            "close_link_on_expiration": True,
        }.items()
    }


class ZenohTransport(Transport):
    """One agent's links over Zenoh.

    Args:
        name: The agent's name.
        model: The model's name on the network.
        listen: Where the agent listens, ``HOST:PORT`` or ``PROTOCOL/HOST:PORT``.
        certificates: For ``tls``. Then neighbours are known by the names in their certificates, and
            everything that is not theirs to say is dropped.
        controller: The name in the certificate of whoever may send control messages and watch;
            ``None``: nobody may. Without certificates everybody may.
        lease: Seconds after which Zenoh gives a silent link up.
    """

    def __init__(
        self,
        name: str,
        model: str,
        listen: str,
        *,
        certificates: Certificates | None = None,
        controller: str | None = None,
        lease: float = 2.0,
    ) -> None:
        self.zenoh = _import()
        if certificates is not None:
            certificates.check(name)
        elif controller is not None:
            raise SetupError(
                f"controller={controller!r} without certificates; expected certificates too, "
                f"because only certificates say who the controller is"
            )
        self.controller = controller
        self.name, self.prefix = name, f"hogwild/{model}"
        self.listen, self.certificates, self.lease = listen, certificates, lease
        self.told = 0.0
        self._forget()

    def _forget(self) -> None:
        """There is no session, and nothing of one."""
        self.session: Any = None
        self.controls: Any = None
        self.watchers: Any = None
        self.links: dict[str, str | None] = {}
        self.subscribers: list[Any] = []
        self.inbox: dict[tuple[str, str], deque[Received]] = {}
        self.publishers: dict[tuple[str, str], Any] = {}

    def _config(self, neighbours: Mapping[str, str | None]) -> Any:
        plain = "tcp" if self.certificates is None else "tls"
        there = [endpoint(text, f"neighbour {j}", plain) for j, text in neighbours.items()]
        here = endpoint(self.listen, "the agent", plain)
        if self.certificates is not None and not all(x.startswith("tls/") for x in (here, *there)):
            raise SetupError(
                "certificates were given with addresses that are not encrypted; expected tls/… or "
                "no protocol in all addresses"
            )
        settings: dict[str, Any] = {
            "mode": "peer",
            "open/return_conditions/declares": False,  # else every open waits half a second
            "listen/endpoints": [here],
            "connect/endpoints": there,
            "connect/retry": {
                "period_init_ms": 100, "period_max_ms": 500, "period_increase_factor": 1.5,
            },
            "transport/link/tx/lease": int(1000 * self.lease),
            "transport/unicast/open_timeout": 800,
        }  # fmt: skip
        if self.certificates is not None:
            settings |= tls_settings(self.certificates)
            settings["access_control"] = self._access(neighbours)
        return config_of(settings)

    def _access(self, neighbours: Mapping[str, str | None]) -> dict[str, Any]:
        """Zenoh's access control: what is not allowed is denied, in both directions.

        Neighbour j may publish as j to this agent and ask for what this agent sends to j. The
        controller may publish control messages, and watch.
        """
        mine, prefix = self.name, self.prefix
        allowed = {
            j: ([f"{prefix}/{kind}/{j}/{mine}" for kind in KINDS],
                [f"{prefix}/{kind}/{mine}/{j}" for kind in KINDS])
            for j in neighbours
        }  # fmt: skip
        if self.controller in neighbours:
            raise SetupError(
                f"the controller and a neighbour are both named {self.controller}; expected a "
                f"controller with a name of its own"
            )
        if self.controller is not None:
            # Who watches subscribes to all agents at once, and gets what this one says of itself.
            allowed[self.controller] = [f"{prefix}/control/{mine}"], [WATCHED]
        # A subscription travels against its messages: who hears a key declares so to the sender.
        rules = {
            name: [
                {"id": f"{flow}-{message}-{name}", "permission": "allow", "flows": [flow],
                 "messages": [message], "key_exprs": keys}
                for flow, message, keys in (
                    ("ingress", "put", hears), ("egress", "declare_subscriber", hears),
                    ("egress", "put", says), ("ingress", "declare_subscriber", says),
                )
            ]
            for name, (hears, says) in allowed.items()
        }  # fmt: skip
        return {
            "enabled": True, "default_permission": "deny",
            "rules": [rule for some in rules.values() for rule in some],
            "subjects": [{"id": name, "cert_common_names": [name]} for name in rules],
            "policies": [
                {"rules": [rule["id"] for rule in some], "subjects": [name]}
                for name, some in rules.items()
            ],
        }  # fmt: skip

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        if self.session is not None and dict(neighbours) == self.links:
            return
        config = self._config(neighbours)
        former = None if self.session is None else self.links
        self.close()  # the new session listens on the same port
        try:
            self._open(config, neighbours)
        except TransportError:
            if former is not None:
                with contextlib.suppress(TransportError):
                    self._open(self._config(former), former)
            raise

    def _open(self, config: Any, neighbours: Mapping[str, str | None]) -> None:
        try:
            self.session = self.zenoh.open(config)
        except self.zenoh.ZError as error:
            raise TransportError(
                f"Zenoh cannot listen on {self.listen}: {str(error).splitlines()[0]}; expected a "
                f"free port of this machine, and readable certificates where tls is used"
            ) from error
        self.links = dict(neighbours)
        self.controls = self.session.declare_subscriber(
            f"{self.prefix}/control/{self.name}", self.zenoh.handlers.FifoChannel(16)
        )
        options = {"express": True, "congestion_control": self.zenoh.CongestionControl.DROP}
        self.watchers = self.session.declare_publisher(
            f"{self.prefix}/status/{self.name}", **options
        )
        for j in neighbours:
            for kind in KINDS:
                # Zenoh's own thread calls it. An indirect callback has a Python thread, which would
                # keep a process from ending if its owner forgot to close the transport.
                keep = self.zenoh.handlers.Callback(partial(self._keep, (j, kind)), indirect=False)
                key = f"{self.prefix}/{kind}/{j}/{self.name}"
                self.inbox[j, kind] = deque(maxlen=KINDS[kind])
                self.subscribers.append(self.session.declare_subscriber(key, keep))
                self.publishers[j, kind] = self.session.declare_publisher(
                    f"{self.prefix}/{kind}/{self.name}/{j}", **options
                )

    def refusal(self, name: str) -> str | None:
        address = self.links.get(name)
        if not address:
            return None
        plain = "tcp" if self.certificates is None else "tls"
        protocol, _, rest = endpoint(address, name, plain).partition("/")
        where = split(rest)
        assert where is not None  # else the address was refused
        if self.certificates is not None:
            return self.certificates.refusal(*where, name)

        from hogwild_node.transports.tls import wants_certificates  # ssl costs two megabytes

        if protocol == "tcp" and wants_certificates(*where):
            return "it wants certificates; expected --certificates FOLDER, from `hogwild keys`"
        return None

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        publisher = self.publishers.get((to, "hello" if hello else "data"))
        if publisher is not None:
            with contextlib.suppress(self.zenoh.ZError):  # lost, as any packet may be
                publisher.put(raw)

    def _keep(self, link: tuple[str, str], sample: Any) -> None:
        """Keep a packet until the next turn; newer ones overwrite it."""
        kept = self.inbox.get(link)
        if kept is not None:  # none: the link is closed
            kept.append(Received(link[0], sample.payload.to_bytes(), time.monotonic()))

    def arrived(self) -> list[Received]:
        return [kept.popleft() for kept in self.inbox.values() for _ in range(len(kept))]

    def control(self) -> list[bytes]:
        found: list[bytes] = []
        while self.controls is not None and (sample := self.controls.try_recv()) is not None:
            found.append(sample.payload.to_bytes())
        return found

    def tell(self, line: Callable[[], str]) -> None:
        now = time.monotonic()
        if self.watchers is None or now - self.told < STATUS_PERIOD:
            return
        self.told = now
        with contextlib.suppress(self.zenoh.ZError):
            if self.watchers.matching_status.matching:
                self.watchers.put(line())

    def close(self) -> None:
        session = self.session
        self._forget()
        if session is not None:
            session.close()
