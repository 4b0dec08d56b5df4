"""The options of tubes and puts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.backoff import Backoff
from penstock.core.entry import make_entry
from penstock.core.kind import Kind, find_kind
from penstock.core.options import (
    EXTRA_CHECKS,
    PutOptions,
    callback_url,
    check_tube_options,
    checked_extra,
    decode_given,
    encode_given,
    make_tube,
)
from penstock.core.task import Extra, Record
from penstock.errors import BadValue, PayloadTooLarge, UnsupportedOption


def test_given_options_are_kept_in_the_callers_units() -> None:
    assert check_tube_options(find_kind("fifottl"), {"ttl": 1.5, "ttr": 2, "capacity": None}) == {"ttl": 1.5, "ttr": 2}


def test_a_tube_computes_in_milliseconds() -> None:
    tube = make_tube(1, "t", find_kind("fifottl"), {"ttl": 1.5, "aging": 2})
    assert (tube.ttl, tube.ttr, tube.aging) == (1_500, None, 2_000)


@pytest.mark.parametrize(
    "given", [{}, {"ttl": 1.5, "capacity": 3}, {"backoff": Backoff(2, 3, 4, 0)}, {"temporary": True}], ids=str
)
def test_stored_options_come_back(given: dict[str, object]) -> None:
    assert decode_given(encode_given(given)) == given


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Kind("own", order=("-id",), per_utube=True), {"fair": True}),
        (Kind("own", order=("id", "rank"), per_utube=True), {"fair": True}),
        (Kind("own", frozenset({"pri"}), ("id",)), {"aging": 5}),
        (Kind("own", frozenset({"pri"}), ("rank", "pri")), {"aging": 5}),
    ],
)
def test_an_option_that_the_order_leaves_no_place_for_is_refused(kind: Kind, options: dict[str, object]) -> None:
    with pytest.raises(UnsupportedOption, match=next(iter(options))):
        check_tube_options(kind, options)


def test_an_unknown_put_option_is_refused() -> None:
    options: Any = {"colour": "red"}
    with pytest.raises(BadValue, match="colour"):
        make_entry(make_tube(1, "t", find_kind("fifottl"), {}), "x", options)


@pytest.mark.parametrize("on_duplicate", ["error", "ignore", "replace"])
def test_on_duplicate_is_one_of_three_words(on_duplicate: str) -> None:
    tube = make_tube(1, "t", find_kind("fifo"), {})
    assert make_entry(tube, "x", {"on_duplicate": on_duplicate}).payload == b'"x"'
    with pytest.raises(BadValue, match="on_duplicate"):
        make_entry(tube, "x", {"on_duplicate": on_duplicate.upper()})


@pytest.mark.parametrize(("data", "size"), [("x" * 8, 10), (b"x" * 10, 10), ([1, 2, 3], 7), (None, 4)])
def test_the_size_of_data_is_what_the_caller_gave(data: object, size: int) -> None:
    assert make_entry(make_tube(1, "t", find_kind("fifo"), {"max_payload": size}), data, {}).payload
    with pytest.raises(PayloadTooLarge, match=f" {size - 1} "):
        make_entry(make_tube(1, "t", find_kind("fifo"), {"max_payload": size - 1}), data, {})


def test_the_error_of_a_callback_has_no_password() -> None:
    with pytest.raises(BadValue, match=r"callback '\*\*\*@example\.org/' is not a callback") as raised:
        callback_url("callback", "https://ada:secret@example.org/")
    assert "secret" not in str(raised.value)


def test_options_that_no_database_reads_are_one_text() -> None:
    assert set(EXTRA_CHECKS) == set(Extra.__struct_fields__) <= PutOptions.__annotations__.keys()
    tube = make_tube(1, "t", find_kind("fifottl"), {"max_attempts": 3})
    assert make_entry(tube, "x", {}).extra == make_entry(tube, "x", {"pri": 1}).extra == '{"max_attempts":3}'
    assert make_entry(tube, "x", {"max_attempts": 5}).extra == '{"max_attempts":5}'
    assert checked_extra({"pri": 1, "callback": None}) is None


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", '{"max_attempts":"x"}'])
def test_a_text_that_penstock_did_not_write_is_ignored(text: str | None) -> None:
    record = Record(1, "r", 0, 0, 0, None, 0, 0, 0, None, None, None, None, None, None, text, b"1")
    assert record.options == Extra()
