"""Who calls, by `Authorization: Bearer` or by the dashboard's cookie, and what they may do."""

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
# A working day; who works longer logs in again.
LOGIN_SECONDS = 12 * 3600
MAX_LOGINS = 1000


class Logins:
    """Kept in memory: a restart asks for the token again, and a token taken from the file ends its logins."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()  # cookie -> hash of the token, end

    def enter(self, token: str, peer: str) -> str | None:
        """A cookie for a right token."""
        if self._tokens.check(token, peer) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = (hashed(token), time.monotonic() + LOGIN_SECONDS)
        if len(self._known) > MAX_LOGINS:
            self._known.popitem(last=False)
        return cookie

    def leave(self, cookie: str) -> None:
        """Forget a login."""
        self._known.pop(cookie, None)

    def role(self, cookie: str) -> Role | None:
        """What the browser with that cookie may do, now."""
        digest, end = self._known.get(cookie, ("", 0.0))
        if not digest or end < time.monotonic():
            self._known.pop(cookie, None)
            return None
        return self._tokens.role_of(digest)

    def name(self, cookie: str) -> str:
        """The name for people of the token that the browser with that cookie gave."""
        return self._tokens.name_of(self._known.get(cookie, ("", 0.0))[0])

    def seal(self, cookie: str) -> str:
        """What a form of this browser's pages carries. Without tokens there is no cookie, and one seal for all pages:
        other sites cannot read it."""
        return hmac.new(self._secret, cookie.encode("utf-8", "replace"), "sha256").hexdigest()

    def sealed(self, cookie: str, seal: str) -> bool:
        """Whether the form came from one of our pages."""
        return hmac.compare_digest(self.seal(cookie).encode(), seal.encode("utf-8", "replace"))


SEAL_HEADER = "penstock-seal"


class Authentication:
    """Tells the role of a request."""

    def __init__(self, tokens: Tokens, logins: Logins) -> None:
        self._tokens = tokens
        self.logins = logins

    @property
    def open(self) -> bool:
        """Whether no token is needed, because the server serves its own host alone."""
        return not self._tokens.required

    async def need(self, request: Request, role: Role) -> None:
        """Refuse a caller who may not do this."""
        found = await self.role(request)
        if found is None:
            raise Refused(401, "a token is needed: send it as Authorization: Bearer TOKEN", WWW_Authenticate="Bearer")
        if found < role:
            needed, has = role.name.lower(), found.name.lower()
            raise Refused(403, f"this needs the role {needed}, and the token has {has}: make one with penstock token")

    async def role(self, request: Request) -> Role | None:
        """The caller's role; None when there is no good token or cookie."""
        if self.open:
            return Role.ADMIN
        peer = peer_of(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if token and scheme.lower() == "bearer":
            waiting = self._tokens.wait(peer)
            found = self._tokens.check(token.strip(), peer)
            if found is None and waiting:
                raise await self.hasty(peer)
            return found
        cookie = request.cookies.get(COOKIE, "")
        role = self.logins.role(cookie) if cookie else None
        # Forms of the pages carry the seal in a field, which their own handlers look at.
        sealed = request.method in SAFE_METHODS or not request.scope["path"].startswith("/api/")
        if role is not None and not sealed and not self.logins.sealed(cookie, request.headers.get(SEAL_HEADER, "")):
            raise Refused(403, f"a cookie alone changes nothing: send {SEAL_HEADER}, or a token")
        return role

    def browser_role(self, request: Request) -> Role | None:
        """The role of a browser by its cookie alone: what it may see in the navigation of a page."""
        return Role.ADMIN if self.open else self.logins.role(request.cookies.get(COOKIE, ""))

    def who(self, request: Request) -> str:
        """Who uses a page, for people: the name of the token, its role, and the address."""
        peer = peer_of(request) or "an unknown address"
        if self.open:
            return f"somebody on this host ({peer})"
        cookie = request.cookies.get(COOKIE, "")
        role = self.logins.role(cookie)
        name = self.logins.name(cookie) or "a token without a name"
        return f"{name} ({role.name.lower() if role else 'no role'}, {peer})"

    def wait(self, peer: str) -> float:
        """Seconds that this peer is asked to wait after wrong tokens."""
        return self._tokens.wait(peer)

    async def hasty(self, peer: str) -> Refused:
        """The answer to one more wrong token of a peer that gave too many, after a while."""
        await asyncio.sleep(self._tokens.delay(peer))
        wait = str(int(self._tokens.wait(peer)) + 1)
        return Refused(429, "too many wrong tokens from this address: give the right one, or wait", Retry_After=wait)


def peer_of(request: Request) -> str:
    """The address of who calls, as far as the server knows it."""
    return request.client.host if request.client else ""
