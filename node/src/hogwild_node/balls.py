r"""The rule ``"balls"`` as one agent runs it: reports of all nodes flood, and every node solves
what it knows.

:mod:`hogwild.rules.balls` has the rule and what is proved of it. An agent keeps the *profiles* of
the nodes within ``radius`` + c hops, solves for all nodes of its *ball* A at once (those within
``radius`` hops; all nodes, if there is no radius), and holds the nodes of the *rim* B at their
embeddings as last heard:

.. math:: z = \arg\min_{h_A} E(h_A, h_B) \quad\text{or}\quad z = F_A(z, h_B), \qquad
          h_i \leftarrow z_i.

Profiles and embeddings are reports (:mod:`hogwild_node.flood`). An agent solves when it has heard a
report that its answer depends on, and begins where it last ended.

**Who is there.** An edge counts if both of its ends list each other. Whoever cannot be reached over
such edges does not exist for the agent: when neighbours drop an agent that has fallen silent, they
no longer list it, and it is gone from all tables as soon as news of that has come. No report
expires.

**Done?** An agent whose table is *full* has reports of everybody that the nodes in its table list.
If besides nobody is in the rim, it has solved the *whole* graph that can be reached, and the
gradient that is left bounds its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hogwild_node.errors import SetupError
from hogwild_node.flood import Flood
from hogwild_node.held import Piece, Solved, solve
from hogwild_node.local import LocalEnergy, LocalMap
from hogwild_node.model import NodeModel, Part
from hogwild_node.ops import Array
from hogwild_node.packets import HEADER, BadPacket, Edge, Format, Header, Link
from hogwild_node.registers import Work
from hogwild_node.reports import (
    EMBEDDING,
    PROFILE,
    Key,
    Packet,
    Profile,
    Version,
    checked,
    read_embedding,
)
from hogwild_node.star import Star

LARGEST = 256
"""Most nodes of which an agent without a radius keeps a report; with a radius,
``WIDER`` times as many reports."""
WIDER = 16
FURTHEST = 60_000
"""The largest radius."""
STILL = 4.0
"""An embedding that moved by fewer units of rounding is not told again."""


def profile_of(features: Array, edges: Mapping[str, Edge]) -> Profile:
    """The profile of an agent with these features [p] and edges."""
    return Profile(features, {name: (e.weight, e.edge_attr) for name, e in edges.items()})


class Ball:
    """What one node knows of the nodes around it: their reports, and who can be reached.

    Args:
        name: The node's name.
        incarnation: Its incarnation.
        radius: Hops within which it solves for others, too; infinite: for everybody.
        couples: c, the hops between nodes whose equations depend on each other.
        read: Called as ``read(key, body)``: what a report says.

    Attributes:
        hops: The hops to every node that can be reached within ``radius`` + c.
        full: Whether everybody is known that the nodes nearer than that list.
        answered: What the last answer depends on: the nodes that were solved for or held, the own
            one first, each with the versions of the two reports that were used.
        told: The embedding that was told last.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        radius: float,
        couples: int,
        read: Callable[[Key, bytes], Any],
    ) -> None:
        self.name, self.radius, self.reach = name, radius, radius + couples
        bounded = radius < math.inf
        self.flood = Flood(
            name, incarnation, scope=int(radius) + 1 if bounded else 0,
            room=WIDER * LARGEST if bounded else LARGEST, read=read, useful=self._is_useful,
        )  # fmt: skip
        self.incarnations: dict[str, int] = {}
        self.hops: dict[str, int] = {name: 0}
        self.full = False
        self.answered: list[tuple[str, Version, Version]] = []
        self.told = np.zeros(0)
        self._stale = True  # whether profiles have changed since the last look around

    def _is_useful(self, key: Key) -> bool:
        return key[1] in self.hops

    def hear(self, name: str, incarnation: int, packet: Packet, now: float) -> None:
        """Take a packet of a neighbour in."""
        fresh = self.incarnations.get(name, incarnation) != incarnation
        new = self.flood.take(name, packet, now, fresh=fresh)
        self._stale = self._stale or any(kind == PROFILE for kind, _ in new)
        self.incarnations[name] = incarnation

    def forget(self, name: str) -> None:
        """A neighbour is no more."""
        self.flood.forget(name)
        self.incarnations.pop(name, None)

    def meet(self, profile: bytes, now: float) -> bool:
        """The node's profile is this one; whether that is new. Also looks around, if reports have
        changed, and makes room, if there is none."""
        new = self.flood.report(PROFILE, profile, now)
        if new or self._stale:
            self._look_around()
            self._stale = False
        if self.flood.crowded:
            self.flood.tidy(now)
        return new

    def tell(self, name: str, now: float, head: int) -> list[Packet]:
        """The packets to a neighbour, with so many bytes before each of them."""

        def passed(key: Key, older: bool) -> bool:
            if older or key[1] == name:
                return older  # who has an older report of it must lose that
            return self.hops.get(key[1], math.inf) < self.reach

        def told_by(source: str) -> bool:
            there, here = self.profile(source), self.profile(name)
            if there is None or here is None:
                return False
            return name in there.edges and source in here.edges

        return self.flood.tell(name, now, passed=passed, told_by=told_by, head=head)

    def profile(self, name: str) -> Profile | None:
        """What the node of this name tells of itself; ``None``: nothing was heard."""
        report = self.flood.reports.get((PROFILE, name))
        return None if report is None else report.content

    def _look_around(self) -> None:
        """Find the hops to all nodes that can be reached, and whether all of them are known."""
        hops, full = {self.name: 0}, True
        edges = {
            name: report.content.edges
            for (kind, name), report in self.flood.reports.items()
            if kind == PROFILE
        }
        for node in (queue := [self.name]):
            for other in edges[node] if hops[node] < self.reach else ():
                if node not in edges.get(other, ()):
                    full = False
                elif other not in hops:
                    hops[other] = hops[node] + 1
                    queue.append(other)
        self.hops, self.full = hops, full
        self.flood.reconsider()

    @property
    def rim(self) -> bool:
        """Whether anybody is farther than the radius."""
        return max(self.hops.values()) > self.radius

    def depends(self) -> list[tuple[str, Version, Version]]:
        """What an answer now depends on, as :attr:`answered`."""
        reports, found = self.flood.reports, []
        for name, far in self.hops.items():
            report = reports.get((PROFILE if far <= self.radius else EMBEDDING, name))
            if report is not None:  # a node of the rim counts from its first embedding on
                found.append((name, reports[PROFILE, name].version, report.version))
        return found

    def has_changed(self) -> bool:
        """Whether there is something new to solve for, which counts as answered from now on."""
        before, self.answered = self.answered, self.depends()
        return before != self.answered

    def is_news(self, h: Array, number: Any) -> bool:
        """Whether others should hear of this embedding: they hold the node in their rims, and it
        has moved by more than rounding, in numbers of this type, since it was told."""
        if not (self.full and self.rim):
            return False
        if h.shape != self.told.shape:
            return True  # nothing was told yet
        least = STILL * float(np.finfo(number).eps) * np.abs(h).max()
        return bool(np.abs(h - self.told).max() > least)


class Balls(Work):
    """Solves of the ball around one agent.

    Args:
        model: The trained model.
        name: The agent's name.
        incarnation: Its incarnation.
        features: Its features, as it tells them, [q].
        radius: Hops within which it solves for others, too; ``None``: for everybody.
        precision: Numbers of embeddings in packets; profiles are always float64.
        h: Where to begin, [1, k, 1]; ``None``: where the model begins.
    """

    def __init__(
        self,
        model: NodeModel,
        name: str,
        incarnation: int,
        features: Array,
        *,
        radius: int | None,
        precision: str,
        h: Array | None,
    ) -> None:
        whole = isinstance(radius, int) and not isinstance(radius, bool)
        if radius is not None and not (whole and 0 <= radius <= FURTHEST):
            raise SetupError(
                f"radius={radius!r}; expected a whole number from 0 on, or None for the whole graph"
            )
        self.model, self.name = model, name
        self.format = Format(
            model.name, "balls", model.told_channels, 0, 0, 0, model.channels, precision, True
        )
        self.radius = math.inf if radius is None else radius
        self.ball = Ball(name, incarnation, self.radius, model.couples, self._read)
        self.flood = self.ball.flood
        self.residual = math.inf
        self.solved: Solved | None = None
        self._warm: dict[str, Array] = {}
        self.forwards = True
        alone = model.build(features, [])
        self.h = model.start(alone) if h is None else h

    # -- reports -----------------------------------------------------------------------------------

    def _read(self, key: Key, body: bytes) -> object:
        kind, owner = key
        checked(owner)
        if kind == PROFILE:
            return Profile.read(owner, body, self.model.told_channels, self.model.edge_dim)
        if kind == EMBEDDING and self.radius < math.inf:
            return read_embedding(body, self.format.number, self.model.channels)
        raise BadPacket("kind")

    def check(self, features: Array, edges: Mapping[str, Edge]) -> None:
        profile_of(features, edges).write()

    def meet(self, features: Array, members: Mapping[str, Link], now: float) -> bool:
        edges = {name: link.edge for name, link in members.items()}
        return self.ball.meet(profile_of(features, edges).write(), now)

    def forget(self, name: str) -> None:
        self.ball.forget(name)

    def hear(self, name: str, incarnation: int, body: bytes, now: float) -> None:
        self.ball.hear(name, incarnation, self.flood.parse(body), now)

    def data(self, header: Header, name: str, now: float) -> list[bytes]:
        packets = self.ball.tell(name, now, HEADER.size)
        return [self.format.packet(header, packet.write()) for packet in packets]

    # -- who is there ------------------------------------------------------------------------------

    @property
    def hops(self) -> Mapping[str, int]:
        """The hops to all nodes that can be reached."""
        return self.ball.hops

    @property
    def knows(self) -> int:
        return len(self.hops)

    @property
    def whole(self) -> bool:
        return self.ball.full and not self.ball.rim and not self.flood.crowded

    @property
    def trouble(self) -> str | None:
        # Reports beyond the room may not even come: neighbours have no room for them either.
        if not self.flood.crowded and (self.ball.full or len(self.flood.reports) < self.flood.room):
            if self.solved is None or self.solved.good:
                return None
            return (
                "its solve did not arrive, so it keeps its last answer; expected features of all "
                "nodes about as large as in training"
            )
        return (
            f"there are more nodes than the {self.flood.room} of which it keeps reports, and it "
            f"solves for some of them only; expected the same --radius at all agents, small enough "
            f"that no ball has more"
        )

    # -- an update ---------------------------------------------------------------------------------

    def update(self, now: float, breathe: Callable[[], None]) -> None:
        moved = 0.0
        if self.ball.has_changed():
            moved = self._solve([name for name, *_ in self.ball.answered], breathe)
        self.residual = math.inf
        if self.ball.full and self.solved is not None and self.solved.good:
            self.residual = max(self.solved.residual, moved)
        self.speaks = self._speak(now)

    def _solve(self, names: list[str], breathe: Callable[[], None]) -> float:
        """Solve for the nodes of these names, the agent's own first; how far that moved any of
        them. An agent that hears of a change is unsettled, wherever the change was: others have yet
        to hear of it."""
        known = self._warm.keys() == set(names)
        self.updates += 1
        with np.errstate(all="ignore"):  # anybody may have told any numbers
            piece, start = self._piece(names)
            found = solve(piece, start, breathe)
            if not found.good and self._warm:
                cold = np.where(piece.free, self.model.start(piece.local), start)
                found = solve(piece, cold, breathe)
        self.solved, self._warm = found, {}
        if found.good:
            self.h = found.h[..., :1].copy()
            self._warm = {name: found.h[0, :, i] for i, name in enumerate(names)}
        else:
            self.restarts += 1
        gap = np.abs(found.h - start)[..., piece.free]
        return float(gap.max()) if found.good and known else math.inf

    def _piece(self, names: list[str]) -> tuple[Piece, Array]:
        """The problem of these nodes, and where its solve begins, [1, k, n]."""
        place = {name: i for i, name in enumerate(names)}
        profiles: list[Profile] = [self.flood.reports[PROFILE, name].content for name in names]
        edges = [
            (place[other], i, *entry)
            for i, (name, profile) in enumerate(zip(names, profiles, strict=True))
            for other, entry in profile.edges.items()
            if other in place and name in profiles[place[other]].edges
        ]
        src, dst = (np.array([e[c] for e in edges], dtype=np.intp) for c in (0, 1))
        degree = np.array([profile.degree for profile in profiles])
        features = np.stack([profile.features for profile in profiles])
        star = Star(len(names), dst, ends=np.concatenate([dst, src]))
        attr = None
        if self.model.edge_dim is not None and edges:
            attr = np.stack([e[3] for e in edges if e[3] is not None])
        part = Part(
            star, features, features, degree, np.array([len(p.edges) for p in profiles]),
            degree[src], np.array([e[2] for e in edges], dtype=float), attr, src,
        )  # fmt: skip
        free = np.array([self.hops[name] <= self.radius for name in names])
        start = np.repeat(self.h, len(names), -1)  # neighbours are alike as a rule
        for i, name in enumerate(names):
            if not free[i]:
                start[0, :, i] = self.flood.reports[EMBEDDING, name].content
            elif name in self._warm:
                start[0, :, i] = self._warm[name]
        local = self.model.build_part(part)
        assert isinstance(local, LocalEnergy | LocalMap)  # of the models with this rule
        return Piece(local, star, src, free), start

    def _speak(self, now: float) -> bool:
        """Tell the embedding, if it is news; whether it is."""
        h, number = self.h[0, :, 0], self.format.number
        with np.errstate(over="ignore"):
            told = h.astype(number)
        if not self.ball.is_news(h, number) or not np.isfinite(told).all():
            return False
        self.ball.told = h.copy()
        return self.flood.report(EMBEDDING, told.tobytes(), now)

    def bound(self, settled: bool, nodes: int | None, tolerance: float) -> float:
        found, convexity = self.solved, self.model.convexity
        current = self.whole and self.ball.answered == self.ball.depends()
        if not current or found is None or not found.good or convexity is None:
            return math.inf
        size = math.sqrt(self.knows * self.model.channels)
        return math.sqrt(self.knows) * (found.norm + size * found.noise) / convexity
