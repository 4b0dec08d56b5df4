"""Formats values for pages, as plain text: the templates escape it."""

from __future__ import annotations

import time
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined

from penstock.core.backoff import Backoff

# The number of characters of a task's data that a page shows; the API returns all of it.
MAX_SHOWN = 64 * 1024
MAX_PREVIEW = 160
# (limit, seconds per unit, unit): durations below the limit are shown in this unit.
_UNITS = ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h"))
_SECONDS = frozenset({"ttl", "ttr", "period", "aging", "retention"})
_FOLDER = resources.files("penstock.server.dashboard")


@cache
def environment() -> Environment:
    """The Jinja environment with the templates and autoescape."""
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
    """The content of a static file of the dashboard; None if there is none of that name."""
    known = {file.name for file in (_FOLDER / "static").iterdir()}
    return (_FOLDER / "static" / name).read_bytes() if name in known else None


def number(value: float) -> str:
    """A number such as 1,234,567 or 2.5; only small numbers have a fraction."""
    return f"{value:,.1f}" if value < 10 and value % 1 else f"{value:,.0f}"


def part(name: object) -> str:
    """A name quoted as one segment of a path."""
    return quote(str(name), safe="")


def seconds(value: float) -> str:
    """A duration with two significant digits."""
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
    """A time relative to now: `3 min ago`, `in 5 s`."""
    if moment is None:
        return "–"
    passed = time.time() - moment
    return f"{seconds(passed)} ago" if passed >= 0 else f"in {seconds(-passed)}"


def moment(value: float | None) -> str:
    """A time in UTC."""
    if value is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))


def machine(value: float | None) -> str:
    """A time for the attribute `datetime` of a `time` element."""
    return "" if value is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))


def pretty(data: Any) -> str:
    """A task's data as indented JSON."""
    if isinstance(data, bytes):
        return _cut(_dump(data[:MAX_SHOWN]), len(data) > MAX_SHOWN)
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return _cut(text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def preview(data: Any) -> str:
    """A task's data in one line, cut if it is long."""
    if isinstance(data, bytes):
        text = f"{len(data):,} bytes: {data[:MAX_PREVIEW].decode('utf-8', 'replace')}"
    else:
        text = msgspec.json.encode(data).decode()
    return text if len(text) <= MAX_PREVIEW else text[: MAX_PREVIEW - 1] + "…"


def handler(data: Any) -> tuple[str, Any] | None:
    """The handler's name and the arguments in a task's data; None if the data is not for a handler."""
    if isinstance(data, dict) and isinstance(data.get("task"), str) and "args" in data:
        return data["task"], data["args"]
    return None


def local_path(text: str) -> str:
    """The given path if it is a local one, otherwise /: prevents open redirects."""
    good = text.startswith("/") and not text.startswith("//") and text.isprintable() and "\\" not in text
    return text if good and len(text) < 2000 else "/"


def _cut(text: str, cut: bool) -> str:
    return f"{text}\n… cut here: the API returns all of it" if cut else text


def _dump(data: bytes) -> str:
    """Bytes as text if they are UTF-8, otherwise as a hexadecimal dump."""
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
