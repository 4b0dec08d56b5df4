-- What check looks at.

-- Micro-queues whose numbers or heads are not what their tasks say.
CREATE OR REPLACE FUNCTION {schema}.penstock_crooked_lanes(t {schema}.penstock_tube) RETURNS TABLE (utube text, wrong text)
LANGUAGE sql AS $$
    WITH placed AS (
        SELECT k.utube, k.state, row_number() OVER (PARTITION BY k.utube, k.state = 't'
            ORDER BY k.rank1, CASE WHEN t.fair THEN 0 ELSE k.rank2 END, k.key) AS place
        FROM {schema}.penstock_task k WHERE k.tube = t.no AND k.state IN ('r', 'q', 't')
    ), counted AS (
        SELECT utube, count(*) FILTER (WHERE state = 't') AS taken, count(*) FILTER (WHERE state = 'r') AS heads,
            count(*) FILTER (WHERE state = 'q') AS waiting,
            max(place) FILTER (WHERE state = 'r') AS last_head, min(place) FILTER (WHERE state = 'q') AS first_waiting
        FROM placed GROUP BY utube
    ), compared AS (
        SELECT coalesce(n.utube, l.utube) AS utube, coalesce(n.taken, 0) AS taken, coalesce(n.heads, 0) AS heads,
            coalesce(n.waiting, 0) AS waiting, coalesce(l.taken, 0) AS says_taken, coalesce(l.heads, 0) AS says_heads,
            coalesce(l.waiting, 0) AS says_waiting, n.last_head > n.first_waiting AS misplaced, l.utube IS NULL AS unknown
        FROM counted n FULL JOIN (SELECT * FROM {schema}.penstock_lane WHERE tube = t.no) l ON l.utube = n.utube
    )
    SELECT utube, format('micro-queue %s counts (%s, %s, %s), there are (%s, %s, %s)',
        coalesce(nullif(utube, ''), '(none)'), says_taken, says_heads, says_waiting, taken, heads, waiting)
    FROM compared WHERE (taken, heads, waiting) <> (says_taken, says_heads, says_waiting) OR unknown
    UNION ALL
    SELECT utube, format('micro-queue %s must have its first ready tasks takeable and has not',
        coalesce(nullif(utube, ''), '(none)'))
    FROM compared WHERE misplaced OR heads <> least(greatest(t.utube_limit - taken, 0), heads + waiting)
$$;

-- Set a micro-queue's heads and numbers anew, from its tasks; it keeps its turn.
CREATE OR REPLACE FUNCTION {schema}.penstock_set_lane(t {schema}.penstock_tube, p_utube text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.penstock_lane (tube, utube) VALUES (t.no, p_utube) ON CONFLICT DO NOTHING;
    UPDATE {schema}.penstock_task k SET state = CASE WHEN n.head THEN 'r' ELSE 'q' END::"char",
        rank2 = CASE WHEN NOT t.fair THEN k.rank2 WHEN n.head THEN l.turn ELSE 0 END
    FROM (SELECT o.key, row_number() OVER (ORDER BY o.rank1, CASE WHEN t.fair THEN 0 ELSE o.rank2 END, o.key)
            <= t.utube_limit - (SELECT count(*) FROM {schema}.penstock_task h
                WHERE h.tube = t.no AND h.utube = p_utube AND h.state = 't') AS head
        FROM {schema}.penstock_task o WHERE o.tube = t.no AND o.utube = p_utube AND o.state IN ('r', 'q')) n,
        {schema}.penstock_lane l
    WHERE k.key = n.key AND l.tube = t.no AND l.utube = p_utube;
    UPDATE {schema}.penstock_lane l SET taken = n.taken, heads = n.heads, waiting = n.waiting
    FROM (SELECT count(*) FILTER (WHERE state = 't') AS taken, count(*) FILTER (WHERE state = 'r') AS heads,
            count(*) FILTER (WHERE state = 'q') AS waiting
        FROM {schema}.penstock_task WHERE tube = t.no AND utube = p_utube) n
    WHERE l.tube = t.no AND l.utube = p_utube;
    DELETE FROM {schema}.penstock_lane
    WHERE tube = t.no AND utube = p_utube AND taken = 0 AND heads = 0 AND waiting = 0;
$$;

-- Counters that are not what the tasks say: as many are done as were put and are not there.
CREATE OR REPLACE FUNCTION {schema}.penstock_crooked_counts(p_tube integer) RETURNS TABLE (name text, says bigint, should bigint)
LANGUAGE sql AS $$
    WITH here AS (
        SELECT count(*) FILTER (WHERE state IN ('r', 'q')) AS ready, count(*) FILTER (WHERE state = 't') AS taken,
            count(*) FILTER (WHERE state IN ('~', 'g')) AS delayed, count(*) FILTER (WHERE state = '!') AS buried,
            count(*) AS total
        FROM {schema}.penstock_task WHERE tube = p_tube
    )
    SELECT v.name, v.says, v.should FROM {schema}.penstock_count(p_tube) c, here h, LATERAL (VALUES
        ('ready', c.ready, h.ready), ('taken', c.taken, h.taken), ('delayed', c.delayed, h.delayed),
        ('buried', c.buried, h.buried), ('done', c.done, c.put - h.total)) v(name, says, should)
    WHERE v.says IS DISTINCT FROM v.should
$$;
