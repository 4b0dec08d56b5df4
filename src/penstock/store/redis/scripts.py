"""The Lua scripts: read from their files, put together from parts, known to servers by their digests.

A file names in its first lines the keys it uses (`KEYS`), the parts it is built on (`WITH`; `lanes?` only for tubes
with micro-queues, `unleased?` and `handout?` only for those that lease nothing, `a|b|c` for others, for these and for
those, `links?` for tubes with addresses, replies or groups) and its flags (`FLAGS`).
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

# What parts may define for others; nil where the part is not there.
_SHARED = (
    "local moved, save_lanes, forget_idle, spot_of, lease, leavers, save_last, gate, left, cancelled, hold, unhold, "
    "follow, is_moving, put_works, follow_up, sweep, key_named, delivered, name_reply, next_hand_out, bury_unreadable, "
    "mark, lease_floor"
)
# The sorts of tubes that scripts are built for.
PLAIN, LANED, UNLEASED = "plain", "laned", "unleased"
_CHOICES = (PLAIN, LANED, UNLEASED)
_OPTIONAL = {"lanes?": LANED, "unleased?": UNLEASED, "handout?": UNLEASED}
# What `links` stands for. A tube that never had any runs scripts without it, which pay nothing for it.
_LINKS = ("made", "add", "replies", "outcomes", "group", "links")


class Script:
    """One script for one sort of server."""

    __slots__ = ("digest", "keys", "name", "reads", "text")

    def __init__(self, name: str, keys: tuple[str, ...], text: str, *, reads: bool) -> None:
        self.name = name
        self.keys = keys
        self.text = text.encode()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self.reads = reads


@cache
def load_script(
    name: str, *, sort: str = PLAIN, linked: bool = False, modern: bool = True, epoch: str | None = None
) -> Script:
    """The script for a sort of tubes; `linked` for those whose tasks have addresses, replies or groups, `modern` for
    servers that know script flags (7 and later), `epoch` for the index of a pool in that epoch."""
    keys, body = _body(name, sort, linked, epoch)
    flags = _words("FLAGS", _file(name))
    return Script(name, keys, "\n".join([*_head(flags, modern), body]), reads="no-writes" in flags)


@cache
def load_several(sorts: tuple[tuple[str, bool], ...], *, modern: bool = True) -> Script:
    """The script that takes from several tubes of these sorts; its keys are those of their takes, in order."""
    lines = [*_head(["allow-oom"], modern), "local takes = {}"]
    for place, (sort, linked) in enumerate(sorts, 1):
        keys, body = _body("take", sort, linked)
        # As functions, the scripts find the keys and arguments that they are given under the names that they know.
        lines.append(f"takes[{place}] = {{ run = function(KEYS, ARGV)\n{body}\nend,")
        meta, handles = keys.index("meta") + 1, keys.index("handles") + 1
        unlinked = "true" if not linked and sort != UNLEASED else "false"
        lines.append(f"meta = {meta}, handles = {handles}, unlinked = {unlinked} }}")
    return Script("several", (), "\n".join([*lines, _file("several")]), reads=False)


def _body(name: str, sort: str, linked: bool, epoch: str | None = None) -> tuple[tuple[str, ...], str]:
    """A script without its head, and its keys."""
    own = _file(name)
    parts = [_file(part) for part in _parts(own, sort, linked)]
    if epoch is not None and "base" in _words("WITH", own):
        parts.insert(parts.index(_file("base")) + 1, f"local EPOCH = '{epoch}'\n{_file('pooled')}")
    keys = tuple(dict.fromkeys(key for text in (*parts, own) for key in _words("KEYS", text)))
    names = ", ".join(f"k_{key}" for key in keys)
    values = ", ".join(f"KEYS[{place}]" for place in range(1, len(keys) + 1))
    return keys, "\n".join([f"local {names} = {values}", _SHARED, *parts, own])


def _head(flags: list[str], modern: bool) -> list[str]:
    if modern:
        return [f"#!lua flags={','.join(flags)}" if flags else "#!lua"]
    return [_file("before_7"), *([_file("frees_before_7")] if "allow-oom" in flags else [])]


@cache
def _file(name: str) -> str:
    return (files("penstock.store.redis") / "lua" / f"{name}.lua").read_text()


def _words(label: str, text: str) -> list[str]:
    return [word for line in re.findall(rf"^-- {label}: (.*)$", text, re.MULTILINE) for word in line.split()]


def _parts(text: str, sort: str, linked: bool) -> list[str]:
    parts: list[str] = []
    for word in _words("WITH", text):
        if word == "links" or (word == "links?" and linked):
            parts += _LINKS
        elif word == "links?":
            parts += ["unlinked"] if sort != UNLEASED else []
        elif word.endswith("?"):
            parts += [word[:-1]] if sort == _OPTIONAL[word] else []
        else:
            choices = word.split("|")
            parts.append(choices[_CHOICES.index(sort)] if len(choices) > 1 else word)
    return parts
