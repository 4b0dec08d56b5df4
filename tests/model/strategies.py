"""Strategies of the state machine: tubes of every kind with options, puts, and clock steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import penstock
from penstock.core.kind import find_kind

LIFO = penstock.Kind("model-lifo", accepts=frozenset({"delay", "ttr"}), order=("-id",))
DEADLINE = penstock.Kind("model-deadline", accepts=frozenset({"ttl", "ttr"}), order=("expires", "id"))
QUEUED_LIFO = penstock.Kind("model-per_utube-lifo", accepts=frozenset({"pri"}), order=("pri", "-id"), per_utube=True)
OWN_KINDS = (LIFO, DEADLINE, QUEUED_LIFO)

CLOCK_STEPS = st.sampled_from((0.001, 0.001, 0.5, 0.5, 1, 1, 2, 15, -0.5, -0.001))

places = st.integers(0, 30)
recent = st.integers(0, 3) | places  # mostly of the newest
max_pris = st.sampled_from((None, None, 0, 1))
delays = st.sampled_from((0, 0, 1))
data: st.SearchStrategy[object] = st.sampled_from((0, 1.5, "x", "", b"", b"\x00\xff", None, True, [], {"a": [1]}))
_seconds = st.sampled_from((0.001, 1, 2, 3, 10, 10))
_utubes = st.sampled_from(("u", "v", "w", 1, "1"))

_TUBE_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "ttl": st.sampled_from((2, 5, 30)),
    "ttr": st.sampled_from((1, 2, 5)),
    "pri": st.integers(0, 2),
    "capacity": st.integers(2, 6),
    "max_attempts": st.integers(1, 3),
    "utube_limit": st.integers(1, 3),
    "fair": st.just(True),
    "aging": st.sampled_from((0.5, 2)),
    "temporary": st.booleans(),
    "retention": st.sampled_from((1, 30)),
    "period": st.sampled_from((0.001, 0.5, 1, 3)),
}
_PUT_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "pri": st.integers(0, 3),
    "ttl": _seconds,
    "ttr": _seconds,
    "delay": st.sampled_from((0, 1, 2)),
    "utube": _utubes,
    "max_attempts": st.integers(1, 2),
    "id": st.sampled_from(("a", "b", "c", "d", "e f")),
}
addresses = st.sampled_from(("a", "b", "c"))
groups = st.sampled_from(("g", "h"))
_LINKS: dict[str, st.SearchStrategy[Any]] = {
    "address": addresses,
    "on_duplicate": st.sampled_from(("error", "ignore", "replace")),
    "group": groups,
    "reply_to": st.sampled_from(("a", "b", "replies")),
}
# The options with which each kind's tubes may be created.
_KINDS = {
    "fifo": ("capacity", "max_attempts", "temporary", "retention"),
    "fifottl": ("ttl", "ttr", "pri", "capacity", "max_attempts", "aging", "temporary", "retention"),
    "utube": ("capacity", "max_attempts", "utube_limit", "fair", "temporary"),
    "utubettl": ("ttl", "ttr", "pri", "capacity", "max_attempts", "utube_limit", "fair", "aging", "retention"),
    LIFO.name: ("ttr", "capacity", "max_attempts"),
    DEADLINE.name: ("ttl", "ttr", "max_attempts"),
    QUEUED_LIFO.name: ("pri", "utube_limit", "max_attempts"),
}


# The same for kinds that not every store has, and the options they require.
_UNLEASED = {"round": ("ttl", "capacity", "temporary"), "reliable": ("capacity", "temporary")}
_NEEDED = {"round": ("period",), "reliable": ()}
_NEEDED_AT_PUT = {"round": ("id",)}


@dataclass(frozen=True)
class Config:
    """The configuration of a tube."""

    kind: str
    options: dict[str, object]


def _config(kind: str) -> st.SearchStrategy[Config]:
    may = {name: _TUBE_OPTIONS[name] for name in {**_KINDS, **_UNLEASED}[kind]}
    options = st.fixed_dictionaries({name: _TUBE_OPTIONS[name] for name in _NEEDED.get(kind, ())}, optional=may)
    return options.map(lambda given: Config(kind, given))


def configs() -> st.SearchStrategy[Config]:
    """Tubes of every kind; micro-queue kinds are drawn twice as often, because they are the most complex."""
    return st.sampled_from((*_KINDS, "utube", "utubettl", "utubettl", *_UNLEASED, *_UNLEASED)).flatmap(_config)


def put_options(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """Options that the kind accepts, each given or not; most tasks have none."""
    known = find_kind(kind)
    must = {name: _PUT_OPTIONS[name] for name in _NEEDED_AT_PUT.get(kind, ())}
    may = {name: draw for name, draw in _PUT_OPTIONS.items() if known.has(name) and name not in must}
    if must:
        may["on_duplicate"] = _LINKS["on_duplicate"]
    own = st.fixed_dictionaries(must, optional=may)
    if not known.leased:
        return own
    links = st.fixed_dictionaries({}, optional=_LINKS)
    return st.one_of(own, st.tuples(own, links).map(lambda both: {**both[0], **both[1]}))
