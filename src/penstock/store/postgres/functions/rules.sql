-- The rules of core.lifecycle, core.lane, core.group and core.reply, row by row. Nothing here reads a clock or takes a
-- lock.

-- By date_part, not extract, whose numeric costs a put a tenth of the server's time.
CREATE OR REPLACE FUNCTION {schema}.penstock_now(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(p_now, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)
$$;

-- task.Rank.value
CREATE OR REPLACE FUNCTION {schema}.penstock_rank(
    p_base double precision, p_clock boolean, p_newest boolean, p_id bigint, p_now bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT p_base + CASE WHEN p_clock THEN p_now ELSE 0 END - CASE WHEN p_newest THEN p_id ELSE 0 END
$$;

-- lifecycle.came_back
CREATE OR REPLACE FUNCTION {schema}.penstock_came_back(
    r {schema}.penstock_task, p_now bigint, p_event text, p_delay bigint, p_unstarted boolean
) RETURNS {schema}.penstock_change LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_attempts integer := r.attempts - p_unstarted::integer;
BEGIN
    IF r.expires <= p_now THEN
        RETURN ROW('-', p_event || ' ttl', NULL, r.expires, v_attempts, NULL)::{schema}.penstock_change;
    ELSIF v_attempts >= r.max_attempts THEN
        RETURN ROW('!', CASE p_event WHEN 'ttr' THEN 'ttr bury' ELSE 'bury' END, r.expires, r.expires, v_attempts,
            coalesce(nullif(r.reason, ''), format('handed out %s times without an ack', v_attempts)))::{schema}.penstock_change;
    ELSIF p_delay > 0 THEN
        RETURN ROW('~', p_event, p_now + p_delay, r.expires + p_delay, v_attempts, r.reason)::{schema}.penstock_change;
    END IF;
    RETURN ROW('r', p_event, r.expires, r.expires, v_attempts, r.reason)::{schema}.penstock_change;
END $$;

-- lifecycle.became_due
CREATE OR REPLACE FUNCTION {schema}.penstock_became_due(r {schema}.penstock_task, p_now bigint)
RETURNS {schema}.penstock_change LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF r.state = 't' THEN
        RETURN {schema}.penstock_came_back(r, p_now, 'ttr', 0, false);
    ELSIF r.state = '~' AND (r.expires IS NULL OR r.expires > p_now) THEN
        RETURN ROW('r', 'delay', r.expires, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
    ELSIF r.state = 'g' AND (r.expires IS NULL OR r.expires > p_now) THEN
        RETURN ROW('g', '', r.expires, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
    END IF;
    RETURN ROW('-', 'ttl', NULL, r.expires, r.attempts, NULL)::{schema}.penstock_change;
END $$;

-- lifecycle.decide, and the store's own verbs: NULL where the guard fails.
CREATE OR REPLACE FUNCTION {schema}.penstock_decide(r {schema}.penstock_task, m {schema}.penstock_move, p_now bigint)
RETURNS {schema}.penstock_change LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_alive boolean := r.state = 't' AND (m.lease IS NULL OR r.lease = m.lease) AND (r.at IS NULL OR r.at > p_now);
BEGIN
    CASE m.verb
    WHEN 'ack', 'fail', 'release', 'touch' THEN
        IF NOT v_alive OR r.owner IS DISTINCT FROM m.session THEN
            RETURN NULL;
        END IF;
        IF m.verb = 'release' THEN
            r.reason := coalesce(m.reason, r.reason);
            RETURN {schema}.penstock_came_back(r, p_now, 'release', m.extra, m.unstarted);
        ELSIF m.verb = 'touch' THEN
            RETURN ROW('t', 'touch', r.at + m.extra, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
        END IF;
    WHEN 'bury', 'delete' THEN
        IF m.lease IS NOT NULL AND NOT v_alive THEN
            RETURN NULL;
        ELSIF m.verb = 'bury' THEN
            RETURN ROW('!', 'bury', r.expires, r.expires, r.attempts, coalesce(nullif(m.reason, ''), r.reason))::{schema}.penstock_change;
        END IF;
    WHEN 'due' THEN
        RETURN CASE WHEN r.at <= p_now THEN {schema}.penstock_became_due(r, p_now) END;
    WHEN 'back' THEN
        IF r.state = 't' AND (m.session IS NULL OR r.owner = m.session) THEN
            RETURN {schema}.penstock_came_back(r, p_now, 'release', 0, m.unstarted);
        END IF;
        RETURN NULL;
    WHEN 'kick' THEN
        RETURN CASE WHEN r.state = '!'
            THEN ROW('r', 'kick', r.expires, r.expires, 0, NULL)::{schema}.penstock_change END;
    WHEN 'start' THEN
        IF r.at > p_now AND r.at IS DISTINCT FROM r.expires THEN  -- its delay is not over
            RETURN ROW('~', '', r.at, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
        END IF;
        RETURN ROW('r', '', r.expires, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
    WHEN 'hold' THEN
        RETURN ROW('g', '', r.at, r.expires, r.attempts, r.reason)::{schema}.penstock_change;
    WHEN 'look' THEN
        RETURN NULL;
    END CASE;
    RETURN ROW('-', m.verb, NULL, r.expires, r.attempts, NULL)::{schema}.penstock_change;
END $$;

-- group.gate: what a change of a task becomes in a group of that state.
CREATE OR REPLACE FUNCTION {schema}.penstock_gate(r {schema}.penstock_task, c {schema}.penstock_change, p_group text)
RETURNS {schema}.penstock_change LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_group = 'cancelling' AND c.state <> '-' THEN
        RETURN ROW('-', 'delete', NULL, r.expires, r.attempts, NULL)::{schema}.penstock_change;
    ELSIF p_group = 'open' AND c.state = 'r' THEN
        c.state := 'g';
    END IF;
    RETURN c;
END $$;

-- reply.reply_payload. In bytes, because a result is stored as such.
CREATE OR REPLACE FUNCTION {schema}.penstock_reply(
    p_id bigint, p_address text, p_status text, p_result bytea, p_error text, p_code text
) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT convert_to(format('{"id":%s,"address":%s,"status":"%s",', p_id, coalesce(to_json(p_address)::text, 'null'),
        p_status), 'UTF8')
        || CASE
            WHEN p_status <> 'done' THEN convert_to(
                '"error":' || coalesce(to_json(p_error)::text, 'null') || coalesce(',"code":' || p_code, ''), 'UTF8')
            WHEN p_result IS NULL THEN '"result":null'
            WHEN get_byte(p_result, 0) = 0 THEN convert_to(
                '"result":"' || translate(encode(substr(p_result, 2), 'base64'), E'\n', '') || '","encoding":"base64"',
                'UTF8')
            ELSE '"result":'::bytea || p_result
        END || '}'::bytea
$$;

-- Make heads of the first waiting tasks of a locked lane while it has room; how many.
CREATE OR REPLACE FUNCTION {schema}.penstock_promote(p_tube integer, p_utube text, p_count integer, p_turn bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_done integer;
BEGIN
    -- penstock_laned, in order
    UPDATE {schema}.penstock_task SET state = 'r', rank2 = coalesce(p_turn, rank2)
    WHERE tube = p_tube AND key = ANY (ARRAY(
        SELECT key FROM {schema}.penstock_task WHERE tube = p_tube AND utube = p_utube AND state = 'q'
        ORDER BY rank1, rank2, key LIMIT p_count));
    GET DIAGNOSTICS v_done = ROW_COUNT;
    RETURN v_done;
END $$;

-- A task becomes ready in a locked lane: the lane's numbers afterwards, and the task's state, r or q, and rank.
-- p_newest: there is nothing it could overtake. p_was: its state before; in the lane, it gives its slot back.
CREATE OR REPLACE FUNCTION {schema}.penstock_arrive(
    t {schema}.penstock_tube, p_utube text, INOUT taken integer, INOUT heads integer, INOUT waiting integer,
    INOUT turn bigint, p_was "char", p_newest boolean, p_key bigint, p_rank1 double precision, INOUT rank2 double precision,
    p_now bigint, OUT state "char", OUT ready integer
) LANGUAGE plpgsql AS $$
DECLARE
    v_other record;
BEGIN
    ready := 0;
    IF t.fair AND taken = 0 AND heads = 0 AND waiting = 0 THEN
        turn := greatest(p_now, turn + 1);
    END IF;
    IF t.fair THEN
        rank2 := 0;
    END IF;
    IF p_was = 't' THEN
        taken := taken - 1;
    ELSIF p_was = 'r' THEN
        heads := heads - 1;
    ELSIF p_was = 'q' THEN
        waiting := waiting - 1;
    END IF;
    state := 'r';
    IF t.utube_limit - taken - heads > 0 THEN
        IF waiting > 0 THEN
            SELECT k.key, k.rank1, k.rank2 INTO v_other FROM {schema}.penstock_task k
            WHERE k.tube = t.no AND k.utube = p_utube AND k.state = 'q' ORDER BY k.rank1, k.rank2, k.key LIMIT 1;
            IF FOUND AND (v_other.rank1, v_other.rank2, v_other.key) < (p_rank1, rank2, p_key) THEN
                ready := {schema}.penstock_promote(t.no, p_utube, 1, CASE WHEN t.fair THEN turn END);
                heads := heads + 1;
                state := 'q';  -- waiting: one less, one more
            END IF;
        END IF;
    ELSIF heads > 0 AND NOT p_newest THEN
        SELECT k.key, k.rank1, CASE WHEN t.fair THEN 0 ELSE k.rank2 END AS rank2 INTO v_other
        FROM {schema}.penstock_task k
        WHERE k.tube = t.no AND k.utube = p_utube AND k.state = 'r'
        ORDER BY k.rank1 DESC, k.rank2 DESC, k.key DESC LIMIT 1;
        IF FOUND AND (p_rank1, rank2, p_key) < (v_other.rank1, v_other.rank2, v_other.key) THEN
            UPDATE {schema}.penstock_task k SET state = 'q', rank2 = v_other.rank2
            WHERE k.tube = t.no AND k.key = v_other.key;
            ready := -1;
            heads := heads - 1;
            waiting := waiting + 1;
        ELSE
            state := 'q';
            waiting := waiting + 1;
        END IF;
    ELSE
        state := 'q';
        waiting := waiting + 1;
    END IF;
    IF state = 'r' THEN
        heads := heads + 1;
        ready := ready + 1;
        rank2 := CASE WHEN t.fair THEN turn ELSE rank2 END;
    END IF;
END $$;
