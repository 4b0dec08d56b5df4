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

_OWN = ("schema", "notify", "pool_size")
# Short enough for the names derived from it, and safe between quotes.
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
DEFAULT_POOL = 10


class Location(msgspec.Struct, frozen=True):
    """Where a store is. `place` names it in messages, without the password."""

    conninfo: str
    place: str
    schema: str
    notify: bool
    pool_size: int

    @property
    def quoted(self) -> str:
        """The schema as it stands in SQL."""
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        """The notification channel: one per schema, since channels belong to the whole database."""
        return f"penstock_{hashlib.sha256(self.schema.encode()).hexdigest()[:16]}"


def locate(url: str) -> Location:
    """The URL's parts; BadValue for one that the driver or we do not understand. Nothing is connected."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in given if name in _OWN}
    rest = urlencode([(name, value) for name, value in given if name not in _OWN], quote_via=quote)
    conninfo = _joined(parts._replace(query=rest))
    where = f"store URL {shown(_without_password(parts))}"
    try:
        known = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise BadValue(f"{where} is not understood ({str(error).strip()}): {', '.join(_OWN)} are penstock's") from error
    schema = own.get("schema", "penstock")
    if not _SCHEMA.fullmatch(schema):
        raise BadValue(f"parameter schema={shown(schema)} of {where}: use letters, digits and _, at most 48")
    notify = own.get("notify", "on")
    if notify not in ("on", "off"):
        raise BadValue(f"parameter notify={shown(notify)} of {where}: use on or off")
    size = own.get("pool_size", str(DEFAULT_POOL))
    if not (size.isascii() and size.isdigit() and 1 <= int(size) <= 1000):
        raise BadValue(f"parameter pool_size={shown(size)} of {where}: use a number from 1 to 1000")
    place = f"PostgreSQL {known.get('host') or 'local socket'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
    return Location(conninfo, place, schema, notify == "on", int(size))


def _without_password(parts: SplitResult) -> str:
    user, _, host = parts.netloc.rpartition("@")
    return _joined(parts._replace(netloc=f"{user.partition(':')[0]}@{host}" if user else host, query=""))


def _joined(parts: SplitResult) -> str:
    """Not urlunsplit alone, which makes postgresql:/jobs of postgresql:///jobs."""
    return f"{parts.scheme}://{parts.netloc}{urlunsplit(parts._replace(scheme='', netloc=''))}"
