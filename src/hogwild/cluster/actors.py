"""Ray: one actor for each part, on this machine or on a cluster.

Ray places the actors, reserves their CPUs and GPUs, and starts an actor again whose process or node
has died. :class:`Actor` is what runs in a process of its own, and :class:`Actors` starts the
actors' work and says when all of them are done.

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

from hogwild.cluster.engine import Engine, T, Watch
from hogwild.cluster.host import Host, Plan
from hogwild.cluster.worker import Mail, Status, agreed
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
RETRY = 0.3
"""Seconds between two attempts to reach an actor that has died."""
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


class Actor:
    """A host in a process of its own.

    Args:
        plan: What all hosts share.
        number: The part.
        slow: How many times longer an update takes, for experiments with stragglers.
        every: Seconds between two checkpoints.
    """

    def __init__(self, plan: Plan, number: int, slow: float = 1.0, every: float = 5.0) -> None:
        torch.set_num_threads(1)
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

    @ray.method(concurrency_group="control")
    def stop(self, phase: int, save: bool) -> None:
        """End :meth:`run` of this phase after the current update, also if it begins later; then
        write the checkpoint, if asked to."""
        self.keep = save
        self.stopped = max(self.stopped, phase)
        self.wake.set()

    @ray.method(concurrency_group="control")
    def pid(self) -> int:
        """The number of the process."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def status(self, phase: int) -> Status | None:
        """The last status of this phase; ``None`` before the first update."""
        told = self.told
        return told[1] if told is not None and told[0] == phase else None

    # -- packets -----------------------------------------------------------------------------------

    @ray.method(concurrency_group="receive")
    def receive(self, phase: int, sender: int, mail: Mail) -> int | None:
        """Take mail of another actor; returns the life of this actor's worker, or ``None`` if the
        mail was not taken. Mail of another phase is not."""
        worker = self.host.worker
        if phase != self.phase or worker is None:
            return None
        device = worker.work.h.device
        if mail.packet is not None:
            mail = replace(mail, packet=torch.from_numpy(np.array(mail.packet)).to(device))
        taken = worker.receive(sender, mail)
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
                if mail.packet is not None:
                    mail = replace(mail, packet=mail.packet.cpu().numpy())
                self.flights[q] = peers[q].receive.remote(phase, self.number, mail), mail

    # -- work --------------------------------------------------------------------------------------

    def run(self, phase: int, peers: dict[int, Any]) -> None:
        """Update and push, at this actor's own pace, until :meth:`stop` is called."""
        worker = self.host._worker
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
        self.flights.clear()
        self.host._worker.delivered.clear()
        self.phase = phase

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


class Actors(Engine):
    """One actor for each part.

    Args:
        plan: What all hosts share.
        count: Number of parts.
        address, cpus, gpus, restarts, barriers, slow: As in :func:`hogwild.cluster.infer`.
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
        barriers: bool = False,
        slow: dict[int, float] | None = None,
        every: float = 5.0,
    ) -> None:
        self.plan, self.count, self.barriers = plan, count, barriers
        self.cpus, self.gpus = cpus, gpus
        self.mends = True  # whether a host that died can go on from its checkpoint
        self.phase, self.most = 0, restarts
        self.down: dict[int, float] = {}  # when to try again with actors that have died
        self.owns = connect(address, count, cpus, gpus)
        self.actors: list[Any] = []
        remote: Any = ray.remote
        made = remote(concurrency_groups={"receive": 1, "control": 2})(Actor).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=restarts, scheduling_strategy="SPREAD"
        )
        try:
            slow = slow or {}
            self.actors = [made.remote(plan, p, slow.get(p, 1.0), every) for p in range(count)]
            self._require_room()
            self.peers = dict(enumerate(self.actors))
        except BaseException:
            self.close()
            raise

    def _patience(self) -> float:
        """Seconds to wait for actors that Ray starts."""
        have = ray.cluster_resources()
        need = {"CPU": self.cpus * self.count, "GPU": self.gpus * self.count}
        return BUSY if all(have.get(kind, 0) >= some for kind, some in need.items()) else PATIENCE

    def _require_room(self) -> None:
        """Wait for all actors; an error of a constructor is raised here."""
        waiting, began = [actor.pid.remote() for actor in self.actors], time.monotonic()
        ready, missing = ray.wait(waiting, num_returns=len(waiting), timeout=RARELY)
        while missing and time.monotonic() - began < self._patience():
            ready, missing = ray.wait(waiting, num_returns=len(waiting), timeout=RARELY)
        try:
            results(ready)
        except ray.exceptions.RayActorError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(
                f"a worker could not start ({reason}); expected that all machines see "
                f"{self.plan.graph} and have this library"
            ) from error
        if missing:
            have = ray.cluster_resources()
            raise ConfigError(
                f"Ray has not started {len(missing)} of {len(waiting)} workers within "
                f"{time.monotonic() - began:.0f} s; they need {self.cpus:g} CPUs and {self.gpus:g} "
                f"GPUs each, and the cluster has {have.get('CPU', 0):g} CPUs and "
                f"{have.get('GPU', 0):g} GPUs in all"
            )

    # -- calls -------------------------------------------------------------------------------------

    def load(self, plan: Plan) -> None:
        """Give another graph in as many parts, or another model, to the same processes."""
        self.plan = plan
        self._await_all()

    def pace(self, slow: dict[int, float]) -> None:
        """Slow some parts down by these factors, and no others."""
        results([actor.pace.remote(slow.get(p, 1.0)) for p, actor in enumerate(self.actors)])

    def _await_all(self) -> None:
        """Wait until all actors are alive and have the plan."""
        began = time.monotonic()
        for p, actor in enumerate(self.actors):
            while True:
                try:
                    results([actor.load.remote(self.plan)])
                    break
                except ray.exceptions.RayActorError as error:
                    gone = isinstance(error, ray.exceptions.ActorDiedError)
                    if gone or time.monotonic() - began > self._patience():
                        raise self._gone(p) from error
                    time.sleep(RETRY)

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
        self.mends = method != "pose" and self.mends
        return results([actor.call.remote(method, *args) for actor in self.actors])

    # -- work --------------------------------------------------------------------------------------

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        self.phase += 1
        reads = self.call("reads")
        runs: dict[int, Any] = {}
        try:
            if self.barriers:
                return self._rounds(reads, watch, seconds)
            runs |= {p: a.run.remote(self.phase, self.peers) for p, a in self.peers.items()}
            done = self._watched(runs, reads, watch, seconds)
            if not done:
                self._settle()
        except BaseException:
            self._halt(runs)
            raise
        return done

    def _watched(
        self, runs: dict[int, Any], reads: Any, watch: Watch | None, seconds: float | None
    ) -> bool:
        """Watch the running actors until they are done."""
        began = time.monotonic()
        asked: dict[int, Any] = {}
        seen: dict[int, Status] = {}
        while True:
            time.sleep(min(max(POLL, SHARE * (time.monotonic() - began)), RARELY))
            self._mend(runs, seen)
            self._ask(asked, seen)
            statuses = [seen[p] for p in sorted(seen)]
            spent = time.monotonic() - began
            go_on = None
            if len(statuses) == self.count:
                go_on = None if watch is None else watch(spent, statuses)
                if agreed(statuses, reads):
                    self._stop(runs, save=False)
                    return True
            if go_on is False or (seconds is not None and spent > seconds):
                self._stop(runs, save=True)
                return False

    def _halt(self, runs: dict[int, Any]) -> None:
        """End all loops and let the actors save their parts."""
        with contextlib.suppress(Exception):
            for actor in self.actors:
                actor.stop.remote(self.phase, True)
            if runs:
                ray.wait(list(runs.values()), num_returns=len(runs), timeout=10.0)

    def _ask(self, asked: dict[int, Any], seen: dict[int, Status]) -> None:
        """Ask every actor for its status, once at a time."""
        for p, actor in enumerate(self.actors):
            if p not in asked:
                asked[p] = actor.status.remote(self.phase)
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=5 * POLL)
        for p, ref in list(asked.items()):
            if ref in ready:
                del asked[p]
                try:
                    found = ray.get(ref)
                except ray.exceptions.RayActorError:
                    found = None
                if found is None:
                    seen.pop(p, None)
                else:
                    seen[p] = found
                    self.down.pop(p, None)

    def _mend(self, runs: dict[int, Any], seen: dict[int, Status]) -> None:
        """Start the work of actors again that have died and are back."""
        now = time.monotonic()
        ready, _ = ray.wait(list(runs.values()), num_returns=len(runs), timeout=0)
        for p, ref in list(runs.items()):
            if ref not in ready or now < self.down.get(p, 0.0):
                continue
            try:
                ray.get(ref)
            except ray.exceptions.RayActorError as error:
                if not self.mends:
                    raise
                if isinstance(error, ray.exceptions.ActorDiedError):
                    raise self._gone(p) from error
                self.restarts += p not in self.down  # once until it is heard again
                self.down[p] = now + RETRY
            except ray.exceptions.RayTaskError as error:
                raise cause_of(error) from error
            seen.pop(p, None)
            self.actors[p].load.remote(self.plan)  # its constructor knows the first plan
            self.actors[p].call.remote("start")
            runs[p] = self.actors[p].run.remote(self.phase, self.peers)

    def _gone(self, p: int) -> ConvergenceError:
        return ConvergenceError(
            f"worker {p} has died and is not back; Ray starts a worker again at most "
            f"restarts={self.most} times, where the cluster has room for it"
        )

    def _stop(self, runs: dict[int, Any], save: bool) -> None:
        """Stop all loops. If an actor has died meanwhile, its error is raised, and
        :meth:`patiently` begins again from the checkpoints."""
        for actor in self.actors:
            actor.stop.remote(self.phase, save)
        results(list(runs.values()))

    def _settle(self) -> None:
        """Exchange the newest packets without updates."""
        self.phase += 1
        results([actor.enter.remote(self.phase) for actor in self.actors])
        results([actor.round.remote(self.peers, False) for actor in self.actors])
        self.call("look")

    def _rounds(self, reads: list[list[int]], watch: Watch | None, seconds: float | None) -> bool:
        """Rounds with barriers."""
        began = time.monotonic()
        results([actor.enter.remote(self.phase) for actor in self.actors])
        while True:
            statuses = results([actor.round.remote(self.peers) for actor in self.actors])
            spent = time.monotonic() - began
            go_on = None if watch is None else watch(spent, statuses)
            if agreed(statuses, reads):
                return True
            if go_on is False or (seconds is not None and spent > seconds):
                self._settle()
                return False

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for actor in self.actors:
                ray.kill(actor)
        self.actors = []
        if self.owns:
            self.owns = False
            ray.shutdown()
