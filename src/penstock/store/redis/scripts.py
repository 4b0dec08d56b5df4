"""The Lua scripts: read from their files and assembled from parts; servers know them by their digests.

A file in lua/ consists of sections, each of which begins with `-- script: name` or `-- part: name`. The first lines of
a section name the keys that it uses (`KEYS`), the parts that precede it (`WITH`) and the flags of the script (`FLAGS`).
In `WITH`, a part with a question mark is included only for some sorts of tubes: see `_OPTIONAL`.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

# Names that a part defines for others; nil if the part is not included.
_SHARED = (
    "local band, fair, limit, update_micro_queue, enter_micro_queue, load_micro_queues, take_head, ack_taken, "
    "ack_related, save_acked, acks_kept, settle_micro_queues, save_micro_queues, forget_idle, queue_place, "
    "save_last, task_removed, cancelled, moving_groups, save_groups, entry_names, "
    "new_outcomes, outcome_keys, save_outcomes, find_conflict, holders, keep_relations, forget_expired, key_named, "
    "delivered, in_order, add_name, save_names, pass_all, name_entries, given_mark, next_hand_out, log_value, "
    "log, mark_changed, lease_floor = bit.band"
)
# The sorts of tubes that scripts are built for.
PLAIN, MICRO_QUEUES, UNLEASED = "plain", "micro_queues", "unleased"
_OPTIONAL = {
    "lease_leased": (PLAIN, MICRO_QUEUES), "micro_queues": (MICRO_QUEUES,),
    "unleased": (UNLEASED,), "hand_over": (UNLEASED,), "lease_unleased": (UNLEASED,),
    "encode": (MICRO_QUEUES,), "decode": (MICRO_QUEUES, UNLEASED), "tasks": (MICRO_QUEUES,),
}  # fmt: skip
# The scripts of a pool whose callers may wait for the database in the same round trip.
WAITED = ("put", "put_related", "put_plain", "ack", "ack_related", "delete", "apply", "apply_put")
_SECTION = re.compile(r"^(?=-- (?:script|part): \w+$)", re.MULTILINE)


class Script:
    """One script, as it is loaded into a server."""

    __slots__ = ("digest", "keys", "name", "pooled", "text")

    def __init__(self, name: str, keys: tuple[str, ...], text: str, *, pooled: bool) -> None:
        self.name = name
        self.keys = keys
        #: Whether it works on the index of a pool: see pool.lua.
        self.pooled = pooled
        self.text = text.encode()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


@cache
def load_script(name: str, *, sort: str = PLAIN, modern: bool = True, pooled: bool = False) -> Script:
    """Build a script for a sort of tubes.

    `modern`: for servers that know script flags (7 and later); `pooled`: for the index of a pool. If it changes tasks,
    two arguments are then added: the name of the client, or '', and the epoch.
    """
    own = _sections()[name]
    names = _parts(own, sort)
    pooled = pooled and "now" in names  # others change no task
    if pooled:
        names.insert(names.index("tube" if "tube" in names else "now") + 1, "pool_epoch")
    parts = [_sections()[part] for part in names]
    waited = "_waited" if name in WAITED else ""
    before = [_sections()["turns"]] if pooled and waited else []
    keys = tuple(dict.fromkeys(key for text in (*parts, own, *before) for key in _words("KEYS", text)))
    named = ", ".join(f"k_{key}" for key in keys)
    values = ", ".join(f"KEYS[{place}]" for place in range(1, len(keys) + 1))
    head = [*_head(_words("FLAGS", own), modern), f"local {named} = {values}"]
    lines = [_SHARED, *parts, own]
    if pooled or len(names) > 4:
        # A closure finds a local of the function around it by a walk through all captured ones, those from further out
        # at once. So a large script takes some 8 of 22 microseconds less to define its parts.
        answer = _sections()[f"pool_answer{waited}"] if pooled else "return run()"
        lines = ["local function begin()", _SHARED, *before, "local function run()", *parts, own, "end", answer, "end"]
        lines.append("return begin()")
    if pooled:
        head.append("local EPOCH, CLIENT, marked = table.remove(ARGV), table.remove(ARGV), 0")
    return Script(name, keys, "\n".join(head + lines), pooled=pooled)


def _head(flags: list[str], modern: bool) -> list[str]:
    if modern:
        return [f"#!lua flags={','.join(flags)}" if flags else "#!lua"]
    return [_sections()["allow_oom"]] if "allow-oom" in flags else []


@cache
def _sections() -> dict[str, str]:
    """Return the text of each section by its name."""
    found: dict[str, str] = {}
    for file in (files("penstock.store.redis") / "lua").iterdir():
        for text in _SECTION.split(file.read_text())[1:]:  # a comment on the file precedes the first
            found[text.split(maxsplit=3)[2]] = text.rstrip("\n")
    return found


def _words(label: str, text: str) -> list[str]:
    return [word for line in re.findall(rf"^-- {label}: (.*)$", text, re.MULTILINE) for word in line.split()]


def _parts(text: str, sort: str) -> list[str]:
    parts: list[str] = []
    for word in _words("WITH", text):
        name = word.removesuffix("?")
        if name == word or sort in _OPTIONAL[name]:
            parts.append(name)
    return list(dict.fromkeys(parts))
