"""Ray: one actor for each part, on this machine or on a cluster.

Ray places the actors, reserves their CPUs and GPUs, starts an actor again whose process or node has
died, and begins its work again. :class:`Actor` is what runs in a process of its own, and
:class:`Actors` starts the actors' work and says when all of them are done.

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
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hogwild.cluster.host import Host, Plan
from hogwild.cluster.worker import Executor, Mail, Status, T, Version, Watch, agreed
from hogwild.errors import ConfigError, ConvergenceError

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

SOON, PAUSE, LATER = 0.001, 0.005, 0.02
"""Seconds that an actor sleeps: least and most without news, and between them where it waits for
mail. Mail wakes it."""
POLL, SHARE, RARELY = 0.01, 0.03, 0.5
"""Seconds between two looks at the statuses: a share of the time since the start, at least and at
most. A look takes a few milliseconds of every actor."""
PATIENCE, BUSY = 60.0, 600.0
"""Seconds after which an actor that does not answer counts as lost: where the cluster lacks room
for it, and where it has room, so that the machine is only busy."""


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
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host:  # where nobody listens, Ray itself would wait for a minute
            socket.create_connection((host, int(port)), timeout=5.0).close()
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"address={address!r}: no cluster of Ray answers there ({error}); expected HOST:PORT "
            f"of a cluster that `ray start --head` has started, or leave the address out"
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


def results(refs: list[Any]) -> list[Any]:
    """The results; an error of the library's own is raised as itself."""
    try:
        return list(ray.get(refs))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, BaseException) else error) from error


class Actor:
    """A host in a process of its own.

    Args:
        plan: What all hosts share.
        number: The part.
        every: Seconds between two checkpoints.
    """

    def __init__(self, plan: Plan, number: int, every: float = 5.0) -> None:
        torch.set_num_threads(1)
        self.host, self.number, self.every = Host(plan, number), number, every
        self.slow = 1.0  # how many times longer an update takes, to compare
        self.phase: int | None = None
        self.stopped, self.keep, self.wake = 0, True, threading.Event()
        self.gate = threading.Lock()
        self.flights: dict[int, tuple[Any, Mail]] = {}
        self.newest: tuple[int, Status] | None = None  # with its phase

    # -- calls of the executor ---------------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host. Mail of a phase that has ended cannot reach its next work."""
        with self.gate:
            return getattr(self.host, method)(*args)

    def pace(self, slow: float) -> None:
        """Take so many times longer for an update."""
        self.slow = slow

    @ray.method(concurrency_group="control", max_task_retries=-1)
    def stop(self, phase: int, save: bool) -> None:
        """End :meth:`run` of this phase after the current update, also if it begins later; then
        write the checkpoint, if ``save`` is true."""
        self.keep = save
        self.stopped = max(self.stopped, phase)
        self.wake.set()

    @ray.method(concurrency_group="control", max_task_retries=-1)
    def pid(self) -> int:
        """The number of the process."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def status(self, phase: int) -> Status | None:
        """The last status of this phase; ``None`` before the first update."""
        newest = self.newest
        return newest[1] if newest is not None and newest[0] == phase else None

    # -- packets -----------------------------------------------------------------------------------

    @ray.method(concurrency_group="receive")
    def receive(self, phase: int, sender: int, mail: Mail) -> int | None:
        """Take mail of another actor; returns the life of this actor's worker, or ``None`` if the
        mail was not taken. Mail of another phase is not."""
        worker = self.host
        with self.gate:
            if phase != self.phase or worker.work is None:
                return None
            device = worker.work.h.device
            if mail.packet is not None:
                mail = replace(mail, packet=torch.from_numpy(np.array(mail.packet)).to(device))
            taken = worker.receive(sender, mail)
        self.wake.set()
        return worker.version[0] if taken else None

    def _push(self, peers: dict[int, Any], wait: float = 0.0) -> None:
        """Send to all peers that lack something and to which nothing is under way."""
        worker, phase = self.host, self.phase
        for q in worker.doing.part.peers:
            if q in self.flights:
                ref, mail = self.flights[q]
                if not ray.wait([ref], timeout=wait)[0]:
                    continue
                del self.flights[q]
                with contextlib.suppress(ray.exceptions.RayError):  # the peer has died
                    worker.has_arrived(q, mail, ray.get(ref))
            if worker.owes(q):
                mail = worker.outgoing(q)
                if mail.packet is not None:
                    mail = replace(mail, packet=mail.packet.cpu().numpy())
                self.flights[q] = peers[q].receive.remote(phase, self.number, mail), mail

    # -- work --------------------------------------------------------------------------------------

    def run(self, phase: int, peers: dict[int, Any]) -> Version:
        """Update and push, at this actor's own pace, until :meth:`stop` is called; returns the
        version in the end."""
        if self.host.work is None:  # the process died, and Ray begins anew
            self.host.start()
        worker = self.host
        self.enter(phase)
        saved, nap = time.monotonic(), SOON
        while self.stopped < phase:
            began = time.monotonic()
            self.wake.clear()
            changed = worker.update()
            if changed and self.slow > 1.0:
                time.sleep((self.slow - 1.0) * (time.monotonic() - began))
                worker.took = time.monotonic() - began
            self._push(peers)
            self.newest = phase, worker.status()
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
        return worker.version

    def enter(self, phase: int) -> None:
        """Take packets of a phase, for rounds with barriers and for the last exchange."""
        self.flights.clear()
        self.host.delivered.clear()
        self.phase = phase

    def round(self, peers: dict[int, Any], update: bool = True) -> Status:
        """One update, and packets to all peers, which have arrived when this returns. Where a peer
        has died they cannot arrive, and :meth:`stop` ends the round."""
        began, worker = time.monotonic(), self.host
        if not update:
            worker.look()
        elif worker.update() and self.slow > 1.0:
            time.sleep((self.slow - 1.0) * (time.monotonic() - began))
        phase = self.phase or 0
        while self.stopped < phase and any(worker.owes(q) for q in worker.doing.part.peers):
            self._push(peers, wait=1.0)
        return worker.status()


class Actors(Executor):
    """One actor for each part.

    Args:
        plan: What all hosts share.
        count: Number of parts.
        address, cpus, gpus, restarts: As in :func:`hogwild.cluster.infer`.
        every: Seconds between two checkpoints.
    """

    def __init__(
        self,
        plan: Plan,
        count: int,
        *,
        address: str | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        restarts: int = 5,
        every: float = 5.0,
    ) -> None:
        self.plan, self.count = plan, count
        self.barriers = False  # whether all wait for each other after every update, to compare
        self.cpus, self.gpus, self.most = cpus, gpus, restarts
        self.mends = True  # whether a host that died can go on from its checkpoint
        self.phase = 0
        self.owns = connect(address, count, cpus, gpus)
        self.actors: list[Any] = []
        remote: Any = ray.remote
        made = remote(concurrency_groups={"receive": 1, "control": 2})(Actor).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=restarts, scheduling_strategy="SPREAD"
        )
        try:
            self.actors = [made.remote(plan, p, every) for p in range(count)]
            self._await_all()
            self.peers = dict(enumerate(self.actors))
        except BaseException:
            self.close()
            raise

    def _await_all(self) -> None:
        """Wait until all actors are alive; an error of a constructor is raised here."""
        have, began = ray.cluster_resources(), time.monotonic()
        need = {"CPU": self.cpus * self.count, "GPU": self.gpus * self.count}
        has_room = all(have.get(kind, 0) >= some for kind, some in need.items())
        missing, ready = [actor.pid.remote() for actor in self.actors], list[Any]()
        while missing and time.monotonic() - began < (BUSY if has_room else PATIENCE):
            found, missing = ray.wait(missing, num_returns=len(missing), timeout=RARELY)
            ready += found
        try:
            results(ready)
        except ray.exceptions.RayActorError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(
                f"a worker could not start ({reason}); expected that all machines see "
                f"{self.plan.graph} and have this library, and that no worker dies more than "
                f"restarts={self.most} times"
            ) from error
        if missing:
            raise ConfigError(
                f"Ray has not started {len(missing)} of {self.count} workers within "
                f"{time.monotonic() - began:.0f} s; they need {self.cpus:g} CPUs and {self.gpus:g} "
                f"GPUs each, and the cluster has {have.get('CPU', 0):g} CPUs and "
                f"{have.get('GPU', 0):g} GPUs in all"
            )

    # -- calls -------------------------------------------------------------------------------------

    def pace(self, slow: dict[int, float]) -> None:
        """Slow some parts down by these factors, and no others."""
        results([actor.pace.remote(slow.get(p, 1.0)) for p, actor in enumerate(self.actors)])

    def patiently(self, step: Callable[[], T]) -> T:
        for _ in range(self.most * self.count + 1):
            try:
                return step()
            except ray.exceptions.RayActorError as error:
                found = error
                self.restarts += 1
                self._await_all()
        raise found

    def call(self, method: str, *args: Any) -> list[Any]:
        self.mends = method != "adopt" and self.mends
        return results([actor.call.remote(method, *args) for actor in self.actors])

    # -- work --------------------------------------------------------------------------------------

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        self.phase += 1
        reads, began = self.call("reads"), time.monotonic()

        def over(statuses: list[Status]) -> bool | None:
            """Whether the parts are done; ``None``: neither that, nor is the time over."""
            spent, go_on = time.monotonic() - began, True
            if len(statuses) == self.count:
                go_on = watch is None or watch(spent, statuses) is not False
                if agreed(statuses, reads):
                    return True
            return None if go_on and (seconds is None or spent <= seconds) else False

        runs: list[Any] = []
        try:
            if self.barriers:
                done = self._rounds(over)
            else:
                retries = -1 if self.mends else 0
                for actor in self.actors:
                    run = actor.run.options(max_task_retries=retries)
                    runs.append(run.remote(self.phase, self.peers))
                done = self._watched(runs, over)
            if not done:
                self._settle()
        except BaseException:
            with contextlib.suppress(Exception):  # end all loops, and let the actors save
                for actor in self.actors:
                    actor.stop.remote(self.phase, True)
                ray.wait(runs, num_returns=len(runs), timeout=10.0)
            raise
        return done

    def _watched(self, runs: list[Any], over: Callable[[list[Status]], bool | None]) -> bool:
        """Watch the running actors until they are done, or the time is over."""
        began = time.monotonic()
        polls: dict[int, Any] = {}
        seen: dict[int, Status] = {}
        died: set[int] = set()
        while True:
            time.sleep(min(max(POLL, SHARE * (time.monotonic() - began)), RARELY))
            ended, _ = ray.wait(runs, num_returns=len(runs), timeout=0)
            self._ended(ended)
            for p, actor in enumerate(self.actors):  # one question at a time
                if p not in polls:
                    polls[p] = actor.status.remote(self.phase)
            ready, _ = ray.wait(list(polls.values()), num_returns=len(polls), timeout=5 * POLL)
            for p in [p for p, ref in polls.items() if ref in ready]:
                seen.pop(p, None)
                try:
                    found = ray.get(polls.pop(p))
                except ray.exceptions.RayActorError:
                    died.add(p)
                    continue
                if found is not None:
                    seen[p] = found
                    self.restarts += p in died
                    died.discard(p)
            done = over([seen[p] for p in sorted(seen)])
            if done is not None:
                for actor in self.actors:
                    actor.stop.remote(self.phase, not done)
                if self._ended(runs) != [seen[p].version for p in sorted(seen)] and done:
                    raise ray.exceptions.RayActorError  # one died when all were done
                return done

    def _ended(self, runs: list[Any]) -> list[Version]:
        """What these runs returned."""
        try:
            return results(runs)
        except ray.exceptions.ActorDiedError as error:
            if not self.mends:
                raise
            raise ConvergenceError(
                f"a worker has died and is not back; Ray starts a worker again at most "
                f"restarts={self.most} times, where the cluster has room for it"
            ) from error

    def _settle(self) -> None:
        """Exchange the newest packets without updates."""
        self.phase += 1
        results([actor.enter.remote(self.phase) for actor in self.actors])
        results([actor.round.remote(self.peers, False) for actor in self.actors])
        self.call("look")

    def _rounds(self, over: Callable[[list[Status]], bool | None]) -> bool:
        """Rounds with barriers."""
        results([actor.enter.remote(self.phase) for actor in self.actors])
        while True:
            done = over(results([actor.round.remote(self.peers) for actor in self.actors]))
            if done is not None:
                return done

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for actor in self.actors:
                ray.kill(actor)
        self.actors = []
        if self.owns:
            self.owns = False
            ray.shutdown()
