"""A campaign: producers, takers and an admin on one store, killed and frozen at random with their server."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

import penstock
from tests.fault import rules
from tests.fault.actors import ADDRESSES, ELEMENTS, LIMIT, PERIOD, RELIABLE, ROUND, TOUCH, TTR, TUBES, open_tubes
from tests.fault.actors import main as act
from tests.fault.checker import LOSSES, Checker, Final
from tests.fault.history import Call, Recorder, read
from tests.fault.invariants import Violation, counters_equal_a_recount
from tests.fault.outages import Outages
from tests.support.forked import fork
from tests.support.peer import ROOT, environment
from tests.support.process_pool import retry_while_busy
from tests.support.threads import until

# How much longer a campaign may run until enough has happened: a busy machine starts processes slowly.
PATIENCE = 240.0
DRAIN_SECONDS = 240.0
CallCounts = Counter[tuple[str, bool | None]]
ACTORS = {"producer": 2, "taker": 4, "admin": 1, "awaited": 1}


class Campaign:
    """One run in one folder, which keeps the histories."""

    def __init__(self, folder: Path, seed: int, defect: str = "", outages: Outages | None = None) -> None:
        self.folder = folder
        self.url = outages.url if outages else f"sqlite:///{folder}/queue.db?durability=relaxed"
        self._outages = outages
        self._seed = seed
        self._random = random.Random(seed)
        self._defects = [defect] if defect else []
        self._actors: dict[str, tuple[str, ForkServerProcess]] = {}
        self._recorder = Recorder(folder, "faults")
        self._started = 0
        self._crashed: list[Violation] = []
        self._pause = threading.Event()

    def run(self, enough: Callable[[CallCounts], bool], seconds: float = 0) -> list[Violation]:
        """Run for at least that many seconds, until enough has happened. Returns the checker's findings."""
        with penstock.connect(self.url) as broker:
            for name, kind in TUBES.items():
                broker.tube(name, kind=kind, ttr=TTR, utube_limit=LIMIT if "utube" in kind else None)
            turns = open_tubes(broker)[ROUND]
            for element in ELEMENTS:
                put = partial(turns.put, element, id=element)
                self._recorder.call("element", put, tube=ROUND, id=element)
        with ExitStack() as ending:
            ending.callback(self._stop)
            for role, number in ACTORS.items():
                for _ in range(number):
                    self._start(role)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends or not enough(self.call_counts()):
                assert time.monotonic() < ends + PATIENCE, f"too little happened to mean anything: {self.description()}"
                self._inject_fault()
        return self._check()

    def call_counts(self) -> CallCounts:
        """How often each call was made so far, by its result."""
        return Counter((call.op, call.ok) for call in read(self.folder))

    def description(self) -> str:
        """A description for error messages: what happened, where the histories are, and the seed."""
        return f"PENSTOCK_SEED={self._seed}, histories in {self.folder}, {dict(self.call_counts())}"

    def _start(self, role: str) -> None:
        self._started += 1
        name = f"{role}{self._started}"
        words = [role, name, self.url, str(self.folder), str(self._seed), *self._defects]
        self._actors[name] = role, fork(act, *words, env=environment(), cwd=ROOT)

    def _inject_fault(self) -> None:
        self._pause.wait(self._random.uniform(0.1, 0.5) * (3 if self._outages else 1))
        if self._outages and self._random.random() < 0.5:
            return self._outages.inject(self._random, self._recorder)
        # Only processes that have started to work: with slow starts, the others would die before they did anything.
        begun = [name for name in self._actors if (self.folder / f"{name}.jsonl").exists()]
        if not begun:
            return None
        name = self._random.choice(begun)
        role, process = self._actors[name]
        if process.exitcode is not None:
            self._ended(name, process.exitcode)
        if self._random.random() < 0.4 or process.exitcode is not None:
            self._recorder.call("kill", lambda: self._kill(process), process=name)
            del self._actors[name]
            self._start(role)
        else:
            _send(process, signal.SIGSTOP)
            self._pause.wait(self._random.uniform(TTR, 2 * TTR))
            _send(process, signal.SIGCONT)
        return None

    def _kill(self, process: ForkServerProcess) -> None:
        process.kill()
        process.join()

    def _stop(self) -> None:
        for _, process in self._actors.values():
            process.terminate()
        for name, (_, process) in self._actors.items():
            process.join(20)
            if process.exitcode is None:
                self._recorder.call("kill", partial(self._kill, process), process=name)
            else:
                self._ended(name, process.exitcode)

    def _ended(self, name: str, code: int) -> None:
        """Wait for an actor, which must end by SIGTERM (even before it handles the signal) and never by an error."""
        if code not in (0, -signal.SIGTERM):
            self._crashed.append(Violation("L2", f"{name} crashed with exit code {code}; its traceback is above"))

    def _check(self) -> list[Violation]:
        with penstock.connect(self.url) as broker:
            tubes = {name: broker.tube(name) for name in TUBES}
            over = time.monotonic() + TTR + TOUCH  # of every lease: one that ended during a recount would spoil it
            until(lambda: time.monotonic() > over or not any(tube.stats().tasks.taken for tube in tubes.values()))
            found = [*self._crashed]
            found += [violation for tube in tubes.values() for violation in counters_equal_a_recount(broker, tube)]
            if self._outages and self._outages.loses_tails:
                calls = read(self.folder)
                found += rules.lost_tails(calls)
                self._cancel_open(tubes["grouped"], calls)  # the answer to its start was lost
                return found + [violation for tube in tubes.values() for violation in self._drained(tube)]
            attempts = {
                (name, task.id): task.attempts for name, tube in tubes.items() for task in tube.tasks(limit=10_000)
            }
            counted = {name: _calls(tube) for name, tube in tubes.items()}
            forgetful = self._outages is not None and self._outages.pooled
            final = Final(attempts, counted, answers_lost=self._outages is not None, leases_lost=forgetful)
            calls = read(self.folder)
            left = _left(broker)
            losses = [call for call in calls if forgetful and call.op in LOSSES]
            found += Checker(calls, final, ttr=TTR, limit=LIMIT).violations()
            found += rules.addresses(calls, left)
            found += rules.rounds(calls, left, PERIOD, losses)
            found += rules.messages(calls, left)
            if found:  # lost tasks are not drained either, however long this waits
                return found
            self._cancel_open(tubes["grouped"], calls)
            found += [violation for tube in tubes.values() for violation in self._drained(tube)]
            return found + list(rules.groups(read(self.folder)))

    def _cancel_open(self, tube: penstock.Tube, calls: list[Call]) -> None:
        """Cancel groups whose producer died before it started them."""
        for name in {call.facts["group"] for call in calls if call.facts.get("group")}:
            with suppress(penstock.NotFound):  # it was never stored
                group = tube.group(name, create=False)
                if group.status == "open":
                    cancel = partial(retry_while_busy, group.cancel)
                    self._recorder.call("cancel_group", cancel, tube=tube.name, group=name)

    def _drained(self, tube: penstock.Tube) -> list[Violation]:
        """L2: without faults, everything can be taken and acked; a busy machine may need a while."""
        tube.kick(10_000)
        ends = time.monotonic() + DRAIN_SECONDS
        while (left := tube.stats().tasks).total and time.monotonic() < ends:
            task = self._recorder.call("take", lambda: tube.take(2 * TTR), tube=tube.name, hand=0)
            if task is not None:  # its short lease may end on a busy machine: then it comes again
                self._recorder.call("ack", task.ack, tube=tube.name, id=task.id, lease=task.lease)
        why = [f"{task.id}: {tube.why(task.id)}" for task in tube.tasks(limit=5)]
        return [] if left.total == 0 else [Violation("L2", f"tube {tube.name} did not drain: {left}, {why}")]


def _send(process: ForkServerProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has crashed, which is found later
        os.kill(cast(int, process.pid), number)


def _left(broker: penstock.Broker) -> rules.Left:
    tubes = open_tubes(broker)
    messages = [task.id for pending in (False, True) for task in tubes[RELIABLE].inspect(0, 100_000, pending)]
    outcomes = {}
    for address in ADDRESSES:
        with suppress(TimeoutError):  # it is in its tube
            outcome = tubes["plain"].wait(address, 0)
            outcomes[address] = outcome.status, outcome.result
    return rules.Left(outcomes, frozenset(task.id for task in tubes[ROUND].tasks()), frozenset(messages))


def _calls(tube: penstock.Tube) -> dict[str, int]:
    calls = tube.stats().calls
    return {"put": calls.put, "take": calls.take, "ack": calls.ack}


def seed() -> int:
    """PENSTOCK_SEED repeats a run, as far as real processes allow."""
    return int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(2**32))
