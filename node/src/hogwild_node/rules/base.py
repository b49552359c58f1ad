"""The base class of all rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star

Pairs = tuple[Array, Array]
"""Where some nodes or edges are after a change of the graph, and where they were before, [n]
each."""


@dataclass(frozen=True)
class Survivors:
    """What stays through a change of the graph.

    Attributes:
        nodes: The nodes that stay.
        edges: The edges that stay: the same two nodes, which stay, too.
        same: Those of the nodes whose own features and edges have not changed either.
    """

    nodes: Pairs
    edges: Pairs
    same: Pairs


def take_over(now: Any, before: Any, memory: Mapping[str, str], kept: Survivors) -> None:
    """Set the attributes in ``memory`` for what stays: by name, of which :class:`Survivors`."""
    for name, some in memory.items():
        pairs = getattr(kept, some)
        setattr(now, name, carry(getattr(now, name), getattr(before, name), pairs))


def carry(now: Array, before: Array, pairs: Pairs) -> Array:
    """Memory [..., n] with the columns of what stays from the memory before the change; may change
    ``now`` in place."""
    here, there = pairs
    return namespace(now).put(now, here, before[..., there])


class Rule(ABC):
    """The update of a node, computed from its own memory and what it last heard.

    A rule updates some nodes at a time. The update of a node depends only on its embedding, its
    private memory (one column per node in the rule) and its inbox. The executor decides which nodes
    update together and what their inboxes hold.

    Attributes:
        everyone: The star of all nodes whose memory the rule keeps.
        channels: Width k of an embedding.
    """

    everyone: Star
    channels: int
    carried: Mapping[str, str] = {}
    """Attributes with a column a node or an edge that stay through a change of the graph: for
    ``"nodes"`` or ``"edges"`` that stay, or for nodes that are the ``"same"``, where a node
    computes them from its own energy."""
    fits: type
    """What nodes compute by the rule: local energies, rows of a map, or layers."""
    both_sides: bool = False
    """Whether nodes compute both sides of the edges of pairwise energies."""
    curves: bool = False
    """Whether letters, where there are some, end with a k × k curvature block."""
    model_may_change: bool = False
    """Whether nodes go on where features or degrees move (:meth:`set_model`); otherwise they begin
    anew."""
    letter_width: int = 0
    """Number of numbers in a letter."""
    ends: bool = False
    """Whether nodes stop by themselves, after their last layer."""
    waited: Array | None = None
    """Which nodes of the last update computed nothing and waited; ``None``: none."""
    solved_for: Array | None = None
    """For how many nodes each node has solved so far, [N]; ``None``: for itself, once an update."""
    silent: Array | None = None
    """Which nodes of the last update have nothing to send; ``None``: none."""
    numbered: bool = False
    """Whether nodes hand their packets on themselves, and broadcast the numbers of these only."""
    wire: Callable[[Array], Array] | None = None
    """What happens on the way to numbers in packets that nodes hand on themselves."""

    @classmethod
    def of(cls, local: Any, everyone: Star, channels: int) -> Rule:
        """The rule of nodes that compute ``local``; with embeddings of this width."""
        return cls(local, everyone, channels)  # type: ignore[call-arg]

    def follows(self, before: Any, kept: Survivors) -> bool:
        """Whether nodes go on through this change of the graph with :meth:`keep`. Otherwise all
        nodes begin anew."""
        return True

    def note_inputs(self, inputs: Any, problem_of: Callable[[Any], Any]) -> None:
        """Note the features of now, and how problems are made of other ones, for rules whose nodes
        compute with what others tell of their features. By default nothing is noted."""
        return None

    def set_model(self, model: Any) -> None:
        """Replace the model by another one of the same shape. The model at a node may only depend
        on what the node knows."""
        raise NotImplementedError(f"the model of a {type(self).__name__} cannot be replaced")

    @abstractmethod
    def begin(self, h: Array, inbox: Array) -> Array | None:
        """Start all nodes at ``h`` [R, k, N], with the ``inbox`` [R, k, E].

        Returns:
            The letters [R, m, E], one to the sender of every edge into a node; ``None`` if packets
            hold embeddings only.
        """

    @abstractmethod
    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        """Update the nodes in ``at``.

        Args:
            h: The nodes' embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard, one for each edge, [R, k, E'].
            mail: The letters that came with these embeddings, [R, m, E'].
            at: The nodes and edges.

        Returns:
            New embeddings [R, k, A] and letters [R, m, E'].
        """

    @property
    def broadcast_width(self) -> int:
        """Numbers that a node sends to everybody: the width of :meth:`broadcast`."""
        return self.channels

    def broadcast(self, h: Array, at: Star) -> Array:
        """What the nodes in ``at`` send to all their neighbours; by default their embeddings
        [R, k, A]."""
        return h

    def numbers(self, at: Star) -> Array | int:
        """Size of the packet that each node in ``at`` sends to each neighbour after an update, in
        numbers of one replica: [A], or one number for all nodes. By default a packet holds the
        embedding and a letter."""
        return self.channels + self.letter_width

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array | None:
        """New letters from this inbox, without an update; also what nodes compute of their own
        energy, where they have lost their memory."""
        return None

    @abstractmethod
    def forget(self, nodes: Array) -> None:
        """Clear the private memory of these nodes."""

    def keep(self, before: Any, kept: Survivors) -> None:
        """Take over the memory of the same rule on the graph before a change, by default what
        :attr:`carried` names. The rule has begun on the new graph (:meth:`begin`)."""
        take_over(self, before, self.carried, kept)

    def lose(self, edges: Array, packets: Array) -> None:
        """Note that packets on these edges were lost. By default nothing happens, because later
        packets repeat their content."""
        return None

    def gradient_at(self, mail: Array, at: Star) -> Array | None:
        """The gradient of the whole energy at these nodes, as far as news has come, [R, k, A];
        ``None``: the rule does not minimise an energy.

        Args:
            mail: The letters that were last heard, [R, m, E'].
        """
        return None

    def finished(self, nodes: Array) -> Array | None:
        """Which of these nodes need no further update; ``None`` if the rule never ends."""
        return None


def to_self(own: Array, letters: Array, at: Star) -> tuple[Array, Array]:
    """Deliver letters along self-loops at once: add them to ``own`` [R, m, A] and set them to zero
    in ``letters`` [R, m, E']."""
    loops = at.loops
    if loops is None:
        return own, letters
    xp = namespace(own)
    return own + at.collect(xp.where(loops, letters, 0.0)), xp.where(loops, 0.0, letters)
