r"""An agent: one node of the graph on one machine, in NumPy, without a coordinator.

An agent holds its own features and embedding and what it last heard from each neighbour, and
nothing of the rest of the graph. At each turn (:meth:`Agent.turn`) it reads what has arrived, makes
one update by its rule, and sends one packet to each neighbour.

*Hello.* An edge needs the features and the degrees of both ends. Every agent says hello until its
neighbour acknowledges the hello's revision, and a neighbour takes part once it has done so: links
that work one way only take no part. A restarted agent has another incarnation, a random number;
neighbours accept any *different* one, because a robot's clock may start in 1970.

*Silence.* A neighbour that sent no data for longer than the lease is dropped: from then on the
agent computes the answer of the graph without it. With ``on_silence="hold"`` its last words stay,
and the agent's state says so.

*Done?* No node sees the whole graph. *Calm* is the time since anybody in reach was unsettled, as
far as word has come:

.. math:: c_i = \min\Bigl(t - u_i,\; \min_{j \in N(i)} (c_j + a_j)\Bigr),

with :math:`u_i` the last time at which the agent itself was unsettled and :math:`a_j` the age of
the last packet from j, at most a quarter of ``settle_after``, so that a neighbour that falls
silent does not count as calm. Clocks differ: an age is measured against the least transit time
seen on that link, so that calm is rather underestimated. The packet to j leaves out what came from
j: old word that returned to its origin would lose the transit times of the way there and back, and
calm would grow more slowly than time. (Around cycles of the graph it still does.) An agent is
*settled* when it has been calm for longer than word takes to cross the graph (``settle_after``).
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from hogwild_node.errors import SetupError
from hogwild_node.link import Edge, Link
from hogwild_node.model import Neighbour, NodeModel, star_of
from hogwild_node.ops import Array
from hogwild_node.packets import DATA, HALF, HELLO, BadPacket, Format, Header
from hogwild_node.reading import Reading, State
from hogwild_node.rules import Rule
from hogwild_node.star import Star
from hogwild_node.transport import Transport

HELLO_PERIOD = 0.2
"""Seconds between two hellos to a neighbour that has not acknowledged."""
LOOK = 0.1
"""Most seconds until an agent that waits for its next turn notices that it shall stop."""
STILL = 64.0
"""Changes up to this many units of rounding of the packets' numbers, relative to the largest
number, are rounding."""


def _name(given: object) -> str:
    """The name of an agent; keys of networks are made of names."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", str(given)):
        raise SetupError(
            f"an agent is named {str(given)!r}; expected up to 64 letters, digits, dots, "
            f"underscores and dashes"
        )
    return str(given)


class Agent:
    """One node.

    Args:
        model: The trained model (:func:`hogwild_node.model.load`).
        id: The agent's name.
        features: Its features, [p].
        transport: Its links.
        neighbours: The edges to its neighbours, by name.
        rule: ``"auto"`` or one of the model's rules.
        precision: Numbers in packets: ``"float32"`` or ``"float64"``.
        lease: Seconds of silence after which a neighbour counts as gone.
        on_silence: ``"drop"`` or ``"hold"``.
        tolerance: The residual up to which the agent counts as settled; by default the model's
            (:func:`hogwild.models.export.tolerances`).
        settle_after: Seconds of calm after which the agent says that it is settled: more than word
            takes to cross the graph.
        nodes: The number of agents, for the bound on the error; ``None``: no bound is computed.
        h: Where to begin, [k]; by default where the model begins.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        model: NodeModel,
        id: str,
        features: Array,
        transport: Transport,
        *,
        neighbours: Mapping[str, Edge] | None = None,
        rule: str = "auto",
        precision: str = "float32",
        lease: float = 2.0,
        on_silence: str = "drop",
        tolerance: float | None = None,
        settle_after: float = 1.0,
        nodes: int | None = None,
        h: Array | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if on_silence not in ("drop", "hold"):
            raise SetupError(f"on_silence={on_silence!r}; expected 'drop' or 'hold'")
        if precision not in ("float32", "float64"):
            raise SetupError(f"precision={precision!r}; expected 'float32' or 'float64'")
        if not lease > 0 or not settle_after > 0:
            raise SetupError(
                f"lease={lease!r} and settle_after={settle_after!r}; expected positive seconds"
            )
        self.model, self.id, self.transport, self.clock = model, _name(id), transport, clock
        self.rule_name = model.rules[0] if rule == "auto" else rule
        self.lease, self.on_silence, self.settle_after = lease, on_silence, settle_after
        self.tolerance = tolerance or model.tolerance(precision)
        self.rounding = STILL * float(np.finfo(precision).eps)
        self.nodes = nodes
        self.incarnation = int.from_bytes(os.urandom(4), "little")
        self.revision = 1 + int.from_bytes(os.urandom(2), "little") % (HALF - 1)  # 0: unknown
        self.links: dict[str, Link] = {}
        self.members: list[str] = []
        self.counts: Counter[str] = Counter()
        self.begun = self.unsettled = clock()
        self.updates = self.turns = 0
        self.residual, self.calm, self.now = math.inf, 0.0, self.begun
        self.calm_to: dict[str, float] = {}
        self._heard_at_rest: tuple[Array, Array] | None = None
        self.features = self.checked(features)
        self._known: object = None
        self.star: Star = star_of(0)
        local = model.pose(self.features, [])
        self.rule: Rule = model.rule(rule, local, self.star)
        self.h = model.start(local) if h is None else self._start(h)
        self.letters = self._begin()
        block = model.channels if self.rule_name in ("gradient", "messages") else 0
        self.format = Format(
            model.name, self.rule_name, model.in_channels, self.rule.said, self.rule.letter,
            block, model.channels, precision,
        )  # fmt: skip
        self.set_neighbours(neighbours or {})

    # -- what the owner may change -----------------------------------------------------------------

    def set_features(self, features: Array) -> None:
        """The agent's features are these from now on; it tells its neighbours."""
        features = self.checked(features)
        if not np.array_equal(features, self.features):
            self.features = features
            self._changed()

    def set_neighbours(self, neighbours: Mapping[str, Edge]) -> None:
        """The agent has these neighbours from now on; what it knows of the others it forgets."""
        places = [edge.address for edge in neighbours.values() if edge.address is not None]
        twice = [place for place in places if places.count(place) > 1]
        if twice:
            raise SetupError(f"two neighbours have the address {twice[0]}; expected one for each")
        for name, edge in neighbours.items():
            if _name(name) == self.id:
                raise SetupError(f"agent {self.id} is its own neighbour; expected other agents")
            width = self.model.edge_dim
            attr = None if edge.edge_attr is None else np.asarray(edge.edge_attr, float)
            told = Neighbour(np.zeros(self.model.in_channels), 1.0, attr, edge.weight)
            try:
                self.model.check(self.features, [told])
            except SetupError as error:
                raise SetupError(f"the edge to {name}: {error}") from error
            assert width is None or attr is not None
        self.transport.connect({name: edge.address for name, edge in neighbours.items()})
        kept = {name: self.links[name] for name in neighbours if name in self.links}
        for name, link in kept.items():
            link.edge = neighbours[name]
        fresh = {name: Link(edge) for name, edge in neighbours.items() if name not in kept}
        self.links = kept | fresh
        self._changed()

    def checked(self, features: Array) -> Array:
        """The features as numbers; raises :class:`SetupError` if the model cannot read them."""
        try:
            found = np.asarray(features, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SetupError(f"the features are {features!r}; expected numbers") from error
        self.model.check(found, [])
        return found.copy()

    def _start(self, h: Array) -> Array:
        found = np.asarray(h, dtype=np.float64)
        if found.shape != (self.model.channels,) or not bool(np.isfinite(found).all()):
            raise SetupError(
                f"h has shape {found.shape}; expected {self.model.channels} finite numbers"
            )
        return found.reshape(1, -1, 1).copy()

    def _changed(self) -> None:
        """Neighbours must hear another hello."""
        self.revision = self.revision % (HALF - 1) + 1
        self.unsettled, self.calm, self.calm_to = self.clock(), 0.0, {}

    # -- one turn ----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Read what has arrived, make one update, and send; whether an update was made."""
        self.now = now = self.clock()
        self.turns += 1
        for received in self.transport.receive():
            arrived = now if received.at is None else received.at
            self._receive(received.sender, received.raw, arrived)
        self._meet(now)
        ready = self._ready(now)
        if ready:
            self._update(now)
        self._greet(now)
        if ready:
            self._send(now)
        return ready

    def _ready(self, now: float) -> bool:
        """Whether all neighbours take part, or have had their time: an update without a neighbour
        is of another graph."""
        complete = all(self._takes_part(link, now) for link in self.links.values())
        return complete or now - self.begun > self.lease

    def _meet(self, now: float) -> None:
        """Who takes part, and what that changes."""
        members = [name for name, link in self.links.items() if self._takes_part(link, now)]
        stayed = members == self.members
        for name in set(self.members) - set(members):
            link = self.links.get(name)
            if link is not None:
                link.leave()
        if not stayed:
            self.members = members
            self._changed()
        known = (
            self.features.tobytes(),
            tuple((m, *self.links[m].version()) for m in members),
        )
        if known == self._known:
            return
        same = stayed and self._known is not None
        self._known, self.star = known, star_of(len(members))
        local = self.model.pose(self.features, self._near())
        if same and self.rule_name in ("gradient", "messages"):
            self.rule.pose(local)  # features or degrees moved: memory stays
        else:
            self.rule = self.model.rule(self.rule_name, local, self.star)
            if self.rule_name in ("caching", "overwriting"):
                self.h = self.model.start(local)
            self.letters = self._begin()
        self.unsettled, self._heard_at_rest = now, None

    def _takes_part(self, link: Link, now: float) -> bool:
        if link.features is None or not link.mutual:
            return False
        return self.on_silence == "hold" or now - link.heard <= self.lease

    def _near(self) -> list[Neighbour]:
        links = [self.links[name] for name in self.members]
        return [
            Neighbour(link.features, link.degree, link.edge.edge_attr, link.edge.weight)
            for link in links
        ]

    def _begin(self) -> Array:
        """Start the rule's memory where the agent is."""
        letters = self.rule.begin(self.h, self._views()[0])
        return np.zeros((1, self.rule.letter, self.star.degree)) if letters is None else letters

    def _views(self) -> tuple[Array, Array]:
        """What was last heard: embeddings [1, said, d] and letters [1, m, d]; zero where nothing
        was, which the rules take for silence."""
        inbox = np.zeros((1, self.rule.said, len(self.members)))
        mail = np.zeros((1, self.rule.letter, len(self.members)))
        for place, name in enumerate(self.members):
            link = self.links[name]
            if link.said is not None and link.letter is not None:
                inbox[0, :, place], mail[0, :, place] = link.said, link.letter
        return inbox, mail

    def _update(self, now: float) -> None:
        inbox, mail = self._views()
        before, letters = self.h, self.letters
        if not self._at_rest(inbox, mail):
            with np.errstate(all="ignore"):
                self.h, sent = self.rule.update(self.h, inbox, mail, self.star)
            if sent is not None:
                self.letters = sent
            self.updates += 1
            still = self._close(self.h, before) and self._close(self.letters, letters)
            self._heard_at_rest = (inbox, mail) if still else None
            if not (np.isfinite(self.h).all() and np.isfinite(self.letters).all()):
                self._restart(now)
                before = self.h
        gradient = self.rule.gradient_at(mail, self.star)
        moved = self.h - before if gradient is None else gradient
        self.residual = float(np.abs(moved).max())
        if not self.residual <= self.tolerance:
            self.unsettled = now
        own, heard = max(now - self.unsettled, 0.0), self._calm(now)
        least, second = sorted([*heard.values(), math.inf, math.inf])[:2]
        self.calm = min(own, least)
        self.calm_to = {  # without what came from this neighbour
            name: min(own, second if theirs == least else least) for name, theirs in heard.items()
        }

    def _at_rest(self, inbox: Array, mail: Array) -> bool:
        """Whether another update would change nothing: the node is settled, its last update moved
        it by rounding only, and it has heard the same since. Such a turn costs one look at the
        inbox."""
        if self.rule.ends and bool(np.all(self.rule.finished(np.zeros(1, dtype=np.intp)))):
            return True
        heard = self._heard_at_rest
        if heard is None or not self.residual <= self.tolerance:
            return False
        return self._close(heard[0], inbox) and self._close(heard[1], mail)

    def _close(self, x: Array, y: Array) -> bool:
        """Whether two arrays differ by rounding at most; ``False`` for NaN."""
        return bool(np.all(np.abs(x - y) <= self.rounding * np.abs(y).max(initial=0.0)))

    def _restart(self, now: float) -> None:
        """Begin anew after numbers that are not finite, which a neighbour's features may cause."""
        self.counts["restarts"] += 1
        local = self.model.pose(self.features, self._near())
        self.rule = self.model.rule(self.rule_name, local, self.star)
        self.h, self.unsettled = self.model.start(local), now
        with np.errstate(all="ignore"):
            self.letters = np.nan_to_num(self._begin(), posinf=0.0, neginf=0.0)

    def _calm(self, now: float) -> dict[str, float]:
        """The neighbours' calm, aged; neighbours that are gone have no say."""
        found = {}
        for name, link in self.links.items():
            if name not in self.members:
                found[name] = math.inf if now - self.begun > self.lease else 0.0
            elif link.said is None or now - link.heard > self.lease:
                found[name] = 0.0
            else:
                found[name] = link.calm + min(link.age(now), self.settle_after / 4)
        return found

    # -- packets -----------------------------------------------------------------------------------

    def _header(self, kind: int, name: str, now: float) -> Header:
        link = self.links[name]
        return self.format.header(
            self.incarnation, kind, sequence=self.turns, heard=link.sequence or 0,
            revision=self.revision, known=link.revision if link.incarnation is not None else 0,
            time=now, calm=self.calm_to.get(name, 0.0),
        )  # fmt: skip

    def _greet(self, now: float) -> None:
        degree = 1.0 + sum(self.links[name].edge.weight for name in self.members)
        for name, link in self.links.items():
            if link.known == self.revision and link.mutual:
                continue
            if now - link.greeted >= HELLO_PERIOD:
                link.greeted = now
                raw = self.format.hello(self._header(HELLO, name, now), degree, self.features)
                self._post(name, raw, hello=True)

    def _send(self, now: float) -> None:
        with np.errstate(all="ignore"):
            said = self.rule.broadcast(self.h, self.star)[0, :, 0]
        for place, name in enumerate(self.members):
            header = self._header(DATA, name, now)
            raw = self.format.data(header, said, self.letters[0, :, place])
            self._post(name, raw, hello=False)

    def _post(self, to: str, raw: bytes, *, hello: bool) -> None:
        self.counts["packets"] += 1
        self.counts["bytes"] += len(raw)
        self.transport.send(to, raw, hello=hello)

    def _receive(self, sender: str, raw: bytes, arrived: float) -> None:
        """Take a packet in, or drop and count it."""
        link, to = self.links.get(sender), (self.incarnation, self.revision)
        try:
            if link is None:
                raise BadPacket("stranger")
            link.hear(raw, self.format, arrived, lease=self.lease, to=to)
            self.counts["received"] += 1
        except BadPacket as bad:
            self.counts["dropped"] += 1
            self.counts[f"dropped: {bad}"] += 1

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> Reading:
        """What the agent knows now."""
        now = self.clock()
        late = now - self.begun > self.lease
        silent = tuple(
            n for n, link in self.links.items() if late and now - link.heard > self.lease
        )
        settled = self.calm >= self.settle_after
        state = State.SETTLED if settled else State.RUNNING
        held = any(self.links[name].features is not None for name in silent)
        if self.on_silence == "hold" and held:
            state = State.HOLDING
        elif not self.updates:
            state = State.STARTING
        bound = math.inf
        if settled and self.nodes is not None and self.model.convexity is not None:
            size = math.sqrt(self.nodes * self.model.channels)
            bound = size * self.tolerance / self.model.convexity
        near = [self.links[name] for name in self.members]
        ages = [link.age(now) if link.said is not None else math.inf for link in near]
        h = self.h[0, :, 0].copy()
        return Reading(
            h, self.model.predict(h), self.residual, bound, self.calm, state, self.updates,
            max(ages, default=0.0), silent,
        )  # fmt: skip

    # -- running -----------------------------------------------------------------------------------

    def run(
        self,
        *,
        rate: float = 50.0,
        stopped: Callable[[], bool] = lambda: False,
        each: Callable[[Agent], None] | None = None,
    ) -> None:
        """Take turns until ``stopped()``.

        Args:
            rate: Turns a second at most.
            each: Called after every turn.
        """
        due = time.monotonic()
        while not stopped():
            self.turn()
            if each is not None:
                each(self)
            due = max(due + 1.0 / rate, time.monotonic() - 1.0 / rate)
            time.sleep(0.0002)  # other threads run even if turns are late
            while (left := due - time.monotonic()) > 0.0 and not stopped():
                time.sleep(min(left, LOOK))
