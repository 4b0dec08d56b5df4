"""Encoding of replies in both versions of the protocol."""

from __future__ import annotations

import pytest

from penstock.server.resp.replies import OK, RESP2, RESP3, Fault, Reply, Word, encode


@pytest.mark.parametrize(
    ("reply", "resp2", "resp3"),
    [
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (Word("PONG"), b"+PONG\r\n", b"+PONG\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (b"a\r\nb\0", b"$5\r\na\r\nb\0\r\n", b"$5\r\na\r\nb\0\r\n"),
        ("ü", b"$2\r\n\xc3\xbc\r\n", b"$2\r\n\xc3\xbc\r\n"),
        (7, b":7\r\n", b":7\r\n"),
        (-(2**53), b":-9007199254740992\r\n", b":-9007199254740992\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (None, b"$-1\r\n", b"_\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([1, [b"a", None]], b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n", b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n"),
        ({"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (Fault("ERR", "no\r\n+OK\nreally"), b"-ERR no +OK really\r\n", b"-ERR no +OK really\r\n"),
    ],
)
def test_a_reply_in_both_versions(reply: Reply, resp2: bytes, resp3: bytes) -> None:
    assert encode([reply], RESP2) == resp2
    assert encode([reply], RESP3) == resp3


def test_replies_follow_each_other() -> None:
    assert encode([OK, 1, None], RESP2) == b"+OK\r\n:1\r\n$-1\r\n"
