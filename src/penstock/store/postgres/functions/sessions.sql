-- Sessions: who takes tasks, through which handles, and what happens when they go. A session lives while it has a
-- handle, and `ttr` longer. A take shares the advisory lock of its handle; whoever ends a handle has it alone, so no
-- task can be leased to a session that is just ending.

-- A handle goes at that moment; the last one sets the session's end, which penstock_end_lapsed carries out.
CREATE OR REPLACE FUNCTION {schema}.penstock_part(p_handle text, p_moment bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    h {schema}.penstock_handle;
BEGIN
    DELETE FROM {schema}.penstock_handle WHERE id = p_handle RETURNING * INTO h;
    DELETE FROM {schema}.penstock_waiting WHERE handle = p_handle;
    -- Locked first: two last handles that leave at once must not each see the other.
    PERFORM FROM {schema}.penstock_session WHERE no = h.session FOR UPDATE;
    IF h.id IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}.penstock_handle WHERE session = h.session) THEN
        UPDATE {schema}.penstock_session SET until = p_moment + ttr, host = h.host, pid = h.pid, beat = h.beat
        WHERE no = h.session;
    END IF;
END $$;

-- End the handles whose heartbeat lapsed, then the sessions whose time is over; their tasks are released. What others
-- are at, they do.
CREATE OR REPLACE FUNCTION {schema}.penstock_end_lapsed(p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    v_id text;
    v_until bigint;
    v_no integer;
    t {schema}.penstock_tube;
    v_keys bigint[];
BEGIN
    FOR v_id, v_until IN
        SELECT id, until FROM {schema}.penstock_handle WHERE until <= p_now ORDER BY until FOR UPDATE SKIP LOCKED
    LOOP
        IF pg_try_advisory_xact_lock('{schema}.penstock_handle'::regclass::oid::integer, hashtext(v_id)) THEN
            PERFORM {schema}.penstock_part(v_id, v_until);
        END IF;
    END LOOP;
    FOR v_no IN
        SELECT no FROM {schema}.penstock_session WHERE until <= p_now ORDER BY until FOR UPDATE SKIP LOCKED
    LOOP
        FOR t IN SELECT * FROM {schema}.penstock_tube ORDER BY name LOOP
            v_keys := ARRAY(
                SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND state = 't' AND owner = v_no ORDER BY key);
            IF cardinality(v_keys) > 0 THEN
                RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves('back', v_keys, false, v_no),
                    p_now, false, p_process);
            END IF;
        END LOOP;
        DELETE FROM {schema}.penstock_session WHERE no = v_no;
    END LOOP;
END $$;

-- When a handle lapses or a session ends next.
CREATE OR REPLACE FUNCTION {schema}.penstock_next_end() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN least((SELECT until FROM {schema}.penstock_handle ORDER BY until LIMIT 1),
        (SELECT until FROM {schema}.penstock_session WHERE until IS NOT NULL ORDER BY until LIMIT 1));
END $$;

-- Begin a session (p_fresh is its id) or join the live one of that id; no row when it is unknown or has lapsed.
CREATE OR REPLACE FUNCTION {schema}.penstock_join(
    p_handle text, p_host text, p_pid integer, p_locus text, p_session text, p_fresh text, p_ttr bigint,
    p_lapse bigint, p_now bigint
) RETURNS TABLE (no integer, id text) LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(p_now);
    s {schema}.penstock_session;
    v_former integer;
BEGIN  -- waits for the disk, as beats and ends do not: the caller may tell others the id of its session
    IF p_session IS NULL THEN
        INSERT INTO {schema}.penstock_session (id, ttr) VALUES (p_fresh, p_ttr) RETURNING * INTO s;
    ELSE
        SELECT * INTO s FROM {schema}.penstock_session k WHERE k.id = p_session FOR UPDATE;
        IF NOT FOUND OR coalesce(s.until, s.ttr + coalesce((
            SELECT max(h.until) FROM {schema}.penstock_handle h WHERE h.session = s.no), 0)) <= v_now
        THEN
            RETURN;
        END IF;
        UPDATE {schema}.penstock_session k SET until = NULL WHERE k.no = s.no;
    END IF;
    SELECT h.session INTO v_former FROM {schema}.penstock_handle h WHERE h.id = p_handle;
    IF v_former <> s.no THEN
        PERFORM {schema}.penstock_part(p_handle, v_now);
    END IF;
    INSERT INTO {schema}.penstock_handle AS h (id, session, host, pid, locus, beat, until)
    VALUES (p_handle, s.no, p_host, p_pid, p_locus, v_now, v_now + p_lapse)
    ON CONFLICT ON CONSTRAINT penstock_handle_pkey DO UPDATE SET beat = excluded.beat, until = excluded.until;
    RETURN QUERY SELECT s.no, s.id::text;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_beat(p_handles text[], p_lapse bigint, p_now bigint)
RETURNS SETOF text LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    PERFORM {schema}.penstock_relax();
    RETURN QUERY UPDATE {schema}.penstock_handle SET beat = v_now, until = v_now + p_lapse
    WHERE id = ANY (p_handles) AND until > v_now RETURNING id::text;
END $$;

CREATE OR REPLACE FUNCTION {schema}.penstock_leave(p_handles text[], p_locus text, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint;
    v_id text;
BEGIN
    -- By the number that is locked, so that two leaves never wait for each other.
    PERFORM pg_advisory_xact_lock('{schema}.penstock_handle'::regclass::oid::integer, number)
    FROM (SELECT DISTINCT hashtext(handle) AS number FROM unnest(p_handles) handle ORDER BY 1) numbers;
    v_now := {schema}.penstock_now(p_now);
    RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
    FOR v_id IN
        SELECT id FROM {schema}.penstock_handle WHERE id = ANY (p_handles) AND (p_locus IS NULL OR locus = p_locus)
        ORDER BY id
    LOOP
        PERFORM {schema}.penstock_part(v_id, v_now);
    END LOOP;
    RETURN QUERY SELECT * FROM {schema}.penstock_end_lapsed(v_now, p_process);
END $$;

-- The live sessions, or one, oldest first: with what they hold, as tube names and ids, and wait for.
CREATE OR REPLACE FUNCTION {schema}.penstock_sessions(p_no integer, p_now bigint)
RETURNS TABLE (id text, host text, pid integer, beat bigint, held_tubes text[], held_ids bigint[], waits text[])
LANGUAGE plpgsql {plans} AS $$
DECLARE
    v_now bigint := {schema}.penstock_now(p_now);
BEGIN
    RETURN QUERY
    SELECT s.id::text, coalesce(h.host, s.host)::text, coalesce(h.pid, s.pid), coalesce(h.beat, s.beat), k.tubes, k.ids, w.names
    FROM {schema}.penstock_session s
    LEFT JOIN LATERAL (
        SELECT n.host, n.pid, n.beat, n.until FROM {schema}.penstock_handle n WHERE n.session = s.no
        ORDER BY n.until DESC LIMIT 1) h ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(t.name ORDER BY t.name, x.key) AS tubes,
            array_agg(x.key & 1099511627775 ORDER BY t.name, x.key) AS ids
        FROM {schema}.penstock_tube t
        JOIN {schema}.penstock_task x ON x.tube = t.no AND x.state = 't' AND x.owner = s.no
        WHERE p_no IS NULL) k ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(DISTINCT t.name) AS names FROM {schema}.penstock_handle n
        JOIN {schema}.penstock_waiting w ON w.handle = n.id
        JOIN {schema}.penstock_tube t ON t.no = w.tube
        WHERE n.session = s.no AND n.until > v_now AND p_no IS NULL) w ON true
    WHERE coalesce(s.until, h.until + s.ttr) > v_now AND (p_no IS NULL OR s.no = p_no)
    ORDER BY s.no;
END $$;
