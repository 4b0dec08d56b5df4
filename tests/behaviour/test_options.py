"""Tubes, their kinds and options: created once, opened again with the same options, refused by name (rule 17)."""

from __future__ import annotations

import pytest

import penstock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import KINDS, drain

BACKOFF = penstock.Backoff(base=1, factor=3, limit=60, jitter=0)


def test_a_missing_tube_is_created_as_fifottl(broker: penstock.Broker) -> None:
    broker.tube("mail")
    assert [(info.name, info.kind, info.options) for info in broker.tubes()] == [("mail", "fifottl", {})]


def test_tubes_are_listed_by_name_with_kind_and_options(broker: penstock.Broker, connect: Connect) -> None:
    broker.create_tube("b", "utubettl", ttl=5, fair=True, backoff=BACKOFF)
    broker.create_tube("a", "fifo", capacity=3)
    assert [(info.name, info.kind, info.options) for info in connect().tubes()] == [
        ("a", "fifo", {"capacity": 3}),
        ("b", "utubettl", {"ttl": 5, "fair": True, "backoff": BACKOFF}),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_knows_its_name(broker: penstock.Broker, kind: str) -> None:
    assert broker.create_tube("mail", kind).name == "mail"


def test_creating_a_tube_that_is_there_is_refused(broker: penstock.Broker, connect: Connect) -> None:
    broker.tube("mail")
    with pytest.raises(penstock.TubeExists, match="tube mail exists already: open it with"):
        connect().create_tube("mail", "fifottl")


def test_opening_without_kind_and_options_accepts_any_tube(broker: penstock.Broker, connect: Connect) -> None:
    broker.create_tube("mail", "fifo", capacity=1)
    tube = connect().tube("mail")
    tube.put("x")
    with pytest.raises(penstock.TubeFull):
        tube.put("y")


def test_opening_with_the_stored_kind_and_some_of_its_options(broker: penstock.Broker) -> None:
    broker.create_tube("mail", "fifottl", ttl=5, ttr=3)
    broker.tube("mail").put("x")
    assert tasks(broker.tube("mail", kind="fifottl", ttr=3)) == {"ready": 1, "total": 1}


@pytest.mark.parametrize("kind", ["fifottl", "utube", "utubettl"])
def test_another_kind_than_the_stored_one_is_a_mismatch(broker: penstock.Broker, kind: str) -> None:
    broker.create_tube("mail", "fifo")
    with pytest.raises(penstock.TubeMismatch, match=rf"(?s)(?=.*mail)(?=.*fifo)(?=.*{kind})"):
        broker.tube("mail", kind=kind)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ttl", 6),
        ("ttr", 4),
        ("capacity", 8),
        ("temporary", True),
        ("max_attempts", 2),
        ("backoff", penstock.Backoff()),
    ],
)
def test_another_option_than_the_stored_one_is_a_mismatch(broker: penstock.Broker, option: str, value: object) -> None:
    broker.create_tube("mail", "fifottl", ttl=5, capacity=9, backoff=BACKOFF)
    with pytest.raises(penstock.TubeMismatch, match=rf"(?s)(?=.*mail)(?=.*{option})"):
        broker.tube("mail", **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("fifo", "temporary", False),
        ("fifottl", "pri", 0),
        ("utube", "fair", False),
        ("utube", "utube_limit", 1),
        ("fifottl", "ttl", None),
        ("fifo", "capacity", None),
        ("fifo", "max_payload", 1024 * 1024),
    ],
)
def test_an_option_equal_to_its_default_counts_as_not_given(
    broker: penstock.Broker, kind: str, option: str, value: object
) -> None:
    broker.tube("mail", kind=kind)
    broker.tube("mail", kind=kind, **{option: value})  # type: ignore[arg-type]
    broker.create_tube("other", kind, **{option: value})  # type: ignore[arg-type]
    assert [info.options for info in broker.tubes()] == [{}, {}]


@pytest.mark.parametrize("kind", ["lifo", "FIFO", "", "fifo ", 5])
def test_an_unknown_kind_is_refused(broker: penstock.Broker, kind: str) -> None:
    with pytest.raises(penstock.BadValue):
        broker.create_tube("mail", kind)
    assert broker.tubes() == []


def test_the_error_for_an_unknown_kind_names_the_known_ones(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.BadValue, match=r"(?s)(?=.*stack)(?=.*fifo)(?=.*utubettl)"):
        broker.tube("mail", kind="stack")


def test_an_unknown_tube_option_is_refused(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.BadValue, match="colour"):
        broker.tube("mail", colour="red")  # type: ignore[call-arg]
    assert broker.tubes() == []


PUT_OPTIONS = {"pri": 1, "ttl": 1, "ttr": 1, "delay": 1, "utube": "u", "rank": 1}
ACCEPTED = {
    "fifo": set[str](),
    "fifottl": {"pri", "ttl", "ttr", "delay"},
    "utube": {"utube"},
    "utubettl": {"utube", "pri", "ttl", "ttr", "delay"},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if PUT_OPTIONS.keys() - ACCEPTED[kind]])
def test_a_put_option_that_the_kind_does_not_have_is_refused(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    for option in PUT_OPTIONS.keys() - ACCEPTED[kind]:
        with pytest.raises(penstock.UnsupportedOption) as refused:
            tube.put("x", **{option: PUT_OPTIONS[option]})  # type: ignore[arg-type]
        having = {name for name in KINDS if option in ACCEPTED[name]}
        assert {name for name in [kind, option, *having] if name not in str(refused.value)} == set()
    assert tasks(tube) == {}
    tube.put("x")
    assert drain(tube) == ["x"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_kind_round_accepts_an_id(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    with pytest.raises(penstock.UnsupportedOption, match=rf"(?s)(?=.*id)(?=.*{kind})"):
        tube.put("x", id="feed-1")
    assert tasks(tube) == {}


OPTIONS_OF_OTHERS: dict[str, dict[str, object]] = {
    "fifo": {
        "ttl": 1, "ttr": 1, "pri": 1, "backoff": BACKOFF, "aging": 1, "fair": True, "utube_limit": 2, "period": 1,
    },
    "fifottl": {"fair": True, "utube_limit": 2, "period": 1},
    "utube": {"ttl": 1, "aging": 1},
    "utubettl": {"period": 1},
}  # fmt: skip


def test_a_tube_option_that_the_kind_does_not_have_is_refused(broker: penstock.Broker) -> None:
    for kind, options in OPTIONS_OF_OTHERS.items():
        for option, value in options.items():
            with pytest.raises(penstock.UnsupportedOption, match=rf"(?s)(?=.*{kind})(?=.*{option})"):
                broker.create_tube("t", kind, **{option: value})  # type: ignore[arg-type]
    assert broker.tubes() == []


@pytest.mark.never_restarted
@pytest.mark.parametrize("kind", KINDS)
def test_a_temporary_tube_behaves_like_any_other(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, temporary=True)
    tube.put_many(["a", "b"])
    assert drain(tube) == ["a", "b"]


@pytest.mark.parametrize("data", [b"x" * 100, "x" * 98])
def test_data_of_exactly_max_payload_is_stored(broker: penstock.Broker, data: object) -> None:
    tube = broker.tube("t", max_payload=100)
    tube.put(data)
    assert drain(tube) == [data]


@pytest.mark.parametrize("data", [b"x" * 101, "x" * 99, ["x" * 97], {"k": "x" * 93}])
def test_data_over_max_payload_is_refused(broker: penstock.Broker, data: object) -> None:
    tube = broker.tube("mail", max_payload=100)
    with pytest.raises(penstock.PayloadTooLarge, match=r"(?s)(?=.*mail)(?=.*100)"):
        tube.put(data)
    assert tasks(tube) == {}


def test_the_default_limit_is_one_megabyte(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x" * (2**20 - 2))
    with pytest.raises(penstock.PayloadTooLarge):
        tube.put("x" * (2**20 - 1))
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_one_item_that_is_too_large_stops_all_of_put_many(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_payload=10)
    with pytest.raises(penstock.PayloadTooLarge):
        tube.put_many(["small", "x" * 20])
    assert tasks(tube) == {}
