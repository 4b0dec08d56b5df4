-- What check looks at among outcomes and groups, in the order in which it must be mended.

CREATE OR REPLACE FUNCTION {schema}.penstock_check_links(t {schema}.penstock_tube, p_repair boolean, p_now bigint)
RETURNS TABLE (id bigint, what text, remedy text) LANGUAGE plpgsql AS $$
DECLARE
    g {schema}.penstock_group;
    v_found bigint;
BEGIN
    RETURN QUERY SELECT k.key & 1099511627775, 'its group is not there', 'take it out of the group'
    FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.group_no IS NOT NULL
        AND NOT EXISTS (SELECT FROM {schema}.penstock_group o WHERE o.no = k.group_no AND o.tube = t.no) ORDER BY k.key;
    RETURN QUERY SELECT o.key & 1099511627775, 'has an outcome, but is still there', 'forget the outcome'
    FROM {schema}.penstock_outcome o WHERE o.tube = t.no
        AND EXISTS (SELECT FROM {schema}.penstock_task k WHERE k.key = o.key) ORDER BY o.key;
    IF p_repair THEN  -- what waited for a start is ready when the clock is next looked at
        UPDATE {schema}.penstock_task k SET at = CASE k.state WHEN 'g' THEN p_now ELSE k.at END,
            state = CASE k.state WHEN 'g' THEN '~' ELSE k.state END, group_no = NULL, group_name = NULL
        WHERE k.tube = t.no AND k.group_no IS NOT NULL
            AND NOT EXISTS (SELECT FROM {schema}.penstock_group o WHERE o.no = k.group_no AND o.tube = t.no);
        DELETE FROM {schema}.penstock_outcome o WHERE o.tube = t.no
            AND EXISTS (SELECT FROM {schema}.penstock_task k WHERE k.key = o.key);
    END IF;
    FOR g IN SELECT * FROM {schema}.penstock_group o WHERE o.tube = t.no ORDER BY o.no LOOP
        RETURN QUERY SELECT NULL::bigint, format('group %s: %s', g.name, c.what), c.remedy
        FROM {schema}.penstock_crooked_group(g.no) c;
        GET DIAGNOSTICS v_found = ROW_COUNT;
        IF p_repair AND v_found > 0 THEN
            PERFORM {schema}.penstock_mend_group(t, g, p_now);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM {schema}.penstock_group o WHERE o.tube = t.no AND o.moving)
        AND NOT EXISTS (SELECT FROM {schema}.penstock_tube o WHERE o.no = t.no AND o.moving)
    THEN
        IF p_repair THEN
            PERFORM {schema}.penstock_mark_moving(t.no);
        END IF;
        RETURN QUERY VALUES (NULL::bigint, 'the mark for groups whose tasks must follow is missing', 'set it');
    END IF;
END $$;

-- How many of a group's tasks are there, wait for its start, or are ready or delayed.
CREATE OR REPLACE FUNCTION {schema}.penstock_recount_group(
    p_no integer, OUT here integer, OUT unstarted integer, OUT early integer
) LANGUAGE sql STABLE AS $$
    SELECT count(*), count(*) FILTER (WHERE state = 'g'), count(*) FILTER (WHERE state IN ('r', 'q', '~'))
    FROM {schema}.penstock_task WHERE group_no = p_no
$$;

-- At one moment, because others may be at work.
CREATE OR REPLACE FUNCTION {schema}.penstock_crooked_group(p_no integer) RETURNS TABLE (what text, remedy text)
LANGUAGE sql STABLE AS $$
    SELECT v.what, v.remedy
    FROM {schema}.penstock_group g, {schema}.penstock_recount_group(g.no) n, LATERAL (VALUES
        (g.remaining <> n.here, format('says %s tasks are left, there are %s', g.remaining, n.here), 'count them anew'),
        (g.total < n.here, format('says %s tasks were put, there are %s', g.total, n.here), 'count them anew'),
        (g.state IN ('done', 'cancelled') AND n.here > 0, format('is %s, but has %s tasks left', g.state, n.here),
            'take it up again'),
        (g.state IN ('started', 'cancelling') AND n.here = 0, 'should have ended', 'end it'),
        (g.state = 'open' AND n.early > 0, format('is not started, but %s of its tasks can be taken', n.early),
            'hold them back'),
        (NOT g.moving AND (g.state = 'started' AND n.unstarted > 0 OR g.state = 'cancelling' AND n.here > 0),
            'its tasks do not follow its record', 'let them follow')) v(wrong, what, remedy)
    WHERE g.no = p_no AND v.wrong
$$;

CREATE OR REPLACE FUNCTION {schema}.penstock_mend_group(t {schema}.penstock_tube, g {schema}.penstock_group, p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_work bytea;
BEGIN
    UPDATE {schema}.penstock_group k SET remaining = n.here, total = greatest(k.total, n.here),
        until = CASE WHEN s.state = k.state THEN k.until END, state = s.state,
        moving = s.state = 'cancelling' OR s.state = 'started' AND n.unstarted > 0
    FROM {schema}.penstock_recount_group(g.no) n, LATERAL (SELECT CASE
        WHEN n.here = 0 THEN g.state WHEN g.state = 'done' THEN 'started' WHEN g.state = 'cancelled' THEN 'cancelling'
        ELSE g.state END AS state) s
    WHERE k.no = g.no;
    IF g.state = 'open' THEN
        PERFORM {schema}.penstock_apply(t, {schema}.penstock_moves('hold', ARRAY(
            SELECT key FROM {schema}.penstock_task WHERE group_no = g.no AND state IN ('r', 'q', '~') ORDER BY key)),
            p_now, false, NULL);
    END IF;
    SELECT work INTO v_work FROM {schema}.penstock_end_group(t, g.no, p_now);
    IF v_work IS NOT NULL THEN
        PERFORM {schema}.penstock_put_works(ARRAY[ROW(0, t.name, v_work)::{schema}.penstock_work], p_now, NULL);
    END IF;
END $$;
