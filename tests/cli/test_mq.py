"""`penstock mq`: the arguments and answers of the Redis protocol's five commands, in a shell."""

from __future__ import annotations

from tests.support.shell import Shell


def test_a_message_is_pushed_popped_recovered_and_acked(shell: Shell) -> None:
    first, second, third = shell("mq", "push", "orders", '{"item": 7}', "text", "3").splitlines()
    assert shell("mq", "inspect", "orders", "-2", "2").splitlines()[1:] == [
        f"{second}           0  text", f"{third}           0  3",
    ]  # fmt: skip
    assert [task["id"] for task in shell.mq("inspect", "orders")] == [first, second, third]
    popped = shell.mq("pop", "2", "orders")
    assert [(task["id"], task["data"]) for task in popped] == [(first, {"item": 7}), (second, "text")]
    pending = shell.mq("inspect", "orders", "PENDING", "0", "10")
    assert [(task["id"], task["attempts"]) for task in pending] == [(first, 1), (second, 1)]
    assert [task["attempts"] for task in shell.mq("recover", "orders", "1", "0")] == [2]
    assert shell.mq("recover", "orders", "5", "3600000") == []
    assert shell("mq", "ack", "orders", first, second, third).splitlines() == [first, second]
    assert shell.mq("ack", "orders", first) == []
    assert shell.json("stats", "orders")["tasks"]["total"] == 1


def test_a_missing_queue_is_empty_and_another_kind_is_refused(shell: Shell) -> None:
    assert shell("mq", "pop", "5", "nothing") == ""
    assert shell.mq("inspect", "nothing", "0", "5") == shell.mq("ack", "nothing", "1-1") == []
    shell("put", "mail", "x")
    for words in (["push", "mail", "x"], ["pop", "1", "mail"], ["ack", "mail", "1-1"], ["inspect", "mail", "0", "1"]):
        assert shell.refused("mq", *words).startswith("tube mail is of kind fifottl, not reliable")


def test_numbers_and_ids_are_checked(shell: Shell) -> None:
    shell("mq", "push", "orders", "--bytes", "x")
    assert shell.refused("mq", "inspect", "orders", "0").startswith("'0' is not START COUNT")
    assert shell.refused("mq", "pop", "0", "orders").startswith("count 0")
    assert "1-1xyz" in shell.refused("mq", "ack", "orders", "1-1xyz")
    assert shell.run("mq", "pop", "many", "orders").returncode == 2
