-- The verbs on tasks: one call, one transaction.

-- With a capacity: how much there is when there is no room for so many more, else NULL. Its counter's row admits one
-- put at a time.
CREATE FUNCTION {schema}.penstock_overfull(t {schema}.penstock_tube, p_more integer) RETURNS bigint
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
CREATE FUNCTION {schema}.penstock_store_plain(
    t {schema}.penstock_tube, p_entries {schema}.penstock_entry[], p_now bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    WITH new AS (
        INSERT INTO {schema}.penstock_task
            (key, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data, address,
            reply_to, group_name, group_no)
        SELECT t.no::bigint << 40 | e.id,
            {schema}.penstock_rank(e.base1, e.clock1, e.newest1, e.id, p_now),
            {schema}.penstock_rank(e.base2, e.clock2, e.newest2, e.id, p_now),
            p_now, p_now + e.ttl + e.delay, CASE WHEN e.delay > 0 THEN p_now + e.delay ELSE p_now + e.ttl END, e.ttr,
            t.no, e.pri, e.max_attempts, CASE WHEN e.held THEN 'g' WHEN e.delay > 0 THEN '~' ELSE 'r' END::"char", e.utube,
            e.callback, e.data, e.address, e.reply_to, e.group_name, e.group_no
        FROM (SELECT nextval(t.ids) AS id, * FROM unnest(p_entries)) e
        RETURNING key & 1099511627775 AS id
    ) SELECT array_agg(id ORDER BY id) INTO v_ids FROM new;
    RETURN v_ids;
END $$;

-- Insert into a tube of micro-queues, one after the other by name; the ids, in order.
CREATE FUNCTION {schema}.penstock_store_laned(
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
CREATE FUNCTION {schema}.penstock_store(
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
CREATE FUNCTION {schema}.penstock_put(
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
        WHERE k.key = ANY (ARRAY(SELECT t.no::bigint << 40 | id FROM unnest(ids) id));
    END IF;
    told := {schema}.penstock_tell(t.no, p_process, false);
END $$;

-- The same for tasks that differ only in their data, the most frequent put by far.
CREATE FUNCTION {schema}.penstock_put_alike(
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
    IF t.laned OR t.capacity IS NOT NULL THEN
        SELECT * INTO moment, ids, total, states, ranks, told FROM {schema}.penstock_put(p_tube, ARRAY(
            SELECT ROW(place, p_base1, p_clock1, p_newest1, p_base2, p_clock2, p_newest2, p_pri, p_utube, p_ttl, p_ttr,
                p_delay, p_max_attempts, p_callback, data, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.penstock_entry
            FROM unnest(p_data) WITH ORDINALITY u(data, place)), p_now, p_process);
        RETURN;
    END IF;
    moment := {schema}.penstock_now(p_now);
    v_at := moment + CASE WHEN p_delay > 0 THEN p_delay ELSE p_ttl END;
    p_base1 := p_base1 + CASE WHEN p_clock1 THEN moment ELSE 0 END;
    p_base2 := p_base2 + CASE WHEN p_clock2 THEN moment ELSE 0 END;
    WITH new AS (
        INSERT INTO {schema}.penstock_task
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
CREATE FUNCTION {schema}.penstock_put_one(
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
    moment := coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    v_id := nextval(t.ids);
    INSERT INTO {schema}.penstock_task
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

-- Lease up to p_count tasks (penstock_ready). What others have locked is passed over, a micro-queue too, and so are the
-- tasks of cancelled groups, which may not be removed yet.
CREATE FUNCTION {schema}.penstock_lease(
    t {schema}.penstock_tube, p_count integer, p_session integer, p_top double precision, p_call bigint, p_now bigint,
    p_cancelled integer[]
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_keys bigint[];
    v_utubes text[];
    v_utube text;
    v_number integer;
    -- Where each hand-out moves its micro-queue behind the others, the next one is known only after it.
    v_singly boolean := t.fair AND t.utube_limit > 1;
BEGIN
    FOR i IN 1..CASE WHEN v_singly THEN p_count ELSE 1 END LOOP
        IF t.laned THEN
            SELECT array_agg(key), array_agg(utube) INTO v_keys, v_utubes FROM (
                SELECT k.key, k.utube FROM {schema}.penstock_task k
                -- Not joined: a plan made for few lanes would walk through all of them.
                CROSS JOIN LATERAL (SELECT FROM {schema}.penstock_lane l
                    WHERE l.tube = t.no AND l.utube = k.utube FOR UPDATE SKIP LOCKED) l
                WHERE k.tube = t.no AND k.state = 'r' AND k.rank1 <= p_top AND (k.expires IS NULL OR k.expires > p_now)
                    AND (k.group_no IS NULL OR k.group_no <> ALL (p_cancelled))
                ORDER BY k.rank1, k.rank2, k.key LIMIT CASE WHEN v_singly THEN 1 ELSE p_count END
                FOR UPDATE OF k SKIP LOCKED) found;
            FOR v_utube, v_number IN SELECT utube, count(*) FROM unnest(v_utubes) utube GROUP BY utube LOOP
                UPDATE {schema}.penstock_lane SET taken = taken + v_number, heads = heads - v_number,
                    turn = CASE WHEN t.fair THEN greatest(p_now, turn + 1) ELSE turn END
                WHERE tube = t.no AND utube = v_utube;
            END LOOP;
        ELSE
            v_keys := ARRAY(
                SELECT key FROM {schema}.penstock_task
                WHERE tube = t.no AND state = 'r' AND rank1 <= p_top AND (expires IS NULL OR expires > p_now)
                    AND (group_no IS NULL OR group_no <> ALL (p_cancelled))
                ORDER BY rank1, rank2, key LIMIT p_count FOR UPDATE SKIP LOCKED);
        END IF;
        EXIT WHEN coalesce(cardinality(v_keys), 0) = 0;
        RETURN QUERY UPDATE {schema}.penstock_task k SET state = 't', attempts = k.attempts + 1, lease = k.lease + 1,
            taken = p_now, at = p_now + k.ttr, owner = p_session, call = p_call
        WHERE k.key = ANY (v_keys)
        RETURNING k.tube, i, 'take', 0, k.key & 1099511627775, 't', k.rank1, k.rank2, k.pri, k.utube, k.attempts,
            k.lease, k.created, k.taken, k.expires, k.at, k.ttr, k.max_attempts, k.owner, k.reason, k.callback, k.data,
            k.address, k.reply_to, k.group_name, k.group_no;
        IF v_singly THEN
            UPDATE {schema}.penstock_task k SET rank2 = l.turn FROM {schema}.penstock_lane l
            WHERE l.tube = t.no AND l.utube = v_utubes[1] AND k.tube = t.no AND k.utube = v_utubes[1] AND k.state = 'r';
        END IF;
    END LOOP;
END $$;

-- Count a blocked take of a handle in or out.
CREATE FUNCTION {schema}.penstock_register(p_handle text, p_tubes integer[], p_by integer, p_process text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_by > 0 THEN
        INSERT INTO {schema}.penstock_waiting AS w (tube, handle, takes, process)
        SELECT tube, p_handle, 1, p_process FROM unnest(p_tubes) tube
        ON CONFLICT (tube, handle) DO UPDATE SET takes = w.takes + 1;
    ELSE
        DELETE FROM {schema}.penstock_waiting WHERE tube = ANY (p_tubes) AND handle = p_handle AND takes <= 1;
        UPDATE {schema}.penstock_waiting SET takes = takes - 1
        WHERE tube = ANY (p_tubes) AND handle = p_handle AND takes > 1;
    END IF;
END $$;

-- Advance the tubes, then lease tasks of the first that has any. The last row has no tube: its id is the time until
-- the next known moment, its events say whether the session lives.
CREATE FUNCTION {schema}.penstock_take(
    p_tubes integer[], p_count integer, p_handle text, p_top double precision, p_call bigint, p_blocked text,
    p_process text, p_notify text, p_now bigint
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint;
    v_next bigint;
    v_at bigint;
    v_session integer;
    v_tube integer;
    v_cancelled integer[] := '{}';
    v_done bigint;
    v_got bigint := 0;
    v_sync text := current_setting('synchronous_commit');
    v_durable boolean := false;
    t {schema}.penstock_tube;
    last {schema}.penstock_effect;
BEGIN
    PERFORM pg_advisory_xact_lock_shared('{schema}.penstock_handle'::regclass::oid::integer, hashtext(p_handle));
    v_now := {schema}.penstock_now(p_now);
    v_next := {schema}.penstock_next_end();
    IF v_next <= v_now THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_notify);
        v_next := {schema}.penstock_next_end();
    END IF;
    SELECT session INTO v_session FROM {schema}.penstock_handle WHERE id = p_handle AND until > v_now;
    last.events := CASE WHEN v_session IS NULL THEN 'dead' ELSE 'alive' END;
    FOREACH v_tube IN ARRAY p_tubes LOOP
        t := {schema}.penstock_open(v_tube);
        v_durable := v_durable OR NOT t.temporary;
        CONTINUE WHEN v_got > 0 OR v_session IS NULL;
        SELECT at INTO v_at FROM {schema}.penstock_task WHERE tube = t.no AND at IS NOT NULL ORDER BY at LIMIT 1;
        IF v_at <= v_now THEN
            RETURN QUERY SELECT * FROM {schema}.penstock_due(t, 1000, v_now, p_notify);
            GET DIAGNOSTICS v_done = ROW_COUNT;
            v_at := {schema}.penstock_next_due(t.no, v_done, 1000, v_now);
        END IF;
        v_next := least(v_next, v_at);
        IF t.moving THEN
            RETURN QUERY SELECT * FROM {schema}.penstock_follow(t, 1000, v_now, p_notify);
            GET DIAGNOSTICS v_done = ROW_COUNT;
            v_next := least(v_next, {schema}.penstock_next_move(t.no, v_done, v_now));
            v_cancelled := ARRAY(SELECT no FROM {schema}.penstock_group
                WHERE tube = t.no AND moving AND state = 'cancelling');
        END IF;
        CONTINUE WHEN t.paused OR p_count = 0;
        RETURN QUERY SELECT * FROM {schema}.penstock_lease(t, p_count, v_session, p_top, p_call, v_now, v_cancelled);
        GET DIAGNOSTICS v_got = ROW_COUNT;
        IF v_got > 0 THEN
            INSERT INTO {schema}.penstock_delta (tube, ready, taken, take) VALUES (t.no, -v_got, v_got, v_got);
            PERFORM {schema}.penstock_fold_sometimes(0.002);
        END IF;
    END LOOP;
    IF v_session IS NOT NULL AND (p_blocked = 'leave' OR (p_blocked = 'stay' AND v_got > 0)) THEN
        PERFORM {schema}.penstock_register(p_handle, p_tubes, -1, p_process);
    ELSIF v_session IS NOT NULL AND p_blocked = 'enter' AND v_got = 0 THEN
        PERFORM {schema}.penstock_register(p_handle, p_tubes, 1, p_process);
    END IF;
    IF v_durable AND cardinality(p_tubes) > 1 THEN
        PERFORM set_config('synchronous_commit', v_sync, true);
    END IF;
    last.id := greatest(v_next - v_now, 0);
    RETURN NEXT last;
END $$;

-- Undo a take whose answer was lost, whether it was done or not: what it leased is released, unstarted. The lock of the
-- handle is had alone, so that the take is not under way any more.
CREATE FUNCTION {schema}.penstock_give_back(
    p_tubes integer[], p_handle text, p_call bigint, p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_session integer;
    t {schema}.penstock_tube;
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_handle'::regclass::oid::integer, hashtext(p_handle));
    SELECT session INTO v_session FROM {schema}.penstock_handle WHERE id = p_handle;
    FOR t IN SELECT * FROM {schema}.penstock_tube WHERE no = ANY (p_tubes) ORDER BY no LOOP
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves('back', ARRAY(
            SELECT key FROM {schema}.penstock_task
            WHERE tube = t.no AND state = 't' AND owner = v_session AND call = p_call), false, v_session, true),
            {schema}.penstock_now(p_now), false, p_process);
    END LOOP;
END $$;

-- Apply guarded moves, given as JSON in the fields of core.lifecycle.Move.
CREATE FUNCTION {schema}.penstock_settle(p_tube integer, p_moves text, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, ARRAY(
        SELECT ROW(m.place - 1, t.no::bigint << 40 | m.id, m.verb, m.session, m.lease, m.extra, m.reason, m.unstarted,
            decode(m.result, 'base64'), m.code)::{schema}.penstock_move
        FROM ROWS FROM (jsonb_to_recordset(p_moves::jsonb) AS (
            verb text, id bigint, session integer, lease integer, extra bigint, reason text, unstarted boolean,
            result text, code text)
        ) WITH ORDINALITY m(verb, id, session, lease, extra, reason, unstarted, result, code, place)
        WHERE m.id > 0 AND m.id < 1099511627776), {schema}.penstock_now(p_now), false, p_process);
END $$;

-- Acks of one session, each of another task: the most frequent way to settle. The ids are in order, a lease of 0 is
-- whichever there is; p_results is NULL where there are none.
CREATE FUNCTION {schema}.penstock_ack(
    p_tube integer, p_ids bigint[], p_leases integer[], p_places integer[], p_results bytea[], p_session integer,
    p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    v_keys bigint[] := ARRAY(SELECT t.no::bigint << 40 | id FROM unnest(p_ids) id);
    v_gone bigint := 0;
BEGIN
    -- Plain tasks first, by the primary key. Written so that no plan can prefer penstock_held: the state as text, and no
    -- join, but the place of a key found by halving.
    IF NOT t.laned THEN
        RETURN QUERY DELETE FROM {schema}.penstock_task k
        WHERE k.key = ANY (v_keys) AND k.state::text = 't' AND k.owner = p_session
            AND p_leases[width_bucket(k.key, v_keys)] IN (0, k.lease) AND (k.at IS NULL OR k.at > v_now)
            AND k.address IS NULL AND k.reply_to IS NULL AND k.group_no IS NULL
        RETURNING k.tube, p_places[width_bucket(k.key, v_keys)], 'ack', 0, k.key & 1099511627775, '-', k.rank1, k.rank2,
            k.pri, k.utube, k.attempts, k.lease, k.created, k.taken, k.expires, NULL::bigint, k.ttr, k.max_attempts,
            NULL::integer, NULL::text, k.callback, k.data, NULL::text, NULL::text, NULL::text, NULL::integer;
        GET DIAGNOSTICS v_gone = ROW_COUNT;
    END IF;
    IF v_gone > 0 THEN
        INSERT INTO {schema}.penstock_delta (tube, taken, done, ack) VALUES (t.no, -v_gone, v_gone, v_gone);
        PERFORM {schema}.penstock_fold_sometimes(0.002);
        IF t.capacity IS NOT NULL AND {schema}.penstock_tell(t.no, p_process, true) THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
    END IF;
    IF v_gone < cardinality(v_keys) THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, ARRAY(
            SELECT ROW(m.place, m.key, 'ack', p_session, nullif(m.lease, 0), 0, NULL, false, m.result,
                NULL)::{schema}.penstock_move
            FROM unnest(v_keys, p_leases, p_places, p_results) m(key, lease, place, result)), v_now, false, p_process);
    END IF;
END $$;
