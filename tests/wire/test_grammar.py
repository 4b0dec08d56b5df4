"""Parsing requests from bytes, whole and in pieces, and everything that must be refused."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.resp.grammar import (
    MAX_ARGUMENTS,
    MAX_INLINE,
    MAX_REQUEST,
    ForeignProtocol,
    ProtocolError,
    Request,
    Requests,
    split_line,
)


def packed(*requests: Request) -> bytes:
    """Encode requests as clients do."""
    return b"".join(
        b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words) for words in requests
    )


def read(*pieces: bytes) -> list[Request]:
    """Parse all requests, after each piece of bytes."""
    requests = Requests()
    found = []
    for piece in pieces:
        requests.feed(piece)
        while some := requests.read(100):
            found += some
    return found


def refusal(*pieces: bytes) -> str:
    with pytest.raises(ProtocolError) as error:
        read(*pieces)
    return str(error.value)


def test_a_request_is_an_array_of_bulk_strings() -> None:
    assert read(b"*3\r\n$7\r\nMQ.PUSH\r\n$1\r\nk\r\n$0\r\n\r\n") == [[b"MQ.PUSH", b"k", b""]]


def test_an_argument_may_hold_any_bytes() -> None:
    hostile = b"\r\n*1\r\n$8\r\nTUBE.BAD\r\n\0\xff"
    assert read(packed([b"ECHO", hostile])) == [[b"ECHO", hostile]]


def test_requests_are_pipelined_and_mixed_with_lines() -> None:
    assert read(packed([b"PING"], [b"ECHO", b"a"]) + b"PING\r\nECHO 'b c'\n" + packed([b"QUIT"])) == [
        [b"PING"], [b"ECHO", b"a"], [b"PING"], [b"ECHO", b"b c"], [b"QUIT"],
    ]  # fmt: skip


def test_empty_arrays_and_lines_ask_for_nothing() -> None:
    assert read(b"*0\r\n\r\n\n   \r\n*1\r\n$4\r\nPING\r\n") == [[b"PING"]]


def test_no_more_requests_are_read_than_requested() -> None:
    requests = Requests()
    requests.feed(b"PING\r\n" * 5)
    assert [len(requests.read(2)) for _ in range(4)] == [2, 2, 1, 0]
    assert not requests.partial


def test_a_request_that_has_begun_to_arrive_is_partial() -> None:
    requests = Requests()
    assert not requests.partial
    for piece in (b"*1\r\n", b"$4\r\n", b"PI"):
        requests.feed(piece)
        assert requests.read(1) == []
        assert requests.partial
    requests.feed(b"NG\r\n")
    assert requests.read(1) == [[b"PING"]]
    assert not requests.partial


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"a b", [b"a", b"b"]),
        (b"  a \t b  ", [b"a", b"b"]),
        (b"'a b' \"c d\"", [b"a b", b"c d"]),
        (rb'"\x00\xfF\n\r\t\b\a\"\\\q"', [b'\x00\xff\n\r\t\b\a"\\q']),
        (rb"'it\'s \n'", [rb"it's \n"]),
        (b"'' \"\"", [b"", b""]),
        ("grüße".encode(), ["grüße".encode()]),
    ],
)
def test_a_line_is_split_as_redis_does(line: bytes, words: Request) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize("line", [b"'a", b'"a', b"'a'b", b'"a"b', b"a'b", b'"\\"', b"'"])
def test_quotes_must_be_balanced(line: bytes) -> None:
    assert refusal(line + b"\r\n") == "Protocol error: unbalanced quotes in request"


LONG = b"1" * 10_000


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"*2147483647\r\n", "invalid multibulk length"),
        (b"*%d\r\n" % (MAX_ARGUMENTS + 1), "invalid multibulk length"),
        (b"*-5\r\n", "invalid multibulk length"),
        (b"*-1\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1_0\r\n", "invalid multibulk length"),
        (b"* 1\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*1\n", "invalid multibulk length"),
        (b"*a\r\n", "invalid multibulk length"),
        (b"*" + LONG, "too big multibulk count string"),
        (b"*1\r\n$" + LONG, "too big bulk count string"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$a\r\n", "invalid bulk length"),
        (b"*1\r\n$4 \r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$2147483647\r\n", f"invalid bulk length: a request may have {MAX_REQUEST} bytes"),
        (b"*1\r\n$9999999999\r\n", f"invalid bulk length: a request may have {MAX_REQUEST} bytes"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\r\n", "expected '$', got '\\r'"),
        (b"*1\r\n$4\r\nPINGxx", "expected CRLF after the bytes of an argument"),
        (b"*1\r\n$4\r\nPING\n\n", "expected CRLF after the bytes of an argument"),
        (b"*1\r\n$4\r\nPINGPING\r\n", "expected CRLF after the bytes of an argument"),
        (b"a" * (MAX_INLINE + 1), "too big inline request"),
        (b"a" * (MAX_INLINE + 1) + b"\r\n", "too big inline request"),
        (b"\x16\x03\x01\x02\n", "unexpected byte in an inline request"),
    ],
)
def test_a_malformed_request_is_refused(sent: bytes, why: str) -> None:
    assert refusal(sent) == f"Protocol error: {why}"
    first = MAX_INLINE - 100 if len(sent) > MAX_INLINE else 0  # the rest, where the limit is, byte by byte
    assert refusal(sent[:first], *(bytes([byte]) for byte in sent[first:])) == f"Protocol error: {why}"


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1", b"POST /x HTTP/1.0", b"put /x", b"HEAD\t/", b"OPTIONS *", b"DELETE /", b"Host: x", b"host:x"],
)
def test_http_is_another_protocol(line: bytes) -> None:
    with pytest.raises(ForeignProtocol):
        read(line + b"\r\n" + packed([b"TUBE.PUT", b"t", b"smuggled"]))


def test_what_came_before_the_error_is_read_and_nothing_after_it() -> None:
    requests = Requests()
    requests.feed(b"PING\r\n*-5\r\nPING\r\n")
    assert requests.read(10) == [[b"PING"]]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            requests.read(10)


def test_a_request_counts_all_its_arguments() -> None:
    requests = Requests()
    requests.limit = 1000
    requests.feed(packed([b"x" * 400] * 3))
    with pytest.raises(ProtocolError, match="a request may have 1000 bytes"):
        requests.read(1)


def test_nothing_is_allocated_by_a_declared_size() -> None:
    requests = Requests()
    tracemalloc.start()
    try:
        requests.feed(b"*%d\r\n$%d\r\nabc" % (MAX_ARGUMENTS, MAX_REQUEST - 1000))
        assert requests.read(1) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


WORDS = st.lists(st.binary(max_size=30), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), st.data())
def test_requests_in_pieces_are_parsed_like_whole_ones(requests: list[Request], data: st.DataObject) -> None:
    sent = packed(*requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert read(*pieces) == requests


PARTS = st.sampled_from([b"*1\r\n", b"$4\r\n", b"PING\r\n", b"\r\n", b"*-1"])


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=20), PARTS)))
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    def outcome(*fed: bytes) -> tuple[list[Request], str]:
        requests, found = Requests(), []
        for piece in fed:
            requests.feed(piece)
            try:
                while some := requests.read(3):
                    found += some
            except ProtocolError as error:
                return found, str(error)
        return found, ""

    sent = b"".join(pieces)
    found, error = outcome(*pieces)
    assert sum(len(word) for words in found for word in words) <= len(sent)
    assert outcome(sent) == (found, error)
    assert outcome(*(bytes([byte]) for byte in sent)) == (found, error)


def read_by(count: int, data: bytes) -> tuple[list[Request], str]:
    """Parse that many requests at a time. Returns them and the error behind them. Single ones go word by word."""
    requests, found = Requests(), []
    requests.feed(data)
    try:
        while some := requests.read(count):
            found += some
    except ProtocolError as error:
        return found, str(error)
    return found, ""


# Words with line ends, words that look like headers, or long ones: none may be misread when many are parsed.
TRICKY = st.one_of(
    st.sampled_from(
        [b"", b"\r", b"\n", b"\r\n", b"a\r\nb", b"$1\r\nx", b"*1\r\n$4\r\nPING\r\n", b"$0", b"\r\n$3", b"y" * 3000]
    ),
    st.binary(max_size=5),
)
PIECES = st.lists(
    st.one_of(
        st.lists(TRICKY, min_size=1, max_size=4).map(lambda words: packed(words)),
        st.sampled_from([b"PING\r\n", b"*0\r\n", b"*1\r\n$04\r\nPING\r\n", b"*40\r\n", b"$4\r\n", b"\r\n"]),
        st.just(b"*2\r\n$1\r\na"),
    ),
    max_size=6,
)  # fmt: skip


@settings(deadline=None)
@given(PIECES)
def test_reading_many_at_once_is_like_reading_word_by_word(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert read_by(500, data) == read_by(1, data)


def test_more_than_a_window_of_requests_is_read_in_order() -> None:
    sent = [[b"ECHO", b"%d" % number * 50] for number in range(3000)]
    assert read_by(500, packed(*sent)) == (sent, "")
