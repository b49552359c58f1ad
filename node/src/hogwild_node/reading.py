"""What an agent says about itself."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hogwild_node.ops import Array


class State(enum.StrEnum):
    """Where an agent stands."""

    STARTING = "starting"
    """The agent waits for its neighbours' first hellos."""
    RUNNING = "running"
    SETTLED = "settled"
    """Nobody in reach was unsettled for ``settle_after`` seconds. Where neighbours are ``silent``,
    the agent has settled on the graph without them."""
    HOLDING = "holding"
    """The answer rests on the last words of a silent neighbour."""


@dataclass(frozen=True)
class Reading:
    """What an agent knew at the end of a turn.

    Attributes:
        h: Its embedding, [k].
        prediction: Its prediction, [out].
        residual: Of an energy: the largest entry of the gradient at this node, as far as word has
            come. Of other models: how far the last update moved the embedding. With the rule
            ``"balls"``: the largest entry of the gradient (of a map, of F(h) − h) that the last
            solve left, or how far the solve of this turn moved any node of the ball, if that is
            more; infinite as long as there are nodes that others list and that the agent has no
            word of, and where nodes have come or gone.
        bound: A bound on the distance of all nodes' embeddings from the answer; infinite where
            none is known.
        calm: Seconds since anybody in reach was unsettled.
        state: Where the agent stands.
        updates: Updates made. A settled agent makes none until something changes.
        staleness: Age in seconds of the oldest news that the answer rests on: of the newest packet
            from each neighbour the one that was made first. 0 without neighbours.
        silent: Neighbours that have had a lease's time and take no part, because nothing came from
            them for longer than the lease or because they do not hear the agent; and those that
            are held.
        knows: With the rule ``"balls"``: of how many nodes the agent has word, itself included.
        whole: Whether these are all nodes that can be reached, as far as word has come.
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
