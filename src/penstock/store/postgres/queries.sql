-- Queries of the PostgreSQL store only; the rest is in store/sql/queries.sql. Table names get the store's schema, and
-- hot statements use one partition instead of penstock_task. `ROWS u(key bigint, ...)` is a table made of array
-- parameters with the names of its columns (see postgres_wire.py). tests/postgres/test_plans.py checks the plans.
-- Rows are found by `pk BETWEEN x AND x` or by a LATERAL with a LIMIT, not by `pk = x`: a join that was planned for an
-- empty table would read all of a full one in index order. Rows locked by an earlier statement may be found by ctid.

-- fragment: server_clock
-- date_part, not extract: the numeric of extract adds a tenth to the server's time for a put.
floor(date_part('epoch', clock_timestamp()) * 1000)::bigint
-- fragment: now
coalesce(:now::bigint, $server_clock)
-- fragment: in_ids
= ANY (:ids::bigint[])
-- fragment: in_texts
= ANY (:texts::text[])
-- fragment: key
pk + 0
-- fragment: low
-- No ready task of the tube t has a lower id.
CASE WHEN t.heads_no = t.heads::oid THEN coalesce(pg_sequence_last_value(t.heads), 1) ELSE 1 END
-- fragment: soonest
-- No task of the tube t has an earlier deadline.
CASE WHEN t.heads_no = t.heads::oid THEN coalesce(pg_sequence_last_value(t.dues), 1) ELSE 1 END
-- fragment: first_moment
-- penstock_timer
(SELECT k.at FROM penstock_task k WHERE k.tube = t.no AND k.at >= $soonest ORDER BY k.at LIMIT 1)

-- fragment: others_wait
(:process::text IS NOT NULL AND EXISTS (
    SELECT 1 FROM penstock_waiter w WHERE w.tube = :tube AND w.process <> :process))
-- fragment: others_watch
(:process::text IS NOT NULL AND EXISTS (SELECT 1 FROM penstock_watching w WHERE w.tube = :tube
    AND w.process <> :process AND w.until > $server_clock))
-- fragment: notify
-- Always in the last column: see `Wire` in postgres_wire.py.
CASE WHEN :process::text IS NOT NULL THEN pg_notify('{channel}', :process) END

-- the store

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtext('penstock'), hashtext(:schema));
-- name: create_meta
CREATE TABLE IF NOT EXISTS penstock_meta (name text PRIMARY KEY, value text NOT NULL);
-- name: server
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery();
-- name: settings
SELECT name, current_setting(name) FROM unnest(:texts::text[]) u(name);
-- name: set
-- With `local`, until the end of the transaction.
SELECT WHERE (SELECT count(set_config(name, setting, :local)) FROM unnest(:name::text[], :setting::text[]) u(name, setting)) > 0;
-- name: relax
-- The commit does not wait for the disk, so this transaction may be lost in a crash of the server.
SELECT WHERE set_config('synchronous_commit', 'off', true) IS NULL;
-- name: describe
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
current_setting('full_page_writes'), current_setting('autovacuum'), current_setting('max_connections')::integer,
(SELECT value FROM penstock_meta WHERE name = 'schema')::integer,
(SELECT extract(epoch FROM clock_timestamp() - min(xact_start))::integer FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
(SELECT pg_notification_queue_usage() * 100)::integer;

-- locks

-- A statement without columns has no answer.

-- fragment: tube_lock
'penstock_tube'::regclass::oid::integer, :tube::integer
-- fragment: handle_lock
'penstock_handle'::regclass::oid::integer, hashtext(:handle)
-- name: open
-- Keeps the tube from being dropped, moved or repaired until the commit. Puts and takes share the lock, which writes
-- nothing. It runs before the statement that reads the tube's row, so that the row cannot change after it was read.
-- A take also shares its handle's lock, and the end of a handle holds it alone: no ending session leases a task.
SELECT WHERE pg_advisory_xact_lock_shared($tube_lock) IS NOT NULL
AND pg_advisory_xact_lock_shared($handle_lock) IS NOT NULL;
-- name: open_alone
-- `at_once`: fails if others hold the lock.
SELECT WHERE CASE WHEN :at_once THEN 1 / pg_try_advisory_xact_lock($tube_lock)::integer IS NULL
ELSE pg_advisory_xact_lock($tube_lock) IS NULL END;
-- name: lock_handle
SELECT WHERE CASE WHEN :at_once THEN 1 / pg_try_advisory_xact_lock($handle_lock)::integer IS NULL
ELSE pg_advisory_xact_lock($handle_lock) IS NULL END;
-- name: lock_recovering
-- One caller at a time: a second one would stop at messages that the first one has just moved to the end.
SELECT pg_advisory_xact_lock('penstock_utube'::regclass::oid::integer, :tube);

-- tubes

-- name: add_tube
INSERT INTO penstock_tube (no, name, kind, options) SELECT nextval(CASE WHEN :temporary THEN 'penstock_temporary_no'
ELSE 'penstock_tube_no' END::regclass), :name::text, :kind::text, :options::text ON CONFLICT (name) DO NOTHING;
-- name: create_sequence
CREATE SEQUENCE penstock_{name}_{no} MAXVALUE {most};
-- name: drop_sequence
DROP SEQUENCE IF EXISTS penstock_{name}_{no};
-- name: add_counter
WITH counted AS (INSERT INTO penstock_counter (tube) VALUES (:tube::integer)),
unbroken AS (INSERT INTO penstock_unbroken (tube) SELECT :tube::integer WHERE :temporary)
UPDATE penstock_tube SET ids = to_regclass('penstock_ids_' || :tube::text),
serials = to_regclass('penstock_serials_' || :tube::text), heads = to_regclass('penstock_heads_' || :tube::text),
heads_no = to_regclass('penstock_heads_' || :tube::text)::oid, dues = to_regclass('penstock_dues_' || :tube::text)
WHERE no = :tube;
-- name: hide_counter
WITH hidden AS (UPDATE penstock_delta SET tube = -tube WHERE tube = :tube)
UPDATE penstock_counter SET tube = -tube, last_id = greatest(last_id, (SELECT coalesce(pg_sequence_last_value(ids), 0)
    FROM penstock_tube WHERE no = :tube)) WHERE tube = :tube;
-- name: hide_tube
-- The sequence of the tube's ids is dropped afterwards: see put_plain.
WITH hidden AS (UPDATE penstock_tube SET no = -no, name = :name, options = :options, ids = NULL WHERE no = :tube
    RETURNING 1)
SELECT count(*), CASE WHEN $others_watch THEN $notify END FROM hidden;
-- name: set_tube
WITH done AS (UPDATE penstock_tube SET name = coalesce(:name, name), options = coalesce(:options, options),
    paused = coalesce(:paused::smallint, paused) WHERE no = :tube RETURNING 1)
SELECT count(*), CASE WHEN :paused = 0 THEN $notify END FROM done;
-- name: forget_counter
WITH forgotten AS (DELETE FROM penstock_delta WHERE tube = :tube),
unbroken AS (DELETE FROM penstock_unbroken WHERE tube = abs(:tube)),
unwatched AS (DELETE FROM penstock_watching WHERE tube = abs(:tube))
DELETE FROM penstock_counter WHERE tube = :tube;
-- name: mend
-- Resets the counters, micro-queues and groups of temporary tubes whose tasks were lost in a crash of the server. The
-- first process to insert a tube's row repairs it; others wait for that. The last commits did not wait for the disk, so
-- they may have used more ids than the sequence has recorded.
WITH broken AS (INSERT INTO penstock_unbroken (tube) SELECT no FROM penstock_tube WHERE no >= 4194304 ORDER BY no
    ON CONFLICT DO NOTHING RETURNING tube),
counted AS (INSERT INTO penstock_delta (tube, ready, taken, delayed, buried, done)
    SELECT b.tube, -ready, -taken, -delayed, -buried, ready + taken + delayed + buried
    FROM broken b CROSS JOIN LATERAL (SELECT $sums FROM (
    SELECT $counters FROM penstock_counter WHERE tube = b.tube
    UNION ALL SELECT $counters FROM penstock_delta WHERE tube = b.tube) parts) n),
queues AS (DELETE FROM penstock_utube WHERE tube = ANY (ARRAY(SELECT tube FROM broken))),
groups AS (DELETE FROM penstock_group WHERE tube = ANY (ARRAY(SELECT tube FROM broken))
    AND state IN ('open', 'started', 'cancelling'))
SELECT setval(ids, coalesce(pg_sequence_last_value(ids), 0) + 1048576) FROM penstock_tube
WHERE no = ANY (ARRAY(SELECT tube FROM broken));

-- counters

-- name: counters
-- The last id comes from the sequence or, during an import, from the imported tasks. Then the last delivery's serial.
SELECT c.tube, greatest(c.last_id, coalesce(pg_sequence_last_value(t.ids), 0)), c.last_ms, c.last_seq,
coalesce(pg_sequence_last_value(t.serials), 0), t.paused, n.* FROM penstock_counter c LEFT JOIN penstock_tube t ON t.no = c.tube
JOIN (SELECT tube, $sums FROM (SELECT tube, $counters FROM penstock_counter WHERE tube = ANY (:ids::integer[])
    UNION ALL SELECT tube, $counters FROM penstock_delta WHERE tube = ANY (:ids::integer[])) parts GROUP BY tube) n
ON n.tube = c.tube;
-- name: add_counts
UPDATE penstock_counter SET last_id = greatest(last_id, :last_id), $raised WHERE tube = :tube;
-- name: set_mark
UPDATE penstock_counter SET last_ms = :ms, last_seq = :seq WHERE tube = :tube AND (last_ms, last_seq) < (:ms, :seq);
-- name: set_sequences
SELECT CASE WHEN c.last_id > 0 THEN setval(t.ids, greatest(c.last_id, coalesce(pg_sequence_last_value(t.ids), 0))) END,
CASE WHEN t.serials IS NOT NULL THEN setval(t.serials,
    greatest(:serial::bigint, coalesce(pg_sequence_last_value(t.serials), 1))) END
FROM penstock_tube t JOIN penstock_counter c ON c.tube = t.no WHERE t.no = :tube;
-- name: fold
-- Adds the differences to the counters, except for tubes whose counters are locked by a put that checks the capacity.
-- Only one call at a time folds, and no call waits for it. Deletes rows of tubes that are gone.
WITH free AS MATERIALIZED (SELECT tube FROM penstock_counter
    WHERE pg_try_advisory_xact_lock('penstock_delta'::regclass::oid::integer, 0) ORDER BY tube FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM penstock_delta d WHERE d.tube = ANY (ARRAY(SELECT tube FROM free)) OR (EXISTS (SELECT 1 FROM free)
    AND NOT EXISTS (SELECT 1 FROM penstock_counter c WHERE c.tube = d.tube)) RETURNING d.tube, $counters),
n AS (SELECT tube, $sums FROM gone GROUP BY tube)
UPDATE penstock_counter c SET $folded FROM n WHERE c.tube = n.tube;
-- fragment: stored
(SELECT c.ready + c.taken + c.delayed + c.buried + coalesce((SELECT sum(coalesce(d.ready, 0) + coalesce(d.taken, 0)
+ coalesce(d.delayed, 0) + coalesce(d.buried, 0)) FROM penstock_delta d WHERE d.tube = :tube), 0)
FROM penstock_counter c WHERE c.tube = :tube)::bigint
-- name: lock_capacity
SELECT 1 FROM penstock_counter WHERE tube = :tube FOR UPDATE;
-- name: admit
-- Puts into a tube with a capacity check it again under the lock, so one after the other.
SELECT 1 / CASE WHEN $stored > :capacity THEN 0 ELSE 1 END;

-- notifications

-- name: notify
-- Notifies if `always`, or if another process waits for a task (`ready`) or for an end (`ended`).
SELECT $notify WHERE :always OR (:ready AND $others_wait) OR (:ended AND $others_watch);
-- name: watch
-- Registers this process as waiting for ends in a tube, by the server's clock. Returns a row if it was not registered
-- before; then an end in flight may not see it.
WITH c AS MATERIALIZED (SELECT $server_clock AS clock),
fresh AS MATERIALIZED (SELECT clock FROM c WHERE NOT EXISTS (SELECT 1 FROM penstock_watching
    WHERE tube = :tube AND process = :process AND until > clock + 2000)
    AND EXISTS (SELECT 1 FROM penstock_tube WHERE no = :tube)),
gone AS (DELETE FROM penstock_watching w USING fresh WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM penstock_watching
    WHERE until <= (SELECT clock FROM fresh) AND process <> :process FOR UPDATE SKIP LOCKED)))
INSERT INTO penstock_watching (tube, process, until) SELECT :tube::integer, :process::text, clock + 5000 FROM fresh
ON CONFLICT (tube, process) DO UPDATE SET until = excluded.until RETURNING 1;

-- bounds: where takes start to scan (see penstock_tube)

-- fragment: bounds_lock
'penstock_counter'::regclass::oid::integer, :tube
-- fragment: lower_bounds
-- To the first task that becomes ready again, and to the first deadline that is set: soonest(head, heads, at, dues). One
-- caller at a time, so that no higher bound overwrites a lower one; the lock does not last until the commit.
lowered AS (SELECT pg_advisory_lock($bounds_lock),
    CASE WHEN head < pg_sequence_last_value(heads) THEN setval(heads, greatest(head, 1)) END,
    CASE WHEN at < pg_sequence_last_value(dues) THEN setval(dues, greatest(at, 1)) END, pg_advisory_unlock($bounds_lock)
    FROM soonest WHERE head < pg_sequence_last_value(heads) OR at < pg_sequence_last_value(dues))
-- fragment: no_head
NULL::bigint AS head, NULL::regclass AS heads
-- name: raise_bounds
-- Raises both bounds, under the tube's exclusive lock: to the first ready task, but at most a thousand tasks further,
-- and to the first deadline, or to `due` if there is none.
WITH b AS MATERIALIZED (SELECT heads, dues, $low AS low, $soonest AS soonest, $first_moment AS first
    FROM penstock_tube t WHERE no = :tube AND heads IS NOT NULL),
passed AS MATERIALIZED (SELECT f.pk, f.state FROM b CROSS JOIN LATERAL (SELECT pk, state FROM penstock_task
    WHERE pk >= (:tube::bigint << 40 | b.low) AND pk < (:tube::bigint + 1) << 40 ORDER BY pk LIMIT 1000) f),
found AS MATERIALIZED (SELECT b.*, coalesce((SELECT min(pk) FROM passed WHERE state = 'r'),
    (SELECT max(pk) + 1 FROM passed)) & 1099511627775 AS head, coalesce(first, :due::bigint) AS due FROM b),
known AS (UPDATE penstock_tube SET heads_no = heads WHERE no = :tube AND heads_no IS DISTINCT FROM heads::oid)
SELECT setval(heads, greatest(head, low)), setval(dues, greatest(due, soonest)) FROM found;
-- name: lower_all
SELECT setval(heads, 1), setval(dues, 1) FROM penstock_tube WHERE no = :tube AND heads IS NOT NULL;

-- put

-- name: put_plain
-- Puts a task without options into a tube without micro-queues and capacity. Returns no row if the tube is gone. The
-- same statement takes the lock, which is a tenth faster: if the tube is hidden meanwhile, nextval fails, even if the
-- statement's snapshot still has the tube.
WITH counted AS (INSERT INTO penstock_delta (tube, ready, put_calls) VALUES (:tube, 1, 1))
INSERT INTO penstock_task (pk, rank1, rank2, created, ttr, tube, pri, state, extra, data)
SELECT :tube::bigint << 40 | nextval(t.ids), :rank1::double precision, :rank2::double precision, $now, :ttr::bigint,
:tube, :pri::integer, 'r', :extra::text, :data::bytea
FROM penstock_tube t WHERE t.no = :tube AND pg_advisory_xact_lock_shared($tube_lock) IS NOT NULL
RETURNING pk & 1099511627775, created, CASE WHEN $others_wait THEN $notify END;

-- fragment: came
-- Adds s(utube, taken, heads, waiting, clock) to the rows of micro-queues.
queues AS (INSERT INTO penstock_utube AS l (tube, utube, taken, heads, waiting, turn)
    SELECT :tube::integer, s.utube, s.taken, s.heads, s.waiting, CASE WHEN :fair AND s.waiting > 0 THEN s.clock ELSE 0 END
    FROM s ORDER BY s.utube
    ON CONFLICT (tube, utube) DO UPDATE SET taken = l.taken + excluded.taken, heads = l.heads + excluded.heads,
    waiting = l.waiting + excluded.waiting, idle = false,
    turn = CASE WHEN excluded.turn > 0 AND l.taken = 0 AND l.heads = 0 AND l.waiting = 0
        THEN greatest(excluded.turn, l.turn + 1) ELSE l.turn END)
-- fragment: lock_or_skip
-- Flushes of passed deadlines and group moves skip locked rows: the client that locked them applies them.
FOR UPDATE IF skips_locked {SKIP LOCKED}
-- fragment: lock_queues
locked AS MATERIALIZED (SELECT q.utube FROM unnest(:queues::text[]) v(name) CROSS JOIN LATERAL (
    SELECT q.utube FROM penstock_utube q WHERE q.tube = :tube AND q.utube = v.name $lock_or_skip) q)
-- fragment: of_tube
pk > :tube::bigint << 40 AND pk < (:tube::bigint + 1) << 40
-- name: insert
-- Puts tasks, those of micro-queues as waiting: `queues` and how many tasks each gets (`waits`); `heads` must follow.
-- Messages of a reliable tube (`marked`) get ids in the order of puts: the counter is locked before the first id is
-- drawn. Their time is read once: ids would repeat if the clock changed between two reads. The put is refused if the
-- tube is gone, an address is in use or the capacity is exceeded. A few `addresses` are looked up first, because a put that
-- the unique index refuses leaves dead rows. Older outcomes of the addresses (`addressed`) are soon forgotten.
WITH c AS MATERIALIZED (SELECT cardinality(:data::bytea[]) AS new, $now AS clock),
IF marked {m AS (UPDATE penstock_counter SET last_ms = greatest(last_ms, clock),
    last_seq = CASE WHEN clock > last_ms THEN 0 ELSE last_seq END + new FROM c
    WHERE tube = :tube RETURNING last_ms AS ms, last_seq - new AS seq),}
n AS MATERIALIZED (SELECT t.ids, t.dues, c.*, IF marked {m.*,} 1 / CASE WHEN IF addresses {EXISTS (
    SELECT 1 FROM unnest(:addresses::text[]) v(name) CROSS JOIN LATERAL (
        SELECT 1 FROM penstock_task k WHERE k.tube = :tube AND k.address = v.name LIMIT 1) k) OR}
    IF capacity {$stored + c.new > :capacity::bigint OR} t.no IS NULL THEN 0 ELSE 1 END AS admitted
    FROM c IF marked {LEFT JOIN m ON true} LEFT JOIN penstock_tube t ON t.no = :tube),
IF queues {s AS (SELECT q.utube, 0 AS taken, 0 AS heads, q.waiting, n.clock
    FROM n CROSS JOIN unnest(:queues::text[], :waits::integer[]) q(utube, waiting)), $came,}
IF timed {soonest AS MATERIALIZED (SELECT $no_head, n.dues, n.clock + :soonest::bigint AS at FROM n), $lower_bounds,}
counted AS (INSERT INTO penstock_delta (tube, ready, delayed, put_calls)
    SELECT :tube::integer, nullif(:ready::integer, 0), nullif(:delayed::integer, 0), n.new FROM n),
new AS (INSERT INTO penstock_task (pk, tube, created, rank1, rank2, state, address, expires, at, ttr, pri, utube, extra,
        data, reply_to, group_name, group_no)
    SELECT :tube::bigint << 40 | e.id, :tube, e.clock, e.base1 + e.clock1 * e.clock - e.newest1 * e.id,
    CASE WHEN :fair THEN 0 ELSE e.base2 + e.clock2 * e.clock - e.newest2 * e.id END,
    CASE WHEN e.unstarted = 1 THEN 'g' WHEN e.delay > 0 THEN '~' WHEN :queued THEN 'q' ELSE 'r' END::"char",
    coalesce(IF marked {e.ms || '-' || e.seq + e.place,} e.address IF named {, 'reply-' || e.id}),
    e.clock + e.ttl + e.delay, e.clock + CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END, e.ttr,
    e.pri, e.utube, e.extra, e.data, e.reply_to, e.group_name, e.group_no
    FROM (SELECT nextval(n.ids) AS id, n.*, u.* FROM n CROSS JOIN ROWS u(data bytea | place integer |
        address text | utube text | ttl bigint, ttr bigint, delay bigint | pri integer, base1 double precision,
        clock1 integer, newest1 integer, base2 double precision, clock2 integer, newest2 integer |
        extra text, reply_to text | group_name text, group_no integer, unstarted integer) OFFSET 0) e RETURNING pk, address)
IF addressed {, superseded AS (UPDATE penstock_outcome SET until = $now + :later WHERE pk = ANY (ARRAY(
    SELECT o.pk FROM new CROSS JOIN LATERAL (SELECT pk FROM penstock_outcome WHERE address = new.address
        AND $of_tube AND until > $now + :later ORDER BY pk LIMIT 1000) o)))}
SELECT n.clock, (SELECT array_agg(pk) FROM new), IF marked {n.ms, n.seq,} IF timed {(SELECT count(*) FROM lowered),}
CASE WHEN $others_wait THEN $notify END FROM n;

-- micro-queues

-- name: heads
-- The rule of micro-queues, applied to locked ones: exactly the first (limit - taken) ready tasks of each are heads. A
-- separate statement, so that its snapshot is younger than the locks. It also subtracts the tasks of each that an ack
-- removed (`acked`), and deletes empty micro-queues whose turn no longer matters. Returns how many tasks became takeable, and
-- whether other processes were notified. (SELECT 'r') keeps the planner from using penstock_ready.
WITH q AS MATERIALIZED (SELECT l.*, greatest(least(:limit - l.taken, l.ready), 0) AS room,
        l.taken = 0 AND l.ready = 0 AS empty, NOT :fair OR l.turn < $now AS over
    FROM unnest(:queues::text[], :acked::integer[]) u(utube, acked) CROSS JOIN LATERAL (
    SELECT l.ctid AS place, l.utube, l.turn, l.taken - coalesce(u.acked, 0) AS taken, l.heads + l.waiting AS ready,
    l.heads, l.waiting FROM penstock_utube l WHERE l.tube = :tube AND l.utube = u.utube LIMIT 1) l),
c AS MATERIALIZED (SELECT l.turn, k.pk, k.state, row_number() OVER (
        PARTITION BY l.utube ORDER BY k.rank1, k.r2, k.pk) <= l.room AS head
    FROM q l CROSS JOIN LATERAL (
        (SELECT pk, state, rank1, CASE WHEN :fair THEN 0 ELSE rank2 END AS r2 FROM penstock_task WHERE l.heads > 0
        AND tube = :tube AND utube = l.utube AND (state = 'r' OR state = 'q') AND state = (SELECT 'r'::"char"))
        UNION ALL
        (SELECT pk, state, rank1, rank2 FROM penstock_task WHERE tube = :tube AND utube = l.utube AND state = 'q'
        ORDER BY rank1, rank2, pk LIMIT :limit)) k
    WHERE l.waiting > 0 OR l.heads > l.room),
changed AS (UPDATE penstock_task k SET state = CASE WHEN c.head THEN 'r' ELSE 'q' END::"char",
        rank2 = CASE WHEN NOT :fair THEN k.rank2 WHEN c.head THEN c.turn ELSE 0 END
    FROM c WHERE k.pk BETWEEN c.pk AND c.pk AND c.head <> (c.state = 'r')),
forgotten AS (DELETE FROM penstock_utube l USING q WHERE l.ctid = q.place AND q.empty AND q.over),
kept AS (UPDATE penstock_utube l SET taken = q.taken, heads = q.room, waiting = q.ready - q.room, idle = q.empty
    FROM q WHERE l.ctid = q.place AND NOT (q.empty AND q.over)
    AND (l.taken, l.heads, l.idle) <> (q.taken, q.room, q.empty))
SELECT g.gained, CASE WHEN g.gained > 0 AND $others_wait THEN $notify END
FROM (SELECT coalesce(sum(room - heads), 0)::integer AS gained FROM q) g;
-- name: forget_idle_queues
-- penstock_idle_utube
DELETE FROM penstock_utube WHERE (tube, utube) IN (SELECT tube, utube FROM penstock_utube
WHERE tube = :tube AND idle AND turn < $now LIMIT :limit FOR UPDATE SKIP LOCKED);

-- take

-- fragment: look
-- The clock; the tube and its bounds; the live session; the next deadline; and whether the take may hand out tasks here
-- (`free`): not if an earlier tube of the same call had a task (`mark`), nor if something is due, unless forced.
c AS MATERIALIZED (SELECT $now AS clock),
b AS MATERIALIZED (SELECT no, paused, dues, serials, $low AS low, $first_moment AS first,
    EXISTS (SELECT 1 FROM penstock_group g WHERE g.tube = :tube AND g.moving = 1) AS moving
    FROM penstock_tube t WHERE no = :tube),
l AS MATERIALIZED (SELECT c.clock, b.no, b.paused, b.dues, b.serials, b.low, h.session,
    least(CASE WHEN b.moving THEN 0 END, b.first, (SELECT min(until) FROM penstock_handle),
        (SELECT min(until) FROM penstock_session WHERE until IS NOT NULL)) AS next
    FROM c LEFT JOIN b ON true LEFT JOIN penstock_handle h ON h.id = :handle AND h.until > c.clock),
ok AS MATERIALIZED (SELECT d.*, d.session IS NOT NULL AND d.paused = 0 AND NOT d.due AND (:mark::text IS NULL
        OR coalesce(current_setting('penstock.took', true), '') NOT IN (:mark, '!' || :mark)) AS free
    FROM (SELECT l.*, NOT :forced AND coalesce(l.next <= l.clock, false) AS due FROM l) d)
-- fragment: takeable
k.tube = :tube AND k.state = 'r' AND (k.expires IS NULL OR k.expires > ok.clock)
-- fragment: uncancelled
k.rank1 <= :top AND (k.group_no IS NULL OR k.group_no <> ALL (ARRAY(
    SELECT g.no FROM penstock_group g WHERE g.tube = :tube AND g.moving = 1 AND g.state = 'cancelling')))
-- fragment: in_order
ORDER BY k.rank1, k.rank2, k.pk LIMIT :count FOR UPDATE
-- fragment: looked
ok.no, ok.session, ok.clock, ok.next, ok.low, CASE WHEN :mark::text IS NULL THEN NULL
WHEN got.attempts IS NOT NULL THEN set_config('penstock.took', :mark, true)
WHEN ok.due THEN set_config('penstock.took', '!' || :mark, true) END
-- name: take
-- penstock_ready, in order. No task below the bound `low` is ready, so the scan starts there; within higher ranks the
-- index condition skips pks below it. Locks the micro-queue first, and skips locked ones. Not a join: a plan made for
-- few micro-queues would scan all of them. With `turning`, the hand-out moves the micro-queue behind the others, with
-- its remaining heads.
WITH $look, found AS MATERIALIZED (SELECT f.* FROM ok CROSS JOIN LATERAL (
    SELECT k.pk, k.utube, ok.clock + k.ttr AS at FROM penstock_task k
    IF queued {CROSS JOIN LATERAL (SELECT FROM penstock_utube q
        WHERE q.tube = :tube AND q.utube = k.utube FOR UPDATE SKIP LOCKED) q} WHERE $takeable
    IF bounded {AND (k.rank1, k.rank2, k.pk) >= (0, 0, :tube::bigint << 40 | ok.low)
    AND k.pk >= (:tube::bigint << 40 | ok.low)} AND $uncancelled $in_order OF k SKIP LOCKED) f WHERE ok.free),
IF queued {queues AS (INSERT INTO penstock_utube AS q (tube, utube, taken, turn)
    SELECT :tube::integer, found.utube, count(*), min(ok.clock) FROM ok CROSS JOIN found GROUP BY found.utube
    ON CONFLICT (tube, utube) DO UPDATE SET taken = q.taken + excluded.taken, heads = q.heads - excluded.taken,
    turn = CASE WHEN :fair THEN greatest(excluded.turn, q.turn + 1) ELSE q.turn END RETURNING q.utube, q.turn),}
IF turning {left_heads AS MATERIALIZED (SELECT h.pk, queues.turn FROM queues CROSS JOIN LATERAL (
    SELECT pk FROM penstock_task WHERE tube = :tube AND utube = queues.utube AND (state = 'r' OR state = 'q')
    AND state = (SELECT 'r'::"char") AND pk <> ALL (ARRAY(SELECT pk FROM found)) OFFSET 0) h),
turned AS (UPDATE penstock_task k SET rank2 = left_heads.turn FROM left_heads
    WHERE k.pk BETWEEN left_heads.pk AND left_heads.pk),}
IF bounded {soonest AS MATERIALIZED (SELECT $no_head, ok.dues, (SELECT min(at) FROM found) AS at FROM ok), $lower_bounds,}
got AS (UPDATE penstock_task k SET state = 't', attempts = k.attempts + 1, taken = ok.clock,
    lease = (k.lease >> 28) + 1 << 28 | :call::bigint, at = ok.clock + k.ttr, owner = ok.session, progress = NULL
    FROM ok WHERE k.pk = ANY (ARRAY(SELECT pk FROM found)) RETURNING $brief),
counted AS (INSERT INTO penstock_delta (tube, ready, taken, take_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM got HAVING count(*) > 0)
SELECT $looked, coalesce(IF bounded {(SELECT count(*) FROM lowered),} 0), got.* FROM ok LEFT JOIN got ON true;
-- fragment: handed
-- Hand-outs without a lease (core.lifecycle): elements of a round tube stay ready, delivered messages get a serial.
got AS (UPDATE penstock_task k SET state = CASE WHEN ok.serials IS NULL THEN 'r' ELSE 't' END::"char",
    rank1 = CASE WHEN ok.serials IS NULL THEN ok.clock ELSE found.place END, taken = ok.clock, attempts = k.attempts + 1
    FROM ok, found WHERE k.pk BETWEEN found.key AND found.key RETURNING found.place, $brief)
-- name: hand_out
-- penstock_ready
WITH $look, found AS MATERIALIZED (SELECT f.pk AS key,
    CASE WHEN ok.serials IS NULL THEN row_number() OVER () ELSE nextval(ok.serials) END AS place
    FROM ok CROSS JOIN LATERAL (SELECT k.pk FROM penstock_task k WHERE $takeable
        AND k.rank1 <= greatest(ok.clock - :period::bigint, 0) $in_order SKIP LOCKED) f WHERE ok.free), $handed,
counted AS (INSERT INTO penstock_delta (tube, ready, taken, take_calls)
    SELECT :tube::integer, CASE WHEN ok.serials IS NOT NULL THEN -f.n END, CASE WHEN ok.serials IS NOT NULL THEN f.n
    END, f.n FROM ok CROSS JOIN (SELECT count(*) AS n FROM found) f WHERE f.n > 0)
SELECT $looked, CASE WHEN got.place IS NULL AND ok.free THEN (SELECT rank1 FROM penstock_task WHERE tube = :tube AND state = 'r'
    ORDER BY rank1, rank2, pk LIMIT 1) END, got.* FROM ok LEFT JOIN got ON true;
-- name: recover
-- penstock_delivered, up to the first message that is too young. Skips messages that are being acked.
WITH ok AS MATERIALIZED (SELECT t.no, t.serials, t.paused, $now AS clock FROM penstock_tube t WHERE t.no = :tube),
found AS MATERIALIZED (SELECT r.pk AS key, nextval(r.serials) AS place FROM (SELECT f.pk, ok.serials,
        bool_and(f.taken + :elapsed::bigint <= ok.clock) OVER (ROWS UNBOUNDED PRECEDING) AS old
    FROM ok CROSS JOIN LATERAL (SELECT k.pk, k.taken FROM penstock_task k
        WHERE k.tube = :tube AND k.state = 't' AND k.owner IS NULL
        ORDER BY k.rank1, k.pk LIMIT :count FOR UPDATE SKIP LOCKED) f WHERE ok.paused = 0) r WHERE r.old), $handed,
counted AS (INSERT INTO penstock_delta (tube, take_calls) SELECT :tube::integer, count(*) FROM found HAVING count(*) >
    0)
SELECT ok.no, ok.clock, got.* FROM ok LEFT JOIN got ON true ORDER BY got.place;
-- name: enter
INSERT INTO penstock_waiter (tube, handle, takes, process) SELECT u, :handle::text, :number::bigint, :process::text
FROM unnest(:tubes::integer[]) u WHERE coalesce(current_setting('penstock.took', true), '') NOT IN (:mark, '!' || :mark)
AND EXISTS (SELECT 1 FROM penstock_handle WHERE id = :handle AND until > $now) ON CONFLICT DO NOTHING;
-- name: leave
DELETE FROM penstock_waiter WHERE tube = ANY (:tubes::integer[]) AND handle = :handle AND takes = :number
AND (:always OR current_setting('penstock.took', true) = :mark);
-- name: by_call
-- penstock_held. The tasks leased by a take whose answer was lost.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't'
AND owner = (SELECT session FROM penstock_handle WHERE id = :handle) AND lease & 268435455 = :call::bigint;

-- ack

-- name: ack
-- By the primary key. Compares the state as text, so that no plan can prefer penstock_held. In micro-queues, whose rows
-- are locked first, acks all of the tasks or none; `heads` must follow.
-- Acks tasks of a started group, but never its last one: if the call has all remaining tasks, one is left to the
-- engine. Groups are passed if all tasks of the call are known: how many tasks of each, and which task to leave.
WITH c AS MATERIALIZED (SELECT $now AS clock), IF queues {$lock_queues,}
IF groups {g AS MATERIALIZED (SELECT array_agg(v.number) FILTER (WHERE g.remaining >= v.members) AS open,
    coalesce(array_agg(v.last) FILTER (WHERE g.remaining = v.members), ARRAY[]::bigint[]) AS last
    FROM unnest(:groups::integer[], :members::integer[], :lasts::bigint[]) v(number, members, last) CROSS JOIN LATERAL (
    SELECT remaining FROM penstock_group WHERE no = v.number AND state = 'started' FOR UPDATE) g),}
gone AS (DELETE FROM penstock_task k USING ROWS u(key bigint | session integer, held bigint | result bytea)
    WHERE k.pk MATCHES u.key AND k.state::text = 't' AND k.owner = u.session AND u.held IN (0, k.lease)
    AND (k.at IS NULL OR k.at > (SELECT clock FROM c)) AND $no_reply AND k.errors IS NULL
    AND (k.group_no IS NULL IF groups {OR (k.group_no = ANY ((SELECT open FROM g)::integer[])
        AND k.pk <> ALL ((SELECT last FROM g)::bigint[]))}) IF queues {AND (SELECT count(*) FROM locked) >= 0}
    RETURNING k.pk, k.address, k.group_no, u.result),
counted AS (INSERT INTO penstock_delta (tube, taken, done, ack_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM gone HAVING count(*) > 0),
IF groups {fewer AS (UPDATE penstock_group SET remaining = remaining - n.members
    FROM (SELECT group_no, count(*) AS members FROM gone WHERE group_no IS NOT NULL GROUP BY group_no) n
    WHERE no BETWEEN n.group_no AND n.group_no),}
kept AS (INSERT INTO penstock_outcome (pk, tube, address, status, result, until)
    SELECT pk, :tube, address, 'done', result, (SELECT clock FROM c) + :retention FROM gone WHERE address IS NOT NULL)
SELECT array_agg(pk), array_agg(pk) FILTER (WHERE address IS NOT NULL),
IF queues {1 / (count(*) = cardinality(:key::bigint[]))::integer,}
CASE WHEN count(*) > 0 AND (:limited OR (count(address) > 0 AND $others_watch)) THEN $notify END FROM gone;
-- name: ack_named
-- penstock_address. Any session may ack delivered messages.
WITH b AS MATERIALIZED (SELECT no FROM penstock_tube WHERE no = :tube),
gone AS (DELETE FROM penstock_task k USING b WHERE k.pk = ANY (ARRAY(SELECT f.pk FROM unnest(:texts::text[]) v(name)
    CROSS JOIN LATERAL (SELECT pk FROM penstock_task WHERE tube = :tube AND address = v.name LIMIT 1) f))
    AND k.state::text = 't' AND k.owner IS NULL RETURNING k.address),
counted AS (INSERT INTO penstock_delta (tube, taken, done, ack_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM gone HAVING count(*) > 0)
SELECT address, CASE WHEN :limited THEN $notify END FROM gone;
-- name: delete
-- Deletes one task in any state, by the primary key, in a tube without micro-queues. A task with an address, a group or
-- a reply is left to the engine.
WITH gone AS (DELETE FROM penstock_task k USING penstock_tube t WHERE t.no = :tube AND k.pk = :key AND k.address IS NULL
    AND k.group_no IS NULL AND k.reply_to IS NULL AND (k.expires IS NULL OR k.expires > $now)
    RETURNING k.pk & 1099511627775 AS id, k.state),
counted AS (INSERT INTO penstock_delta (tube, ready, taken, delayed, buried, done, delete_calls)
    SELECT :tube::integer, -(state = 'r')::integer, -(state = 't')::integer, -(state = '~')::integer,
    -(state = '!')::integer, 1, 1 FROM gone)
SELECT id, CASE WHEN :limited THEN $notify END FROM gone;

-- changes

-- name: flush
-- Updates or removes the tasks whose guard holds. Keys are in order; each row has a class, whose weights (`w`) are
-- added to the counters. A NULL in a column of a rewrite keeps the stored value.
WITH c AS MATERIALIZED (SELECT $now AS clock),
b AS MATERIALIZED (SELECT no, heads, dues FROM penstock_tube WHERE no = :tube),
IF queues {$lock_queues,}
gone AS MATERIALIZED (SELECT k.*, u.*, b.heads, b.dues FROM b CROSS JOIN c CROSS JOIN ROWS u(key bigint, held bigint, due bigint,
    at bigint | was text, class integer, state text, attempts integer, owner integer | rank double precision,
    until bigint, expires bigint | reason text, progress double precision, errors bytea, known boolean |
    rank1 double precision, rank2 double precision, pri integer, created bigint, payload bytea | address text,
    status text, result bytea, error text, code text) CROSS JOIN LATERAL (
    SELECT k.pk, k.utube, k.state::text AS real, k.errors AS had FROM penstock_task k
    WHERE k.pk = u.key AND CASE k.state WHEN 'q' THEN 'r' ELSE k.state END = u.was::"char" AND k.lease = u.held
    AND k.at IS NOT DISTINCT FROM u.due AND k.rank1 = u.rank AND (k.errors IS NULL OR u.known)
    IF queues {AND (k.utube IN (SELECT utube FROM locked)
        OR (SELECT count(*) FROM penstock_utube q WHERE q.tube = :tube AND q.utube = k.utube) = 0)} $lock_or_skip) k
    WHERE u.until IS NULL OR u.until > c.clock),
removed AS (DELETE FROM penstock_task k USING gone h WHERE k.pk BETWEEN h.pk AND h.pk AND h.state = '-'),
changed AS (UPDATE penstock_task k SET state = h.state::"char", at = h.at, expires = h.expires, attempts = h.attempts,
    owner = h.owner, reason = h.reason, progress = h.progress, rank1 = coalesce(h.rank1, k.rank1),
    rank2 = CASE WHEN :fair AND h.state <> 't' THEN 0 ELSE coalesce(h.rank2, k.rank2) END, pri = coalesce(h.pri, k.pri),
    created = coalesce(h.created, k.created), data = coalesce(h.payload, k.data), errors = coalesce(h.errors, k.errors)
    FROM gone h WHERE k.pk BETWEEN h.pk AND h.pk AND h.state <> '-'),
IF queues {s AS (SELECT utube, -count(*) FILTER (WHERE real = 't') + count(*) FILTER (WHERE state = 't') AS taken,
    -count(*) FILTER (WHERE real = 'r') AS heads,
    count(*) FILTER (WHERE state = 'q') - count(*) FILTER (WHERE real = 'q') AS waiting, (SELECT clock FROM c) AS clock
    FROM gone WHERE real IN ('r', 'q', 't') OR state IN ('q', 't') GROUP BY utube), $came,}
IF kept {kept AS (INSERT INTO penstock_outcome (pk, tube, address, status, result, error, code, errors, until)
    SELECT pk, :tube, address, status, result, error, code, coalesce(errors, had), (SELECT clock FROM c) + :retention
    FROM gone WHERE address IS NOT NULL ON CONFLICT (pk) DO UPDATE SET status = excluded.status,
    result = excluded.result, error = excluded.error, code = excluded.code, errors = excluded.errors,
    until = excluded.until),}
IF bounded {soonest AS MATERIALIZED (SELECT min(pk) FILTER (WHERE state = 'r') & 1099511627775 AS head, heads,
    min(at) FILTER (WHERE state <> '-') AS at, dues FROM gone GROUP BY heads, dues), $lower_bounds,}
counted AS (INSERT INTO penstock_delta (tube, $weighed) SELECT :tube::integer, $weights
    FROM (SELECT class, count(*) AS n FROM gone GROUP BY class) h
    CROSS JOIN LATERAL (SELECT (:weights::integer[])[class * 16 + 1 : class * 16 + 16] AS w) w)
SELECT c.clock, (SELECT array_agg(pk) FROM gone), IF bounded {(SELECT count(*) FROM lowered),}
1 / CASE WHEN :whole AND (SELECT count(*) FROM gone) < cardinality(:key::bigint[]) THEN 0 ELSE 1 END FROM c;
-- name: change_group
WITH free AS MATERIALIZED (SELECT no FROM penstock_group
    WHERE no = :no AND EXISTS (SELECT 1 FROM penstock_tube t WHERE t.no = :tube) $lock_or_skip),
done AS (UPDATE penstock_group g SET state = :state, total = g.total + :total, remaining = g.remaining + :remaining,
    end_work = coalesce(:end_work, g.end_work), cancel_work = coalesce(:cancel_work, g.cancel_work),
    moving = :moving, until = :until, failed = g.failed + :failed, on_failure = coalesce(:on_failure, g.on_failure)
    FROM free WHERE g.no BETWEEN free.no AND free.no AND g.name = :name AND g.state = :was
    AND CASE WHEN :exact = 1 THEN g.remaining = :had ELSE g.remaining + :remaining > 0 END RETURNING 1)
SELECT 1 / count(*) FROM done;
-- name: add_group
INSERT INTO penstock_group (tube, name, state, total, remaining, moving)
SELECT :tube::integer, :name::text, 'open', 0, 0, 0 FROM penstock_tube WHERE no = :tube ON CONFLICT DO NOTHING;

-- loads

-- name: outcomes_by_address
-- penstock_outcome_address, in pk order
SELECT o.* FROM unnest(:texts::text[]) v(name) CROSS JOIN LATERAL (SELECT $kept FROM penstock_outcome
    WHERE address = v.name AND $of_tube AND until > $now ORDER BY pk DESC LIMIT 1) o;
-- name: by_names
-- penstock_address
SELECT $record FROM unnest(:texts::text[]) v(name) CROSS JOIN LATERAL (
    SELECT * FROM penstock_task WHERE tube = :tube AND address = v.name LIMIT 1) k;
-- name: due
-- penstock_timer, starting at the tube's bound
WITH b AS MATERIALIZED (SELECT $soonest AS soonest FROM penstock_tube t WHERE no = :tube)
SELECT $record FROM (SELECT f.* FROM b CROSS JOIN LATERAL (SELECT * FROM penstock_task
    WHERE tube = :tube AND at >= b.soonest AND at <= $now ORDER BY at LIMIT :limit) f) f ORDER BY at, pk;

-- sessions

-- name: forget_session
-- Not while the session holds a task: a take that was undone may have returned one to it.
DELETE FROM penstock_session s WHERE s.no = :no AND s.until <= $now AND NOT EXISTS (SELECT 1 FROM penstock_tube t
CROSS JOIN LATERAL (SELECT 1 FROM penstock_task k WHERE k.tube = t.no AND k.state = 't' AND k.owner = :no LIMIT 1) k);
-- name: held
-- penstock_held, tube by tube
SELECT k.tube, k.pk FROM (SELECT no FROM penstock_tube ORDER BY name) t CROSS JOIN LATERAL (
    SELECT tube, pk FROM penstock_task WHERE tube = t.no AND state = 't' AND owner = :session ORDER BY pk LIMIT :limit)
k LIMIT :limit;
