"""Settings of the HTTP server: the names it answers to, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Options:
    """Names and limits; the defaults are for one host."""

    #: Accepted names in the header `Host`, without ports.
    hosts: tuple[str, ...] = LOOPBACK
    #: Whether browsers use https, so that the cookie is only sent over https.
    secure: bool = False
    max_body: int = 8 * MEBIBYTE
    #: The time for the body of a request.
    body_seconds: float = 30.0
    #: Open streams of events, and sessions of HTTP callers.
    max_streams: int = 200
    max_sessions: int = 1000
