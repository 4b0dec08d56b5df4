"""`penstock put`: the forms of DATA, options, and one task per line."""

from __future__ import annotations

import pytest

import penstock
from tests.support.shell import Shell


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ('{"to": "ada", "n": [1, 2.5, null, true]}', {"to": "ada", "n": [1, 2.5, None, True]}),
        ("hello", "hello"),
        ('"hello"', "hello"),
        ("7", 7),
        ("", ""),
        ("NaN", "NaN"),
        ("{broken", "{broken"),
        ("naïve ☃", "naïve ☃"),
        ("'; DROP TABLE x --", "'; DROP TABLE x --"),
    ],
)
def test_data_is_json_else_a_string(shell: Shell, given: str, stored: object) -> None:
    assert shell("put", "mail", given) == "1"
    with penstock.connect(shell.url) as broker:
        assert broker.tube("mail").peek(1).data == stored


def test_data_comes_from_standard_input_or_a_file(shell: Shell) -> None:
    (shell.folder / "letter.json").write_text('{"n": 1}\n')
    (shell.folder / "raw").write_bytes(b"\xff\0")
    shell("put", "mail", "-", stdin="two\nlines")
    shell("put", "mail", "@letter.json")
    shell("put", "mail", "@raw", "--bytes")
    with penstock.connect(shell.url) as broker:
        assert [task.data for task in broker.tube("mail").tasks()] == ["two\nlines", {"n": 1}, b"\xff\0"]
    assert shell.json("peek", "mail", "3")["base64"] == "/wA="


def test_bad_data_is_refused_and_nothing_is_stored(shell: Shell) -> None:
    assert "names a file that cannot be read (No such file or directory)" in shell.refused("put", "mail", "@nowhere")
    assert "not UTF-8" in shell.refused("put", "mail", "-", stdin=b"\xff")
    assert "nested" in shell.refused("put", "mail", "[" * 1000 + "]" * 1000)
    assert "kind fifottl has no option utube" in shell.refused("put", "mail", "x", "--utube", "ada")
    assert "pri -1" in shell.refused("put", "mail", "-", "--lines", "--pri", "-1", stdin="x\n")
    assert shell.json("tubes") == []


def test_options_are_those_of_put(shell: Shell) -> None:
    task = shell.json("put", "mail", "x", "--pri", "3", "--ttl", "60", "--ttr", "5", "--delay", "9", "--address", "a b")
    assert (task["id"], task["status"], task["pri"], task["address"]) == (1, "~", 3, "a b")
    assert task["due"] == task["created"] + 9
    assert task["expires"] == task["created"] + 69
    assert shell.json("put", "mail", "y", "--address", "a b", "--on-duplicate", "ignore")["id"] == 1
    refused = shell.refused("put", "mail", "y", "--address", "a b")
    assert refused == "address a b is in use in this tube: give --on-duplicate, or another address"
    assert "ttl nan" in shell.refused("put", "mail", "x", "--ttl", "nan")


def test_every_line_is_a_task(shell: Shell) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(2500))
    assert shell.json("put", "mail", "-", "--lines", "--pri", "2", stdin=lines) == {
        "tube": "mail", "verb": "put", "count": 2500,
    }  # fmt: skip
    (shell.folder / "urls.txt").write_bytes(b"one\r\ntwo")
    assert shell("put", "urls", "@urls.txt", "--lines") == "put 2 tasks into urls"
    assert shell("put", "urls", stdin="three\nfour\n") == "put 2 tasks into urls"
    with penstock.connect(shell.url) as broker:
        tasks = broker.tube("mail").tasks(limit=10_000)
        assert [(task.data, task.pri) for task in tasks] == [({"n": n}, 2) for n in range(2500)]
        assert [task.data for task in broker.tube("urls").tasks()] == ["one", "two", "three", "four"]


def test_lines_that_cannot_be_put_are_reported_with_the_number_stored(shell: Shell) -> None:
    shell("create", "mail", "--capacity", "1500")
    lines = "x\n" * 2500
    assert "(1,000 tasks of earlier lines were put" in shell.refused("put", "mail", "-", "--lines", stdin=lines)
    assert shell.json("stats", "mail")["tasks"]["ready"] == 1000
    assert "give - for standard input" in shell.refused("put", "mail", "x", "--lines")
