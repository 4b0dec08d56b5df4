"""A tube is exported to a file and imported unchanged, on every store."""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.testing import Clock
from tests.transfer.sample_tubes import FILLED, exported, imported, opened, order, seen


@pytest.mark.parametrize("sort", FILLED)
def test_an_exported_tube_is_imported_unchanged(store_url: str, clock: Clock, sort: str) -> None:
    with opened(store_url, clock) as broker, opened(f"memory://{sort}", clock) as other:
        FILLED[sort](broker, clock)
        before = seen(broker, sort)
        content = exported(broker, sort)
        assert imported(other, content) == len(broker.tube(sort).tasks())
        assert seen(other, sort) == before
        assert imported(broker, exported(other, sort), "copy") == len(other.tube(sort).tasks())
        assert seen(broker, "copy") == before
        first, second = order(broker, "copy"), order(broker, sort)
        assert first == second


@pytest.mark.parametrize("sort", ["plain", "related"])
def test_a_put_after_an_import_gets_a_new_id(store_url: str, clock: Clock, sort: str) -> None:
    with opened(store_url, clock) as broker:
        FILLED[sort](broker, clock)
        last = broker.tube(sort).put("last").id
        broker.tube(sort).delete(last)
        imported(broker, exported(broker, sort), "copy")
        assert broker.tube("copy").put("next").id == last + 1


def test_taken_tasks_are_imported_as_released(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        tube = broker.tube("jobs", max_attempts=1)
        tube.put_many(["once", ("twice", {"max_attempts": 2})])
        assert len(tube.take_many(2)) == 2
        imported(broker, exported(broker, "jobs"), "copy")
        copy = broker.tube("copy")
        assert [(task.status, task.attempts) for task in copy.tasks()] == [("!", 1), ("r", 1)]
        assert copy.peek(1).reason == "handed out 1 times without an ack"


def test_end_work_is_also_put_in_the_copy(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        FILLED["related"](broker, clock)
        imported(broker, exported(broker, "related"), "copy")
        copy = broker.tube("copy")
        assert copy.group("started").progress() == penstock.Progress(1, 3)
        for task in copy.tasks():
            if task.group == "started":
                copy.delete(task.id)
        assert [task.data for task in copy.tasks() if task.data == "all done"] == ["all done"]
        copy.group("waiting").cancel()
        assert [task.data for task in copy.tasks() if task.data == "cancelled"] == ["cancelled"]


def test_what_cannot_be_imported_names_the_line(clock: Clock) -> None:
    with opened("memory://damaged", clock) as broker:
        broker.tube("mail").put("hello")
        text = exported(broker, "mail").decode()
        head, task, end = text.splitlines()
        damaged = {
            "": "line 1: this is not the first line",
            "nonsense\n": "line 1: JSON is malformed",
            f"{head}\n": "line 2: the file ends here, without its last line",
            f"{head}\n{task}\n{task[:40]}": "line 3: .*it was cut off",
            f"{head}\n{task}\n{task}\n{end}\n": "line 3: task 1 comes after task 1",
            f"{head}\n{end}\n": "line 2: the last line counts 2 lines before it, but the file has 1",
            f"{text}{task}\n": "line 4: there is a line after the end line",
            f"{head}\n{head}\n{end}\n": "line 2: only the first line may describe the tube",
            f"{head}\n{{}}\n{end}\n": "line 2: a line must have exactly one of tube",
            text.replace('"version":1', '"version":9'): "line 1: it has version 9, this penstock reads 1",
            text.replace('"name":"mail"', '"name":"../x"'): "line 1: tube '../x' is not a name",
            text.replace('"options":{}', '"options":{"ttl":-1}'): "line 1: ttl -1 is out of range",
            text.replace('"options":{}', '"options":{"color":1}'): "line 1: tube option 'color' is unknown",
            text.replace(
                '"name":"fifottl"', '"name":"fifo"'
            ): "line 1: kind fifo differs from the one that this program registered",
            text.replace('"state":"r"', '"state":"-"'): "line 2: task 1 has the state '-'",
            text.replace('"state":"r"', '"state":""'): "line 2: task 1 has the state ''",
            text.replace(
                '"state":"r"', '"state":"g"'
            ): "line 2: task 1 waits for the start of its group, but has no group",
            text.replace('"state":"r"', '"state":"~"'): "line 2: task 1 is delayed, but has no due time",
            text.replace('"id":1', '"id":0'): "line 2: .*>= 1",
            text.replace('"id":1', '"id":1,"evil":2'): "line 2: .*unknown field",
            text.replace('"id":1', '"id":1,"group":4'): "line 2: task 1 is of group 4, which no earlier line has",
            text.replace('"id":1', '"id":1,"attempts":2'): "line 2: task 1 was handed out, but has no time for it",
            text.replace('"id":1', '"id":1,"address":" "'): "line 2: address is blank",
            text.replace('"id":1', '"id":1,"callback":"file:///x"'): "line 2: callback 'file:///x' is not a callback",
            text.replace('"data":"hello"', '"base64":"!"'): "line 2: the bytes of data are not base64",
            text.replace('"data":"hello"', '"reason":"x"'): "line 2: .*give one of data, base64 and unreadable",
            text.replace('"data":"hello"', f'"data":{"[" * 300}{"]" * 300}'): "line 2: data is nested deeper",
            text.replace('"id":1', '"id":1,"taken":1,"attempts":2147483647'): "line 2: .*<= 33554431 - at `.*attempts`",
            text.replace('"id":1', '"id":1,"taken":1,"lease":2147483647'): "line 2: .*<= 33554431 - at `.*lease`",
            text.replace('"id":1', f'"id":1,"ttr":{2**53 - 1}'): "line 2: .*ttr",
            text.replace('"id":1', f'"id":1,"expires":{2**53 - 1}'): "line 2: .*expires",
            text.replace('"id":1', f'"id":{2**40 - 1}'): "line 2: .*<= 549755813887",
            text.replace('"last_id":1', f'"last_id":{2**40 - 1}'): "line 3: last_id 1099511627775 is out of range",
            text.replace('"last_id":1', '"last_id":0'): "line 3: last_id 0 is out of range",
            text.replace('"ack":0', '"ack":-1'): "line 3: ack -1 is out of range",
            text.replace('"mark":[0,0]', '"mark":[0,-1]'): "line 3: mark -1 is out of range",
        }
        for content, why in damaged.items():
            with pytest.raises(penstock.BadValue, match=f"a file, {why}"):
                imported(broker, content.encode(), "copy")
        assert [info.name for info in broker.tubes()] == ["mail"]


def test_a_task_has_only_what_its_kind_accepts(clock: Clock) -> None:
    with opened("memory://accepted", clock) as broker:
        tube = broker.tube("mail", "fifo")
        tube.put("hello")
        tube.group("g").put("later")
        text = exported(broker, "mail").decode()
        for field, option in (("pri", "pri"), ("utube", "utube"), ("expires", "ttl"), ("ttr", "ttr")):
            value = '"u"' if option == "utube" else 5
            with pytest.raises(penstock.BadValue, match=f"task 1 has a {option}, which kind fifo does not accept"):
                imported(broker, text.replace('"id":1', f'"id":1,"{field}":{value}').encode(), "copy")
        with pytest.raises(penstock.BadValue, match=r"<= 2147483647 - at `\$\.group\.total`"):
            imported(broker, text.replace('"total":1', f'"total":{2**31}').encode(), "copy")
        imported(broker, text.encode(), "copy")


def test_the_highest_numbers_in_a_file_do_not_break_the_tube(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        broker.tube("mail").put("hello")
        highest = '"id":549755813887,"taken":140737488355327,"attempts":33554431,"lease":33554431,"ttr":3155760000000,'
        highest += '"expires":140737488355327,"max_attempts":2147483647,"pri":2147483647'
        text = exported(broker, "mail").decode().replace('"id":1', highest)
        imported(broker, text.replace('"last_id":1', '"last_id":549755813887').encode(), "copy")
        copy = broker.tube("copy")
        copy.put("next")
        for _ in range(3):
            tasks = copy.take_many(3)
            assert {task.data for task in tasks} == {"hello", "next"}
            for task in tasks:
                task.release()
        assert copy.peek(549755813887).attempts == 33554434
        assert copy.ack_many(copy.take_many(3)) == [True, True]


def test_two_tasks_of_one_address_are_refused(clock: Clock) -> None:
    with opened("memory://damaged", clock) as broker:
        broker.tube("mail").put_many([("a", {"address": "x"}), ("b", {"address": "y"})])
        with pytest.raises(penstock.BadValue, match="line 3: x appears twice"):
            imported(broker, exported(broker, "mail").replace(b'"address":"y"', b'"address":"x"'), "copy")
        broker.tube("news", "reliable").put_many(["a", "b"])
        content, late = exported(broker, "news"), broker.tube("news").tasks()[1].id.encode()
        with pytest.raises(penstock.BadValue, match="line 3: message 5-1 comes after .*: ids must grow"):
            imported(broker, content.replace(b'"address":"' + late, b'"address":"5-1'), "copy")
        with pytest.raises(penstock.BadValue, match="line 4: the last message id is 7-0, below"):
            imported(broker, re.sub(rb'"mark":\[\d+,\d+\]', b'"mark":[7,0]', content), "copy")


def test_large_data_is_imported_in_steps_that_a_server_accepts(store_url: str) -> None:
    with penstock.connect(store_url) as broker:
        tube = broker.tube("large")
        for number in range(12):
            tube.put(bytes([number]) * 900_000)
        assert imported(broker, exported(broker, "large"), "copy") == 12
        assert [task.data[0] for task in broker.tube("copy").tasks()] == list(range(12))


def test_a_group_that_ends_while_it_is_written_leaves_no_task_behind(clock: Clock) -> None:
    with opened("memory://ending", clock) as broker:
        tube = broker.tube("jobs")
        tube.put("stays")
        tube.group("one").put_many(range(3))
        tube.group("two").put("other")
        store = broker.runtime.store
        read = store.read_page

        def without_one(tube: Tube, what: type[Any], after: int, limit: int) -> list[Any]:
            rows: list[Any] = read(tube, what, after, limit)
            return [row for row in rows if what is not Group or row.name != "one"]

        store.read_page = without_one  # type: ignore[method-assign]
        content = exported(broker, "jobs")
        store.read_page = read  # type: ignore[method-assign]
        assert imported(broker, content, "copy") == 2
        assert [task.data for task in broker.tube("copy").tasks()] == ["stays", "other"]
