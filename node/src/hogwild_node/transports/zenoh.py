"""Zenoh in peer mode: no router, no broker, one hop.

Agent i publishes to agent j under ``hogwild/<model>/<kind>/<i>/<j>`` and reads its neighbours' keys
addressed to itself. Scouting and gossip are off, so that peers do not forward: the transport itself
enforces one hop. Of each neighbour the newest hello and the newest data packet are kept, each with
the time at which it arrived.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hogwild_node.errors import SetupError, TransportError
from hogwild_node.transport import Received, Transport

KINDS = {"hello": True, "data": False}
PROTOCOLS = ("tcp", "udp", "tls", "quic")


@dataclass(frozen=True)
class Certificates:
    """Files for mutual TLS (``hogwild keys`` makes them).

    Attributes:
        authority: The certificate of the swarm's authority.
        certificate: The agent's own certificate; its name is the agent's.
        key: The agent's private key.
    """

    authority: Path
    certificate: Path
    key: Path


def _import() -> Any:
    try:
        import zenoh
    except ImportError as error:
        raise SetupError(
            "Zenoh is not installed; install it with `pip install hogwild-node[zenoh]`, or use "
            "--transport udp"
        ) from error
    return zenoh


def endpoint(text: str | None, whose: str, default: str = "tcp") -> str:
    """An address as Zenoh's locator: ``tcp/HOST:PORT``, where no protocol is named."""
    found = text or ""
    if "/" not in found:
        found = f"{default}/{found}"
    protocol, _, rest = found.partition("/")
    host, _, port = rest.rpartition(":")
    if protocol not in PROTOCOLS or not host or not port.isdigit():
        raise SetupError(
            f"{whose} has the address {text!r}; expected HOST:PORT, or PROTOCOL/HOST:PORT with one "
            f"of {', '.join(PROTOCOLS)}"
        )
    return found


class ZenohTransport(Transport):
    """One agent's links over Zenoh.

    Args:
        name: The agent's name.
        model: The model's name on the network.
        listen: Where the agent listens, ``HOST:PORT`` or ``PROTOCOL/HOST:PORT``.
        certificates: For ``tls``.
        lease: Seconds after which Zenoh gives a silent link up.
    """

    def __init__(
        self,
        name: str,
        model: str,
        listen: str,
        *,
        certificates: Certificates | None = None,
        lease: float = 2.0,
    ) -> None:
        self.zenoh = _import()
        self.name, self.prefix = name, f"hogwild/{model}"
        self.listen, self.certificates, self.lease = listen, certificates, lease
        self.session: Any = None
        self.controls: Any = None
        self.links: dict[str, str | None] = {}
        self.subscribers: list[Any] = []
        self.arrived: dict[tuple[str, str], Received] = {}
        self.publishers: dict[tuple[str, str], Any] = {}

    def _config(self, neighbours: Mapping[str, str | None]) -> Any:
        config = self.zenoh.Config()
        plain = "tcp" if self.certificates is None else "tls"
        there = [endpoint(text, f"neighbour {j}", plain) for j, text in neighbours.items() if text]
        here = endpoint(self.listen, "the agent", plain)
        if self.certificates is not None and not all(x.startswith("tls/") for x in (here, *there)):
            raise SetupError(
                "certificates were given with addresses that are not encrypted; expected tls/… or "
                "no protocol in all addresses"
            )
        settings: dict[str, Any] = {
            "mode": "peer",
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
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
            settings |= {
                "transport/link/tls/root_ca_certificate": str(self.certificates.authority),
                "transport/link/tls/listen_certificate": str(self.certificates.certificate),
                "transport/link/tls/listen_private_key": str(self.certificates.key),
                "transport/link/tls/connect_certificate": str(self.certificates.certificate),
                "transport/link/tls/connect_private_key": str(self.certificates.key),
                "transport/link/tls/enable_mtls": True,
                "access_control": self._access(neighbours),
            }
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        return config

    def _access(self, neighbours: Mapping[str, str | None]) -> dict[str, Any]:
        """Agent j may publish as j, to this agent; nobody may do anything else."""
        rules, subjects, policies = [], [], []
        for j in neighbours:
            rules.append({
                "id": f"from-{j}", "permission": "allow", "flows": ["ingress"],
                "messages": ["put", "declare_subscriber"],
                "key_exprs": [
                    f"{self.prefix}/*/{j}/{self.name}", f"{self.prefix}/*/{self.name}/{j}"
                ],
            })  # fmt: skip
            subjects.append({"id": j, "cert_common_names": [j]})
            policies.append({"rules": [f"from-{j}"], "subjects": [j]})
        rules.append({
            "id": "out", "permission": "allow", "flows": ["egress"],
            "messages": ["put", "declare_subscriber"], "key_exprs": [f"{self.prefix}/**"],
        })  # fmt: skip
        subjects.append({"id": "everybody"})
        policies.append({"rules": ["out"], "subjects": ["everybody"]})
        return {
            "enabled": True, "default_permission": "deny", "rules": rules,
            "subjects": subjects, "policies": policies,
        }  # fmt: skip

    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        for text, whose in ((self.listen, "the agent"), *((a, n) for n, a in neighbours.items())):
            endpoint(text, whose if whose == "the agent" else f"neighbour {whose}")
        if self.session is not None and dict(neighbours) == self.links:
            return
        self.close()
        config = self._config(neighbours)
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
        for j in neighbours:
            for kind in KINDS:
                # Zenoh's own thread calls it. An indirect callback has a Python thread, which would
                # keep a process from ending if its owner forgot to close the transport.
                keep = self.zenoh.handlers.Callback(partial(self._keep, (j, kind)), indirect=False)
                key = f"{self.prefix}/{kind}/{j}/{self.name}"
                self.subscribers.append(self.session.declare_subscriber(key, keep))
                self.publishers[j, kind] = self.session.declare_publisher(
                    f"{self.prefix}/{kind}/{self.name}/{j}", **options
                )

    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        publisher = self.publishers.get((to, "hello" if hello else "data"))
        if publisher is None:
            return
        try:
            publisher.put(raw)
        except self.zenoh.ZError:
            return  # lost, as any packet may be

    def _keep(self, link: tuple[str, str], sample: Any) -> None:
        """Keep a packet until the next turn; a newer one overwrites it."""
        self.arrived[link] = Received(link[0], sample.payload.to_bytes(), time.monotonic())

    def receive(self) -> list[Received]:
        found = [self.arrived.pop(link, None) for link in list(self.arrived)]
        return [received for received in found if received is not None]

    def control(self) -> list[bytes]:
        found: list[bytes] = []
        while self.controls is not None and (sample := self.controls.try_recv()) is not None:
            found.append(sample.payload.to_bytes())
        return found

    def close(self) -> None:
        session, self.session, self.links = self.session, None, {}
        self.subscribers, self.publishers, self.controls, self.arrived = [], {}, None, {}
        if session is not None:
            session.close()
