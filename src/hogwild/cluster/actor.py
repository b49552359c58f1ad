"""A host as an actor of Ray, in a process of its own.

Packets go from actor to actor. At most one packet is under way between two actors, and the next one
holds the newest embeddings, so that memory stays bounded however slow an actor is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hogwild.cluster.actors import ray
from hogwild.cluster.host import Host, Plan
from hogwild.cluster.worker import Mail, Status

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


__all__ = ["Actor", "remote_actor"]
