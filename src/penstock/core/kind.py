"""Kinds as data: which options the tasks of a tube accept, their order, and how they are handed out."""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cached_property

import msgspec

from penstock.core import names
from penstock.errors import BadValue, UnsupportedOption

# Put options that a kind may accept.
ACCEPTABLE = frozenset({"pri", "ttl", "ttr", "delay", "utube", "rank"})
# Keys that a kind may order its tasks by.
ORDER_KEYS = frozenset({"id", "-id", "pri", "expires", "due", "created", "rank"})
# How a task is handed out: leased to a session; not leased, only its clock is set; delivered until anyone acks it.
LEASE, CLOCK, DELIVER = "lease", "clock", "deliver"
# option or verb -> the hand-out that it needs; all others depend on `accepts`, or work on every kind
_HAND_OUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("address", "group", "callback", "reply_to", "max_attempts", "retention", "shards"), (LEASE,)),
    **dict.fromkeys(("fail", "release", "release_all", "touch", "bury", "kick", "cancel", "wait"), (LEASE,)),
    "ack": (LEASE, DELIVER),
    "on_duplicate": (LEASE, CLOCK),
    "period": (CLOCK,),
    "recover": (DELIVER,),
    "inspect": (DELIVER,),
}


class Kind(msgspec.Struct, frozen=True, dict=True):
    """The rules of a tube, stored with it, so that any program can run it.

    `order` is one or two keys, ties by id; `per_utube` makes it a micro-queue kind. Registered kinds are leased.
    """

    name: str
    accepts: Set[str] = frozenset()
    order: tuple[str, ...] = ("id",)
    per_utube: bool = False
    hand_out: str = LEASE

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", names.name("kind", self.name))
        if self.hand_out not in (LEASE, CLOCK, DELIVER):
            raise BadValue(f"kind {self.name} has hand_out={names.shown(self.hand_out)}: leave it out")
        accepts = self._words("accepts", self.accepts, ACCEPTABLE | {"id"} if self.hand_out == CLOCK else ACCEPTABLE)
        order = self._words("order", self.order, ORDER_KEYS)
        if not 1 <= len(order) <= 2:
            raise BadValue(f"kind {self.name} orders by {len(order)} keys: give one or two")
        if type(self.per_utube) is not bool:
            raise BadValue(f"kind {self.name} has per_utube={names.shown(self.per_utube)}: give True or False")
        implied = {"rank"} & set(order) | ({"utube"} if self.per_utube else set())
        msgspec.structs.force_setattr(self, "accepts", frozenset(accepts) | implied)
        msgspec.structs.force_setattr(self, "order", tuple(order))

    def _words(self, field: str, words: object, known: frozenset[str]) -> list[str]:
        if isinstance(words, str) or not isinstance(words, Iterable):
            raise BadValue(
                f"kind {self.name} has {field}={names.shown(words)}: give a collection of {', '.join(sorted(known))}"
            )
        listed = list(words)
        for word in listed:
            if not isinstance(word, str) or word not in known:
                raise BadValue(f"kind {self.name} has {names.shown(word)} in {field}: use {', '.join(sorted(known))}")
        return listed

    def has(self, option: str) -> bool:
        """Whether the kind supports a tube option, put option or verb of that name."""
        if option in _HAND_OUTS:
            return self.hand_out in _HAND_OUTS[option]
        if option in ACCEPTABLE or option == "id":
            return option in self.accepts
        return self.per_utube if option == "per_utube" else True

    @cached_property
    def leased(self) -> bool:
        """Whether a take leases the task to a session; ids are then integers."""
        return self.hand_out == LEASE

    @cached_property
    def timed(self) -> bool:
        """Whether anything of this kind can become due: a ttl, ttr or delay."""
        return not self.accepts.isdisjoint(("ttl", "ttr", "delay"))


_TIMES = frozenset({"pri", "ttl", "ttr", "delay"})
_kinds = {
    kind.name: kind
    for kind in (
        Kind("fifo"),
        Kind("fifottl", _TIMES, ("pri", "id")),
        Kind("utube", per_utube=True),
        Kind("utubettl", _TIMES, ("pri", "id"), per_utube=True),
        Kind("round", frozenset({"id", "ttl"}), hand_out=CLOCK),
        Kind("reliable", hand_out=DELIVER),
    )
}


def register_kind(kind: Kind) -> Kind:
    """Register a kind by its name in this program. Raises BadValue if the name is in use."""
    if not isinstance(kind, Kind):
        raise BadValue(f"{names.shown(kind)} is {names.kind_of(kind)}: give a penstock.Kind")
    if not kind.leased:
        raise BadValue(f"kind {kind.name} has hand_out={kind.hand_out!r}: kinds of your own are leased, leave it out")
    if kind.name in _kinds:
        raise BadValue(f"kind {kind.name} is registered already: choose another name")
    _kinds[kind.name] = kind
    return kind


def find_kind(name: object) -> Kind:
    """The kind of that name. Raises BadValue, listing the known kinds, if there is none."""
    kind = _kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadValue(
            f"kind {names.shown(name)} is unknown: use one of {', '.join(_kinds)}, or register_kind it first"
        )
    return kind


def must_be_known(kind: Kind) -> None:
    """Raise BadValue if the declaration differs from the kind that this program knows by that name."""
    known = _kinds.get(kind.name)
    if known is not None and known != kind:
        raise BadValue(f"kind {kind.name} differs from the one that this program registered: rename one of them")
    if known is None and not kind.leased:
        raise BadValue(f"kind {kind.name} has hand_out={kind.hand_out!r}: kinds of your own are leased")


def kinds_with(option: str) -> str:
    """The names of the kinds that support an option or a verb, for messages."""
    return ", ".join(kind.name for kind in _kinds.values() if kind.has(option)) or "no registered kind"


def unsupported(kind: Kind, verb: str) -> UnsupportedOption:
    """The error for a verb that the kind does not support; its message names the kinds that do."""
    return UnsupportedOption(f"kind {kind.name} has no {verb}: use one of {kinds_with(verb)}")


def must_have(kind: Kind, verb: str) -> None:
    """Raise UnsupportedOption if the kind does not support the verb."""
    if not kind.has(verb):
        raise unsupported(kind, verb)
