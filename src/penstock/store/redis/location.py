"""Parses Redis URLs: the server, sentinels or cluster, and the settings. No network access."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.core.names import name as valid_name
from penstock.core.names import safe_url, shown
from penstock.errors import BadValue

_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "redis": ("prefix",),
    "rediss": ("prefix", *_TLS),
    "redis+sentinel": ("prefix", "sentinel_username", "sentinel_password"),
    "redis+cluster": ("prefix", "tls", *_TLS),
}
_PORTS = {"redis+sentinel": 26379}
DEFAULT_PREFIX = "penstock"


class Location(msgspec.Struct, frozen=True):
    """Where a store is. `hosts` are the server, the sentinels, or some nodes of the cluster."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    prefix: str
    db: int = 0
    master: str | None = None
    username: str | None = None
    password: str | None = None
    tls: bool = False
    settings: dict[str, str] = {}

    @property
    def label(self) -> str:
        """The store's address in messages, without the password."""
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.hosts)}"


def locate(url: str) -> Location:
    """Parse a Redis URL. Raises BadValue if it is invalid."""
    parts = urlsplit(url)
    given = _parameters(url, parts.scheme, parts.query)
    places = parts.netloc.rpartition("@")[2]
    master, db = _path(url, parts.scheme, unquote(parts.path).strip("/"))
    return Location(
        scheme=parts.scheme,
        hosts=tuple(_host(url, place, _PORTS.get(parts.scheme, 6379)) for place in (places or "localhost").split(",")),
        prefix=valid_name("prefix", given.pop("prefix", DEFAULT_PREFIX)),
        db=db,
        master=master,
        username=unquote(parts.username or "") or None,
        password=unquote(parts.password or "") or None,
        tls=parts.scheme == "rediss" or given.pop("tls", "0") == "1",
        settings=given,
    )


def _parameters(url: str, scheme: str, query: str) -> dict[str, str]:
    known = _PARAMETERS[scheme]
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in given.items():
        if name not in known:
            has = ", ".join(known)
            raise BadValue(f"parameter {shown(name)} of store URL {safe_url(url)} is unknown: use {has}")
        if name == "tls" and value not in ("0", "1"):
            raise BadValue(f"parameter tls={shown(value)} of store URL {safe_url(url)}: use 0 or 1")
    return given


def _host(url: str, place: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        return parts.hostname or "localhost", parts.port or port
    except ValueError:
        raise BadValue(f"host {shown(place)} of store URL {safe_url(url)}: give host or host:port") from None


def _path(url: str, scheme: str, path: str) -> tuple[str | None, int]:
    words = path.split("/") if path else []
    master = words.pop(0) if scheme == "redis+sentinel" and words else None
    if scheme == "redis+sentinel" and not master:
        raise BadValue(f"store URL {safe_url(url)} names no master: use redis+sentinel://host:26379/mymaster")
    if scheme == "redis+cluster" and words:
        raise BadValue(f"store URL {safe_url(url)} names a database: a cluster has only one, leave it out")
    if len(words) > 1 or not all(word.isascii() and word.isdigit() for word in words):
        raise BadValue(f"store URL {safe_url(url)} names no database: use a number, as in redis://localhost/0")
    return master, int(words[0]) if words else 0
