"""What the server answers is read as the driver itself reads it, whatever the shape of the answer."""

from __future__ import annotations

import pymysql
import pytest

from penstock.store.mysql import faults
from penstock.store.mysql.wire import ask
from tests.mysql.conftest import Connection

VALUES = """SELECT 1, -7, 9007199254740991, 18446744073709551615, 1.5e0, -0.0, 1e300, 12.50, SUM(seq), 'text', 'ü€😀',
'', NULL, X'00FF27', CAST('b' AS BINARY), JSON_ARRAY(1, NULL, 'ä'), REPEAT('a', 250), REPEAT('b', 251),
REPEAT('c', 65536), TIMESTAMP'2020-01-02 03:04:05', CAST('x' AS CHAR CHARACTER SET ascii) FROM seq_1_to_3"""


def test_values_are_the_drivers_own(own: Connection) -> None:
    cursor = own.cursor()
    cursor.execute(VALUES)
    read = cursor.fetchall()
    rows, numbers = ask(own, VALUES)
    assert rows == list(read)
    assert [type(value) for value in rows[0]] == [type(value) for value in read[0]]
    assert numbers == []


def test_rows_of_several_results_and_the_numbers_between(own: Connection) -> None:
    own.cursor().execute("CREATE TEMPORARY TABLE n (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
    sql = "SELECT seq FROM seq_1_to_700; INSERT INTO n VALUES (70000); DO 0; SELECT 'a', NULL; SELECT 1 FROM n LIMIT 0"
    assert ask(own, sql) == ([*((number,) for number in range(1, 701)), ("a", None)], [70000, 0])
    assert ask(own, "DO 0") == ([], [0])


def test_a_row_longer_than_a_packet(own: Connection) -> None:
    # The continuation begins with a byte that would tell an error.
    ((first, second),), _ = ask(own, "SELECT REPEAT(X'FF', 9000000), REPEAT(X'FF', 9000000)")
    assert (len(first), len(second), set(first + second)) == (9_000_000, 9_000_000, {255})


@pytest.mark.parametrize("before", ["", "SELECT 5; ", "DO 0; "])
def test_an_error_is_raised_where_it_comes_and_the_connection_goes_on(own: Connection, before: str) -> None:
    with pytest.raises(pymysql.err.ProgrammingError) as raised:
        ask(own, f"{before}SELECT * FROM nowhere; SELECT 6")
    assert raised.value.args[0] == 1146
    assert ask(own, "SELECT 7") == ([(7,)], [])


def test_a_connection_that_ends_in_the_middle_of_an_answer(own: Connection) -> None:
    with pytest.raises(pymysql.err.OperationalError) as raised:
        ask(own, "SELECT 1; SELECT CONNECTION_ID() INTO @own; KILL CONNECTION @own; SELECT 2")
    assert faults.lost(raised.value)
    with pytest.raises((pymysql.err.OperationalError, pymysql.err.InterfaceError)):
        ask(own, "SELECT 3")
