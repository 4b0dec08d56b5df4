-- Of attempts that ended without an ack, as msgpack: see core/attempts.py.
ALTER TABLE {schema}.penstock_task ADD COLUMN errors bytea;
ALTER TABLE {schema}.penstock_outcome ADD COLUMN errors bytea;
