"""Plain puts as prepared statements, three of them sent together: parsing them was a third of the time of a put.

For MariaDB alone: its own client library also sends statements before the last ones are answered, and it can prepare
an IF. Other puts are packets of text.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import Any

from pymysql.constants import COMMAND, FIELD_TYPE

from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.mysql.queries import NEVER, TIME
from penstock.store.mysql.wire import numbers_of
from penstock.store.sql.queries import ID_BITS

#: Longer data goes as text: it is so much work that parsing does not matter.
LONGEST = 2**16 - 1
#: What the server must take in one packet.
ROOM = 2 * LONGEST

_RESERVE = "INSERT INTO penstock_id (tube,last) VALUES (?,0) ON DUPLICATE KEY UPDATE last=LAST_INSERT_ID(last+1)"
_STORE = (
    "INSERT INTO penstock_task (tube,pk,state,rank1,rank2,pri,expires,at,ttr,max_attempts,callback,data,created) "
    "VALUES (?,IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)+?,'r',?,?,?,"
    f"{TIME}+?,IFNULL({TIME}+?,{NEVER}),?,?,?,?,LAST_INSERT_ID({TIME}))"
)
# A statement that fails does not stop the next ones: an id without its task must not stay.
_END = "IF ROW_COUNT()=1 THEN COMMIT; ELSE ROLLBACK; END IF"

_EXECUTE = Struct("<BIBI")
_PREPARED = Struct("<xIHH")
_NUMBER, _REAL, _TEXT, _BYTES = (
    bytes([kind, 0]) for kind in (FIELD_TYPE.LONGLONG, FIELD_TYPE.DOUBLE, FIELD_TYPE.VAR_STRING, FIELD_TYPE.BLOB)
)
_KINDS = (_NUMBER, _NUMBER, _REAL, _REAL, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _TEXT, _BYTES)


class Shape:
    """What all plain puts of a tube have in common, in the server's binary format."""

    def __init__(self, tube: Tube, entry: Entry) -> None:
        values = (
            tube.no, tube.no << ID_BITS, entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttl, entry.ttr,
            entry.max_attempts, entry.callback, b"",
        )  # fmt: skip
        missing = sum(1 << place for place, value in enumerate(values) if value is None)
        given = b"".join(map(_packed, _KINDS[:-1], values[:-1]))
        self.tube = b"\0\1" + _NUMBER + _packed(_NUMBER, tube.no)
        self.task = pack("<H", missing) + b"\1" + b"".join(_KINDS) + given


class PreparedPut:
    """The statements on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._reserve, self._store, end = (_prepare(connection, sql) for sql in (_RESERVE, _STORE, _END))
        self._end = _execution(end, b"")

    def run(self, shape: Shape, payload: bytes) -> tuple[int, int]:
        """Store one task. Returns its id and its time. If it raises, nothing is stored, unless the connection broke."""
        reserve = _execution(self._reserve, shape.tube)
        store = _execution(self._store, shape.task + _counted(payload))
        self._connection._write_bytes(reserve + store + self._end)
        id, moment, _ = numbers_of(self._connection, 3)
        return id, moment


def _prepare(connection: Any, sql: str) -> int:
    connection._execute_command(COMMAND.COM_STMT_PREPARE, sql)
    number, columns, values = _PREPARED.unpack_from(connection._read_packet().get_all_data())
    for described in (values, columns):
        for _ in range(described + 1 if described else 0):  # each list ends with a packet of its own
            connection._read_packet()
    return int(number)


def _execution(statement: int, values: bytes) -> bytes:
    size = _EXECUTE.size + len(values)
    return pack("<I", size) + _EXECUTE.pack(COMMAND.COM_STMT_EXECUTE, statement, 0, 1) + values


def _packed(kind: bytes, value: object) -> bytes:
    if value is None:
        return b""
    if kind == _TEXT:
        return _counted(str(value).encode())
    return pack("<d" if kind == _REAL else "<q", value)


def _counted(value: bytes) -> bytes:
    """The value after its length."""
    size = len(value)
    return (bytes([size]) if size < 251 else b"\xfc" + pack("<H", size)) + value
