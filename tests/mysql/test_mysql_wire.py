"""Answers of the server are parsed as the driver parses them, whatever their form."""

from __future__ import annotations

import pymysql
import pytest

from penstock.store.mysql.mysql_connection import LOST, error_number, parse
from penstock.store.mysql.mysql_wire import Ok, ask, fill, literal
from tests.mysql.conftest import Connection
from tests.mysql.databases import bare
from tests.support.threads import begin, until

VALUES = """SELECT 1, -7, 9007199254740991, 18446744073709551615, 1.5e0, -0.0, 1e300, 12.50, SUM(i), 'text', 'ü€😀',
'', NULL, X'00FF27', CAST('b' AS BINARY), JSON_ARRAY(1, NULL, 'ä'), REPEAT('a', 250), REPEAT('b', 251),
REPEAT('c', 65536), TIMESTAMP'2020-01-02 03:04:05', CAST('x' AS CHAR CHARACTER SET ascii)
FROM (SELECT 1 AS i UNION SELECT 2 UNION SELECT 3) n"""
MANY = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 700) SELECT i FROM n"


def test_values_are_the_drivers_own(own: Connection) -> None:
    cursor = own.cursor()
    cursor.execute(VALUES)
    read = cursor.fetchall()
    (rows,), warnings = ask(own, VALUES, raw=True)
    assert rows == list(read)
    assert [type(value) for value in rows[0]] == [type(value) for value in read[0]]
    assert warnings == []


def test_names_are_texts_and_data_is_bytes(own: Connection) -> None:
    own.cursor().execute("CREATE TEMPORARY TABLE n (name VARBINARY(9), state BINARY(1), data LONGBLOB)")
    own.cursor().execute("INSERT INTO n VALUES ('ü', '~', 'ü')")
    assert ask(own, "SELECT name, state, data FROM n")[0] == [[("ü", "~", "ü".encode())]]
    assert ask(own, "SELECT name FROM n", raw=True)[0] == [[("ü".encode(),)]]


def test_rows_of_several_results_and_the_numbers_between(own: Connection) -> None:
    own.cursor().execute("CREATE TEMPORARY TABLE n (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
    sql = f"{MANY}; INSERT INTO n VALUES (70000); DO 0; SELECT 'a', NULL; SELECT 1 FROM n LIMIT 0"
    many = [(number,) for number in range(1, 701)]
    assert ask(own, sql) == ([many, [("a", None)], []], [Ok(1, 70000), Ok(0, 0)])
    assert ask(own, "DO 0") == ([], [Ok(0, 0)])


HOSTILE = [
    "", "plain", "it's", '"', "\\", "\\' OR 1=1 -- ", "'; DROP TABLE penstock_task; -- ", "a\0b", "\n\r\t\x1a",
    "ü€😀", "%s %(x)s :name ?", "/*!80000 x */", "@p_t", "\x7f", "`", "'" * 3, "\u2028", " trailing ",
]  # fmt: skip


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES"])
@pytest.mark.parametrize("value", HOSTILE)
def test_every_value_arrives_as_it_is(own: Connection, value: str, mode: str) -> None:
    own.cursor().execute(f"SET SESSION sql_mode = '{mode}'")
    query = "SELECT :a, HEX(:b), :c, :d IN :e, :f"
    sql = fill(query, a=value, b=value.encode(), c=-7, d=value, e=["x", value], f=None)
    (rows,), _ = ask(own, sql)
    assert rows == [(value, value.encode().hex().upper(), -7, 1, None)]


def test_numbers_arrive_as_they_are(own: Connection) -> None:
    (rows,), _ = ask(own, fill("SELECT :a, :b, :c, 1 IN :d", a=0.1, b=True, c=2**63 - 1, d=[]))
    assert [float(rows[0][0]), *rows[0][1:]] == [0.1, 1, 2**63 - 1, None]
    with pytest.raises(TypeError):
        literal(object())


def test_a_row_longer_than_a_packet(own: Connection) -> None:
    # The continuation begins with a byte that would mean an error.
    (((first, second),),), _ = ask(own, "SELECT REPEAT(X'FF', 9000000), REPEAT(X'FF', 9000000)", raw=True)
    assert (len(first), len(second), set(first + second)) == (9_000_000, 9_000_000, {255})


@pytest.mark.parametrize("before", ["", "SELECT 5; ", "DO 0; "])
def test_an_error_is_raised_in_place_and_the_connection_stays_usable(own: Connection, before: str) -> None:
    with pytest.raises(pymysql.err.ProgrammingError) as raised:
        ask(own, f"{before}SELECT * FROM nowhere; SELECT 6")
    assert raised.value.args[0] == 1146
    assert ask(own, "SELECT 7") == ([[(7,)]], [])


def test_answers_have_the_read_timeout_of_the_connection(url: str) -> None:
    with pymysql.connect(**parse(url).login, ssl_disabled=True, read_timeout=0.2) as impatient:
        assert ask(impatient, "SELECT 1").results == [[(1,)]]
        with pytest.raises(TimeoutError) as raised:
            ask(impatient, "SELECT SLEEP(100)")
    assert error_number(raised.value) in LOST


def test_a_connection_that_ends_in_the_middle_of_an_answer(own: Connection, url: str) -> None:
    asking = begin(lambda: ask(own, "SELECT 1; SELECT SLEEP(100)"))
    with bare(url) as other:
        cursor = other.cursor()

        def asleep() -> list[int]:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND state = 'User sleep'"
            )
            return [int(str(id)) for (id,) in cursor.fetchall()]

        def killed() -> bool:
            for id in asleep():
                cursor.execute(f"KILL {id}")
            return asking.done()

        until(killed)  # a busy MySQL may miss one
    with pytest.raises((pymysql.err.OperationalError, ConnectionError)) as raised:
        asking.result(30)
    assert error_number(raised.value) in LOST
    with pytest.raises((pymysql.err.OperationalError, pymysql.err.InterfaceError)):
        ask(own, "SELECT 3")
