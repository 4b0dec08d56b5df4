-- Temporary tubes after a crash of the server: their tasks were unlogged and are gone, the tubes are there and empty.

-- Put right what is kept of a temporary tube if its tasks were lost; whether they were.
CREATE OR REPLACE FUNCTION {schema}.penstock_revive(t {schema}.penstock_tube) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.penstock_unbroken WHERE tube = t.no) THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.penstock_unbroken VALUES (t.no) ON CONFLICT DO NOTHING;  -- here others wait for the first
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.penstock_delta (tube, ready, taken, delayed, buried, done)
    SELECT t.no, -ready, -taken, -delayed, -buried, ready + taken + delayed + buried FROM {schema}.penstock_count(t.no);
    DELETE FROM {schema}.penstock_lane WHERE tube = t.no;
    DELETE FROM {schema}.penstock_group WHERE tube = t.no AND state IN ('open', 'started', 'cancelling');
    -- The last commits did not wait for the disk, and may have given more ids than the sequence knows of.
    PERFORM setval(t.ids, coalesce(pg_sequence_last_value(t.ids), 0) + 1048576);
    RETURN true;
END $$;
