-- What follows from the ends of tasks: outcomes, replies, groups; and who waits for these.

-- Say that this process waits for ends in a tube; true when that was news, so that an end under way may not know it.
CREATE OR REPLACE FUNCTION {schema}.penstock_watch(p_tube integer, p_process text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(NULL);
BEGIN
    IF p_process IS NULL OR EXISTS (SELECT FROM {schema}.penstock_watching
        WHERE tube = p_tube AND process = p_process AND until > v_now + 2000)
    THEN
        RETURN false;
    END IF;
    PERFORM {schema}.penstock_relax();
    DELETE FROM {schema}.penstock_watching WHERE (tube, process) IN (
        SELECT tube, process FROM {schema}.penstock_watching WHERE until <= v_now FOR UPDATE SKIP LOCKED);
    INSERT INTO {schema}.penstock_watching VALUES (p_tube, p_process, v_now + 5000)
    ON CONFLICT (tube, process) DO UPDATE SET until = excluded.until;
    RETURN true;
END $$;

-- Tell those of other processes who wait for ends in a tube; whether there was one.
CREATE OR REPLACE FUNCTION {schema}.penstock_tell_end(p_tube integer, p_process text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.penstock_watching
        WHERE tube = p_tube AND process <> p_process AND until > {schema}.penstock_now(NULL))
        AND {schema}.penstock_tell(p_tube, p_process, true);
END $$;

-- Forget some outcomes and groups that are past their retention.
CREATE OR REPLACE FUNCTION {schema}.penstock_forget(p_tube integer, p_limit bigint, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.penstock_outcome WHERE key = ANY (ARRAY(
        SELECT key FROM {schema}.penstock_outcome WHERE tube = p_tube AND until <= p_now
        ORDER BY until LIMIT p_limit FOR UPDATE SKIP LOCKED));
    DELETE FROM {schema}.penstock_group WHERE no = ANY (ARRAY(
        SELECT no FROM {schema}.penstock_group WHERE tube = p_tube AND until <= p_now
        ORDER BY until LIMIT p_limit FOR UPDATE SKIP LOCKED));
END $$;

-- Open the tube that a reply goes to; a missing one is created.
CREATE OR REPLACE FUNCTION {schema}.penstock_reply_tube(p_name text) RETURNS {schema}.penstock_tube LANGUAGE plpgsql AS $$
DECLARE
    v_no integer;
    t {schema}.penstock_tube;
BEGIN
    LOOP
        SELECT no INTO v_no FROM {schema}.penstock_tube WHERE name = p_name;
        IF NOT FOUND THEN
            SELECT s.no INTO v_no FROM {schema}.penstock_save_tube(p_name, {reply_tube}) s;
        END IF;
        PERFORM pg_advisory_xact_lock_shared('{schema}.penstock_tube'::regclass::oid::integer, v_no);
        SELECT * INTO t FROM {schema}.penstock_tube WHERE no = v_no;
        IF FOUND THEN  -- else it was dropped while we waited
            PERFORM {schema}.penstock_revive(t) WHERE t.temporary;
            RETURN t;
        END IF;
    END LOOP;
END $$;

-- Put replies and group work, each tube's in the order of their ranks, whatever its capacity.
CREATE OR REPLACE FUNCTION {schema}.penstock_put_works(p_works {schema}.penstock_work[], p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_name text;
    t {schema}.penstock_tube;
    e {schema}.penstock_entry;
    v_entries {schema}.penstock_entry[];
    v_keys bigint[];
BEGIN
    FOR v_name IN SELECT DISTINCT w.tube FROM unnest(p_works) w ORDER BY 1 LOOP
        t := {schema}.penstock_reply_tube(v_name);
        e := jsonb_populate_record(NULL::{schema}.penstock_entry, t.plain);
        v_entries := '{}';
        FOR e.data IN
            SELECT w.data FROM unnest(p_works) WITH ORDINALITY w(rank, tube, data, number)
            WHERE w.tube = v_name ORDER BY w.rank, w.number
        LOOP
            e.place := cardinality(v_entries) + 1;
            v_entries := v_entries || e;
        END LOOP;
        v_keys := ARRAY(SELECT t.no::bigint << 40 | id FROM unnest({schema}.penstock_store(t, v_entries, p_now)) id);
        RETURN QUERY SELECT (shown).* FROM (
            SELECT {schema}.penstock_shown(k, NULL, 'put', (k.state = 'r')::integer) AS shown
            FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.key = ANY (v_keys) ORDER BY k.key OFFSET 0) put;
        IF {schema}.penstock_tell(t.no, p_process, false) THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
    END LOOP;
END $$;

-- What follows from the ends of tasks: outcomes are kept, groups count down, replies and group work are put (p_put) or
-- told as `work`.
CREATE OR REPLACE FUNCTION {schema}.penstock_follow_up(
    t {schema}.penstock_tube, p_ends {schema}.penstock_end[], p_now bigint, p_process text, p_put boolean
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_works {schema}.penstock_work[];
    v_kept bigint;
    v_no integer;
    v_gone bigint;
    v_rank bigint;
    v_over boolean;
    v_any_over boolean := false;
    v_work bytea;
    e {schema}.penstock_effect;
BEGIN
    INSERT INTO {schema}.penstock_outcome (key, until, tube, address, status, error, code, result)
    SELECT t.no::bigint << 40 | id, p_now + t.retention, t.no, address, status, error, code, result
    FROM unnest(p_ends) WHERE address IS NOT NULL;
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    IF v_kept > 0 THEN  -- two for each, so that they never outnumber what the retention asks for
        PERFORM {schema}.penstock_forget(t.no, 2 * v_kept, p_now);
    END IF;
    v_works := ARRAY(
        SELECT ROW(rank, reply_to,
            {schema}.penstock_reply(id, address, status, result, error, code))::{schema}.penstock_work
        FROM unnest(p_ends) WHERE reply_to IS NOT NULL);
    FOR v_no, v_gone, v_rank IN
        SELECT group_no, count(*), max(rank) FROM unnest(p_ends) WHERE group_no IS NOT NULL GROUP BY group_no
    LOOP
        UPDATE {schema}.penstock_group SET remaining = remaining - v_gone WHERE no = v_no;
        SELECT * INTO v_over, v_work FROM {schema}.penstock_end_group(t, v_no, p_now);
        IF v_over THEN
            RETURN NEXT {schema}.penstock_over(t.no, v_no);
            v_any_over := true;
        END IF;
        IF v_work IS NOT NULL THEN
            v_works := v_works || ROW(v_rank, t.name, v_work)::{schema}.penstock_work;
        END IF;
    END LOOP;
    IF (v_kept > 0 OR v_any_over) AND {schema}.penstock_tell_end(t.no, p_process) THEN
        RETURN NEXT {schema}.penstock_told();
    END IF;
    IF p_put THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_put_works(v_works, p_now, p_process);
        RETURN;
    END IF;
    e.events := 'work';
    FOR e.id, e.reply_to, e.data IN SELECT rank, tube, data FROM unnest(v_works) LOOP
        RETURN NEXT e;
    END LOOP;
END $$;

-- The task of an address or an id: there (id), ended (status to code), or neither. `fresh` as penstock_watch says.
CREATE OR REPLACE FUNCTION {schema}.penstock_sought(
    p_tube integer, p_address text, p_id bigint, p_now bigint, p_process text,
    OUT fresh boolean, OUT id bigint, OUT status text, OUT result bytea, OUT error text, OUT code text
) LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    v_key bigint := t.no::bigint << 40 | p_id;
BEGIN
    fresh := {schema}.penstock_watch(t.no, p_process);
    IF p_id IS NOT NULL THEN
        SELECT p_id INTO id FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.key = v_key;
    ELSE
        SELECT k.key & 1099511627775 INTO id FROM {schema}.penstock_task k
        WHERE k.tube = t.no AND k.address = p_address;
        SELECT o.key INTO v_key FROM {schema}.penstock_outcome o  -- penstock_outcome_address
        WHERE o.tube = t.no AND o.address = p_address AND NOT o.superseded;
    END IF;
    IF id IS NULL THEN
        SELECT o.status, o.result, o.error, o.code INTO status, result, error, code
        FROM {schema}.penstock_outcome o WHERE o.key = v_key AND o.until > v_now;
    END IF;
END $$;
