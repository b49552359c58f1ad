r"""The rule ``"balls"`` as one agent runs it: word of all nodes floods, and every node solves what
it knows.

:mod:`hogwild.rules.balls` has the rule and what is proved of it. An agent keeps the *profiles* of
the nodes within ``radius`` + c hops, solves for all nodes of its *ball* A at once (those within
``radius`` hops; all nodes, if there is no radius), and holds the nodes of the *rim* B at their
embeddings as last heard:

.. math:: z = \arg\min_{h_A} E(h_A, h_B) \quad\text{or}\quad z = F_A(z, h_B), \qquad
          h_i \leftarrow z_i.

Profiles and embeddings are words (:mod:`hogwild_node.flood`). An agent solves when it has heard a
word that its answer depends on, and begins where it last ended.

**Who is there.** An edge counts if both of its ends list each other. Whoever cannot be reached over
such edges does not exist for the agent: when neighbours drop an agent that has fallen silent, they
no longer list it, and it is gone from all tables as soon as word of that has come. No word
expires.

**Done?** An agent whose table is *full* has word of everybody that the nodes in its table list. If
besides nobody is in the rim, it has solved the *whole* graph that can be reached, and the gradient
that is left bounds its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from hogwild_node.errors import SetupError
from hogwild_node.flood import Flood, Key
from hogwild_node.held import Piece, Solved, solve
from hogwild_node.local import LocalEnergy, LocalMap
from hogwild_node.model import NodeModel, Part
from hogwild_node.ops import Array
from hogwild_node.packets import HEADER, BadPacket, Edge, Format, Header, Link
from hogwild_node.profiles import EMBEDDING, PROFILE, Profile, checked, read_embedding
from hogwild_node.registers import Work
from hogwild_node.star import Star

LARGEST = 256
"""Most nodes of which an agent without a radius keeps word; with a radius, ``WIDER`` times as many
words."""
WIDER = 16
FURTHEST = 60_000
"""The largest radius."""
STILL = 4.0
"""An embedding that moved by fewer units of rounding is not told again."""


def profile_of(features: Array, edges: Mapping[str, Edge]) -> Profile:
    """The profile of an agent with these features [p] and edges."""
    told = {}
    for name, edge in edges.items():
        attr = None if edge.edge_attr is None else np.asarray(edge.edge_attr, float)
        told[name] = (float(edge.weight), attr)
    return Profile(features, told)


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
        self.radius = math.inf if radius is None else radius
        self.reach = self.radius + model.couples
        self.format = Format(
            model.name,
            "balls",
            model.told_channels,
            0,
            0,
            0,
            model.channels,
            precision,
            floods=True,
        )
        self.flood = Flood(
            name, incarnation, scope=0 if radius is None else radius + 1,
            room=LARGEST if radius is None else WIDER * LARGEST,
            read=self._read, useful=lambda key: key[1] in self.hops,
        )  # fmt: skip
        self.incarnations: dict[str, int] = {}
        self.hops: dict[str, int] = {name: 0}
        self.full = False
        self.residual = math.inf
        self.solved: Solved | None = None
        self._stale = True  # whether words have changed since the last look around
        self._answered: object = None  # what the last answer depends on
        self._answers = False  # whether that is what is known now
        self._warm: dict[str, Array] = {}
        self._spoken: Array | None = None
        self.forwards = True
        alone = model.pose(features, [])
        self.h = model.start(alone) if h is None else h

    # -- words -------------------------------------------------------------------------------------

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
        new = self.flood.say(PROFILE, profile_of(features, edges).write(), now)
        if new or self._stale:
            self._look_around()
            self._stale = False
        if self.flood.crowded:
            self.flood.tidy(now)
        return new

    def forget(self, name: str) -> None:
        self.flood.forget(name)
        self.incarnations.pop(name, None)

    def hear(self, name: str, incarnation: int, body: bytes, now: float) -> None:
        fresh = self.incarnations.get(name, incarnation) != incarnation
        if self.flood.hear(name, body, now, fresh=fresh):
            self._stale = True
        self.incarnations[name] = incarnation

    def data(self, header: Header, name: str, now: float) -> list[bytes]:
        def passed(key: Key, older: bool) -> bool:
            if older or key[1] == name:
                return older  # whoever has an older word of it shall not keep that
            return self.hops.get(key[1], math.inf) < self.reach

        def told_by(source: str) -> bool:
            there, here = self._profile(source), self._profile(name)
            if there is None or here is None:
                return False
            return name in there.edges and source in here.edges

        bodies = self.flood.packets(name, now, passed=passed, told_by=told_by, head=HEADER.size)
        return [self.format.packet(header, body) for body in bodies]

    def _profile(self, name: str) -> Profile | None:
        word = self.flood.words.get((PROFILE, name))
        return None if word is None else word.content

    # -- who is there ------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Find the hops to all nodes that can be reached, and whether all of them are known."""
        hops, full = {self.name: 0}, True
        for node in (queue := [self.name]):
            here = self._profile(node)
            assert here is not None
            for other in here.edges if hops[node] < self.reach else ():
                there = self._profile(other)
                if there is None or node not in there.edges:
                    full = False
                elif other not in hops:
                    hops[other] = hops[node] + 1
                    queue.append(other)
        self.hops, self.full, self._answers = hops, full, False
        self.flood.stamp += 1

    @property
    def rim(self) -> bool:
        """Whether anybody is farther than the radius."""
        return max(self.hops.values()) > self.radius

    @property
    def knows(self) -> int:
        return len(self.hops)

    @property
    def whole(self) -> bool:
        return self.full and not self.rim and not self.flood.crowded

    @property
    def trouble(self) -> str | None:
        # Words beyond the room may not even come: neighbours have no room for them either.
        if not self.flood.crowded and (self.full or len(self.flood.words) < self.flood.room):
            return self._unsolved
        return (
            f"there are more nodes than the {self.flood.room} of which it keeps word, and it "
            f"solves for some of them only; expected the same --radius at all agents, small enough "
            f"that no ball has more"
        )

    @property
    def _unsolved(self) -> str | None:
        if self.solved is None or self.solved.good:
            return None
        return (
            "its solve did not arrive, so it keeps its last answer; expected features of all nodes "
            "about as large as in training"
        )

    # -- an update ---------------------------------------------------------------------------------

    def update(self, now: float, breathe: Callable[[], None]) -> None:
        words = self.flood.words
        used = [
            (name, (PROFILE if far <= self.radius else EMBEDDING, name))
            for name, far in self.hops.items()
            if far <= self.radius or (EMBEDDING, name) in words
        ]
        depends = [(words[PROFILE, name].version, words[key].version, name) for name, key in used]
        moved = 0.0
        if depends != self._answered:
            self._answered = depends
            moved = self._solve([name for name, _ in used], breathe)
        self._answers = True
        self.residual = math.inf
        if self.full and self.solved is not None and self.solved.good:
            self.residual = max(self.solved.residual, moved)
        self.speaks = self.full and self.rim and self._speak(now)

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
        profiles: list[Profile] = [self.flood.words[PROFILE, name].content for name in names]
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
                start[0, :, i] = self.flood.words[EMBEDDING, name].content
            elif name in self._warm:
                start[0, :, i] = self._warm[name]
        local = self.model.posed(part)
        assert isinstance(local, LocalEnergy | LocalMap)  # of the models with this rule
        return Piece(local, star, src, free), start

    def _speak(self, now: float) -> bool:
        """Tell the embedding, if it has moved: others have this agent in their rims. Whether it
        has."""
        h, eps = self.h[0, :, 0], float(np.finfo(self.format.number).eps)
        last = self._spoken
        if last is None or np.abs(h - last).max() > STILL * eps * np.abs(h).max():
            with np.errstate(over="ignore"):
                told = h.astype(self.format.number)
            if np.isfinite(told).all():
                self._spoken = h.copy()
                return self.flood.say(EMBEDDING, told.tobytes(), now)
        return False

    def bound(self, settled: bool, nodes: int | None, tolerance: float) -> float:
        found, convexity = self.solved, self.model.convexity
        current = self.whole and self._answers
        if not current or found is None or not found.good or convexity is None:
            return math.inf
        size = math.sqrt(self.knows * self.model.channels)
        return math.sqrt(self.knows) * (found.norm + size * found.noise) / convexity
