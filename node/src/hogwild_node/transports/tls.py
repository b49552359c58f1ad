"""Certificates of one agent, with the standard library alone: who it is, and who refuses it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from hogwild_node.errors import SetupError

ALERT = 0.5
"""Seconds in which a listener that refuses a certificate says so; it answers at once."""


@dataclass(frozen=True)
class Certificates:
    """Files for mutual TLS (``hogwild keys`` makes them).

    Attributes:
        authority: The certificate of the swarm's authority.
        certificate: The agent's own certificate; its common name is the agent's name.
        key: The agent's private key.
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: str | Path) -> Certificates:
        """The files of one agent's folder, as ``hogwild keys`` names them."""
        where = Path(folder)
        return cls(where / "authority.pem", where / "certificate.pem", where / "key.pem")

    def check(self, name: str | None = None) -> None:
        """Check that these files are usable now and belong to the agent of this name, if it is
        known.

        The agent shakes hands with itself in memory. The handshake checks what neighbours will
        check: the key fits the certificate, the authority signed it, and it is valid today.

        Raises:
            SetupError: Neighbours would refuse the agent.
        """
        folder = "a folder" if name is None else f"the folder of agent {name}"
        for path in (self.authority, self.certificate, self.key):
            if not path.is_file():
                raise SetupError(f"{path} is missing; expected {folder} that `hogwild keys` made")
        try:
            found = _shake(self._context(server=True), self._context(server=False))
        except ssl.SSLCertVerificationError as error:
            raise SetupError(
                f"neighbours would refuse {self.certificate}: {_why(error)}; expected a "
                f"certificate from `hogwild keys` that {self.authority.name} signed, and a clock "
                f"that is right"
            ) from error
        except ssl.SSLError as error:
            raise SetupError(
                f"the certificates beside {self.certificate} cannot be used: {_why(error)}; "
                f"expected {folder} that `hogwild keys` made"
            ) from error
        except OSError as error:
            raise SetupError(
                f"the certificates beside {self.certificate} cannot be read: {error.strerror}"
            ) from error
        if name is not None and found != name:
            raise SetupError(
                f"{self.certificate} is the certificate of {found}, and this agent is {name}; "
                f"expected the folder of agent {name}"
            )

    def refusal(self, host: str, port: int, name: str, wait: float = 2.0) -> str | None:
        """Why there is no link to an agent; ``None``: it cannot be reached, or certificates are
        not the cause.

        Args:
            host: Where the agent listens.
            port: Its port.
            name: Its name.
            wait: Seconds to wait for an answer.
        """
        try:
            plain = socket.create_connection((host, port), wait)
        except OSError:
            return None
        try:
            with plain, self._context(server=False).wrap_socket(plain) as link:
                found = _common_name(link.getpeercert())
                link.settimeout(ALERT)
                with contextlib.suppress(TimeoutError):  # it waits for this agent to speak
                    link.recv(1)  # a listener says only now that it refuses this agent
        except ssl.SSLCertVerificationError as error:
            return f"its certificate is refused here: {_why(error)}"
        except ssl.SSLError as error:
            return f"it does not take this agent's certificate: {_why(error)}"
        except OSError:
            return "it does not answer a TLS handshake; it may run without certificates"
        return None if found == name else f"it shows the certificate of {found}"

    def _context(self, *, server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # an agent is known by its name, wherever it is
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key, password="")  # never ask at a terminal
        return context


def wants_certificates(host: str, port: int, wait: float = 2.0) -> bool:
    """Whether whoever listens there speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said to it
    try:
        with socket.create_connection((host, port), wait) as plain, context.wrap_socket(plain):
            return True
    except OSError:  # SSLError is one
        return False


def _shake(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The common name that a server shows, after a handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    todo = list(ends)
    while todo:
        for end in list(todo):
            try:
                end.do_handshake()
                todo.remove(end)
            except ssl.SSLWantReadError:
                pass
    return _common_name(ends[0].getpeercert())


def _common_name(certificate: object) -> str:
    """The common name in what :meth:`ssl.SSLSocket.getpeercert` gives."""
    parts = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return next((value for part in parts for key, value in part if key == "commonName"), "nobody")


def _why(error: ssl.SSLError) -> str:
    """What is wrong, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = error.reason or (os.strerror(error.errno) if error.errno else str(error))
    return reason.replace("_", " ").lower()
