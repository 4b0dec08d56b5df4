-- The number of `heads` where it was made, which a dump keeps and a restored sequence has not (functions/heads.sql). Tubes of
-- before have none, and begin anew once.
ALTER TABLE {schema}.penstock_tube ADD COLUMN IF NOT EXISTS heads_no oid;
ALTER TABLE {schema}.penstock_sealed ADD COLUMN IF NOT EXISTS heads_no oid;
