-- Tubes that leave and arrive, as store.moving says. A sealed tube's row stands in a table of its own, so that no call
-- finds it; its tasks stay where they are until they are erased. An arriving tube is one like any other, under a name
-- that nobody can give; what was put into it is the last id that was adopted, because a sequence outlives a rollback.

-- penstock_save_tube for programs: not of a name whose tube is on its way. Looked at afterwards, because whoever seals the
-- tube may have been waited for.
CREATE OR REPLACE FUNCTION {schema}.penstock_name_tube(
    p_name text, p_kind text, p_options text, p_laned boolean, p_fair boolean, p_limit integer, p_newest_last boolean,
    p_capacity integer, p_temporary boolean, p_retention bigint, p_plain text, p_hand_out text, p_period bigint
) RETURNS TABLE (made boolean, no integer, name text, kind text, options text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_save_tube(p_name, p_kind, p_options, p_laned, p_fair, p_limit,
        p_newest_last, p_capacity, p_temporary, p_retention, p_plain, p_hand_out, p_period) s
    WHERE NOT s.made OR NOT EXISTS (SELECT FROM {schema}.penstock_hidden(p_name));
    IF NOT FOUND THEN
        RAISE 'on its way' USING ERRCODE = 'PS001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_hidden(p_name text)
RETURNS TABLE (no integer, name text, kind text, options text) LANGUAGE sql VOLATILE AS $$
    SELECT no, name, kind, options FROM {schema}.penstock_tube WHERE name = '<' || p_name
    UNION ALL SELECT no, name, kind, options FROM {schema}.penstock_sealed WHERE name = '>' || p_name
$$;

CREATE OR REPLACE FUNCTION {schema}.penstock_seal(p_tube integer, p_name text, p_options text, p_process text) RETURNS void
LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube;
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, p_tube);
    t := {schema}.penstock_open(p_tube);
    IF t.hand_out = 'lease' AND EXISTS (SELECT FROM {schema}.penstock_task WHERE tube = t.no AND state = 't') THEN
        RAISE 'taken tasks' USING ERRCODE = 'PS007';
    ELSIF EXISTS (SELECT FROM {schema}.penstock_group WHERE tube = t.no AND moving) THEN
        RAISE '' USING ERRCODE = 'PS007';
    END IF;
    DELETE FROM {schema}.penstock_tube WHERE no = t.no;
    t.name := p_name;
    t.options := p_options;
    INSERT INTO {schema}.penstock_sealed SELECT t.*;
    DELETE FROM {schema}.penstock_waiting WHERE tube = t.no;
    PERFORM {schema}.penstock_tell(t.no, p_process, true);
END $$;

-- Remove some tasks of a sealed or arriving tube, and the rest of it when none is left; how many tasks. p_options: what a
-- sealed one says from then on.
CREATE OR REPLACE FUNCTION {schema}.penstock_erase(p_tube integer, p_limit integer, p_options text) RETURNS bigint
LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_done bigint;
BEGIN
    DELETE FROM {schema}.penstock_task WHERE tube = p_tube AND key = ANY (ARRAY(
        SELECT key FROM {schema}.penstock_task WHERE tube = p_tube AND key >= p_tube::bigint << 40 ORDER BY key LIMIT p_limit));
    GET DIAGNOSTICS v_done = ROW_COUNT;
    IF v_done = 0 THEN
        DELETE FROM {schema}.penstock_group WHERE tube = p_tube;
        DELETE FROM {schema}.penstock_outcome WHERE tube = p_tube;
        DELETE FROM {schema}.penstock_lane WHERE tube = p_tube;
        DELETE FROM {schema}.penstock_watching WHERE tube = p_tube;
    END IF;
    IF v_done = 0 AND p_options IS NOT NULL THEN
        UPDATE {schema}.penstock_sealed SET options = p_options WHERE no = p_tube;
        DELETE FROM {schema}.penstock_mark WHERE tube = p_tube;
        DELETE FROM {schema}.penstock_delta WHERE tube = p_tube;
        DELETE FROM {schema}.penstock_counter WHERE tube = p_tube;
        EXECUTE format('DROP SEQUENCE IF EXISTS {schema}.penstock_ids_%1$s, {schema}.penstock_serials_%1$s, '
            '{schema}.penstock_heads_%1$s, {schema}.penstock_dues_%1$s', p_tube);
    END IF;
    RETURN v_done;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_tally(p_tube integer)
RETURNS TABLE (last_id bigint, last_ms bigint, last_seq bigint, serial bigint) LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.penstock_tube;
BEGIN
    SELECT * INTO t FROM {schema}.penstock_tube WHERE no = p_tube;
    IF NOT FOUND THEN
        SELECT * INTO t FROM {schema}.penstock_sealed WHERE no = p_tube;
    END IF;
    RETURN QUERY SELECT CASE WHEN left(t.name, 1) = '<' THEN {schema}.penstock_adopted(t.no)
            ELSE coalesce(pg_sequence_last_value(t.ids), 0) END,
        coalesce(max(m.last_ms), 0), coalesce(max(m.last_seq), 0), coalesce(pg_sequence_last_value(t.serials), 0)
    FROM {schema}.penstock_mark m WHERE m.tube = t.no;
END $$;

-- The last id that an arriving tube got.
CREATE OR REPLACE FUNCTION {schema}.penstock_adopted(p_tube integer) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (SELECT put FROM {schema}.penstock_counter WHERE tube = p_tube)
        + coalesce((SELECT sum(put) FROM {schema}.penstock_delta WHERE tube = p_tube), 0)
$$;

-- Tasks as JSON, with the places of their data; outcomes with the places of their results.
CREATE OR REPLACE FUNCTION {schema}.penstock_adopt(
    p_tube integer, p_tasks text, p_data bytea[], p_outcomes text, p_results bytea[], p_upto bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.penstock_tube;
    v_base bigint := p_tube::bigint << 40;
    v_before bigint;
    v_last bigint;
    v_count bigint;
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, p_tube);
    t := {schema}.penstock_open(p_tube);
    v_before := {schema}.penstock_adopted(t.no);
    INSERT INTO {schema}.penstock_task (key, rank1, rank2, created, taken, expires, at, ttr, tube, pri, attempts, lease,
        max_attempts, group_no, state, utube, reason, callback, data, address, reply_to, group_name)
    SELECT v_base | id, rank1, rank2, created, taken, expires, at, ttr, t.no, pri, attempts, lease, max_attempts,
        group_no, state::"char", utube, reason, callback, p_data[place], address, reply_to, "group"
    FROM jsonb_to_recordset(p_tasks::jsonb) AS (
        place integer, id bigint, rank1 double precision, rank2 double precision, created bigint, taken bigint,
        expires bigint, at bigint, ttr bigint, pri integer, attempts integer, lease integer, max_attempts integer,
        group_no integer, state text, utube text, reason text, callback text, address text, reply_to text,
        "group" text)
    WHERE id > v_before;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_last := greatest(v_before, p_upto, (SELECT max(key & 1099511627775) FROM {schema}.penstock_task
        WHERE tube = t.no AND key > (v_base | v_before)));
    UPDATE {schema}.penstock_counter c SET put = c.put + v_last - v_before, done = c.done + v_last - v_before - v_count,
        ready = c.ready + n.ready, taken = c.taken + n.taken, delayed = c.delayed + n.delayed,
        buried = c.buried + n.buried, delay = c.delay - n.due
    FROM (SELECT count(*) FILTER (WHERE state = 'r') ready, count(*) FILTER (WHERE state = 't') taken,
            count(*) FILTER (WHERE state IN ('~', 'g')) delayed, count(*) FILTER (WHERE state = '!') buried,
            count(*) FILTER (WHERE state = '~' AND at <= created) due
        FROM {schema}.penstock_task WHERE tube = t.no AND key > (v_base | v_before)) n
    WHERE c.tube = t.no;
    UPDATE {schema}.penstock_group g SET total = g.total + n.members, remaining = g.remaining + n.members
    FROM (SELECT group_no, count(*) members FROM {schema}.penstock_task
        WHERE tube = t.no AND key > (v_base | v_before) AND group_no IS NOT NULL
        GROUP BY group_no) n
    WHERE g.no = n.group_no;
    PERFORM {schema}.penstock_adopt_outcomes(t.no, p_outcomes, p_results);
    IF v_last > coalesce(pg_sequence_last_value(t.ids), 0) THEN
        PERFORM setval(t.ids, v_last);
    END IF;
END $$;

-- Only the newest outcome of an address is found by it, and none while a task has it.
CREATE OR REPLACE FUNCTION {schema}.penstock_adopt_outcomes(p_tube integer, p_outcomes text, p_results bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    o record;
    v_key bigint;
BEGIN
    FOR o IN SELECT * FROM jsonb_to_recordset(p_outcomes::jsonb) AS (
        place integer, id bigint, address text, status text, error text, code text, until bigint) ORDER BY id
    LOOP
        v_key := p_tube::bigint << 40 | o.id;
        UPDATE {schema}.penstock_outcome SET superseded = true
        WHERE tube = p_tube AND address = o.address AND NOT superseded AND key < v_key;
        INSERT INTO {schema}.penstock_outcome (key, until, tube, superseded, address, status, error, code, result)
        VALUES (v_key, o.until, p_tube,
            EXISTS (SELECT FROM {schema}.penstock_outcome WHERE tube = p_tube AND address = o.address AND NOT superseded)
            OR EXISTS (SELECT FROM {schema}.penstock_task WHERE tube = p_tube AND address = o.address),
            o.address, o.status, o.error, o.code, p_results[o.place])
        ON CONFLICT (key) DO NOTHING;
    END LOOP;
END $$;

-- False when the name is in use. What is not transactional, a sequence, may be set twice.
CREATE OR REPLACE FUNCTION {schema}.penstock_land(
    p_tube integer, p_name text, p_counts text, p_ms bigint, p_seq bigint, p_totals text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.penstock_tube;
    n {schema}.penstock_counter;
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, p_tube);
    t := {schema}.penstock_open(p_tube);
    UPDATE {schema}.penstock_tube SET name = p_name WHERE no = t.no;
    n := jsonb_populate_record(NULL::{schema}.penstock_counter, p_counts::jsonb);
    UPDATE {schema}.penstock_counter c SET take = c.take + n.take, ack = c.ack + n.ack, release = c.release + n.release,
        "delete" = c."delete" + n."delete", bury = c.bury + n.bury, kick = c.kick + n.kick, touch = c.touch + n.touch,
        ttl = c.ttl + n.ttl, ttr = c.ttr + n.ttr, delay = c.delay + n.delay, fail = c.fail + n.fail
    WHERE c.tube = t.no;
    UPDATE {schema}.penstock_group g SET total = u.value::integer
    FROM jsonb_each_text(p_totals::jsonb) u WHERE g.no = u.key::integer;
    IF t.serials IS NOT NULL THEN
        INSERT INTO {schema}.penstock_mark AS m (tube, last_ms, last_seq) VALUES (t.no, p_ms, p_seq)
        ON CONFLICT (tube) DO UPDATE SET last_ms = p_ms, last_seq = p_seq WHERE (m.last_ms, m.last_seq) < (p_ms, p_seq);
        PERFORM setval(t.serials, greatest(n.take, 1));
    END IF;
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END $$;
