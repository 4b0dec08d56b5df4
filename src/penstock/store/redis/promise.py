"""What the server's settings promise for what was stored, in one sentence, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.store.base import Description
from penstock.store.redis.link import Reply
from penstock.store.redis.servers import Servers

Facts = dict[str, str]
# Instead of all facts: why a node of a cluster does not answer.
AWAY = "away"
_ASKED = ((b"CONFIG", b"GET", b"save"), (b"CONFIG", b"GET", b"appendfsync"))


def read_facts(text: bytes) -> Facts:
    """INFO, as a mapping."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def is_modern(facts: Facts) -> bool:
    """Whether the server knows flags of scripts: Redis 7 and every Valkey."""
    return int(facts.get("redis_version", "7").split(".")[0]) >= 7


def warnings(facts: Facts) -> list[str]:
    """What endangers stored tasks."""
    if AWAY in facts:
        return [f"it cannot be reached now ({facts[AWAY]}), so its tubes are not there: start it"]
    found = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}, which may throw tasks away: set it to noeviction")
    if facts.get("aof_enabled") == "0" and facts.get("save") == "":
        found.append("persistence is off, so a restart of the server loses every task: set appendonly yes")
    return found


def promise(facts: Facts) -> str:
    """What a put that returned survives."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"none: maxmemory-policy {policy} lets the server throw tasks away when memory is short"
    if facts.get("aof_enabled") == "1":
        fsync = facts.get("appendfsync", "everysec")
        if fsync == "always":
            return "a put that returned is on disk (appendfsync always)"
        if fsync == "no":
            return (
                "a put that returned survives most crashes of the server, and a power cut once the system wrote it out"
            )
        # kill -9 on a busy machine once lost a tube just created; probably because the server holds back its
        # writes, too, while an fsync is under way. The cause was not looked into.
        return "a put that returned is on disk soon: a crash or power cut may lose the last second or two (everysec)"
    if facts.get("save", "?") != "":
        return "a put that returned survives only with the next snapshot: a crash loses what came after the last one"
    return "none: persistence is off, and a restart of the server loses everything"


def advice(facts: Facts, url: str) -> list[str]:
    """What an operator should mend: what endangers tasks, what loses some in a crash, and a URL that cannot work."""
    found = warnings(facts)
    if facts.get("aof_enabled") == "0" and facts.get("save", "") != "":
        found.append("only snapshots are kept, so a crash loses every task since the last one: set appendonly yes")
    if facts.get("cluster_enabled") == "1" and not url.startswith("redis+cluster"):
        found.append("this is a node of a cluster, and other nodes have most tubes: use a redis+cluster:// URL")
    return found


def describe(nodes: dict[str, Facts], label: str, prefix: str, schema: int) -> Description:
    """The store as it is now, by the settings of each of its servers."""
    facts = next((facts for facts in nodes.values() if AWAY not in facts), Facts())
    store = "Valkey" if "valkey_version" in facts else "Redis"
    if facts.get("cluster_enabled") == "1":
        store += " Cluster"
    version = facts.get("valkey_version") or facts.get("redis_version", "")
    found = _of_each({node: advice(seen, label) for node, seen in nodes.items()})
    return Description(store, version, f"{label} prefix {prefix}", weigh(nodes), schema, found)


def weigh(nodes: dict[str, Facts]) -> str:
    """The promise of all servers together."""
    told = _of_each({node: [promise(facts)] for node, facts in nodes.items() if AWAY not in facts})
    return "; ".join(told) or "unknown: no server answers"


def _of_each(told: dict[str, list[str]]) -> list[str]:
    """What all of them say, once; else who says it."""
    if len({tuple(lines) for lines in told.values()}) <= 1:
        return next(iter(told.values()), [])
    return [f"{node}: {line}" for node, lines in told.items() for line in lines]


def gather(servers: Servers) -> dict[str, Facts]:
    """The settings of each server; what a managed one does not tell is left out."""
    return {node: _read(replies) for node, replies in servers.each([(b"INFO",), *_ASKED]).items()}


def _read(replies: Sequence[Reply]) -> Facts:
    info, *settings = replies
    if isinstance(info, BaseException):
        return {AWAY: str(info)}
    facts = read_facts(cast(bytes, info))
    for pair in settings:
        if isinstance(pair, list) and pair:
            name, value = cast("list[bytes]", pair)
            facts[name.decode()] = value.decode()
    return facts
