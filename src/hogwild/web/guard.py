"""Who may speak to the server: only pages of its own origin (the header ``Origin``), under a name
that cannot be made to point here by somebody else's DNS (the header ``Host``: an address,
``localhost``, or a name that was allowed)."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse

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
