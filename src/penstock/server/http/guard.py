"""Before any route: the right host, no other site's form, no missing header. Knows no tube and no token."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.http import http_errors

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/?#@\\\[\]:]+)(:[0-9]{1,5})?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What probes call by whatever address they find the server at; it tells nothing but that it lives.
OPEN_PATHS = frozenset({"/health", "/ready"})

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer browsers would hide where our own forms come from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            self._check(scope)
        except http_errors.Refused as refused:
            await http_errors.answer(refused)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if scope["path"] not in OPEN_PATHS and host_name(host) not in self._hosts:
            raise http_errors.Refused(
                421, "this server does not answer by that Host: start it with --host and that name if it is right"
            )
        if scope["method"] not in SAFE_METHODS and not same_origin(headers):
            raise http_errors.Refused(403, "another site sent this request: only the dashboard and programs may")


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" when it is none.

    Nothing but a host and a port may be there: URLs of requests are made from it, and would have another path.
    """
    if not _HOST.fullmatch(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def same_origin(headers: Headers) -> bool:
    """Whether a browser says that the page of this server sent the call. Programs say nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        # The scheme may differ: a proxy in front ends TLS.
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded
