"""How values look on pages. Everything is escaped by the templates; nothing here makes HTML."""

from __future__ import annotations

import time
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined

from penstock.core.backoff import Backoff

# Of one task's data; what is longer is cut, and the API gives all of it.
MAX_SHOWN = 64 * 1024
MAX_PREVIEW = 160
# Durations below the first number of seconds are shown in units of the second.
_UNITS = ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h"))
_SECONDS = frozenset({"ttl", "ttr", "period", "aging", "retention"})
_FOLDER = resources.files("penstock.server.dashboard")


@cache
def environment() -> Environment:
    """The templates, which escape whatever they are given."""
    made = Environment(autoescape=True, loader=FunctionLoader(_template), undefined=StrictUndefined, trim_blocks=True)
    made.filters.update(
        number=number,
        seconds=seconds,
        option=option,
        ago=ago,
        moment=moment,
        pretty=pretty,
        preview=preview,
        part=part,
        machine=machine,
        handler=handler,
        local=local_path,
    )
    return made


def _template(name: str) -> str:
    return (_FOLDER / "templates" / name).read_text()


@cache
def static_file(name: str) -> bytes | None:
    """A script or style sheet of the dashboard, by a name that is one of theirs."""
    known = {file.name for file in (_FOLDER / "static").iterdir()}
    return (_FOLDER / "static" / name).read_bytes() if name in known else None


def number(value: float) -> str:
    """1,234,567."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def part(name: object) -> str:
    """A name as one part of a path."""
    return quote(str(name), safe="")


def seconds(value: float) -> str:
    """A length of time, to two places that matter."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    size, unit = next(((size, unit) for most, size, unit in _UNITS if value < most), (86_400, "d"))
    many = value / size
    return f"{many:.0f} {unit}" if many >= 10 else f"{many:.2g} {unit}"


def option(value: object, name: str) -> str:
    """An option of a tube, with its unit."""
    if isinstance(value, Backoff):
        return ", ".join(f"{part} {number:g}" for part, number in msgspec.structs.asdict(value).items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return seconds(value) if name in _SECONDS and isinstance(value, (int, float)) else str(value)


def ago(moment: float | None) -> str:
    """How long ago, or how soon."""
    if moment is None:
        return "–"
    passed = time.time() - moment
    return f"{seconds(passed)} ago" if passed >= 0 else f"in {seconds(-passed)}"


def moment(value: float | None) -> str:
    """A moment in UTC."""
    if value is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))


def machine(value: float | None) -> str:
    """A moment for machines, in a `time` element."""
    return "" if value is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))


def pretty(data: Any) -> str:
    """A task's data for reading."""
    if isinstance(data, bytes):
        return _cut(_dump(data[:MAX_SHOWN]), len(data) > MAX_SHOWN)
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return _cut(text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def preview(data: Any) -> str:
    """A task's data in a line."""
    if isinstance(data, bytes):
        text = f"{len(data):,} bytes: {data[:MAX_PREVIEW].decode('utf-8', 'replace')}"
    else:
        text = msgspec.json.encode(data).decode()
    return text if len(text) <= MAX_PREVIEW else text[: MAX_PREVIEW - 1] + "…"


def handler(data: Any) -> tuple[str, Any] | None:
    """The name of the handler that a task is for, and its arguments; None if it is for none."""
    if isinstance(data, dict) and isinstance(data.get("task"), str) and "args" in data:
        return data["task"], data["args"]
    return None


def local_path(text: str) -> str:
    """A path of this server, whatever was asked for."""
    good = text.startswith("/") and not text.startswith("//") and text.isprintable() and "\\" not in text
    return text if good and len(text) < 2000 else "/"


def _cut(text: str, cut: bool) -> str:
    return f"{text}\n… cut here: the API gives all of it" if cut else text


def _dump(data: bytes) -> str:
    """Bytes as text where they are text, else as hexadecimal lines."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return text
    lines = (data[start : start + 16] for start in range(0, min(len(data), 4096), 16))
    return "\n".join(f"{n * 16:06x}  {line.hex(' '):<47}  {_readable(line)}" for n, line in enumerate(lines))


def _readable(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
