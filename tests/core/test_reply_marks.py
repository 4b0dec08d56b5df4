"""What a task's `reply_to` may hold besides the name of a tube."""

from __future__ import annotations

import pytest

from penstock.core.chain import checked_reply, reply_tube
from penstock.core.ending import KEEP_EXPIRY
from penstock.core.entry import make_entry
from penstock.core.kind import find_kind
from penstock.core.options import Tube
from penstock.errors import BadValue

TUBE = Tube(1, "t", find_kind("fifottl"), {})


def test_marks_name_no_tube_and_survive_a_transfer() -> None:
    for mark, tube in (("<", None), (">", None), (">replies", "replies"), ("replies", "replies"), (None, None)):
        assert (checked_reply("reply_to", mark), reply_tube(mark)) == (mark, tube)
    for bad in ("<replies", "><", ">>replies"):
        with pytest.raises(BadValue):
            checked_reply("reply_to", bad)


def test_a_caller_cannot_give_a_mark() -> None:
    for given in ("<", ">", ">replies"):
        with pytest.raises(BadValue):
            make_entry(TUBE, None, {"reply_to": given})
    entry = make_entry(TUBE, None, {"reply_to": KEEP_EXPIRY})
    assert (entry.reply_to, type(entry.reply_to)) == ("<", str)
