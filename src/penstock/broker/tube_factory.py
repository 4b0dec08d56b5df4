"""Tubes by name: opened, created, and checked against what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.broker.tube import Tube
from penstock.broker.unleased import ReliableTube, UnleasedTube
from penstock.core import names
from penstock.core.entry import make_entry
from penstock.core.kind import DELIVER, find_kind
from penstock.core.options import DEFAULTS, PutOptions, check_new_tube, check_tube_options, make_tube
from penstock.core.options import Tube as StoredTube
from penstock.errors import NoSuchTube, TubeMismatch
from penstock.store.contract import load_tube

if TYPE_CHECKING:
    from penstock.broker.session_handle import Seat
    from penstock.runtime.runtime import Hub

DEFAULT_KIND = "fifottl"


def open_tube(hub: Hub, seat: Seat, name: str, kind: str | None, options: Mapping[str, object]) -> Tube:
    """The tube of that name, created when it is missing; TubeMismatch when it is not what was asked for."""
    name = names.name("tube", name)
    stored = load_tube(hub.store, name)
    if stored is None:
        declared = find_kind(DEFAULT_KIND if kind is None else kind)
        given = check_new_tube(declared, options)
        stored = hub.store.save_tube(name, declared, given, exist_ok=True)
    _must_match(stored, kind, options)
    return make_handle(hub, seat, stored)


def open_for_put(hub: Hub, seat: Seat, name: str, items: Iterable[tuple[object, PutOptions]]) -> Tube:
    """As open_tube, with the default kind; where these tasks are refused, no tube is created for them."""
    if load_tube(hub.store, names.name("tube", name)) is None:
        missing = make_tube(0, name, find_kind(DEFAULT_KIND), {})
        for data, options in items:
            make_entry(missing, data, options)
    return open_tube(hub, seat, name, None, {})


def create_tube(hub: Hub, seat: Seat, name: str, kind: str | None, options: Mapping[str, object]) -> Tube:
    """A new tube; TubeExists when the name is in use."""
    declared = find_kind(DEFAULT_KIND if kind is None else kind)
    given = check_new_tube(declared, options)
    return make_handle(hub, seat, hub.store.save_tube(names.name("tube", name), declared, given, exist_ok=False))


def find_tube(hub: Hub, seat: Seat, name: str) -> Tube:
    """The tube of that name; NoSuchTube when there is none."""
    stored = load_tube(hub.store, names.name("tube", name))
    if stored is None:
        raise NoSuchTube(f"tube {name} does not exist: create it first with broker.tube({name!r})")
    return make_handle(hub, seat, stored)


def make_handle(hub: Hub, seat: Seat, stored: StoredTube) -> Tube:
    """A stored tube as a session holds it."""
    if stored.kind.leased:
        return Tube(hub, seat, stored)
    return ReliableTube(hub, seat, stored) if stored.kind.hand_out == DELIVER else UnleasedTube(hub, seat, stored)


def _must_match(stored: StoredTube, kind: str | None, options: Mapping[str, object]) -> None:
    # A kind this program never registered is known by the declaration that is stored with the tube.
    if kind is not None and kind != stored.kind.name and find_kind(kind) != stored.kind:
        raise TubeMismatch(
            f"tube {stored.name} is of kind {stored.kind.name}, not {names.shown(kind)}: open it without a kind, "
            "or choose another name"
        )
    check_tube_options(stored.kind, options)
    for option, value in options.items():
        has = stored.given.get(option, DEFAULTS.get(option))
        if value is not None and value != has:
            raise TubeMismatch(
                f"tube {stored.name} has {option}={has!r}, not {value!r}: open it without "
                f"{option}, or drop and create it anew"
            )
