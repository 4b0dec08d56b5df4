"""Conversations word for word: sent whole, byte by byte, and split at every place; the replies are the same."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from tests.wire.conversation import converse

FOLDER = Path(__file__).parent / "transcripts"
PIECE = 75  # bytes: one to three requests
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
# How clients greet a server. Lettuce and StackExchange.Redis are written after what they are known to send; the others
# were recorded.
CLIENTS = sorted(f"clients/{path.stem}" for path in FOLDER.glob("clients/*.txt"))


def load(name: str) -> tuple[bytes, bytes]:
    """Requests and replies of a transcript. `> ` is a request, as words; `>> ` raw bytes; all else is replies."""
    sent, answered = bytearray(), bytearray()
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if line.startswith(">> "):
            sent += _raw(line[3:])
        elif line.startswith("> "):
            words = [_raw(word) for word in line[2:].split(" ")]
            sent += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        elif line and not line.startswith("#"):
            answered += _raw(line) + b"\r\n"
    return bytes(sent), bytes(answered)


def _raw(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode-escape").encode("latin-1")


@pytest.mark.parametrize("name", NAMES + CLIENTS)
def test_sent_whole(name: str) -> None:
    sent, answered = load(name)
    assert asyncio.run(converse([sent])).decode("latin-1") == answered.decode("latin-1")


@pytest.mark.parametrize("name", NAMES + CLIENTS)
def test_sent_byte_by_byte(name: str) -> None:
    sent, answered = load(name)
    assert asyncio.run(converse([bytes([byte]) for byte in sent])) == answered


@pytest.mark.parametrize("name", NAMES)
def test_cut_at_every_place(name: str) -> None:
    """Each test splits one of the conversations at one place."""
    sent, answered = load(name)

    async def cut_everywhere() -> None:
        for first in range(1, PIECE + 1):
            cuts = [0, *range(first, len(sent), PIECE), len(sent)]
            pieces = [sent[start:end] for start, end in pairwise(cuts)]
            assert await converse(pieces) == answered, first

    asyncio.run(cut_everywhere())
