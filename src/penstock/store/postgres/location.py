"""A postgresql:// URL taken apart: what is penstock's own, and what the driver is given."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.core.names import shown
from penstock.errors import BadValue

# Our own parameters: the default, what is allowed, and how to say that. A schema's name is short enough for the names
# that are derived from it, and safe between quotes.
_OWN = {
    "schema": ("penstock", re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}"), "letters, digits and _, at most 48"),
    "notify": ("on", re.compile(r"on|off"), "on or off"),
    "pool_size": ("10", re.compile(r"[1-9][0-9]{0,2}|1000"), "a number from 1 to 1000"),
}


class Location(msgspec.Struct, frozen=True):
    """Where a store is. `place` names it in messages, without the password."""

    conninfo: str
    place: str
    schema: str
    notify: bool
    pool_size: int

    @property
    def quoted(self) -> str:
        """The schema as SQL has it."""
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        """The notification channel: one per schema, since channels belong to the whole database."""
        return f"penstock_{hashlib.sha256(self.schema.encode()).hexdigest()[:16]}"


def locate(url: str) -> Location:
    """The URL's parts; BadValue for one that the driver or we do not understand. Nothing is connected."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in given if name not in _OWN], quote_via=quote)
    conninfo = _joined(parts._replace(query=rest))
    user, _, host = parts.netloc.rpartition("@")
    where = _joined(parts._replace(netloc=f"{user.partition(':')[0]}@{host}" if user else host, query=""))
    try:
        known = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        # What it quotes may be the password, unless it is the name of a parameter.
        said = re.sub(r'(?<!query parameter: )"[^"]*"', '"…"', str(error).strip())
        raise BadValue(
            f"store URL {shown(where)} is not understood ({said}): {', '.join(_OWN)} are penstock's"
        ) from None
    own = {name: default for name, (default, _, _) in _OWN.items()}
    own |= {name: value for name, value in given if name in _OWN}
    for name, (_, allowed, wanted) in _OWN.items():
        if not allowed.fullmatch(own[name]):
            raise BadValue(f"parameter {name}={shown(own[name])} of store URL {shown(where)}: use {wanted}")
    place = f"PostgreSQL {known.get('host') or 'local socket'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
    return Location(conninfo, place, own["schema"], own["notify"] == "on", int(own["pool_size"]))


def _joined(parts: SplitResult) -> str:
    """Not urlunsplit alone, which makes postgresql:/jobs of postgresql:///jobs."""
    return f"{parts.scheme}://{parts.netloc}{urlunsplit(parts._replace(scheme='', netloc=''))}"
