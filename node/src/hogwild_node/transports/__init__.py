"""How packets travel: one small interface, and one file for each network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Received:
    """A packet that arrived.

    Attributes:
        sender: The neighbour whose link the packet came over.
        raw: Its bytes.
        at: When it arrived, by the receiver's clock; ``None``: when it is read.
    """

    sender: str
    raw: bytes
    at: float | None = None


class Transport(AbstractContextManager["Transport"], ABC):
    """The links of one agent to its neighbours.

    A link is lossy and unordered, and a newer packet may overwrite an older one. :meth:`send` and
    :meth:`receive` never wait.
    """

    @abstractmethod
    def connect(self, neighbours: Mapping[str, str | None]) -> None:
        """Have links to these neighbours, each with its address, and to no others."""

    @abstractmethod
    def send(self, to: str, raw: bytes, *, hello: bool) -> None:
        """Send a packet to a neighbour, now or never."""

    @abstractmethod
    def receive(self) -> list[Received]:
        """What has arrived since the last call: of each neighbour the newest packets."""

    def control(self) -> list[bytes]:
        """What the owner of the agent has sent it since the last call: new features or
        neighbours."""
        return []

    def tell(self, line: Callable[[], str]) -> None:
        """Tell whoever watches the agent how it is, if anybody does: only then ``line`` is called.
        It is called once a turn."""
        return

    def refusal(self, name: str) -> str | None:
        """Why there is no link to a silent neighbour, where the transport can find out; may wait.
        It is called from another thread than the other methods."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leave the network."""

    def __exit__(self, *_: object) -> None:
        self.close()


def split(address: str) -> tuple[str, int] | None:
    """Host and port of ``HOST:PORT``; ``None``: it is something else."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        return None
    return host.strip("[]"), int(port)
