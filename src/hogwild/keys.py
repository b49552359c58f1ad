"""A small certificate authority for one swarm.

:func:`make_keys` writes a folder with the authority and one folder for each agent::

    keys/authority.pem       the certificate of the authority
    keys/authority.key       its private key, which signs new agents: it stays at home
    keys/7/authority.pem     a copy
    keys/7/certificate.pem   the certificate of agent 7; its common name is "7"
    keys/7/key.pem           the private key of agent 7

The folder ``keys/7`` is all that the machine of agent 7 needs. Keys are ECDSA on the curve P-256.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hogwild.errors import ConfigError

AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
CERTIFICATE, KEY = "certificate.pem", "key.pem"
AUTHORITY_DAYS = 3650
EARLY = timedelta(days=1)
"""Certificates are valid from a day ago, for machines whose clocks are a little behind."""


@dataclass(frozen=True)
class Keys:
    """The keys that were made.

    Attributes:
        folder: Where they are.
        names: For whom they were made; each has a folder of its own.
        end: The last moment at which the new certificates are valid.
        created: Whether the authority is new.
    """

    folder: Path
    names: tuple[str, ...]
    end: datetime
    created: bool


def make_keys(folder: str | Path, names: Sequence[str], *, days: int = 365) -> Keys:
    """Make certificates and keys for agents.

    The authority is made where the folder has none; otherwise it signs the new agents. Nothing is
    overwritten, and nothing is written where an error is raised.

    Args:
        folder: Where the keys are written. All files have mode 0600.
        names: Names of agents.
        days: How long the new certificates are valid.

    Raises:
        ConfigError: A name is no agent's name or has keys already, or the authority cannot sign.
    """
    if find_spec("cryptography") is None:
        raise ConfigError(
            "keys need the package cryptography, which is missing; install it with: "
            "pip install 'hogwild-gnn[agents]'"
        )
    if not 0 < days <= 100 * 365:
        raise ConfigError(f"days={days!r}; expected a whole number from 1 to 36500")
    where, end = Path(folder), datetime.now(UTC) + timedelta(days=days)
    if where.exists() and not where.is_dir():
        raise ConfigError(f"{where} is a file; expected a folder for the keys, or a new name")
    _check(names)
    taken = [name for name in names if (where / name).exists()]
    if taken:
        raise ConfigError(
            f"{where} has keys for {', '.join(taken)}; expected new names. To replace keys, "
            f"remove their folders first"
        )
    present = [file for file in (AUTHORITY, AUTHORITY_KEY) if (where / file).exists()]
    if len(present) == 1:
        missing = AUTHORITY_KEY if present == [AUTHORITY] else AUTHORITY
        raise ConfigError(
            f"{where} has {present[0]} and not {missing}; expected both files of the authority, or "
            f"a new folder"
        )
    if present:
        key, authority = _load(where)
    else:
        last = max(end, datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
        key, authority = _made(f"hogwild authority {os.urandom(4).hex()}", last)
    if authority.not_valid_after_utc < end:
        raise ConfigError(
            f"days={days}; the authority in {where} ends on {authority.not_valid_after_utc:%F}: "
            f"expected an earlier end, or a new folder with a new authority"
        )
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not present:
        _write(where, {AUTHORITY_KEY: key, AUTHORITY: authority})
    for name in names:
        own, certificate = _made(name, end, authority, key)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=where))  # of mode 0700
        _write(part, {AUTHORITY: authority, CERTIFICATE: certificate, KEY: own})
        part.rename(where / name)  # the folder of an agent is there whole or not at all
    return Keys(where, tuple(names), end, not present)


def names_of(text: str) -> list[str]:
    """The names in ``0-19`` or ``a,b,c`` or both: two whole numbers with a dash are a range."""
    found: list[str] = []
    for part in text.split(","):
        both = re.fullmatch(r"(\d+)-(\d+)", part.strip())
        if both is None:
            found.append(part.strip())
        elif int(both[1]) > int(both[2]):
            raise ConfigError(f"ids={text!r}; expected a range that goes up, for instance 0-19")
        else:
            found += map(str, range(int(both[1]), int(both[2]) + 1))
    return found


def _check(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", name):
            raise ConfigError(
                f"an agent is named {name!r}; expected up to 64 letters, digits, dots, underscores "
                f"and dashes, without a dot in front"
            )
        if name in (AUTHORITY, AUTHORITY_KEY):
            raise ConfigError(f"an agent is named {name!r}, as a file of the authority is")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ConfigError(f"{', '.join(twice)} is named twice; expected each name once")


def _made(name: str, end: datetime, authority: Any = None, signer: Any = None) -> tuple[Any, Any]:
    """A new key, and its certificate: of an agent, which signs handshakes; without an
    ``authority``, of a new authority, which signs certificates, and its own, too."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key, signs = ec.generate_private_key(ec.SECP256R1()), authority is None
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signs else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - EARLY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(signs, 0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not signs:
        uses = x509.oid.ExtendedKeyUsageOID
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([uses.SERVER_AUTH, uses.CLIENT_AUTH]), critical=False
        ).add_extension(issuer, critical=False)
    return key, builder.sign(key if signs else signer, hashes.SHA256())


def _load(where: Path) -> tuple[Any, Any]:
    """The authority of a folder: its key and its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key((where / AUTHORITY_KEY).read_bytes(), None)
        authority = x509.load_pem_x509_certificate((where / AUTHORITY).read_bytes())
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the authority in {where} cannot be read ({error}); expected what `hogwild keys` wrote"
        ) from error
    if authority.public_key() != key.public_key():
        raise ConfigError(
            f"{where / AUTHORITY} and {where / AUTHORITY_KEY} do not belong together; expected "
            f"what `hogwild keys` wrote"
        )
    return key, authority


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    """Write keys and certificates to new files that only their owner can read."""
    from cryptography.hazmat.primitives import serialization as s

    for name, each in files.items():
        if hasattr(each, "private_bytes"):
            pem = each.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        else:
            pem = each.public_bytes(s.Encoding.PEM)
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
