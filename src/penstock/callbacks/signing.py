"""Signs callbacks as Standard Webhooks do, and verifies signatures for receivers.

The signature covers id, timestamp and body, so that none can be changed and old requests can be rejected. A second
signature also covers the URL, so that a receiver that shares its secret with others can tell which requests are for it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from penstock.errors import BadValue

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
URL_SIGNATURE = "penstock-signature"
# The largest accepted age of a request in seconds: clock difference plus transit.
TOLERANCE = 300
_PREFIX = "whsec_"
_SHORTEST = 16


def key(secret: str) -> bytes:
    """The key of a secret: a text of at least 16 bytes, or `whsec_` followed by base64."""
    try:
        made = (
            base64.b64decode(secret[len(_PREFIX) :], validate=True) if secret.startswith(_PREFIX) else secret.encode()
        )
    except binascii.Error:
        raise BadValue("a callback secret begins with whsec_, but the rest is not base64: make a new one") from None
    if len(made) < _SHORTEST:
        raise BadValue(
            f"a callback secret has {len(made)} bytes: give at least {_SHORTEST}, such as openssl rand -hex 32"
        )
    return made


def message_id(tube: str, id: int) -> str:
    """The id of a task in headers: the same for every attempt, and without dots, which separate the signed parts."""
    return f"{header_text(tube).replace('.', '%2E')}:{id}"


def header_text(text: str) -> str:
    """A name encoded for a header: percent-encoded UTF-8."""
    return quote(text, safe="")


def signed_headers(keys: Sequence[bytes], id: str, now: int, body: bytes, url: str | None = None) -> dict[str, str]:
    """The signature headers of a request, with one signature per key, so that secrets can be rotated."""
    headers = {ID: id, TIMESTAMP: str(now), SIGNATURE: " ".join(_sign(key, f"{id}.{now}.", body) for key in keys)}
    if url is not None:
        headers[URL_SIGNATURE] = " ".join(_sign(key, f"{id}.{now}.{url}\n", body) for key in keys)
    return headers


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: float, tolerance: float = TOLERANCE,
    url: str | None = None,
) -> bool:  # fmt: skip
    """For receivers: whether a request was signed with the secret, at most `tolerance` seconds ago.

    With `url`, also whether it was meant for that URL, which is the callback of its task.
    """
    found = {name.lower(): value for name, value in headers.items()}
    moment = found.get(TIMESTAMP, "")
    if not (moment.isascii() and moment.isdigit() and len(moment) < 12 and abs(int(moment) - now) <= tolerance):
        return False
    signed = f"{found.get(ID, '')}.{moment}."
    good = _is_signed(secret, found.get(SIGNATURE, ""), signed, body)
    return good and (url is None or _is_signed(secret, found.get(URL_SIGNATURE, ""), f"{signed}{url}\n", body))


def _is_signed(secret: str, given: str, signed: str, body: bytes) -> bool:
    good = _sign(key(secret), signed, body).encode()
    # All signatures are compared, so that the time taken reveals nothing.
    return sum(hmac.compare_digest(good, each) for each in given.encode("utf-8", "surrogateescape").split(b" ")) > 0


def _sign(key: bytes, signed: str, body: bytes) -> str:
    digest = hmac.digest(key, signed.encode("utf-8", "surrogateescape") + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"
