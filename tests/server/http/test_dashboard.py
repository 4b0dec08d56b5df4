"""The dashboard in a real browser: pages, buttons, live charts, a phone, the keyboard, hostile data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import penstock
from penstock.app.schedules import declared
from penstock.broker import admin
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.auth import Role, Tokens, token_line
from penstock.server.http import bulk, navigation, views
from penstock.server.http.audit_trail import AuditTrail
from penstock.server.http.history import History
from penstock.worker.report import HandlerRuns, WorkerReport, worker_notes
from penstock.worker.worker_stats import Runs
from tests.server.http.browser import launched, watched
from tests.server.http.server_thread import PATIENCE, Serving, serving
from tests.support.threads import until

HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=1">\'"&{{7*7}}</pre>'
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PAGES = [
    *("/", "/?q=mail&order=ready", "/?span=1h", "/handlers", "/handlers?span=live"),
    *("/sessions", "/groups", "/schedules", "/callbacks", "/bulk", "/audit"),
    *("/tubes/mail", "/tubes/mail?status=buried", "/tubes/mail?q=script", "/tubes/mail/groups", "/tubes/mail/put"),
    *("/tubes/mail/tasks/1", "/tubes/mail/tasks/2", "/tubes/mail/tasks/8"),
    *("/tubes/micro_queues", "/tubes/micro_queues/utubes", "/tubes/micro_queues/tasks/1"),
]


SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture(autouse=True)
def no_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No minute ends during a test, which would write history: tests write it themselves."""

    async def load_only(history: History) -> None:
        await history.load()
        await asyncio.Event().wait()

    monkeypatch.setattr(History, "run", load_only)


@pytest.fixture
def store_url() -> str:
    return "memory://dashboard"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watched(browser) as opened:
        yield opened


@pytest.fixture
def filled(direct: penstock.Broker) -> penstock.Broker:
    """A store with an example of everything, with hostile text in every text field."""
    mail = direct.tube("mail", ttr=60, max_attempts=3)
    mail.put({HOSTILE: [HOSTILE, 1.5, None]}, address=HOSTILE)
    mail.bury(1, HOSTILE)
    mail.put(HOSTILE, callback="https://hooks.example/x?a=<b>")
    mail.put(HOSTILE.encode())
    mail.put(b"\x00\xff" * 40, delay=3600)
    mail.group("monthly").put_many([1, 2, 3])
    mail.put(8)
    mail.cancel(8, HOSTILE)
    micro_queues = direct.tube("micro_queues", "utubettl", ttr=3600)
    micro_queues.put_many([(n, {"utube": HOSTILE}) for n in range(3)] + [(9, {"utube": "calm"})])
    micro_queues.take(0)
    report(direct, name=HOSTILE)
    app = penstock.App()
    app.cron("30 2 * * *", tube="mail")(_nightly)
    schedule_status.save(direct.tube(SCHEDULE_TUBE), [declared(app.schedules)[0].record(mail)])
    return direct


def _nightly() -> None: ...


def report(broker: penstock.Broker, **changes: Any) -> None:
    """Store a worker's report."""
    runs = Runs()
    for number in range(10):
        runs.note(0.02 * (number + 1), failed=number == 0)
    made = WorkerReport(
        "w1", "shop:app", "web-3", 4242, "0.1.0", 16, 3, ["mail"], time.time() - 60, time.time(), False,
        [HandlerRuns("send_mail", "mail", runs)],
    )  # fmt: skip
    made = msgspec.structs.replace(made, **changes)
    worker_notes(broker.runtime).write(made.id, msgspec.to_builtins(made), 40)


def take(tube: penstock.Tube) -> penstock.Task:
    task = tube.take(0)
    assert task is not None
    return task


# How far the cells of a table's rows are from the headings above them.
MISALIGNED_CELLS = """() => [...document.querySelectorAll("table")].flatMap((table) => {
  const places = (row) => [...row.cells].map((cell) => Math.round(cell.getBoundingClientRect().left));
  const head = places(table.tHead.rows[0]);
  return [...table.tBodies[0].rows].filter((row) => String(places(row)) !== String(head)).map((row) => row.innerText);
})"""


def test_cells_are_aligned_with_their_headings(server: Serving, filled: penstock.Broker, page: Page) -> None:
    for path in ("/", "/sessions", "/groups", "/schedules", "/callbacks", "/tubes/mail"):
        page.goto(server.url + path)
        assert page.locator("tbody tr").count() > 0, path
        assert page.evaluate(MISALIGNED_CELLS) == [], path


def test_hostile_data_is_shown_as_text(server: Serving, filled: penstock.Broker, page: Page) -> None:
    for path in PAGES:
        answer = page.goto(server.url + path)
        assert answer is not None
        assert answer.status == 200, path
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("main img, main script").count() == 0, path
        expect(page.locator("h1")).to_be_visible()


def test_hostile_data_can_be_read(server: Serving, filled: penstock.Broker, page: Page) -> None:
    for path in ("/tubes/mail/tasks/1", "/tubes/mail", "/tubes/micro_queues/utubes", "/tubes/mail?q=script"):
        page.goto(server.url + path)
        expect(page.locator("main")).to_contain_text("<script>window.pwned=1</script>")


def test_error_pages_show_hostile_names_as_text(server: Serving, browser: Browser) -> None:
    for path in ("/tubes/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "/tubes/none", "/?order=%3Cb%3E"):
        answer = httpx.get(server.url + path, timeout=PATIENCE)
        assert 400 <= answer.status_code < 500
        assert "<script>alert" not in answer.text
        assert "<b>" not in answer.text


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_a_buried_task_is_retried(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/tubes/mail/tasks/1")
    press(page, "Retry")
    expect(page.get_by_role("status")).to_have_text("The task is ready again.")
    assert filled.tube("mail").peek(1).status == "r"
    press(page, "Bury")
    expect(page.get_by_role("status")).to_have_text("Task buried.")
    assert filled.tube("mail").peek(1).reason == "buried in the dashboard"


def test_a_taken_task_is_released(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/tubes/micro_queues/tasks/1")
    expect(page.locator(".why")).to_contain_text("held")
    expect(page.locator("button.primary")).to_have_count(0)
    page.get_by_text("Release", exact=True).click()
    press(page, "Yes, release")
    expect(page.get_by_role("status")).to_have_text("Task released.")
    assert filled.tube("micro_queues").peek(1).status == "r"


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_tubes_named_like_parts_of_objects_do_not_stop_the_script(
    server: Serving, direct: penstock.Broker, page: Page, name: str
) -> None:
    tube, other = direct.tube(name), direct.tube("zebra")
    page.goto(server.url)
    for count in (1, 2):  # in the second message only the other one has changed
        if count == 1:
            tube.put(1)
        other.put(count)
        expect(page.locator('[data-tube="zebra"] [data-count="ready"]')).to_have_text(str(count))
    expect(page.locator(f'[data-tube="{name}"] [data-count="ready"]')).to_have_text("1")


def test_a_task_is_deleted_after_a_confirmation(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/tubes/mail/tasks/2")
    page.get_by_text("Delete", exact=True).click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Yes, delete")).to_be_hidden()
    page.get_by_text("Delete", exact=True).click()
    press(page, "Yes, delete")
    expect(page.get_by_role("status")).to_have_text("Task deleted.")
    assert 2 not in filled.tube("mail")


def test_a_task_is_cancelled_after_a_confirmation(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/tubes/mail/tasks/1")
    page.get_by_text("Cancel", exact=True).click()
    press(page, "Yes, cancel")
    expect(page.get_by_role("status")).to_have_text("Task cancelled.")
    expect(page.locator(".why")).to_contain_text("The task was cancelled.")
    expect(page.locator("pre.reason")).to_have_text("cancelled in the dashboard")
    assert filled.tube("mail").wait(HOSTILE, 0) == penstock.Outcome("cancelled", error="cancelled in the dashboard")


def test_the_buttons_of_a_tube(server: Serving, filled: penstock.Broker, page: Page) -> None:
    tube = filled.tube("mail")
    page.goto(f"{server.url}/tubes/mail")
    press(page, "Pause")
    expect(page.locator(".badge")).to_have_text("paused")
    assert tube.take(0) is None
    press(page, "Resume")
    expect(page.get_by_role("status")).to_have_text("Tube resumed.")
    page.get_by_text("Truncate", exact=True).click()
    press(page, "Yes, truncate")
    expect(page.get_by_role("status")).to_contain_text("Tasks removed: ")
    assert tube.stats().tasks.total == 0
    page.get_by_text("Drop", exact=True).click()
    press(page, "Yes, drop")
    expect(page.get_by_role("status")).to_have_text("Tube dropped.")
    assert [info.name for info in filled.tubes()] == ["micro_queues", SCHEDULE_TUBE]


def test_selected_tasks_are_retried_and_deleted(server: Serving, direct: penstock.Broker, page: Page) -> None:
    tube = direct.tube("mail")
    tube.put_many(range(6))
    for id in (1, 2, 3):
        tube.bury(id, "broken")
    page.goto(f"{server.url}/tubes/mail?status=buried")
    expect(page.locator('nav[aria-label="Tasks by state"] [aria-current]')).to_have_text("buried 3")
    press(page, "Retry")
    expect(page.get_by_role("status")).to_contain_text("No task is selected")
    page.get_by_label("Select task 1").check()
    page.get_by_label("Select task 3").check()
    expect(page.locator("[data-picked]")).to_have_text("2 selected")
    press(page, "Retry")
    expect(page.get_by_role("status")).to_have_text("Tasks retried: 2.")
    assert [str(task.status) for task in tube.tasks()] == ["r", "!", "r", "r", "r", "r"]
    page.goto(f"{server.url}/tubes/mail")
    page.get_by_label("Select all tasks of this page").check()
    page.get_by_label("Select task 2").uncheck()
    page.locator("#bulk summary", has_text="Delete").click()
    press(page, "Yes, delete")
    expect(page.get_by_role("status")).to_have_text("Tasks deleted: 5.")
    assert [task.id for task in tube.tasks()] == [2]


def test_all_tasks_that_match_are_cancelled_in_the_background(
    server: Serving, direct: penstock.Broker, page: Page
) -> None:
    tube = direct.tube("mail")
    tube.put_many([f"{'odd' if n % 2 else 'even'} {n}" for n in range(1, 1201)])
    page.goto(f"{server.url}/tubes/mail?status=ready&q=odd")
    page.get_by_label("all ready tasks with").check()
    page.locator("#bulk summary", has_text="Cancel").click()
    press(page, "Yes, cancel")
    expect(page.locator("h1")).to_have_text("Bulk actions")
    expect(page.locator("tbody .status")).to_have_text("done")  # without a reload
    expect(page.locator("tbody th")).to_have_text("cancel ready tasks with odd")
    expect(page.locator('td[data-label="changed"]')).to_have_text("600")
    expect(page.locator("tbody progress")).to_have_attribute("value", "1.0")
    assert tube.stats().tasks.ready == 600
    page.goto(f"{server.url}/audit")
    expect(page.locator("tbody th")).to_have_text(["started to cancel all ready tasks with 'odd' of tube mail"])


def test_a_bulk_action_continues_on_another_server(
    store_url: str, direct: penstock.Broker, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = direct.tube("mail")
    tube.put_many(range(200))
    monkeypatch.setattr(bulk, "STEP", 10)

    def change_slowly(*arguments: Any) -> int:
        time.sleep(0.5)
        return admin.change_many(*arguments)

    with serving(store_url) as first, monkeypatch.context() as patch:
        patch.setattr(bulk, "change_many", change_slowly)
        form = {"csrf_token": first.app.server.authentication.logins.csrf_token(""), "verb": "delete", "all": "1"}
        assert first.client.post("/tubes/mail/bulk", data=form).status_code == httpx.codes.SEE_OTHER
        first.await_in_loop(first.app.jobs.close())
    assert tube.stats().tasks.ready > 0
    with serving(store_url) as second:
        page.goto(f"{second.url}/bulk")
        expect(page.locator("tbody .status")).to_have_text("done")
    assert tube.stats().tasks.ready == 0


def test_one_server_continues_what_a_dead_one_left_and_any_can_stop_it(store_url: str, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put_many(range(20))
    with serving(store_url) as first, serving(store_url) as second:
        jobs, others = first.app.jobs, second.app.jobs
        left = bulk.Job("0a1b2c3d", "mail", "delete", bulk.Search(None, ""), "ada", 20, 20, 0.0, after=15, read=15)
        unwanted = bulk.Job("4e5f6071", "mail", "delete", bulk.Search(None, ""), "ada", 20, 20, 0.0)
        for job in (left, unwanted):
            first.await_in_loop(jobs._record(job, at=1.0))
        second.await_in_loop(others.stop("4e5f6071"))
        for server in (first, second):
            server.await_in_loop(server.app.jobs.continue_lost())
        # The server that runs an action shows it as ended a moment after it has stored the end.
        until(
            lambda: all(
                job.ended for server in (first, second) for job in server.await_in_loop(server.app.jobs.newest_first())
            )
        )
        assert [(job.state, job.changed) for job in second.await_in_loop(others.newest_first())] == [
            ("stopped", 0),
            ("done", 5),
        ]
    assert [task.id for task in tube.tasks()] == list(range(1, 16))


def test_actions_are_recorded_for_the_audit(
    store_url: str, direct: penstock.Broker, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line(Role.ADMIN, "secret", "Ada"))
    with serving(store_url, Tokens(file)) as guarded:
        direct.tube("mail").put(1)
        page.goto(f"{guarded.url}/login?next=/tubes/mail")
        page.get_by_label("Token").fill("secret")
        press(page, "Log in")
        press(page, "Pause")
        page.goto(f"{guarded.url}/tubes/mail/tasks/1")
        press(page, "Bury")
        page.goto(f"{guarded.url}/audit")
        expect(page.locator("tbody th")).to_have_text(["buried task 1 of tube mail", "paused tube mail"])
        expect(page.locator("tbody td[data-label=who]").first).to_have_text("Ada (admin, 127.0.0.1)")
        page.get_by_role("link", name="buried task 1").click()
        expect(page.locator("h1")).to_have_text("Task 1")
    assert [info.name for info in direct.tubes()] == ["mail"]


def test_a_task_is_put(server: Serving, direct: penstock.Broker, browser: Browser) -> None:
    with watched(browser, refused=True) as page:
        put_in_browser(server, direct.tube("mail"), page)


def put_in_browser(server: Serving, tube: penstock.Tube, page: Page) -> None:
    page.goto(f"{server.url}/tubes/mail")
    page.get_by_role("link", name="Put a task").click()
    page.get_by_label("Data").fill('{"to": ')
    page.get_by_label("delay").fill("3600")
    press(page, "Put")
    expect(page.get_by_role("alert")).to_contain_text("data is not JSON")
    expect(page.get_by_label("delay")).to_have_value("3600")
    page.get_by_label("Data").fill('{"to": "ada"}')
    press(page, "Put")
    expect(page.get_by_role("status")).to_have_text("Task put.")
    task = tube.peek(1)
    assert (task.data, str(task.status)) == ({"to": "ada"}, "~")


def test_a_task_that_has_ended(server: Serving, direct: penstock.Broker, page: Page) -> None:
    tube = direct.tube("mail")
    tube.put_many([(1, {"address": "order 7"}), 2, 3])
    first, second, third = tube.take_many(3)
    first.ack({"sent": True})
    second.fail("no such mailbox", 550)
    third.ack()
    page.goto(f"{server.url}/tubes/mail/tasks/1")
    expect(page.locator(".head")).to_contain_text("done")
    expect(page.locator("pre")).to_contain_text('"sent": true')
    page.goto(f"{server.url}/tubes/mail/tasks/2")
    expect(page.locator("h2").first).to_have_text("Error (code 550)")
    expect(page.locator("details.attempt")).to_contain_text("attempt 1")
    page.goto(f"{server.url}/tubes/mail/tasks/3")
    expect(page.locator(".why")).to_contain_text("how it ended is not kept")
    assert server.get("/tubes/mail/tasks/4").status_code == 404


def test_errors_are_pages_with_navigation(server: Serving, filled: penstock.Broker, browser: Browser) -> None:
    for path, title in (("/nowhere", "Not found"), ("/tubes/none", "Not found"), ("/?page=x", "Request failed")):
        answer = httpx.get(server.url + path, headers={"accept": "text/html"})
        assert 'aria-label="Main"' in answer.text, path
        assert f"<h1>{title}</h1>" in answer.text, path
    with watched(browser, refused=True) as page:
        page.goto(f"{server.url}/tubes/micro_queues/tasks/999")
        page.get_by_role("link", name="Tube micro_queues").click()
        expect(page.locator("h1")).to_have_text("micro_queues")


def test_pages_are_kept_up_to_date(server: Serving, direct: penstock.Broker, page: Page) -> None:
    tube = direct.tube("mail")
    group = tube.group("monthly")
    group.put_many(range(4))
    group.start()
    page.goto(f"{server.url}/groups")
    expect(page.locator("td.progress")).to_contain_text("0 / 4")
    tube.ack(take(tube))
    expect(page.locator("td.progress")).to_contain_text("1 / 4")
    task = take(tube)
    page.goto(f"{server.url}/tubes/mail/tasks/{task.id}")
    expect(page.locator(".head")).to_contain_text("taken")
    task.bury("broken")
    expect(page.locator(".head")).to_contain_text("buried")
    expect(page.locator("pre.reason")).to_have_text("broken")


def test_workers_and_what_their_handlers_did(server: Serving, direct: penstock.Broker, page: Page) -> None:
    direct.tube("mail")
    page.goto(f"{server.url}/sessions")
    expect(page.locator(".empty").first).to_contain_text("No worker is running")
    report(direct)
    row = page.locator("table").first.locator("tbody tr")  # without a reload
    expect(row.locator("th")).to_have_text("shop:app")
    expect(row).to_contain_text("web-3")
    expect(row.locator('[data-label="busy"]')).to_have_text("3 of 16")
    page.goto(f"{server.url}/handlers?span=live")
    cells = page.locator("tbody td.n")
    expect(cells).to_have_text(["10", "1", "10.0 %", "110 ms", "200 ms", "200 ms"])
    page.goto(f"{server.url}/handlers")
    expect(page.locator("tbody td.n").first).to_have_text("0")  # the history is empty
    noted(server, int(time.time()) // 60)
    expect(page.locator("tbody td.n").first).to_have_text("10")
    page.get_by_role("link", name="send_mail").click()
    expect(page.locator("h1")).to_have_text("mail")


def noted(server: Serving, minute: int) -> None:
    """Write the history of a minute, as the server does."""
    server.await_in_loop(server.app.history.note(minute))


def test_history_survives_a_restart(store_url: str, direct: penstock.Broker, server: Serving, page: Page) -> None:
    tube = direct.tube("mail")
    now = int(time.time()) // 60
    for minute in range(now - 3, now + 1):
        tube.put_many(range(60))
        noted(server, minute)
    with serving(store_url) as restarted:
        restarted.await_in_loop(restarted.app.history.load())
        page.goto(f"{restarted.url}/tubes/mail?span=1h")
        expect(page.locator("#depth .ready b")).to_have_text("240")
        expect(page.locator("#rates .put b")).to_have_text("1/s")
        expect(page.locator("#depth path.ready:not(.area)")).to_have_count(1)
        page.get_by_role("link", name="24 h").click()
        expect(page.locator("#depth")).to_contain_text("Nothing is recorded for this time yet")
        page.goto(f"{restarted.url}/?span=1h")
        expect(page.locator("#depth .ready b")).to_have_text("240")
    assert [info.name for info in direct.tubes()] == ["mail"]


def test_a_group_is_started(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/groups")
    press(page, "Start")
    expect(page.get_by_role("status")).to_have_text("Group started.")
    expect(page.locator("progress")).to_have_attribute("max", "3")
    assert filled.tube("mail").stats().tasks.delayed == 1


def test_schedules_are_shown_run_and_paused(server: Serving, direct: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/schedules")
    expect(page.locator(".empty")).to_contain_text("This store has no schedules")
    app = penstock.App()

    @app.every(3600, tube="hourly")
    def collect() -> None: ...

    saved, [schedule] = direct.tube(SCHEDULE_TUBE), declared(app.schedules)
    schedule_status.save(saved, [schedule.record(direct.tube("hourly"))])
    saved.put({"tick": 2}, address="late #1", delay=7200)
    saved.put({"tick": 1}, address="soon #1", delay=3600)
    page.reload()
    expect(page.locator("table.schedules tbody td").first).to_have_text("every 3600 s")
    expect(page.locator("table.schedules time")).to_contain_text("in ")
    expect(page.locator("table.ticks tbody th")).to_have_text(["soon #1", "late #1"])
    press(page, "Run now")
    expect(page.get_by_role("status")).to_contain_text("Task put. It runs")
    assert direct.tube("hourly").stats().tasks.ready == 1
    press(page, "Pause")
    expect(page.locator(".badge")).to_have_text("paused")
    assert schedule_status.paused_keys(saved, [schedule.key])
    press(page, "Resume")
    expect(page.get_by_role("status")).to_have_text("Schedule resumed.")
    assert not schedule_status.paused_keys(saved, [schedule.key])
    page.get_by_text("Forget", exact=True).click()
    press(page, "Yes, forget")
    expect(page.locator(".empty")).to_contain_text("This store has no schedules")


def test_failures_of_callbacks_by_host(server: Serving, direct: penstock.Broker, page: Page) -> None:
    for name in ("orders", "mail"):
        direct.tube(name).put(1, callback="https://bad.example/x")
        direct.tube(name).bury(1, f"status 500 of {name}")
    direct.tube("mail").put(2, callback="https://good.example/x")
    page.goto(f"{server.url}/callbacks")
    expect(page.locator("tbody th")).to_have_text(["bad.example", "good.example"])
    expect(page.locator("tbody tr").first.locator("td.buried")).to_have_text("2")
    expect(page.locator("tbody tr").first).to_contain_text("status 500 of orders")
    page.get_by_role("link", name="orders").click()
    expect(page.locator("table.tasks tbody th")).to_have_text(["1"])


def test_tasks_are_searched_and_paged(server: Serving, direct: penstock.Broker, page: Page) -> None:
    direct.tube("mail").put_many([f"number {n}" for n in range(130)])
    page.goto(f"{server.url}/tubes/mail")
    expect(page.locator("table.tasks tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next →").click()
    expect(page.locator("table.tasks tbody th").first).to_have_text("51")
    page.get_by_placeholder("Id, handler").fill("number 129")
    press(page, "Search")
    expect(page.locator("table.tasks tbody th")).to_have_text(["130"])


def test_a_search_continues_by_itself(
    server: Serving, direct: penstock.Broker, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "SEARCHED", 20)
    direct.tube("mail").put_many([f"number {n}" for n in range(1, 101)])
    page.goto(f"{server.url}/tubes/mail?q=5")
    found = [str(n) for n in range(1, 101) if "5" in str(n)]
    expect(page.locator("table.tasks tbody th")).to_have_text(found)
    page.goto(f"{server.url}/tubes/mail?q=number 77")
    expect(page.locator("table.tasks tbody th")).to_have_text(["77"])
    expect(page.locator("[data-more]")).to_have_count(0)


def test_numbers_and_charts_move_by_themselves(server: Serving, direct: penstock.Broker, page: Page) -> None:
    tube = direct.tube("mail")
    direct.tube("still")
    page.goto(server.url)
    expect(page.locator("[data-pulse]")).to_contain_text("live")
    tube.put_many(range(7))
    expect(page.locator("[data-total=ready]")).to_have_text("7")
    expect(page.locator("tr[data-tube=mail] [data-count=ready]")).to_have_text("7")
    expect(page.locator("#depth path.ready:not(.area)")).to_have_count(1)
    before = page.locator("#depth path.ready:not(.area)").get_attribute("d")
    tube.put_many(range(500))
    expect(page.locator("#depth path.ready:not(.area)")).not_to_have_attribute("d", before or "")
    expect(page.locator("#depth .ready b")).to_have_text("507")
    page.goto(f"{server.url}/tubes/mail")
    tube.put("one more")
    expect(page.locator("b[data-total=ready]")).to_have_text("508")
    expect(page.locator(".tabs [data-total=ready]")).to_have_text("508")
    page.goto(f"{server.url}/tubes/still")  # an idle tube has a history, too
    assert len(msgspec.json.decode(page.locator("#depth").get_attribute("data-points") or "")) > 1


def test_without_a_script_pages_show_the_same(server: Serving, filled: penstock.Broker, browser: Browser) -> None:
    filled.tube("mail").put_many(range(30))
    minute = int(time.time()) // 60
    for each in range(minute - 2, minute + 1):
        noted(server, each)
    with watched(browser, java_script_enabled=False) as page:
        for path in PAGES:
            page.goto(server.url + path)
            expect(page.locator("h1")).to_have_count(1)
        page.goto(f"{server.url}/?span=1h")
        expect(page.locator("#depth path.ready:not(.area)")).to_have_count(1)
        expect(page.get_by_role("img", name="Rates of the last 1 h")).to_be_visible()
        page.goto(f"{server.url}/tubes/mail/tasks/1")
        press(page, "Retry")
        expect(page.get_by_role("status")).to_have_text("The task is ready again.")
        page.locator("summary", has_text="Delete").click()
        press(page, "Yes, delete")
        expect(page.get_by_role("status")).to_have_text("Task deleted.")
        page.locator("input[name=all]").check()
        page.locator("#bulk summary", has_text="Cancel").click()
        press(page, "Yes, cancel")
        expect(page.locator("tbody .status")).to_have_text("done")  # the page reloads itself
    assert filled.tube("mail").stats().tasks.total == 0


def test_the_pointer_shows_the_values_of_a_time(server: Serving, direct: penstock.Broker, page: Page) -> None:
    tube = direct.tube("mail")
    now = int(time.time()) // 60
    for minute in range(now - 40, now + 1):
        tube.put("one")
        noted(server, minute)
    page.goto(f"{server.url}/tubes/mail?span=1h")
    expect(page.locator("#depth .ready b")).to_have_text("41")
    page.locator("#depth .plot").hover(position={"x": 5, "y": 60})
    expect(page.locator("#depth .ready b")).to_have_text("2")  # the oldest point; the first minute only counts
    expect(page.locator("#depth .cross")).to_have_count(1)
    page.locator("h1").hover()
    expect(page.locator("#depth .ready b")).to_have_text("41")
    expect(page.locator("#depth .cross")).to_have_count(0)


def test_the_navigation_counts(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(server.url)
    expect(page.locator("#navigation a").first).to_have_text(f"Tubes {len(filled.tubes())}")


def test_the_navigation_counts_audit_lines_without_reading_them(
    server: Serving, filled: penstock.Broker, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(navigation, "MAX_AGE", 0.0)
    audit = page.locator("#navigation a", has_text="Audit")
    page.goto(server.url)
    expect(audit).to_have_text("Audit")
    monkeypatch.setattr(AuditTrail, "newest_first", None)
    page.goto(f"{server.url}/tubes/mail")
    press(page, "Pause")
    expect(audit).to_have_text("Audit 1")


def test_the_navigation_counts_groups_and_hosts_of_callbacks(
    server: Serving, filled: penstock.Broker, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(navigation, "ROWS_AGE", 0.1)
    links = page.locator("#navigation a")
    page.goto(server.url)
    expect(links.filter(has_text="Groups")).to_have_text("Groups 1")  # counted, not only on the first page
    expect(links.filter(has_text="Callbacks")).to_have_text("Callbacks 1")
    for number in range(views.MOST_ROWS):
        filled.tube("mail").group(f"group-{number}").put("x")
    expect(links.filter(has_text="Groups")).to_have_text("Groups 200+")
    page.goto(f"{server.url}/groups")
    expect(page.get_by_text("The first 200 are shown.")).to_be_visible()


def test_a_phone_shows_pages_in_its_width(server: Serving, filled: penstock.Broker, browser: Browser) -> None:
    with watched(browser, **PHONE) as phone:
        for path in PAGES:
            phone.goto(server.url + path)
            assert phone.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_the_keyboard_reaches_everything(server: Serving, filled: penstock.Broker, page: Page) -> None:
    page.goto(f"{server.url}/tubes/mail/tasks/1")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Workers 1", "Retry", "Delete", "mail"} <= reached
    page.locator("summary", has_text="Delete").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Yes, delete")


# All of Axe's rules, and those that the colours of the dark scheme can break.
@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", {"runOnly": ["color-contrast"]})])
def test_accessibility(
    server: Serving, filled: penstock.Broker, browser: Browser, scheme: str, rules: dict[str, Any] | None
) -> None:
    with watched(browser, refused=True, color_scheme=scheme) as page:
        for path in (*PAGES, "/nowhere"):
            page.goto(server.url + path)
            # Axe does not judge the contrast of single characters, such as these zeros.
            page.evaluate("document.querySelectorAll('td.zero').forEach((each) => { each.textContent = 'none'; })")
            found = Axe().run(page, options=rules).response["violations"]
            assert [(path, each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS] == []


def test_dark_is_dark(server: Serving, browser: Browser) -> None:
    shades = []
    for scheme in ("light", "dark"):
        with watched(browser, color_scheme=scheme) as page:
            page.goto(server.url)
            shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(246, 247, 248)", "rgb(18, 23, 26)"]


def test_login_and_logout(store_url: str, page: Page) -> None:
    with serving(store_url, Tokens(single="secret")) as guarded:
        page.goto(f"{guarded.url}/sessions")
        assert page.url.startswith(f"{guarded.url}/login")
        page.get_by_label("Token").fill("secret")
        press(page, "Log in")
        expect(page.locator("h1")).to_have_text("Workers")
        assert "secret" not in page.url
        assert page.evaluate("document.cookie") == ""
        page.goto(guarded.url)
        expect(page.locator("[data-pulse]")).to_contain_text("live")
        press(page, "Log out")
        expect(page.locator("h1")).to_have_text("Log in")


def test_a_thousand_tubes_are_shown_a_hundred_at_a_time(server: Serving, direct: penstock.Broker, page: Page) -> None:
    for number in range(1000):
        direct.tube(f"tube-{number:04}")
    answer = page.goto(server.url)
    assert answer is not None
    assert len(answer.body()) < 150_000
    expect(page.locator("tr[data-tube]")).to_have_count(100)
    page.get_by_role("link", name="Next →").click()
    expect(page.locator("tr[data-tube] th").first).to_have_text("tube-0100")
    page.get_by_placeholder("Find a tube").fill("0999")
    press(page, "Show")
    expect(page.locator("tr[data-tube] th")).to_have_text(["tube-0999"])
