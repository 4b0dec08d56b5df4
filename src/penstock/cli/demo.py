"""`penstock demo`: producers and workers, each in its own process, on one store, through tubes of every kind.

One worker is killed with `kill -9` while it holds tasks, and so is a consumer of messages; feeds are polled in turn.
At the end everything is counted: the demo fails if a task was lost, acked twice, early or out of turn.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from uuid import uuid4

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

import penstock
from penstock.cli import output
from penstock.cli.demo_roles import (
    FEEDS,
    KINDS,
    POISON,
    POPPED,
    TASKS,
    Done,
    Job,
    poll,
    pop_and_hang,
    produce,
    work,
    work_and_hang,
)
from penstock.errors import BadValue

PRODUCERS, WORKERS = 2, 3
EXPECTED = PRODUCERS * TASKS + 1  # in each tube, with its poisoned task
PERIOD = 0.4  # of the round tube, in seconds
MESSAGES = 1000  # pushed into the reliable tube
STUCK = 45  # the demo fails after this many seconds without an ack
# The most seconds from the kill until its tasks are ready again. Usually it is less than one, more on a busy machine.
# By the heartbeat alone it would be ten or more.
LATE = 9
PROCESSES = multiprocessing.get_context("spawn")


class Demo:
    """One run of the demo: starts all processes, kills one worker half-way, and collects the records of the others."""

    def __init__(self, url: str, console: Console) -> None:
        self.url, self.console = url, console
        self.prefix = f"demo-{uuid4().hex[:8]}-"  # a unique prefix for the names of its tubes
        self.broker = penstock.connect(url)
        # A kind is data: one line adds it, and it is stored with the tube, so the workers need not know it.
        penstock.register_kind(penstock.Kind("lifo", order=("-id",)))
        self.tubes = {kind: self.broker.tube(self.prefix + kind, kind=kind) for kind in KINDS}
        self.stats = {kind: tube.stats() for kind, tube in self.tubes.items()}
        self.notes: list[Done] = []
        self.held: dict[str, int] = {}  # kind -> tasks held by the worker that is killed
        self.killed_at: float | None = None
        self.noticed: dict[str, float] = {}  # kind -> seconds from the kill until they were ready again
        self.unleased: dict[str, penstock.TubeStats] = {}
        self.turns: list[tuple[str, float]] = []
        self.recovered: list[object] = []
        self.acked = 0

    def run(self) -> None:
        """Run the demo, from the first put to the last ack, and drop its tubes."""
        try:
            self.play()
        finally:
            for tube in self.broker.tubes():
                if tube.name.startswith(self.prefix):
                    found = self.broker.tube(tube.name)
                    found.truncate()
                    with suppress(penstock.TubeBusy):
                        found.drop()
            self.broker.close()

    def play(self) -> None:
        """Start all processes, and wait until everything is done."""
        stop = PROCESSES.Event()
        children = [start(produce, self.url, self.prefix, number) for number in range(PRODUCERS)]
        inbox, outbox = PROCESSES.Pipe(duplex=False)
        victim = start(work_and_hang, self.url, self.prefix, outbox)
        outbox.close()  # so that a worker's death is an EOFError here
        notes, self.held = inbox.recv()  # wait before the others start, which might leave it no tasks to hold
        self.notes += notes
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(WORKERS)]
        children += [start(work, self.url, self.prefix, outbox, stop) for _, outbox in pipes]
        self.watch(victim)
        stop.set()
        for inbox, outbox in pipes:
            outbox.close()
            self.notes += inbox.recv()
        for child in children:
            child.join()
        self.poll_feeds()
        self.recover_messages()

    def poll_feeds(self) -> None:
        """Run several pollers on one round tube."""
        tube = self.broker.tube(self.prefix + "round", "round", period=PERIOD)
        tube.put_many([(f"https://{number}.example/rss", {"id": f"feed {number}"}) for number in range(FEEDS)])
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(WORKERS)]
        pollers = [start(poll, self.url, self.prefix, outbox) for _, outbox in pipes]
        self.turns = [turn for inbox, _ in pipes for turn in inbox.recv()]
        for poller in pollers:
            poller.join()
        self.unleased["round"] = tube.stats()

    def recover_messages(self) -> None:
        """Kill a consumer that holds messages; another one recovers them and pops the rest."""
        tube = self.broker.tube(self.prefix + "reliable", "reliable")
        tube.put_many(range(MESSAGES))
        inbox, outbox = PROCESSES.Pipe(duplex=False)
        victim = start(pop_and_hang, self.url, self.prefix, outbox)
        inbox.recv()
        victim.kill()
        recovered = tube.recover(MESSAGES, elapsed=0)
        rest = tube.take_many(MESSAGES)
        self.recovered = [task.data for task in recovered]
        self.acked = len(tube.ack_many([*rest, *recovered]))
        self.unleased["reliable"] = tube.stats()

    def watch(self, victim: SpawnProcess) -> None:
        """Show progress and kill the worker, until every task is done or progress stops."""
        columns = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn())
        bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        rows = {kind: bars.add_task(kind, total=EXPECTED) for kind in KINDS}
        acked, deadline, next_line = 0, time.monotonic() + STUCK, 0.0
        with bars:
            while time.monotonic() < deadline and any(s.calls.ack < EXPECTED for s in self.stats.values()):
                time.sleep(0.05)
                self.check_tubes(bars, rows)
                if (total := sum(stats.calls.ack for stats in self.stats.values())) > acked:
                    acked, deadline = total, time.monotonic() + STUCK
                if self.killed_at is None and acked > len(self.notes):  # the others are working
                    self.kill(victim)
                if bars.disable and time.monotonic() >= next_line:
                    next_line = time.monotonic() + 1
                    done = (f"{kind} {stats.calls.ack}" for kind, stats in self.stats.items())
                    self.console.print(f"acked of {EXPECTED} each:", *done)

    def kill(self, victim: SpawnProcess) -> None:
        """Kill the worker with kill -9, so that it closes nothing. Then put a poisoned task into every tube."""
        victim.kill()
        self.killed_at = time.monotonic()
        self.console.print(f"killed worker {victim.pid}, which held {sum(self.held.values())} tasks")
        for tube in self.tubes.values():
            tube.put(Job(POISON, not_before=0))

    def check_tubes(self, bars: Progress, rows: dict[str, TaskID]) -> None:
        """Read the counters, record when the dead worker's tasks are ready again, and kick the buried tasks."""
        for kind, tube in self.tubes.items():
            stats = self.stats[kind] = tube.stats()
            if self.killed_at and kind not in self.noticed and stats.calls.release >= self.held[kind]:
                self.noticed[kind] = time.monotonic() - self.killed_at
            if stats.tasks.buried:
                tube.kick()
            bars.update(rows[kind], completed=stats.calls.ack)


def start(target: object, *args: object) -> SpawnProcess:
    """Start a process that ends with this one."""
    process = PROCESSES.Process(target=target, args=args, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process


def problems(play: Demo, kind: str) -> list[str]:
    """The problems found in one tube, as text."""
    acked = [done for done in play.notes if done.tube == kind]
    names, stats, held = {done.job.name for done in acked}, play.stats[kind], play.held.get(kind, 0)
    calls = stats.calls
    found = {
        f"{EXPECTED - len(names)} tasks lost": len(names) != EXPECTED,
        f"{len(acked) - len(names)} tasks acked twice": len(acked) != len(names),
        f"its counters are {stats}": (calls.put, calls.ack, stats.tasks.total) != (EXPECTED, EXPECTED, 0),
        f"{held} were held at the kill, {calls.release} came back": not held or calls.release != held,
        "the killed worker's tasks came back late": play.noticed.get(kind, LATE) >= LATE,
        "not exactly one task was buried and kicked": (calls.bury, calls.kick) != (1, 1),
        # A millisecond is the store's unit of time.
        "a delayed task came early": any(done.began < done.job.not_before - 0.001 for done in acked),
        "two tasks of one customer ran at once": kind.startswith("utube") and overlaps(acked),
    }
    return [f"{kind}: {what}" for what, wrong in found.items() if wrong]


def unleased_problems(play: Demo) -> list[str]:
    """The problems found in the two tubes without leases, as text."""
    ordered = sorted(play.turns)
    early = sum(one[0] == next[0] and next[1] - one[1] < PERIOD - 0.0005 for one, next in pairwise(ordered))
    found = {
        f"round: {early} feeds came again within their period": early > 0,
        "round: a feed never had its turn": len({id for id, _ in play.turns}) != FEEDS,
        "reliable: recover did not return the killed consumer's messages": play.recovered != list(range(POPPED)),
        f"reliable: {play.acked} of {MESSAGES} acked": play.acked != MESSAGES,
        "reliable: messages are left": play.unleased["reliable"].tasks.total != 0,
    }
    return [what for what, wrong in found.items() if wrong]


def overlaps(acked: list[Done]) -> bool:
    """Whether two tasks of one micro-queue ran at the same time."""
    ordered = sorted(acked, key=lambda done: (str(done.customer), done.began))
    return any(one.customer == next.customer and next.began < one.ended for one, next in pairwise(ordered))


def summary(play: Demo) -> Table:
    """A table of what happened in each tube."""
    table = Table("tube", title="what happened")
    for heading in ("put", "taken", "acked", "came back", "buried/\nkicked", "tasks/s", "kill\nnoticed"):
        table.add_column(heading, justify="right")
    for kind, stats in play.stats.items():
        calls = stats.calls
        noticed = f"{play.noticed[kind]:.2f} s" if kind in play.noticed else "never"
        counts = (calls.put, calls.take, calls.ack, calls.release, f"{calls.bury}/{calls.kick}")
        table.add_row(kind, *map(str, counts), f"{rate(play, kind):,.0f}", noticed)
    for kind, stats in play.unleased.items():
        table.add_row(kind, str(stats.calls.put), str(stats.calls.take), str(stats.calls.ack))
    return table


def rate(play: Demo, kind: str) -> float:
    """Tasks per second, from the first ack to the last."""
    times = [done.ended for done in play.notes if done.tube == kind] or [0.0]
    return len(times) / max(max(times) - min(times), 0.001)


def facts(play: Demo, wrong: list[str], seconds: float) -> dict[str, object]:
    """The summary for --json."""
    tubes = [
        {
            "tube": kind, "calls": stats.calls, "rate": round(rate(play, kind), 1),
            "kill_noticed": round(play.noticed[kind], 3) if kind in play.noticed else None,
        }
        for kind, stats in play.stats.items()
    ]  # fmt: skip
    unleased = [{"tube": kind, "calls": stats.calls} for kind, stats in play.unleased.items()]
    return {"wrong": wrong, "seconds": round(seconds, 1), "tasks": len(play.notes), "tubes": tubes + unleased}


@click.command()
@click.option("--url", help="The store; a SQLite file in a temporary folder if it is not given.")
@output.json_option
def demo(url: str | None, as_json: bool) -> None:
    """Show penstock at work: producers, workers and a kill -9, every task counted.

    \b
    penstock demo
    penstock demo --url redis://localhost/0

    It uses its own tubes and drops them at the end. Exit code 1 if a task was lost, acked twice, early or
    out of turn. With --json, the text for people goes to standard error.
    """
    if url is not None and url.startswith("memory:"):
        raise BadValue("the demo starts several processes, which cannot share memory://: give another --url, or none")
    stream = sys.stderr if as_json else sys.stdout
    console, began = Console(stderr=as_json, width=None if stream.isatty() else 110), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        play = Demo(url or f"sqlite:///{folder}/queue.db", console)
        play.run()
    console.print(summary(play))
    wrong = [line for kind in KINDS for line in problems(play, kind)] + unleased_problems(play)
    if as_json:
        output.as_json(facts(play, wrong, time.monotonic() - began))
    for line in wrong:
        console.print(f"[red]wrong:[/red] {line}")
    if wrong:
        sys.exit(1)
    console.print(
        f"[green]verified[/green] in {time.monotonic() - began:.1f} s: {len(play.notes):,} tasks put and acked, "
        f"0 lost, 0 twice, 0 early;\n{sum(play.held.values())} of the killed worker came back, "
        f"{len(KINDS)} were buried and kicked;\n{len(play.turns)} turns of {FEEDS} feeds, none early; "
        f"{play.acked:,} messages acked, {len(play.recovered)} of them recovered from a killed consumer"
    )
