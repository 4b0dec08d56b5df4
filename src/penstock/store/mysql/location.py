"""A mysql:// URL taken apart: where the server is, who we are, and how many connections we may hold."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.core.names import shown
from penstock.errors import BadValue

_PARAMETERS = ("socket", "pool_size", "ssl_ca")
# Enough for a busy process; each costs the server a thread.
_POOL_SIZE = "8"
_MAX_POOL = 1000


class Location(msgspec.Struct, frozen=True):
    """One database on one server, and the credentials for it."""

    database: str
    host: str
    port: int
    socket: str | None
    user: str
    password: str
    pool_size: int
    ssl_ca: str | None

    @property
    def name(self) -> str:
        """For messages: never with the password."""
        return f"{self.database} on {self.socket or f'{self.host}:{self.port}'}"


def parse(url: str) -> Location:
    """The location a URL names; BadValue says what is wrong with it."""
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        raise BadValue(f"store URL for {shown(parts.hostname)} has a bad port: give a number up to 65535") from None
    database = unquote(parts.path)[1:]
    if not database or "/" in database:
        raise BadValue("store URL names no database: use mysql://user:password@host:3306/database")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in given.items():
        if name not in _PARAMETERS:
            raise BadValue(f"parameter {shown(name)} of a mysql:// URL is unknown: it has {', '.join(_PARAMETERS)}")
        if not value:
            raise BadValue(f"parameter {name} of a mysql:// URL is empty: give it a value, or leave it out")
    size = given.get("pool_size", _POOL_SIZE)
    if not (size.isascii() and size.isdigit() and 1 <= int(size) <= _MAX_POOL):
        raise BadValue(f"parameter pool_size={shown(size)} of a mysql:// URL: give a number from 1 to {_MAX_POOL}")
    user, password = unquote(parts.username or "root"), unquote(parts.password or "")
    host, socket = parts.hostname or "localhost", given.get("socket")
    return Location(database, host, port, socket, user, password, int(size), given.get("ssl_ca"))
