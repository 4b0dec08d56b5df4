"""Tasks, groups, outcomes and micro-queues as the scripts store them: see lua/record.lua, groups.lua, addresses.lua.

A task is one state letter, 16 bits of flags and 48 of `created`, then, in this order, the fields that the flags name,
then the payload. Fields with their default value are left out: a fresh fifo task costs nine bytes beside its payload.

flag  field                              flag  field
1     rank1, a double                    512   owner, 48 bits
2     rank2, a double                    1024  utube, one byte of length before it
4     pri, 32 bits                       2048  reason, two bytes of length
8     attempts (32), lease (64), taken   4096  extra, two bytes of length
16    expires, 48 bits                   8192  rank1 equals pri
32    at, 48 bits                        16384 address, one byte of length
64    at equals expires                  32768 reply_to, one byte of length; number of the group, 48 bits; its name,
128   ttr, 48 bits                             one byte of length; empty and 0 if it has none

The highest bit of the attempts is set where errors of attempts are kept, in a hash of their own. A taken task whose
handler reported its progress has the letter p, and the progress, a double, before the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from penstock.core import group as rules
from penstock.core.ending import Ending
from penstock.core.entry import new_record
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Entry, Record
from penstock.core.transfer import Kept
from penstock.errors import StoreCorrupt

GROUP_STATES = {"o": rules.OPEN, "s": rules.STARTED, "x": rules.CANCELLING, "d": rules.DONE, "c": rules.CANCELLED}
ON_FAILURE = {"h": rules.HOLD, "n": rules.CONTINUE, "x": rules.CANCEL}
GROUP_LETTERS = {state: letter for letter, state in GROUP_STATES.items()}
MAX_ID = 2**48 - 1
_LANE = struct.Struct(">IIIHI")
_double = struct.Struct(">d").unpack_from
# flag -> how its numbers are packed: 48 bits are two numbers
_PACKED = {1: "d", 2: "d", 4: "I", 8: "IQHI", 16: "HI", 32: "HI", 128: "HI", 512: "HI"}
_TEXTS = {1024: 1, 2048: 2, 4096: 2, 16384: 1}
_RELATED = 32768
# State letter, flags, created.
_HEAD = ">B2xHI"
_STATES = {ord(letter): letter for letter in "rqt~g!-"} | {ord("p"): "t"}
_WITH_PROGRESS = ord("p")
# The highest bit of the attempts says that the task has errors, which stand elsewhere: decoded as b"".
_ATTEMPTS, _WITH_ERRORS = 2**31 - 1, 2**31
# The reason of a buried task whose stored bytes could not be read: see lua/tasks.lua.
UNREADABLE = "its stored record could not be read"


class _Layout:
    """The position of each number among those of a record with these flags; 0 if it has none."""

    __slots__ = ("at", "end", "expires", "handed", "more", "owner", "pri", "pri_rank", "rank1", "rank2", "ttr",
                 "unpack")  # fmt: skip

    def __init__(self, flags: int) -> None:
        places: dict[int, int] = {}
        packed, place = _HEAD, 3
        for flag, codes in _PACKED.items():
            places[flag] = place if flags & flag else 0
            if flags & flag:
                packed, place = packed + codes, place + len(codes)
        self.rank1, self.rank2, self.pri, self.handed = places[1], places[2], places[4], places[8]
        self.expires, self.ttr, self.owner = places[16], places[128], places[512]
        self.at = places[16] if flags & 64 else places[32]
        self.pri_rank = bool(flags & 8192)
        self.more = bool(flags & (1024 | 2048 | 4096 | 16384 | _RELATED))
        fixed = struct.Struct(packed)
        self.unpack, self.end = fixed.unpack_from, fixed.size


_layouts: dict[int, _Layout] = {}
_int = int.from_bytes


def decode(id: int, value: bytes) -> Record:
    """Decode the task of that id."""
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
    numbers = layout.unpack(value)
    handed, end = layout.handed, layout.end
    pri = numbers[layout.pri] if layout.pri else 0
    utube = reason = extra = address = reply_to = group = group_no = progress = None
    if layout.more:
        utube, reason, extra, address, end = _texts(value, flags, end)
        if flags & _RELATED:
            reply_to, end = _text(value, end, 1)
            group_no = _int(value[end : end + 6], "big") or None
            group, end = _text(value, end + 6, 1)
    if value[0] == _WITH_PROGRESS:
        progress, end = _double(value, end)[0], end + 8
    if end > len(value) or value[0] not in _STATES:
        raise IndexError("it is too short, or in no state")
    return Record(
        id,
        _STATES[value[0]],
        numbers[layout.rank1] if layout.rank1 else pri if layout.pri_rank else 0,
        numbers[layout.rank2] if layout.rank2 else 0,
        pri,
        utube,
        numbers[handed] & _ATTEMPTS if handed else 0,
        numbers[handed + 1] if handed else 0,
        numbers[1] << 32 | numbers[2],
        numbers[handed + 2] << 32 | numbers[handed + 3] if handed else None,
        numbers[layout.expires] << 32 | numbers[layout.expires + 1] if layout.expires else None,
        numbers[layout.at] << 32 | numbers[layout.at + 1] if layout.at else None,
        numbers[layout.ttr] << 32 | numbers[layout.ttr + 1] if layout.ttr else None,
        numbers[layout.owner] << 32 | numbers[layout.owner + 1] if layout.owner else None,
        reason,
        extra,
        value[end:],
        address,
        reply_to or None,
        group or None,
        group_no,
        progress,
        b"" if handed and numbers[handed] > _ATTEMPTS else None,
    )


def new_pieces(entry: Entry) -> tuple[bytes, bytes, bytes]:
    """The bytes of a new ready task up to `created`, from there to `expires`, and from there to the payload."""
    packed = encode(new_record(msgspec.structs.replace(entry, payload=b""), 0, 0))
    start = struct.calcsize(_HEAD)
    expires = start + sum(struct.calcsize(">" + _PACKED[flag]) for flag in (1, 2, 4) if packed[2] & flag)
    return packed[:3], packed[start:expires], packed[expires if entry.ttl is None else expires + 6 :]


def encode(record: Record) -> bytes:
    """The bytes of a task, as lua/record.lua makes them."""
    pri_rank = record.rank1 == record.pri != 0
    at_expires = record.at is not None and record.at == record.expires
    attempts = record.attempts if record.errors is None else record.attempts | _WITH_ERRORS
    handed = None if record.taken is None else (attempts, record.lease, *_halves(record.taken))
    numbers: dict[int, tuple[float, ...] | None] = {
        1: None if pri_rank or not record.rank1 else (record.rank1,),
        2: (record.rank2,) if record.rank2 else None,
        4: (record.pri,) if record.pri else None,
        8: handed,
        16: None if record.expires is None else _halves(record.expires),
        32: None if record.at is None or at_expires else _halves(record.at),
        128: None if record.ttr is None else _halves(record.ttr),
        512: None if record.owner is None else _halves(record.owner),
    }
    texts = {1024: record.utube, 2048: record.reason, 4096: record.extra, 16384: record.address}
    flags, parts = 64 * at_expires | 8192 * pri_rank, list[bytes]()
    for flag, values in numbers.items():
        if values is not None:
            flags |= flag
            parts.append(struct.pack(">" + _PACKED[flag], *values))
    for flag, text in texts.items():
        if text is not None:
            flags |= flag
            parts.append(_packed_text(text, _TEXTS[flag]))
    if record.reply_to is not None or record.group_no is not None:
        flags |= _RELATED
        parts += [_packed_text(record.reply_to or "", 1), task_key(record.group_no or 0)]
        parts.append(_packed_text(record.group or "", 1))
    letter = record.state
    if letter == "t" and record.progress is not None:
        letter = "p"
        parts.append(struct.pack(">d", record.progress))
    return letter.encode() + flags.to_bytes(2, "big") + task_key(record.created) + b"".join(parts) + record.payload


def _halves(number: int) -> tuple[int, int]:
    return number >> 32, number & 0xFFFFFFFF


def _packed_text(text: str, width: int) -> bytes:
    packed = text.encode()
    return len(packed).to_bytes(width, "big") + packed


def _texts(value: bytes, flags: int, place: int) -> tuple[str | None, str | None, str | None, str | None, int]:
    found: list[str | None] = []
    for flag, width in _TEXTS.items():
        if not flags & flag:
            found.append(None)
            continue
        text, place = _text(value, place, width)
        found.append(text)
    utube, reason, extra, address = found
    return utube, reason, extra, address, place


def _text(value: bytes, place: int, width: int) -> tuple[str, int]:
    start = place + width
    end = start + _int(value[place:start], "big")
    return value[start:end].decode(errors="replace"), end  # one wrong byte in a label stops no tube


def read_group(no: int, stored: bytes) -> Group:
    """Decode a group, without its work: that can be as large as data, and only the scripts need it."""
    total, left, failed, over = (_int(stored[start : start + 6], "big") for start in (2, 8, 14, 20))
    return Group(
        no, stored[26:].decode(), GROUP_STATES[chr(stored[0])], total, left, until=over or None, failed=failed,
        on_failure=ON_FAILURE[chr(stored[1])],
    )  # fmt: skip


def read_outcome(id: int, stored: bytes) -> Kept:
    """Decode the outcome of the task of that id."""
    texts: list[str] = []
    place = 6
    for width in (1, 1, 2, 2):
        start = place + width
        place = start + _int(stored[place:start], "big")
        texts.append(stored[start:place].decode())
    status, address, error, code = texts
    errors = None
    if status.endswith("!"):
        status, start = status[:-1], place + 4
        place = start + _int(stored[place:start], "big")
        errors = stored[start:place]
    error_told = error if status == "failed" else error or None
    ending = Ending(status, stored[place:] or None, error_told, code or None, errors)
    return Kept(id, address, ending, _int(stored[:6], "big"))


def pack_outcome(kept: Kept) -> bytes:
    """The bytes of an outcome."""
    ending = kept.ending
    errors, status, result = ending.errors, ending.status, ending.result or b""
    if errors is not None:
        status, result = f"{status}!", len(errors).to_bytes(4, "big") + errors + result
    texts = ((status, 1), (kept.address, 1), (ending.error or "", 2), (ending.code or "", 2))
    return task_key(kept.until) + b"".join(_packed_text(*text) for text in texts) + result


def read_lane(stored: bytes) -> tuple[int, int, int, int]:
    """Decode a micro-queue: taken, heads, waiting and turn."""
    taken, heads, waiting, high, low = _LANE.unpack(stored)
    return taken, heads, waiting, high << 32 | low


def pack_lane(taken: int, heads: int, waiting: int, turn: int) -> bytes:
    """The bytes of a micro-queue."""
    return _LANE.pack(taken, heads, waiting, *_halves(turn))


def index_entries(tube: Tube, record: Record, *, second: bool) -> Iterator[tuple[str, bytes, float]]:
    """What a task must have in the indexes of its tube: index, member, score. `second`: a second rank orders it."""
    key, state = task_key(record.id), record.state
    one, two = sortable(record.rank1), sortable(record.rank2) if second else b""
    if state in "r!":
        yield "ready" if state == "r" else "buried", two + key, record.rank1
    elif state == "t":
        yield ("taken", key, record.owner or 0) if tube.kind.leased else ("delivered", key, record.rank1)
    if record.at is not None:
        yield "due", key, record.at
    if tube.kind.per_utube and state in "rq":
        letter = b"h" if state == "r" else b"w"
        yield "queue", _packed_text(record.utube or "", 1) + letter + one + (b"" if tube.fair else two) + key, 0
    if record.group_no is not None:
        yield "members", task_key(record.group_no) + b"m" + key, 0
        if state == UNSTARTED:
            yield "members", task_key(record.group_no) + b"u" + one + two + key, 0


def sortable(number: float) -> bytes:
    """Eight bytes that sort like the number, as lua/record.lua makes them."""
    packed = struct.pack(">d", number or 0.0)
    if packed[0] < 128:
        return bytes([packed[0] + 128]) + packed[1:]
    return bytes(255 - byte for byte in packed)


def task_key(id: int) -> bytes:
    """A task's field in the hash of tasks and its member in indexes: sorts like its id, in eight bytes of heap."""
    return id.to_bytes(6, "big")


def task_id(key: bytes) -> int:
    """The id in the last six bytes of a key."""
    return int.from_bytes(key[-6:], "big")
