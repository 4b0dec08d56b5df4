"""The reply that a task with `reply_to` leaves in that tube, however it ends."""

from __future__ import annotations

import base64

import msgspec

from penstock.core import codec
from penstock.core.ending import Ending, decode_code
from penstock.core.kind import find_kind
from penstock.core.task import Record

# A missing reply tube is created as broker.tube would.
REPLY_KIND = find_kind("fifottl")

_encode = msgspec.json.Encoder().encode


def reply_payload(record: Record, ending: Ending) -> bytes:
    """The data `{id, address, status, result | error}`, encoded.

    A code is added where there is one. A result of bytes is its base64 text, with `"encoding": "base64"` next to it.
    """
    reply: dict[str, object] = {"id": record.id, "address": record.address, "status": ending.status}
    if ending.status != "done":
        reply["error"] = ending.error
        if ending.code is not None:
            reply["code"] = decode_code(ending.code)
    elif ending.result is None:
        reply["result"] = None
    elif codec.is_raw(ending.result):
        reply["result"] = base64.b64encode(ending.result[1:]).decode()
        reply["encoding"] = "base64"
    else:
        reply["result"] = msgspec.Raw(ending.result)
    return _encode(reply)
