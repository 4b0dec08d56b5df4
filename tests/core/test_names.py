"""Which names, labels, ids and texts are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import names
from penstock.errors import BadValue


@pytest.mark.parametrize("name", ["a", "Z", "7", "_", "a-b_c.d:e", "ä", "почта", "x" * 200, "é" * 100])
def test_a_good_name_is_itself(name: str) -> None:
    assert names.name("tube", name) == name


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", ":a", "a b", "a/b", "a\n", "a\0", "{a}", "a\u200b", "\u202ea", "x" * 201, "\ud800"]
)
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="tube"):
        names.name("tube", name)


def test_a_name_is_a_plain_str_afterwards() -> None:
    class Fancy(str):
        """A str that a careless driver would store as something else."""

    assert type(names.name("tube", Fancy("mail"))) is str


@given(st.text(max_size=300))
def test_a_name_that_is_accepted_is_safe_everywhere(text: str) -> None:
    try:
        name = names.name("tube", text)
    except BadValue:
        return
    assert name == text
    assert 0 < len(name.encode()) <= 200
    assert not set(name) & set(" \t\r\n\0'\"`{}[]()/\\;,*?%$#@!<>|&=+~^")
    assert name.isprintable()


@pytest.mark.parametrize("label", ["a b", "{x}", "'; DROP", "x" * 200, "😀", " a", "\u00a0a", "-"])
def test_a_label_is_any_visible_text(label: str) -> None:
    assert names.label("address", label) == label


@pytest.mark.parametrize(
    "label", ["", " ", "\u00a0", "a\0", "a\n", "a\u200b", "a\u2028", "\ud800", "x" * 201, None, 5, b"a"]
)
def test_a_bad_label_is_refused(label: object) -> None:
    with pytest.raises(BadValue, match="address"):
        names.label("address", label)


@pytest.mark.parametrize(("given", "utube"), [(1, "1"), ("1", "1"), (-7, "-7"), (0, "0"), ("a b", "a b")])
def test_a_micro_queue_label_is_a_text_or_a_number(given: object, utube: str) -> None:
    assert names.utube(given) == utube


@pytest.mark.parametrize("given", [True, 1.0, None, b"1", 10**400, -(10**400)])
def test_a_micro_queue_of_another_type_is_refused(given: object) -> None:
    with pytest.raises(BadValue, match="utube"):
        names.utube(given)


@pytest.mark.parametrize("id", [1, 0, -1, 2**53 - 1])
def test_a_task_id_is_an_int(id: int) -> None:
    assert names.task_id(id) == id


@pytest.mark.parametrize("id", ["1", "1-1xyz", 1.0, True, None, b"1", 2**53, -(2**53), 10**400])
def test_another_task_id_is_refused(id: object) -> None:
    with pytest.raises(BadValue, match="id"):
        names.task_id(id)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, None), ("", ""), ("odd", "odd"), ("a\0b", "a\ufffdb"), ("a\ud800b", "a?b"), ("x" * 10_000, "x" * 10_000)],
)
def test_a_text_for_people_is_made_storable(given: str | None, kept: str | None) -> None:
    assert names.text("reason", given) == kept


def test_a_long_text_is_cut() -> None:
    kept = names.text("reason", "x" * 1_000_000)
    assert kept == "x" * 9_999 + "…"


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError("odd"), "ValueError: odd"), (ValueError(), "ValueError"), (Mute(), "Mute")]
)
def test_a_failure_is_reported_by_type_and_text_if_any(error: Exception, expected: str) -> None:
    assert names.failure(error) == expected


@pytest.mark.parametrize("given", [5, b"odd", ["odd"], ValueError("odd")])
def test_a_text_of_another_type_is_refused(given: object) -> None:
    with pytest.raises(BadValue, match="reason"):
        names.text("reason", given)


@pytest.mark.parametrize(
    "value", ["x" * 10_000, 10**4_000, b"x" * 10_000, "\ud800\n\0"], ids=["str", "int", "bytes", "odd"]
)
def test_a_shown_value_is_short_and_one_line(value: object) -> None:
    shown = names.shown(value)
    assert len(shown) <= 60
    assert shown.isascii()
    assert shown.isprintable()


def test_each_queue_key_has_its_own_tube() -> None:
    keys = [
        "mail",
        "a.b",
        "ü",
        "orders/eu",
        "app{1}:q",
        "a b",
        "../x",
        "mq-key:orders.2feu",
        "mq-key:",
        "orders.2feu",
        ".",
    ]
    tubes = [names.queue_name(key) for key in keys]
    assert tubes[:3] == keys[:3]
    assert tubes[3:5] == ["mq-key:orders.2feu", "mq-key:app.7b1.7d:q"]
    assert len(set(tubes)) == len(keys)
    for tube in tubes:
        assert names.name("tube", tube) == tube
    for wrong in ("", " ", "a\nb", "a\0", "\u202e", "/" * 80, "a" * 201, "\ud800", None, 5):
        with pytest.raises(BadValue, match="key"):
            names.queue_name(wrong)
