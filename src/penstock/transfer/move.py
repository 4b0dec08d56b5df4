"""Move tubes from one store to another while programs use them. A move that crashed is continued by starting it again.

The steps for each tube, each of which can be repeated:
1. Create it in the target under a hidden name (`importing`), paused if the source is.
2. Pause it in the source, so that takes end; once nothing is leased, freeze it: nothing in it changes any more, and
   callers get an error that names where it went.
3. Copy everything, tasks in id order, starting after the last one that was copied.
4. Activate it in the target, in one step: from then on it is used there.
5. Erase it in the source, except for the record of where it went.
Its content is live in at most one store: in the source until step 2, in the target from step 4.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from penstock.core import names
from penstock.core.chain import reply_tube
from penstock.core.options import Tube
from penstock.core.transfer import (
    NO_PAUSE_DUE,
    importing,
    importing_options,
    is_erased,
    moved,
    moved_to,
    own_options,
    pause_is_due,
    plain_name,
)
from penstock.engine.store import Store, load_tube
from penstock.errors import BadValue, NoSuchTube, PenstockError, StoreBusy, TubeBusy, TubeExists
from penstock.runtime.runtime import BrokerRuntime
from penstock.transfer.importer import OnProgress, TubeImport, discard, read_groups, read_outcomes, read_tasks

# Seconds between two checks whether the taken tasks were settled.
_CHECK_SECONDS = 0.05


class Moved(msgspec.Struct, frozen=True):
    """A moved tube, the number of tasks copied, and whether it is paused in the target."""

    tube: str
    tasks: int
    paused: bool = False


class Move:
    """The move of tubes from one store to another. `to`: how the source describes the target."""

    def __init__(self, source: BrokerRuntime, target: Store, to: str, *, wait: float, on_progress: OnProgress) -> None:
        if source.store.identity == target.identity:
            raise BadValue("both URLs lead to the same store: give another one to move to")
        self.runtime = source
        self._source = source.store
        self._target = target
        self._to = shown_url(to)
        self._wait = wait
        self._on_progress = on_progress

    def run(self, tubes: Sequence[str]) -> list[Moved]:
        """Move these tubes. All are frozen before the first is copied, so that replies between them stay together.

        Raises TubeBusy for a tube whose tasks are not settled in time (it stays in the source) and NoSuchTube for one
        that is dropped meanwhile; the others are moved.
        """
        for name in tubes:
            self._must_be_movable(name)
        fresh = [name for name in tubes if self._frozen(name) is None]
        failures = self._freeze_all([self._begin(name) for name in fresh])
        # A tube that another move has just frozen is copied by that move.
        frozen = [tube for name in tubes if name not in failures and (tube := self._frozen(name)) is not None]
        copied = [(tube, *self._copy(tube)) for tube in frozen]
        # Reply tubes are activated first: otherwise a reply would create a new tube of that name.
        awaited = {name for _, _, replies in copied for name in replies}
        copied.sort(key=lambda found: plain_name(found[0].name) not in awaited)
        moved = [self._activate(tube, count) for tube, count, _ in copied]
        if failures:
            raise next(iter(failures.values()))
        return moved

    def _must_be_movable(self, name: str) -> None:
        """Raise if the tube cannot be moved, before anything has changed."""
        frozen = self._frozen(name)
        if frozen is not None and moved_to(frozen) != self._to:
            raise BadValue(f"tube {name} was or is being moved to {moved_to(frozen)}: continue with that URL")
        if frozen is not None:
            return
        tube = _visible(self._source, name)
        if tube is None:
            raise NoSuchTube(f"tube {name} is not in the source store: penstock tubes lists those that are")
        if _visible(self._target, name) is not None:
            raise TubeExists(f"tube {name} already exists in the target store: drop it there, or leave it out")
        left = load_tube(self._target, moved(name))
        if left is not None and not is_erased(left):
            raise TubeExists(f"tube {name} is still being moved from there to {moved_to(left)}: finish that move first")
        incoming = load_tube(self._target, importing(name))
        if incoming is not None and self._target.counters(incoming).last_id:  # ours is empty until the tube is frozen
            raise TubeExists(
                f"an import or another move of tube {name} into the target store is running "
                "or was interrupted: continue it, or repeat the import with --discard-partial"
            )

    def _frozen(self, name: str) -> Tube | None:
        return load_tube(self._source, moved(name))

    def _begin(self, name: str) -> tuple[Tube, Tube]:
        """Step 1. Returns the tube and its import in the target, which remembers whether the tube was paused."""
        tube = load_tube(self._source, name)
        assert tube is not None, "it was there a moment ago"
        incoming = load_tube(self._target, importing(name))
        if incoming is not None and incoming.kind != tube.kind:  # it was begun for another tube of that name
            discard(self._target, incoming)
            incoming = None
        elif incoming is not None and own_options(incoming) != tube.given:  # the tube was altered since
            self._give_up(tube, incoming)
            incoming = None
        if incoming is None:
            left = load_tube(self._target, moved(name))
            if left is not None:  # it comes back
                self._target.erase_tube(left, forget=True)
            options = importing_options(tube.given, paused=self._source.counters(tube).paused)
            incoming = self._target.save_tube(importing(name), tube.kind, options, exist_ok=True)
        if pause_is_due(incoming):
            incoming = self._target.write_tube(incoming, paused=True, changes=NO_PAUSE_DUE)
        return tube, incoming

    def _freeze_all(self, tubes: Sequence[tuple[Tube, Tube]]) -> dict[str, PenstockError]:
        """Step 2. Returns the errors of tubes that were not frozen, by name. Holders of tasks get time to finish."""
        ends, failures = time.monotonic() + self._wait, dict[str, PenstockError]()
        try:
            for step in (self._pause, self._wait_until_settled, self._freeze):
                for tube, _ in tubes:
                    try:
                        step(tube, ends)
                    except (TubeBusy, NoSuchTube) as error:  # in use; or dropped, or moved by another, meanwhile
                        failures.setdefault(tube.name, error)
        finally:
            self._undo(tubes)
        return failures

    def _pause(self, tube: Tube, ends: float) -> None:
        self._source.write_tube(tube, paused=True)

    def _wait_until_settled(self, tube: Tube, ends: float) -> None:
        while time.monotonic() < ends:
            self.runtime.reap()
            self.runtime.apply_due(tube)
            if not tube.kind.leased or not self._source.counters(tube).counts.taken:
                return
            time.sleep(_CHECK_SECONDS)

    def _freeze(self, tube: Tube, ends: float) -> None:
        while True:
            self.runtime.apply_due(tube)
            try:
                return self._source.freeze_tube(tube, self._to)
            except (TubeBusy, StoreBusy) as error:
                if time.monotonic() >= ends:
                    raise TubeBusy(f"{error}; it was not moved, and stays here (--wait sets how long to try)") from None
            time.sleep(_CHECK_SECONDS)

    def _undo(self, tubes: Sequence[tuple[Tube, Tube]]) -> None:
        """Resume the tubes that are not frozen."""
        for tube, incoming in tubes:
            frozen = self._frozen(tube.name)
            if frozen is None or moved_to(frozen) != self._to:
                self._give_up(tube, incoming)

    def _give_up(self, tube: Tube, incoming: Tube) -> None:
        """Resume a tube that only the move has paused, then remove its import, which knows that."""
        if not (pause_is_due(incoming) or self._target.counters(incoming).paused):
            with suppress(NoSuchTube):
                self._source.write_tube(tube, paused=False)
        discard(self._target, incoming)

    def _copy(self, tube: Tube) -> tuple[int, set[str]]:
        """Step 3. Returns the number of tasks copied and the tubes that they reply to."""
        name, count, replies = plain_name(tube.name), 0, set[str]()
        incoming = load_tube(self._target, importing(name))
        if incoming is None:
            if is_erased(tube) or self._has_activated(tube):
                return count, replies
            # Someone removed the partial import; the source has everything.
            incoming = self._target.save_tube(importing(name), tube.kind, own_options(tube), exist_ok=True)
        target = TubeImport(self._target, incoming)
        last, there = self._source.counters(tube).last_id, target.last_id
        if there < last or last == 0:
            for group in read_groups(self._source, tube):
                target.begin_group(group)
        else:
            target.find_groups(list(read_groups(self._source, tube)))
        for page in read_tasks(self._source, tube):  # those that are already copied, too: which tubes do they reply to?
            replies.update(to for record in page if (to := reply_tube(record.reply_to)) is not None)
            if missing := [record for record in page if record.id > there]:
                target.add_tasks(missing, page[-1].id)
            count += len(missing)
            self._on_progress(len(page))
        target.add_tasks([], last)
        for outcomes in read_outcomes(self._source, tube):
            target.add_outcomes(outcomes)
        return count, replies

    def _has_activated(self, tube: Tube) -> bool:
        """Whether the tube is already active in the target; TubeExists if another tube has its name there."""
        there = _visible(self._target, plain_name(tube.name))
        if there is not None and self._target.counters(there).last_id < self._source.counters(tube).last_id:
            raise TubeExists(f"tube {there.name} was created again in the target store: drop it there, and continue")
        return there is not None

    def _activate(self, tube: Tube, count: int) -> Moved:
        """Steps 4 and 5."""
        name = plain_name(tube.name)
        incoming = load_tube(self._target, importing(name))
        if incoming is not None:
            target = TubeImport(self._target, incoming)
            target.find_groups(list(read_groups(self._source, tube)))
            target.activate(name, self._source.counters(tube))
        if not is_erased(tube):
            self._source.erase_tube(tube)
        activated = _visible(self._target, name)
        return Moved(name, count, activated is not None and self._target.counters(activated).paused)


def all_tubes(source: Store, to: str) -> list[str]:
    """The names of all tubes of a store, including tubes whose move to that target was interrupted."""
    left = source.load_tubes(frozen=True)
    frozen = [tube for tube in left if not is_erased(tube) and moved_to(tube) == shown_url(to)]
    return sorted({plain_name(tube.name) for tube in (*source.load_tubes(), *frozen)})


def task_count(source: Store, tubes: Iterable[str]) -> int:
    """The number of tasks in these tubes; unknown names count 0."""
    found = (load_tube(source, moved(name)) or _visible(source, name) for name in tubes)
    return sum(source.counters(tube).counts.stored for tube in found if tube is not None)


def shown_url(url: str) -> str:
    """A store's URL without passwords (also that of a pool's database) and with absolute paths."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        parts = parts._replace(path=f"/{quote(os.path.abspath(unquote(parts.path[1:])))}")
    user, _, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    kept = [
        (name, shown_url(value) if name == "pool" else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if "password" not in name
    ]
    return f"{parts.scheme}://{user and f'{user}@'}{host}{parts.path}{(kept and f'?{urlencode(kept)}') or ''}"


def check_names(tubes: Iterable[str]) -> list[str]:
    """Validate names of tubes and remove duplicates, keeping their order."""
    return list(dict.fromkeys(names.name("tube", name) for name in tubes))


def _visible(store: Store, name: str) -> Tube | None:
    """The visible tube of that name."""
    try:
        return load_tube(store, name)
    except NoSuchTube:
        return None
