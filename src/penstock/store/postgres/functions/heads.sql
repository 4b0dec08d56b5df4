-- Where takes begin to look: an id below which no task of the tube is ready. While a transaction is held open anywhere in the
-- database, the entries of all tasks taken since stay in the ready index, and a take that began at its start would pass by
-- each of them. The id is the value of a sequence, which is read and set outside of transactions and leaves no versions.
-- Nothing may become ready below it: whoever makes a task ready that is not new holds the tube's lock, shared, until its
-- commit, and lowers the id first. It is raised by a take that has the tube to itself, so that nobody is between the two.

-- Look from this task on, at the latest.
CREATE OR REPLACE FUNCTION {schema}.penstock_lower(t {schema}.penstock_tube, p_key bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint := p_key & 1099511627775;
BEGIN
    IF t.heads IS NULL OR v_id >= coalesce(pg_sequence_last_value(t.heads), 0) THEN
        RETURN;
    END IF;
    -- One at a time, or a higher one may be set over a lower. The error undoes the lock, and not what the sequence is.
    BEGIN
        PERFORM pg_advisory_xact_lock('{schema}.penstock_counter'::regclass::oid::integer, t.no);
        IF v_id < pg_sequence_last_value(t.heads) THEN
            PERFORM setval(t.heads, v_id);
        END IF;
        RAISE 'lowered' USING ERRCODE = 'PS011';
    EXCEPTION WHEN SQLSTATE 'PS011' THEN
    END;
END $$;

-- Look from the first task on that is ready, or that this call took: its transaction may yet be undone. Not while anybody
-- else is in the tube, nor where the call sees less than has been committed.
CREATE OR REPLACE FUNCTION {schema}.penstock_raise(t {schema}.penstock_tube, p_taken bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_low bigint := t.no::bigint << 40 | coalesce(pg_sequence_last_value(t.heads), 0);
    v_top bigint := (SELECT min(key) FROM unnest(p_taken) key);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF pg_try_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, t.no) THEN
        -- By the primary key; some of those that are taken, delayed or buried at a time.
        SELECT coalesce(min(key) FILTER (WHERE state = 'r'), CASE count(*) WHEN 1000 THEN max(key) + 1 ELSE v_top END)
        INTO v_top FROM (SELECT key, state FROM {schema}.penstock_task
            WHERE tube = t.no AND key >= v_low AND key < v_top ORDER BY key LIMIT 1000) passed;
        IF v_top > v_low THEN
            PERFORM setval(t.heads, v_top & 1099511627775);
        END IF;
        RAISE 'raised' USING ERRCODE = 'PS011';
    END IF;
EXCEPTION WHEN SQLSTATE 'PS011' THEN  -- and others may come in again
END $$;
