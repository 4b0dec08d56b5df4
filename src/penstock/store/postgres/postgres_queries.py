"""The named queries of this store, and the fragments they consist of."""

from __future__ import annotations

import re
from types import SimpleNamespace

from penstock.store.postgres.postgres_wire import Query
from penstock.store.sql.sql_queries import COUNTERS, load_queries

# The counters that a change of tasks can modify.
WEIGHTS = tuple(name for name in COUNTERS if name != "put")

_FRAGMENTS = {
    "counters": ", ".join(COUNTERS.values()),
    "sums": ", ".join(f"coalesce(sum({column}), 0)::bigint AS {column}" for column in COUNTERS.values()),
    "folded": ", ".join(f"{column} = c.{column} + n.{column}" for column in COUNTERS.values()),
    "raised": ", ".join(f"{column} = {column} + :{name}" for name, column in COUNTERS.items()),
    "weighed": ", ".join(COUNTERS[name] for name in WEIGHTS),
    "weights": ", ".join(f"n * w[{place}]" for place in range(1, len(WEIGHTS) + 1)),
    "for_update": "FOR UPDATE",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
}
_TABLE = re.compile(r"\bpenstock_(?=[a-z{])")
_TEXTS = vars(load_queries("penstock.store.postgres", shared=True, fragments=_FRAGMENTS))


class Queries(SimpleNamespace):
    """The named queries on all tasks of one schema; `durable` and `temporary` have the queries on tasks of such tubes.

    Each query is built at its first use, because few are used. The server truncates names of statements to 63 bytes.
    """

    def __init__(self, schema: str, channel: str, table: str = "task") -> None:
        super().__init__(schema=schema, channel=channel, table=table)
        if table == "task":
            self.durable, self.temporary = (Queries(schema, channel, name) for name in ("durable", "temporary"))

    def __getattr__(self, name: str) -> Query:
        if name not in _TEXTS:
            raise AttributeError(name)
        text = _TEXTS[name].replace("penstock_task", f"penstock_{self.table}")
        # Tables first, because a channel's name may look like a table's.
        text = _TABLE.sub(f"{self.schema}.penstock_", text).replace("{channel}", self.channel)
        query = Query(text, f"{self.channel[-8:]}.{self.table[:4]}.{name}")
        setattr(self, name, query)
        return query
