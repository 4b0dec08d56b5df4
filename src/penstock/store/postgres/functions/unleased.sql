-- Kinds that lease nothing: round (hand-out by clock) and reliable (by delivery), as core.handout and core.ids have them. A
-- task's own id is its address.

-- ids.next_marks: the new messages are ms-(seq + 1) and so on.
CREATE OR REPLACE FUNCTION {schema}.penstock_next_marks(p_tube integer, p_count integer, p_now bigint, OUT ms bigint, OUT seq bigint)
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.penstock_mark AS m (tube, last_ms, last_seq) VALUES (p_tube, p_now, p_count)
    ON CONFLICT (tube) DO UPDATE SET last_ms = greatest(m.last_ms, p_now),
        last_seq = CASE WHEN p_now > m.last_ms THEN 0 ELSE m.last_seq END + p_count
    RETURNING m.last_ms, m.last_seq - p_count INTO ms, seq;
END $$;

-- The id of a reply in a round tube.
CREATE OR REPLACE FUNCTION {schema}.penstock_free_name(p_tube integer, p_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_name text := 'reply-' || p_id;
BEGIN
    LOOP
        -- As penstock_claim does: nobody else puts it meanwhile.
        PERFORM pg_advisory_xact_lock('{schema}.penstock_outcome'::regclass::oid::integer, hashtext(p_tube || v_name) & 1023);
        EXIT WHEN NOT EXISTS (SELECT FROM {schema}.penstock_task WHERE tube = p_tube AND address = v_name);
        v_name := v_name || '-';
    END LOOP;
    RETURN v_name;
END $$;

-- Store messages, as penstock_put; their ids are ms-(seq + 1) and so on.
CREATE OR REPLACE FUNCTION {schema}.penstock_push(
    p_tube integer, p_entries {schema}.penstock_entry[], p_now bigint, p_process text,
    OUT moment bigint, OUT ids bigint[], OUT total bigint, OUT states text[], OUT ranks double precision[],
    OUT told boolean, OUT ms bigint, OUT seq bigint
) LANGUAGE plpgsql {plans} AS $$
BEGIN
    SELECT * INTO moment, ids, total, states, ranks, told
    FROM {schema}.penstock_put(p_tube, p_entries, p_now, p_process);
    SELECT m.last_ms, m.last_seq - cardinality(ids) INTO ms, seq FROM {schema}.penstock_mark m WHERE m.tube = p_tube;
END $$;

-- handout.clocked and handout.delivered: hand out these locked tasks, in this order, to nobody in particular.
CREATE OR REPLACE FUNCTION {schema}.penstock_handed(t {schema}.penstock_tube, p_keys bigint[], p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH handed AS (
        UPDATE {schema}.penstock_task k SET state = CASE t.hand_out WHEN 'deliver' THEN 't' ELSE 'r' END::"char",
            rank1 = coalesce(u.serial, p_now), taken = p_now, attempts = k.attempts + 1
        FROM (SELECT key, place, CASE t.hand_out WHEN 'deliver' THEN nextval(t.serials) END AS serial
            FROM unnest(p_keys) WITH ORDINALITY o(key, place)) u
        WHERE k.key = u.key
        RETURNING u.place, {schema}.penstock_shown(k, u.place::integer, 'take', 0) AS shown
    ) SELECT (h.shown).* FROM handed h ORDER BY h.place;
END $$;

-- Hand out up to p_count tasks (penstock_ready). What others have locked is passed over.
CREATE OR REPLACE FUNCTION {schema}.penstock_hand_out(t {schema}.penstock_tube, p_count integer, p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_top double precision := CASE t.hand_out WHEN 'clock' THEN greatest(p_now - t.period, 0) ELSE 0 END;
    v_keys bigint[] := ARRAY(
        SELECT key FROM {schema}.penstock_task
        WHERE tube = t.no AND state = 'r' AND rank1 <= v_top AND (expires IS NULL OR expires > p_now)
        ORDER BY rank1, rank2, key LIMIT p_count FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(v_keys) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_handed(t, v_keys, p_now);
    END IF;
END $$;

-- When the first element of a round tube may be handed out, after a take got none. One that may be now is in another's
-- hands, who moves it in a moment, and without a word to those who wait.
CREATE OR REPLACE FUNCTION {schema}.penstock_next_turn(t {schema}.penstock_tube, p_now bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_rank double precision;
BEGIN
    SELECT rank1 INTO v_rank FROM {schema}.penstock_task WHERE tube = t.no AND state = 'r'
    ORDER BY rank1, rank2, key LIMIT 1;
    RETURN CASE WHEN v_rank <= greatest(p_now - t.period, 0) THEN p_now + 20 ELSE v_rank + t.period END;
END $$;

-- Hand out again up to p_count delivered messages (penstock_delivered), up to one that is younger than p_elapsed. One
-- caller at a time: another would meet those that were just moved to the end, and stop there. What is being acked is
-- passed over.
CREATE OR REPLACE FUNCTION {schema}.penstock_recover(p_tube integer, p_count bigint, p_elapsed bigint, p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint;
    v_key bigint;
    v_taken bigint;
    v_keys bigint[] := '{}';
BEGIN
    IF t.paused THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock('{schema}.penstock_mark'::regclass::oid::integer, t.no);
    v_now := {schema}.penstock_now(p_now);
    FOR v_key, v_taken IN
        SELECT key, taken FROM {schema}.penstock_task WHERE tube = t.no AND state = 't' AND owner IS NULL
        ORDER BY rank1, rank2, key LIMIT p_count FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN v_taken + p_elapsed > v_now;
        v_keys := v_keys || v_key;
    END LOOP;
    IF cardinality(v_keys) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.penstock_handed(t, v_keys, v_now);
        INSERT INTO {schema}.penstock_delta (tube, take) VALUES (t.no, cardinality(v_keys));
        PERFORM {schema}.penstock_fold_sometimes(0.002);
    END IF;
END $$;

-- A part of the delivered (p_pending) or undelivered messages, in their order, read from the end that is nearer
-- (penstock_delivered, penstock_ready). Stable: the counters and the list are of one moment.
CREATE OR REPLACE FUNCTION {schema}.penstock_inspect(p_tube integer, p_start bigint, p_count bigint, p_pending boolean)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql STABLE {plans} AS $$
DECLARE
    v_total bigint;
    v_after bigint;
    v_keys bigint[];
BEGIN
    PERFORM FROM {schema}.penstock_tube WHERE no = p_tube;
    IF NOT FOUND THEN
        RAISE 'no such tube' USING ERRCODE = 'PS001';
    END IF;
    SELECT sum(CASE WHEN p_pending THEN n.taken ELSE n.ready END) INTO v_total FROM (
        SELECT taken, ready FROM {schema}.penstock_counter WHERE tube = p_tube
        UNION ALL SELECT taken, ready FROM {schema}.penstock_delta WHERE tube = p_tube) n;
    p_start := p_start + CASE WHEN p_start < 0 THEN v_total ELSE 0 END;
    IF p_start < 0 OR p_start >= v_total THEN
        RETURN;
    END IF;
    p_count := least(p_count, v_total - p_start);
    v_after := v_total - p_start - p_count;
    EXECUTE format('SELECT ARRAY(SELECT key FROM {schema}.penstock_task WHERE tube = $1 AND state = %1$L AND owner IS NULL
        ORDER BY rank1 %2$s, rank2 %2$s, key %2$s LIMIT $2 OFFSET $3)', CASE WHEN p_pending THEN 't' ELSE 'r' END,
        CASE WHEN p_start <= v_after THEN 'ASC' ELSE 'DESC' END)
    INTO v_keys USING p_tube, p_count, least(p_start, v_after);
    RETURN QUERY SELECT (shown).* FROM (
        SELECT {schema}.penstock_shown(k) AS shown FROM {schema}.penstock_task k WHERE k.tube = p_tube AND k.key = ANY (v_keys)
        ORDER BY k.rank1, k.rank2, k.key OFFSET 0) listed;
END $$;

-- The tasks with these ids (penstock_address); none that is past its ttl.
CREATE OR REPLACE FUNCTION {schema}.penstock_named(p_tube integer, p_names text[], p_now bigint)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY SELECT (shown).* FROM (
        SELECT {schema}.penstock_shown(k) AS shown FROM unnest(p_names) name
        CROSS JOIN LATERAL (SELECT * FROM {schema}.penstock_task WHERE tube = t.no AND address = name LIMIT 1) k
        WHERE k.state = 't' OR k.expires IS NULL OR k.expires > v_now OFFSET 0) found;
END $$;

-- Acks of delivered messages, whoever calls: each id once.
CREATE OR REPLACE FUNCTION {schema}.penstock_ack_named(p_tube integer, p_names text[], p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_keys bigint[];
    v_places integer[];
    v_gone bigint;
BEGIN
    SELECT array_agg(k.key ORDER BY k.key), array_agg(u.place - 1 ORDER BY k.key) INTO v_keys, v_places
    FROM unnest(p_names) WITH ORDINALITY u(name, place)
    CROSS JOIN LATERAL (SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND address = u.name LIMIT 1) k;
    -- By the primary key, as penstock_ack.
    RETURN QUERY DELETE FROM {schema}.penstock_task k
    WHERE k.tube = t.no AND k.key = ANY (v_keys) AND k.state::text = 't' AND k.owner IS NULL
    RETURNING k.tube, v_places[width_bucket(k.key, v_keys)], 'ack', 0, k.key & 1099511627775, '-', k.rank1, k.rank2, k.pri, k.utube, k.attempts,
        k.lease, k.created, k.taken, k.expires, NULL::bigint, k.ttr, k.max_attempts, NULL::integer, NULL::text, k.callback,
        k.data, k.address, NULL::text, NULL::text, NULL::integer;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    IF v_gone > 0 THEN
        INSERT INTO {schema}.penstock_delta (tube, taken, done, ack) VALUES (t.no, -v_gone, v_gone, v_gone);
        PERFORM {schema}.penstock_fold_sometimes(0.002);
        IF t.capacity IS NOT NULL AND {schema}.penstock_tell(t.no, p_process, true) THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
    END IF;
END $$;

-- Any moves of tasks by their ids, as penstock_settle.
CREATE OR REPLACE FUNCTION {schema}.penstock_settle_named(
    p_tube integer, p_verbs text[], p_names text[], p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
BEGIN
    RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, ARRAY(
        SELECT ROW(m.place - 1, k.key, m.verb, NULL, NULL, 0, NULL, false, NULL, NULL)::{schema}.penstock_move
        FROM unnest(p_verbs, p_names) WITH ORDINALITY m(verb, name, place)
        CROSS JOIN LATERAL (SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND address = m.name LIMIT 1) k),
        {schema}.penstock_now(p_now), false, p_process);
END $$;

-- soundness.mended: what cannot be in such a tube, and where it should stand.
CREATE OR REPLACE FUNCTION {schema}.penstock_unsound(t {schema}.penstock_tube)
RETURNS TABLE (key bigint, name text, what text, state "char", rank1 double precision) LANGUAGE sql STABLE AS $$
    SELECT k.key, k.address, CASE
        WHEN k.state <> s.state THEN format('is in state %s, which its kind has not', k.state)
        WHEN k.owner IS NOT NULL THEN format('is held by session %s, but its kind has no leases', k.owner)
        ELSE 'does not stand where its last hand-out put it' END, s.state, s.rank1
    FROM {schema}.penstock_task k CROSS JOIN LATERAL (SELECT
        CASE WHEN t.hand_out = 'deliver' AND k.state = 't' THEN 't' ELSE 'r' END::"char" AS state,
        CASE WHEN t.hand_out = 'clock' THEN coalesce(k.taken, 0) WHEN k.state = 't' THEN k.rank1 ELSE 0 END AS rank1) s
    WHERE k.tube = t.no AND (k.state <> s.state OR k.owner IS NOT NULL OR k.rank1 <> s.rank1)
    ORDER BY k.key
$$;

-- What check looks at in such a tube, before the counters.
CREATE OR REPLACE FUNCTION {schema}.penstock_check_unleased(t {schema}.penstock_tube, p_repair boolean)
RETURNS TABLE (name text, what text, remedy text) LANGUAGE plpgsql AS $$
DECLARE
    n record;
BEGIN
    RETURN QUERY SELECT u.name, u.what, 'put it right' FROM {schema}.penstock_unsound(t) u;
    IF p_repair THEN
        UPDATE {schema}.penstock_task k SET state = u.state, rank1 = u.rank1, owner = NULL
        FROM {schema}.penstock_unsound(t) u WHERE k.key = u.key;
    END IF;
    IF t.hand_out <> 'deliver' THEN
        RETURN;
    END IF;
    -- soundness.needed_mark
    SELECT coalesce(m.last_ms, 0) AS last_ms, coalesce(m.last_seq, 0) AS last_seq, split_part(k.address, '-', 1)::bigint AS ms,
        split_part(k.address, '-', 2)::bigint AS seq
    INTO n FROM (SELECT address FROM {schema}.penstock_task WHERE tube = t.no ORDER BY key DESC LIMIT 1) k
    LEFT JOIN {schema}.penstock_mark m ON m.tube = t.no WHERE k.address ~ '^\d{1,16}-\d{1,16}$';
    IF (n.ms, n.seq) > (n.last_ms, n.last_seq) THEN
        RETURN QUERY SELECT NULL, format('the last id is kept as %s-%s, there is %s-%s', n.last_ms, n.last_seq, n.ms, n.seq),
            'keep the newest';
        IF p_repair THEN
            INSERT INTO {schema}.penstock_mark VALUES (t.no, n.ms, n.seq)
            ON CONFLICT (tube) DO UPDATE SET last_ms = excluded.last_ms, last_seq = excluded.last_seq;
        END IF;
    END IF;
    SELECT max(rank1)::bigint AS found, coalesce(pg_sequence_last_value(t.serials), 0) AS kept
    INTO n FROM {schema}.penstock_task WHERE tube = t.no AND state = 't' AND owner IS NULL;
    IF n.found > n.kept THEN
        RETURN QUERY SELECT NULL, format('the last hand-out is kept as number %s, there is number %s', n.kept, n.found),
            'keep the last';
        IF p_repair THEN
            PERFORM setval(t.serials, n.found);
        END IF;
    END IF;
END $$;
