"""Collections, flags and types that verbs cannot use are refused on every store; None means not given."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

import penstock
from tests.support.inspection import everything, refused, tasks
from tests.support.verbs import take

NO_COLLECTIONS: list[Any] = [None, 0, 5, 1.5, True, object(), penstock.Task]
COLLECTING: dict[str, Callable[[penstock.Broker, Any], object]] = {
    "put_many": lambda broker, given: broker.tube("mail").put_many(given),
    "put_many of a group": lambda broker, given: broker.tube("mail").group("g").put_many(given),
    "ack_many": lambda broker, given: broker.tube("mail").ack_many(given),
    "broker.take": lambda broker, given: broker.take(given, timeout=0),
    "session.take": lambda broker, given: broker.session().take(given, timeout=0),
}


@pytest.mark.parametrize("verb", COLLECTING.values(), ids=COLLECTING)
def test_what_is_not_a_collection_is_refused(
    broker: penstock.Broker, verb: Callable[[penstock.Broker, Any], object]
) -> None:
    tube = broker.tube("mail")
    tube.put("x")
    before = everything(tube)
    for given in NO_COLLECTIONS:
        with pytest.raises(penstock.BadValue, match="give a list"):
            verb(broker, given)
    assert everything(tube) == before


def test_any_other_collection_is_accepted(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    for given in (["x"], ("x",), {"x"}, (text for text in "x"), iter(["x"]), {"x": 1}.keys(), range(1)):
        tube.put_many(given)
    assert broker.take((name for name in ["mail"]), timeout=0) is not None
    assert tube.ack_many(iter([1, 2])) == [True, False]
    assert tasks(tube) == {"ready": 6, "done": 1, "total": 6}


def test_put_many_refuses_a_single_item(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    given: Any
    for given in ("xyz", b"xyz", bytearray(b"x"), memoryview(b"x"), {"x": 1}, "", {}, UserDict(x=1)):
        for put_many in (tube.put_many, tube.group("g").put_many):
            with pytest.raises(penstock.BadValue, match=r"^items .* which is one item: give a list, such as \[item\]$"):
                put_many(given)
    assert tasks(tube) == {}


def test_repair_must_be_a_bool(broker: penstock.Broker) -> None:
    bad: list[Any] = [1, 0, "no", "", 1.5, [], "\ud800", "x" * 5000]
    for repair in bad:
        with pytest.raises(penstock.BadValue, match=r"^repair .{1,80}: give True or False$"):
            broker.check(repair)


def test_decode_needs_a_type(broker: penstock.Broker) -> None:
    task = broker.tube("mail").put({"a": 1})
    refused([5, "Mail", [], object(), penstock.connect], task.decode, "decode")


def test_none_means_not_given(broker: penstock.Broker) -> None:
    anything: Any = None
    tube = broker.create_tube("mail", anything, ttl=anything, fair=anything)
    tube.put_many(["x", "y"], pri=anything, delay=anything, on_duplicate=anything)
    tube.bury(1, anything)
    assert (tube.kind, tube.kick(anything), len(tube.tasks(anything, limit=anything, after=anything))) == (
        "fifottl",
        1,
        2,
    )
    with broker.session(ttr=anything, id=anything) as session:
        session.tube("mail").release(take(session.tube("mail")), anything)
    queue = broker.tube("q", kind="reliable")
    queue.put("z")
    assert [task.data for task in queue.inspect(0, 1, anything)] == ["z"]
    assert broker.check(anything) == []


def test_a_session_is_joined_by_the_text_of_its_id_or_by_the_uuid_itself(broker: penstock.Broker) -> None:
    with broker.session() as session:
        id: Any = UUID(session.id)
        assert str(id) == session.id
        with broker.session(id=id) as joined:
            assert joined.id == session.id


class Text(str):
    """A subclass of str, as programs have them."""


class Word(str, Enum):  # noqa: UP042
    """An enum whose str() is the member's name, not its text."""

    MAIL = "mail"
    REPLACE = "replace"


@pytest.mark.parametrize(
    ("mail", "replace"), [(Word.MAIL, Word.REPLACE), (Text("mail"), Text("replace"))], ids=["enum", "class"]
)
def test_a_subclass_of_str_is_stored_as_text(broker: penstock.Broker, mail: str, replace: str) -> None:
    tube = broker.tube(mail, kind="utube")
    tube.put("x", address=mail, utube=mail, reply_to=mail)
    tube.put("y", address=mail, utube=mail, on_duplicate=replace, callback=Text("http://mail/"))
    tube.put("z", address="other", utube=mail, group=mail, callback=Text("http://mail/"))
    assert [(task.data, task.address, task.utube, task.group) for task in broker.tube("mail").tasks()] == [
        ("y", "mail", "mail", None),
        ("z", "other", "mail", "mail"),
    ]
    task = broker.take([mail], timeout=0)
    assert task is not None
    task.ack("done")
    assert tube.wait(mail).result == "done"
    broker.tube("round", kind="round", period=1).put("x", id=mail)
    assert broker.tube("round").peek("mail").data == "x"
    broker.tube("called", callback=Text("http://mail/"))
    assert [info.name for info in broker.tubes()] == ["called", "mail", "round"]
