r"""An agent: one node of the graph on one machine, in NumPy, without a coordinator.

An agent holds its own features and embedding and what it last heard from each neighbour, and
nothing of the rest of the graph (with the rule ``"balls"``, also what its neighbours have heard of
others). At each turn (:meth:`Agent.turn`) it reads what has arrived, makes one update by its rule,
and sends its packets to each neighbour. What it computes, and what its data packets hold, is its
*work*: :mod:`~hogwild_node.registers`, or :mod:`~hogwild_node.balls`.

*Hello.* An edge needs the features and the degrees of both ends. A neighbour takes part as soon as
both have heard each other's hellos, so that links that work one way only take no part
(:mod:`hogwild_node.packets` has the protocol). A restarted agent has another incarnation, a random
number; neighbours accept any *different* one, because a robot's clock may start in 1970.

*Silence.* A neighbour from which nothing came for longer than the lease, or that says that it does
not hear the agent, is dropped: from then on the agent computes the answer of the graph without it,
and names it in :attr:`~hogwild_node.registers.Reading.silent`.

*Done?* No node sees the whole graph. *Calm* is the time since anybody in reach was unsettled, as
far as news has come:

.. math:: c_i = \min\Bigl(t - u_i,\; \min_{j \in N(i)} (c_j + a_j)\Bigr),

with :math:`u_i` the last time at which the agent itself was unsettled and :math:`a_j` the age of
the last packet from j, at most a quarter of ``settle_after``. Nothing is known (:math:`c_j + a_j`
is zero) of a neighbour that has sent no data for half of ``settle_after``, and :math:`c_i` is zero
as long as a neighbour that takes part has not confirmed the agent's features and degree. Clocks
differ: an age is measured against the least transit time seen on that link, so that calm is rather
underestimated. The packet to j leaves out what came from j: old news that returned to its origin
would lose the transit times of the way there and back, and calm would grow more slowly than time.
An agent is *settled* when it has been calm for longer than news takes to cross the graph
(``settle_after``).

*Threads.* :meth:`Agent.read` and :meth:`Agent.set_features` never wait, and
:meth:`Agent.set_neighbours` waits for the end of a turn. All three may be called from any thread
while another one takes turns.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hogwild_node import packets
from hogwild_node.balls import Balls
from hogwild_node.errors import SetupError
from hogwild_node.model import Neighbour, NodeModel
from hogwild_node.ops import Array
from hogwild_node.packets import DATA, HELLO, U16, U32, BadPacket, Edge, Header, Link, behind
from hogwild_node.registers import Reading, Registers, State, Work
from hogwild_node.reports import NAME
from hogwild_node.rules import RULES
from hogwild_node.transports import Transport

HELLO_PERIOD = 0.2
"""Seconds between two hellos with the same content to a neighbour that has not acknowledged."""
REFRESH = 5.0
"""Seconds after which all neighbours are told the same content anew, so that a wrong one does not
stay."""
LOOK = 0.1
"""Most seconds until an agent that waits for its next turn notices that it must stop."""


def _name(given: object) -> str:
    """The name of an agent; keys of networks are made of names."""
    if not NAME.fullmatch(str(given)):
        raise SetupError(
            f"an agent is named {str(given)!r}; expected up to 64 letters, digits, dots, "
            f"underscores and dashes"
        )
    return str(given)


@dataclass(frozen=True)
class _Seen:
    """What an agent knew at the end of a turn, with the features and links of that turn."""

    now: float
    features: Array
    links: Mapping[str, Link]
    reading: Reading


class Agent:
    """One node.

    Args:
        model: The trained model (:func:`hogwild_node.model.load`).
        id: The agent's name.
        features: Its features, [p].
        transport: Its links.
        neighbours: The edges to its neighbours, by name.
        rule: ``"auto"`` or one of the model's rules.
        radius: With ``rule="balls"``: the hops within which the agent solves for others, too, the
            same at all agents; ``None``: for everybody.
        precision: Numbers in packets: ``"float16"``, ``"float32"`` or ``"float64"``.
        lease: Seconds of silence after which a neighbour counts as gone.
        tolerance: The residual up to which the agent counts as settled; by default the model's
            (:func:`hogwild.models.export.tolerances`).
        settle_after: Seconds of calm after which the agent says that it is settled: more than news
            takes to cross the graph, and more than ten turns or so: from a neighbour that has sent
            no data for half of this time no calm is known.
        nodes: The number of agents that can be reached, or any larger one, for the bound on the
            error of these; ``None``: no bound is computed.
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
        radius: int | None = None,
        precision: str = "float32",
        lease: float = 2.0,
        tolerance: float | None = None,
        settle_after: float = 1.0,
        nodes: int | None = None,
        h: Array | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if precision not in packets.PRECISIONS:
            raise SetupError(
                f"precision={precision!r}; expected one of {', '.join(packets.PRECISIONS)}"
            )
        if not lease > 0 or not settle_after > 0:
            raise SetupError(
                f"lease={lease!r} and settle_after={settle_after!r}; expected positive seconds"
            )
        self.model, self.id, self.transport, self.clock = model, _name(id), transport, clock
        self.rule_name = model.choose(rule)
        self.lease, self.settle_after = lease, settle_after
        self.nodes, self.precision = nodes, precision
        self.incarnation = 1 + int.from_bytes(os.urandom(4), "little") % (U32 - 1)
        self.revision, self._renewed = 0, -math.inf
        self._told: object = None  # what the last revision says
        self._repeats = 0  # revisions before this one with the same content
        self.links: dict[str, Link] = {}
        self.members: list[str] = []
        self.counts: Counter[str] = Counter()
        self.begun = self.unsettled = clock()
        self.turns = 0
        self.calm, self.now, self.looked = 0.0, self.begun, self.begun
        self.calm_to: dict[str, float] = {}
        given = self.checked(features)
        self._own = given, model.encode(given)  # what neighbours are told of the features
        begin = None if h is None else self._start(h)
        self.work: Work
        if self.rule_name not in RULES:
            exact = radius is None  # no embedding travels, and profiles are float64
            default = model.tolerance("float64" if exact else precision)
            self.tolerance = default if tolerance is None else tolerance
            self.work = Balls(
                model, self.id, self.incarnation, self._own[1], radius=radius,
                precision=precision, h=begin,
            )  # fmt: skip
        elif radius is not None:
            raise SetupError(
                f"radius={radius!r} was given with rule={self.rule_name!r}; expected rule='balls'"
            )
        else:
            self.tolerance = model.tolerance(precision) if tolerance is None else tolerance
            self.work = Registers(
                model, self.rule_name, self._own[1], precision=precision,
                tolerance=self.tolerance, h=begin,
            )  # fmt: skip
        self.format = self.work.format
        self._turning = threading.RLock()
        self._seen: _Seen | None = None
        self.set_neighbours(neighbours or {})
        self._see(self.begun, self.features)

    @property
    def features(self) -> Array:
        """The agent's features, [p]."""
        return self._own[0]

    @property
    def h(self) -> Array:
        """The agent's embedding, [1, k, 1]."""
        return self.work.h

    @property
    def updates(self) -> int:
        """Updates made."""
        return self.work.updates

    @property
    def residual(self) -> float:
        """How far the agent is from being settled."""
        return self.work.residual

    # -- what the owner may change -----------------------------------------------------------------

    def set_features(self, features: Array) -> None:
        """The agent's features are these from now on; it tells its neighbours."""
        features = self.checked(features)
        told = self.model.encode(features)
        self.work.check(told, {name: link.edge for name, link in self.links.items()})
        if not np.array_equal(features, self.features):
            self._own = features, told

    def set_neighbours(self, neighbours: Mapping[str, Edge]) -> None:
        """The agent has these neighbours from now on; what it knows of the others it forgets. If
        they are the neighbours that it has, nothing changes."""
        places = [edge.address for edge in neighbours.values() if edge.address is not None]
        twice = [place for place in places if places.count(place) > 1]
        if twice:
            raise SetupError(f"two neighbours have the address {twice[0]}; expected one for each")
        for name, edge in neighbours.items():
            if _name(name) == self.id:
                raise SetupError(f"agent {self.id} is its own neighbour; expected other agents")
            told = Neighbour(np.zeros(self.model.told_channels), 1.0, edge.edge_attr, edge.weight)
            try:
                self.model.check(self.features, [told])
            except SetupError as error:
                raise SetupError(f"the edge to {name}: {error}") from error
        self.work.check(self._own[1], neighbours)
        with self._turning:
            links = self.links
            given = {name: edge.content for name, edge in neighbours.items()}
            same = given == {name: link.edge.content for name, link in links.items()}
            if same and self._seen is not None:  # else the transport is not connected yet
                return
            self.transport.connect({name: edge.address for name, edge in neighbours.items()})
            for name in links.keys() - neighbours.keys():
                self.work.forget(name)
            now = self.clock()
            self.links = {
                name: replace(links[name], edge=edge) if name in links else Link(edge, now)
                for name, edge in neighbours.items()
            }

    def checked(self, features: Array) -> Array:
        """The features as numbers; raises :class:`SetupError` if the model cannot read them."""
        try:
            found = np.asarray(features, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SetupError(f"the features are {features!r}; expected numbers") from error
        self.model.check(found, [])
        most = np.finfo("float64" if self.precision == "float64" else "float32").max
        if np.abs(found).max(initial=0.0) > most:
            raise SetupError(
                f"the features are {np.array2string(found, threshold=6)}, and packets with "
                f"precision={self.precision!r} cannot hold embeddings of such features; expected "
                f"at most {most:.2g}"
            )
        return found.copy()

    def _start(self, h: Array) -> Array:
        found = np.asarray(h, dtype=np.float64)
        if found.shape != (self.model.channels,) or not bool(np.isfinite(found).all()):
            raise SetupError(
                f"h has shape {found.shape}; expected {self.model.channels} finite numbers"
            )
        return found.reshape(1, -1, 1).copy()

    # -- one turn ----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Read what has arrived, make one update, and send; whether an update was made."""
        with self._turning:
            self.now = self.looked = now = self.clock()
            features, told = self._own  # another thread may set others meanwhile
            self.turns += 1
            for received in self.transport.receive():
                arrived = now if received.at is None else received.at
                self._receive(received.sender, received.raw, arrived)
            self._meet(now, told)
            # An update without a neighbour is of another graph: all have a lease's time to answer.
            ready = now - self.begun > self.lease or len(self.members) == len(self.links)
            if ready and self.work.forwards:
                self._send(now)
            if ready:
                self._update(now)
            self._greet(now, told, ready)
            if ready and (self.work.speaks or not self.work.forwards):
                self._send(now)
            self._see(now, features)  # not later: nobody was heard during a long update
            return ready

    def _meet(self, now: float, features: Array) -> None:
        """Who takes part, and what that changes."""
        members = [name for name, link in self.links.items() if self._takes_part(link)]
        for name in set(self.members) - set(members):
            link = self.links.get(name)
            if link is not None:
                link.leave()
        self.members = members
        if self.work.meet(features, {m: self.links[m] for m in members}, now):
            self.unsettled, self.calm_to = now, {}

    def _hears(self, link: Link) -> bool:
        """Whether the neighbour is known, and had been heard within a lease when this agent last
        looked: while the agent makes a long update, it does not."""
        return link.incarnation is not None and self.looked - link.last <= self.lease

    def _takes_part(self, link: Link) -> bool:
        return link.mutual and self._hears(link)

    def _update(self, now: float) -> None:
        self.work.update(now, self._breathe)
        if not self.residual <= self.tolerance:
            self.unsettled = now
        told = all(self._confirmed(self.links[name]) for name in self.members)
        own, heard = max(now - self.unsettled, 0.0) if told else 0.0, self._calm(now)
        least, second = sorted([*heard.values(), math.inf, math.inf])[:2]
        self.calm = min(own, least)
        self.calm_to = {  # without what came from this neighbour
            name: min(own, second if theirs == least else least) for name, theirs in heard.items()
        }

    def _breathe(self) -> None:
        """A keep-alive during a long update."""
        now = self.clock()
        if now - self.now > self.lease / 4:
            self.now = self.unsettled = now
            self.calm_to = {}
            self.turns += 1
            self._send(now)

    def _confirmed(self, link: Link) -> bool:
        """Whether the neighbour knows the agent's features and degree, in this revision or in an
        earlier one. Revisions go from 1 to U16 - 1 and begin again."""
        return bool(link.known) and (self.revision - link.known) % (U16 - 1) <= self._repeats

    def _calm(self, now: float) -> dict[str, float]:
        """The neighbours' calm, aged; neighbours that are gone have no say."""
        found = {}
        for name, link in self.links.items():
            if name not in self.members:
                found[name] = math.inf if now - link.since > self.lease else 0.0
            elif link.sequence is None or now - link.heard > min(self.lease, self.settle_after / 2):
                found[name] = 0.0
            else:
                found[name] = link.calm + min(link.age(now), self.settle_after / 4)
        return found

    # -- packets -----------------------------------------------------------------------------------

    def _header(self, kind: int, name: str, now: float) -> Header:
        link = self.links[name]
        hears = self._hears(link)
        return self.format.header(
            self.incarnation, kind, sequence=self.turns, to=link.incarnation if hears else 0,
            revision=self.revision, known=link.revision if hears else 0, time=now,
            calm=self.calm_to.get(name, 0.0),
        )  # fmt: skip

    def _greet(self, now: float, features: Array, ready: bool) -> None:
        """Say hello to those who do not know the agent's features and degree."""
        degree = 1.0 + sum(self.links[name].edge.weight for name in self.members)
        extra = {name: self.work.extra(link.edge) for name, link in self.links.items()}
        told = {name: more.tobytes() for name, more in extra.items() if more.size}
        content = degree, features.tobytes(), told
        for link in self.links.values():
            if link.mutual and behind(self.revision, link.known, U16):
                self.revision, self._told = link.known, None  # nobody knows what comes next
        if content != self._told or now - self._renewed >= REFRESH:
            self.revision = self.revision % (U16 - 1) + 1
            self._repeats = min(self._repeats + 1, U16 // 2) if content == self._told else 0
            self._told, self._renewed = content, now
        for name, link in self.links.items():
            known = ready and name in self.members and link.known == self.revision
            again = not known and now - link.greeted >= HELLO_PERIOD
            if link.told != self.revision or again:
                link.greeted, link.told = now, self.revision
                body = np.concatenate([features, extra[name]])
                raw = self.format.hello(self._header(HELLO, name, now), degree, body)
                self._post(name, raw, hello=True)

    def _send(self, now: float) -> None:
        for name in self.members:
            for raw in self.work.data(self._header(DATA, name, now), name, now):
                self._post(name, raw, hello=False)

    def _post(self, to: str, raw: bytes, *, hello: bool) -> None:
        self.counts["packets"] += 1
        self.counts["bytes"] += len(raw)
        self.transport.send(to, raw, hello=hello)

    def _receive(self, sender: str, raw: bytes, arrived: float) -> None:
        """Take a packet in, or drop and count it."""
        link, me = self.links.get(sender), self.incarnation
        try:
            if link is None:
                raise BadPacket("stranger")

            def take(incarnation: int, body: bytes) -> None:
                self.work.hear(sender, incarnation, body, self.now)

            link.hear(raw, self.format, arrived, lease=self.lease, me=me, take=take)
            self.counts["received"] += 1
        except BadPacket as bad:
            self.counts["dropped"] += 1
            self.counts[f"dropped: {bad}"] += 1

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> Reading:
        """What the agent knew at the end of its last turn. It never raises, and never waits. An
        agent whose last turn is half of ``settle_after`` ago is not settled."""
        seen, features, links = self._seen, self.features, self.links
        assert seen is not None  # since the agent was made
        found = seen.reading
        waited = max(self.clock() - seen.now, 0.0) if self.members else 0.0
        changed = seen.features is not features or seen.links is not links
        if changed or waited > 0.5 * self.settle_after:  # nothing is known of what came since
            state = State.RUNNING if found.state is State.SETTLED else found.state
            silent = tuple(name for name in found.silent if name in links)
            found = replace(found, bound=math.inf, calm=0.0, state=state, silent=silent)
        return replace(
            found, h=found.h.copy(), prediction=found.prediction.copy(),
            staleness=found.staleness + waited,
        )  # fmt: skip

    def _see(self, now: float, features: Array) -> None:
        """Note what the agent knows now, for readers in other threads."""
        silent = tuple(
            name
            for name, link in self.links.items()
            if name not in self.members and now - link.since > self.lease
        )
        settled = self.calm >= self.settle_after
        state = State.SETTLED if settled else State.RUNNING
        if not self.updates:
            state = State.STARTING
        near = [self.links[name] for name in self.members]
        ages = [link.age(now) if link.sequence is not None else math.inf for link in near]
        h = self.h[0, :, 0].copy()
        before = None if self._seen is None else self._seen.reading
        resting = before is not None and np.array_equal(h, before.h)
        prediction = before.prediction if before and resting else self.model.predict(h)
        reading = Reading(
            h, prediction, self.residual,
            self.work.bound(settled, self.nodes, self.tolerance), self.calm, state, self.updates,
            max(ages, default=0.0), silent, self.work.knows, self.work.whole,
        )  # fmt: skip
        self._seen = _Seen(now, features, self.links, reading)

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
