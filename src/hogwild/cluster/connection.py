"""Ray: its import, the connection to a cluster or to a Ray on this machine, and results of tasks.

The other files of the package import Ray from here, so that one place says what is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np

from hogwild.errors import ConfigError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
    import ray.exceptions
except ImportError as error:  # pragma: no cover
    raise ConfigError(
        "several workers need Ray, which is not installed; install it with: "
        "pip install 'hogwild-gnn[cluster]', or use workers=1"
    ) from error


def connect(address: str | None, count: int, cpus: float, gpus: float) -> bool:
    """Connect to Ray, or start it on this machine; returns whether this call did."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {
        "logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True,
    }  # fmt: skip
    if address is None:
        need = max(os.cpu_count() or 1, int(np.ceil(count * cpus)))
        with _loopback():
            ray.init(
                address="local", num_cpus=need, include_dashboard=False,
                _node_ip_address="127.0.0.1", **options,
            )  # fmt: skip
        return True
    _require_answer(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"address={address!r}: no cluster of Ray answers there ({reason}); start one with "
            f"`ray start --head`, or leave the address out"
        ) from error
    return True


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Let Ray keep the address 127.0.0.1, which it otherwise replaces by one that other machines
    reach. A Ray without this switch listens there."""
    constants = importlib.import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    vars(constants)["ENABLE_RAY_CLUSTER"] = False
    try:
        yield
    finally:
        vars(constants)["ENABLE_RAY_CLUSTER"] = before


def _require_answer(address: str) -> None:
    """Raise soon where nobody listens; Ray itself would wait for a minute."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"address={address!r}: no cluster of Ray answers there ({error}); expected HOST:PORT "
            f"of a running cluster, or leave the address out"
        ) from error


def results(refs: list[Any]) -> list[Any]:
    """The results; an error of the library's own is raised as itself."""
    try:
        return list(ray.get(refs))
    except ray.exceptions.RayTaskError as error:
        raise cause_of(error) from error


def cause_of(error: Exception) -> BaseException:
    """The exception that a task raised, behind Ray's."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


__all__ = ["cause_of", "connect", "ray", "results"]
