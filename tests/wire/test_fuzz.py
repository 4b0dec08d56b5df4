"""Any command with any arguments gets one reply, in order, and never an internal error."""

from __future__ import annotations

import asyncio

import hiredis
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.resp.dispatch import COMMANDS
from tests.wire.conversation import converse
from tests.wire.test_grammar import packed

# Commands that end the connection, or delay what follows.
NAMES = sorted(set(COMMANDS) - {b"QUIT", b"MULTI"})
WORDS = st.one_of(
    st.sampled_from([b"t", b"k", b"q", b"1", b"0", b"-1", b"2", b"1.5", b"1e999", b"nan", b"99999999999999999999"]),
    st.sampled_from([b"PRI", b"TTL", b"COUNT", b"PENDING", b"DELAY", b"fifo", b"fifottl", b"reliable", b"r", b"1-1"]),
    st.sampled_from([b"START", b"PROGRESS", b"WAIT", b"ON_END", b"TTR", b"ID", b"SETNAME", b"AUTH", b"3"]),
    st.binary(max_size=12),
)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(WORDS, max_size=6)), max_size=12)
SETUP = packed(
    [b"TUBE.CREATE", b"t", b"fifottl"], [b"TUBE.CREATE", b"q", b"round", b"PERIOD", b"1"], [b"MQ.PUSH", b"k", b"x"]
)


@settings(max_examples=150, deadline=None)
@given(CALLS)
def test_every_command_is_answered(calls: list[tuple[bytes, list[bytes]]]) -> None:
    sent = packed(*([name, *words] for name, words in calls))
    reader = hiredis.Reader()
    reader.feed(asyncio.run(converse([SETUP, sent])))
    replies = [reader.gets() for _ in range(len(calls) + 4)]
    assert replies[-1] is False
    assert not [reply for reply in replies[:-1] if reply is False]  # hiredis reports the end of its input so
    assert not [reply for reply in replies if isinstance(reply, hiredis.ReplyError) and "internal" in str(reply)]
