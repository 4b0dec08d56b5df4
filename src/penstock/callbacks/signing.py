"""Signs what is sent, in the form of the Standard Webhooks, and verifies it for those who receive.

The signature is over id, timestamp and body, so that none can be changed and an old request is known as old.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from penstock.errors import BadValue

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
# Seconds that the clocks of sender and receiver may be apart, with the way between them.
TOLERANCE = 300
_PREFIX = "whsec_"
_SHORTEST = 16


def key(secret: str) -> bytes:
    """The key of a secret: text of at least 16 bytes, or `whsec_` and base64."""
    try:
        made = (
            base64.b64decode(secret[len(_PREFIX) :], validate=True) if secret.startswith(_PREFIX) else secret.encode()
        )
    except binascii.Error:
        raise BadValue("a callback secret begins with whsec_ and is not base64 after it: make a new one") from None
    if len(made) < _SHORTEST:
        raise BadValue(
            f"a callback secret has {len(made)} bytes: give at least {_SHORTEST}, such as openssl rand -hex 32"
        )
    return made


def message_id(tube: str, id: int) -> str:
    """Names a task in headers: the same for each of its attempts, without a dot, which separates what is signed."""
    return f"{header_text(tube).replace('.', '%2E')}:{id}"


def header_text(text: str) -> str:
    """A name as a header can carry it: percent-encoded UTF-8."""
    return quote(text, safe="")


def signed_headers(keys: Sequence[bytes], id: str, now: int, body: bytes) -> dict[str, str]:
    """The three headers; a signature for each key, so that a secret can be changed without a gap."""
    signatures = " ".join(_signature(key, id, str(now), body) for key in keys)
    return {ID: id, TIMESTAMP: str(now), SIGNATURE: signatures}


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float, tolerance: float = TOLERANCE) -> bool:
    """For receivers: whether a request was signed with the secret, not longer ago than the tolerance."""
    found = {name.lower(): value for name, value in headers.items()}
    moment = found.get(TIMESTAMP, "")
    if not (moment.isascii() and moment.isdigit() and len(moment) < 12 and abs(int(moment) - now) <= tolerance):
        return False
    good = _signature(key(secret), found.get(ID, ""), moment, body).encode()
    given = found.get(SIGNATURE, "").encode("utf-8", "surrogateescape").split(b" ")
    # Every one is compared, so that the time it takes says nothing.
    return sum(hmac.compare_digest(good, each) for each in given) > 0


def _signature(key: bytes, id: str, moment: str, body: bytes) -> str:
    digest = hmac.digest(key, f"{id}.{moment}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"
