"""What a put survives with the server's settings, and which settings endanger stored tasks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.results import Description
from penstock.store.redis.redis_connection import Reply
from penstock.store.redis.servers import Servers

Settings = dict[str, str]
# The only setting of a cluster node that does not answer: the reason.
UNREACHABLE = "away"
# By appendfsync. With everysec, also a kill of the process alone loses puts: during a background fsync, the server
# answers and keeps commands in its own memory for up to two seconds (flushAppendOnlyFile of Redis).
_SURVIVES = {
    "always": "is on disk (appendfsync always)",
    "everysec": "is on disk soon: a crash or power cut may lose the last second or two (everysec)",
    "no": "survives most crashes of the server, and a power cut once it was written to disk",
}
_CONFIG = ((b"CONFIG", b"GET", b"save"), (b"CONFIG", b"GET", b"appendfsync"))


def parse_info(text: bytes) -> Settings:
    """Parse the answer to INFO into a mapping."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def is_modern(settings: Settings) -> bool:
    """Whether the server knows script flags: Redis 7 and every Valkey."""
    return int(settings.get("redis_version", "7").split(".")[0]) >= 7


def warnings(settings: Settings) -> list[str]:
    """Describe the settings that endanger stored tasks."""
    if UNREACHABLE in settings:
        return [f"it cannot be reached now ({settings[UNREACHABLE]}), so its tubes are not there: start it"]
    found = []
    policy = settings.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}, which may evict tasks: set it to noeviction")
    if settings.get("aof_enabled") == "0" and settings.get("save") == "":
        found.append("persistence is off, so a restart of the server loses every task: set appendonly yes")
    return found


def durability_of(settings: Settings) -> str:
    """Describe what a put that returned survives, by the server's settings."""
    policy = settings.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"none: maxmemory-policy {policy} lets the server evict tasks when memory is short"
    if settings.get("aof_enabled") == "1":
        return f"a put that returned {_SURVIVES[settings.get('appendfsync', 'everysec')]}"
    if settings.get("save", "?") != "":
        return "a put that returned survives only with the next snapshot: a crash loses what came after the last one"
    return "none: persistence is off, and a restart of the server loses everything"


def advice(settings: Settings, url: str) -> list[str]:
    """Advise what to fix: settings that endanger tasks or lose some in a crash, and a URL that cannot work."""
    found = warnings(settings)
    if settings.get("aof_enabled") == "0" and settings.get("save", "") != "":
        found.append("only snapshots are kept, so a crash loses every task since the last one: set appendonly yes")
    if settings.get("cluster_enabled") == "1" and not url.startswith("redis+cluster"):
        found.append("this is a node of a cluster, and other nodes have most tubes: use a redis+cluster:// URL")
    return found


def describe(nodes: dict[str, Settings], label: str, prefix: str, schema: int) -> Description:
    """Describe the store by the current settings of each of its servers."""
    settings = next((settings for settings in nodes.values() if UNREACHABLE not in settings), Settings())
    store = "Valkey" if "valkey_version" in settings else "Redis"
    if settings.get("cluster_enabled") == "1":
        store += " Cluster"
    version = settings.get("valkey_version") or settings.get("redis_version", "")
    found = _merge_lines({node: advice(seen, label) for node, seen in nodes.items()})
    durable = _merge_lines({node: [durability_of(seen)] for node, seen in nodes.items() if UNREACHABLE not in seen})
    survives = "; ".join(durable) or "unknown: no server answers"
    return Description(store, version, f"{label} prefix {prefix}", survives, schema, found)


def _merge_lines(by_node: dict[str, list[str]]) -> list[str]:
    """Merge what was found for each node: lines on which all nodes agree, and the other lines with their node."""
    if len({tuple(lines) for lines in by_node.values()}) <= 1:
        return next(iter(by_node.values()), [])
    return [f"{node}: {line}" for node, lines in by_node.items() for line in lines]


def read_settings(servers: Servers) -> dict[str, Settings]:
    """The settings of each server, without those that a managed server does not disclose."""
    return {node: _read(replies) for node, replies in servers.ask_each([(b"INFO",), *_CONFIG]).items()}


def _read(replies: Sequence[Reply]) -> Settings:
    info, *pairs = replies
    if isinstance(info, BaseException):
        return {UNREACHABLE: str(info)}
    settings = parse_info(info)
    for pair in pairs:
        if isinstance(pair, list) and pair:
            name, value = pair
            settings[name.decode()] = value.decode()
    return settings
