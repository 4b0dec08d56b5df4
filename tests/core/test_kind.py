"""Kinds as data: what a declaration may say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core import kind as known
from penstock.core.kind import CLOCK, DELIVER, Kind, find_kind
from penstock.errors import BadValue


@pytest.mark.parametrize(
    ("name", "accepts", "order", "per_utube"),
    [
        ("fifo", set(), ("id",), False),
        ("fifottl", {"pri", "ttl", "ttr", "delay"}, ("pri", "id"), False),
        ("utube", {"utube"}, ("id",), True),
        ("utubettl", {"utube", "pri", "ttl", "ttr", "delay"}, ("pri", "id"), True),
        ("round", {"id", "ttl"}, ("id",), False),
        ("reliable", set(), ("id",), False),
    ],
)
def test_the_built_in_kinds(name: str, accepts: set[str], order: tuple[str, ...], per_utube: bool) -> None:
    kind = find_kind(name)
    assert (kind.accepts, kind.order, kind.per_utube) == (frozenset(accepts), order, per_utube)


BAD: list[Any] = [
    {"order": ()}, {"order": ("id", "pri", "rank")}, {"order": ("size",)}, {"order": "id"}, {"order": ("-pri",)},
    {"order": None}, {"accepts": {"colour"}}, {"accepts": "ttl"}, {"accepts": None}, {"accepts": {1}}, {"per_utube": 1},
    {"per_utube": None}, {"hand_out": "by hand"}, {"hand_out": None}, {"accepts": {"id"}},
    {"name": ""}, {"name": "a b"}, {"name": None}, {"name": "x" * 201},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=str)
def test_a_bad_declaration_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="kind"):
        Kind(**{"name": "own", **options})


def test_a_rank_in_the_order_is_accepted_at_put() -> None:
    assert Kind("own", order=("rank",)).accepts == {"rank"}


def test_micro_queues_are_accepted_at_put() -> None:
    assert Kind("own", per_utube=True).accepts == {"utube"}


@pytest.mark.parametrize(
    ("accepts", "timed"), [((), False), (("pri",), False), (("ttl",), True), (("ttr",), True), (("delay",), True)]
)
def test_which_kinds_have_deadlines(accepts: tuple[str, ...], timed: bool) -> None:
    assert Kind("own", frozenset(accepts)).timed is timed


def test_a_declaration_survives_json() -> None:
    kind = Kind("own", frozenset({"ttl", "pri"}), ("pri", "-id"), per_utube=True)
    assert msgspec.json.decode(msgspec.json.encode(kind), type=Kind) == kind


def test_a_declaration_of_a_leased_kind_may_omit_hand_outs() -> None:
    stored = b'{"name":"own","accepts":["ttl"],"order":["id"],"per_utube":false}'
    assert msgspec.json.decode(stored, type=Kind) == Kind("own", frozenset({"ttl"}))


@pytest.mark.parametrize("hand_out", [CLOCK, DELIVER])
def test_only_leased_kinds_are_registered(hand_out: str) -> None:
    with pytest.raises(BadValue, match="own"):
        known.register_kind(Kind("own", hand_out=hand_out))
    with pytest.raises(BadValue, match="own"):
        find_kind("own")


LEASED = "fifo, fifottl, utube, utubettl"


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        ("address", LEASED), ("max_attempts", LEASED), ("kick", LEASED), ("release", LEASED), ("wait", LEASED),
        ("ack", f"{LEASED}, reliable"), ("on_duplicate", f"{LEASED}, round"), ("ttl", "fifottl, utubettl, round"),
        ("id", "round"), ("period", "round"), ("recover", "reliable"), ("inspect", "reliable"),
    ],
)  # fmt: skip
def test_which_kinds_have_an_option_or_a_verb(what: str, kinds: str) -> None:
    assert known.kinds_with(what) == kinds


def test_kinds_with_names_those_that_accept_an_option() -> None:
    assert known.kinds_with("delay") == "fifottl, utubettl"
