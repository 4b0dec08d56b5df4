"""data: what is put is read back equal, with the same types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pydantic
import pytest

import penstock
from tests.support.inspection import tasks
from tests.support.verbs import drain, take

VALUES: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one as int": 1,
    "one as float": 1.0,
    "negative": -17,
    "beyond a double": 2**53 + 1,
    "the largest int64": 2**63 - 1,
    "the largest uint64": 2**64 - 1,
    "beyond uint64": 2**64,
    "below int64": -(2**63) - 1,
    "an int of 4,299 digits": 10**4_299 - 1,
    "a fraction": 0.1,
    "the largest float": 1.7976931348623157e308,
    "the smallest float": 5e-324,
    "a large whole float": 1e22,
    "empty text": "",
    "text": "Grüße 😀 \u2028 \u202e",
    "NUL in text": "a\0b",
    "quotes": "\"'\\; DROP TABLE",
    "numeric text": "1",
    "empty bytes": b"",
    "bytes": b"\0\xff\x80{}",
    "bytes that look like JSON": b'{"a": 1}',
    "bytes that begin with NUL": b"\0\0",
    "empty list": [],
    "empty dict": {},
    "empty key": {"": 1},
    "odd keys": {"a.b": 1, "$x": 2, "\0": 3, "ключ": 4},
    "nested": {"a": [1, 1.0, None, {"b": [[], {}, "x", True]}], "c": -0.5},
    "large ints inside": [2**64, {"n": -(10**40)}],
}


def typed(value: object) -> object:
    """The value with the type of each part, since 1 == 1.0 == True."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


def test_a_value_is_read_back_equal_type_for_type(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    for name, value in VALUES.items():
        task = tube.put(value)
        assert typed(task.data) == typed(value), name
        assert typed(tube.peek(task.id).data) == typed(value), name
        assert typed(take(tube).data) == typed(value), name


def test_what_is_put_is_not_changed_by_changing_it_later(broker: penstock.Broker) -> None:
    tube, data = broker.tube("t"), {"to": ["ada"]}
    tube.put(data)
    data["to"].append("bob")
    assert take(tube).data == {"to": ["ada"]}


def test_two_reads_of_a_task_do_not_share_its_data(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put([1])
    first = tube.peek(1).data
    assert isinstance(first, list)
    first.append(2)
    assert tube.peek(1).data == [1]


def test_deeply_nested_data_is_read_back(broker: penstock.Broker) -> None:
    value: object = "core"
    for _ in range(100):
        value = [value]
    tube = broker.tube("t")
    tube.put(value)
    assert take(tube).data == value


@dataclass
class Mail:
    to: str
    tags: list[str]
    sent: datetime | None = None


class Letter(msgspec.Struct):
    to: str
    stamps: tuple[int, ...] = ()


class Parcel(pydantic.BaseModel):
    to: str
    weight: float


OBJECTS = [
    (Mail("ada", ["a"]), {"to": "ada", "tags": ["a"], "sent": None}),
    (Letter("ada", (1, 2)), {"to": "ada", "stamps": [1, 2]}),
    (Parcel(to="ada", weight=1.5), {"to": "ada", "weight": 1.5}),
]


@pytest.mark.parametrize(("value", "plain"), OBJECTS, ids=["dataclass", "msgspec", "pydantic"])
def test_an_object_is_read_as_a_dict_or_decoded(broker: penstock.Broker, value: object, plain: object) -> None:
    tube = broker.tube("t")
    tube.put(value)
    task = take(tube)
    assert task.data == plain
    assert task.decode(type(value)) == value


@pytest.mark.parametrize(("value", "plain"), OBJECTS, ids=["dataclass", "msgspec", "pydantic"])
def test_objects_inside_a_value_come_back_as_dicts(broker: penstock.Broker, value: object, plain: object) -> None:
    tube = broker.tube("t")
    tube.put({"all": [value, value]})
    assert take(tube).data == {"all": [plain, plain]}


def test_decode_restores_the_types_that_json_lacks(broker: penstock.Broker) -> None:
    tube, mail = broker.tube("t"), Mail("ada", [], datetime(2024, 5, 1, 12, tzinfo=UTC))
    tube.put(mail)
    assert take(tube).decode(Mail) == mail


def test_decode_as_a_builtin_type(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put({"a": 1})
    assert take(tube).decode(dict[str, int]) == {"a": 1}


def test_decode_of_data_that_does_not_fit_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    for data in ({"too": "ada"}, "x", b"x"):
        tube.put(data)
        task = take(tube)
        for kind in (Mail, Letter, Parcel, int, *([bytes] if data == "x" else [])):
            with pytest.raises(penstock.BadValue, match=kind.__name__):
                task.decode(kind)


def test_a_record_that_cannot_be_decoded_is_buried_and_blocks_nobody(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = broker.tube("t")
    with monkeypatch.context() as damage:
        damage.setattr("penstock.core.codec.encode", lambda data: b'{"cut')
        tube.put("damaged")
    tube.put("good")
    assert drain(tube) == ["good"]
    assert tasks(tube) == {"buried": 1, "done": 1, "total": 1}
    assert "decode" in (tube.peek(1).reason or "")
    tube.delete(1)
