-- Progress of a hand-out, as its handler said: telling it, and reading it.

-- Moves some of which tell progress, as penstock_settle applies them.
CREATE OR REPLACE FUNCTION {schema}.penstock_settle_telling(p_tube integer, p_moves text, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_settle(p_tube, p_moves, v_now, p_process);
    -- By an array of keys: joined, a plan made for an empty table would read all of a full one.
    UPDATE {schema}.penstock_task k SET progress = m.progress, said_in = k.lease
    FROM jsonb_to_recordset(p_moves::jsonb) AS m(id bigint, session integer, lease integer, progress double precision)
    WHERE m.progress IS NOT NULL AND k.tube = p_tube AND k.key = ANY (ARRAY(
            SELECT p_tube::bigint << 40 | id FROM jsonb_to_recordset(p_moves::jsonb) AS u(id bigint)))
        AND k.key = (p_tube::bigint << 40 | m.id) AND k.state::text = 't'
        AND k.owner = m.session AND (m.lease IS NULL OR k.lease = m.lease) AND (k.at IS NULL OR k.at > v_now);
END $$;

-- What was said of that hand-out, if anything. It is looked up after the step that may have written it: so not STABLE.
CREATE OR REPLACE FUNCTION {schema}.penstock_progress(p_tube integer, p_id bigint, p_lease integer) RETURNS double precision
LANGUAGE plpgsql {plans} AS $$
BEGIN
    RETURN (SELECT progress FROM {schema}.penstock_task
        WHERE tube = p_tube AND key = (p_tube::bigint << 40 | p_id) AND said_in = p_lease);
END $$;
