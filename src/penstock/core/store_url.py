"""URLs of stores: their scheme, the URL of a pool's database in them, and what they must not contain.

Each store parses the rest of its URLs by itself.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from penstock.core.names import safe_url, shown
from penstock.errors import BadValue

_SCHEMES = ("sqlite", "memory", "postgresql", "mysql", "redis", "rediss", "redis+sentinel", "redis+cluster")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})|%00")


def with_pool(url: str, pool: str) -> str:
    """Return the Redis URL with the database's URL as its parameter `pool`."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'pool': pool})}"


def split_url(url: object, pool: str | None = None) -> tuple[str, str, str | None]:
    """Return the scheme of a URL, the URL without its parameter `pool`, and the pool's URL from it or the argument."""
    if not isinstance(url, str):
        raise BadValue(f"store URL {shown(url)} is not a str: give one such as sqlite:///jobs.db")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise BadValue(f"store URL {safe_url(url)} has no known scheme: use {', '.join(f'{s}://' for s in _SCHEMES)}")
    given = parse_qsl(url_parts(f"store URL {scheme}://…", url).query, keep_blank_values=True)
    named = [value for name, value in given if name == "pool"]
    if not named:
        return scheme, url, pool
    if pool is not None or len(named) > 1:
        raise BadValue("the pool is given twice: name it by pool= or in the URL")
    rest = urlencode([(name, value) for name, value in given if name != "pool"])
    # Not urlunsplit, which turns sqlite:///x.db into sqlite:/x.db.
    return scheme, f"{url.partition('?')[0]}{rest and f'?{rest}'}", named[0]


def url_parts(where: str, url: str) -> SplitResult:
    """Split a URL. Raises BadValue if that fails. Messages only show the scheme: the rest may be a password."""
    for char in url:  # urlsplit drops some of these, and others confuse drivers
        if unicodedata.category(char) in ("Cc", "Cs"):
            raise BadValue(f"{where} has an invisible character {char!a}: remove it")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadValue(f"{where} is not understood: correct its host") from None
    if parts.scheme not in ("sqlite", "memory"):
        _refuse_unescaped(where, parts)
    return parts


def _refuse_unescaped(where: str, parts: SplitResult) -> None:
    """Raise BadValue if a user or password is not escaped: later messages would show a part of it as path or port."""
    credentials, _, hosts = parts.netloc.rpartition("@")
    if _BAD_ESCAPE.search(credentials + parts.query):
        raise BadValue(f"{where} has a % in its password or parameters that escapes nothing: write %25")
    try:
        unquote(parts.netloc + parts.path + parts.query, errors="strict")
    except UnicodeDecodeError:
        raise BadValue(f"{where} has a % escape that is not UTF-8: escape the bytes of its UTF-8 form") from None
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    ports = [host.rpartition("]")[2].partition(":") for host in hosts.split(",")]
    outside = any("@" in text for text in (parts.path, *names)) or parts.fragment
    if outside or any(colon and not port.isdecimal() for _, colon, port in ports):
        raise BadValue(f"{where} has an unescaped character in its password: write / ? # @ as %2F %3F %23 %40")
