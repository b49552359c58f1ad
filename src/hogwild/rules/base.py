"""The protocol of a node's rule."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.problems.base import Problem


def put(x: Tensor, at: Star, value: Tensor) -> None:
    """Write per-node values [..., A] into [..., N], in place."""
    if at.nodes is None:
        x.copy_(value)
    else:
        x.index_copy_(-1, at.nodes, value)


def put_edges(x: Tensor, at: Star, value: Tensor) -> None:
    """Write per-edge values [..., E'] into [..., E], in place."""
    if at.edges is None:
        x.copy_(value)
    else:
        x.index_copy_(-1, at.edges, value)


def self_loops(graph: Graph, at: Star) -> Tensor | None:
    """Which of the star's edges lead from a node to itself, [E']; ``None``: none can."""
    if graph.self_loops is None:
        return None
    return at.at_edges(graph.src) == at.at_edges(graph.dst)


class Rule(ABC):
    """What a node computes from its own memory and what it last heard.

    A rule is told about some nodes at a time, but every node only ever sees its own column: its
    embedding, its private memory (kept in the rule, one column a node) and its inbox. Which nodes
    step together, and what the inboxes hold, is the executor's business.
    """

    graph: Graph
    channels: int
    letter: int = 0
    """Numbers in a letter."""
    ends: bool = False
    """Whether nodes finish by themselves (layered models), or go on for ever."""
    waited: Tensor | None = None
    """Which of the nodes of the last update could only wait; ``None``: none."""
    silent: Tensor | None = None
    """Which of the nodes of the last update have nothing to send; ``None``: none."""

    def pose(self, problem: Problem) -> None:
        """The problem has moved: from now on it is this one, of the same shape. What it says about
        a node may only depend on what that node knows."""
        raise NotImplementedError(f"a {type(self).__name__} has one problem for ever")

    @abstractmethod
    def begin(self, h: Tensor) -> Tensor | None:
        """Start all nodes at ``h`` [R, k, N]; returns their letters [R, m, E], one to the sender of
        every edge into them, or ``None`` where packets hold embeddings only."""

    @abstractmethod
    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        """One update of the nodes in ``at``.

        Args:
            h: Their embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard, one for each edge, [R, k, E'].
            mail: The letters that came with them, [R, m, E'].

        Returns:
            New embeddings [R, k, A] and letters [R, m, E'].
        """

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        """What the nodes in ``at`` send to everybody: their embeddings [R, k, A], or more."""
        return h

    def numbers(self, at: Star) -> Tensor | int:
        """Numbers in the packet that each node in ``at`` sends to each neighbour after an update,
        [A], or one number for all nodes; of one replica. By default the embedding and a letter."""
        return self.channels + self.letter

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor | None:
        """New letters without a step, from fresh views (for ``exchange="exact"``)."""
        return None

    @abstractmethod
    def forget(self, nodes: Tensor) -> None:
        """These nodes lose their private memory and start again."""

    def lose(self, edges: Tensor, packets: Tensor) -> None:
        """Packets on these edges were lost. A rule that is sent everything anew does not mind."""
        return None

    def finished(self, nodes: Tensor) -> Tensor | None:
        """Which of these nodes need no further update; ``None``: a rule that never ends."""
        return None
