"""What the API reads: bodies and queries as values. Reading them checks types and bounds; core checks the rest.

Unknown fields are refused, so that a misspelt option is not lost.
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
# The longest wait of a connection, in seconds; proxies end it sooner. A caller that wants more asks again.
Wait = Annotated[float, Meta(ge=0, le=600)]
# Tasks of one call: each is held in memory until it is answered.
Many = Annotated[int, Meta(ge=1, le=1000)]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of a request; None and absent mean the same."""


class NoBody(Body):
    """Nothing is to be said."""


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
        """Those that were given."""
        pairs = ((name, getattr(self, name)) for name in PutOptions.__struct_fields__)
        return {name: value for name, value in pairs if value is not None}


class Put(PutOptions):
    """One task: `data` is any JSON value, or `base64` holds bytes."""

    data: Any = UNSET
    base64: str | UnsetType = UNSET

    def payload(self) -> Any:
        """What is to be put."""
        if (self.data is UNSET) == (self.base64 is UNSET):
            raise BadValue("a task has either data (any JSON value) or base64 (for bytes): give one of them")
        return self.data if isinstance(self.base64, UnsetType) else decode_base64(self.base64)


class PutOne(Put):
    """A task, and how long to wait for room in a full tube."""

    timeout: Wait = 0


class PutMany(Body):
    """Tasks to be put in one step."""

    tasks: Annotated[list[Put], Meta(min_length=1, max_length=10_000)]
    timeout: Wait = 0


class Take(Body):
    """How long to wait for the first task; with `count`, a list is answered."""

    timeout: Wait | None = 0
    count: Many | None = None
    max_pri: Pri | None = None


class TakeFirst(Body):
    """Several tubes, earlier names first."""

    tubes: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    timeout: Wait | None = 0
    max_pri: Pri | None = None


class Held(Body):
    """`lease` is that of the take: only that hand-out is settled. Without the header Penstock-Session it is needed."""

    lease: Annotated[str, Meta(max_length=200)] | None = None


class Ack(Held):
    """The result is kept for a task with an address or reply_to."""

    result: Any = None


class Release(Held):
    """Back to its old place, after delay seconds."""

    delay: Seconds | None = 0


class Touch(Held, kw_only=True):
    """So many seconds more."""

    seconds: Positive


class Fail(Held, kw_only=True):
    """What failed."""

    error: str
    code: str | int | None = None


class Bury(Held):
    """Why it is put aside."""

    reason: str | None = None


class Cancel(Body):
    """Why it is not wanted any more; kept as the error of its outcome."""

    reason: str | None = None


class AckMany(Body):
    """Tasks to be acked in one step, and the lease of each, as the take gave it."""

    ids: Annotated[list[int | str], Meta(min_length=1, max_length=10_000)]
    leases: list[Annotated[str, Meta(max_length=200)]] | None = None


class Kick(Body):
    """How many to un-bury."""

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
        """Those that were given."""
        names = [name for name in self.__struct_fields__ if name not in ("name", "kind")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class WaitFor(Body):
    """An address whose task is waited for."""

    address: str
    timeout: Wait | None = 0


class WaitGroup(Body):
    """How long to wait for its end."""

    timeout: Wait | None = 0


class Work(Body):
    """What is put when the group ends."""

    data: Any = None


class Recover(Body):
    """Up to count tasks delivered at least elapsed seconds ago."""

    elapsed: Seconds
    count: Many = 1


class BeginSession(Body):
    """Its tasks stay taken for ttr seconds after its end; unused for idle seconds, it ends."""

    ttr: Seconds = 0
    idle: Annotated[float, Meta(ge=1, le=86_400)] = 60


class Check(Body):
    """Whether findings are mended."""

    repair: bool = False


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What stands behind the `?`."""


class Listing(Query):
    """A page of tasks."""

    status: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class Inspection(Query):
    """A part of a list of kind reliable."""

    start: Annotated[int, Meta(ge=-MAX_ID, le=MAX_ID)] = 0
    count: Many = 100
    pending: bool = False


class Watch(Query):
    """Only this tube's events."""

    tube: Name | None = None


class GroupListing(Query):
    """A page of groups."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str = ""


def decode_base64(text: str) -> bytes:
    """Bytes that JSON carried."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadValue("base64 is not base64: encode the bytes by RFC 4648, with padding") from None
