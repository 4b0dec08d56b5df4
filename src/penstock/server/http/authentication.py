"""Authenticates callers, by `Authorization: Bearer` or by the dashboard's cookie, and determines their role."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict

from starlette.requests import Request

from penstock.server.auth import Role, Tokens, hashed
from penstock.server.http.guard import SAFE_METHODS
from penstock.server.http.http_errors import Refused

COOKIE = "penstock"
# Seconds that a login lasts: a working day.
LOGIN_SECONDS = 12 * 3600
MAX_LOGINS = 1000


class Logins:
    """Logins of browsers, in memory: they end with a restart, or when their token is removed from the file."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()  # cookie -> hash of the token, end

    def enter(self, token: str, peer: str) -> str | None:
        """Log in with a token. Returns the cookie, or None if the token is not valid."""
        if self._tokens.check(token, peer) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = (hashed(token), time.monotonic() + LOGIN_SECONDS)
        if len(self._known) > MAX_LOGINS:
            self._known.popitem(last=False)
        return cookie

    def leave(self, cookie: str) -> None:
        """Log out: forget the login of a cookie."""
        self._known.pop(cookie, None)

    def role(self, cookie: str) -> Role | None:
        """The current role of the browser with that cookie."""
        digest, end = self._known.get(cookie, ("", 0.0))
        if not digest or end < time.monotonic():
            self._known.pop(cookie, None)
            return None
        return self._tokens.role_of(digest)

    def name(self, cookie: str) -> str:
        """The descriptive name of the token that the browser with that cookie logged in with."""
        return self._tokens.name_of(self._known.get(cookie, ("", 0.0))[0])

    def csrf_token(self, cookie: str) -> str:
        """The CSRF token for this browser's forms.

        Without a login there is no cookie, and all browsers share one value, which other sites cannot read.
        """
        return hmac.new(self._secret, cookie.encode("utf-8", "replace"), "sha256").hexdigest()

    def accepts(self, cookie: str, csrf_token: str) -> bool:
        """Whether the CSRF token of a form is valid, so that the form came from one of our pages."""
        return hmac.compare_digest(self.csrf_token(cookie).encode(), csrf_token.encode("utf-8", "replace"))


CSRF_HEADER = "penstock-csrf-token"


class Authentication:
    """Determines the role of a request."""

    def __init__(self, tokens: Tokens, logins: Logins) -> None:
        self._tokens = tokens
        self.logins = logins

    @property
    def open(self) -> bool:
        """Whether no token is needed, because the server listens on this host only."""
        return not self._tokens.required

    async def need(self, request: Request, role: Role) -> None:
        """Raise Refused (401 or 403) unless the caller has that role."""
        found = await self.role(request)
        if found is None:
            raise Refused(401, "a token is needed: send it as Authorization: Bearer TOKEN", WWW_Authenticate="Bearer")
        if found < role:
            needed, has = role.name.lower(), found.name.lower()
            raise Refused(
                403, f"this needs the role {needed}, but the token has {has}: make another with penstock token"
            )

    async def role(self, request: Request) -> Role | None:
        """The caller's role; None without a valid token or cookie."""
        if self.open:
            return Role.ADMIN
        peer = peer_of(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if token and scheme.lower() == "bearer":
            waiting = self._tokens.wait(peer)
            found = self._tokens.check(token.strip(), peer)
            if found is None and waiting:
                raise await self.refuse_peer(peer)
            return found
        cookie = request.cookies.get(COOKIE, "")
        role = self.logins.role(cookie) if cookie else None
        # Forms of pages have the CSRF token in a field, which their handlers check.
        exempt = request.method in SAFE_METHODS or not request.scope["path"].startswith("/api/")
        if role is not None and not exempt and not self.logins.accepts(cookie, request.headers.get(CSRF_HEADER, "")):
            raise Refused(403, f"a cookie alone does not allow changes: send {CSRF_HEADER}, or a token")
        return role

    def browser_role(self, request: Request) -> Role | None:
        """The role of a browser by its cookie alone, for the navigation of error pages."""
        return Role.ADMIN if self.open else self.logins.role(request.cookies.get(COOKIE, ""))

    def who(self, request: Request) -> str:
        """Describe the user of a page for the audit: the name of the token, its role, and the address."""
        peer = peer_of(request) or "an unknown address"
        if self.open:
            return f"someone on this host ({peer})"
        cookie = request.cookies.get(COOKIE, "")
        role = self.logins.role(cookie)
        name = self.logins.name(cookie) or "a token without a name"
        return f"{name} ({role.name.lower() if role else 'no role'}, {peer})"

    def wait(self, peer: str) -> float:
        """Seconds that this peer is asked to wait after wrong tokens."""
        return self._tokens.wait(peer)

    async def refuse_peer(self, peer: str) -> Refused:
        """Delay, then return the 429 response for a peer that sent too many wrong tokens."""
        await asyncio.sleep(self._tokens.delay(peer))
        wait = str(int(self._tokens.wait(peer)) + 1)
        return Refused(429, "too many wrong tokens from this address: give the right one, or wait", Retry_After=wait)


def peer_of(request: Request) -> str:
    """The caller's IP address; "" if it is not known."""
    return request.client.host if request.client else ""
