"""Cross-checks of tubes of unleased kinds in Redis, and repair.

They come before those of counters and indexes, which are judged by the records that these leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from penstock.core.ids import Mark, shown_mark
from penstock.core.kind import DELIVER
from penstock.core.options import Tube
from penstock.core.soundness import mended, needed_mark
from penstock.core.task import Record
from penstock.errors import StoreCorrupt
from penstock.store.base import Finding
from penstock.store.redis.finding import scan
from penstock.store.redis.keys import task_id, task_key
from penstock.store.redis.record import decode
from penstock.store.redis.runner import Runner


def check_unleased(runner: Runner, tube: Tube, repair: bool, now: int | None) -> Iterator[Finding]:
    """What no task of the kind can be, and a last message id that would be given again."""
    newest: Record | None = None
    for key, value in scan(runner, tube, "tasks"):
        try:
            record = decode(task_id(key), value)
        except StoreCorrupt:
            continue  # the look that follows finds it
        newest = record if newest is None or record.id > newest.id else newest
        wrong = mended(tube, record)
        if wrong is not None:
            yield Finding(tube.name, record.address, wrong[0], "repair puts it right")
            if repair:
                runner.on_tube("repair_unleased", tube, task_key(record.id), now=now)
    if tube.kind.hand_out == DELIVER:
        yield from _last_mark(runner, tube, newest, repair)


def _last_mark(runner: Runner, tube: Tube, newest: Record | None, repair: bool) -> Iterator[Finding]:
    # Read after the messages: what is put meanwhile only raises it.
    meta = runner.keys.name(tube.no, "meta")
    stored = cast("list[bytes | None]", runner.servers.command(meta, b"HMGET", meta, b"ms", b"seq"))
    last: Mark = (int(stored[0] or 0), int(stored[1] or 0))
    mark = needed_mark(last, newest)
    if mark is not None:
        what = f"the last id is kept as {shown_mark(last)}, there is {shown_mark(mark)}"
        yield Finding(tube.name, None, what, "repair keeps the newest")
        if repair:
            runner.on_tag("repair_last_message_id", tube.no, *mark, again=True)
