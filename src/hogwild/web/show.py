"""Show a page from Python: a model of one's own on a graph of one's own."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from hogwild.web.home import from_pair, home
from hogwild.web.server import Home, address, listen, serve


def show(
    model: Any, data: Any, *, title: str = "your own", port: int = 8765, open: bool = False
) -> None:
    """Serve a page on which the nodes of a graph run a model, each at its own pace, until Ctrl-C.

    Args:
        model: A model of the library, or a trained GNN of PyG's convolutions, which answers for
            every node.
        data: One graph of up to 2,000 nodes. ``data.pos`` [N, 2 or more] says where to draw them.
        title: What to call the task.
        port: Port of 127.0.0.1; 0: any free one.
        open: Open the page in a browser.

    Raises:
        ConfigError: The model or the graph cannot be shown, or the port is in use.
    """
    until_ended(home(from_pair(model, data, title)), "127.0.0.1", port, open=open)


def until_ended(
    found: Home, host: str, port: int, names: Collection[str] = (), open: bool = False
) -> str:
    """Say where the page is and serve it until Ctrl-C; returns its address."""
    made = listen(host, port)
    where = address(made)
    print(f"Open {where} in a browser. Ctrl-C ends it.", file=sys.stderr, flush=True)
    if open:
        webbrowser.open(where)
    with suppress(KeyboardInterrupt):
        serve(found, made, names)
    return where
