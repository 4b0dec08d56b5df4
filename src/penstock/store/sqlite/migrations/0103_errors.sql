-- Of attempts that ended without an ack, as msgpack: see core/attempts.py.
ALTER TABLE penstock_task ADD COLUMN errors BLOB;
ALTER TABLE penstock_outcome ADD COLUMN errors BLOB;
