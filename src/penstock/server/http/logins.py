"""Browsers that gave a token once: a random cookie stands for it, and a form must prove that it came from a page."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict

from penstock.server.auth import Role, Tokens, hashed

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
        """A cookie for a good token."""
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

    def seal(self, cookie: str) -> str:
        """What a form of this browser's pages carries. Without tokens there is no cookie, and one seal for all pages:
        other sites cannot read it."""
        return hmac.new(self._secret, cookie.encode("utf-8", "replace"), "sha256").hexdigest()

    def sealed(self, cookie: str, seal: str) -> bool:
        """Whether the form came from one of our pages."""
        return hmac.compare_digest(self.seal(cookie).encode(), seal.encode("utf-8", "replace"))
