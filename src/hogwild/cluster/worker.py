"""One part at work: what it has heard, what the others have of it, and its checkpoint.

A worker knows nothing of how packets travel: an executor calls :meth:`Worker.receive`,
:meth:`Worker.update` and :meth:`Worker.outgoing`. Two executors do: a seeded one in this process
(:class:`InProcess`), and Ray's actors (:mod:`hogwild.cluster.actors`).

**Versions.** What a worker holds has a version (life, count): the count grows with every change,
the life with every restart from the checkpoint. The newest version wins.

**The end.** A part is settled if its residual, with the halos that it has heard, is within its
limit; it then changes nothing until it hears something new. All parts are done as soon as every
part is settled and has heard the current version of every part that it reads (:func:`agreed`). The
statuses may be taken at different times: the first part to change after its status was taken would
have to hear a version that is newer than the one in a status, so that its sender would have changed
before it. A restarted part has a new life, which nobody has heard.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from hogwild.cluster.work import Work
from hogwild.files import write_atomically

T = TypeVar("T")
Version = tuple[int, int]


@dataclass(frozen=True)
class Mail:
    """What one worker sends to another.

    Attributes:
        version: The version of what it holds.
        answers: The version of the receiver that the sender has read; ``None``: none yet.
        took: Seconds of the sender's last update.
        packet: Embeddings; ``None`` if the receiver has them already.
    """

    version: Version
    answers: Version | None
    took: float
    packet: Any


ALIKE, FAST = 3.0, 2.0
"""Parts whose updates take at most ALIKE times as long are about as fast; parts whose updates take
at most a FAST-th of the time are much faster."""
WAIT, ANSWER = 3.0, 1.0
"""How many times as long as its last update a part waits for mail of parts that are about as fast,
and for answers of parts that are much faster; for the latter only if it has no overlap. Chosen by
a simulation of the times of updates on the grids of ``benchmarks/cluster.py``, not by runs."""
STALLED = 8
"""Updates in a row that did not lower the residual, without news, after which a part gives up: its
limit is below the rounding error."""


@dataclass(frozen=True)
class Status:
    """A part at one time.

    Attributes:
        number: The part.
        version: What it holds.
        heard: The version of each part that it reads, as last heard.
        residual_ratio: Residual relative to its limit; settled up to 1.
        residual: Largest absolute entry of the residual.
        updates: Updates so far.
        bytes: Bytes sent so far.
        ages: Seconds since each part that it reads was last heard.
        stalled: Whether it has given up at its rounding error.
    """

    number: int
    version: Version
    heard: dict[int, Version]
    residual_ratio: float
    residual: float
    updates: int
    bytes: int
    ages: dict[int, float] = field(default_factory=dict)
    stalled: bool = False

    @property
    def settled(self) -> bool:
        """Whether the part changes nothing unless it hears something new."""
        return self.residual_ratio <= 1.0 or self.stalled


def agreed(statuses: Sequence[Status], reads: Sequence[Sequence[int]]) -> bool:
    """Whether all parts are done. ``reads[p]`` are the parts that part p reads."""
    now = {s.number: s.version for s in statuses}
    return all(
        s.settled and all(s.heard.get(q) == now[q] for q in reads[s.number]) for s in statuses
    )


class Worker:
    """One part at work. :meth:`begin` comes first.

    Attributes:
        number: The part.
        work: What it does; ``None``: nothing yet.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.work: Work | None = None

    @property
    def doing(self) -> Work:
        """What it does."""
        assert self.work is not None, "begin() comes first"
        return self.work

    def begin(self, work: Work, checkpoint: Path | None = None) -> None:
        """Begin a new life with this work. A checkpoint of the same shape is continued; ``None``:
        there is none."""
        self.work, self.checkpoint = work, checkpoint
        self.version: Version = (0, 0)
        self.heard: dict[int, Version] = {}
        self.times: dict[int, float] = {}
        self.answers: dict[int, Version | None] = {}  # what each part had read of this one
        self.confirmed: dict[int, Version | None] = {}  # what each part knows this to have read
        self.paces: dict[int, float] = {}  # seconds of each part's last update
        self.took = 0.0  # seconds of this part's last update
        self.delivered: dict[int, Version] = {}
        self.updates = self.bytes = self.quiet = 0
        self.best, self.seen = float("inf"), False
        self._inbox: dict[int, Mail] = {}
        self._lock = threading.Lock()
        self.resumed = self._load()
        self.save()  # before anybody hears of this life

    def reads(self) -> list[int]:
        """The parts whose nodes are in the halo."""
        return sorted(self.doing.part.receives)

    # -- packets -----------------------------------------------------------------------------------

    def receive(self, sender: int, mail: Mail) -> bool:
        """Keep mail until the next update, unless newer mail is there. May be called while an
        update runs. Returns whether this worker now has what the mail is about: an empty packet
        may be about embeddings that an earlier life has received and that this one lacks."""
        with self._lock:
            waiting = self._inbox.get(sender)
            known = self.heard.get(sender) if waiting is None else waiting.version
            if known is not None and mail.version < known:
                return True
            if mail.version != known and mail.packet is None and sender in self.doing.part.receives:
                return False
            if known is not None and mail.version[0] > known[0]:  # it was restarted and forgot
                self.delivered.pop(sender, None)
                self.confirmed.pop(sender, None)
            self.answers[sender], self.paces[sender] = mail.answers, mail.took
            if known is None or mail.version > known:
                self._inbox[sender] = mail
                self.times[sender] = time.monotonic()
            return True

    def owes(self, to: int) -> bool:
        """Whether another part lacks what this part holds now, or does not know what this part has
        read of it."""
        there = self.delivered.get(to)
        if to in self.doing.part.receives and self.confirmed.get(to) != self.heard.get(to):
            return True
        if to in self.doing.part.sends:
            return there != self.version
        return there is None or there[0] != self.version[0]

    def outgoing(self, to: int) -> Mail:
        """What another part should receive now."""
        packet = None if self.delivered.get(to) == self.version else self.doing.packet(to)
        self.bytes += 0 if packet is None else packet.nbytes
        return Mail(self.version, self.heard.get(to), self.took, packet)

    def has_arrived(self, to: int, mail: Mail, life: int | None) -> None:
        """Note that mail has arrived in a life of the receiver; ``None``: it was refused, so that
        the next packet is a full one. Earlier lives than the one last heard do not count."""
        with self._lock:
            if life is None:
                self.delivered.pop(to, None)
                return
            waiting = self._inbox.get(to)
            known = self.heard.get(to) if waiting is None else waiting.version
            if known is None or life >= known[0]:
                self.delivered[to], self.confirmed[to] = mail.version, mail.answers

    @property
    def answered(self) -> bool:
        """Whether all parts that this part reads have read what it holds now."""
        reads = self.doing.part.receives
        return bool(reads) and all(self.answers.get(q) == self.version for q in reads)

    @property
    def _is_read(self) -> bool:
        """Whether all parts that read this part and are read by it have read what it holds now."""
        both = self.doing.part.receives.keys() & self.doing.part.sends.keys()
        return all(self.answers.get(q) == self.version for q in both)

    def expects(self, waited: float) -> bool:
        """Whether mail is worth waiting for, ``waited`` seconds after the last update: that of
        parts that are about as fast and have not sent since, and answers of parts that are much
        faster. A part that has read what this part holds now and is silent has nothing to say."""
        for q in self.doing.part.receives:
            if q not in self.doing.part.sends or self.answers.get(q) == self.version:
                continue
            pace, fast = self.paces.get(q, 0.0), self.took / FAST
            if q in self._inbox or (q in self.paces and pace <= fast):
                # With an overlap few updates are left, and each should begin at once.
                wait = ANSWER if pace <= fast and not self.doing.waits else 0.0
            else:
                wait = WAIT if pace <= ALIKE * self.took else 0.0
            if waited < wait * self.took:
                return True
        return False

    # -- updates -----------------------------------------------------------------------------------

    def take(self) -> bool:
        """Read the mail that has come in; returns whether there was any."""
        with self._lock:
            inbox, self._inbox = self._inbox, {}
            for sender, mail in inbox.items():
                self.heard[sender] = mail.version
        for sender, mail in inbox.items():
            self.doing.receive(sender, mail.packet)
        return any(mail.packet is not None for mail in inbox.values())

    @property
    def has_mail(self) -> bool:
        """Whether mail waits to be read."""
        return bool(self._inbox)

    @torch.no_grad()
    def update(self) -> bool:
        """Read what came in, and move unless the part is settled. Returns whether the part has
        moved."""
        began, answered = time.monotonic(), self.answered
        news = self.take()
        if self.resumed and any(q not in self.heard for q in self.doing.part.receives):
            return False  # without the others' embeddings an update would undo the checkpoint
        if news:
            self.quiet, self.best = 0, float("inf")
        fresh = news or not self.seen
        if fresh:
            self.doing.look()
            self.seen = True
        residual_ratio = self.doing.residual_ratio
        if residual_ratio <= 1.0 or (not news and self.quiet >= STALLED):
            return False
        if not fresh and self.doing.waits and not self._is_read:
            return False
        before = self.doing.own
        self.doing.advance(fresh, answered)
        if self.doing.own is before or torch.equal(self.doing.own, before):
            self.quiet += self.doing.trust == 1.0
            return False
        self.updates += 1
        self.took = time.monotonic() - began
        self.version = (self.version[0], self.version[1] + 1)
        after = self.doing.look()
        better = after < 0.9 * self.best
        self.quiet, self.best = (0, after) if better else (self.quiet + 1, self.best)
        return True

    @torch.no_grad()
    def look(self) -> None:
        """Read what came in and measure, without an update."""
        self.take()
        self.doing.look()

    def status(self) -> Status:
        """The part now; a consistent view only between updates."""
        now, measure = time.monotonic(), self.doing.measure
        return Status(
            self.number, self.version, dict(self.heard), self.doing.residual_ratio,
            0.0 if measure is None else measure.largest, self.updates, self.bytes,
            {q: now - t for q, t in self.times.items()}, self.quiet >= STALLED,
        )  # fmt: skip

    # -- the checkpoint ----------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, as a whole or not at all."""
        if self.checkpoint is None:
            return
        file = io.BytesIO()
        np.savez(file, life=self.version[0], count=self.version[1], h=self.doing.own.cpu().numpy())
        write_atomically(self.checkpoint, file.getvalue())

    def _load(self) -> bool:
        """Continue a checkpoint of the same shape, if there is one; returns whether."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return False
        life, found = int(time.time()), None  # greater than any life that was counted
        broken = (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError)
        with contextlib.suppress(*broken), np.load(self.checkpoint) as data:
            life, found = int(data["life"]) + 1, torch.from_numpy(data["h"])
        self.version = (life, 0)
        if found is None or found.shape != self.doing.own.shape or not found.isfinite().all():
            return False
        self.doing.place(found.to(self.doing.own))
        return True


# -- executors -------------------------------------------------------------------------------------

TICKS = 100_000
"""Most ticks of a run in this process."""
Watch = Callable[[float, list[Status]], bool | None]
"""Called with the seconds since the start and the statuses of all parts; ``False`` ends the run."""


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


class Executor(ABC):
    """Runs the workers of all parts. A context manager that leaves nothing running."""

    restarts: int = 0
    """How often a worker died and was made again."""

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
        """Stop everything that this executor has started."""
        return None

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InProcess(Executor):
    """All parts in this process, one after the other: exact and repeatable, for one worker and for
    tests of the mathematics. At every tick one worker, drawn at random, makes an update and sends
    what its neighbours lack. As with Ray, at most one packet is under way between two workers, and
    a packet that is lost is sent again.

    Args:
        workers: The parts (:class:`hogwild.cluster.host.Host`).
        disorder: The order of updates, delays, losses and deaths.
    """

    def __init__(self, workers: Sequence[Any], disorder: Disorder | None = None) -> None:
        self.workers, self.disorder = workers, disorder or Disorder()

    def call(self, method: str, *args: Any) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self.workers]

    def iterate(self, watch: Watch | None = None, seconds: float | None = None) -> bool:
        began = time.monotonic()
        self.random, self.deaths = np.random.default_rng(self.disorder.seed), 0
        self.under_way: dict[tuple[int, int], tuple[int, Mail]] = {}
        workers, reads = self.workers, self.call("reads")
        for tick in range(TICKS):
            due = tick % len(workers) == 0
            if self._turn(tick) and not due:
                continue
            statuses, go_on = [worker.status() for worker in workers], True
            if due:
                spent = time.monotonic() - began
                go_on = watch is None or watch(spent, statuses) is not False
                go_on = go_on and (seconds is None or spent < seconds)
            if agreed(statuses, reads):
                return True
            if not go_on:
                break
        for worker in workers:
            for q in worker.doing.part.peers:
                workers[q].receive(worker.number, worker.outgoing(q))
        for worker in workers:
            worker.look()
        return False

    def _turn(self, tick: int) -> bool:
        """One worker works; returns whether its packets have changed."""
        workers = self.workers
        self._arrive(tick)
        p = int(self.random.random() * len(workers))
        if self.random.random() < self.disorder.kill and self.deaths < self.disorder.kills:
            self.deaths += 1
            # What is under way to the dead worker is lost; what it has sent still arrives.
            self.under_way = {k: v for k, v in self.under_way.items() if k[1] != p}
            self.revive(p)
        changed = workers[p].update()
        for q in workers[p].doing.part.peers:
            if workers[p].owes(q) and (p, q) not in self.under_way:
                delay = int(self.random.integers(self.disorder.delay + 1))
                self.under_way[p, q] = tick + delay, workers[p].outgoing(q)
        return changed

    def revive(self, number: int) -> None:
        """Make the worker of a part again, from its checkpoint."""
        self.restarts += 1
        self.workers[number].h = None
        self.workers[number].start()

    def _arrive(self, tick: int) -> None:
        workers = self.workers
        for (p, q), (when, mail) in list(self.under_way.items()):
            if when > tick:
                continue
            del self.under_way[p, q]
            if self.random.random() < self.disorder.loss:
                continue
            taken = workers[q].receive(p, mail)
            # The sender may have died meanwhile: the note of a dead life does no harm.
            if workers[p].version[0] == mail.version[0]:
                workers[p].has_arrived(q, mail, workers[q].version[0] if taken else None)
