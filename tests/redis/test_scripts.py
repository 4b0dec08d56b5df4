"""Scripts are documented, called by digest, loaded again if a server forgot them, and use one slot per tube."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

import penstock
from penstock.store.redis import redis_store as module
from penstock.store.redis.scripts import MICRO_QUEUES, PLAIN, UNLEASED, load_script
from tests.servers.redis import Redis, RedisCluster

FOLDER = Path(module.__file__).parent / "lua"
SECTIONS = [
    text
    for path in FOLDER.glob("*.lua")
    for text in re.split(r"^-- (?=(?:script|part): )", path.read_text(), flags=re.M)
]
SCRIPTS = sorted(text.split(maxsplit=2)[1] for text in SECTIONS if text.startswith("script: "))
SORTS = {"recover": UNLEASED}
UNLEASED_TOO = "take apply advance_tube receive_replies put_related apply_put".split()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_its_description_and_arguments(name: str) -> None:
    [text] = [text for text in SECTIONS if text.startswith(f"script: {name}\n")]
    header = re.match(r"script: .*\n(-- .*\n)+", text)
    assert header, "the first lines say what it does"
    if "ARGV[" in text:
        assert "\n-- ARGV: " in header[0]
    if re.search(r"\bk_[a-z_]+", text):
        assert re.search(r"\n-- (KEYS|WITH): ", header[0])


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_its_keys_and_flags(name: str, modern: bool) -> None:
    script = load_script(name, sort=SORTS.get(name, PLAIN), modern=modern)
    assert script.keys
    assert (script.text[:5] == b"#!lua") == modern
    used = set(re.findall(rb"\bk_[a-z_]+\b", re.sub(rb"--[^\n]*", b"", script.text)))
    assert used <= {f"k_{key}".encode() for key in script.keys}


@pytest.mark.parametrize("name", UNLEASED_TOO)
def test_a_script_for_tubes_without_leases_has_its_keys(name: str) -> None:
    script = load_script(name, sort=UNLEASED)
    used = set(re.findall(rb"\bk_[a-z_]+\b", re.sub(rb"--[^\n]*", b"", script.text)))
    assert used <= {f"k_{key}".encode() for key in script.keys}
    assert "delivered" in script.keys
    assert "delivered" not in load_script(name).keys


def test_scripts_that_free_memory_run_at_the_limit() -> None:
    needs_room = {"put", "put_plain", "put_related", "apply_put"}
    needs_room |= {"declare_tube", "begin_index"}
    needs_room |= {"import"}
    for name in SCRIPTS:
        text = load_script(name, sort=SORTS.get(name, PLAIN)).text
        flagged = text.startswith((b"#!lua flags=allow-oom", b"#!lua flags=no-writes"))
        assert flagged == (name not in needs_room), name


def test_scripts_are_loaded_again_into_a_server_that_lost_them(server: Redis, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a")
    server.ask("SCRIPT", "FLUSH")
    tube.put("b")
    server.ask("SCRIPT", "FLUSH")
    task = tube.take(0)
    server.ask("SCRIPT", "FLUSH")
    assert task is not None
    task.ack()
    assert tube.stats().tasks.total == 1


def test_scripts_of_a_pipeline_are_loaded_again(server: Redis, broker: penstock.Broker) -> None:
    """A heartbeat reports to every tube that its sessions took from, in one exchange."""
    for name in ("a", "b", "c"):
        broker.tube(name).put("x")
        assert broker.tube(name).take(0) is not None
    runtime = broker.runtime
    handles = [member.handle for member in runtime._members]
    server.ask("SCRIPT", "FLUSH")
    assert runtime.store.beat(handles) == set(handles)
    lapses = [server.ask("EXISTS", f"{{{runtime.store._keys.prefix}:{no}}}:lapses") for no in (1, 2, 3)]  # type: ignore[attr-defined]
    assert lapses == ["1", "1", "1"]


def test_all_keys_of_a_tube_are_in_one_slot_and_tubes_are_spread(cluster: RedisCluster) -> None:
    with penstock.connect(cluster.fresh_url()) as broker:
        for i in range(12):
            tube = broker.tube(f"t{i}", kind="utubettl", fair=True, ttr=5)
            tube.put_many([1, 2, (3, {"delay": 9})], utube="u")
            tube.take(0)
            tube.bury(2)
        prefix = broker.runtime.store._keys.prefix  # type: ignore[attr-defined]
    slots: dict[str, set[str]] = {}
    for node in (cluster, *cluster.others):
        for key in node.ask("KEYS", f"*{prefix}*").splitlines():
            slots.setdefault(key[: key.index("}")], set()).add(cluster.ask("CLUSTER", "KEYSLOT", key))
    assert len(slots) >= 13
    assert all(len(found) == 1 for found in slots.values())
    assert len(set.union(*slots.values())) > 6


def test_every_script_compiles_for_every_kind_of_tube(server: Redis) -> None:
    """Lua allows 200 local variables per function, and the largest scripts have many."""
    with redis.Redis(port=server.port) as connection:
        modern = int(connection.info("server")["redis_version"].split(".")[0]) >= 7
        for sort in (PLAIN, MICRO_QUEUES, UNLEASED):
            for name in SCRIPTS:
                connection.script_load(load_script(name, sort=sort, modern=modern, pooled=True).text)
