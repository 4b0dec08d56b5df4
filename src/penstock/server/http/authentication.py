"""Who calls: by `Authorization: Bearer`, or by the dashboard's cookie; and what they may do."""

from __future__ import annotations

from starlette.requests import Request

from penstock.server.auth import Role, Tokens
from penstock.server.http.guard import SAFE_METHODS
from penstock.server.http.http_errors import Refused
from penstock.server.http.logins import COOKIE, Logins

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

    def need(self, request: Request, role: Role) -> None:
        """Refuse a caller who may not do this."""
        found = self.role(request)
        if found is None:
            raise Refused(401, "a token is needed: send it as Authorization: Bearer TOKEN", WWW_Authenticate="Bearer")
        if found < role:
            needed, has = role.name.lower(), found.name.lower()
            raise Refused(403, f"this needs the role {needed}, and the token has {has}: make one with penstock token")

    def role(self, request: Request) -> Role | None:
        """The caller's role; None when there is no good token or cookie."""
        if self.open:
            return Role.ADMIN
        peer = peer_of(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if token and scheme.lower() == "bearer":
            self.refuse_hasty(peer)
            return self._tokens.check(token.strip(), peer)
        cookie = request.cookies.get(COOKIE, "")
        role = self.logins.role(cookie) if cookie else None
        # Forms of the pages carry the seal in a field, which their own handlers look at.
        sealed = request.method in SAFE_METHODS or not request.url.path.startswith("/api/")
        if role is not None and not sealed and not self.logins.sealed(cookie, request.headers.get(SEAL_HEADER, "")):
            raise Refused(403, f"a cookie alone changes nothing: send {SEAL_HEADER}, or a token")
        return role

    def refuse_hasty(self, peer: str) -> None:
        """Refuse a peer that gave wrong tokens too often."""
        wait = self._tokens.wait(peer)
        if wait:
            raise Refused(429, "too many wrong tokens from this address: wait", Retry_After=str(int(wait) + 1))


def peer_of(request: Request) -> str:
    """The address of who calls, as far as the server knows it."""
    return request.client.host if request.client else ""
