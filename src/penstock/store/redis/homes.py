"""Which shard has a task whose id does not tell: one that came from another store. The shards are asked."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.options import Tube
from penstock.core.shards import own_id
from penstock.store.redis.keys import task_key
from penstock.store.redis.runner import Runner
from penstock.store.redis.shards import Shards

# Questions in one round trip.
_STEP = 1000
# A shard's place, the part of it that has the task or its outcome, and the id.
_Question = tuple[int, str, int]


def owns(runner: Runner, shards: Shards, tube: Tube, ids: Sequence[int], *parts: str) -> list[tuple[int, int]]:
    """The shard of each task, and its id there; the shard is any where none has it in one of these parts."""
    floor = shards.floor(tube)
    guessed = {id: own_id(id, tube.shards, floor) for id in ids}
    old = [id for id in guessed if 0 < id <= floor]
    if old:
        stored = shards.of(tube)
        # Mostly the guess is right: only an address or a micro-queue puts a task elsewhere.
        found = _asked(runner, stored, [(guessed[id][0], part, id) for id in old for part in parts])
        rest = [id for id in old if id not in found]
        found |= _asked(runner, stored, [(place, part, id) for id in rest for place in _all(tube) for part in parts])
        guessed |= {id: (place, id) for id, place in found.items()}
    return [guessed[id] for id in ids]


def _all(tube: Tube) -> range:
    return range(tube.shards)


def _asked(runner: Runner, stored: Sequence[Tube], questions: Sequence[_Question]) -> dict[int, int]:
    """The shards that say yes, by id."""
    found: dict[int, int] = {}
    for start in range(0, len(questions), _STEP):
        some = questions[start : start + _STEP]
        keys = [runner.keys.name(stored[place].no, part) for place, part, _ in some]
        words = [(key, (b"HEXISTS", key, task_key(id))) for key, (_, _, id) in zip(keys, some, strict=True)]
        replies = runner.servers.command_all(words)
        found.update((id, place) for (place, _, id), reply in zip(some, replies, strict=True) if reply)
    return found
