-- Where takes begin to look. While a transaction is held open anywhere in the database, what was taken since then stays in the
-- indexes, and a take that began at their starts would pass by each of these entries. So a tube knows two lower bounds: of
-- the ids of what is ready (`heads`), and of the next moments of all its tasks (`dues`). They are values of sequences, which
-- are read and set outside of transactions and leave no versions.
-- Nothing may come below them: whoever makes a task ready that is not new, or writes a moment, holds the tube's lock,
-- shared, until its commit, and lowers the bound first. They are raised by a take that has the tube to itself, so that
-- nobody is between the two.

-- Begin where everything begins, because this tube was restored: a dump has its tasks as they were when it began, and
-- the bounds as they were when it ended. Sequences are made anew then, and have other numbers than the one that the tube's
-- row remembers.
CREATE OR REPLACE FUNCTION {schema}.penstock_begin_anew(t {schema}.penstock_tube) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.penstock_lower(t.no, t.heads, 1), {schema}.penstock_lower(t.no, t.dues, 1);
    UPDATE {schema}.penstock_tube SET heads_no = heads WHERE no = (  -- where another call does so, nobody waits for it
        SELECT no FROM {schema}.penstock_tube WHERE no = t.no FOR UPDATE SKIP LOCKED);
END $$;

-- The bound is that, at most.
CREATE OR REPLACE FUNCTION {schema}.penstock_lower(p_tube integer, p_bound regclass, p_value bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_bound IS NULL OR p_value IS NULL OR p_value >= coalesce(pg_sequence_last_value(p_bound), 0) THEN
        RETURN;
    END IF;
    -- One at a time, or a higher one may be set over a lower. The error undoes the lock, and not what the sequence is.
    BEGIN
        PERFORM pg_advisory_xact_lock('{schema}.penstock_counter'::regclass::oid::integer, p_tube);
        IF p_value < pg_sequence_last_value(p_bound) THEN
            PERFORM setval(p_bound, greatest(p_value, 1));
        END IF;
        RAISE 'lowered' USING ERRCODE = 'PS011';
    EXCEPTION WHEN SQLSTATE 'PS011' THEN
    END;
END $$;

-- Raise both: to the first task that is ready, those that the call is about to take too, and to the first moment that there
-- is, or p_due where there is none. Not while anybody else is in the tube, nor where the call sees less than has been
-- committed. The call's transaction may yet be undone, so it has changed nothing before.
CREATE OR REPLACE FUNCTION {schema}.penstock_raise(t {schema}.penstock_tube, p_taking bigint[], p_due bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_low bigint;
    v_head bigint := (SELECT min(key) FROM unnest(p_taking) key);
    v_soonest bigint;
    v_due bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF pg_try_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, t.no) THEN
        -- Read only now: until here others may have lowered them.
        v_low := t.no::bigint << 40 | coalesce(pg_sequence_last_value(t.heads), 0);
        v_soonest := coalesce(pg_sequence_last_value(t.dues), 0);
        -- By the primary key; some of those that are taken, delayed or buried at a time.
        SELECT coalesce(min(key) FILTER (WHERE state = 'r'), CASE count(*) WHEN 1000 THEN max(key) + 1 ELSE v_head END)
        INTO v_head FROM (SELECT key, state FROM {schema}.penstock_task
            WHERE tube = t.no AND key >= v_low AND key < v_head ORDER BY key LIMIT 1000) passed;
        IF v_head > v_low THEN
            PERFORM setval(t.heads, v_head & 1099511627775);
        END IF;
        SELECT at INTO v_due FROM {schema}.penstock_task WHERE tube = t.no AND at >= v_soonest ORDER BY at LIMIT 1;
        IF coalesce(v_due, p_due) > v_soonest THEN
            PERFORM setval(t.dues, coalesce(v_due, p_due));
        END IF;
        RAISE 'raised' USING ERRCODE = 'PS011';
    END IF;
EXCEPTION WHEN SQLSTATE 'PS011' THEN  -- and others may come in again
END $$;
