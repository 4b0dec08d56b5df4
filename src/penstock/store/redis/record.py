"""A task's stored bytes, as lua/record.lua writes them.

One state letter, 16 bits of flags and 48 of `created`, then, in this order, the fields that the flags name, then
the payload as it is. What has its default is left out: a fresh fifo task costs nine bytes beside its payload.

flag  field                              flag  field
1     rank1, a double                    256   max_attempts, 32 bits
2     rank2, a double                    512   owner, 48 bits
4     pri, 32 bits                       1024  utube, one byte of length before it
8     attempts, lease (32), taken (48)   2048  reason, two bytes of length
16    expires, 48 bits                   4096  callback, two bytes of length
32    at, 48 bits                        8192  rank1 equals pri
64    at equals expires                  16384 address, one byte of length
128   ttr, 48 bits                       32768 reply_to, one byte of length; number of the group, 48 bits; its name,
                                               one byte of length; empty and 0 where it has none
"""

from __future__ import annotations

import struct

from penstock.core.task import Entry, Record
from penstock.errors import StoreCorrupt

_double = struct.Struct(">d").unpack_from
# flag -> bytes it stands for
_SIZES = {1: 8, 2: 8, 4: 4, 8: 14, 16: 6, 32: 6, 128: 6, 256: 4, 512: 6}
_TEXTS = {1024: 1, 2048: 2, 4096: 2, 16384: 1}
_LINKED = 32768
_START = 9
_STATES = b"rqt~g!-"
# The reason of a task that stands for bytes that could not be read: see lua/step.lua.
UNREADABLE = "its stored record could not be read"


class _Layout:
    """Where each field begins, for one set of flags; 0: it is not there."""

    __slots__ = ("at", "at_expires", "end", "expires", "handed", "max", "owner", "pri", "pri_rank", "rank1", "rank2",
                 "texts", "ttr")  # fmt: skip

    def __init__(self, flags: int) -> None:
        starts: dict[int, int] = {}
        place = _START
        for flag, size in _SIZES.items():
            starts[flag] = place if flags & flag else 0
            place += size if flags & flag else 0
        self.rank1, self.rank2, self.pri, self.handed = starts[1], starts[2], starts[4], starts[8]
        self.expires, self.at, self.ttr = starts[16], starts[32], starts[128]
        self.max, self.owner = starts[256], starts[512]
        self.at_expires = bool(flags & 64)
        self.pri_rank = bool(flags & 8192)
        self.texts = bool(flags & (1024 | 2048 | 4096 | 16384))
        self.end = place


_layouts: dict[int, _Layout] = {}
_int = int.from_bytes


def decode(id: int, value: bytes) -> Record:
    """The task of that id."""
    try:
        return _decode(id, value)
    except (IndexError, struct.error) as error:
        what = f"task {id} is stored in a form that penstock did not write"
        raise StoreCorrupt(f"{what}: broker.check(repair=True) buries it") from error


def _decode(id: int, value: bytes) -> Record:
    flags = value[1] << 8 | value[2]
    layout = _layouts.get(flags)
    if layout is None:
        layout = _layouts[flags] = _Layout(flags)
    pri = _int(value[layout.pri : layout.pri + 4], "big") if layout.pri else 0
    rank1: float = _double(value, layout.rank1)[0] if layout.rank1 else pri if layout.pri_rank else 0
    attempts, lease, taken = _handed(value, layout.handed) if layout.handed else (0, 0, None)
    expires = _time(value, layout.expires)
    utube = reason = callback = address = reply_to = group = group_no = None
    end = layout.end
    if layout.texts:
        utube, reason, callback, address, end = _texts(value, flags, end)
    if flags & _LINKED:
        reply_to, group_no, group, end = _links(value, end)
    if end > len(value) or value[0] not in _STATES:
        raise IndexError("it is too short, or in no state")
    return Record(
        id,
        chr(value[0]),
        rank1,
        _double(value, layout.rank2)[0] if layout.rank2 else 0,
        pri,
        utube,
        attempts,
        lease,
        _int(value[3:9], "big"),
        taken,
        expires,
        expires if layout.at_expires else _time(value, layout.at),
        _time(value, layout.ttr),
        _int(value[layout.max : layout.max + 4], "big") if layout.max else None,
        _time(value, layout.owner),
        reason,
        callback,
        value[end:],
        address,
        reply_to,
        group,
        group_no,
    )


def new_pieces(entry: Entry) -> tuple[bytes, bytes, bytes]:
    """A new ready task's bytes up to `created`, from there to `expires`, and from there to the payload."""
    one, two, pri = entry.rank1.base, entry.rank2.base, entry.pri
    flags, middle, end = 0, b"", b""
    if one == pri != 0:
        flags |= 8192
    elif one:
        flags, middle = flags | 1, struct.pack(">d", one)
    if two:
        flags, middle = flags | 2, middle + struct.pack(">d", two)
    if pri:
        flags, middle = flags | 4, middle + struct.pack(">I", pri)
    if entry.ttl is not None:
        flags |= 16 | 64
    if entry.ttr is not None:
        flags, end = flags | 128, entry.ttr.to_bytes(6, "big")
    if entry.max_attempts is not None:
        flags, end = flags | 256, end + struct.pack(">I", entry.max_attempts)
    if entry.callback is not None:
        text = entry.callback.encode()
        flags, end = flags | 4096, end + struct.pack(">H", len(text)) + text
    return b"r" + struct.pack(">H", flags), middle, end


def _time(value: bytes, start: int) -> int | None:
    return _int(value[start : start + 6], "big") if start else None


def _handed(value: bytes, start: int) -> tuple[int, int, int]:
    return (
        _int(value[start : start + 4], "big"),
        _int(value[start + 4 : start + 8], "big"),
        _int(value[start + 8 : start + 14], "big"),
    )


def _texts(value: bytes, flags: int, place: int) -> tuple[str | None, str | None, str | None, str | None, int]:
    found: list[str | None] = []
    for flag, width in _TEXTS.items():
        if not flags & flag:
            found.append(None)
            continue
        text, place = _text(value, place, width)
        found.append(text)
    utube, reason, callback, address = found
    return utube, reason, callback, address, place


def _links(value: bytes, place: int) -> tuple[str | None, int | None, str | None, int]:
    reply_to, place = _text(value, place, 1)
    group_no = _time(value, place)
    group, place = _text(value, place + 6, 1)
    return reply_to or None, group_no or None, group or None, place


def _text(value: bytes, place: int, width: int) -> tuple[str, int]:
    start = place + width
    end = start + _int(value[place:start], "big")
    return value[start:end].decode(errors="replace"), end  # one wrong byte in a label stops no tube
