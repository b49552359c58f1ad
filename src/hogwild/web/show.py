"""What the server shows: the worlds of the page, a model of the user's own, or a running swarm."""

from __future__ import annotations

import asyncio
import sys
import threading
import webbrowser
from collections.abc import Collection
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data

from hogwild.errors import ConfigError, HogwildError
from hogwild.graph.inputs import Inputs
from hogwild.models.wrapped import runnable
from hogwild.rules import fitting, rule_for
from hogwild.training.task import made
from hogwild.web.pretrained import MODELS
from hogwild.web.protocol import GIVEN, MOST_LOSS, MOST_SPEED, MOST_STAGGER
from hogwild.web.server import Home, address, listen, serve
from hogwild.web.session import Session
from hogwild.web.side import DRAWN, MOST_DELAY, RESTART
from hogwild.web.stage import LEASE
from hogwild.web.watch import Attached, watch
from hogwild.web.worlds import LEAST, MOST, TASKS, UserWorld

if TYPE_CHECKING:
    from hogwild.training import Result


def show(
    model: Any, data: Any, *, title: str = "your own", port: int = 8765, open: bool = False
) -> str:
    """Serve a page on which the nodes of a graph run a model, each at its own pace, until Ctrl-C.
    In a notebook, the page is served beside the other cells until the kernel ends.

    Args:
        model: A model of the library, or a trained GNN of PyG's convolutions, which answers for
            every node.
        data: One graph of up to 2,000 nodes. ``data.pos`` [N, 2 or more] says where to draw them.
        title: What to call the task.
        port: Port of 127.0.0.1; 0: any free one.
        open: Open the page in a browser.

    Returns:
        The address of the page.

    Raises:
        ConfigError: The model or the graph cannot be shown, or the port is in use.
    """
    found = home(from_pair(model, data, title))
    beside = True
    try:  # no other event loop can run in the thread of a notebook's
        asyncio.get_running_loop()
    except RuntimeError:
        beside = False
    return until_ended(found, "127.0.0.1", port, open=open, beside=beside)


def until_ended(
    found: Home,
    host: str,
    port: int,
    names: Collection[str] = (),
    open: bool = False,
    beside: bool = False,
) -> str:
    """Say where the page is and serve it until Ctrl-C, or, ``beside``, in a thread; returns its
    address."""
    made = listen(host, port)
    where = address(made)
    ends = "It ends with this program." if beside else "Ctrl-C ends it."
    print(f"Open {where} in a browser. {ends}", file=sys.stderr, flush=True)
    if open:
        webbrowser.open(where)
    if beside:
        threading.Thread(target=serve, args=(found, made, names), daemon=True).start()
    else:
        with suppress(KeyboardInterrupt):
            serve(found, made, names)
    return where


def hello(given: UserWorld | None, attached: bool = False) -> dict[str, Any]:
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


def home(
    given: UserWorld | None = None,
    attach: str | None = None,
    certificates: str | None = None,
) -> Home:
    """What all viewers share.

    Args:
        given: A model of one's own.
        attach: The folder of a running swarm, or addresses of agents.
        certificates: For agents that want them, the folder of their controller.
    """
    if attach is not None:
        found = watch(attach, certificates)
        return Home(lambda wake: Attached(found, wake), hello(None, attached=True), end=found.close)
    return Home(lambda wake: Session(given, wake), hello(given))


def from_run(result: Result, replica: int | None) -> UserWorld:
    """The model of a finished run, on its first test graph."""
    r = result.best if replica is None else replica
    model = (result.model if replica is None else result.replica(replica)).cpu()
    graph = result.graph(result.tested(r)[0])
    classes = result.task.out_channels == 1 and result.task.metric_name in ("error", "accuracy")
    return from_pair(model, graph, result.task.name, classes)


def from_pair(model: Any, graph: Any, title: str, classes: bool = False) -> UserWorld:
    """A model, of hogwild or of PyG's convolutions, on a graph; with two rules that fit it.

    Raises:
        ConfigError: The model does not answer for every node, or the graph cannot be shown.
        AsynchronyError: Nodes cannot run the model on this graph, since links lack a way back, for
            instance.
    """
    if not isinstance(graph, Data) or graph.get("x") is None or graph.get("edge_index") is None:
        raise ConfigError(
            f"the graph is a {type(graph).__name__}; expected one torch_geometric.data.Data with "
            f"x and edge_index"
        )
    found = deepcopy(runnable(model)).eval()  # as simulate runs it
    given = UserWorld(found, graph.clone(), title, classes)
    out = found.predict(given.data())
    if out.dim() != 2 or out.size(0) != given.nodes:
        raise ConfigError(
            f"the model answers {list(out.shape)} on a graph of {given.nodes} nodes ({title}); "
            f"expected a row for every node: the page shows what nodes answer"
        )
    if not bool(out.isfinite().all()):
        raise ConfigError(
            f"the model answers NaN or infinity on the graph ({title}); expected finite numbers: "
            f"were its parameters trained?"
        )
    inputs = Inputs.of(given.data())
    found.require_asynchronous(inputs)
    problem, names = found.problem(inputs), []
    for name in fitting(problem):
        with suppress(HogwildError):  # some rules need layers of one width, for instance
            rule_for(problem, name)
            names.append(name)
    given.rules = (names[0], names[1] if len(names) > 1 else names[0])
    return given


def from_file(text: str) -> UserWorld:
    """What a function ``FILE.py:NAME`` returns: a model, and a graph."""
    found = made(text, {}, "model")
    if not isinstance(found, tuple) or len(found) != 2:
        raise ConfigError(
            f"model={text!r} made a {type(found).__name__}; expected a pair: a model, and a graph "
            f"(torch_geometric.data.Data)"
        )
    return from_pair(*found, Path(text.rpartition(":")[0]).name)
