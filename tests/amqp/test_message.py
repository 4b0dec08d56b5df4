"""Conversion of RabbitMQ messages to tasks and of tasks to messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.amqp.message import Message, make_message, read_data, read_options


@pytest.mark.parametrize(
    ("content_type", "encoding", "body", "data"),
    [
        ("application/json", None, b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("application/json; charset=utf-8", "UTF-8", b'"\xc3\xa9"', "é"),
        ("application/vnd.shop+json", None, b"7", 7),
        ("text/plain", None, b"caf\xc3\xa9", "café"),
        ("application/octet-stream", None, b"\0\xff", b"\0\xff"),
        (None, None, b"{}", b"{}"),
        ("application/json", "gzip", b"\x1f\x8b", b"\x1f\x8b"),
        ("application/json", None, b"{broken", b"{broken"),
        ("application/json", None, b"[" * 100_000, b"[" * 100_000),
        ("text/plain", None, b"\xff", b"\xff"),
    ],
)
def test_a_body_is_what_its_content_type_says_otherwise_bytes(
    content_type: str | None, encoding: str | None, body: bytes, data: object
) -> None:
    assert read_data(Message(body, content_type=content_type, content_encoding=encoding)) == data


def options(broker: penstock.Broker, message: Message, kind: str = "fifottl", **given: Any) -> dict[str, object]:
    name = f"{kind}-{len(broker.tubes())}"
    return dict(read_options(message, broker.tube(name, kind=kind, **given).stored))


@pytest.fixture
def broker() -> Iterator[penstock.Broker]:
    with penstock.connect("memory://") as broker:
        yield broker


FULL = Message(
    b"", message_id="order-1", priority=5, expiration="1500", reply_to="answers", headers={"x-delay": 250}
)  # fmt: skip


def test_properties_become_the_options_that_the_kind_has(broker: penstock.Broker) -> None:
    named = {"address": "order-1", "on_duplicate": "ignore", "reply_to": "answers"}
    assert options(broker, FULL, pri=255) == {**named, "pri": 250, "ttl": 1.5, "delay": 0.25}
    assert options(broker, FULL, "fifo") == named
    assert options(broker, Message(b""), pri=255) == {}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(b"", priority=3), {"pri": 0}),  # the tube has pri 0, so nothing can be more urgent
        (Message(b"", priority=0), {}),
        (Message(b"", expiration="0"), {"ttl": 0.001}),
        (Message(b"", expiration="soon"), {}),
        (Message(b"", headers={"x-delay": -5000}), {}),  # the delay is over
        (Message(b"", headers={"x-delay": "5000"}), {"delay": 5.0}),
        (Message(b"", headers={"x-delay": None, "other": 1}), {}),
        (Message(b"", message_id=""), {}),
        (Message(b"", reply_to="no tube/name"), {}),
    ],
)
def test_unusual_properties_become_valid_options(
    broker: penstock.Broker, message: Message, expected: dict[str, object]
) -> None:
    assert options(broker, message) == expected


@pytest.mark.parametrize("message_id", ["x" * 255, "line\nbreak", " "])
def test_an_id_that_is_not_a_valid_address_is_hashed(broker: penstock.Broker, message_id: str) -> None:
    first = options(broker, Message(b"", message_id=message_id))
    assert str(first["address"]).startswith("sha256:")
    assert options(broker, Message(b"", message_id=message_id)) == first
    broker.tube("t").put(1, address=str(first["address"]))


def test_a_task_becomes_a_message(broker: penstock.Broker) -> None:
    tube = broker.tube("mail", pri=10)
    tube.put({"to": "ada"}, pri=7, ttl=60, address="letter-1")
    tube.put(b"\0")
    tube.put("later", pri=12)
    first, second, third = [make_message(task, 10) for task in tube.take_many(3)]
    assert (first.body, first.content_type) == (b'{"to":"ada"}', "application/json")
    assert (first.message_id, first.priority) == ("letter-1", 3)
    assert 0 < int(str(first.expiration)) <= 60_000
    assert (second.body, second.content_type, second.expiration) == (b"\0", "application/octet-stream", None)
    assert (second.priority, third.priority) == (None, None)
    assert str(second.message_id).startswith("mail-2-")


def test_the_id_of_a_task_without_an_address_is_the_same_at_every_attempt(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    tube.put(1)
    ids = set()
    for _ in range(2):
        [task] = tube.take_many(1)
        ids.add(make_message(task, 0).message_id)
        task.release()
    assert len(ids) == 1


@pytest.mark.parametrize("data", [{"a": [1, None, 2.5]}, "text", b"\0bytes", 7, None])
def test_what_is_encoded_is_decoded_equal(broker: penstock.Broker, data: object) -> None:
    tube = broker.tube("t")
    tube.put(data)
    [task] = tube.take_many(1)
    assert read_data(make_message(task, 0)) == data
