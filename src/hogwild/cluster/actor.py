"""Ray: its import, the connection to it, and a host as an actor of Ray in a process of its own.

The other files of the package import Ray from here, so that one place says what is missing.

Packets go from actor to actor. At most one packet is under way between two actors, and the next one
holds the newest embeddings, so that memory stays bounded however slow an actor is.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hogwild.cluster.host import Host, Plan
from hogwild.cluster.worker import Mail, Status
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


SOON, PAUSE, LATER = 0.001, 0.005, 0.02
"""Seconds that an actor sleeps: least and most without news, and between them where it waits for
mail. Mail wakes it."""


class Actor:
    """A host in a process of its own.

    Args:
        plan: What all hosts share.
        number: The part.
        slow: How many times longer an update takes, for experiments with stragglers.
        every: Seconds between two checkpoints.
    """

    def __init__(self, plan: Plan, number: int, slow: float = 1.0, every: float = 5.0) -> None:
        torch.set_num_threads(plan.threads)
        self.host, self.number, self.slow, self.every = Host(plan, number), number, slow, every
        self.phase: int | None = None
        self.stopped, self.keep, self.wake = 0, True, threading.Event()
        self.flights: dict[int, tuple[Any, Mail]] = {}
        self.told: tuple[int, Status] | None = None  # with its phase

    # -- calls of the engine -----------------------------------------------------------------------

    def load(self, plan: Plan) -> None:
        """Take another graph or another model."""
        if plan != self.host.plan:
            self.host = Host(plan, self.number)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host."""
        return getattr(self.host, method)(*args)

    def pace(self, slow: float) -> None:
        """Take so many times longer for an update."""
        self.slow = slow

    def stop(self, phase: int, save: bool) -> None:
        """End :meth:`run` of this phase after the current update, also if it begins later; then
        write the checkpoint, if asked to."""
        self.keep = save
        self.stopped = max(self.stopped, phase)
        self.wake.set()

    def pid(self) -> int:
        """The number of the process."""
        return os.getpid()

    def status(self, phase: int) -> Status | None:
        """The last status of this phase; ``None`` before the first update."""
        told = self.told
        return told[1] if told is not None and told[0] == phase else None

    # -- packets -----------------------------------------------------------------------------------

    def receive(self, phase: int, sender: int, mail: Mail) -> int | None:
        """Take mail of another actor; returns the life of this actor's worker, or ``None`` if the
        mail was not taken. Mail of another phase is not."""
        worker = self.host.worker
        if phase != self.phase or worker is None:
            return None
        device = worker.work.h.device
        packet = tuple(torch.from_numpy(np.array(x)).to(device) for x in mail.packet)
        taken = worker.receive(sender, replace(mail, packet=packet))
        self.wake.set()
        return worker.version[0] if taken else None

    def _push(self, peers: dict[int, Any], wait: float = 0.0) -> None:
        """Send to all peers that lack something and to which nothing is under way."""
        worker, phase = self.host._worker, self.phase
        for q in worker.work.links.peers:
            if q in self.flights:
                ref, mail = self.flights[q]
                if not ray.wait([ref], timeout=wait)[0]:
                    continue
                del self.flights[q]
                with contextlib.suppress(ray.exceptions.RayError):  # the peer has died
                    worker.has_arrived(q, mail, ray.get(ref))
            if worker.owes(q):
                mail = worker.outgoing(q)
                mail = replace(mail, packet=tuple(x.cpu().numpy() for x in mail.packet))
                self.flights[q] = peers[q].receive.remote(phase, self.number, mail), mail

    # -- work --------------------------------------------------------------------------------------

    def run(self, phase: int, peers: dict[int, Any]) -> None:
        """Update and push, at this actor's own pace, until :meth:`stop` is called."""
        worker = self.host._worker
        self.flights.clear()
        worker.delivered.clear()
        self.phase = phase
        saved, nap = time.monotonic(), SOON
        while self.stopped < phase:
            began = time.monotonic()
            self.wake.clear()
            changed = worker.update()
            if changed and self.slow > 1.0:
                time.sleep((self.slow - 1.0) * (time.monotonic() - began))
                worker.took = time.monotonic() - began
            self._push(peers)
            self.told = phase, worker.status()
            if time.monotonic() - saved > self.every:
                worker.save()
                saved = time.monotonic()
            nap = SOON if changed or worker.has_mail else min(2.0 * nap, LATER)
            if not changed and not worker.has_mail:
                self.wake.wait(nap)
            ended = time.monotonic()
            while worker.expects(time.monotonic() - ended) and self.stopped < phase:
                self.wake.wait(PAUSE)
                self.wake.clear()
                self._push(peers)
        if self.keep:
            worker.save()
        self.phase = None

    def enter(self, phase: int) -> None:
        """Take packets of a phase, for rounds with barriers and for the last exchange."""
        self.phase = phase
        self.flights.clear()
        self.host._worker.delivered.clear()

    def round(self, peers: dict[int, Any], update: bool = True) -> Status:
        """One update, and packets to all peers, which have arrived when this returns. Where a peer
        has died they cannot arrive, and :meth:`stop` ends the round."""
        began, worker = time.monotonic(), self.host._worker
        if not update:
            worker.look()
        elif worker.update() and self.slow > 1.0:
            time.sleep((self.slow - 1.0) * (time.monotonic() - began))
        phase = self.phase or 0
        while self.stopped < phase and any(worker.owes(q) for q in worker.work.links.peers):
            self._push(peers, wait=1.0)
        return worker.status()


GROUPS = {"receive": 1, "control": 2}


def remote_actor() -> Any:
    """The actor's class as Ray knows it."""
    for group, names in {"receive": ["receive"], "control": ["stop", "status", "pid"]}.items():
        for name in names:
            setattr(Actor, name, ray.method(concurrency_group=group)(getattr(Actor, name)))
    made: Any = ray.remote
    return made(concurrency_groups=GROUPS)(Actor)


__all__ = ["Actor", "cause_of", "connect", "ray", "remote_actor", "results"]
