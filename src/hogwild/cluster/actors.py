"""One actor of Ray for each part, on this machine or on a cluster.

Ray places the actors (:mod:`hogwild.cluster.actor`), reserves their CPUs and GPUs, and starts an
actor again whose process or node has died. This file starts the actors' work and says when all of
them are done.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from hogwild.cluster.actor import cause_of, connect, ray, remote_actor, results
from hogwild.cluster.engine import Engine, T, Watch
from hogwild.cluster.host import Plan
from hogwild.cluster.worker import Status, agreed
from hogwild.errors import ConfigError, ConvergenceError

POLL, SHARE, RARELY = 0.01, 0.03, 0.5
"""Seconds between two looks at the statuses: a share of the time since the start, at least and at
most. A look takes a few milliseconds of every actor."""
RETRY = 0.3
"""Seconds between two attempts to reach an actor that has died."""
PATIENCE, BUSY = 60.0, 600.0
"""Seconds after which an actor that does not answer counts as lost: where the cluster lacks room
for it, and where it has room, so that the machine is only busy."""


class Actors(Engine):
    """One actor for each part.

    Args:
        plan: What all hosts share.
        count: Number of parts.
        address: Address of a running cluster of Ray; ``None`` starts Ray on this machine.
        cpus: CPUs that Ray reserves for each actor.
        gpus: GPUs that Ray reserves for each actor.
        restarts: How often each actor is started again after its process or node has died.
        barriers: All actors update together, and all packets arrive before the next update.
        slow: How many times longer an update takes, by part.
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
        self.count, self.barriers, self.kind = count, barriers, "solve"
        self.cpus, self.gpus = cpus, gpus
        self.plan = plan
        self.mends = True  # whether a host that died can go on from its checkpoint
        self.phase, self.most = 0, restarts
        self.down: dict[int, float] = {}  # when to try again with actors that have died
        self.owns = connect(address, count, cpus, gpus)
        self.actors: list[Any] = []
        made = remote_actor().options(
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
                f"{self.plan.store} and have this library"
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
        if method == "start" and args:
            self.kind = args[0]
        self.mends = method != "pose" and self.mends
        return results([actor.call.remote(method, *args) for actor in self.actors])

    def one(self, number: int, method: str, *args: Any) -> Any:
        return results([self.actors[number].call.remote(method, *args)])[0]

    def pids(self) -> list[int]:
        """The processes of the actors."""
        return results([actor.pid.remote() for actor in self.actors])

    # -- work --------------------------------------------------------------------------------------

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        self.phase += 1
        reads = self.call("reads")
        runs: dict[int, Any] = {}
        try:
            if self.barriers:
                return self._rounds(reads, watch, seconds)
            runs |= {p: self._run(p) for p in range(self.count)}
            done = self._watched(runs, reads, watch, seconds)
            if not done:
                self._settle()
        except BaseException:
            self._halt(runs)
            raise
        return done

    def _watched(
        self,
        runs: dict[int, Any],
        reads: list[list[int]],
        watch: Watch | None,
        seconds: float | None,
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
            go_on: bool | None = True
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

    def _run(self, p: int) -> Any:
        return self.actors[p].run.remote(self.phase, self.peers)

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
                self._note_loss(p, error)
            except ray.exceptions.RayTaskError as error:
                raise cause_of(error) from error
            seen.pop(p, None)
            self.actors[p].load.remote(self.plan)  # its constructor knows the first plan
            self.actors[p].call.remote("start", self.kind)
            runs[p] = self._run(p)

    def _note_loss(self, p: int, error: Exception) -> None:
        """Count the death of an actor, once until it is heard again."""
        if isinstance(error, ray.exceptions.ActorDiedError):
            raise self._gone(p) from error
        self.restarts += p not in self.down
        self.down[p] = time.monotonic() + RETRY

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
        for _ in range(2):  # letters follow embeddings
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
