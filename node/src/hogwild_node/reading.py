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
    """Nobody in reach was unsettled for ``settle_after`` seconds."""
    HOLDING = "holding"
    """The answer rests on the last words of a silent neighbour."""


@dataclass(frozen=True)
class Reading:
    """What an agent knows at one moment.

    Attributes:
        h: Its embedding, [k].
        prediction: Its prediction, [out].
        residual: Of an energy: the largest entry of the gradient at this node, as far as word has
            come. Of other models: how far the last update moved the embedding.
        bound: A bound on the distance of all nodes' embeddings from the answer; infinite where
            none is known.
        calm: Seconds since anybody in reach was unsettled.
        state: Where the agent stands.
        updates: Updates made. A settled agent makes none until something changes.
        staleness: Age in seconds of the oldest news that the answer rests on: of the newest packet
            from each neighbour the one that was made first. 0 without neighbours.
        silent: Neighbours from which nothing has come for longer than the lease.
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
