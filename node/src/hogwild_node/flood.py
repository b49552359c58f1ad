r"""Reports that flood through a network: every agent tells its neighbours what they have not heard.

An agent keeps *reports*. A report is about one agent, its *owner*, who alone changes it, and has a
version: the owner's count, then the owner's incarnation. Of two versions the larger one is newer.
After the last count, the incarnation of the version counts on.

**Every neighbour is told what it lacks.** An agent notes of each neighbour which versions the
neighbour has: those that it sent itself, and those in packets that it has confirmed. What is newer
here is news. Every packet has a number and confirms the last 33 packets that were heard, so that
loss, delay, reordering and duplicates cost time and nothing else. News that has not been sent, or
not been confirmed for two round trips, is sent in as many packets as it takes, each of at most
``PACKET`` bytes (a longer report travels alone). What was sent at an earlier turn and is not
confirmed fills the last of these packets up, at no further packet: a loss then costs a turn and not
two round trips.

**News is left out that another neighbour tells.** What came from a neighbour u of j, j hears from
u, so i does not send it for the first ``HOLD`` seconds. (The news came to u from somebody else, and
so on back to its owner, who tells all neighbours. So somebody tells j.)

**Owners count on.** An agent that has lost its memory counts from one again. Its neighbours still
have its last report. They see that it has an older one, and tell it; it then counts on from there.

**Memory is bounded.** If there is no room, reports that are of no more use are deleted, and the
agent says in its packets that its memory is another one (a number): its neighbours then forget what
they knew of it and send everything that may be of use. If all reports are of use, new ones are not
taken in, and the agent is *crowded*.

**What is wrong does not stay.** A forged packet may tell a report that its owner never made, in the
name of a neighbour, who is then taken to have it. So every report is told again about once a minute
(``REPEAT`` seconds times ``PARTS``), whatever the neighbour is taken to have: it reaches the owner,
who counts on. A packet with a forged number far ahead would make all later ones old. Where
``STRAYS`` packets in a row are too old to be confirmed, the numbers begin at the last one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hogwild_node.packets import U16, U32, BadPacket
from hogwild_node.reports import HEAD, LAST, Key, Packet, Report, Version

PACKET = 1200
"""Bytes of a packet with several reports: what every network passes on in one piece."""
MANY = 16
"""Packets to one neighbour in one turn at most."""
HOLD = 1.0
"""Seconds for which an agent leaves a neighbour's news to another neighbour."""
SLOWEST, UNKNOWN = 1.0, 0.25
"""Most seconds until an unconfirmed report is sent again, and seconds as long as no round trip is
known."""
TIDY = 10.0
"""Seconds between two times at which reports of no use are deleted."""
REPEAT, PARTS = 2.0, 30
"""Seconds between two packets to a neighbour with reports that it is taken to have, and how many
such packets tell all reports."""
STRAYS = 33
"""Packets in a row that are too old to be confirmed, after which the newest number was wrong."""
KEPT = 512
"""Packets to a neighbour that an agent remembers while they are not confirmed."""
NEVER: Version = (0, 0)


def after(version: Version, incarnation: int) -> Version:
    """The next version of an owner with this incarnation. Only the very last one has none."""
    count, life = version
    return (count + 1, incarnation) if count < LAST else (LAST, min(life + 1, U32 - 1))


@dataclass
class Peer:
    """What an agent knows of a neighbour's reports."""

    has: dict[Key, Version] = field(default_factory=dict)
    memory: int | None = None
    number: int = 0  # of the last packet to it
    sent: dict[int, tuple[float, list[tuple[Key, Version]]]] = field(default_factory=dict)
    flying: dict[Key, tuple[Version, float]] = field(default_factory=dict)  # when it was sent
    newest: int = 0  # of the packets heard from it; 0: none
    before: int = 0  # bit b: packet newest - 1 - b was heard
    strays: int = 0  # packets in a row that were too old to be confirmed
    trip: float | None = None  # smoothed seconds until a packet is confirmed
    news: dict[Key, None] = field(default_factory=dict)  # what may be news for it
    repeated: float | None = None  # when reports were last told again
    place: int = 0  # how many were

    def remembers(self, memory: int, reports: Iterable[Key]) -> None:
        """It has this memory from now on, of which nothing is known: all reports are news."""
        for known in (self.has, self.flying, self.sent):
            known.clear()
        self.memory, self.news = memory, dict.fromkeys(reports)

    def note(self, number: int) -> bool:
        """A packet was heard; whether it is the newest."""
        ahead, behind = (number - self.newest) % U32, (self.newest - number) % U32
        self.strays = self.strays + 1 if self.newest and 32 < behind <= U32 // 2 else 0
        if not self.newest or self.strays >= STRAYS:
            self.newest, self.before, self.strays = number, 0, 0
        elif 0 < ahead < U32 // 2:
            self.before = ((self.before << 1 | 1) << (ahead - 1)) % U32 if ahead <= 32 else 0
            self.newest = number
        elif 0 < behind <= 32:
            self.before |= 1 << (behind - 1)
        return number == self.newest

    def confirm(self, newest: int, before: int, now: float) -> None:
        """It has heard this packet, and those before whose bits are set."""
        for number in list(self.sent):
            ago = (newest - number) % U32
            if ago and not (ago <= 32 and before >> (ago - 1) & 1):
                continue
            when, reports = self.sent.pop(number)
            for key, version in reports:
                self.learn(key, version)
            trip = max(now - when, 0.0)
            self.trip = trip if self.trip is None else 0.75 * self.trip + 0.25 * trip

    def learn(self, key: Key, version: Version) -> None:
        """It has this version, at least."""
        if version > self.has.get(key, NEVER):
            self.has[key] = version
        if key in self.flying and self.flying[key][0] <= self.has[key]:
            del self.flying[key]


class Flood:
    """The reports that one agent keeps.

    Args:
        name: The agent's name.
        incarnation: Its incarnation.
        scope: What neighbours must have in common beside the model, as a number below 65,536;
            packets with another one are refused.
        room: Most reports that are kept.
        read: Called as ``read(key, body)``: what a report says; raises :class:`BadPacket`.
        useful: Called as ``useful(key)``: whether a report is of use at present.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        *,
        scope: int,
        room: int,
        read: Callable[[Key, bytes], Any],
        useful: Callable[[Key], bool],
    ) -> None:
        self.name, self.incarnation, self.scope, self.room = name, incarnation, scope, room
        self.read, self.useful = read, useful
        self.reports: dict[Key, Report] = {}
        # The neighbour who told a report, and when; None: the agent itself, or a neighbour that has
        # lost its memory since.
        self.heard: dict[Key, tuple[str | None, float]] = {}
        self.peers: dict[str, Peer] = {}
        self.memory, self.crowded, self.tidied = 0, False, -math.inf
        self.last: dict[int, Version] = {}  # the last version of each kind of own report

    def report(self, kind: int, body: bytes, now: float) -> bool:
        """The agent reports this of itself from now on; whether that is new."""
        key = (kind, self.name)
        if key in self.reports and self.reports[key].body == body:
            return False
        self.last[kind] = after(self.last.get(kind, NEVER), self.incarnation)
        self._put(Report(key, self.last[kind], body, self.read(key, body)), None, now)
        return True

    def _put(self, report: Report, source: str | None, now: float) -> None:
        self.reports[report.key], self.heard[report.key] = report, (source, now)
        for peer in self.peers.values():
            peer.news[report.key] = None

    def reconsider(self) -> None:
        """The agent passes other reports on from now on: all may be news."""
        for peer in self.peers.values():
            peer.news = dict.fromkeys(self.reports)

    def peer(self, name: str) -> Peer:
        """What is known of a neighbour's reports.

        Packets are numbered from the agent's incarnation on, a random number, so that a neighbour
        that confirms packets of a former life confirms nothing.
        """
        if name not in self.peers:
            self.peers[name] = Peer(number=self.incarnation, news=dict.fromkeys(self.reports))
        return self.peers[name]

    def forget(self, peer: str) -> None:
        """A neighbour is no more, or has lost its memory. Its packets are numbered on."""
        number = self.peer(peer).number
        self.peers[peer] = Peer(number=number, news=dict.fromkeys(self.reports))
        for key, (source, since) in self.heard.items():
            if source == peer:
                self.heard[key] = None, since

    # -- hearing -----------------------------------------------------------------------------------

    def parse(self, body: bytes) -> Packet:
        """The packet in these bytes. Reports that are known already are not read again.

        Raises:
            BadPacket: The packet is damaged.
        """
        return Packet.read(body, self._content)

    def take(self, peer: str, packet: Packet, now: float, *, fresh: bool = False) -> set[Key]:
        """Take a packet of a neighbour in, whole or not at all; which reports were new.

        Args:
            fresh: Whether the neighbour has begun a new life since its last packet.

        Raises:
            BadPacket: The packet is of another kind; it changes nothing.
        """
        if packet.scope != self.scope:
            raise BadPacket("radius")
        if not packet.number:
            raise BadPacket("numbers")
        if fresh:
            self.forget(peer)
        found, memory = self.peer(peer), packet.memory
        newer = found.note(packet.number)
        if found.memory is None or (newer and memory != found.memory):
            found.remembers(memory, self.reports)
        now_known = memory == found.memory  # a late packet may tell of what was deleted since
        if packet.newest and now_known:
            found.confirm(packet.newest, packet.before, now)
        new = set()
        for report in packet.reports:
            key, version, known = report.key, report.version, self.reports.get(report.key)
            if known is not None and version == known.version == found.has.get(key):
                continue  # nothing is new to anybody
            if now_known:
                found.learn(key, version)
                if newer and version < found.has[key]:  # it was taken to have what it has not
                    found.has[key] = version
                found.news[key] = None
            if key[1] == self.name:
                self._count_on(key, version, now)
            elif self._keep(report, peer, now):
                new.add(key)
        return new

    def _content(self, key: Key, raw: bytes) -> Any:
        """What a report says; reports are told more than once."""
        known = self.reports.get(key)
        return self.read(key, raw) if known is None or known.body != raw else known.content

    def _count_on(self, key: Key, version: Version, now: float) -> None:
        """A report of the agent itself: where it is newer than its own, it is of a former life."""
        kind, mine = key[0], self.reports.get(key)
        if mine is None:
            self.last[kind] = max(self.last.get(kind, NEVER), version)
        elif version > mine.version:
            self.last[kind] = after(version, self.incarnation)
            self._put(replace(mine, version=self.last[kind]), None, now)

    def _keep(self, report: Report, source: str, now: float) -> bool:
        known = self.reports.get(report.key)
        if known is not None and known.version >= report.version:
            return False
        if known is None and len(self.reports) >= self.room:
            if not self.crowded:  # else one look at all reports a turn is enough
                self.tidy(now)
            if len(self.reports) >= self.room:
                self.crowded = True
                return False
        self._put(report, source, now)
        return True

    def tidy(self, now: float) -> None:
        """Delete what is of no use; neighbours then tell again what may be. That costs packets,
        so it is not done at every turn where there is never room enough. A crowded agent calls it
        at every turn: reports that were refused are told again only after it."""
        if now < self.tidied + TIDY:
            return
        useless = [key for key in self.reports if key[1] != self.name and not self.useful(key)]
        for key in useless:
            del self.reports[key], self.heard[key]
        if useless:
            self.memory, self.crowded = (self.memory + 1) % U16, False
            self.tidied = now

    # -- telling -----------------------------------------------------------------------------------

    def tell(
        self,
        peer: str,
        now: float,
        *,
        passed: Callable[[Key, bool], bool],
        told_by: Callable[[str], bool],
        head: int,
    ) -> list[Packet]:
        """The packets to a neighbour, one at least.

        Args:
            peer: The neighbour.
            passed: Called as ``passed(key, older)``: whether a report is passed on to it;
                ``older``: it has an older version.
            told_by: Whether it hears from the agent of this name itself.
            head: Bytes that go before each of these packets.
        """
        to = self.peer(peer)
        due: list[Report] = []
        under_way: list[Report] = []
        wait = UNKNOWN if to.trip is None else min(2.0 * to.trip, SLOWEST)
        for key in list(to.news):
            report, theirs = self.reports.get(key), to.has.get(key, NEVER)
            if report is None or theirs >= report.version or not passed(key, theirs > NEVER):
                del to.news[key]
                continue
            source, since = self.heard[key]
            if source is not None and now - since < HOLD and told_by(source):
                continue
            version, when = to.flying.get(key, (NEVER, 0.0))
            if version < report.version or now - when >= wait:
                due.append(report)
            elif now > when:
                under_way.append(report)
        pending = {report.key for report in (*due, *under_way)}
        due += [self.reports[key] for key in self._again(to, now, passed) if key not in pending]
        space = PACKET - head - HEAD.size
        loads = self._loads(due, space)
        left = space - sum(report.size for report in loads[-1])
        for report in under_way:
            if report.size <= left:
                loads[-1].append(report)
                left -= report.size
        return [self._packet(to, load, now) for load in loads]

    def _again(self, to: Peer, now: float, passed: Callable[[Key, bool], bool]) -> list[Key]:
        """Reports that are told again, whatever the neighbour is taken to have."""
        if to.repeated is None:
            to.repeated = now
        if now - to.repeated < REPEAT:
            return []
        every, begin = list(self.reports), to.place
        count = -(-len(every) // PARTS)
        to.repeated, to.place = now, begin + count
        some = [every[(begin + i) % len(every)] for i in range(count)]
        return [key for key in some if passed(key, to.has.get(key, NEVER) > NEVER)]

    @staticmethod
    def _loads(reports: list[Report], space: int) -> list[list[Report]]:
        """Reports for one packet each, as many packets as one turn allows."""
        loads: list[list[Report]] = [[]]
        left = space
        for report in reports:
            if loads[-1] and report.size > left:
                if len(loads) == MANY:
                    break
                loads.append([])
                left = space
            loads[-1].append(report)
            left -= report.size
        return loads

    def _packet(self, to: Peer, reports: list[Report], now: float) -> Packet:
        to.number = to.number % (U32 - 1) + 1
        for report in reports:
            to.flying[report.key] = (report.version, now)
        if reports:
            to.sent[to.number] = (now, [(report.key, report.version) for report in reports])
            if len(to.sent) > KEPT:
                del to.sent[next(iter(to.sent))]
        return Packet(to.number, to.newest, to.before, self.memory, self.scope, reports)
