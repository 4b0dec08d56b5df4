"""Tubes by name: opened, created, and checked against what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.broker.tube import Tube
from penstock.broker.unleased import ReliableTube, UnleasedTube
from penstock.core import names
from penstock.core.entry import make_entry
from penstock.core.kind import DELIVER, find_kind
from penstock.core.options import ALTERABLE, DEFAULTS, PutOptions, check_new_tube, check_tube_options, make_tube
from penstock.core.options import Tube as StoredTube
from penstock.core.values import plain_seconds
from penstock.engine.store import load_tube
from penstock.errors import NoSuchTube, TubeMismatch

if TYPE_CHECKING:
    from penstock.broker.session import SessionHandle
    from penstock.runtime.runtime import BrokerRuntime

DEFAULT_KIND = "fifottl"


def open_tube(
    runtime: BrokerRuntime, session: SessionHandle, name: str, kind: str | None, options: Mapping[str, object]
) -> Tube:
    """Open a tube, and create it if it is missing; TubeMismatch if the stored one differs."""
    name = names.name("tube", name)
    stored = load_tube(runtime.store, name)
    if stored is None:
        declared = find_kind(DEFAULT_KIND if kind is None else kind)
        given = check_new_tube(declared, options)
        stored = runtime.store.save_tube(name, declared, given, exist_ok=True)
    _check_match(stored, kind, options)
    return make_handle(runtime, session, stored)


def open_for_put(
    runtime: BrokerRuntime, session: SessionHandle, name: str, items: Iterable[tuple[object, PutOptions]]
) -> Tube:
    """Open a tube for a put. Creates a missing one with the default kind, unless these tasks would be refused."""
    if load_tube(runtime.store, names.name("tube", name)) is None:
        missing = make_tube(0, name, find_kind(DEFAULT_KIND), {})
        for data, options in items:
            make_entry(missing, data, options)
    return open_tube(runtime, session, name, None, {})


def create_tube(
    runtime: BrokerRuntime, session: SessionHandle, name: str, kind: str | None, options: Mapping[str, object]
) -> Tube:
    """Create a tube; TubeExists if the name is in use."""
    declared = find_kind(DEFAULT_KIND if kind is None else kind)
    given = check_new_tube(declared, options)
    stored = runtime.store.save_tube(names.name("tube", name), declared, given, exist_ok=False)
    return make_handle(runtime, session, stored)


def find_tube(runtime: BrokerRuntime, session: SessionHandle, name: str) -> Tube:
    """Open an existing tube; NoSuchTube if there is none of that name."""
    stored = load_tube(runtime.store, names.name("tube", name))
    if stored is None:
        raise NoSuchTube(f"tube {name} does not exist: create it first with broker.tube({name!r})")
    return make_handle(runtime, session, stored)


def make_handle(runtime: BrokerRuntime, session: SessionHandle, stored: StoredTube) -> Tube:
    """Make the handle of a stored tube, for one session."""
    if stored.kind.leased:
        return Tube(runtime, session, stored)
    unleased = ReliableTube if stored.kind.hand_out == DELIVER else UnleasedTube
    return unleased(runtime, session, stored)


def _check_match(stored: StoredTube, kind: str | None, options: Mapping[str, object]) -> None:
    # A kind that this program never registered is known by the declaration that is stored with the tube.
    if kind is not None and kind != stored.kind.name and find_kind(kind) != stored.kind:
        raise TubeMismatch(
            f"tube {stored.name} is of kind {stored.kind.name}, not {names.shown(kind)}: open it without a kind, "
            "or choose another name; tube.alter changes other options, but no kind"
        )
    check_tube_options(stored.kind, options)
    for option, value in options.items():
        has = stored.given.get(option, DEFAULTS.get(option))
        if value is not None and plain_seconds(value) != has:
            other = "change it with tube.alter" if option in ALTERABLE else "drop it, as tube.alter cannot change it"
            raise TubeMismatch(
                f"tube {stored.name} has {option}={has!r}, not {plain_seconds(value)!r}: open it without {option}, "
                f"or {other}"
            )
