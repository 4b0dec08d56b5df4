"""Chains: the calls that follow a task, and how the next one becomes a task when this one is acked.

The remaining calls are part of the task's data, under `next`, so stores need no column for them. Such a task is marked
in its `reply_to`, which every store reads when a task ends: `>`, followed by the tube of its reply, if any.
"""

from __future__ import annotations

import base64
from typing import cast

import msgspec

from penstock.core import codec, names
from penstock.core.ending import KEEP_EXPIRY
from penstock.core.entry import entry_of, plain_entry
from penstock.core.options import PutOptions, Tube
from penstock.core.task import Entry
from penstock.core.values import MAX_SECONDS
from penstock.errors import BadValue, PenstockError

# First character of `reply_to` if the task has a next link. No tube name can start with it.
MARK = ">"
NEXT = "next"

_encode = msgspec.json.Encoder().encode


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that follows another one.

    `into` names the argument that receives the previous result: a name; `*name` for the front of that list; "" for the
    front of positional arguments; None if the result is not passed on.
    `options` are put options in seconds; `at` is a time in seconds since the epoch.
    """

    tube: str
    address: str
    data: dict[str, msgspec.Raw]
    into: str | None = None
    options: dict[str, object] = {}
    at: float | None = None


class _Data(msgspec.Struct):
    next: list[Link] = []


def with_links(data: dict[str, object], links: list[Link]) -> dict[str, object]:
    """Add the links that follow a task to its data."""
    return {**data, NEXT: msgspec.json.decode(_encode(links))} if links else data


def marked(reply_to: str | None) -> str:
    """The `reply_to` of a task that has a next link."""
    return MARK + (reply_to or "")


def is_marked(reply_to: str | None) -> bool:
    """Whether the task has a next link."""
    return reply_to is not None and reply_to.startswith(MARK)


def reply_tube(reply_to: str | None) -> str | None:
    """The tube that the task's reply goes to, or None."""
    return None if reply_to is None or reply_to == KEEP_EXPIRY else reply_to.removeprefix(MARK) or None


def checked_reply(what: str, reply_to: str | None) -> str | None:
    """Validate a `reply_to` that comes from a file or another store."""
    if reply_to == KEEP_EXPIRY:
        return reply_to
    tube = reply_tube(reply_to)
    name = None if tube is None else names.name(what, tube)
    return marked(name) if is_marked(reply_to) else name


def next_link(payload: bytes, result: bytes | None) -> tuple[Link, bytes] | None:
    """The next link and its data, with the result filled in; None if the task has no next link."""
    try:
        links = msgspec.json.decode(payload, type=_Data).next
        return (links[0], _link_payload(links, result)) if links else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # the data was replaced


def _link_payload(links: list[Link], result: bytes | None) -> bytes:
    link = links[0]
    data: dict[str, object] = dict(link.data)
    if link.into is not None:
        data["args"] = _with_result(link.data["args"], link.into, _raw(result))
    if links[1:]:
        data[NEXT] = links[1:]
    return _encode(data)


def _with_result(args: bytes, into: str, value: msgspec.Raw) -> object:
    if into == "":
        return [value, *msgspec.json.decode(args, type=list[msgspec.Raw])]
    given = msgspec.json.decode(args, type=dict[str, msgspec.Raw])
    if not into.startswith("*"):
        return {into: value, **given}
    rest = msgspec.json.decode(given.get(into[1:], b"[]"), type=list[msgspec.Raw])
    return {**given, into[1:]: [value, *rest]}


def _raw(result: bytes | None) -> msgspec.Raw:
    """A result as JSON. Bytes become base64 text, which a handler's argument of type bytes is decoded from."""
    if result is None:
        return msgspec.Raw(b"null")
    if codec.is_raw(result):
        return msgspec.Raw(_encode(base64.b64encode(result[1:]).decode()))
    return msgspec.Raw(result)


def link_entry(tube: Tube, link: Link, payload: bytes, now: int) -> Entry:
    """The link as a put. Options that the tube's kind no longer supports are dropped."""
    options = dict(link.options)
    reply_to = options.pop("reply_to", None)
    if link.at is not None:
        options["delay"] = min(max(link.at - now / 1000, 0), MAX_SECONDS)
    try:
        entry = entry_of(tube, payload, cast(PutOptions, options))
    except PenstockError:
        entry = plain_entry(tube, payload)
    more = msgspec.json.decode(payload, type=_Data).next
    if more:
        reply_to = marked(cast("str | None", reply_to))
    return msgspec.structs.replace(entry, address=link.address, reply_to=reply_to)


# The address of a link names the tubes of the earlier links, so it is enough to find how far a chain has come:
# `chain:token.number`, plus `@tube,tube,…` if earlier links are in other tubes.
_PREFIX = "chain:"


def link_address(token: str, tubes: list[str], place: int) -> str:
    """The address of the link at a place, given the tubes of all links."""
    before = tubes[:place]
    where = "" if set(before) <= {tubes[place]} else "@" + ",".join(before)
    address = f"{_PREFIX}{token}.{place}{where}"
    if len(address.encode()) > names.MAX_NAME:
        raise BadValue(
            f"the tube names of a chain of {len(tubes)} links do not fit into an address: use fewer or shorter ones"
        )
    return address


def links_before(tube: str, address: str) -> list[tuple[str, str]]:
    """The tubes and addresses of the links before this one, nearest first. Empty for the address of any other task."""
    head, _, where = address.partition("@")
    token, _, number = head.removeprefix(_PREFIX).rpartition(".")
    if not head.startswith(_PREFIX) or not number.isascii() or not number.isdecimal() or len(number) > 4:
        return []
    place = int(number)
    tubes = where.split(",") if where else [tube] * place
    if len(tubes) != place:
        return []
    tubes.append(tube)
    return [(tubes[before], link_address(token, tubes, before)) for before in reversed(range(place))]
