"""Tasks, groups, outcomes and micro-queues as the scripts store them: see lua/record.lua, groups.lua, addresses.lua.

A task is a state letter, a byte of flags and 48 bits of `created`, then the parts that the flags name, in this order,
then the payload. The numbers that takes and acks read are at fixed offsets before the texts. A new fifo task costs
eight bytes plus its payload.

flag  part
1     hand-out: attempts (32 bits), taken (48), lease (64), owner (48), `at` of a taken task (48); 0 for none
2     expires and ttr, 48 bits each, 0 for none
4     `at`, 48 bits, if the task is not taken and `at` differs from expires
8     rank1 and rank2, doubles, and pri, 32 bits
16    utube, one byte of length before it
32    address, the same; of a message, a zero byte replaces its time and the hyphen
64    number of the group, 48 bits, its name and reply_to, one byte of length each; 0 and empty for none
128   progress, a double (infinite: none), reason and extra, two bytes of length each

The highest bit of the attempts is set if the task has errors of attempts, which are stored in another hash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import inf

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import DELIVER
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Entry, Record
from penstock.core.transfer import StoredOutcome
from penstock.errors import StoreCorrupt

GROUP_STATES = {"o": rules.OPEN, "s": rules.STARTED, "x": rules.CANCELLING, "d": rules.DONE, "c": rules.CANCELLED}
ON_FAILURE = {"h": rules.HOLD, "n": rules.CONTINUE, "x": rules.CANCEL}
GROUP_LETTERS = {state: letter for letter, state in GROUP_STATES.items()}
MAX_ID = 2**48 - 1
_MICRO_QUEUE = struct.Struct(">IIIHI")
# A number of 48 bits is packed as two numbers.
_HANDED, _TIMED, _AT, _PLACED = "IHIQHIHI", "HIHI", "HI", "ddI"
# By the four lowest flags: the struct of a task's numbers.
_NUMBERS = [
    struct.Struct(">" + "".join(code for bit, code in enumerate((_HANDED, _TIMED, _AT, _PLACED)) if flags >> bit & 1))
    for flags in range(16)
]
_NUMBERS_AT = 8
_STATES = {ord(letter): letter for letter in "rqt~g!-"}
# The highest bit of the attempts says that the task has errors, which are stored elsewhere; they are decoded as b"".
_ATTEMPTS, _WITH_ERRORS = 2**31 - 1, 2**31
_int = int.from_bytes
_double = struct.Struct(">d").unpack_from


def decode(id: int, value: bytes) -> Record:
    """Decode the task of that id."""
    try:
        return _decode(id, value)
    except (IndexError, KeyError, struct.error) as error:
        what = f"task {id} is stored in a form that penstock did not write"
        raise StoreCorrupt(f"{what}: broker.check(repair=True) buries it") from error


def _decode(id: int, value: bytes) -> Record:
    state, flags = _STATES[value[0]], value[1]
    layout = _NUMBERS[flags & 15]
    numbers, place, end = layout.unpack_from(value, _NUMBERS_AT), 0, _NUMBERS_AT + layout.size
    attempts = lease = owner = deadline = expires = ttr = rank1 = rank2 = pri = 0
    utube = reason = extra = address = reply_to = group = group_no = progress = taken = at = errors = None
    if flags & 1:
        attempts, t1, t2, lease, o1, o2, a1, a2 = numbers[:8]
        taken, owner, deadline, place = t1 << 32 | t2, o1 << 32 | o2, a1 << 32 | a2, 8
        if attempts > _ATTEMPTS:
            attempts, errors = attempts & _ATTEMPTS, b""
    if flags & 2:
        e1, e2, r1, r2 = numbers[place : place + 4]
        expires, ttr, place = e1 << 32 | e2, r1 << 32 | r2, place + 4
    if state == "t":
        at = deadline or None
    elif flags & 4:
        at, place = numbers[place] << 32 | numbers[place + 1], place + 2
    else:
        at = expires or None
    if flags & 8:
        rank1, rank2, pri = numbers[-3:]
    if flags & 240:
        if flags & 16:
            utube, end = _text(value, end, 1)
        if flags & 32:
            address, end = _text(value, end, 1)
            if address[:1] == "\0":
                address = f"{_int(value[2:8], 'big')}-{address[1:]}"
        if flags & 64:
            group_no = _int(value[end : end + 6], "big") or None
            group, end = _text(value, end + 6, 1)
            reply_to, end = _text(value, end, 1)
        if flags & 128:
            progress = _double(value, end)[0]
            reason, end = _text(value, end + 8, 2)
            extra, end = _text(value, end, 2)
            progress = None if progress == inf else progress
    if end > len(value):
        raise IndexError("it is too short")
    return Record(
        id, state, rank1, rank2, pri, utube, attempts, lease, _int(value[2:8], "big"), taken, expires or None, at,
        ttr or None, owner or None, reason or None, extra or None, value[end:], address, reply_to or None,
        group or None, group_no, progress, errors,
    )  # fmt: skip


def payload_place(value: bytes) -> int:
    """Where the payload of a stored task begins. Raises StoreCorrupt for bytes that penstock did not write."""
    if len(value) > 1 and value[1] < len(_NUMBERS) and value[0] in _STATES:
        return _NUMBERS_AT + _NUMBERS[value[1]].size
    return len(value) - len(decode(0, value).payload)


def unreadable(id: int, value: bytes, now: int, *, leased: bool = True) -> Record:
    """The record for bytes that penstock did not write, which are its data, after a byte that no data begins with."""
    state, reason = ("!", "its stored record could not be read") if leased else ("r", None)
    return Record(id, state, 0, 0, 0, None, 0, 0, now, None, None, None, None, None, reason, None, b"\xff" + value)


def encode(record: Record) -> bytes:
    """The bytes of a task, as lua/record.lua makes them."""
    flags, numbers = 0, list[float]()
    if record.taken is not None:
        attempts = record.attempts if record.errors is None else record.attempts | _WITH_ERRORS
        deadline = (record.at or 0) if record.state == "t" else 0
        flags, owner = 1, record.owner or 0
        numbers += [attempts, *_halves(record.taken), record.lease, *_halves(owner), *_halves(deadline)]
    if record.expires is not None or record.ttr is not None:
        flags |= 2
        numbers += [*_halves(record.expires or 0), *_halves(record.ttr or 0)]
    if record.at is not None and record.at != record.expires and record.state != "t":
        flags |= 4
        numbers += _halves(record.at)
    if record.rank1 or record.rank2 or record.pri:
        flags |= 8
        numbers += [record.rank1, record.rank2, record.pri]
    lead, address = f"{record.created}-", record.address
    if address is not None and address.startswith(lead):
        record = replace(record, address="\0" + address[len(lead) :])
    more, texts = pack_texts(record, record.reason, record.progress if record.state == "t" else None)
    head = record.state.encode() + bytes([flags | more]) + task_key(record.created)
    return head + _NUMBERS[flags].pack(*numbers) + texts + record.payload


def pack_texts(task: Entry | Record, reason: str | None = None, progress: float | None = None) -> tuple[int, bytes]:
    """The flags of a task's texts, and the bytes of these texts, which precede the payload."""
    flags, texts = 0, b""
    if task.utube is not None:
        flags, texts = 16, _packed_text(task.utube, 1)
    if task.address is not None:
        flags |= 32
        texts += _packed_text(task.address, 1)
    if task.reply_to is not None or task.group is not None:
        flags |= 64
        texts += _packed_relations(task.group_no or 0, task.group or "", task.reply_to or "")
    if reason or task.extra or progress is not None:
        flags |= 128
        packed = struct.pack(">d", inf if progress is None else progress)
        texts += packed + _packed_text(reason or "", 2) + _packed_text(task.extra or "", 2)
    return flags, texts


@lru_cache(100)  # the tasks of a put have the same; it took a tenth of a put of 1,000 into a group
def _packed_relations(group_no: int, group: str, reply_to: str) -> bytes:
    return task_key(group_no) + _packed_text(group, 1) + _packed_text(reply_to, 1)


def new_pieces(record: Record) -> tuple[bytes, bytes]:
    """The bytes of a new ready task before `created`, and from those after its `expires`, if any, to its payload."""
    stored = encode(record)
    return stored[:2], stored[14 if record.expires else 8 :]


def _halves(number: int) -> tuple[int, int]:
    return number >> 32, number & 0xFFFFFFFF


def _packed_text(text: str, width: int) -> bytes:
    packed = text.encode()
    return len(packed).to_bytes(width, "big") + packed


def _text(value: bytes, place: int, width: int) -> tuple[str, int]:
    start = place + width
    end = start + _int(value[place:start], "big")
    return value[start:end].decode(errors="replace"), end  # one bad byte in a label must not block the tube


def read_group(no: int, stored: bytes) -> Group:
    """Decode a group, without its end work and cancel work: they may be large, and only scripts need them."""
    total, left, failed, over = (_int(stored[start : start + 6], "big") for start in (2, 8, 14, 20))
    return Group(
        no, stored[26:].decode(), GROUP_STATES[chr(stored[0])], total, left, until=over or None, failed=failed,
        on_failure=ON_FAILURE[chr(stored[1])],
    )  # fmt: skip


def read_groups(fields: Mapping[bytes, bytes]) -> dict[int, Group]:
    """All groups of a stored tube by number, with their work."""
    found = {
        no: read_group(no, stored) for name, stored in fields.items() if name[:1] == b"g" and (no := task_id(name))
    }
    for no, group in found.items():
        group.end, group.cancel = (fields.get(letter + task_key(no)) for letter in (b"e", b"c"))
    return found


def read_outcome(id: int, stored: bytes) -> StoredOutcome:
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
    shown_error = error if status == "failed" else error or None
    ending = Ending(status, stored[place:] or None, shown_error, code or None, errors)
    return StoredOutcome(id, address, ending, _int(stored[:6], "big"))


def pack_outcome(kept: StoredOutcome) -> bytes:
    """The bytes of an outcome."""
    ending = kept.ending
    errors, status, result = ending.errors, ending.status, ending.result or b""
    if errors is not None:
        status, result = f"{status}!", len(errors).to_bytes(4, "big") + errors + result
    texts = ((status, 1), (kept.address, 1), (ending.error or "", 2), (ending.code or "", 2))
    return task_key(kept.until) + b"".join(_packed_text(*text) for text in texts) + result


def micro_queue_name(utube: str) -> bytes:
    """The name of a micro-queue in the hash of micro-queues and, before a place, in the queue."""
    return _packed_text(utube, 1)


def read_micro_queue(stored: bytes) -> tuple[int, int, int, int]:
    """Decode a micro-queue: taken, heads, waiting and turn."""
    taken, heads, waiting, high, low = _MICRO_QUEUE.unpack(stored)
    return taken, heads, waiting, high << 32 | low


def pack_micro_queue(taken: int, heads: int, waiting: int, turn: int) -> bytes:
    """The bytes of a micro-queue."""
    return _MICRO_QUEUE.pack(taken, heads, waiting, *_halves(turn))


def index_entries(tube: Tube, record: Record, *, second: bool) -> Iterator[tuple[str, bytes, float]]:
    """The index entries that a task must have: index, member, score. `second`: a second rank orders the tube."""
    key, state = task_key(record.id), record.state
    one, two = sortable(record.rank1), sortable(record.rank2) if second else b""
    if state == "!" or (state == "r" and tube.kind.hand_out != DELIVER):
        yield "ready" if state == "r" else "buried", two + key, record.rank1
    elif state == "t":
        yield ("taken", key, record.owner or 0) if tube.kind.leased else ("delivered", key, record.rank1)
    if record.at is not None:
        yield "due", key, record.at
    if tube.kind.per_utube and state in "rq":
        yield "queue", micro_queue_name(record.utube or "") + one + (b"" if tube.fair else two) + key, 0
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
    """A task's field in the hash of tasks and its member in indexes; sorts like its id, in eight bytes of heap."""
    return id.to_bytes(6, "big")


def task_id(key: bytes) -> int:
    """The id of a task, from the last six bytes of its key."""
    return int.from_bytes(key[-6:], "big")
