"""Bad input is refused before anything is stored, with the same error on every store (FAULTS section 3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cache
from typing import Any, cast

import pytest

import penstock
from tests.support.inspection import calls, everything, refused, tasks
from tests.support.verbs import FREE_VERBS, LEASED_VERBS, drain, take

NAN, INF = float("nan"), float("inf")

BAD_NAMES: list[Any] = [
    "", "x" * 201, "é" * 101, "x" * 10_240, "../x", "a/b", "a b", " a", "a ", "a\r\nb", "a\n", "a\0b", "{x}", "'a'",
    '"a"', "'; DROP TABLE", "\u202eabc", "a\u200bb", "a\u200f", "\ufeffa", "\ud800", ".a", "-a", ":a", "a*", "a,b",
    "a%b", "😀", None, 5, 1.5, True, b"mail", ["mail"],
]  # fmt: skip


def test_a_bad_tube_name_is_refused(broker: penstock.Broker) -> None:
    refused(BAD_NAMES, broker.tube, "tube")
    refused(BAD_NAMES, lambda name: broker.create_tube(name, "fifo"), "tube")
    assert broker.tubes() == []


def test_a_bad_name_to_take_from_is_refused(broker: penstock.Broker) -> None:
    broker.tube("good").put("x")
    refused(BAD_NAMES, lambda name: broker.take(["good", name], timeout=0))
    assert tasks(broker.tube("good")) == {"ready": 1, "total": 1}


def test_a_good_tube_name_is_kept(broker: penstock.Broker) -> None:
    names = ["a", "A", "0", "_x", "a-b_c.d:e", "ä", "почта", "x" * 200, "é" * 100]
    for name in names:
        broker.tube(name).put(name)
    assert sorted(info.name for info in broker.tubes()) == sorted(names)
    for name in names:
        assert drain(broker.tube(name)) == [name]


def test_case_matters_in_tube_names(broker: penstock.Broker) -> None:
    broker.tube("mail").put("x")
    assert tasks(broker.tube("Mail")) == {}
    assert [info.name for info in broker.tubes()] == ["Mail", "mail"]


BAD_LABELS: list[Any] = [
    "", " ", "\t", "x" * 201, "é" * 101, "a\0b", "a\nb", "a\r", "\u202ea", "a\u200b", "\ud800", True, 1.5, b"u", ["u"],
    10**300,
]  # fmt: skip


def test_a_bad_micro_queue_label_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    refused(BAD_LABELS, lambda label: tube.put("x", utube=label), "utube")
    assert_nothing_stored(tube)


SECONDS_ABOVE_0: list[Any] = [0, -1, -0.001, NAN, INF, -INF, 1e308, 10**400, True, "1", b"1", [1]]
SECONDS: list[Any] = [value for value in SECONDS_ABOVE_0 if value != 0]
WHOLE_ABOVE_0: list[Any] = [0, -1, 1.0, 1.5, NAN, INF, 10**400, 2**31, True, "1"]
PRIORITIES: list[Any] = [value for value in WHOLE_ABOVE_0 if value != 0]
BAD_AT_PUT = {
    "pri": PRIORITIES,
    "ttl": SECONDS_ABOVE_0,
    "ttr": SECONDS_ABOVE_0,
    "delay": SECONDS,
    "max_attempts": WHOLE_ABOVE_0,
}
BAD_OF_TUBES: dict[str, list[Any]] = {
    **{option: values for option, values in BAD_AT_PUT.items() if option != "delay"},
    **dict.fromkeys(("capacity", "utube_limit", "max_payload"), WHOLE_ABOVE_0),
    **dict.fromkeys(("aging", "retention"), SECONDS_ABOVE_0),
    "fair": [1, 0, "yes", NAN],
    "temporary": [1, 0, "yes", NAN],
    "backoff": [1, 1.5, "fast", True],
}


@pytest.mark.parametrize("option", BAD_AT_PUT)
def test_a_bad_number_at_put_is_refused(broker: penstock.Broker, option: str) -> None:
    tube, put = broker.tube("t"), cast(Any, broker.tube("t").put)
    refused(BAD_AT_PUT[option], lambda value: put("x", **{option: value}), option)
    refused(BAD_AT_PUT[option], lambda value: tube.put_many(["x", ("y", {option: value})]), option)
    assert_nothing_stored(tube)


@pytest.mark.parametrize(("option", "value"), [("pri", -1), ("ttl", -2.5), ("delay", NAN), ("ttr", "soon")])
def test_the_error_names_the_option_and_the_value(broker: penstock.Broker, option: str, value: object) -> None:
    with pytest.raises(penstock.BadValue) as refused:
        broker.tube("t").put("x", **{option: value})  # type: ignore[arg-type]
    assert option in str(refused.value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value"), [("pri", 2**31 - 1), ("ttl", 0.001), ("ttr", 3_000_000_000), ("delay", 0)]
)
def test_the_extreme_numbers_are_accepted(broker: penstock.Broker, option: str, value: float) -> None:
    tube = broker.tube("t")
    tube.put("x", **{option: value})  # type: ignore[arg-type]
    assert drain(tube) == ["x"]


def test_a_bad_tube_option_is_refused(broker: penstock.Broker) -> None:
    create = cast(Any, broker.create_tube)
    for option, bad in BAD_OF_TUBES.items():
        refused([{option: value} for value in bad], lambda options: create("t", "utubettl", **options), option)
    assert broker.tubes() == []


def test_a_bad_timeout_is_refused(broker: penstock.Broker) -> None:
    tube, bad = broker.tube("t"), [-1, -0.001, NAN, True, "1", [1]]
    refused(bad, tube.take, "timeout")
    refused(bad, lambda timeout: tube.take_many(1, timeout), "timeout")
    refused(bad, lambda timeout: broker.take(["t"], timeout=timeout), "timeout")
    refused(bad, lambda timeout: tube.put("x", timeout=timeout), "timeout")
    assert_nothing_stored(tube)


def test_a_bad_count_or_max_pri_to_take_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    refused([-1, True, 1.0, "1", None, NAN], tube.take_many, "count")
    refused([-1, True, 1.0, "1", 2**31, NAN], lambda max_pri: tube.take(0, max_pri=max_pri), "max_pri")
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_bad_delay_at_release_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    refused(SECONDS, lambda delay: task.release(delay=delay), "delay")
    task.ack()


class Text(str):
    """A str that would be read back as a plain str."""


class Number(int):
    """An int that would be read back as a plain int."""


class Colour(Enum):
    RED = 1


class Size(IntEnum):
    LARGE = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Holder:
    item: object


def _nested(wrap: Callable[[object], object], depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


BAD_DATA: dict[str, Callable[[], object]] = {
    "object": object,
    "class": lambda: Holder,
    "function": lambda: len,
    "set": lambda: {1},
    "frozenset": lambda: frozenset({1}),
    "tuple": lambda: (1, 2, 3),
    "range": lambda: range(3),
    "complex": lambda: 1j,
    "Decimal": lambda: Decimal("1.5"),
    "datetime": lambda: datetime.now(UTC),
    "Enum": lambda: Colour.RED,
    "IntEnum": lambda: Size.LARGE,
    "StrEnum": lambda: Word.YES,
    "str subclass": lambda: Text("x"),
    "int subclass": lambda: Number(1),
    "dict subclass": lambda: OrderedDict(a=1),
    "bytearray": lambda: bytearray(b"x"),
    "memoryview": lambda: memoryview(b"x"),
    "bytes in a list": lambda: [b"x"],
    "tuple in a list": lambda: [(1,)],
    "set in a dict": lambda: {"a": {1}},
    "int key": lambda: {1: "x"},
    "None key": lambda: {None: "x"},
    "bool key": lambda: {True: "x"},
    "tuple key": lambda: {(1, 2): "x"},
    "str subclass as key": lambda: {Text("x"): 1},
    "nan": lambda: NAN,
    "inf": lambda: INF,
    "minus inf": lambda: -INF,
    "nan in a list": lambda: [1.5, [NAN]],
    "nan in a dict": lambda: {"a": {"b": NAN}},
    "lone surrogate": lambda: "a\ud800",
    "lone surrogate in a list": lambda: ["\udfff"],
    "lone surrogate as key": lambda: {"\ud800": 1},
    "list of depth 100,000": cache(lambda: _nested(lambda value: [value], 100_000)),
    "dict of depth 100,000": cache(lambda: _nested(lambda value: {"a": value}, 100_000)),
    "int of 100,000 digits": lambda: 10**99_999,
    "negative int of 100,000 digits": lambda: -(10**99_999),
    "int of 100,000 digits in a list": lambda: [10**99_999],
    "dataclass with an object": lambda: Holder(object()),
    "dataclass with nan": lambda: Holder(NAN),
}


def test_data_that_would_not_decode_to_an_equal_value_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(BAD_DATA.values(), lambda make: tube.put(make()), "data")
    refused(BAD_DATA.values(), lambda make: tube.put_many(["good", make()]))
    assert_nothing_stored(tube)


def test_a_value_that_contains_itself_is_refused(broker: penstock.Broker) -> None:
    tube, data = broker.tube("t"), list[object]()
    data.append(data)
    with pytest.raises(penstock.BadValue, match="data"):
        tube.put(data)
    assert_nothing_stored(tube)


BAD_IDS: list[Any] = ["1", "1-1xyz", "", 1.0, True, None, b"1", [1], 2**53, -(2**53), 10**400]
VERBS = {**LEASED_VERBS, **FREE_VERBS, "peek": lambda tube, id: tube.peek(id), "why": lambda tube, id: tube.why(id)}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_an_id_of_the_wrong_type_or_size_is_refused(
    broker: penstock.Broker, verb: Callable[[penstock.Tube, Any], object]
) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    take(tube)
    before = everything(tube)
    refused(BAD_IDS, lambda id: verb(tube, id), "id")
    assert everything(tube) == before


@pytest.mark.parametrize("error", [penstock.BadValue, penstock.NoSuchTube, penstock.NotFound])
def test_errors_are_also_the_builtin_ones(error: type[penstock.PenstockError]) -> None:
    assert issubclass(error, ValueError if error is penstock.BadValue else LookupError)


BAD_CALLBACKS: list[Any] = [
    "", "x", "ftp://a/b", "file:///etc/passwd", "http://", "http://u:p@a/", "http://a b/", "http://a/\n", 5, True,
    "http://a:99999/", "http://a:0/", "http://a:x/", "http://a\\b/",
]  # fmt: skip


def test_a_bad_callback_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(BAD_CALLBACKS, lambda callback: tube.put("x", callback=callback), "callback")
    refused(BAD_CALLBACKS, lambda callback: broker.create_tube("u", "fifo", callback=callback), "callback")
    assert_nothing_stored(tube)


def assert_nothing_stored(tube: penstock.Tube) -> None:
    """Assert that nothing was stored or counted, no id was used, and the next put works."""
    assert (tasks(tube), calls(tube)) == ({}, {})
    assert tube.put("next").id == 1
    assert take(tube).data == "next"
