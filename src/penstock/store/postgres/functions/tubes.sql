-- Tubes, and what is done to many tasks of one.

CREATE OR REPLACE FUNCTION {schema}.penstock_save_tube(
    p_name text, p_kind text, p_options text, p_laned boolean, p_fair boolean, p_limit integer, p_newest_last boolean,
    p_capacity integer, p_temporary boolean, p_retention bigint, p_plain text, p_hand_out text, p_period bigint,
    OUT made boolean, OUT no integer, OUT name text, OUT kind text, OUT options text
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.penstock_tube AS t
        (no, name, kind, options, laned, fair, utube_limit, newest_last, capacity, temporary, retention, plain, hand_out,
        period)
    VALUES (nextval(CASE WHEN p_temporary THEN '{schema}.penstock_temporary_no' ELSE '{schema}.penstock_tube_no' END::regclass),
        p_name, p_kind, p_options, p_laned, p_fair, p_limit, p_newest_last, p_capacity, p_temporary, p_retention,
        p_plain::jsonb, p_hand_out, p_period)
    ON CONFLICT ON CONSTRAINT penstock_tube_name_key DO NOTHING RETURNING t.no INTO no;
    made := FOUND;
    IF made THEN
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_ids_%s MAXVALUE 1099511627775', no);
        UPDATE {schema}.penstock_tube t SET ids = format('{schema}.penstock_ids_%s', t.no)::regclass
        WHERE t.no = penstock_save_tube.no;
        INSERT INTO {schema}.penstock_counter (tube) VALUES (no);
    END IF;
    IF made AND p_hand_out = 'lease' AND NOT p_laned AND p_kind::jsonb -> 'order' IN ('["id"]', '["pri", "id"]')
        AND NOT (p_plain::jsonb ->> 'clock1')::boolean
    THEN
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_heads_%s', no);
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_dues_%s', no);
        UPDATE {schema}.penstock_tube t SET heads = format('{schema}.penstock_heads_%s', t.no)::regclass,
            heads_no = format('{schema}.penstock_heads_%s', t.no)::regclass,
            dues = format('{schema}.penstock_dues_%s', t.no)::regclass
        WHERE t.no = penstock_save_tube.no;
    END IF;
    IF made AND p_temporary THEN
        INSERT INTO {schema}.penstock_unbroken VALUES (no);
    END IF;
    IF made AND p_hand_out = 'deliver' THEN
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_serials_%s', no);
        UPDATE {schema}.penstock_tube t SET serials = format('{schema}.penstock_serials_%s', t.no)::regclass
        WHERE t.no = penstock_save_tube.no;
    END IF;
    SELECT t.no, t.name, t.kind, t.options INTO no, name, kind, options
    FROM {schema}.penstock_tube t WHERE t.name = p_name;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_drop_tube(p_tube integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube;
    v_now bigint;
    v_found bigint;
    v_replies {schema}.penstock_work[];
BEGIN
    PERFORM pg_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, p_tube);
    t := {schema}.penstock_open(p_tube);
    v_now := {schema}.penstock_now(p_now);
    RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
    RETURN QUERY SELECT * FROM {schema}.penstock_all_due(t, v_now, p_process);
    SELECT count(*) INTO v_found FROM {schema}.penstock_task WHERE tube = t.no AND state = 't';
    IF v_found > 0 THEN
        RAISE '% taken tasks', v_found USING ERRCODE = 'PS002';
    END IF;
    SELECT count(*) INTO v_found FROM {schema}.penstock_waiting WHERE tube = t.no;
    IF v_found > 0 THEN
        RAISE '% waiting takers', v_found USING ERRCODE = 'PS003';
    END IF;
    v_replies := ARRAY(
        SELECT ROW(key, reply_to, {schema}.penstock_reply(key & 1099511627775, address, 'deleted', NULL, NULL,
            NULL))::{schema}.penstock_work
        FROM {schema}.penstock_task
        WHERE tube = t.no AND key >= t.no::bigint << 40 AND key < (t.no + 1)::bigint << 40 AND reply_to <> t.name);
    DELETE FROM {schema}.penstock_task
    WHERE tube = t.no AND key >= t.no::bigint << 40 AND key < (t.no + 1)::bigint << 40;
    DELETE FROM {schema}.penstock_group WHERE tube = t.no;
    DELETE FROM {schema}.penstock_outcome WHERE tube = t.no;
    DELETE FROM {schema}.penstock_lane WHERE tube = t.no;
    DELETE FROM {schema}.penstock_counter WHERE tube = t.no;
    DELETE FROM {schema}.penstock_tube WHERE no = t.no;
    DELETE FROM {schema}.penstock_mark WHERE tube = t.no;
    DELETE FROM {schema}.penstock_unbroken WHERE tube = t.no;
    EXECUTE format('DROP SEQUENCE {schema}.penstock_ids_%s', t.no);
    EXECUTE format('DROP SEQUENCE IF EXISTS {schema}.penstock_serials_%1$s, {schema}.penstock_heads_%1$s, '
        '{schema}.penstock_dues_%1$s', t.no);
    RETURN QUERY SELECT * FROM {schema}.penstock_put_works(v_replies, v_now, p_process);
    IF {schema}.penstock_tell_end(t.no, p_process) THEN
        RETURN NEXT {schema}.penstock_told();
    END IF;
    DELETE FROM {schema}.penstock_watching WHERE tube = t.no;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_pause(p_tube integer, p_paused boolean, p_process text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.penstock_open(p_tube);
    UPDATE {schema}.penstock_tube SET paused = p_paused WHERE no = p_tube;
    IF NOT p_paused THEN
        PERFORM {schema}.penstock_tell(p_tube, p_process, true);
    END IF;
END $$;

-- The last row has no tube: its id is the time until the next known moment, its events say whether more is due.
CREATE OR REPLACE FUNCTION {schema}.penstock_advance(p_tube integer, p_limit integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    v_done bigint;
    v_moved bigint;
    v_at bigint;
    v_move bigint;
    v_next bigint;
    last {schema}.penstock_effect;
BEGIN
    IF {schema}.penstock_next_end() <= v_now THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
    END IF;
    RETURN QUERY SELECT * FROM {schema}.penstock_due(t, p_limit, v_now, p_process);
    GET DIAGNOSTICS v_done = ROW_COUNT;
    IF t.moving THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_follow(t, p_limit, v_now, p_process);
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        v_move := {schema}.penstock_next_move(t.no, v_moved, v_now);
    END IF;
    PERFORM {schema}.penstock_forget(t.no, 1000, v_now);
    v_at := {schema}.penstock_next_due(t, v_done, p_limit, v_now);
    last.events := CASE WHEN v_at <= v_now OR v_move <= v_now THEN 'more' ELSE '' END;
    v_next := least({schema}.penstock_next_end(), v_at, v_move);
    last.id := CASE WHEN v_next IS NOT NULL THEN greatest(v_next - v_now, 0) END;  -- greatest passes over NULL
    RETURN NEXT last;
END $$;

-- Do what is due, then un-bury up to p_count tasks (penstock_buried), in take order.
CREATE OR REPLACE FUNCTION {schema}.penstock_kick(p_tube integer, p_count integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
    RETURN QUERY SELECT * FROM {schema}.penstock_all_due(t, v_now, p_process);
    RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves('kick', ARRAY(
        SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND state = '!'
        ORDER BY rank1, rank2, key LIMIT p_count), true), v_now, false, p_process);
END $$;

-- Do what is due, then release every taken task (penstock_held).
CREATE OR REPLACE FUNCTION {schema}.penstock_release_all(p_tube integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
    RETURN QUERY SELECT * FROM {schema}.penstock_all_due(t, v_now, p_process);
    RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves('back', ARRAY(
        SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND state = 't' ORDER BY key + 0), true),
        v_now, false, p_process);
END $$;

-- Remove up to p_limit tasks with ids above p_after, up to p_last, which is the last one given when it is NULL. Those
-- behind their micro-queue go first, so that few become ready on the way. The last row has no tube: its id is p_last,
-- its place how many tasks it found, and its created the id of the last of them.
CREATE OR REPLACE FUNCTION {schema}.penstock_truncate(
    p_tube integer, p_after bigint, p_last bigint, p_limit integer, p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_base bigint := t.no::bigint << 40;
    v_moves {schema}.penstock_move[];
    last {schema}.penstock_effect;
BEGIN
    last.id := coalesce(p_last, pg_sequence_last_value(t.ids), 0);
    v_moves := ARRAY(
        SELECT ROW(CASE WHEN state = 'q' THEN 0 ELSE 1 END, key, 'delete', NULL, NULL, 0, NULL, false, NULL,
            NULL)::{schema}.penstock_move
        FROM {schema}.penstock_task WHERE tube = t.no AND key > (v_base | p_after) AND key <= (v_base | last.id)
        ORDER BY key LIMIT p_limit);
    RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, v_moves, {schema}.penstock_now(p_now), false, p_process);
    last.place := cardinality(v_moves);
    last.created := v_moves[cardinality(v_moves)].key & 1099511627775;
    RETURN NEXT last;
END $$;

-- looking: a tube that is there gives at least one row, with an id of NULL when there is nothing else to give

CREATE OR REPLACE FUNCTION {schema}.penstock_shown(
    k {schema}.penstock_task, p_place integer DEFAULT NULL, p_events text DEFAULT NULL, p_ready integer DEFAULT NULL
) RETURNS {schema}.penstock_effect LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(k.tube, p_place, p_events, p_ready, k.key & 1099511627775, k.state, k.rank1, k.rank2, k.pri, k.utube,
        k.attempts, k.lease, k.created, k.taken, k.expires, k.at, k.ttr, k.max_attempts, k.owner, k.reason, k.callback, k.data,
        k.address, k.reply_to, k.group_name, k.group_no)::{schema}.penstock_effect
$$;

CREATE OR REPLACE FUNCTION {schema}.penstock_get(p_tube integer, p_ids bigint[], p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY SELECT (shown).* FROM (
        SELECT {schema}.penstock_shown(k) AS shown FROM {schema}.penstock_task k
        WHERE k.tube = t.no AND k.key = ANY (ARRAY(
            SELECT t.no::bigint << 40 | id FROM unnest(p_ids) id WHERE id > 0 AND id < 1099511627776))
            AND (k.state = 't' OR k.expires IS NULL OR k.expires > v_now)
            AND (k.group_no IS NULL OR NOT EXISTS (
                SELECT FROM {schema}.penstock_group g WHERE g.no = k.group_no AND g.state = 'cancelling'))
            OFFSET 0) found;
END $$;

-- By the primary key; taken, delayed and buried ones by penstock_held and penstock_aside. The + 0 keeps the few taken
-- ones from being looked for among all, in key order.
CREATE OR REPLACE FUNCTION {schema}.penstock_find(p_tube integer, p_status text, p_after bigint, p_limit integer, p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    v_low bigint := t.no::bigint << 40 | least(greatest(p_after, 0), 1099511627775);
    v_high bigint := (t.no + 1)::bigint << 40;
BEGIN
    IF p_status = 't' THEN
        RETURN QUERY SELECT ({schema}.penstock_shown(k)).* FROM (
            SELECT * FROM {schema}.penstock_task WHERE tube = t.no AND state = 't' AND key + 0 > v_low
            ORDER BY key + 0 LIMIT p_limit) k;
    ELSIF p_status IN ('~', '!') THEN
        RETURN QUERY SELECT ({schema}.penstock_shown(k)).* FROM (
            SELECT found.* FROM unnest(CASE p_status WHEN '~' THEN '{~,g}' ELSE '{!}' END::"char"[]) letter
            CROSS JOIN LATERAL (SELECT * FROM {schema}.penstock_task
                WHERE tube = t.no AND (state = '~' OR state = '!' OR state = 'g') AND state = letter AND key > v_low
                    AND (expires IS NULL OR expires > v_now)
                ORDER BY key LIMIT p_limit) found
            ORDER BY found.key LIMIT p_limit) k;
    ELSE
        RETURN QUERY SELECT ({schema}.penstock_shown(k)).* FROM (
            SELECT * FROM {schema}.penstock_task
            WHERE tube = t.no AND key > v_low AND key < v_high AND (p_status IS NULL OR state IN ('r', 'q'))
                AND (state = 't' OR expires IS NULL OR expires > v_now)
            ORDER BY key LIMIT p_limit) k;
    END IF;
END $$;

-- The counters of a tube, also of a sealed one.
CREATE OR REPLACE FUNCTION {schema}.penstock_sum(p_tube integer) RETURNS SETOF {schema}.penstock_counter LANGUAGE plpgsql {plans} AS $$
BEGIN
    RETURN QUERY SELECT p_tube, sum(n.ready)::bigint, sum(n.taken)::bigint, sum(n.delayed)::bigint,
        sum(n.buried)::bigint, sum(n.done)::bigint, sum(n.put)::bigint, sum(n.take)::bigint, sum(n.ack)::bigint,
        sum(n.release)::bigint, sum(n."delete")::bigint, sum(n.bury)::bigint, sum(n.kick)::bigint,
        sum(n.touch)::bigint, sum(n.ttl)::bigint, sum(n.ttr)::bigint, sum(n.delay)::bigint, sum(n.fail)::bigint
    FROM (SELECT * FROM {schema}.penstock_counter c WHERE c.tube = p_tube
        UNION ALL SELECT * FROM {schema}.penstock_delta d WHERE d.tube = p_tube) n;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_count(p_tube integer) RETURNS SETOF {schema}.penstock_counter
LANGUAGE plpgsql {plans} AS $$
BEGIN
    PERFORM {schema}.penstock_open(p_tube);
    RETURN QUERY SELECT * FROM {schema}.penstock_sum(p_tube);
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_ahead(
    p_tube integer, p_rank1 double precision, p_rank2 double precision, p_id bigint
) RETURNS bigint LANGUAGE sql {plans} AS $$
    SELECT count(*) FROM (SELECT FROM {schema}.penstock_task WHERE tube = p_tube AND state = 'r'
        AND (rank1, rank2, key) < (p_rank1, p_rank2, p_tube::bigint << 40 | p_id) LIMIT 1000) ahead
$$;

CREATE OR REPLACE FUNCTION {schema}.penstock_lane_holders(p_tube integer, p_utube text, p_limit integer)
RETURNS SETOF {schema}.penstock_effect LANGUAGE sql {plans} AS $$
    SELECT ({schema}.penstock_shown(k)).* FROM (
        SELECT * FROM {schema}.penstock_task WHERE tube = p_tube AND state = 't' AND utube = p_utube
        ORDER BY taken, key LIMIT p_limit) k
$$;

CREATE OR REPLACE FUNCTION {schema}.penstock_check(p_repair boolean, p_now bigint)
RETURNS TABLE (tube text, id bigint, name text, what text, remedy text) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(p_now);
    t {schema}.penstock_tube;
    v_orphans bigint[];
    v_tube text;
    v_handle text;
    l record;
    n record;
BEGIN
    FOR t IN SELECT * FROM {schema}.penstock_tube k ORDER BY k.name LOOP
        PERFORM {schema}.penstock_revive(t) WHERE t.temporary;
        IF p_repair THEN  -- alone in the tube, and what stands in the way of its puts is found again
            PERFORM pg_advisory_xact_lock('{schema}.penstock_tube'::regclass::oid::integer, t.no);
            PERFORM {schema}.penstock_lower(t.no, t.heads, 1), {schema}.penstock_lower(t.no, t.dues, 1);
        END IF;
        RETURN QUERY SELECT t.name, f.id, NULL, f.what, f.remedy FROM {schema}.penstock_check_links(t, p_repair, v_now) f;
        IF t.hand_out <> 'lease' THEN
            RETURN QUERY SELECT t.name, NULL::bigint, f.name, f.what, f.remedy
                FROM {schema}.penstock_check_unleased(t, p_repair) f;
        END IF;
        v_orphans := ARRAY(SELECT k.key FROM {schema}.penstock_task k
            WHERE k.tube = t.no AND k.state = 't' AND t.hand_out = 'lease'
            AND NOT EXISTS (SELECT FROM {schema}.penstock_session s WHERE s.no = k.owner) ORDER BY k.key);
        RETURN QUERY SELECT t.name, o & 1099511627775, NULL, 'taken, but no live session holds it', 'release it'
            FROM unnest(v_orphans) o;
        IF p_repair AND cardinality(v_orphans) > 0 THEN
            PERFORM {schema}.penstock_apply(t, {schema}.penstock_moves('back', v_orphans), v_now, false, NULL);
        END IF;
        IF t.laned THEN
            FOR l IN SELECT * FROM {schema}.penstock_crooked_lanes(t) LOOP
                RETURN QUERY SELECT t.name, NULL::bigint, NULL, l.wrong, 'set its heads and numbers anew';
                IF p_repair THEN
                    PERFORM {schema}.penstock_set_lane(t, l.utube);
                END IF;
            END LOOP;
        END IF;
        FOR n IN SELECT * FROM {schema}.penstock_crooked_counts(t.no) LOOP
            RETURN QUERY SELECT t.name, NULL::bigint, NULL,
                format('the counter %s says %s, and it should be %s', n.name, n.says, n.should),
                format('set it to %s', n.should);
            IF p_repair THEN
                EXECUTE format('UPDATE {schema}.penstock_counter SET %I = %I + $1 WHERE tube = $2', n.name, n.name)
                USING n.should - n.says, t.no;
            END IF;
        END LOOP;
    END LOOP;
    FOR v_tube, v_handle IN
        SELECT DISTINCT k.name, w.handle FROM {schema}.penstock_waiting w LEFT JOIN {schema}.penstock_tube k ON k.no = w.tube
        WHERE k.no IS NULL OR NOT EXISTS (SELECT FROM {schema}.penstock_handle h WHERE h.id = w.handle)
        ORDER BY 1, 2
    LOOP
        RETURN QUERY SELECT coalesce(v_tube, ''), NULL::bigint, NULL,
            format('handle %s waits here and is gone', v_handle), 'forget it';
        IF p_repair THEN
            DELETE FROM {schema}.penstock_waiting w WHERE w.handle = v_handle;
        END IF;
    END LOOP;
END $$;
