-- Putting: one call, one transaction.

-- With a capacity: how much there is when there is no room for so many more, else NULL. Its counter's row admits one
-- put at a time.
CREATE OR REPLACE FUNCTION {schema}.penstock_overfull(t {schema}.penstock_tube, p_more integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_total bigint;
BEGIN
    PERFORM FROM {schema}.penstock_counter WHERE tube = t.no FOR UPDATE;
    SELECT c.ready + c.taken + c.delayed + c.buried + coalesce((
        SELECT sum(coalesce(d.ready, 0) + coalesce(d.taken, 0) + coalesce(d.delayed, 0) + coalesce(d.buried, 0))
        FROM {schema}.penstock_delta d WHERE d.tube = t.no), 0)
    INTO v_total FROM {schema}.penstock_counter c WHERE c.tube = t.no;
    RETURN CASE WHEN v_total + p_more > t.capacity THEN v_total END;
END $$;

-- Insert into a tube without micro-queues; the ids, in order.
CREATE OR REPLACE FUNCTION {schema}.penstock_store_plain(
    t {schema}.penstock_tube, p_entries {schema}.penstock_entry[], p_now bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
    v_ms bigint;
    v_seq bigint;
BEGIN
    IF t.hand_out = 'deliver' THEN
        SELECT ms, seq INTO v_ms, v_seq FROM {schema}.penstock_next_marks(t.no, cardinality(p_entries), p_now);
    END IF;
    IF t.dues IS NOT NULL THEN
        PERFORM {schema}.penstock_lower(t.no, t.dues, p_now + min(CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END))
        FROM unnest(p_entries) e;
    END IF;
    WITH new AS (
        INSERT INTO {schema}.penstock_task
            (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data, address,
            reply_to, group_name, group_no)
        SELECT t.no::bigint << 40 | e.id,
            {schema}.penstock_rank(e.base1, e.clock1, e.newest1, e.id, p_now),
            {schema}.penstock_rank(e.base2, e.clock2, e.newest2, e.id, p_now),
            p_now, p_now + e.ttl + e.delay, CASE WHEN e.delay > 0 THEN p_now + e.delay ELSE p_now + e.ttl END, e.ttr,
            t.no, e.pri, e.max_attempts, CASE WHEN e.held THEN 'g' WHEN e.delay > 0 THEN '~' ELSE 'r' END::"char", e.utube,
            e.callback, e.data,
            CASE t.hand_out WHEN 'lease' THEN e.address WHEN 'deliver' THEN format('%s-%s', v_ms, v_seq + e.place)
                ELSE coalesce(e.address, {schema}.penstock_free_name(t.no, e.id)) END,
            e.reply_to, e.group_name, e.group_no
        FROM (SELECT nextval(t.ids) AS id, * FROM unnest(p_entries)) e
        RETURNING key & 1099511627775 AS id
    ) SELECT array_agg(id ORDER BY id) INTO v_ids FROM new;
    RETURN v_ids;
END $$;

-- Insert into a tube of micro-queues, one after the other by name; the ids, in order.
CREATE OR REPLACE FUNCTION {schema}.penstock_store_laned(
    t {schema}.penstock_tube, p_entries {schema}.penstock_entry[], p_now bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[] := ARRAY(SELECT nextval(t.ids) FROM generate_series(1, cardinality(p_entries)));
    e {schema}.penstock_entry;
    l {schema}.penstock_lane;
    v_id bigint;
    v_rank1 double precision;
    v_rank2 double precision;
    v_state "char";
    v_ready integer;
BEGIN
    FOR e IN SELECT * FROM unnest(p_entries) u ORDER BY u.utube COLLATE "C", u.place LOOP
        v_id := v_ids[e.place];
        v_rank1 := {schema}.penstock_rank(e.base1, e.clock1, e.newest1, v_id, p_now);
        v_rank2 := {schema}.penstock_rank(e.base2, e.clock2, e.newest2, v_id, p_now);
        v_state := CASE WHEN e.held THEN 'g' ELSE '~' END;
        IF e.delay = 0 AND e.held IS NOT TRUE THEN
            IF l.utube IS DISTINCT FROM e.utube THEN
                IF l.utube IS NOT NULL THEN
                    PERFORM {schema}.penstock_save_lane(t, l.utube, l.taken, l.heads, l.waiting, l.turn, p_now);
                END IF;
                l := {schema}.penstock_lock_lane(t.no, e.utube, false);
            END IF;
            SELECT * INTO l.taken, l.heads, l.waiting, l.turn, v_rank2, v_state, v_ready
            FROM {schema}.penstock_arrive(t, l.utube, l.taken, l.heads, l.waiting, l.turn, NULL, t.newest_last,
                t.no::bigint << 40 | v_id, v_rank1, v_rank2, p_now);
        ELSIF t.fair THEN
            v_rank2 := 0;
        END IF;
        INSERT INTO {schema}.penstock_task
            (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data, address,
            reply_to, group_name, group_no)
        VALUES (t.no::bigint << 40 | v_id, v_rank1, v_rank2, p_now, p_now + e.ttl + e.delay,
            CASE WHEN e.delay > 0 THEN p_now + e.delay ELSE p_now + e.ttl END, e.ttr, t.no, e.pri, e.max_attempts,
            v_state, e.utube, e.callback, e.data, e.address, e.reply_to, e.group_name, e.group_no);
    END LOOP;
    IF l.utube IS NOT NULL THEN
        PERFORM {schema}.penstock_save_lane(t, l.utube, l.taken, l.heads, l.waiting, l.turn, p_now);
    END IF;
    RETURN v_ids;
END $$;

-- Insert entries and count them; the ids, in order.
CREATE OR REPLACE FUNCTION {schema}.penstock_store(
    t {schema}.penstock_tube, p_entries {schema}.penstock_entry[], p_now bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_count integer := cardinality(p_entries);
    v_delayed integer;
BEGIN
    IF v_count = 0 THEN
        RETURN '{}';
    END IF;
    SELECT count(*) INTO v_delayed FROM unnest(p_entries) e WHERE e.delay > 0 OR e.held;
    INSERT INTO {schema}.penstock_delta (tube, ready, delayed, put)
    VALUES (t.no, nullif(v_count - v_delayed, 0), nullif(v_delayed, 0), v_count);
    PERFORM {schema}.penstock_fold_sometimes(0.002);
    IF t.laned THEN
        RETURN {schema}.penstock_store_laned(t, p_entries, p_now);
    END IF;
    RETURN {schema}.penstock_store_plain(t, p_entries, p_now);
END $$;

-- Store entries. Without room `ids` is NULL and `total` says what there is. `states` and `ranks` (the second ones) are
-- told for micro-queues only: elsewhere they follow from the entry. `told`: other processes were notified.
CREATE OR REPLACE FUNCTION {schema}.penstock_put(
    p_tube integer, p_entries {schema}.penstock_entry[], p_now bigint, p_process text,
    OUT moment bigint, OUT ids bigint[], OUT total bigint, OUT states text[], OUT ranks double precision[],
    OUT told boolean
) LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
BEGIN
    moment := {schema}.penstock_now(p_now);
    IF t.capacity IS NOT NULL THEN
        total := {schema}.penstock_overfull(t, cardinality(p_entries));
        IF total IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    ids := {schema}.penstock_store(t, p_entries, moment);
    IF t.laned THEN
        SELECT array_agg(k.state::text ORDER BY k.key), array_agg(k.rank2 ORDER BY k.key) INTO states, ranks
        FROM {schema}.penstock_task k
        WHERE k.tube = t.no AND k.key = ANY (ARRAY(SELECT t.no::bigint << 40 | id FROM unnest(ids) id));
    END IF;
    told := {schema}.penstock_tell(t.no, p_process, false);
END $$;

-- The same for tasks that differ only in their data, the most frequent put by far. Straight into the partition: to find it
-- would cost 4 µs a task.
CREATE OR REPLACE FUNCTION {schema}.penstock_put_alike(
    p_tube integer, p_data bytea[], p_base1 double precision, p_clock1 boolean, p_newest1 boolean,
    p_base2 double precision, p_clock2 boolean, p_newest2 boolean, p_pri integer, p_utube text, p_ttl bigint,
    p_ttr bigint, p_delay bigint, p_max_attempts integer, p_callback text, p_now bigint, p_process text,
    OUT moment bigint, OUT ids bigint[], OUT total bigint, OUT states text[], OUT ranks double precision[],
    OUT told boolean
) LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_count integer := cardinality(p_data);
    v_at bigint;
BEGIN
    IF t.laned OR t.temporary OR t.capacity IS NOT NULL THEN
        SELECT * INTO moment, ids, total, states, ranks, told FROM {schema}.penstock_put(p_tube, ARRAY(
            SELECT ROW(place, p_base1, p_clock1, p_newest1, p_base2, p_clock2, p_newest2, p_pri, p_utube, p_ttl, p_ttr,
                p_delay, p_max_attempts, p_callback, data, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.penstock_entry
            FROM unnest(p_data) WITH ORDINALITY u(data, place)), p_now, p_process);
        RETURN;
    END IF;
    moment := {schema}.penstock_now(p_now);
    v_at := moment + CASE WHEN p_delay > 0 THEN p_delay ELSE p_ttl END;
    PERFORM {schema}.penstock_lower(t.no, t.dues, v_at);
    p_base1 := p_base1 + CASE WHEN p_clock1 THEN moment ELSE 0 END;
    p_base2 := p_base2 + CASE WHEN p_clock2 THEN moment ELSE 0 END;
    WITH new AS (
        INSERT INTO {schema}.penstock_durable
            (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data)
        SELECT t.no::bigint << 40 | e.id, p_base1 - CASE WHEN p_newest1 THEN e.id ELSE 0 END,
            p_base2 - CASE WHEN p_newest2 THEN e.id ELSE 0 END, moment, moment + p_ttl + p_delay, v_at, p_ttr, t.no,
            p_pri, p_max_attempts, CASE WHEN p_delay > 0 THEN '~' ELSE 'r' END::"char", p_utube, p_callback, e.data
        FROM (SELECT nextval(t.ids) AS id, data FROM unnest(p_data) data) e
        RETURNING key & 1099511627775 AS id
    ) SELECT array_agg(id ORDER BY id) INTO ids FROM new;
    INSERT INTO {schema}.penstock_delta (tube, ready, delayed, put)
    VALUES (t.no, CASE WHEN p_delay = 0 THEN v_count END, CASE WHEN p_delay > 0 THEN v_count END, v_count);
    PERFORM {schema}.penstock_fold_sometimes(0.002);
    told := {schema}.penstock_tell(t.no, p_process, false);
END $$;

-- The same for one task, the hottest call of all: nothing is called that can be said here, and no setting is needed.
CREATE OR REPLACE FUNCTION {schema}.penstock_put_one(
    p_tube integer, p_data bytea, p_base1 double precision, p_clock1 boolean, p_newest1 boolean,
    p_base2 double precision, p_clock2 boolean, p_newest2 boolean, p_pri integer, p_utube text, p_ttl bigint,
    p_ttr bigint, p_delay bigint, p_max_attempts integer, p_callback text, p_now bigint, p_process text,
    OUT moment bigint, OUT ids bigint[], OUT total bigint, OUT states text[], OUT ranks double precision[],
    OUT told boolean
) LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.penstock_tube;
    v_id bigint;
BEGIN
    IF pg_try_advisory_xact_lock_shared('{schema}.penstock_tube'::regclass::oid::integer, p_tube) THEN
        SELECT * INTO t FROM {schema}.penstock_tube WHERE no = p_tube;
    END IF;
    IF t.no IS NULL OR t.laned OR t.temporary OR t.capacity IS NOT NULL THEN  -- also one that is just being dropped
        SELECT * INTO moment, ids, total, states, ranks, told FROM {schema}.penstock_put_alike(
            p_tube, ARRAY[p_data], p_base1, p_clock1, p_newest1, p_base2, p_clock2, p_newest2, p_pri, p_utube, p_ttl,
            p_ttr, p_delay, p_max_attempts, p_callback, p_now, p_process);
        RETURN;
    END IF;
    moment := {schema}.penstock_now(p_now);
    v_id := nextval(t.ids);
    IF p_delay > 0 OR p_ttl IS NOT NULL THEN
        PERFORM {schema}.penstock_lower(t.no, t.dues, moment + CASE WHEN p_delay > 0 THEN p_delay ELSE p_ttl END);
    END IF;
    INSERT INTO {schema}.penstock_durable
        (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data)
    VALUES (t.no::bigint << 40 | v_id,
        p_base1 + CASE WHEN p_clock1 THEN moment ELSE 0 END - CASE WHEN p_newest1 THEN v_id ELSE 0 END,
        p_base2 + CASE WHEN p_clock2 THEN moment ELSE 0 END - CASE WHEN p_newest2 THEN v_id ELSE 0 END,
        moment, moment + p_ttl + p_delay, moment + CASE WHEN p_delay > 0 THEN p_delay ELSE p_ttl END, p_ttr, t.no,
        p_pri, p_max_attempts, CASE WHEN p_delay > 0 THEN '~' ELSE 'r' END::"char", p_utube, p_callback, p_data);
    INSERT INTO {schema}.penstock_delta (tube, ready, delayed, put)
    VALUES (t.no, CASE WHEN p_delay = 0 THEN 1 END, CASE WHEN p_delay > 0 THEN 1 END, 1);
    ids := ARRAY[v_id];
    told := false;
    IF p_process IS NOT NULL AND EXISTS (
        SELECT FROM {schema}.penstock_waiting WHERE tube = t.no AND process <> p_process)
    THEN
        PERFORM pg_notify('{channel}', p_process);
        told := true;
    END IF;
    IF random() < 0.002 THEN
        PERFORM {schema}.penstock_fold_sometimes(1);
    END IF;
END $$;

-- A put that says nothing but its data, into a durable tube without micro-queues and capacity: what is known of such a
-- task beforehand is in the statement. The moment, the id, and 1 where other processes were notified; NULL where there is
-- no such tube, or somebody has it alone: penstock_put_one waits for that and says so.
CREATE OR REPLACE FUNCTION {schema}.penstock_put_plain(
    p_tube integer, p_data bytea, p_rank1 double precision, p_rank2 double precision, p_pri integer, p_ttl bigint,
    p_ttr bigint, p_max_attempts integer, p_callback text, p_now bigint, p_process text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
    v_key bigint;
    v_dues regclass;
    v_told boolean;
BEGIN
    -- Locked before the statement that reads the tube begins, so that it is there or not when the lock is had.
    IF pg_try_advisory_xact_lock_shared('{schema}.penstock_tube'::regclass::oid::integer, p_tube) THEN
        SELECT p_tube::bigint << 40 | nextval(t.ids), {schema}.penstock_now(p_now), p_process IS NOT NULL AND EXISTS (
            SELECT FROM {schema}.penstock_waiting WHERE tube = p_tube AND process <> p_process), t.dues
        INTO v_key, v_now, v_told, v_dues FROM {schema}.penstock_tube t WHERE t.no = p_tube;
    END IF;
    IF v_key IS NULL THEN
        RETURN NULL;
    END IF;
    IF p_ttl IS NOT NULL THEN
        PERFORM {schema}.penstock_lower(p_tube, v_dues, v_now + p_ttl);
    END IF;
    WITH counted AS (INSERT INTO {schema}.penstock_delta (tube, ready, put) VALUES (p_tube, 1, 1))
    INSERT INTO {schema}.penstock_durable
        (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, callback, data)
    VALUES (v_key, p_rank1, p_rank2, v_now, v_now + p_ttl, v_now + p_ttl, p_ttr, p_tube, p_pri, p_max_attempts, 'r',
        p_callback, p_data);
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_process);
    END IF;
    IF v_key % 500 = 0 THEN
        PERFORM {schema}.penstock_fold_sometimes(1);
    END IF;
    RETURN ARRAY[v_now, v_key & 1099511627775, v_told::integer];
END $$;
