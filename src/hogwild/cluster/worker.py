"""One part at work: what it has heard, what the others have of it, and its checkpoint.

A worker knows nothing of how packets travel: an executor calls :meth:`Worker.receive`,
:meth:`Worker.update` and :meth:`Worker.outgoing`. Two executors do: a seeded one in this process
(:mod:`hogwild.cluster.engine`), and Ray's actors (:mod:`hogwild.cluster.actors`).

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hogwild.cluster.work import Work
from hogwild.files import write_atomically

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
        unrest: Residual relative to its limit; settled up to 1.
        residual: Largest absolute entry of the residual.
        updates: Updates so far.
        bytes: Bytes sent so far.
        ages: Seconds since each part that it reads was last heard.
        trust: Damping of the part's steps; 1: none.
        stalled: Whether it has given up at its rounding error.
    """

    number: int
    version: Version
    heard: dict[int, Version]
    unrest: float
    residual: float
    updates: int
    bytes: int
    ages: dict[int, float] = field(default_factory=dict)
    trust: float = 1.0
    stalled: bool = False

    @property
    def settled(self) -> bool:
        """Whether the part changes nothing unless it hears something new."""
        return self.unrest <= 1.0 or self.stalled


def agreed(statuses: Sequence[Status], reads: Sequence[Sequence[int]]) -> bool:
    """Whether all parts are done. ``reads[p]`` are the parts that part p reads."""
    now = {s.number: s.version for s in statuses}
    return all(
        s.settled and all(s.heard.get(q) == now[q] for q in reads[s.number]) for s in statuses
    )


class Worker:
    """One part at work.

    Args:
        number: The part.
        work: What it does.
        checkpoint: The file of its checkpoint; ``None``: it has none. A checkpoint of the same
            shape is continued.
    """

    def __init__(self, number: int, work: Work, checkpoint: Path | None = None) -> None:
        self.number, self.work, self.checkpoint = number, work, checkpoint
        self.version: Version = (0, 0)
        self.heard: dict[int, Version] = {}
        self.times: dict[int, float] = {}
        self.answers: dict[int, Version | None] = {}  # what each part had read of this one
        self.told: dict[int, Version | None] = {}  # what this part has told each part to have read
        self.paces: dict[int, float] = {}  # seconds of each part's last update
        self.took = 0.0  # seconds of this part's last update
        self.delivered: dict[int, Version] = {}
        self.updates = self.bytes = self.quiet = 0
        self.best, self.seen = float("inf"), False
        self._inbox: dict[int, Mail] = {}
        self._lock = threading.Lock()
        self.resumed = self._load()
        self.save()  # before anybody hears of this life

    @property
    def reads(self) -> list[int]:
        """The parts whose nodes are in the halo."""
        return sorted(self.work.links.receives)

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
            if mail.version != known and mail.packet is None and sender in self.work.links.receives:
                return False
            if known is not None and mail.version[0] > known[0]:  # it was restarted and forgot
                self.delivered.pop(sender, None)
                self.told.pop(sender, None)
            self.answers[sender], self.paces[sender] = mail.answers, mail.took
            if known is None or mail.version > known:
                self._inbox[sender] = mail
                self.times[sender] = time.monotonic()
            return True

    def owes(self, to: int) -> bool:
        """Whether another part lacks what this part holds now, or does not know what this part has
        read of it."""
        there = self.delivered.get(to)
        if to in self.work.links.receives and self.told.get(to) != self.heard.get(to):
            return True
        if to in self.work.links.sends:
            return there != self.version
        return there is None or there[0] != self.version[0]

    def outgoing(self, to: int) -> Mail:
        """What another part should receive now."""
        packet = None if self.delivered.get(to) == self.version else self.work.packet(to)
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
                self.delivered[to], self.told[to] = mail.version, mail.answers

    @property
    def answered(self) -> bool:
        """Whether all parts that this part reads have read what it holds now."""
        reads = self.work.links.receives
        return bool(reads) and all(self.answers.get(q) == self.version for q in reads)

    @property
    def _is_read(self) -> bool:
        """Whether all parts that read this part and are read by it have read what it holds now."""
        both = self.work.links.receives.keys() & self.work.links.sends.keys()
        return all(self.answers.get(q) == self.version for q in both)

    def expects(self, waited: float) -> bool:
        """Whether mail is worth waiting for, ``waited`` seconds after the last update: that of
        parts that are about as fast and have not sent since, and answers of parts that are much
        faster. A part that has read what this part holds now and is silent has nothing to say."""
        for q in self.work.links.receives:
            if q not in self.work.links.sends or self.answers.get(q) == self.version:
                continue
            pace, fast = self.paces.get(q, 0.0), self.took / FAST
            if q in self._inbox or (q in self.paces and pace <= fast):
                # With an overlap few updates are left, and each should begin at once.
                wait = ANSWER if pace <= fast and not self.work.waits else 0.0
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
            self.work.receive(sender, mail.packet)
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
        if self.resumed and any(q not in self.heard for q in self.work.links.receives):
            return False  # without the others' embeddings an update would undo the checkpoint
        if news:
            self.quiet, self.best = 0, float("inf")
        fresh = news or not self.seen
        if fresh:
            self.work.look()
            self.seen = True
        unrest = self.work.unrest
        if unrest <= 1.0 or (not news and self.quiet >= STALLED):
            return False
        if not fresh and self.work.waits and not self._is_read:
            return False
        before = self.work.own
        self.work.advance(fresh, answered)
        if self.work.own is before or torch.equal(self.work.own, before):
            self.quiet += self.work.trust == 1.0
            return False
        self.updates += 1
        self.took = time.monotonic() - began
        self.version = (self.version[0], self.version[1] + 1)
        after = self.work.look()
        better = after < 0.9 * self.best
        self.quiet, self.best = (0, after) if better else (self.quiet + 1, self.best)
        return True

    @torch.no_grad()
    def look(self) -> None:
        """Read what came in and measure, without an update."""
        self.take()
        self.work.look()

    def status(self) -> Status:
        """The part now; a consistent view only between updates."""
        now, measure = time.monotonic(), self.work.measure
        return Status(
            self.number, self.version, dict(self.heard), self.work.unrest,
            0.0 if measure is None else measure.largest, self.updates, self.bytes,
            {q: now - t for q, t in self.times.items()}, self.work.trust, self.quiet >= STALLED,
        )  # fmt: skip

    # -- the checkpoint ----------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, as a whole or not at all."""
        if self.checkpoint is None:
            return
        file = io.BytesIO()
        np.savez(file, life=self.version[0], count=self.version[1], h=self.work.own.cpu().numpy())
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
        if found is None or found.shape != self.work.own.shape or not found.isfinite().all():
            return False
        self.work.place(found.to(self.work.own))
        return True
