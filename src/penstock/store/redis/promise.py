"""What the server's settings promise for what was stored, in one sentence, and what is wrong with them."""

from __future__ import annotations

from typing import cast

import redis

from penstock.errors import StoreError
from penstock.store.base import Description
from penstock.store.redis.keys import TUBES
from penstock.store.redis.runner import Runner

Facts = dict[str, str]


def read_facts(text: bytes) -> Facts:
    """INFO, as a mapping."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def is_modern(facts: Facts) -> bool:
    """Whether the server knows flags of scripts: Redis 7 and every Valkey."""
    return int(facts.get("redis_version", "7").split(".")[0]) >= 7


def warnings(facts: Facts) -> list[str]:
    """What endangers stored tasks."""
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


def describe(facts: Facts, label: str, prefix: str, schema: int) -> Description:
    """The store as it is now."""
    store = "Valkey" if "valkey_version" in facts else "Redis"
    if facts.get("cluster_enabled") == "1":
        store += " Cluster"
    version = facts.get("valkey_version") or facts.get("redis_version", "")
    return Description(store, version, f"{label} prefix {prefix}", promise(facts), schema, warnings(facts))


def gather(runner: Runner) -> Facts:
    """The server's settings; what a managed server does not tell is left out."""
    key = runner.keys.name(TUBES, "store")
    facts = read_facts(cast(bytes, runner.servers.command(key, b"INFO")))
    for setting in (b"save", b"appendfsync"):
        try:
            pair = cast("list[bytes]", runner.servers.command(key, b"CONFIG", b"GET", setting))
        except (StoreError, redis.RedisError):
            continue
        if pair:
            facts[setting.decode()] = pair[1].decode()
    return facts
