"""Show a page from Python: a model of one's own on a graph of one's own."""

from __future__ import annotations

import asyncio
import sys
import threading
import webbrowser
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from hogwild.web.home import from_pair, home
from hogwild.web.server import Home, address, listen, serve


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
    return until_ended(found, "127.0.0.1", port, open=open, beside=_in_a_notebook())


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


def _in_a_notebook() -> bool:
    """Whether an event loop runs in this thread already, in which no other can run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
