-- A pool in SQLite: what it says in its own way. store/pool/queries.sql follows.

-- fragment: int
INTEGER
-- fragment: blob
BLOB
-- fragment: serial
INTEGER PRIMARY KEY AUTOINCREMENT
-- fragment: table_end
) STRICT
-- fragment: keyed_end
) STRICT, WITHOUT ROWID
-- fragment: for_update
