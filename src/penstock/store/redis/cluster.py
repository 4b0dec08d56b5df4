"""A Redis Cluster: which node has which slot, learnt from the nodes and from their redirections."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import redis
from redis.crc import key_slot

from penstock.store.redis.faults import Unheard, Unsent
from penstock.store.redis.link import Argument, Command, Connection, Link, Reply
from penstock.store.redis.location import Location
from penstock.store.redis.servers import Request, ask, command_of, maker, persist, raised

Address = tuple[str, int]
# The slot of its keys, what is sent, and the script that it runs.
Call = tuple[int, Command, Request | None]
_REDIRECTIONS = 5
_MISSING = LookupError("a node did not answer")


class Cluster:
    """The nodes of one cluster."""

    together = False

    def __init__(self, where: Location) -> None:
        self.label = where.label
        self._where = where
        self._lock = threading.Lock()
        self._links: dict[Address, Link] = {}
        self._slots: dict[int, Address] = {}

    def run(self, request: Request, *, again: bool) -> Reply:
        return self._call((key_slot(request.keys[0]), command_of(request), request), again=again)

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        return self._call_all([(key_slot(request.keys[0]), command_of(request), request) for request in requests])

    def command(self, key: bytes, *words: Argument) -> Reply:
        return self._call((key_slot(key), words, None), again=True)

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        return self._call_all([(key_slot(key), words, None) for key, words in commands])

    def each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """As the contract says; of a node that is away, its error stands for every answer."""
        persist(self._look_around, self.label, again=True, renew=self._forget_slots)
        found: dict[str, list[Reply]] = {}
        for host, port in sorted(set(self._slots.values())):
            try:
                replies = self._link((host, port)).exchange(commands)
            except (Unsent, Unheard, redis.RedisError) as error:
                replies = [error.__cause__ or error] * len(commands)
            found[f"node {host}:{port}"] = replies
        return found

    def _look_around(self) -> Reply:
        return self._slots or self._learn(0)

    def listen(self) -> Connection:
        """Any node: what is published on one is heard on all."""
        for address in self._known():
            try:
                return self._link(address).fresh()
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                continue
        raise redis.ConnectionError("no node of the cluster answers")

    def close(self) -> None:
        for link in list(self._links.values()):  # a call under way may meet another node
            link.close()

    def forsake(self) -> None:
        self._lock = threading.Lock()
        for link in self._links.values():
            link.forsake()

    def _call(self, call: Call, *, again: bool) -> Reply:
        return persist(lambda: self._ask(*call), self.label, again=again, renew=self._forget_slots)

    def _call_all(self, calls: Sequence[Call]) -> list[Reply]:
        """Each node is asked for all that it has in one round trip; where it could not answer, one by one again."""
        slots, by_node, replies = self._slots, dict[Address, list[int]](), dict[int, Reply]()
        for place, (slot, _, _) in enumerate(calls):
            if slot in slots:
                by_node.setdefault(slots[slot], []).append(place)
        for address, places in by_node.items():
            commands, requests = [calls[place][1] for place in places], [calls[place][2] for place in places]
            try:
                replies.update(zip(places, ask(self._link(address), commands, requests), strict=True))
            except (Unsent, Unheard):
                continue
        return [
            self._call(call, again=True) if isinstance(replies.get(place, _MISSING), Exception) else replies[place]
            for place, call in enumerate(calls)
        ]

    def _ask(self, slot: int, command: Command, request: Request | None) -> Reply:
        address = self._slots.get(slot) or self._learn(slot)
        asking = False
        for _ in range(_REDIRECTIONS):
            link = self._link(address)
            try:
                if asking:
                    return self._ask_once(link, command, request)
                return raised(ask(link, [command], [request])[0])
            except redis.exceptions.MovedError as moved:
                address, asking = _address(moved, address), False
                self._slots[slot] = address
            except redis.exceptions.AskError as elsewhere:
                address, asking = _address(elsewhere, address), True
        raise redis.exceptions.TryAgainError(f"slot {slot} was redirected {_REDIRECTIONS} times")

    def _ask_once(self, link: Link, command: Command, request: Request | None) -> Reply:
        """During the move of a slot: ASKING counts for the very next command, so scripts are loaded before."""
        if request is not None:
            link.call((b"SCRIPT", b"LOAD", request.script.text))
        return raised(link.exchange([(b"ASKING",), command])[1])

    def _learn(self, slot: int) -> Address:
        """Read the map of slots from the first node that has one."""
        cause: Exception | None = None
        for address in self._known():
            try:
                slots = _read_slots(self._link(address), address)
            except (Unsent, redis.RedisError) as error:
                cause = error
                continue
            with self._lock:
                self._slots = slots
            if slot in slots:
                return slots[slot]
        if cause is not None:
            raise cause
        raise redis.exceptions.ClusterDownError(f"slot {slot} is not served")

    def _forget_slots(self) -> None:
        with self._lock:
            self._slots = {}
            for link in self._links.values():
                link.reset()

    def _known(self) -> list[Address]:
        """The nodes seen so far, then those of the URL."""
        return list(dict.fromkeys((*self._links, *self._where.hosts)))

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            with self._lock:
                label = f"{self.label} node {address[0]}:{address[1]}"
                link = self._links.setdefault(address, Link(maker(self._where, *address), label))
        return link


def _read_slots(link: Link, asked: Address) -> dict[int, Address]:
    """The map as a node has it; where it knows no host, the nodes are at the one that was asked."""
    slots: dict[int, Address] = {}
    try:
        found = cast("list[list[object]]", link.call((b"CLUSTER", b"SLOTS")))
    except Unheard as error:  # who only asks the way has done nothing
        raise Unsent from error.__cause__
    for first, last, master, *_ in found:
        host, port, *_ = cast("list[object]", master)
        address = (cast("bytes | None", host) or b"").decode() or asked[0], cast(int, port)
        slots.update(dict.fromkeys(range(cast(int, first), cast(int, last) + 1), address))
    return slots


def _address(error: redis.exceptions.AskError, asked: Address) -> Address:
    """Where it points; a node that does not know its own host name leaves it out."""
    host, port = error.node_addr
    return (host or asked[0], int(port))
