-- A put with addresses, groups or replies: decided as core.address does, and stored whole or not at all.

-- Lock what a put of these entries may touch, in order; the tasks that hold their addresses.
CREATE OR REPLACE FUNCTION {schema}.penstock_claim(t {schema}.penstock_tube, p_entries {schema}.penstock_entry[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_holders bigint[];
    v_names text[];
    v_groups integer[];
    v_opened integer[];
    v_locked integer[];
BEGIN
    IF t.capacity IS NOT NULL THEN
        PERFORM FROM {schema}.penstock_counter WHERE tube = t.no FOR UPDATE;
    END IF;
    -- One put of an address at a time. 1024 locks for all of them: a lock each could exhaust the server's.
    PERFORM pg_advisory_xact_lock('{schema}.penstock_outcome'::regclass::oid::integer, number)
    FROM (SELECT DISTINCT hashtext(t.no || address) & 1023 AS number FROM unnest(p_entries) WHERE address IS NOT NULL
        ORDER BY 1) numbers;
    v_holders := ARRAY(
        SELECT k.key FROM (SELECT DISTINCT address FROM unnest(p_entries)) e
        CROSS JOIN LATERAL (SELECT key FROM {schema}.penstock_task  -- penstock_address
            WHERE tube = t.no AND address = e.address LIMIT 1) k ORDER BY k.key);
    v_names := ARRAY(  -- of those that will be new, whatever becomes of others meanwhile
        SELECT DISTINCT e.group_name FROM unnest(p_entries) e
        WHERE e.group_name IS NOT NULL AND e.group_no IS NULL AND (e.address IS NULL OR NOT EXISTS (
            SELECT FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.address = e.address OFFSET 0)) ORDER BY 1);
    v_groups := ARRAY(SELECT group_no FROM {schema}.penstock_task WHERE tube = t.no AND key = ANY (v_holders)
        UNION SELECT group_no FROM unnest(p_entries));
    LOOP
        v_opened := ARRAY(SELECT g.no FROM unnest(v_names) n CROSS JOIN LATERAL {schema}.penstock_open_group(t.no, n) g);
        EXIT WHEN v_locked @> v_opened;  -- else one may have ended before it was locked, and another has begun
        v_locked := v_groups || v_opened;
        PERFORM FROM {schema}.penstock_group WHERE no = ANY (v_locked) ORDER BY no FOR UPDATE;
    END LOOP;
    IF t.laned THEN
        PERFORM FROM (
            SELECT '' AS utube UNION SELECT utube FROM unnest(p_entries)
            UNION SELECT utube FROM {schema}.penstock_task WHERE tube = t.no AND key = ANY (v_holders) ORDER BY utube) e
        CROSS JOIN LATERAL (SELECT FROM {schema}.penstock_lane WHERE tube = t.no AND utube = e.utube FOR UPDATE) l;
    END IF;
    RETURN v_holders;
END $$;

-- What becomes of each entry: the task that holds its address (`holder`), else the place of the entry that is stored for
-- it (`first`, its own when it is that one); the place of the last that replaces (`last`); the holder's state, or nothing,
-- where it may not be put (`refused`).
CREATE OR REPLACE FUNCTION {schema}.penstock_plan(p_tube integer, p_entries {schema}.penstock_entry[])
RETURNS TABLE (place integer, holder bigint, first integer, last integer, refused text) LANGUAGE sql STABLE AS $$
    SELECT place, holder, first, last,
        CASE WHEN holder IS NULL AND first = place THEN NULL
            WHEN duplicate = 'error' THEN ''
            WHEN duplicate = 'replace' AND state IN ('t', '!') THEN state::text END
    FROM (SELECT u.place, u.duplicate, h.key AS holder, h.state,
            CASE WHEN u.address IS NULL THEN u.place ELSE min(u.place) OVER same END AS first,
            CASE WHEN u.address IS NOT NULL THEN max(u.place) FILTER (WHERE u.duplicate IN ('replace', 'refresh')) OVER same END AS last
        FROM unnest(p_entries) u
        LEFT JOIN LATERAL (SELECT k.key, k.state FROM {schema}.penstock_task k  -- penstock_address
            WHERE k.tube = p_tube AND k.address = u.address LIMIT 1) h ON true
        WINDOW same AS (PARTITION BY u.address)) entry
    ORDER BY place
$$;

-- The live group of that name, or the one with that number; locked.
CREATE OR REPLACE FUNCTION {schema}.penstock_join_group(p_tube integer, p_name text, p_no integer) RETURNS {schema}.penstock_group
LANGUAGE plpgsql AS $$
DECLARE
    v_no integer := p_no;
    g {schema}.penstock_group;
BEGIN
    LOOP
        IF p_no IS NULL THEN
            SELECT no INTO v_no FROM {schema}.penstock_open_group(p_tube, p_name);
        END IF;
        SELECT * INTO g FROM {schema}.penstock_group WHERE no = v_no AND state IN ('open', 'started') FOR UPDATE;
        IF FOUND THEN
            RETURN g;
        ELSIF p_no IS NOT NULL THEN
            RAISE '%', p_name USING ERRCODE = 'PS005';
        END IF;
    END LOOP;
END $$;

-- Take new tasks into their groups: the entries, with the numbers of these and whether they must wait for a start.
CREATE OR REPLACE FUNCTION {schema}.penstock_join_groups(p_tube integer, p_entries {schema}.penstock_entry[])
RETURNS {schema}.penstock_entry[] LANGUAGE plpgsql AS $$
DECLARE
    e {schema}.penstock_entry;
    g {schema}.penstock_group;
    v_no integer;
    v_number bigint;
BEGIN
    FOR i IN 1..cardinality(p_entries) LOOP
        e := p_entries[i];
        CONTINUE WHEN e.group_name IS NULL;
        IF g.name IS DISTINCT FROM e.group_name OR g.no <> e.group_no THEN
            g := {schema}.penstock_join_group(p_tube, e.group_name, e.group_no);
        END IF;
        e.group_no := g.no;
        e.held := g.state = 'open';
        p_entries[i] := e;
    END LOOP;
    FOR v_no, v_number IN
        SELECT group_no, count(*) FROM unnest(p_entries) WHERE group_no IS NOT NULL GROUP BY group_no
    LOOP
        UPDATE {schema}.penstock_group SET total = total + v_number, remaining = remaining + v_number WHERE no = v_no;
    END LOOP;
    RETURN p_entries;
END $$;

-- address.replaced: give a locked task that is ready or delayed new content; how many more are takeable. `refresh`
-- changes the data alone.
CREATE OR REPLACE FUNCTION {schema}.penstock_replace(
    t {schema}.penstock_tube, p_key bigint, e {schema}.penstock_entry, p_now bigint
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.penstock_task;
    l {schema}.penstock_lane;
    v_id bigint := p_key & 1099511627775;
    v_rank1 double precision := {schema}.penstock_rank(e.base1, e.clock1, e.newest1, v_id, p_now);
    v_rank2 double precision := {schema}.penstock_rank(e.base2, e.clock2, e.newest2, v_id, p_now);
    v_state "char";
    v_ready integer;
BEGIN
    IF e.duplicate = 'refresh' THEN
        UPDATE {schema}.penstock_task SET data = e.data WHERE tube = t.no AND key = p_key;
        RETURN 0;
    END IF;
    SELECT * INTO r FROM {schema}.penstock_task WHERE tube = t.no AND key = p_key;  -- as it is now: a new one may have demoted it
    v_state := CASE WHEN r.state = 'g' THEN 'g' WHEN e.delay > 0 THEN '~' ELSE 'r' END;
    v_ready := (v_state = 'r')::integer - (r.state = 'r')::integer;
    INSERT INTO {schema}.penstock_delta (tube, ready, delayed)
    SELECT t.no, gain, -gain FROM (SELECT (v_state = 'r')::integer - (r.state IN ('r', 'q'))::integer AS gain) n
    WHERE gain <> 0;
    IF v_state = 'r' THEN
        PERFORM {schema}.penstock_lower(t.no, t.heads, v_id);
    END IF;
    PERFORM {schema}.penstock_lower(t.no, t.dues, p_now + CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END);
    UPDATE {schema}.penstock_task SET
        state = CASE WHEN t.laned AND v_state = 'r' THEN '~' ELSE v_state END,  -- in no lane while its place is found
        rank1 = v_rank1, rank2 = CASE WHEN t.fair THEN 0 ELSE v_rank2 END, pri = e.pri, created = p_now,
        expires = p_now + e.ttl + e.delay, at = p_now + CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END, data = e.data
    WHERE tube = t.no AND key = p_key;
    IF NOT t.laned OR (v_state <> 'r' AND r.state NOT IN ('r', 'q')) THEN
        RETURN v_ready;
    END IF;
    l := {schema}.penstock_lock_lane(t.no, r.utube, false);
    IF v_state = 'r' THEN
        SELECT * INTO l.taken, l.heads, l.waiting, l.turn, v_rank2, v_state, v_ready
        FROM {schema}.penstock_arrive(t, l.utube, l.taken, l.heads, l.waiting, l.turn, r.state, false, p_key, v_rank1,
            v_rank2, p_now);
        UPDATE {schema}.penstock_task SET state = v_state, rank2 = v_rank2 WHERE tube = t.no AND key = p_key;
    ELSIF r.state = 'q' THEN
        l.waiting := l.waiting - 1;
    ELSE
        v_ready := {schema}.penstock_promote(t.no, l.utube, 1, CASE WHEN t.fair THEN l.turn END);
        l.heads := l.heads - 1 + v_ready;
        l.waiting := l.waiting - v_ready;
    END IF;
    PERFORM {schema}.penstock_save_lane(t, l.utube, l.taken, l.heads, l.waiting, l.turn, p_now);
    RETURN v_ready;
END $$;

-- The tasks of the entries, at their places: new, replaced, or as they were. Raises PS004 for an address in use, with the
-- state of its task, PS005 for a group that has ended, PS006 where there is no room.
CREATE OR REPLACE FUNCTION {schema}.penstock_put_linked(
    p_tube integer, p_entries {schema}.penstock_entry[], p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_holders bigint[] := {schema}.penstock_claim(t, p_entries);
    v_now bigint := {schema}.penstock_now(p_now);
    f {schema}.penstock_effect;
    p record;
    e {schema}.penstock_entry;
    n {schema}.penstock_entry;
    v_works {schema}.penstock_work[] := '{}';
    v_fresh {schema}.penstock_entry[] := '{}';
    v_ids bigint[];
    v_total bigint;
    -- For each entry: the task that it found, or the place of its task among the new ones; what it made takeable.
    v_keys bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_entries)]);
    v_slots integer[] := v_keys;
    v_ready integer[] := v_keys;
BEGIN
    FOR f IN  -- those past their ttl, or of a cancelled group, make way
        SELECT * FROM {schema}.penstock_apply(
            t, {schema}.penstock_moves('look', v_holders), v_now, false, p_process, false)
    LOOP
        IF f.events = 'work' THEN
            v_works := v_works || ROW(f.id, f.reply_to, f.data)::{schema}.penstock_work;
        ELSE
            RETURN NEXT f;
        END IF;
    END LOOP;
    FOR p IN SELECT * FROM {schema}.penstock_plan(t.no, p_entries) LOOP
        e := p_entries[p.place];
        IF p.refused IS NOT NULL THEN
            RAISE '%', e.address USING ERRCODE = 'PS004', DETAIL = p.refused;
        ELSIF p.holder IS NOT NULL THEN
            v_keys[p.place] := p.holder;
            v_ready[p.place] := CASE WHEN p.last = p.place THEN 0 END;
        ELSIF p.first < p.place THEN
            v_slots[p.place] := v_slots[p.first];
        ELSE
            IF p.last > p.place THEN
                n := p_entries[p.last];
                IF n.duplicate = 'refresh' THEN
                    e.data := n.data;
                    n := e;
                END IF;
                n.utube := e.utube; n.ttr := e.ttr; n.max_attempts := e.max_attempts; n.callback := e.callback;
                n.reply_to := e.reply_to; n.group_name := e.group_name; n.group_no := e.group_no;
                e := n;
            END IF;
            e.place := cardinality(v_fresh) + 1;
            v_fresh := v_fresh || e;
            v_slots[p.place] := e.place;
            v_ready[p.place] := 0;
        END IF;
    END LOOP;
    v_fresh := {schema}.penstock_join_groups(t.no, v_fresh);
    IF t.capacity IS NOT NULL AND cardinality(v_fresh) > 0 THEN
        v_total := {schema}.penstock_overfull(t, cardinality(v_fresh));
        IF v_total IS NOT NULL THEN
            RAISE '%', v_total USING ERRCODE = 'PS006', DETAIL = cardinality(v_fresh);
        END IF;
    END IF;
    UPDATE {schema}.penstock_outcome SET superseded = true, until = least(until, v_now + 60000)  -- ending.SUPERSEDED_MS
    WHERE key = ANY (ARRAY(
        SELECT o.key FROM unnest(v_fresh) u
        CROSS JOIN LATERAL (SELECT key FROM {schema}.penstock_outcome  -- penstock_outcome_address
            WHERE tube = t.no AND address = u.address AND NOT superseded LIMIT 1) o));
    v_ids := {schema}.penstock_store(t, v_fresh, v_now);
    FOR i IN 1..cardinality(p_entries) LOOP
        IF v_slots[i] IS NOT NULL THEN
            v_keys[i] := t.no::bigint << 40 | v_ids[v_slots[i]];
        ELSIF v_ready[i] IS NOT NULL THEN
            v_ready[i] := {schema}.penstock_replace(t, v_keys[i], p_entries[i], v_now);
        END IF;
    END LOOP;
    RETURN QUERY SELECT (shown).* FROM (
        SELECT {schema}.penstock_shown(k, place::integer - 1, CASE WHEN ready IS NOT NULL THEN 'put' ELSE '' END,
            CASE WHEN ready IS NULL THEN 0 WHEN slot IS NOT NULL THEN (k.state = 'r')::integer ELSE ready END) AS shown
        FROM unnest(v_keys, v_slots, v_ready) WITH ORDINALITY u(key, slot, ready, place)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.penstock_task WHERE tube = t.no AND key = u.key LIMIT 1) k
        ORDER BY slot IS NULL, place OFFSET 0) answer;
    IF {schema}.penstock_tell(t.no, p_process, false) THEN
        RETURN NEXT {schema}.penstock_told();
    END IF;
    RETURN QUERY SELECT * FROM {schema}.penstock_put_works(v_works, v_now, p_process);
END $$;
