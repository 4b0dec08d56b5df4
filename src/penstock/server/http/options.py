"""How the HTTP side is set: whom it answers, and how much of anything it takes."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Options:
    """Limits and names; the defaults fit one host."""

    #: Names by which the server may be called (`Host:`), without ports; others are refused.
    hosts: tuple[str, ...] = LOOPBACK
    #: Whether browsers reach it by https, so that its cookie is sent over nothing else.
    secure: bool = False
    max_body: int = 8 * MEBIBYTE
    #: A body that is not here by then is refused.
    body_seconds: float = 30.0
    #: Streams of events at a time, and sessions named by HTTP callers.
    max_streams: int = 200
    max_sessions: int = 1000
