"""What the server shows: the worlds of the page, a model of one's own, or a running swarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import ConfigError
from hogwild.graph.inputs import Inputs
from hogwild.rules import fitting
from hogwild.web.exchange import Exchange
from hogwild.web.given import Given
from hogwild.web.protocol import GIVEN, MOST_LOSS, MOST_SPEED, MOST_STAGGER
from hogwild.web.session import Session
from hogwild.web.shelf import MODELS
from hogwild.web.side import DRAWN, MOST_DELAY, RESTART
from hogwild.web.stage import LEASE
from hogwild.web.worlds import LEAST, MOST, TASKS

if TYPE_CHECKING:
    from hogwild.training import Result
    from hogwild.web.server import Home


def hello(given: Given | None, attached: bool = False) -> dict[str, Any]:
    """What a page is told first: what there is to choose from."""
    tasks = {name: {"title": about.title} for name, about in TASKS.items()}
    models = {name: {"title": kind.title} for name, kind in MODELS.items()}
    if given is not None:
        tasks = {GIVEN: {"title": given.title}, **tasks}
    return {
        "is": "hello", "tasks": tasks, "models": models, "attached": attached,
        "limits": {
            "nodes": [LEAST, MOST], "stagger": [1, MOST_STAGGER], "delay": [0, MOST_DELAY],
            "loss": [0, MOST_LOSS], "speed": [1, MOST_SPEED],
        },
        "lease": LEASE, "restart": RESTART, "drawn": DRAWN,
    }  # fmt: skip


def home(given: Given | None = None, replay: str | None = None, attach: str | None = None) -> Home:
    """What all viewers share.

    Args:
        given: A model of one's own.
        replay: A file with a schedule of its graph.
        attach: The folder of a running swarm, or of the status lines of agents.
    """
    from hogwild.web.server import Home

    if attach is not None:
        from hogwild.web.attach import Attached
        from hogwild.web.watched import watched

        found = watched(Path(attach))
        return Home(lambda wake: Attached(found, wake), hello(None, attached=True))
    trace = None if replay is None else Trace.load(replay)
    if trace is not None:
        assert given is not None
        Replay(trace, given.model.problem(Inputs.of(given.data())).graph)  # the same graph?

    def opened(wake: Callable[[], None]) -> Exchange:
        return Session(given, trace, wake)

    return Home(opened, hello(given))


def from_run(result: Result, replica: int | None) -> Given:
    """The model of a finished run, on its first test graph."""
    r = result.best if replica is None else replica
    model = result.replica(r).cpu()
    if result.task.pool is not None:
        raise ConfigError(
            f"the run's task {result.task.name!r} asks for one answer a graph; expected a task "
            f"that asks every node"
        )
    graph = result.graph(result.tested(r)[0])
    names = list(fitting(model.problem(Inputs.of(graph))))
    classes = result.task.out_channels == 1 and result.task.metric_name in ("error", "accuracy")
    rules = (names[0], names[1] if len(names) > 1 else names[0])
    return Given(model, graph, result.task.name, classes, rules)
