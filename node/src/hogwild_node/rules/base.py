"""The protocol of a node's rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star


class Rule(ABC):
    """What a node computes from its own memory and what it last heard.

    A rule is told about some nodes at a time, but every node only ever sees its own column: its
    embedding, its private memory (kept in the rule, one column a node) and its inbox. Which nodes
    step together, and what the inboxes hold, is the executor's business.

    Attributes:
        everyone: The star of all nodes whose memory the rule keeps.
        channels: Width k of an embedding.
    """

    everyone: Star
    channels: int
    letter: int = 0
    """Numbers in a letter."""
    ends: bool = False
    """Whether nodes finish by themselves (layered models), or go on for ever."""
    waited: Array | None = None
    """Which of the nodes of the last update could only wait; ``None``: none."""
    silent: Array | None = None
    """Which of the nodes of the last update have nothing to send; ``None``: none."""

    def pose(self, model: Any) -> None:
        """The model has moved: from now on it is this one, of the same shape. What it says about
        a node may only depend on what that node knows."""
        raise NotImplementedError(f"a {type(self).__name__} has one model for ever")

    @abstractmethod
    def begin(self, h: Array, inbox: Array) -> Array | None:
        """Start all nodes at ``h`` [R, k, N], with ``inbox`` [R, k, E] heard; returns their letters
        [R, m, E], one to the sender of every edge into them, or ``None`` where packets hold
        embeddings only."""

    @abstractmethod
    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        """One update of the nodes in ``at``.

        Args:
            h: Their embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard, one for each edge, [R, k, E'].
            mail: The letters that came with them, [R, m, E'].

        Returns:
            New embeddings [R, k, A] and letters [R, m, E'].
        """

    @property
    def said(self) -> int:
        """Numbers that a node sends to everybody: the width of :meth:`broadcast`."""
        return self.channels

    def broadcast(self, h: Array, at: Star) -> Array:
        """What the nodes in ``at`` send to everybody: their embeddings [R, k, A], or more."""
        return h

    def numbers(self, at: Star) -> Array | int:
        """Numbers in the packet that each node in ``at`` sends to each neighbour after an update,
        [A], or one number for all nodes; of one replica. By default the embedding and a letter."""
        return self.channels + self.letter

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array | None:
        """New letters without a step, from fresh views (for ``exchange="exact"``)."""
        return None

    @abstractmethod
    def forget(self, nodes: Array) -> None:
        """These nodes lose their private memory and start again."""

    def lose(self, edges: Array, packets: Array) -> None:
        """Packets on these edges were lost. A rule that is sent everything anew does not mind."""
        return None

    def gradient_at(self, mail: Array, at: Star) -> Array | None:
        """The gradient of the whole energy at these nodes, as far as word has come, [R, k, A];
        ``None``: the rule does not minimise an energy.

        Args:
            mail: The letters that were last heard, [R, m, E'].
        """
        return None

    def finished(self, nodes: Array) -> Array | None:
        """Which of these nodes need no further update; ``None``: a rule that never ends."""
        return None


def to_self(own: Array, letters: Array, at: Star) -> tuple[Array, Array]:
    """What nodes would send to themselves is theirs at once: ``own`` [R, m, A] with such letters
    [R, m, E'] added, and the letters without."""
    loops = at.loops
    if loops is None:
        return own, letters
    xp = namespace(own)
    return own + at.collect(xp.where(loops, letters, 0.0)), xp.where(loops, 0.0, letters)
