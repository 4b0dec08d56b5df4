-- Taking and settling, and what the clock demands before: one call, one transaction.

-- Do what is due in a tube, at most p_limit tasks (penstock_timer). What others are at, they do.
CREATE OR REPLACE FUNCTION {schema}.penstock_due(t {schema}.penstock_tube, p_limit integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_soonest bigint := coalesce(pg_sequence_last_value(t.dues), 0);
    v_keys bigint[] := ARRAY(
        SELECT key FROM (SELECT key, at FROM {schema}.penstock_task
            WHERE tube = t.no AND at >= v_soonest AND at <= p_now ORDER BY at LIMIT p_limit) due
        ORDER BY at, key);
BEGIN
    IF cardinality(v_keys) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(
            t, {schema}.penstock_moves('due', v_keys), p_now, true, p_process);
    END IF;
    IF t.fair THEN
        DELETE FROM {schema}.penstock_lane WHERE (tube, utube) IN (
            SELECT tube, utube FROM {schema}.penstock_lane WHERE tube = t.no AND idle AND turn < p_now
            LIMIT 100 FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- When the clock must act on a tube next, after p_done were done just now of up to p_limit: what is due and was not
-- done, others are at, and the next look is a little later.
CREATE OR REPLACE FUNCTION {schema}.penstock_next_due(
    t {schema}.penstock_tube, p_done bigint, p_limit integer, p_now bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_soonest bigint := coalesce(pg_sequence_last_value(t.dues), 0);
    v_at bigint;
BEGIN
    SELECT at INTO v_at FROM {schema}.penstock_task WHERE tube = t.no AND at >= v_soonest ORDER BY at LIMIT 1;
    RETURN CASE WHEN v_at <= p_now AND p_done < p_limit THEN p_now + 20 ELSE v_at END;
END $$;

-- Everything that is due, and all tasks that must follow their group, however many.
CREATE OR REPLACE FUNCTION {schema}.penstock_all_due(t {schema}.penstock_tube, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_done bigint;
    v_moved bigint;
BEGIN
    LOOP
        RETURN QUERY SELECT * FROM {schema}.penstock_due(t, 1000, p_now, p_process);
        GET DIAGNOSTICS v_done = ROW_COUNT;
        RETURN QUERY SELECT * FROM {schema}.penstock_follow(t, 1000, p_now, p_process);
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        EXIT WHEN v_done < 1000 AND v_moved < 1000;
    END LOOP;
END $$;

-- Lease up to p_count tasks (penstock_ready, from where heads.sql says). What others have locked is passed over, a
-- micro-queue too, and so are the tasks of cancelled groups, which may not be removed yet. p_first: the call has changed
-- nothing before.
CREATE OR REPLACE FUNCTION {schema}.penstock_lease(
    t {schema}.penstock_tube, p_count integer, p_session integer, p_top double precision, p_call bigint, p_now bigint,
    p_cancelled integer[], p_first boolean
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_keys bigint[];
    v_utubes text[];
    v_utube text;
    v_number integer;
    v_ttr bigint;
    -- Where each hand-out moves its micro-queue behind the others, the next one is known only after it.
    v_singly boolean := t.fair AND t.utube_limit > 1;
    v_low bigint := t.no::bigint << 40 | coalesce(pg_sequence_last_value(t.heads), 0);
    v_least double precision := CASE WHEN t.heads IS NULL THEN '-Infinity'::double precision ELSE 0 END;
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
            SELECT array_agg(key), min(ttr) INTO v_keys, v_ttr FROM (
                SELECT key, ttr FROM {schema}.penstock_task
                -- No key below v_low means no place below this one; among those of other ranks, keys are told apart
                -- in the index.
                WHERE tube = t.no AND state = 'r' AND (rank1, rank2, key) >= (v_least, v_least, v_low) AND key >= v_low
                    AND rank1 <= p_top AND (expires IS NULL OR expires > p_now)
                    AND (group_no IS NULL OR group_no <> ALL (p_cancelled))
                ORDER BY rank1, rank2, key LIMIT p_count FOR UPDATE SKIP LOCKED) found;
            -- The more likely, the more was passed by; not always, because something old may be ready behind the others.
            IF t.heads IS NOT NULL AND p_first AND random() < least((v_keys[1] - v_low) / 10000.0, 0.2) THEN
                PERFORM {schema}.penstock_raise(t, v_keys, p_now + coalesce(v_ttr, 0));
            END IF;
            IF v_ttr IS NOT NULL THEN
                PERFORM {schema}.penstock_lower(t.no, t.dues, p_now + v_ttr);
            END IF;
        END IF;
        EXIT WHEN coalesce(cardinality(v_keys), 0) = 0;
        RETURN QUERY UPDATE {schema}.penstock_task k SET state = 't', attempts = k.attempts + 1, lease = k.lease + 1,
            taken = p_now, at = p_now + k.ttr, owner = p_session, call = p_call
        WHERE k.tube = t.no AND k.key = ANY (v_keys)
        RETURNING k.tube, i, 'take', 0, k.key & 1099511627775, 't', k.rank1, k.rank2, k.pri, k.utube, k.attempts,
            k.lease, k.created, k.taken, k.expires, k.at, k.ttr, k.max_attempts, k.owner, k.reason, k.callback, k.data,
            k.address, k.reply_to, k.group_name, k.group_no;
        IF v_singly THEN
            UPDATE {schema}.penstock_task k SET rank2 = l.turn FROM {schema}.penstock_lane l
            WHERE l.tube = t.no AND l.utube = v_utubes[1] AND k.tube = t.no AND k.utube = v_utubes[1] AND k.state = 'r';
        END IF;
    END LOOP;
END $$;

-- Advance the tubes, then hand out tasks of the first that has any. The last row has no tube: its id is the time until
-- the next known moment, its events say whether the session lives.
CREATE OR REPLACE FUNCTION {schema}.penstock_take(
    p_tubes integer[], p_count integer, p_handle text, p_top double precision, p_call bigint, p_blocked text,
    p_waiter bigint, p_process text, p_notify text, p_now bigint
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
    v_moved bigint;
    v_first boolean;
    v_sync text := current_setting('synchronous_commit');
    v_durable boolean := false;
    t {schema}.penstock_tube;
    last {schema}.penstock_effect;
BEGIN
    PERFORM pg_advisory_xact_lock_shared('{schema}.penstock_handle'::regclass::oid::integer, hashtext(p_handle));
    v_now := {schema}.penstock_now(p_now);
    v_next := {schema}.penstock_next_end();
    v_first := coalesce(v_next > v_now, true);
    IF NOT v_first THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_notify);
        v_next := {schema}.penstock_next_end();
    END IF;
    SELECT session INTO v_session FROM {schema}.penstock_handle WHERE id = p_handle AND until > v_now;
    last.events := CASE WHEN v_session IS NULL THEN 'dead' ELSE 'alive' END;
    FOREACH v_tube IN ARRAY p_tubes LOOP
        t := {schema}.penstock_open(v_tube);
        v_durable := v_durable OR NOT t.temporary;
        CONTINUE WHEN v_got > 0 OR v_session IS NULL;
        v_at := {schema}.penstock_next_due(t, 0, 0, v_now);
        IF v_at <= v_now THEN
            v_first := false;
            RETURN QUERY SELECT * FROM {schema}.penstock_due(t, 1000, v_now, p_notify);
            GET DIAGNOSTICS v_done = ROW_COUNT;
            v_at := {schema}.penstock_next_due(t, v_done, 1000, v_now);
        END IF;
        v_next := least(v_next, v_at);
        IF t.moving THEN
            v_first := false;
            RETURN QUERY SELECT * FROM {schema}.penstock_follow(t, 1000, v_now, p_notify);
            GET DIAGNOSTICS v_done = ROW_COUNT;
            v_next := least(v_next, {schema}.penstock_next_move(t.no, v_done, v_now));
            v_cancelled := ARRAY(SELECT no FROM {schema}.penstock_group
                WHERE tube = t.no AND moving AND state = 'cancelling');
        END IF;
        CONTINUE WHEN t.paused OR p_count = 0;
        IF t.hand_out = 'lease' THEN
            RETURN QUERY SELECT * FROM {schema}.penstock_lease(t, p_count, v_session, p_top, p_call, v_now, v_cancelled,
                v_first);
        ELSE
            RETURN QUERY SELECT * FROM {schema}.penstock_hand_out(t, p_count, v_now);
        END IF;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        IF v_got > 0 THEN
            v_moved := CASE WHEN t.hand_out <> 'clock' THEN v_got END;
            INSERT INTO {schema}.penstock_delta (tube, ready, taken, take) VALUES (t.no, -v_moved, v_moved, v_got);
            PERFORM {schema}.penstock_fold_sometimes(0.002);
        ELSIF t.hand_out = 'clock' THEN
            v_next := least(v_next, {schema}.penstock_next_turn(t, v_now));
        END IF;
    END LOOP;
    IF v_session IS NOT NULL AND (p_blocked = 'leave' OR (p_blocked = 'stay' AND v_got > 0)) THEN
        DELETE FROM {schema}.penstock_waiting WHERE tube = ANY (p_tubes) AND handle = p_handle AND number = p_waiter;
    ELSIF v_session IS NOT NULL AND p_blocked = 'enter' AND v_got = 0 THEN
        INSERT INTO {schema}.penstock_waiting (tube, handle, number, process)
        SELECT tube, p_handle, p_waiter, p_process FROM unnest(p_tubes) tube;
    END IF;
    IF v_durable AND cardinality(p_tubes) > 1 THEN
        PERFORM set_config('synchronous_commit', v_sync, true);
    END IF;
    last.id := CASE WHEN v_next IS NOT NULL THEN greatest(v_next - v_now, 0) END;  -- greatest passes over NULL
    RETURN NEXT last;
END $$;

-- Undo a take whose answer was lost, whether it was done or not: what it leased is released, unstarted, and it waits no
-- more. The lock of the handle is had alone, so that the take is not under way any more.
CREATE OR REPLACE FUNCTION {schema}.penstock_give_back(
    p_tubes integer[], p_handle text, p_call bigint, p_waiter bigint, p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_session integer;
    t {schema}.penstock_tube;
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_handle'::regclass::oid::integer, hashtext(p_handle));
    SELECT session INTO v_session FROM {schema}.penstock_handle WHERE id = p_handle;
    DELETE FROM {schema}.penstock_waiting WHERE tube = ANY (p_tubes) AND handle = p_handle AND number = p_waiter;
    FOR t IN SELECT * FROM {schema}.penstock_tube WHERE no = ANY (p_tubes) ORDER BY no LOOP
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves('back', ARRAY(
            SELECT key FROM {schema}.penstock_task
            WHERE tube = t.no AND state = 't' AND owner = v_session AND call = p_call), false, v_session, true),
            {schema}.penstock_now(p_now), false, p_process);
    END LOOP;
END $$;

-- Apply guarded moves, given as JSON in the fields of core.lifecycle.Move.
CREATE OR REPLACE FUNCTION {schema}.penstock_settle(p_tube integer, p_moves text, p_now bigint, p_process text)
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
-- whichever there is; p_results is NULL where there are none. p_brief: nobody wants the tasks, and of the plain ones one
-- row tells how many went (`ready`) and, unless all did, the places of these (`reason`).
CREATE OR REPLACE FUNCTION {schema}.penstock_ack(
    p_tube integer, p_ids bigint[], p_leases integer[], p_places integer[], p_results bytea[], p_session integer,
    p_now bigint, p_process text, p_brief boolean
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    v_keys bigint[] := ARRAY(SELECT t.no::bigint << 40 | id FROM unnest(p_ids) id);
    v_gone bigint := 0;
    v_places integer[];
    acked {schema}.penstock_effect;
BEGIN
    -- Plain tasks first, by the primary key. Written so that no plan can prefer penstock_held: the state as text, and no
    -- join, but the place of a key found by halving; by a SELECT, because a variable would be copied for every row.
    IF p_brief AND NOT t.laned THEN
        WITH gone AS (
            DELETE FROM {schema}.penstock_task k
            WHERE k.tube = t.no AND k.key = ANY (v_keys) AND k.state::text = 't' AND k.owner = p_session
                AND p_leases[width_bucket(k.key, (SELECT v_keys))] IN (0, k.lease) AND (k.at IS NULL OR k.at > v_now)
                AND k.address IS NULL AND k.reply_to IS NULL AND k.group_no IS NULL
            RETURNING k.key
        ) SELECT array_agg(p_places[width_bucket(key, (SELECT v_keys))]) INTO v_places FROM gone;
        v_gone := coalesce(cardinality(v_places), 0);
        IF v_gone > 0 THEN
            acked.tube := t.no;
            acked.events := 'acked';
            acked.ready := v_gone;
            acked.reason := CASE WHEN v_gone < cardinality(v_keys) THEN array_to_string(v_places, ' ') END;
            RETURN NEXT acked;
        END IF;
    ELSIF NOT t.laned THEN
        RETURN QUERY DELETE FROM {schema}.penstock_task k
        WHERE k.tube = t.no AND k.key = ANY (v_keys) AND k.state::text = 't' AND k.owner = p_session
            AND p_leases[width_bucket(k.key, (SELECT v_keys))] IN (0, k.lease) AND (k.at IS NULL OR k.at > v_now)
            AND k.address IS NULL AND k.reply_to IS NULL AND k.group_no IS NULL
        RETURNING k.tube, p_places[width_bucket(k.key, (SELECT v_keys))], 'ack', 0, k.key & 1099511627775, '-', k.rank1,
            k.rank2, k.pri, k.utube, k.attempts, k.lease, k.created, k.taken, k.expires, NULL::bigint, k.ttr,
            k.max_attempts, NULL::integer, NULL::text, k.callback, k.data, NULL::text, NULL::text, NULL::text,
            NULL::integer;
        GET DIAGNOSTICS v_gone = ROW_COUNT;
    END IF;
    IF v_gone > 0 THEN
        INSERT INTO {schema}.penstock_delta (tube, taken, done, ack) VALUES (t.no, -v_gone, v_gone, v_gone);
        PERFORM {schema}.penstock_fold_sometimes(0.002);
        IF t.capacity IS NOT NULL AND {schema}.penstock_tell(t.no, p_process, true) THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
    END IF;
    IF v_gone < cardinality(v_keys) THEN  -- not those that others hold: to lock them could end in a deadlock
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, ARRAY(
            SELECT ROW(m.place, m.key, 'ack', p_session, nullif(m.lease, 0), 0, NULL, false, m.result,
                NULL)::{schema}.penstock_move
            FROM unnest(v_keys, p_leases, p_places, p_results) m(key, lease, place, result)
            CROSS JOIN LATERAL (SELECT FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.key = m.key
                AND (k.owner = p_session OR k.state::text <> 't' OR k.group_no IS NOT NULL) LIMIT 1) k),
            v_now, false, p_process);
    END IF;
END $$;
