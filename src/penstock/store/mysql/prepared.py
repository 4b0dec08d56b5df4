"""The put and the ack of one plain task as prepared statements, three of them sent together: parsing them was a third
of the time of a put.

For MariaDB alone: its own client library also sends statements before the last ones are answered, and it can prepare
an IF. Everything else is packets of text.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import Any

from pymysql.constants import COMMAND, FIELD_TYPE

from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.mysql.queries import NEVER, TIME
from penstock.store.mysql.wire import answers_of
from penstock.store.sql.queries import ID_BITS

#: Longer data goes as text: it is so much work that parsing does not matter.
LONGEST = 2**16 - 1
#: What the server must take in one packet.
ROOM = 2 * LONGEST

_RESERVE = "INSERT INTO penstock_id (tube,last) VALUES (?,0) ON DUPLICATE KEY UPDATE last=LAST_INSERT_ID(last+1)"
_STORE = (
    "INSERT INTO penstock_task (tube,pk,state,rank1,rank2,pri,expires,at,ttr,extra,data,created) "
    "VALUES (?,IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)+?,'r',?,?,?,"
    f"{TIME}+?,IFNULL({TIME}+?,{NEVER}),?,?,?,LAST_INSERT_ID({TIME}))"
)
_REMOVE = (
    f"DELETE FROM penstock_task WHERE pk=? AND owner=? AND lease=? AND at>{TIME} AND state='t' AND reply_to IS NULL "
    "AND group_no IS NULL AND address IS NULL AND errors IS NULL"
)
_COUNT = "INSERT INTO penstock_delta (tube,taken,done,ack_calls) SELECT ?,-1,1,1 FROM DUAL WHERE ROW_COUNT()=1"
# A statement that fails does not stop the next ones: an id without its task must not stay, nor an ack uncounted.
_END = "IF ROW_COUNT()=1 THEN COMMIT; ELSE ROLLBACK; END IF"

_EXECUTE = Struct("<BIBI")
_PREPARED = Struct("<xIHH")
_NUMBER, _REAL, _TEXT, _BYTES = (
    bytes([kind, 0]) for kind in (FIELD_TYPE.LONGLONG, FIELD_TYPE.DOUBLE, FIELD_TYPE.VAR_STRING, FIELD_TYPE.BLOB)
)
_KINDS = (_NUMBER, _NUMBER, _REAL, _REAL, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _TEXT, _BYTES)


class Shape:
    """What all plain puts of a tube have in common, in the server's binary format."""

    def __init__(self, tube: Tube, entry: Entry) -> None:
        values = (
            tube.no, tube.no << ID_BITS, entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttl, entry.ttr,
            entry.extra, b"",
        )  # fmt: skip
        missing = sum(1 << place for place, value in enumerate(values) if value is None)
        given = b"".join(map(_packed, _KINDS[:-1], values[:-1]))
        self.tube = _numbers(tube.no)
        self.task = pack("<H", missing) + b"\1" + b"".join(_KINDS) + given


class PreparedCalls:
    """The statements on one connection. What raises has changed nothing, unless the connection broke."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        texts = (_RESERVE, _STORE, _REMOVE, _COUNT, _END)
        self._reserve, self._store, self._remove, self._count, end = (_prepare(connection, sql) for sql in texts)
        self._end = _execution(end, b"")

    def put(self, shape: Shape, payload: bytes) -> tuple[int, int]:
        """Store one task. Returns its id and its time."""
        reserve = _execution(self._reserve, shape.tube)
        store = _execution(self._store, shape.task + _counted(payload))
        self._connection._write_bytes(reserve + store + self._end)
        reserved, stored, _ = answers_of(self._connection, 3)
        return reserved.number, stored.number

    def ack(self, tube: int, pk: int, session: int, lease: int) -> bool:
        """Remove one task. Returns whether that lease held it."""
        remove = _execution(self._remove, _numbers(pk, session, lease))
        self._connection._write_bytes(remove + _execution(self._count, _numbers(tube)) + self._end)
        return answers_of(self._connection, 3)[0].changed == 1


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


def _numbers(*values: int) -> bytes:
    return b"\0\1" + _NUMBER * len(values) + pack(f"<{len(values)}q", *values)


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
