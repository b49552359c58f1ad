r"""Word that floods through a network: every agent tells its neighbours what they have not heard.

An agent keeps *words*. A word is about one agent, its *owner*, who alone changes it, and has a
version: the owner's count, then the owner's incarnation. Of two versions the larger one is newer.
After the last count, the incarnation of the version counts on.

**Every neighbour is told what it lacks.** An agent notes of each neighbour which versions the
neighbour has: those that it sent itself, and those in packets that it has confirmed. What is newer
here is news. Every packet has a number and confirms the last 33 packets that were heard, so that
loss, delay, reordering and duplicates cost time and nothing else. News that has not been sent, or
not been confirmed for two round trips, is sent in as many packets as it takes, each of at most
``PACKET`` bytes (a longer word travels alone). What is under way and unconfirmed fills the last of
these packets up, at no further packet: a loss then costs a turn and not two round trips.

**News is left out that another neighbour tells.** What came from a neighbour u of j, j hears from u
(:mod:`hogwild.rules.tables`), so i does not send it for the first ``HOLD`` seconds.

**Owners count on.** An agent that has lost its memory counts from one again. Its neighbours still
have its last word. They see that it has an older one, and tell it; it then counts on from there.

**Memory is bounded.** If there is no room, words that are of no more use are deleted, and the
agent says in its packets that its memory is another one (a number): its neighbours then forget what
they knew of it and send everything that may be of use. If all words are of use, new ones are not
taken in, and the agent is *crowded*.

**What is wrong does not stay.** A forged packet may tell a word that its owner never said, in the
name of a neighbour, who is then taken to have it. So every word is told again about once a minute
(``REPEAT`` seconds times ``PARTS``), whatever the neighbour is taken to have: it reaches the owner,
who counts on. A packet with a forged number far ahead would make all later ones old. Where
``STRAYS`` packets in a row are too old to be confirmed, the numbers begin at the last one of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hogwild_node.packets import HALF, WORD, BadPacket

PACKET = 1200
"""Bytes of a packet with several words: what every network passes on in one piece."""
MANY = 16
"""Packets to one neighbour in one turn at most."""
HOLD = 1.0
"""Seconds for which an agent leaves a neighbour's news to another neighbour."""
SLOWEST, UNKNOWN = 1.0, 0.25
"""Most seconds until an unconfirmed word is sent again, and seconds as long as no round trip is
known."""
TIDY = 10.0
"""Seconds between two times at which words of no use are deleted."""
LAST = WORD // 2
"""The last count of a version."""
REPEAT, PARTS = 2.0, 30
"""Seconds between two packets to a neighbour with words that it is taken to have, and how many such
packets tell all words."""
STRAYS = 33
"""Packets in a row that are too old to be confirmed, after which the newest number was wrong."""
KEPT = 512
"""Packets to a neighbour that an agent remembers while they are not confirmed."""

HEAD = struct.Struct("<IIIHH")
ENTRY = struct.Struct("<BBIIH")
Key = tuple[int, str]
"""A kind of word, and its owner."""
Version = tuple[int, int]
"""The owner's count, and its incarnation."""
NEVER: Version = (0, 0)


def after(version: Version, incarnation: int) -> Version:
    """The next version of an owner with this incarnation. Only the very last one has none."""
    count, life = version
    return (count + 1, incarnation) if count < LAST else (LAST, min(life + 1, WORD - 1))


@dataclass
class Word:
    """What is known of an owner.

    Attributes:
        version: Its version.
        body: Its bytes.
        content: What they say.
        source: The neighbour who told it; ``None``: the agent itself, or a neighbour that has lost
            its memory since.
        since: When.
    """

    version: Version
    body: bytes
    content: Any
    source: str | None = None
    since: float = 0.0


@dataclass
class Peer:
    """What an agent knows of a neighbour's words."""

    has: dict[Key, Version] = field(default_factory=dict)
    memory: int | None = None
    number: int = 0  # of the last packet to it
    sent: dict[int, tuple[float, list[tuple[Key, Version]]]] = field(default_factory=dict)
    flying: dict[Key, tuple[Version, float]] = field(default_factory=dict)  # when it was sent
    newest: int = 0  # of the packets heard from it; 0: none
    before: int = 0  # bit b: packet newest - 1 - b was heard
    strays: int = 0  # packets in a row that were too old to be confirmed
    trip: float | None = None  # smoothed seconds until a packet is confirmed
    idle: int = -1  # the stamp at which there was no news for it
    repeated: float | None = None  # when words were last told again
    place: int = 0  # how many were

    def remembers(self, memory: int) -> None:
        """It has this memory from now on, of which nothing is known."""
        for known in (self.has, self.flying, self.sent):
            known.clear()
        self.memory, self.idle = memory, -1

    def note(self, number: int) -> bool:
        """A packet was heard; whether it is the newest."""
        ahead, behind = (number - self.newest) % WORD, (self.newest - number) % WORD
        self.strays = self.strays + 1 if self.newest and 32 < behind <= WORD // 2 else 0
        if not self.newest or self.strays >= STRAYS:
            self.newest, self.before, self.strays = number, 0, 0
        elif 0 < ahead < WORD // 2:
            self.before = ((self.before << 1 | 1) << (ahead - 1)) % WORD if ahead <= 32 else 0
            self.newest = number
        elif 0 < behind <= 32:
            self.before |= 1 << (behind - 1)
        return number == self.newest

    def confirm(self, newest: int, before: int, now: float) -> None:
        """It has heard this packet, and those before whose bits are set."""
        heard = [newest, *(newest - 1 - b for b in range(32) if before >> b & 1)]
        for number in heard:
            when, words = self.sent.pop(number % WORD, (now, []))
            for key, version in words:
                self.learn(key, version)
            if words:
                trip = max(now - when, 0.0)
                self.trip = trip if self.trip is None else 0.75 * self.trip + 0.25 * trip

    def learn(self, key: Key, version: Version) -> None:
        """It has this version, at least."""
        if version > self.has.get(key, NEVER):
            self.has[key] = version
        if key in self.flying and self.flying[key][0] <= self.has[key]:
            del self.flying[key]


class Flood:
    """The words that one agent keeps.

    Args:
        name: The agent's name.
        incarnation: Its incarnation.
        scope: What neighbours must have in common beside the model, as a number below 65,536;
            packets with another one are refused.
        room: Most words that are kept.
        read: Called as ``read(key, body)``: what a word says; raises :class:`BadPacket`.
        useful: Called as ``useful(key)``: whether a word is of use at present.
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
        self.words: dict[Key, Word] = {}
        self.peers: dict[str, Peer] = {}
        self.memory, self.crowded, self.tidied = 0, False, -math.inf
        self.last: dict[int, Version] = {}  # the last version of each kind of own word
        self.stamp = 0  # changes with the words, and when the agent passes other words on

    def say(self, kind: int, body: bytes, now: float) -> bool:
        """The agent's own word of this kind says this from now on; whether that is new."""
        key = (kind, self.name)
        if key in self.words and self.words[key].body == body:
            return False
        self.last[kind] = after(self.last.get(kind, NEVER), self.incarnation)
        self.words[key] = Word(self.last[kind], body, self.read(key, body), None, now)
        self.stamp += 1
        return True

    def peer(self, name: str) -> Peer:
        """What is known of a neighbour's words.

        Packets are numbered from the agent's incarnation on, a random number, so that a neighbour
        that confirms packets of a former life confirms nothing.
        """
        return self.peers.setdefault(name, Peer(number=self.incarnation))

    def forget(self, peer: str) -> None:
        """A neighbour is no more, or has lost its memory. Its packets are numbered on."""
        self.peers[peer] = Peer(number=self.peer(peer).number)
        for word in self.words.values():
            if word.source == peer:
                word.source = None

    # -- hearing -----------------------------------------------------------------------------------

    def hear(self, peer: str, body: bytes, now: float, *, fresh: bool = False) -> set[Key]:
        """Take a packet of a neighbour in, whole or not at all; which words were new.

        Args:
            fresh: Whether the neighbour has begun a new life since its last packet.

        Raises:
            BadPacket: The packet is damaged, or of another kind; it changes nothing.
        """
        if len(body) < HEAD.size:
            raise BadPacket("size")
        number, newest, before, memory, scope = HEAD.unpack_from(body)
        if scope != self.scope:
            raise BadPacket("radius")
        if not number:
            raise BadPacket("numbers")
        told = list(self._entries(body))
        if fresh:
            self.forget(peer)
        found = self.peer(peer)
        newer = found.note(number)
        if found.memory is None or (newer and memory != found.memory):
            found.remembers(memory)
        now_known = memory == found.memory  # a late packet may tell of what was deleted since
        if newest and now_known:
            found.confirm(newest, before, now)
        new = set()
        for key, version, raw, content in told:
            if now_known:
                found.learn(key, version)
                if newer and version < found.has[key]:  # it was taken to have what it has not
                    found.has[key], found.idle = version, -1
                known = self.words.get(key)
                if known is not None and known.version > found.has[key]:  # it lacks the newer one
                    found.idle = -1
            if key[1] == self.name:
                self._count_on(key, version, now)
            elif self._take(key, Word(version, raw, content, peer, now), now):
                new.add(key)
        return new

    def _entries(self, body: bytes) -> Iterator[tuple[Key, Version, bytes, Any]]:
        at = HEAD.size
        while at < len(body):
            if at + ENTRY.size > len(body):
                raise BadPacket("size")
            kind, width, count, incarnation, size = ENTRY.unpack_from(body, at)
            at += ENTRY.size
            end = at + width + size
            if end > len(body):
                raise BadPacket("size")
            if not 0 < count <= LAST:
                raise BadPacket("numbers")
            try:
                key = (kind, body[at : at + width].decode("ascii"))
            except UnicodeDecodeError:
                raise BadPacket("names") from None
            raw = bytes(body[at + width : end])
            yield key, (count, incarnation), raw, self._content(key, raw)
            at = end

    def _content(self, key: Key, raw: bytes) -> Any:
        """What a word says; words are told more than once."""
        known = self.words.get(key)
        return self.read(key, raw) if known is None or known.body != raw else known.content

    def _count_on(self, key: Key, version: Version, now: float) -> None:
        """Word of the agent itself: where it is newer than its own, it is of a former life."""
        kind, mine = key[0], self.words.get(key)
        if mine is None:
            self.last[kind] = max(self.last.get(kind, NEVER), version)
        elif version > mine.version:
            self.last[kind] = after(version, self.incarnation)
            mine.version, mine.since = self.last[kind], now
            self.stamp += 1

    def _take(self, key: Key, word: Word, now: float) -> bool:
        known = self.words.get(key)
        if known is not None and known.version >= word.version:
            return False
        if known is None and len(self.words) >= self.room:
            if not self.crowded:  # else one look at all words a turn is enough
                self.tidy(now)
            if len(self.words) >= self.room:
                self.crowded = True
                return False
        self.words[key] = word
        self.stamp += 1
        return True

    def tidy(self, now: float) -> None:
        """Delete what is of no use; neighbours then tell again what may be. That costs packets,
        so it is not done at every turn where there is never room enough. A crowded agent calls it
        at every turn: words that were refused are told again only after it."""
        if now < self.tidied + TIDY:
            return
        useless = [key for key in self.words if key[1] != self.name and not self.useful(key)]
        for key in useless:
            del self.words[key]
        if useless:
            self.memory, self.crowded = (self.memory + 1) % HALF, False
            self.tidied = now
            self.stamp += 1

    # -- telling -----------------------------------------------------------------------------------

    def packets(
        self,
        peer: str,
        now: float,
        *,
        passed: Callable[[Key, bool], bool],
        told_by: Callable[[str], bool],
        head: int,
    ) -> list[bytes]:
        """The packets to a neighbour, one at least.

        Args:
            peer: The neighbour.
            passed: Called as ``passed(key, older)``: whether a word is passed on to it;
                ``older``: it has an older version.
            told_by: Whether it hears from the agent of this name itself.
            head: Bytes that go before each of these packets.
        """
        to = self.peer(peer)
        due: list[Key] = []
        under_way: list[Key] = []
        later = False
        wait = UNKNOWN if to.trip is None else min(2.0 * to.trip, SLOWEST)
        for key, word in self.words.items() if to.idle != self.stamp else ():
            theirs = to.has.get(key, NEVER)
            if theirs >= word.version or not passed(key, theirs > NEVER):
                continue
            if word.source is not None and now - word.since < HOLD and told_by(word.source):
                later = True
                continue
            version, when = to.flying.get(key, (NEVER, 0.0))
            late = version < word.version or now - when >= wait
            (due if late else under_way).append(key)
        if not (due or under_way or later):
            to.idle = self.stamp
        pending = {*due, *under_way}
        due += [key for key in self._again(to, now, passed) if key not in pending]
        space = PACKET - head - HEAD.size
        loads = self._loads(due, space)
        left = space - sum(map(self._size, loads[-1]))
        for key in under_way:
            size = self._size(key)
            if size <= left:
                loads[-1].append(key)
                left -= size
        return [self._packet(to, load, now) for load in loads]

    def _again(self, to: Peer, now: float, passed: Callable[[Key, bool], bool]) -> list[Key]:
        """Words that are told again, whatever the neighbour is taken to have."""
        if to.repeated is None:
            to.repeated = now
        if now - to.repeated < REPEAT:
            return []
        every, begin = list(self.words), to.place
        count = -(-len(every) // PARTS)
        to.repeated, to.place = now, begin + count
        some = [every[(begin + i) % len(every)] for i in range(count)]
        return [key for key in some if passed(key, to.has.get(key, NEVER) > NEVER)]

    def _size(self, key: Key) -> int:
        return ENTRY.size + len(key[1]) + len(self.words[key].body)

    def _loads(self, keys: list[Key], space: int) -> list[list[Key]]:
        """Words for one packet each, as many packets as one turn allows."""
        loads: list[list[Key]] = [[]]
        left = space
        for key in keys:
            size = self._size(key)
            if loads[-1] and size > left:
                if len(loads) == MANY:
                    break
                loads.append([])
                left = space
            loads[-1].append(key)
            left -= size
        return loads

    def _packet(self, to: Peer, load: list[Key], now: float) -> bytes:
        to.number = to.number % (WORD - 1) + 1
        parts = [HEAD.pack(to.number, to.newest, to.before, self.memory, self.scope)]
        for key in load:
            word = self.words[key]
            to.flying[key] = (word.version, now)
            name = key[1].encode("ascii")
            parts += [
                ENTRY.pack(key[0], len(name), *word.version, len(word.body)), name, word.body
            ]  # fmt: skip
        if load:
            to.sent[to.number] = (now, [(key, self.words[key].version) for key in load])
            if len(to.sent) > KEPT:
                del to.sent[next(iter(to.sent))]
        return b"".join(parts)
