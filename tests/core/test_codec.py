"""Encoding and decoding of any JSON value and any bytes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.codec import decode, decode_as, encode
from penstock.errors import BadValue

# Every text that UTF-8 can encode, so no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ATOMS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**60), 10**60) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
JSON = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


def typed(value: object) -> object:
    """The value with the type of each part, since 1 == 1.0 == True."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


@given(JSON)
def test_any_json_value_is_read_back_type_for_type(value: object) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(st.binary())
def test_any_bytes_come_back(value: bytes) -> None:
    assert decode(encode(value)) == value
    assert decode_as(encode(value), bytes) == value


@given(JSON, st.binary())
def test_no_json_value_is_stored_like_bytes(value: object, raw: bytes) -> None:
    assert encode(value) != encode(raw)


@given(JSON)
def test_the_value_itself_is_not_changed(value: object) -> None:
    before = repr(value)
    encode(value)
    assert repr(value) == before


@given(st.binary(min_size=1).filter(lambda stored: stored[:1] != b"\0"))
def test_damaged_bytes_are_decoded_or_refused(stored: bytes) -> None:
    try:
        value = decode(stored)
    except BadValue as refused:
        assert "decoded" in str(refused)  # noqa: PT017
    else:
        assert type(value) in (dict, list, str, int, float, bool, type(None))


@pytest.mark.parametrize("stored", [b"", b"{", b'{"a":', b"\xff", b"nul", b"[1,]", b"1 2", b'"\xff"', b"[" * 100_000])
def test_damaged_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(BadValue, match="decoded"):
        decode(stored)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_how_deep_data_may_be_does_not_depend_on_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(20_000)
        with pytest.raises(BadValue, match="deep"):
            encode(nested(5_000))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("digits", [19, 20, 40, 1_000, 4_299])
@pytest.mark.parametrize("sign", [1, -1])
def test_long_integers_come_back(digits: int, sign: int) -> None:
    value = sign * (10**digits - 1)
    assert typed(decode(encode([value, {"n": value}]))) == typed([value, {"n": value}])


@pytest.mark.parametrize(
    "value", [10**4_300, -(10**4_300), [10**4_300], 10**99_999], ids=["4,301", "negative", "in a list", "100,000"]
)
def test_longer_integers_are_refused(value: object) -> None:
    with pytest.raises(BadValue, match="data"):
        encode(value)


@pytest.mark.parametrize(
    ("value", "kind", "decoded"),
    [
        ({"a": 1}, dict[str, int], {"a": 1}),
        ([1, 2], tuple[int, ...], (1, 2)),
        (1, float, 1.0),
        (b"x", bytes, b"x"),
        ("x", str, "x"),
    ],
)
def test_decode_as_an_annotated_type(value: object, kind: type, decoded: object) -> None:
    assert decode_as(encode(value), kind) == decoded


@pytest.mark.parametrize(
    ("value", "kind"), [("x", int), ({"a": "b"}, dict[str, int]), (b"x", str), ("x", bytes), (None, int)]
)
def test_decode_as_another_type_is_refused(value: object, kind: type) -> None:
    with pytest.raises(BadValue):
        decode_as(encode(value), kind)
