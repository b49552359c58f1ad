"""Executors of hosts: the interface, and the one in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from hogwild.cluster import local
from hogwild.cluster.host import Host, Plan
from hogwild.cluster.local import Disorder
from hogwild.cluster.worker import Status, Worker

T = TypeVar("T")
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
    def one(self, number: int, method: str, *args: Any) -> Any:
        """Call a method of one host."""

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


class InProcess(Engine):
    """All hosts in this process, one after the other.

    Args:
        plan: What all hosts share.
        count: Number of parts.
        disorder: The order of updates, delays, losses and deaths.
    """

    def __init__(self, plan: Plan, count: int, disorder: Disorder | None = None) -> None:
        self.count, self.disorder, self.kind = count, disorder or Disorder(), "solve"
        self.hosts = [Host(plan, p) for p in range(count)]

    def call(self, method: str, *args: Any) -> list[Any]:
        if method == "start" and args:
            self.kind = args[0]
        return [getattr(host, method)(*args) for host in self.hosts]

    def one(self, number: int, method: str, *args: Any) -> Any:
        return getattr(self.hosts[number], method)(*args)

    def _revive(self, number: int) -> Worker:
        self.restarts += 1
        self.hosts[number].h = None
        self.hosts[number].start(self.kind)
        found = self.hosts[number].worker
        assert found is not None
        return found

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        began = time.monotonic()
        workers = [host._worker for host in self.hosts]

        def told(tick: int, statuses: list[Status]) -> bool:
            spent = time.monotonic() - began
            go_on = None if watch is None else watch(spent, statuses)
            return go_on is not False and (seconds is None or spent < seconds)

        done = local.run(workers, self.disorder, revive=self._revive, watch=told)
        if not done:
            for _ in range(2):  # letters follow embeddings
                local.exchange(workers)
        return done
