-- What the verbs are made of: locks, lanes, counters, and the one loop that carries out changes. Order of locks, so that
-- no two calls wait for each other: tube and handle (advisory), counter, addresses (advisory), groups by number, lanes by
-- name, tasks; the mark of a reliable tube, whose puts lock nothing after it; takes wait for none. Where what follows from
-- an end must break it, a deadlock's victim is tried again.

-- Its row; until commit nobody drops it. Puts and takes share the lock, which is no write.
CREATE OR REPLACE FUNCTION {schema}.penstock_open(p_tube integer) RETURNS {schema}.penstock_tube LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.penstock_tube;
BEGIN
    PERFORM pg_advisory_xact_lock_shared('{schema}.penstock_tube'::regclass::oid::integer, p_tube);
    SELECT * INTO t FROM {schema}.penstock_tube WHERE no = p_tube;
    IF NOT FOUND THEN
        RAISE 'no such tube' USING ERRCODE = 'PS001';
    END IF;
    IF t.heads_no IS DISTINCT FROM t.heads::oid THEN
        PERFORM {schema}.penstock_begin_anew(t);
    END IF;
    IF t.temporary AND NOT {schema}.penstock_revive(t) THEN
        PERFORM {schema}.penstock_relax();
    END IF;
    RETURN t;
END $$;

-- This call may be lost in a crash of the server: it does not wait for the disk. Not where it is part of a caller's own
-- transaction (broker.bind), nor of a step on a durable tube too.
CREATE OR REPLACE FUNCTION {schema}.penstock_relax() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('penstock.bound', true), '') = '' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- A hint to other processes. p_process is NULL where the caller said one a moment ago, or wants none.
CREATE OR REPLACE FUNCTION {schema}.penstock_tell(p_tube integer, p_process text, p_always boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_process IS NOT NULL AND (p_always OR EXISTS (
        SELECT FROM {schema}.penstock_waiting WHERE tube = p_tube AND process <> p_process))
    THEN
        PERFORM pg_notify('{channel}', p_process);
        RETURN true;
    END IF;
    RETURN false;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_told() RETURNS {schema}.penstock_effect LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    e {schema}.penstock_effect;
BEGIN
    e.events := 'told';
    RETURN e;
END $$;

-- Add the calls' own rows to the counters, those of tubes that no put with a capacity holds. One call does it at a
-- time, and nobody waits for it.
CREATE OR REPLACE FUNCTION {schema}.penstock_fold() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_tubes integer[];
BEGIN
    IF NOT pg_try_advisory_xact_lock('{schema}.penstock_delta'::regclass::oid::integer, 0) THEN
        RETURN;
    END IF;
    v_tubes := ARRAY(SELECT tube FROM {schema}.penstock_counter ORDER BY tube FOR UPDATE SKIP LOCKED);
    WITH gone AS (
        DELETE FROM {schema}.penstock_delta d
        WHERE d.tube = ANY (v_tubes) OR NOT EXISTS (SELECT FROM {schema}.penstock_counter c WHERE c.tube = d.tube)
        RETURNING *
    ), total AS (
        SELECT tube, sum(ready) ready, sum(taken) taken, sum(delayed) delayed, sum(buried) buried, sum(done) done,
            sum(put) put, sum(take) take, sum(ack) ack, sum(release) release, sum("delete") "delete", sum(bury) bury,
            sum(kick) kick, sum(touch) touch, sum(ttl) ttl, sum(ttr) ttr, sum(delay) delay, sum(fail) fail
        FROM gone GROUP BY tube
    )
    UPDATE {schema}.penstock_counter c SET
        ready = c.ready + coalesce(n.ready, 0), taken = c.taken + coalesce(n.taken, 0),
        delayed = c.delayed + coalesce(n.delayed, 0), buried = c.buried + coalesce(n.buried, 0),
        done = c.done + coalesce(n.done, 0), put = c.put + coalesce(n.put, 0), take = c.take + coalesce(n.take, 0),
        ack = c.ack + coalesce(n.ack, 0), release = c.release + coalesce(n.release, 0),
        "delete" = c."delete" + coalesce(n."delete", 0), bury = c.bury + coalesce(n.bury, 0),
        kick = c.kick + coalesce(n.kick, 0), touch = c.touch + coalesce(n.touch, 0), ttl = c.ttl + coalesce(n.ttl, 0),
        ttr = c.ttr + coalesce(n.ttr, 0), delay = c.delay + coalesce(n.delay, 0), fail = c.fail + coalesce(n.fail, 0)
    FROM total n WHERE c.tube = n.tube;
END $$;

-- With that chance, which is once in some 500 calls, so that stats and capacity add up a thousand rows or so.
CREATE OR REPLACE FUNCTION {schema}.penstock_fold_sometimes(p_chance double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- In a caller's own transaction it would keep the counters locked until its commit.
    IF random() < p_chance AND coalesce(current_setting('penstock.bound', true), '') = '' THEN
        PERFORM {schema}.penstock_fold();
    END IF;
END $$;

-- Lock a micro-queue's row, which is made when it is missing. NULL when somebody has it and the caller does not wait.
CREATE OR REPLACE FUNCTION {schema}.penstock_lock_lane(p_tube integer, p_utube text, p_skip boolean)
RETURNS {schema}.penstock_lane LANGUAGE plpgsql AS $$
DECLARE
    l {schema}.penstock_lane;
BEGIN
    IF p_skip THEN
        SELECT * INTO l FROM {schema}.penstock_lane WHERE tube = p_tube AND utube = p_utube FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            INSERT INTO {schema}.penstock_lane (tube, utube) VALUES (p_tube, p_utube)
            ON CONFLICT DO NOTHING RETURNING * INTO l;
        END IF;
    ELSE
        SELECT * INTO l FROM {schema}.penstock_lane WHERE tube = p_tube AND utube = p_utube FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO {schema}.penstock_lane AS old (tube, utube) VALUES (p_tube, p_utube)
            ON CONFLICT (tube, utube) DO UPDATE SET turn = old.turn RETURNING * INTO l;
        END IF;
    END IF;
    RETURN l;
END $$;

-- Write a locked micro-queue; an empty one is forgotten once its turn cannot matter any more.
CREATE OR REPLACE FUNCTION {schema}.penstock_save_lane(
    t {schema}.penstock_tube, p_utube text, p_taken integer, p_heads integer, p_waiting integer, p_turn bigint,
    p_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_empty boolean := p_taken = 0 AND p_heads = 0 AND p_waiting = 0;
BEGIN
    IF v_empty AND (NOT t.fair OR p_turn < p_now) THEN
        DELETE FROM {schema}.penstock_lane WHERE tube = t.no AND utube = p_utube;
    ELSE
        UPDATE {schema}.penstock_lane SET taken = p_taken, heads = p_heads, waiting = p_waiting, turn = p_turn,
            idle = v_empty WHERE tube = t.no AND utube = p_utube;
    END IF;
END $$;

-- One verb for many tasks. p_numbered: the answers have places, from 1 in this order. Not in SQL: what of that is not
-- inlined is planned anew at every call.
CREATE OR REPLACE FUNCTION {schema}.penstock_moves(
    p_verb text, p_keys bigint[], p_numbered boolean DEFAULT false, p_session integer DEFAULT NULL,
    p_unstarted boolean DEFAULT false
) RETURNS {schema}.penstock_move[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(CASE WHEN p_numbered THEN place END, key, p_verb, p_session, NULL, 0, NULL, p_unstarted, NULL,
            NULL)::{schema}.penstock_move
        FROM unnest(p_keys) WITH ORDINALITY u(key, place));
END $$;

-- Lock the groups of the moves' tasks; which are locked now. p_skip: not those that others have.
CREATE OR REPLACE FUNCTION {schema}.penstock_lock_groups(p_moves {schema}.penstock_move[], p_skip boolean)
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    v_numbers integer[] := ARRAY(SELECT DISTINCT group_no FROM {schema}.penstock_task
        WHERE key = ANY (ARRAY(SELECT key FROM unnest(p_moves))));
BEGIN
    IF p_skip THEN
        RETURN ARRAY(SELECT no FROM {schema}.penstock_group WHERE no = ANY (v_numbers) ORDER BY no FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN ARRAY(SELECT no FROM {schema}.penstock_group WHERE no = ANY (v_numbers) ORDER BY no FOR UPDATE);
END $$;

-- Lock the first micro-queue by name, where work that follows goes, before any other. False when others have it and the
-- caller does not wait.
CREATE OR REPLACE FUNCTION {schema}.penstock_lock_first_lane(p_tube integer, p_skip boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_skip THEN
        PERFORM FROM {schema}.penstock_lane WHERE tube = p_tube AND utube = '' FOR UPDATE SKIP LOCKED;
        RETURN FOUND OR NOT EXISTS (SELECT FROM {schema}.penstock_lane WHERE tube = p_tube AND utube = '');
    END IF;
    PERFORM FROM {schema}.penstock_lane WHERE tube = p_tube AND utube = '' FOR UPDATE;
    RETURN true;
END $$;

-- Carry out each move whose guard holds: tasks, lanes, counters, and what follows from tasks that end. p_skip: pass over
-- what others have locked. p_put: also put replies and group work; else they are told as `work`.
CREATE OR REPLACE FUNCTION {schema}.penstock_apply(
    t {schema}.penstock_tube, p_moves {schema}.penstock_move[], p_now bigint, p_skip boolean,
    p_process text, p_put boolean DEFAULT true
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    m {schema}.penstock_move;
    v_order bigint;
    v_lane text;
    v_linked boolean;        -- some of these tasks have a group or a reply to leave
    v_groups integer[];      -- theirs, locked
    v_group text;            -- the state of the task's
    v_works boolean := true; -- work of this tube may follow
    v_ends {schema}.penstock_end[] := '{}';
    r {schema}.penstock_task;
    c {schema}.penstock_change;
    l {schema}.penstock_lane;  -- the one that is locked, if any
    d {schema}.penstock_delta := ROW(t.no, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)::{schema}.penstock_delta;
    v_any boolean := false;
    v_gain integer := 0;
    v_place integer;
    v_state "char";
    v_rank2 double precision;
    v_ready integer;
    v_more integer;
    v_event text;
    v_owner integer;
BEGIN
    IF t.heads IS NOT NULL THEN  -- also for those who end sessions, and opened no tube
        PERFORM pg_advisory_xact_lock_shared('{schema}.penstock_tube'::regclass::oid::integer, t.no);
    END IF;
    FOR m.place, m.key, m.verb, m.session, m.lease, m.extra, m.reason, m.unstarted, m.result, m.code, v_order, v_lane,
        v_linked IN
        SELECT u.*, CASE WHEN t.laned THEN k.utube END,
            bool_or(k.group_no IS NOT NULL OR k.reply_to IS NOT NULL) OVER ()
        FROM unnest(p_moves) WITH ORDINALITY
            u(place, key, verb, session, lease, extra, reason, unstarted, result, code, number)
        -- Not joined: a plan made for an empty table would read all of a full one.
        CROSS JOIN LATERAL (SELECT utube, group_no, reply_to FROM {schema}.penstock_task
            WHERE tube = t.no AND key = u.key LIMIT 1) k
        ORDER BY CASE WHEN t.laned THEN k.utube END, CASE WHEN t.laned THEN coalesce(u.place, 0) ELSE u.key END, u.number
    LOOP
        IF v_linked AND v_groups IS NULL THEN
            v_groups := {schema}.penstock_lock_groups(p_moves, p_skip);
            IF t.laned THEN
                v_works := {schema}.penstock_lock_first_lane(t.no, p_skip);
            END IF;
        END IF;
        IF t.laned AND l.utube IS DISTINCT FROM v_lane THEN
            IF l.utube IS NOT NULL THEN
                PERFORM {schema}.penstock_save_lane(t, l.utube, l.taken, l.heads, l.waiting, l.turn, p_now);
            END IF;
            l := {schema}.penstock_lock_lane(t.no, v_lane, p_skip);
            CONTINUE WHEN l.utube IS NULL;
        END IF;
        IF p_skip THEN
            SELECT * INTO r FROM {schema}.penstock_task WHERE tube = t.no AND key = m.key FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT * INTO r FROM {schema}.penstock_task WHERE tube = t.no AND key = m.key FOR UPDATE;
        END IF;
        CONTINUE WHEN NOT FOUND;
        v_place := m.place;
        v_group := NULL;
        IF r.group_no IS NOT NULL THEN
            CONTINUE WHEN NOT r.group_no = ANY (v_groups);
            SELECT state INTO v_group FROM {schema}.penstock_group WHERE no = r.group_no;
        END IF;
        IF v_group = 'cancelling' AND m.verb NOT IN ('due', 'back', 'kick') THEN
            c := ROW('-', 'delete', NULL, r.expires, r.attempts, NULL)::{schema}.penstock_change;
            v_place := NULL;
        ELSIF r.state <> 't' AND r.expires <= p_now AND m.verb <> 'start' THEN
            c := {schema}.penstock_became_due(r, p_now);
            v_place := NULL;
        ELSE
            c := {schema}.penstock_decide(r, m, p_now);
        END IF;
        CONTINUE WHEN c.state IS NULL;
        IF v_group IS NOT NULL THEN
            c := {schema}.penstock_gate(r, c, v_group);
        END IF;
        CONTINUE WHEN NOT v_works AND c.state = '-' AND (r.group_no IS NOT NULL OR r.reply_to = t.name);

        v_state := c.state;
        v_rank2 := CASE WHEN t.fair THEN 0 ELSE r.rank2 END;  -- a turn is its lane's: only heads carry it
        v_ready := (c.state = 'r')::integer;
        v_owner := CASE WHEN c.state = 't' THEN r.owner END;
        IF c.state = '-' THEN
            DELETE FROM {schema}.penstock_task WHERE tube = t.no AND key = r.key;
            IF (r.address IS NOT NULL AND t.hand_out = 'lease') OR r.reply_to IS NOT NULL OR r.group_no IS NOT NULL THEN
                v_ends := v_ends || ROW(coalesce(m.place, 0)::bigint << 32 | v_order, r.key & 1099511627775, r.address,
                    CASE c.events WHEN 'ack' THEN 'done' WHEN 'fail' THEN 'failed' WHEN 'delete' THEN 'deleted'
                        ELSE 'expired' END,
                    CASE c.events WHEN 'ack' THEN m.result END, CASE c.events WHEN 'fail' THEN m.reason END,
                    CASE c.events WHEN 'fail' THEN m.code END, r.reply_to, r.group_no)::{schema}.penstock_end;
            END IF;
        ELSE
            IF c.state = 'r' AND t.laned THEN
                SELECT * INTO l.taken, l.heads, l.waiting, l.turn, v_rank2, v_state, v_ready
                FROM {schema}.penstock_arrive(t, l.utube, l.taken, l.heads, l.waiting, l.turn, r.state, false, r.key,
                    r.rank1, v_rank2, p_now);
            ELSIF c.state = 'r' THEN
                PERFORM {schema}.penstock_lower(t.no, t.heads, r.key & 1099511627775);
            END IF;
            IF c.at IS NOT NULL THEN
                PERFORM {schema}.penstock_lower(t.no, t.dues, c.at);
            END IF;
            UPDATE {schema}.penstock_task SET state = v_state, rank2 = v_rank2, at = c.at, expires = c.expires,
                attempts = c.attempts, owner = v_owner, reason = c.reason
            WHERE tube = t.no AND key = r.key;
        END IF;
        IF t.laned AND c.state NOT IN ('r', 't') AND r.state IN ('r', 'q', 't') THEN
            IF r.state = 't' THEN
                l.taken := l.taken - 1;
            ELSIF r.state = 'r' THEN
                l.heads := l.heads - 1;
            ELSE
                l.waiting := l.waiting - 1;
            END IF;
            IF l.waiting > 0 AND t.utube_limit - l.taken - l.heads > 0 THEN
                v_more := {schema}.penstock_promote(t.no, l.utube, t.utube_limit - l.taken - l.heads,
                    CASE WHEN t.fair THEN l.turn END);
                l.heads := l.heads + v_more;
                l.waiting := l.waiting - v_more;
                v_ready := v_ready + v_more;
            END IF;
        END IF;

        CASE r.state
            WHEN 't' THEN d.taken := d.taken - 1;
            WHEN '~', 'g' THEN d.delayed := d.delayed - 1;
            WHEN '!' THEN d.buried := d.buried - 1;
            ELSE d.ready := d.ready - 1;
        END CASE;
        CASE c.state
            WHEN 't' THEN d.taken := d.taken + 1;
            WHEN '~', 'g' THEN d.delayed := d.delayed + 1;
            WHEN '!' THEN d.buried := d.buried + 1;
            WHEN '-' THEN d.done := d.done + 1;
            ELSE d.ready := d.ready + 1;
        END CASE;
        FOREACH v_event IN ARRAY string_to_array(c.events, ' ') LOOP
            CASE v_event
                WHEN 'ack' THEN d.ack := d.ack + 1;
                WHEN 'release' THEN d.release := d.release + 1;
                WHEN 'delete' THEN d."delete" := d."delete" + 1;
                WHEN 'bury' THEN d.bury := d.bury + 1;
                WHEN 'kick' THEN d.kick := d.kick + 1;
                WHEN 'touch' THEN d.touch := d.touch + 1;
                WHEN 'ttl' THEN d.ttl := d.ttl + 1;
                WHEN 'ttr' THEN d.ttr := d.ttr + 1;
                WHEN 'delay' THEN d.delay := d.delay + 1;
                WHEN 'fail' THEN d.fail := d.fail + 1;
            END CASE;
        END LOOP;
        v_any := true;
        v_gain := v_gain + v_ready;
        RETURN NEXT ROW(t.no, v_place, c.events, v_ready, r.key & 1099511627775, v_state, r.rank1, v_rank2, r.pri, r.utube,
            c.attempts, r.lease, r.created, r.taken, c.expires, c.at, r.ttr, r.max_attempts, v_owner, c.reason,
            r.callback, CASE WHEN c.events <> '' THEN r.data END, r.address, r.reply_to, r.group_name,
            r.group_no)::{schema}.penstock_effect;
    END LOOP;
    IF t.laned AND l.utube IS NOT NULL THEN
        PERFORM {schema}.penstock_save_lane(t, l.utube, l.taken, l.heads, l.waiting, l.turn, p_now);
    END IF;
    IF v_any THEN
        INSERT INTO {schema}.penstock_delta SELECT d.tube, nullif(d.ready, 0), nullif(d.taken, 0), nullif(d.delayed, 0),
            nullif(d.buried, 0), nullif(d.done, 0), NULL, NULL, nullif(d.ack, 0), nullif(d.release, 0),
            nullif(d."delete", 0), nullif(d.bury, 0), nullif(d.kick, 0), nullif(d.touch, 0), nullif(d.ttl, 0),
            nullif(d.ttr, 0), nullif(d.delay, 0), nullif(d.fail, 0);
        PERFORM {schema}.penstock_fold_sometimes(0.002);
        IF (v_gain > 0 OR d.delayed > 0 OR (d.done > 0 AND t.capacity IS NOT NULL))
            AND {schema}.penstock_tell(t.no, p_process, d.done > 0 AND t.capacity IS NOT NULL)
        THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
        IF cardinality(v_ends) > 0 THEN
            RETURN QUERY SELECT * FROM {schema}.penstock_follow_up(t, v_ends, p_now, p_process, p_put);
        END IF;
    END IF;
END $$;
