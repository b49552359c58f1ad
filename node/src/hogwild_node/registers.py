"""What an agent computes, what its data packets hold, and what it says about itself.

:class:`Work` is the interface between the agent, which keeps its links, and the rules. In
:class:`Registers` packets are registers: of each neighbour the newest packet counts, and a rule
makes updates from these (:mod:`hogwild_node.rules`).
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild_node.model import Neighbour, NodeModel, star_of
from hogwild_node.ops import Array
from hogwild_node.packets import Edge, Format, Header, Link
from hogwild_node.rules import Rule
from hogwild_node.star import Star


class State(enum.StrEnum):
    """Where an agent stands."""

    STARTING = "starting"
    """The agent waits for its neighbours' first hellos."""
    RUNNING = "running"
    SETTLED = "settled"
    """Nobody in reach was unsettled for ``settle_after`` seconds. Where neighbours are ``silent``,
    the agent has settled on the graph without them."""


@dataclass(frozen=True)
class Reading:
    """What an agent knew at the end of a turn.

    Attributes:
        h: Its embedding, [k].
        prediction: Its prediction, [out].
        residual: Of an energy: the largest entry of the gradient at this node, as far as news has
            come. Of other models: how far the last update moved the embedding. With the rule
            ``"balls"``: the largest entry of the gradient (of a map, of F(h) − h) that the last
            solve left, or how far the solve of this turn moved any node of the ball, if that is
            more; infinite as long as there are nodes that others list and that the agent has no
            news of, and where nodes have come or gone.
        bound: A bound on the distance of the embeddings of all nodes that can be reached from the
            answer; infinite where none is known.
        calm: Seconds since anybody in reach was unsettled.
        state: Where the agent stands.
        updates: Updates made. A settled agent makes none until something changes.
        staleness: Age in seconds of the oldest news that the answer rests on: of the newest packet
            from each neighbour the one that was made first. 0 without neighbours.
        silent: Neighbours that have had a lease's time and take no part, because nothing came from
            them for longer than the lease or because they do not hear the agent.
        knows: With the rule ``"balls"``: of how many nodes the agent has news, itself included.
        whole: Whether these are all nodes that can be reached, as far as news has come.
    """

    h: Array
    prediction: Array
    residual: float
    bound: float
    calm: float
    state: State
    updates: int
    staleness: float = 0.0
    silent: tuple[str, ...] = ()
    knows: int | None = None
    whole: bool = False


class Work(ABC):
    """The work of one agent.

    Attributes:
        format: The format of its packets.
        h: Its embedding, [1, k, 1].
        updates: Updates made.
        restarts: How often it began anew, after numbers that are not finite.
        residual: How far it is from being settled (:class:`~hogwild_node.registers.Reading`).
        forwards: Whether packets are sent before the update, because they pass on what was heard:
            news need not wait for a solve at every hop.
        speaks: Where packets are sent before the update: whether it has given something to say.
    """

    format: Format
    h: Array
    updates: int = 0
    restarts: int = 0
    residual: float
    forwards: bool = False
    speaks: bool = False

    def check(self, features: Array, edges: Mapping[str, Edge]) -> None:
        """Raise :class:`SetupError` if the agent cannot have these features and edges."""
        return None

    @abstractmethod
    def meet(self, features: Array, members: Mapping[str, Link], now: float) -> bool:
        """The agent tells these features [q], and these neighbours take part; whether that changes
        what the agent computes."""

    @abstractmethod
    def update(self, now: float, breathe: Callable[[], None]) -> None:
        """Make an update from what was heard, if there is anything to do.

        Args:
            now: The time.
            breathe: Called now and then by an update that may take longer than neighbours wait.
        """

    @abstractmethod
    def data(self, header: Header, name: str, now: float) -> list[bytes]:
        """The data packets to a neighbour that takes part."""

    def hear(self, name: str, incarnation: int, body: bytes, now: float) -> None:
        """Take in what a data packet holds after its header, where packets do not replace each
        other.

        Raises:
            BadPacket: The packet changes nothing.
        """
        raise NotImplementedError

    def extra(self, edge: Edge) -> Array:
        """What a hello tells the neighbour at the other end of an edge, beside the features: by
        default nothing, [0]; or the features of the edge from this neighbour, [r]."""
        return np.zeros(0)

    def forget(self, name: str) -> None:
        """The owner has taken this neighbour away."""
        return None

    def bound(self, settled: bool, nodes: int | None, tolerance: float) -> float:
        """A bound on the distance of the embeddings of all nodes that can be reached from the
        answer; infinite: not known.

        Args:
            settled: Whether the agent is settled.
            nodes: The number of agents, if the agent was told, or any larger one.
            tolerance: The residual up to which agents count as settled.
        """
        return float("inf")

    @property
    def knows(self) -> int | None:
        """Of how many nodes the agent has news, itself included; ``None``: it does not count."""
        return None

    @property
    def trouble(self) -> str | None:
        """What keeps the agent from its answer and its owner should know; ``None``: nothing."""
        return None

    @property
    def whole(self) -> bool:
        """Whether these are all nodes that can be reached from it, as far as news has come."""
        return False


STILL = 64.0
"""Changes up to this many units of rounding of the packets' numbers, relative to the largest
number, are rounding."""


class Registers(Work):
    """Updates by a rule.

    Args:
        model: The trained model.
        rule: The name of the rule.
        features: The agent's features, as it tells them, [q].
        precision: Numbers in packets.
        tolerance: The residual up to which the agent counts as settled.
        h: Where to begin, [1, k, 1]; ``None``: where the model begins.
    """

    def __init__(
        self,
        model: NodeModel,
        rule: str,
        features: Array,
        *,
        precision: str,
        tolerance: float,
        h: Array | None,
    ) -> None:
        self.model, self.rule_name, self.features = model, rule, features
        self.tolerance, self.rounding = tolerance, STILL * float(np.finfo(precision).eps)
        self.residual, self.both = math.inf, model.sees_both_sides(rule)
        self._known: object = None
        self._heard_at_rest: tuple[Array, Array] | None = None
        self.members: Mapping[str, Link] = {}
        self.star: Star = star_of(0)
        self._renew(model.build(features, [], rule), h)
        curved = self.rule.curves and self.rule.letter_width > 0
        block = model.channels if curved else 0
        told = (model.edge_dim or 0) if self.both else 0
        self.format = Format(
            model.name, rule, model.told_channels + told, self.rule.broadcast_width,
            self.rule.letter_width, block, model.channels, precision,
        )  # fmt: skip

    # -- who takes part ----------------------------------------------------------------------------

    def meet(self, features: Array, members: Mapping[str, Link], now: float) -> bool:
        known = (features.tobytes(), tuple((m, *link.version()) for m, link in members.items()))
        same = list(members) == list(self.members) and self._known is not None
        self.features, self.members = features, members
        if known == self._known:
            return False
        self._known, self.star = known, star_of(len(members))
        local = self.model.build(features, self._near(), self.rule_name)
        if same and self.rule.model_may_change:
            self.rule.set_model(local)  # features or degrees moved: memory stays
        else:
            self._renew(local, self.h if self.rule.model_may_change else None)
        self._heard_at_rest = None
        return True

    def _near(self) -> list[Neighbour]:
        near, q = [], self.model.told_channels
        for link in self.members.values():
            assert link.features is not None  # who takes part has said hello
            x, back = link.features[:q], link.features[q:]
            near.append(Neighbour(x, link.degree, link.edge.edge_attr, link.edge.weight, back))
        return near

    def _renew(self, local: Any, h: Array | None) -> None:
        """Start the rule's memory, at ``h`` or where the model begins."""
        self.rule: Rule = self.model.rule(self.rule_name, local, self.star)
        self.h = self.model.start(local) if h is None else h
        letters = self.rule.begin(self.h, self._views()[0])
        none = np.zeros((1, self.rule.letter_width, self.star.degree))
        self.letters: Array = none if letters is None else letters

    def _views(self) -> tuple[Array, Array]:
        """What was last heard: what neighbours broadcast [1, w, d] and letters [1, m, d]; zero
        where nothing was, which the rules take for silence."""
        inbox = np.zeros((1, self.rule.broadcast_width, len(self.members)))
        mail = np.zeros((1, self.rule.letter_width, len(self.members)))
        for place, link in enumerate(self.members.values()):
            if link.broadcast is not None and link.letter is not None:
                inbox[0, :, place], mail[0, :, place] = link.broadcast, link.letter
        return inbox, mail

    def extra(self, edge: Edge) -> Array:
        told = self.both and edge.edge_attr is not None
        return edge.edge_attr if told else super().extra(edge)

    # -- an update ---------------------------------------------------------------------------------

    def update(self, now: float, breathe: Callable[[], None]) -> None:
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
                self._restart()
                self.residual = math.inf
                return
        gradient = self.rule.gradient_at(mail, self.star)
        moved = self.h - before if gradient is None else gradient
        self.residual = float(np.abs(moved).max())

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

    def _restart(self) -> None:
        """Begin anew after numbers that are not finite, which a neighbour's features may cause."""
        self.restarts += 1
        with np.errstate(all="ignore"):
            self._renew(self.model.build(self.features, self._near(), self.rule_name), None)
            self.letters = np.nan_to_num(self.letters, posinf=0.0, neginf=0.0)

    # -- what it tells -----------------------------------------------------------------------------

    def data(self, header: Header, name: str, now: float) -> list[bytes]:
        with np.errstate(all="ignore"):
            broadcast = self.rule.broadcast(self.h, self.star)[0, :, 0]
        place = list(self.members).index(name)
        return [self.format.data(header, broadcast, self.letters[0, :, place])]

    def bound(self, settled: bool, nodes: int | None, tolerance: float) -> float:
        if not settled or nodes is None or self.model.convexity is None:
            return math.inf
        return math.sqrt(nodes * self.model.channels) * tolerance / self.model.convexity
