"""The settings of asynchronous runs: one object that every stage passes on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Schedule, bounds, check_bounds
from hogwild.errors import ConfigError, require_integer, require_one_of, require_positive
from hogwild.graph import Graph
from hogwild.models.layers import LayeredProblem
from hogwild.models.levels import StackProblem
from hogwild.problems.base import Problem
from hogwild.rules import check_radius, sends_letters
from hogwild.rules.energies import check_step

EXCHANGES = ("packet", "exact")


@dataclass(frozen=True)
class Settings:
    """How nodes run, and for how long. The fields are the arguments of :func:`hogwild.simulate`.

    Every value is checked when the object is made.
    """

    stagger: int = 5
    delay: int = 2
    seed: int = 0
    runs: int = 1
    rule: str = "auto"
    step: str | float = "auto"
    exchange: str = "packet"
    impairments: tuple[Impairment, ...] = ()
    ticks: int = 20_000
    tol: float | None = 1e-6
    history: int | Collection[int] | None = None
    keep_embeddings: bool = False
    radius: int | None = None

    def __post_init__(self) -> None:
        stagger, delay = check_bounds(self.stagger, self.delay)
        check_step(self.step)
        if self.tol is not None and not self.tol > 0:
            raise ConfigError(f"tol={self.tol!r}; expected a positive number, or None")
        require_one_of(EXCHANGES, exchange=self.exchange)
        if self.radius is not None:
            require_integer("radius", self.radius, 0)
            check_radius(self.rule, self.radius)
        impaired, history = check_impairments(self.impairments), self.history
        if self.exact and any(impairment.triggers for impairment in impaired):
            raise ConfigError(
                "EventTriggered was combined with exchange='exact', whose first exchange always "
                "sends; expected exchange='packet'"
            )
        if isinstance(history, Collection):
            history = frozenset(require_integer("history", tick, 0) for tick in history)
        elif history is not None:
            history = require_positive("history", history)
        checked = {
            "stagger": stagger,
            "delay": delay,
            "seed": require_integer("seed", self.seed),
            "runs": require_positive("runs", self.runs),
            "ticks": require_positive("ticks", self.ticks),
            "impairments": impaired,
            "history": history,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def exact(self) -> bool:
        """Whether gradients come from a second exchange."""
        return self.exchange == "exact"

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The bounds (S, D) that hold with all impairments; ``None``: no bound is known to hold."""
        return bounds(self.stagger, self.delay, self.impairments)

    @property
    def error(self) -> float:
        """δ, the largest error of a number in a packet."""
        return sum(impairment.error for impairment in self.impairments)

    @property
    def calm(self) -> int:
        """The tick from which on no node loses its memory."""
        return max((impairment.calm for impairment in self.impairments), default=0)

    @property
    def hopeless(self) -> bool:
        """Whether some packets may never come through."""
        return self.bounds is None and not all(impairment.recurs for impairment in self.impairments)

    def content_age(self, bounds: tuple[int, int], letters: bool = True) -> int:
        """D', the largest age of an embedding that a node uses, under these bounds (S, D):
        :math:`2D + S` inside the gradients in letters, D where packets hold embeddings only."""
        return 2 * bounds[1] + bounds[0] - self.exact if letters else bounds[1]

    def age_on(
        self, problem: Problem | LayeredProblem | StackProblem, bounds: tuple[int, int] | None
    ) -> int | None:
        """:meth:`content_age` on this problem; ``None`` without bounds."""
        if bounds is None:
            return None
        return self.content_age(bounds, sends_letters(problem, self.rule, self.step))

    def schedule(self, graph: Graph, **options: Any) -> Schedule:
        """The schedule of all runs, on a graph that holds them all; ``options`` are further ones
        of :class:`Schedule`."""
        return Schedule(
            graph, runs=self.runs, stagger=self.stagger, delay=self.delay, seed=self.seed,
            impairments=self.impairments, **options,
        )  # fmt: skip
