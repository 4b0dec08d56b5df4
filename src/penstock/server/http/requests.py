"""The types of the API's bodies and queries. Parsing checks types and bounds; core checks the rest.

Unknown fields are refused, so that a misspelt option is noticed.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.backoff import Backoff
from penstock.core.names import MAX_ID
from penstock.core.shards import MAX_SHARDS
from penstock.core.values import MAX_PRI, MAX_SECONDS
from penstock.errors import BadValue

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Positive = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
Pri = Annotated[int, Meta(ge=0, le=MAX_PRI)]
Whole = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Shards = Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
# The longest wait of one request, in seconds; proxies may end it sooner. To wait longer, repeat the request.
Wait = Annotated[float, Meta(ge=0, le=600)]
# Tasks of one request: all are in memory until the response is sent.
Many = Annotated[int, Meta(ge=1, le=1000)]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request; null and absent mean the same."""


class NoBody(Body):
    """An empty body."""


class PutOptions(Body):
    """The options of a put."""

    pri: Pri | None = None
    ttl: Positive | None = None
    ttr: Positive | None = None
    delay: Seconds | None = None
    utube: str | int | None = None
    id: str | None = None
    rank: float | None = None
    address: str | None = None
    on_duplicate: str | None = None
    group: str | None = None
    callback: str | None = None
    reply_to: str | None = None
    max_attempts: Whole | None = None

    def options(self) -> dict[str, Any]:
        """The options that the request gives."""
        pairs = ((name, getattr(self, name)) for name in PutOptions.__struct_fields__)
        return {name: value for name, value in pairs if value is not None}


class Put(PutOptions):
    """One task: `data` is any JSON value, or `base64` holds bytes."""

    data: Any = UNSET
    base64: str | UnsetType = UNSET

    def payload(self) -> Any:
        """The data to put."""
        if (self.data is UNSET) == (self.base64 is UNSET):
            raise BadValue("a task has either data (any JSON value) or base64 (for bytes): give one of them")
        return self.data if isinstance(self.base64, UnsetType) else decode_base64(self.base64)


class PutOne(Put):
    """A task, and how long to wait for room in a full tube."""

    timeout: Wait = 0


class PutMany(Body):
    """Tasks to put in one step."""

    tasks: Annotated[list[Put], Meta(min_length=1, max_length=10_000)]
    timeout: Wait = 0


class Take(Body):
    """How long to wait for the first task; with `count`, the response is a list."""

    timeout: Wait | None = 0
    count: Many | None = None
    max_pri: Pri | None = None


class TakeFirst(Body):
    """Several tubes, earlier names first."""

    tubes: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    timeout: Wait | None = 0
    max_pri: Pri | None = None


class Held(Body):
    """`lease` as the take returned it: only that lease is settled. Required without the header Penstock-Session."""

    lease: Annotated[str, Meta(max_length=200)] | None = None


class Ack(Held):
    """An optional result, kept if the task has an address or reply_to."""

    result: Any = None


class Release(Held):
    """An optional delay in seconds."""

    delay: Seconds | None = 0


class Touch(Held, kw_only=True):
    """By how many seconds to extend the lease."""

    seconds: Positive


class Fail(Held, kw_only=True):
    """The error, and an optional code."""

    error: str
    code: str | int | None = None


class Bury(Held):
    """An optional reason."""

    reason: str | None = None


class Cancel(Body):
    """An optional reason, kept as the error of the outcome."""

    reason: str | None = None


class AckMany(Body):
    """Tasks to ack in one step, and the lease of each, as the take returned it."""

    ids: Annotated[list[int | str], Meta(min_length=1, max_length=10_000)]
    leases: list[Annotated[str, Meta(max_length=200)]] | None = None


class Kick(Body):
    """How many tasks to kick."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 1


class CreateTube(Body):
    """A new tube."""

    name: Name
    kind: Name = "fifottl"
    ttl: Positive | None = None
    ttr: Positive | None = None
    pri: Pri | None = None
    callback: str | None = None
    capacity: Whole | None = None
    temporary: bool | None = None
    max_attempts: Whole | None = None
    backoff: Backoff | None = None
    period: Positive | None = None
    utube_limit: Whole | None = None
    fair: bool | None = None
    aging: Positive | None = None
    retention: Positive | None = None
    max_payload: Whole | None = None
    shards: Shards | None = None

    def options(self) -> dict[str, Any]:
        """The options that the request gives."""
        names = [name for name in self.__struct_fields__ if name not in ("name", "kind")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class WaitFor(Body):
    """An address, and how long to wait for the end of its task."""

    address: str
    timeout: Wait | None = 0


class WaitGroup(Body):
    """How long to wait for the end of the group."""

    timeout: Wait | None = 0


class Work(Body):
    """The task to put when the group ends."""

    data: Any = None


class Recover(Body):
    """Recover up to `count` messages that were delivered at least `elapsed` seconds ago."""

    elapsed: Seconds
    count: Many = 1


class BeginSession(Body):
    """After its end, its tasks stay taken for `ttr` seconds. It ends when it was not used for `idle` seconds."""

    ttr: Seconds = 0
    idle: Annotated[float, Meta(ge=1, le=86_400)] = 60


class Check(Body):
    """Whether to repair what is found."""

    repair: bool = False


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a request."""


class Listing(Query):
    """Parameters of a list of tasks: its status, and the page."""

    status: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class Inspection(Query):
    """Parameters that select a range of the messages of a reliable tube."""

    start: Annotated[int, Meta(ge=-MAX_ID, le=MAX_ID)] = 0
    count: Many = 100
    pending: bool = False


class Watch(Query):
    """The tube whose events to send; all if absent."""

    tube: Name | None = None


class GroupListing(Query):
    """Parameters of a list of groups: the page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str = ""


def decode_base64(text: str) -> bytes:
    """Decode bytes that were sent as base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadValue("base64 is not valid: encode the bytes as in RFC 4648, with padding") from None
