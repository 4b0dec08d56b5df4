"""The file format of a tube: JSON lines, written and read one at a time.

The first line describes the tube, the last one has its counters and the number of lines; in between, there is one line
per group, task or outcome. A group comes before its tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec
from msgspec import Struct

from penstock.core import names
from penstock.core.backoff import Backoff
from penstock.core.group import Group
from penstock.core.ids import Mark, read_mark, shown_mark
from penstock.core.kind import DELIVER, Kind, must_be_known
from penstock.core.options import check_new_tube
from penstock.core.portable import (
    MAX_MARK,
    MAX_TASK_ID,
    GroupLine,
    OutcomeLine,
    TaskLine,
    ending_parts,
    error_lines,
    group_line,
    read_ending,
    read_group,
    read_task,
    task_line,
)
from penstock.core.results import Counts
from penstock.core.task import Record
from penstock.core.transfer import StoredOutcome, TubeCounters
from penstock.core.values import whole
from penstock.errors import BadValue

VERSION = 1
# A line is one task, and no store accepts a gibibyte of data.
_LONGEST_LINE = 2**31
# The last line has some twenty numbers.
_LONGEST_END = 4096


class Header(Struct, kw_only=True, forbid_unknown_fields=True):
    """The first line: name, kind and options of the tube."""

    penstock: str
    version: int
    name: str
    kind: Kind
    options: dict[str, object]
    paused: bool = False


class End(Struct, kw_only=True, forbid_unknown_fields=True):
    """The last line: the tube's counters, and the number of lines before it."""

    last_id: int
    mark: Mark
    counts: Counts
    lines: int

    @property
    def counters(self) -> TubeCounters:
        """The counters as stores have them."""
        return TubeCounters(self.last_id, self.mark, self.counts)


class _Line(Struct, forbid_unknown_fields=True, omit_defaults=True):
    tube: Header | None = None
    group: GroupLine | None = None
    task: TaskLine | None = None
    outcome: OutcomeLine | None = None
    end: End | None = None


Item = Group | Record | StoredOutcome | End
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Line).decode


def tasks_in(file: BinaryIO) -> int | None:
    """The number of tasks according to the last line, for a progress bar; None for a pipe or an incomplete file."""
    if not file.seekable():
        return None
    start, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(max(start, end - _LONGEST_END))
    last = file.read().splitlines()[-1:]
    file.seek(start)
    try:
        found = _decode(last[0]).end if last else None
    except (msgspec.MsgspecError, ValueError):
        return None  # reading the whole file reports what is wrong
    return None if found is None else found.counts.stored


class Writer:
    """Writes the lines of one tube."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines = 0

    def begin(self, name: str, kind: Kind, options: dict[str, object], *, paused: bool) -> None:
        """Write the first line."""
        self._write(
            _Line(Header(penstock="tube", version=VERSION, name=name, kind=kind, options=options, paused=paused))
        )

    def groups(self, groups: Iterable[Group]) -> None:
        """Write one line per group."""
        for group in groups:
            self._write(_Line(group=group_line(group)))

    def tasks(self, records: Iterable[Record]) -> None:
        """Write one line per task."""
        for record in records:
            self._write(_Line(task=task_line(record)))

    def outcomes(self, outcomes: Iterable[StoredOutcome]) -> None:
        """Write one line per outcome."""
        for kept in outcomes:
            result, error, code = ending_parts(kept.ending)
            line = OutcomeLine(
                id=kept.id, address=kept.address, status=kept.ending.status, until=kept.until, result=result,
                error=error, code=code, errors=error_lines(kept.ending.errors),
            )  # fmt: skip
            self._write(_Line(outcome=line))

    def end(self, counters: TubeCounters) -> None:
        """Write the last line."""
        self._write(
            _Line(end=End(last_id=counters.last_id, mark=counters.mark, counts=counters.counts, lines=self._lines))
        )
        self._file.flush()

    def _write(self, line: _Line) -> None:
        self._file.write(_encode(line) + b"\n")
        self._lines += 1


class Reader:
    """Reads the lines of one tube. Raises BadValue with the number of an invalid line."""

    def __init__(self, file: BinaryIO, called: str) -> None:
        self._file = file
        self._called = called
        self._number = 0
        self._groups: dict[int, str] = {}
        self._last_id = 0
        self._mark: Mark = (0, 0)
        self._addresses: set[int] = set()  # hashes of the addresses: eight bytes are enough for a million
        self.header = self._header()
        # Shards may have had equal addresses; the importer resolves these.
        self._own_addresses = "shards" in self.header.options and self.header.kind.per_utube

    def items(self) -> Iterator[Item]:
        """The items of the tube, in the order of the lines; the last is the End."""
        while (line := self._next()) is not None:
            item = self._checked(line)
            ended = isinstance(item, End)
            if ended and self._next() is not None:
                raise self._bad("there is a line after the end line: remove it")
            yield item
            if ended:
                return
        raise self._bad("the file ends here, without its last line: it was cut off; export the tube again")

    def _header(self) -> Header:
        line = self._next()
        header = None if line is None else line.tube
        if header is None or header.penstock != "tube":
            raise self._bad("this is not the first line of a file that penstock export wrote")
        if header.version != VERSION:
            raise self._bad(f"it has version {header.version}, this penstock reads {VERSION}: upgrade penstock")
        try:
            names.name("tube", header.name)
            must_be_known(header.kind)
            if "backoff" in header.options:
                header.options["backoff"] = msgspec.convert(header.options["backoff"], Backoff)
            header.options = check_new_tube(header.kind, header.options)
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._bad(str(error)) from None
        return header

    def _next(self) -> _Line | None:
        text = self._file.readline(_LONGEST_LINE)
        self._number += 1
        if not text:
            return None
        try:
            line = _decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            cut = "" if text.endswith(b"\n") else ", and the file ends in it: it was cut off"
            raise self._bad(f"{error}{cut}") from None
        if sum(part is not None for part in (line.tube, line.group, line.task, line.outcome, line.end)) != 1:
            raise self._bad("a line must have exactly one of tube, group, task, outcome and end")
        return line

    def _checked(self, line: _Line) -> Item:
        try:
            return self._item(line)
        except BadValue as error:
            raise self._bad(str(error)) from None

    def _item(self, line: _Line) -> Item:
        if line.group is not None:
            group = read_group(line.group)
            if group.no in self._groups or group.name in self._groups.values():
                raise BadValue(f"group {group.name} appears twice")
            self._groups[group.no] = group.name
            return group
        if line.task is not None:
            if line.task.id <= self._last_id:
                raise BadValue(f"task {line.task.id} comes after task {self._last_id}: ids must grow")
            self._last_id = line.task.id
            record = read_task(line.task, self.header.kind, self._groups)
            self._note_address(record.address)
            return record
        if line.outcome is not None:
            address = names.label("address", line.outcome.address)
            return StoredOutcome(line.outcome.id, address, read_ending(line.outcome), line.outcome.until)
        if line.end is None:
            raise BadValue("only the first line may describe the tube")
        if line.end.lines != self._number - 1:
            raise BadValue(
                f"the last line counts {line.end.lines} lines before it, but the file has {self._number - 1}: "
                "export the tube again"
            )
        self._check_end(line.end)
        return line.end

    def _note_address(self, address: str | None) -> None:
        """Check that an address belongs to one task, and that message ids grow."""
        if address is None:
            return
        if self.header.kind.hand_out == DELIVER:
            mark = read_mark(address) or (0, 0)
            if mark <= self._mark:
                raise BadValue(f"message {address} comes after {shown_mark(self._mark)}: ids must grow")
            self._mark = mark
        elif self._own_addresses:
            return
        elif hash(address) in self._addresses:
            raise BadValue(f"{address} appears twice: only one task can have it")
        else:
            self._addresses.add(hash(address))

    def _check_end(self, end: End) -> None:
        whole("last_id", end.last_id, self._last_id, MAX_TASK_ID)
        for number in end.mark:
            whole("mark", number, 0, MAX_MARK)
        if end.mark < self._mark:
            raise BadValue(f"the last message id is {shown_mark(end.mark)}, below that of the last message")
        for name, number in msgspec.structs.asdict(end.counts).items():
            whole(name, number, 0, MAX_MARK)

    def _bad(self, why: str) -> BadValue:
        return BadValue(f"{self._called}, line {self._number}: {why}")
