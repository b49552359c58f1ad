"""The server of the page: files of the package, and one WebSocket for each viewer.

It speaks only with pages of its own origin (the header ``Origin``), under a name that cannot be
made to point here by somebody else's DNS (the header ``Host``: an address, ``localhost``, or a name
that was allowed).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import socket
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from hogwild.errors import ConfigError
from hogwild.web.protocol import LONGEST, Exchange, ProtocolError, parse

STATIC = Path(__file__).parent / "static"
VIEWERS = 8
"""Viewers at once at most; every one has a simulation of their own."""

HEADERS = [
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
     b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]  # fmt: skip
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass
class Home:
    """What all viewers share.

    Attributes:
        open: Makes the session of a viewer, given what it calls when there is something to send.
        hello: What every page is told first.
        end: Called when the server ends.
    """

    open: Callable[[Callable[[], None]], Exchange]
    hello: dict[str, Any]
    sessions: set[Any] = field(default_factory=set)
    end: Callable[[], None] = lambda: None

    def close(self) -> None:
        """End all sessions."""
        for session in list(self.sessions):
            session.close()
        self.end()


# -- one viewer ------------------------------------------------------------------------------------


async def _listen(ws: WebSocket, session: Exchange) -> None:
    """Pass a viewer's commands on."""
    while True:
        message = await ws.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        await asyncio.sleep(0)  # other viewers wait for one message at most
        try:
            text = message.get("text")
            session.put(parse(message.get("bytes") or b"" if text is None else text))
        except ProtocolError as error:
            session.refuse(str(error))


async def _tell(ws: WebSocket, session: Exchange, news: asyncio.Event) -> str:
    """Send a viewer what is new; returns why there is nothing more."""
    while True:
        await news.wait()
        news.clear()
        screen = session.take()
        for notice in screen.notices:
            await ws.send_text(json.dumps(notice))
        if screen.scene is not None:
            await ws.send_text(json.dumps(screen.scene, separators=(",", ":")))
        if screen.snapshot is not None:
            await ws.send_bytes(screen.snapshot)
        if session.closed:
            return "the session has ended"


async def live(ws: WebSocket) -> None:
    """The connection of one viewer."""
    home: Home = ws.app.state.home
    await ws.accept()
    if len(home.sessions) >= VIEWERS:
        text = f"{VIEWERS} viewers are connected already; close a page and load this one again."
        await ws.send_text(json.dumps({"is": "notice", "kind": "error", "text": text}))
        await ws.close(1013, "too many viewers")
        return
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(news.set)

    session = home.open(wake)
    home.sessions.add(session)
    why: str | None = None
    try:
        await ws.send_text(json.dumps(home.hello))
        session.start()
        tasks = [
            asyncio.create_task(_listen(ws, session)),
            asyncio.create_task(_tell(ws, session, news)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        why = next((end for end in ends if isinstance(end, str)), None)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the viewer has gone
    finally:
        session.close()
        home.sessions.discard(session)
    if why is not None:
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            await asyncio.wait_for(ws.close(1008, why), 5.0)  # who does not read is not waited for


# -- the server ------------------------------------------------------------------------------------


def host_is_fine(host: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` cannot be somebody else's name for this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name in names
    return True


def origin_is_fine(origin: str | None, host: str) -> bool:
    """Whether a WebSocket comes from a page of this server, or from no page at all."""
    if origin is None:
        return True
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and found.netloc.lower() == host.lower()


class Guard:
    """Refuses other hosts and origins, and adds headers that forbid what the page does not do."""

    def __init__(self, app: Any, names: Collection[str] = ()) -> None:
        self.app, self.names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): v.decode("latin-1") for key, v in scope["headers"]}
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        fine = host_is_fine(host, self.names)
        if scope["type"] == "websocket":
            if fine and origin_is_fine(origin, host):
                await self.app(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})  # before accept: HTTP 403
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        if fine:
            await self.app(scope, receive, with_headers)
        else:
            text = f"Host {host[:100]!r} is not served here; use localhost, or start the server " \
                   f"with --name\n"  # fmt: skip
            await PlainTextResponse(text, 421)(scope, receive, with_headers)


async def _index(request: Any) -> Response:
    return FileResponse(STATIC / "index.html")


def application(home: Home, names: Collection[str] = ()) -> Any:
    """The whole server as an ASGI application."""
    app = Starlette(
        routes=[
            Route("/", _index),
            WebSocketRoute("/live", live),
            Mount("/", StaticFiles(directory=STATIC)),
        ]
    )
    app.state.home = home
    return Guard(app, names)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: The address cannot be used; the text says why.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=64)
    except (OSError, OverflowError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        unknown = number is not None and number < 0  # of getaddrinfo
        if unknown or number == errno.EADDRNOTAVAIL or isinstance(error, UnicodeError):
            raise ConfigError(
                f"host={host!r} is no address of this machine; expected one, for instance 127.0.0.1"
            ) from error
        why = str(error) if number is None else os.strerror(number).lower()
        raise ConfigError(
            f"port={port} of host={host!r} cannot be used ({why}); expected a free port: 0 takes "
            f"any"
        ) from error


def address(made: socket.socket) -> str:
    """The address of the page."""
    host, port = made.getsockname()[:2]
    if host in ("127.0.0.1", "0.0.0.0", "::", "::1"):
        host = "localhost" if host in ("127.0.0.1", "0.0.0.0") else "[::1]"
    elif ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/"


def configuration(home: Home, names: Collection[str] = ()) -> uvicorn.Config:
    """How uvicorn serves: large messages and compressed ones are refused before they are read."""
    return uvicorn.Config(
        application(home, names), log_level="critical", access_log=False, lifespan="off",
        ws_max_size=4 * LONGEST, ws_per_message_deflate=False,
        ws_ping_interval=20.0, ws_ping_timeout=20.0, timeout_graceful_shutdown=2,
        limit_concurrency=64, server_header=False,
    )  # fmt: skip


def serve(home: Home, made: socket.socket, names: Collection[str] = ()) -> None:
    """Serve until a signal ends it."""
    try:
        uvicorn.Server(configuration(home, names)).run(sockets=[made])
    finally:
        home.close()
        made.close()
