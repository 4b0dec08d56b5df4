"""Which names, labels and ids are accepted, the same on every store."""

from __future__ import annotations

import re
import unicodedata

from penstock.errors import BadValue

# Longest name in UTF-8 bytes: far below the limit of an index entry in every store.
MAX_NAME = 200
# Ids are exact in a Redis score (a double) up to here.
MAX_ID = 2**53 - 1
# Longer reasons and errors are cut.
MAX_TEXT = 10_000
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")


def name(what: str, value: object) -> str:
    """Validate the name of a tube, kind or group: letters, digits and `_ - . :`, not starting with `- . :`."""
    text = _text(what, value)
    if not (text[0].isalnum() or text[0] == "_") or not all(c.isalnum() or c in "_-.:" for c in text):
        raise BadValue(f"{what} {_shown(text)} is not a name: use letters, digits and _ - . : only")
    return text


# Prefix of the tube of a queue whose key is not a valid name.
_KEY_PREFIX = "mq-key:"
_KEPT = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-:")


def queue_name(value: object) -> str:
    """The name of the tube for a queue key of MQ.*: the key itself if it is a valid name, otherwise an encoded one.

    `orders/eu` is tube `mq-key:orders.2feu`: any byte other than letters, digits and `_ - :` becomes a dot and two hex
    digits.
    """
    key = label("key", value)
    try:
        found = name("key", key)
    except BadValue:
        found = _KEY_PREFIX
    if not found.startswith(_KEY_PREFIX):
        return found
    return name("key", _KEY_PREFIX + "".join(chr(b) if b in _KEPT else f".{b:02x}" for b in key.encode()))


def label(what: str, value: object) -> str:
    """Validate a caller's own key (micro-queue, address): text without control or invisible characters."""
    if type(value) is str and value.isascii() and value.isprintable() and len(value) <= MAX_NAME and value.strip():
        return value
    text = _text(what, value)
    if text.isspace():
        raise BadValue(f"{what} is blank: give it at least one visible character")
    if not text.isascii() or not text.isprintable():
        for char in text:
            if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
                raise BadValue(f"{what} {_shown(text)} has an invisible character {char!a}: remove it")
    return text


def utube(value: object) -> str:
    """Validate the label of a micro-queue; `1` and `"1"` are the same."""
    if type(value) is int:
        if abs(value) >= 10**MAX_NAME:  # Python may refuse to convert it to text
            raise _too_long("utube", value)
        value = str(value)
    return label("utube", value)


def task_id(value: object) -> int:
    """Validate an integer id. Whether it exists is up to the store."""
    if type(value) is not int:
        raise BadValue(f"task id {_shown(value)} is {_kind_of(value)}: ids of this tube are integers")
    if not -MAX_ID <= value <= MAX_ID:
        raise BadValue("task id is too large: ids are integers below 2**53")
    return value


def text(what: str, value: object) -> str | None:
    """A reason or error, cut to a bounded length and storable everywhere."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadValue(f"{what} {_shown(value)} is {_kind_of(value)}: give a str")
    if len(value) > MAX_TEXT:
        value = value[: MAX_TEXT - 1] + "…"
    return value.encode("utf-8", "replace").decode().replace("\0", "�")


def plain(text: str) -> str:
    """The text of a str subclass as a plain str: drivers accept only str, and str() of an enum is its name."""
    return str.__str__(text)


def failure(error: BaseException) -> str:
    """Type and text of an error; only the type if it has no text, or if its `__str__` raises."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{what} {_shown(value)} is {_kind_of(value)}: give a str")
    if not value:
        raise BadValue(f"{what} is empty: give it at least one character")
    if len(value) > MAX_NAME or len(value.encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise _too_long(what, value)
    return plain(value)


def _too_long(what: str, value: object) -> BadValue:
    return BadValue(f"{what} {_shown(value)} is too long: at most {MAX_NAME} bytes in UTF-8")


def _kind_of(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "of over 20 digits"
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def safe_url(url: str) -> str:
    """A store's URL for messages: scheme, hosts and path without anything that may be a password, also if misspelt."""
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "…" if "@" in url or "?" in url else _shown(url)
    place, _, parameters = rest.partition("?")
    if "@" in parameters:  # the ? may be part of a password
        return f"{scheme}://…"
    return _shown(f"{scheme}://{place.rpartition('@')[2]}")


shown = _shown
kind_of = _kind_of
