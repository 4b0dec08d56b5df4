"""The app of the worker tests: handlers that report what they do, and wait until a test lets them continue.

They report by tasks in the tube `reported`, and wait for tasks in the tubes `go-…`, on the store of the app.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import penstock

app = penstock.App()
FAST = penstock.Backoff(base=0.01, factor=1, jitter=0)


def report_event(what: object) -> None:
    """Send a message to the test."""
    app.broker.tube("reported").put(what)


def await_word(word: str) -> None:
    """Wait until the test has sent this word."""
    app.broker.tube(f"go-{word}").take(120)


@app.task
def echo(value: int) -> int:
    return value


@app.task
def noop(value: int) -> None:
    pass


@app.task(tube="slow")
def hold(word: str) -> str:
    """Report the start, and end when the test says so."""
    report_event(["began", word, os.getpid()])
    await_word(word)
    return word


@app.task(tube="slow", ttr=1.5)
def hold_leased(word: str) -> str:
    report_event(["began", word, os.getpid()])
    await_word(word)
    return word


@app.task(max_attempts=3, backoff=FAST)
def fail(message: str) -> None:
    report_event(["attempt", penstock.current_task().attempts])
    raise ValueError(message)


@app.task(backoff=FAST)
def retry_until(attempts: int) -> int:
    made = int(penstock.current_task().attempts)
    if made < attempts:
        raise penstock.Retry(0.01, "not yet")
    return made


@app.task
def bury(reason: str) -> None:
    raise penstock.Bury(reason)


def refuse(how: str) -> None:
    """Raise a signal without a reason, while another exception is handled."""
    try:
        raise OSError("451 try later")
    except OSError as error:
        if how == "retry from":
            raise penstock.Retry(0.01) from error
        if how == "hidden":
            raise penstock.Bury from None
        raise penstock.Bury  # noqa: B904 - the error that it hides is what the test reads


@app.task(max_attempts=2)
def refuse_here(how: str) -> None:
    refuse(how)


@app.task(tube="processes", executor="process", max_attempts=2)
def refuse_in_process(how: str) -> None:
    refuse(how)


@app.task(max_attempts=2)
def die() -> None:
    report_event(["dying", penstock.current_task().attempts])
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(tube="slow")
def report(word: str) -> None:
    penstock.current_task().progress = 0.4
    report_event(["began", word])
    await_word(word)


@app.task(tube="slow", ttr=1.5)
def outlive() -> str:
    """Work until the lease is lost, then report it."""
    task = penstock.current_task()
    report_event(["began", task.lease])
    end = time.monotonic() + 120
    while not task.lost and time.monotonic() < end:
        time.sleep(0.005)
    report_event(["lost", task.lease, task.lost])
    return "too late"


@app.task(tube="fibonacci")
def fibonacci(number: int) -> int:
    """Waits for tasks of the same handler: with one slot this only ends because a waiting handler frees its slot."""
    if number < 2:
        return number
    handles = [fibonacci.put(number - 1), fibonacci.put(number - 2)]
    with penstock.waiting():
        return sum(handle.result(120) for handle in handles)


@app.task(tube="async")
async def gather(numbers: list[int]) -> int:
    await asyncio.sleep(0)
    return sum(numbers)


@app.task(tube="async", ttr=1.5)
async def hold_async(word: str) -> str:
    """Report the start; end when the test says so, or when cancelled."""
    try:
        await asyncio.to_thread(report_event, ["began", word])
        await asyncio.to_thread(await_word, word)
    except asyncio.CancelledError:
        report_event(["cancelled", word])
        raise
    return word


@app.task(tube="async")
async def fibonacci_async(number: int) -> int:
    if number < 2:
        return number
    handles = [fibonacci_async.put(number - 1), fibonacci_async.put(number - 2)]
    async with penstock.waiting():
        return sum([await asyncio.to_thread(handle.result, 120) for handle in handles])


@app.task(tube="processes", executor="process")
def square(number: int) -> list[int]:
    return [number * number, os.getpid()]


@app.task(tube="processes", executor="process", ttr=0.5, max_attempts=1)
def spin() -> None:
    """Never end, and keep the interpreter lock most of the time."""
    while True:
        pass


@app.task(tube="processes", executor="process", max_attempts=2, backoff=FAST)
def crash(how: str) -> None:
    if how == "raise":
        raise ValueError("caf\udce9")  # like a file name that is not UTF-8
    if how == "bury":
        raise penstock.Bury("enough")
    if how == "percent":
        penstock.current_task().progress = 40
        await_word("never")
    signal.raise_signal(signal.SIGSEGV)


@app.task(tube="processes", executor="process")
def hold_process(word: str) -> str:
    penstock.current_task().progress = 0.25
    report_event(["began", word, os.getpid()])
    await_word(word)
    return word


@app.task(tube="processes", executor="process")
def fibonacci_process(number: int) -> int:
    if number < 2:
        return number
    handles = [fibonacci_process.put(number - 1), fibonacci_process.put(number - 2)]
    with penstock.waiting():
        return sum(handle.result(120) for handle in handles)


@app.task(tube="slow")
def read_fifo(path: str) -> None:
    """End when something was written to the named pipe; needs no store."""
    report_event("reading")
    with open(path) as fifo:
        fifo.read()


def note(path: str, what: str) -> None:
    """Append one line in one write: what, which task, which attempt, which process, and when by the shared clock."""
    task = penstock.current_task()
    line = f"{what} {task.tube} {task.id} {task.lease} {os.getpid()} {time.monotonic()}\n"
    with open(path, "a") as journal:
        journal.write(line)


@app.task(tube="campaign", max_attempts=1000)
def journal(path: str) -> None:
    note(path, "start")
    time.sleep(0.01)
    note(path, "end")


@app.task(tube="campaign-processes", max_attempts=1000, executor="process")
def journal_process(path: str) -> None:
    note(path, "start")
    time.sleep(0.01)
    note(path, "end")


@app.task(tube="processes", executor="process", ttr=0.5, max_attempts=1)
def wait_forever() -> None:
    """Killed while another task uses its slot."""
    with penstock.waiting():
        time.sleep(60)


@app.task(tube="async", max_attempts=1)
async def block_the_loop() -> None:
    with penstock.waiting():
        pass


@app.task(tube="rules", max_attempts=3, backoff=FAST)
def stumble(word: str = "") -> None:
    report_event(["stumbled", penstock.current_task().attempts])
    raise ValueError("no")


@app.task(tube="rules")
def snooze(times: int, seconds: float) -> int:
    """Release itself that many times."""
    tube = app.broker.tube("snoozed")
    if tube.stats().calls.put < times:
        tube.put(0)
        raise penstock.Snooze(seconds)
    return int(penstock.current_task().attempts)


@app.task(tube="rules", backoff=FAST)
def give_way(number: int) -> None:
    raise ValueError(number)


@app.task(tube="rules")
def give_in(error: str, code: int | None = None) -> str:
    raise penstock.Fail(error, code)


@app.task(tube="rules", time_limit=0.2, max_attempts=2, backoff=FAST)
def hang(word: str) -> None:
    """A thread that cannot be ended."""
    report_event(["began", word])
    await_word(word)


@app.task(tube="rules", time_limit=0.2, max_attempts=2, backoff=FAST)
def hang_aside(word: str) -> None:
    with penstock.waiting():
        await_word(word)


@app.task(tube="limited-async", time_limit=0.2, max_attempts=1)
async def hang_async(stubborn: bool = False) -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if not stubborn:
            raise
    return "too late"


@app.task(tube="processes", executor="process", time_limit=0.2, max_attempts=1, ttr=30)
def hang_process() -> None:
    time.sleep(60)


@app.task(tube="processes", executor="process")
def signal_process(what: str) -> None:
    if what == "snooze" and not app.broker.tube("snoozed").stats().calls.put:
        app.broker.tube("snoozed").put(0)
        raise penstock.Snooze(0.01)
    if what == "fail":
        raise penstock.Fail("gone", "E1")
    report_event(["attempt", penstock.current_task().attempts])


@app.task(tube="rules", ttr=0.7, max_attempts=2)
def hold_rules(word: str) -> None:
    report_event(["began", word, penstock.current_task().attempts])
    await_word(word)


@app.task(tube="rules", max_attempts=2, backoff=FAST)
def die_raw() -> None:
    report_event(["dying", penstock.current_task().attempts])
    # To this thread: a signal to the process may arrive after the handler has returned and its task is acked.
    signal.raise_signal(signal.SIGSEGV)


def report_loss(lease: int) -> None:
    """Report what `check` raises."""
    try:
        penstock.current_task().check()
    except penstock.LeaseLost as error:
        report_event([type(error).__name__, error.cause, lease])


@app.task(tube="watched")
def watch_lease() -> None:
    """Work until the lease is lost."""
    task = penstock.current_task()
    task.check()
    report_event(["began", task.lease])
    end = time.monotonic() + 60
    while not task.lost and time.monotonic() < end:
        time.sleep(0.005)
    report_loss(task.lease)


@app.task(tube="watched")
def linger(word: str) -> None:
    """Keep running after the lease is lost."""
    report_event(["began", penstock.current_task().lease])
    await_word(word)
    report_event("ended")


@app.task(tube="async")
async def watch_lease_async() -> None:
    lease = penstock.current_task().lease
    await asyncio.to_thread(report_event, ["began", lease])
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        report_loss(lease)
        raise


@app.task(tube="processes", executor="process")
def watch_lease_process(path: str) -> None:
    report_event(["began", os.getpid()])
    time.sleep(60)


def note_batch(rows: list[int]) -> list[str] | None:
    """Record what the batch handlers do, by their rows."""
    tasks = penstock.current_tasks()
    report_event(["batch", rows, [task.attempts for task in tasks]])
    if -1 in rows:
        raise ValueError("a bad row")
    if -2 in rows:
        raise penstock.Failures({rows.index(-2): ValueError("this one"), 0: penstock.Bury("and this")})
    if -3 in rows:
        raise penstock.Fail("all of them")
    if -4 in rows and len(rows) > 1:
        return ["too few"]
    if -5 in rows:
        signal.raise_signal(signal.SIGSEGV)
    if -6 in rows:
        penstock.current_task()
    return [f"row {row}" for row in rows]


@app.task(tube="rows", batch=5, linger=0.3, max_attempts=2, backoff=FAST)
def store_rows(rows: list[int]) -> list[str] | None:
    return note_batch(rows)


@app.task(tube="rows-async", batch=5, linger=0.3, max_attempts=1)
async def store_rows_async(rows: list[int]) -> list[str] | None:
    return await asyncio.to_thread(note_batch, rows)


@app.task(tube="rows-process", batch=5, linger=0.3, max_attempts=1, executor="process")
def store_rows_process(rows: list[int]) -> list[str] | None:
    return note_batch(rows)


@app.task(tube="rows", batch=100, linger=0.2)
def hold_rows(rows: list[str]) -> None:
    """Work until all leases are lost, or the test says so."""
    report_event(["holding", len(rows)])
    tasks = penstock.current_tasks()
    end = time.monotonic() + 60
    while not all(task.lost for task in tasks) and time.monotonic() < end:
        if any(task.lost for task in tasks):
            report_event(["lost", [task.lost for task in tasks]])
            return
        time.sleep(0.01)


@app.task(tube="rows", batch=3, time_limit=0.2, max_attempts=1)
def hang_rows(words: list[str]) -> None:
    for word in words:
        await_word(word)


@app.task(tube="chunks", executor="process", max_attempts=3, backoff=FAST)
def chunked(number: int, path: str) -> int:
    """A fast handler, except for some arguments; records that it ran."""
    with open(path, "a") as journal:
        journal.write(f"{number}\n")
    if number and number % 97 == 0:
        time.sleep(0.0495 + number % 7 * 0.0003)  # about as long as the worker waits before it requests the others
    if number == -1:
        await_word("chunk")
    if number == -2 and penstock.current_task().attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
