"""Executors of hosts: the interface, and the one in this process.

In this process workers run in an order, with delays, losses and deaths that are drawn from a seed.
This is exact and repeatable: tests of the mathematics use it, and :func:`hogwild.cluster.infer`
with one worker. At every tick one worker, drawn at random, makes an update and sends what its
neighbours lack. As with Ray, at most one packet is under way between two workers, and a packet that
is lost is sent again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hogwild.cluster.host import Host, Plan
from hogwild.cluster.worker import Mail, Status, Worker, agreed
from hogwild.errors import ConfigError

T = TypeVar("T")
TICKS = 100_000
"""Most ticks of a run in this process."""
Watch = Callable[[float, list[Status]], bool | None]
"""Called with the seconds since the start and the statuses of all parts; ``False`` ends the run."""


class Engine(ABC):
    """Runs one host for each part. A context manager that leaves nothing running.

    Attributes:
        count: Number of parts.
        restarts: How often a host died and was made again.
    """

    count: int
    restarts: int = 0

    @abstractmethod
    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all hosts; returns their results."""

    @abstractmethod
    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        """Let all workers work until they are done, or for so many seconds; returns whether they
        are. Afterwards every part has the newest halo, and the checkpoints may be old."""

    def patiently(self, step: Callable[[], T]) -> T:
        """The result of a step; if a host dies meanwhile, that of the step again."""
        return step()

    def close(self) -> None:
        """Stop everything that this engine has started."""
        return None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Disorder:
    """What goes wrong in a run, drawn from ``seed``.

    Attributes:
        seed: The seed.
        delay: Most ticks that a packet is under way.
        loss: Share of packets that are lost.
        kill: Probability that the worker whose turn it is dies instead and is made again.
        kills: Most deaths.
    """

    seed: int = 0
    delay: int = 0
    loss: float = 0.0
    kill: float = 0.0
    kills: int = 1

    def __post_init__(self) -> None:
        for name in ("loss", "kill"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name}={value!r}; expected a share from 0 to 1, 1 excluded")
        if self.delay < 0:
            raise ConfigError(f"delay={self.delay!r}; expected a number of ticks, 0 or more")


class InProcess(Engine):
    """All hosts in this process, one after the other.

    Args:
        plan: What all hosts share.
        count: Number of parts.
        disorder: The order of updates, delays, losses and deaths.
    """

    def __init__(self, plan: Plan, count: int, disorder: Disorder | None = None) -> None:
        self.count, self.disorder = count, disorder or Disorder()
        self.hosts = [Host(plan, p) for p in range(count)]

    def call(self, method: str, *args: Any) -> list[Any]:
        return [getattr(host, method)(*args) for host in self.hosts]

    def revive(self, number: int) -> Worker:
        """Make the worker of a part again, from its checkpoint."""
        self.restarts += 1
        host = self.hosts[number]
        host.h = None
        host.start()
        return host._worker

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        began = time.monotonic()
        workers = [host._worker for host in self.hosts]

        def told(statuses: list[Status]) -> bool:
            spent = time.monotonic() - began
            go_on = None if watch is None else watch(spent, statuses)
            return go_on is not False and (seconds is None or spent < seconds)

        done = _Run(workers, self.disorder, self.revive).go(told)
        if not done:  # every worker gets the newest packets of all others
            for worker in workers:
                for q in worker.work.links.peers:
                    workers[q].receive(worker.number, worker.outgoing(q))
            for worker in workers:
                worker.look()
        return done


class _Run:
    """Workers at work until all are done. Those that die are replaced in the list."""

    def __init__(
        self, workers: list[Worker], disorder: Disorder, revive: Callable[[int], Worker]
    ) -> None:
        self.workers, self.disorder, self.revive = workers, disorder, revive
        self.random = np.random.default_rng(disorder.seed)
        self.under_way: dict[tuple[int, int], tuple[int, Mail]] = {}
        self.deaths = 0

    def go(self, watch: Callable[[list[Status]], bool]) -> bool:
        """Whether all are done. ``watch`` is called with all statuses about once for each worker's
        turn; ``False`` ends the run."""
        reads = [worker.reads for worker in self.workers]
        for tick in range(TICKS):
            due = tick % len(self.workers) == 0
            if not self._turn(tick) or due:
                statuses = [worker.status() for worker in self.workers]
                go_on = not due or watch(statuses)
                if agreed(statuses, reads):
                    return True
                if not go_on:
                    return False
        return False

    def _turn(self, tick: int) -> bool:
        """One worker works; returns whether its packets have changed."""
        self._arrive(tick)
        p = int(self.random.random() * len(self.workers))
        if self.random.random() < self.disorder.kill and self.deaths < self.disorder.kills:
            self.deaths += 1
            # What is under way to the dead worker is lost; what it has sent still arrives.
            self.under_way = {k: v for k, v in self.under_way.items() if k[1] != p}
            self.workers[p] = self.revive(p)
        changed = self.workers[p].update()
        self._send(p, tick)
        return changed

    def _send(self, p: int, tick: int) -> None:
        worker = self.workers[p]
        for q in worker.work.links.peers:
            if worker.owes(q) and (p, q) not in self.under_way:
                delay = int(self.random.integers(self.disorder.delay + 1))
                self.under_way[p, q] = tick + delay, worker.outgoing(q)

    def _arrive(self, tick: int) -> None:
        for (p, q), (when, mail) in list(self.under_way.items()):
            if when > tick:
                continue
            del self.under_way[p, q]
            if self.random.random() < self.disorder.loss:
                continue
            taken = self.workers[q].receive(p, mail)
            # The sender may have died meanwhile: the note of a dead life does no harm.
            if self.workers[p].version[0] == mail.version[0]:
                life = self.workers[q].version[0] if taken else None
                self.workers[p].has_arrived(q, mail, life)
