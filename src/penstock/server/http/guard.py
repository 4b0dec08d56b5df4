"""Checks before any route: the Host header, and forms from other sites. Adds security headers to every response."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.http import http_errors

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/?#@\\\[\]:]+)(:[0-9]{1,5})?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Paths for probes, which may use any address of the server. They reveal nothing.
OPEN_PATHS = frozenset({"/health", "/ready"})

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers would not send the origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware around the application."""

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
                421,
                "the Host header is not a name of this server: if it is right, start penstock serve with --host NAME",
            )
        if scope["method"] not in SAFE_METHODS and not same_origin(headers):
            raise http_errors.Refused(
                403, "this request comes from a page of another site: use the dashboard or the API"
            )


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" if the header is not valid.

    Only a host and a port are accepted: URLs are built from the header, and anything else would change their path.
    """
    if not _HOST.fullmatch(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def same_origin(headers: Headers) -> bool:
    """Whether the request comes from a page of this server (by the headers that browsers send) or from a program."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        # The scheme may differ: a proxy may terminate TLS.
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
