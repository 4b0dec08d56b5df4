-- What only the PostgreSQL store asks; the rest is in store/sql/queries.sql. Names of tables get the store's schema, and
-- in hot statements penstock_task stands for one of its partitions. tests/postgres/test_plans.py watches the plans.
-- Rows are found by `pk = ANY (ARRAY[x])` or by a LATERAL with a LIMIT, not joined: a plan that is made for an empty table
-- would read all of a full one for a join. What an earlier statement has locked may be found by its ctid.

-- fragment: now
-- By date_part, not extract, whose numeric costs a put a tenth of the server's time.
coalesce(:now::bigint, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)

-- fragment: ids
(SELECT unnest(:ids::bigint[]))

-- fragment: texts
(SELECT unnest(:texts::text[]))

-- the store

-- name: has_meta
-- Not by to_regclass, which may remember from before the wait for the lock that there was none.
SELECT 1 FROM pg_class WHERE relname = 'penstock' || '_meta'
AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = :schema);

-- name: get_meta
SELECT value FROM penstock_meta WHERE name = :name;

-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtext('penstock'), hashtext(:schema));

-- name: create_meta
CREATE TABLE IF NOT EXISTS penstock_meta (name text PRIMARY KEY, value text NOT NULL);

-- name: server
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery();

-- name: settings
-- What statements run with. The tables go from empty to millions of rows and back within minutes, so plans must not
-- depend on statistics: one made for an empty table would scan a full one. `local`: until the end of the transaction.
SELECT set_config('enable_seqscan', 'off', :local), set_config('enable_bitmapscan', 'off', :local),
set_config('enable_hashjoin', 'off', :local), set_config('enable_mergejoin', 'off', :local),
set_config('enable_sort', 'off', :local), set_config('jit', 'off', :local),
set_config('plan_cache_mode', 'force_generic_plan', :local), set_config('lock_timeout', :patience, :local);

-- name: settings_before
SELECT current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), current_setting('enable_hashjoin'),
current_setting('enable_mergejoin'), current_setting('enable_sort'), current_setting('jit'),
current_setting('plan_cache_mode'), current_setting('lock_timeout');

-- name: settings_back
SELECT set_config('enable_seqscan', :s1, true), set_config('enable_bitmapscan', :s2, true),
set_config('enable_hashjoin', :s3, true), set_config('enable_mergejoin', :s4, true),
set_config('enable_sort', :s5, true), set_config('jit', :s6, true), set_config('plan_cache_mode', :s7, true),
set_config('lock_timeout', :s8, true);

-- name: relax
-- This transaction may be lost in a crash of the server: it does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true);

-- name: clock
SELECT $now;

-- name: store_id
SELECT value FROM penstock_meta WHERE name = 'id';

-- name: describe
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
current_setting('full_page_writes'), current_setting('autovacuum'), current_setting('max_connections')::integer,
(SELECT value FROM penstock_meta WHERE name = 'schema')::integer,
(SELECT extract(epoch FROM clock_timestamp() - min(xact_start))::integer FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
(SELECT pg_notification_queue_usage() * 100)::integer;

-- locks

-- name: open
-- Until commit nobody drops, moves or repairs these tubes. Puts and takes share the lock, which is no write. It comes
-- before the statement that looks for the tube, so that it is there or not when the lock is had.
SELECT pg_advisory_xact_lock_shared('penstock_tube'::regclass::oid::integer, u) FROM unnest(:tubes::integer[]) u;

-- name: open_one
SELECT pg_advisory_xact_lock_shared('penstock_tube'::regclass::oid::integer, :tube::integer);

-- name: open_alone
SELECT pg_advisory_xact_lock('penstock_tube'::regclass::oid::integer, :tube);

-- name: open_alone_at_once
SELECT 1 / pg_try_advisory_xact_lock('penstock_tube'::regclass::oid::integer, :tube)::integer;

-- name: open_for
-- A take shares the lock of its handle; whoever ends a handle has it alone, so no task can be leased to a session that
-- is just ending.
SELECT pg_advisory_xact_lock_shared('penstock_tube'::regclass::oid::integer, :tube::integer),
pg_advisory_xact_lock_shared('penstock_handle'::regclass::oid::integer, hashtext(:handle));

-- name: lock_handle
SELECT pg_advisory_xact_lock('penstock_handle'::regclass::oid::integer, hashtext(:handle));

-- name: lock_handle_at_once
SELECT 1 / pg_try_advisory_xact_lock('penstock_handle'::regclass::oid::integer, hashtext(:handle))::integer;

-- name: lock_recovering
-- One caller at a time: another would meet those that were just moved to the end, and stop there.
SELECT pg_advisory_xact_lock('penstock_utube'::regclass::oid::integer, :tube);

-- tubes

-- name: next_tube_no
SELECT nextval(CASE WHEN :temporary THEN 'penstock_temporary_no' ELSE 'penstock_tube_no' END::regclass);

-- name: add_tube
WITH made AS (INSERT INTO penstock_tube (no, name, kind, options) VALUES (:tube, :name, :kind, :options)
    ON CONFLICT (name) DO NOTHING RETURNING no)
SELECT 1 / count(*) FROM made;

-- name: create_sequence
CREATE SEQUENCE penstock_{bound}_{tube} MAXVALUE {most};

-- name: drop_sequence
DROP SEQUENCE IF EXISTS penstock_{bound}_{tube};

-- name: add_counter
WITH counted AS (INSERT INTO penstock_counter (tube) VALUES (:tube::integer)),
unbroken AS (INSERT INTO penstock_unbroken (tube) SELECT :tube::integer WHERE :temporary)
UPDATE penstock_tube SET ids = to_regclass('penstock_ids_' || :tube::text),
serials = to_regclass('penstock_serials_' || :tube::text), heads = to_regclass('penstock_heads_' || :tube::text),
heads_no = to_regclass('penstock_heads_' || :tube::text)::oid, dues = to_regclass('penstock_dues_' || :tube::text)
WHERE no = :tube;

-- name: hide_counter
WITH hidden AS (UPDATE penstock_delta SET tube = -tube WHERE tube = :tube)
UPDATE penstock_counter SET tube = -tube WHERE tube = :tube;

-- name: forget_counter
WITH forgotten AS (DELETE FROM penstock_delta WHERE tube = :tube),
healed AS (DELETE FROM penstock_unbroken WHERE tube = abs(:tube)),
unwatched AS (DELETE FROM penstock_watching WHERE tube = abs(:tube))
DELETE FROM penstock_counter WHERE tube = :tube;

-- name: broken
-- Temporary tubes whose tasks a crash of the server has emptied.
SELECT no FROM penstock_tube WHERE no >= 4194304
AND NOT EXISTS (SELECT 1 FROM penstock_unbroken u WHERE u.tube = no);

-- name: mend
-- The first to come does it; the others wait here, and have nothing to do.
INSERT INTO penstock_unbroken (tube) VALUES (:tube) ON CONFLICT DO NOTHING RETURNING tube;

-- name: empty
-- What is kept of a temporary tube without its tasks. The last commits did not wait for the disk, and may have given
-- more ids than the sequence knows of.
WITH sums AS (SELECT coalesce(sum(ready), 0) AS r, coalesce(sum(taken), 0) AS t, coalesce(sum(delayed), 0) AS d,
    coalesce(sum(buried), 0) AS b FROM (SELECT ready, taken, delayed, buried FROM penstock_counter WHERE tube = :tube
    UNION ALL SELECT ready, taken, delayed, buried FROM penstock_delta WHERE tube = :tube) n),
counted AS (INSERT INTO penstock_delta (tube, ready, taken, delayed, buried, done)
    SELECT :tube::integer, -r, -t, -d, -b, r + t + d + b FROM sums),
queues AS (DELETE FROM penstock_utube WHERE tube = :tube),
groups AS (DELETE FROM penstock_group WHERE tube = :tube AND state IN ('open', 'started', 'cancelling'))
SELECT setval(ids, coalesce(pg_sequence_last_value(ids), 0) + 1048576) FROM penstock_tube WHERE no = :tube;

-- counters

-- fragment: counters
ready, taken, delayed, buried, done, put_calls, take_calls, ack_calls, release_calls, delete_calls, bury_calls,
kick_calls, touch_calls, ttl_calls, ttr_calls, delay_calls, fail_calls

-- fragment: sums
coalesce(sum(ready), 0)::bigint AS ready, coalesce(sum(taken), 0)::bigint AS taken,
coalesce(sum(delayed), 0)::bigint AS delayed, coalesce(sum(buried), 0)::bigint AS buried,
coalesce(sum(done), 0)::bigint AS done, coalesce(sum(put_calls), 0)::bigint AS put_calls,
coalesce(sum(take_calls), 0)::bigint AS take_calls, coalesce(sum(ack_calls), 0)::bigint AS ack_calls,
coalesce(sum(release_calls), 0)::bigint AS release_calls, coalesce(sum(delete_calls), 0)::bigint AS delete_calls,
coalesce(sum(bury_calls), 0)::bigint AS bury_calls, coalesce(sum(kick_calls), 0)::bigint AS kick_calls,
coalesce(sum(touch_calls), 0)::bigint AS touch_calls, coalesce(sum(ttl_calls), 0)::bigint AS ttl_calls,
coalesce(sum(ttr_calls), 0)::bigint AS ttr_calls, coalesce(sum(delay_calls), 0)::bigint AS delay_calls,
coalesce(sum(fail_calls), 0)::bigint AS fail_calls

-- fragment: added
ready = c.ready + n.ready, taken = c.taken + n.taken, delayed = c.delayed + n.delayed, buried = c.buried + n.buried,
done = c.done + n.done, put_calls = c.put_calls + n.put_calls, take_calls = c.take_calls + n.take_calls,
ack_calls = c.ack_calls + n.ack_calls, release_calls = c.release_calls + n.release_calls,
delete_calls = c.delete_calls + n.delete_calls, bury_calls = c.bury_calls + n.bury_calls,
kick_calls = c.kick_calls + n.kick_calls, touch_calls = c.touch_calls + n.touch_calls,
ttl_calls = c.ttl_calls + n.ttl_calls, ttr_calls = c.ttr_calls + n.ttr_calls,
delay_calls = c.delay_calls + n.delay_calls, fail_calls = c.fail_calls + n.fail_calls

-- name: tally
-- The last id is that of the sequence or, while the tube arrives, of what has arrived; the last delivery's serial too.
SELECT greatest(c.last_id, (SELECT coalesce(pg_sequence_last_value(t.ids), 0) FROM penstock_tube t WHERE t.no = :tube)),
c.last_ms, c.last_seq,
coalesce((SELECT pg_sequence_last_value(t.serials) FROM penstock_tube t WHERE t.no = :tube), 0), n.*
FROM penstock_counter c CROSS JOIN (SELECT $sums FROM (
    SELECT $counters FROM penstock_counter WHERE tube = :tube
    UNION ALL SELECT $counters FROM penstock_delta WHERE tube = :tube) parts) n WHERE c.tube = :tube;

-- name: set_counts
WITH gone AS (DELETE FROM penstock_delta WHERE tube = :tube RETURNING $counters),
n AS (SELECT $sums FROM gone)
UPDATE penstock_counter c SET ready = :ready, taken = :taken, delayed = :delayed, buried = :buried, done = :done,
put_calls = c.put_calls + n.put_calls, take_calls = c.take_calls + n.take_calls,
ack_calls = c.ack_calls + n.ack_calls, release_calls = c.release_calls + n.release_calls,
delete_calls = c.delete_calls + n.delete_calls, bury_calls = c.bury_calls + n.bury_calls,
kick_calls = c.kick_calls + n.kick_calls, touch_calls = c.touch_calls + n.touch_calls,
ttl_calls = c.ttl_calls + n.ttl_calls, ttr_calls = c.ttr_calls + n.ttr_calls,
delay_calls = c.delay_calls + n.delay_calls, fail_calls = c.fail_calls + n.fail_calls
FROM n WHERE c.tube = :tube;

-- name: set_mark
UPDATE penstock_counter SET last_ms = :ms, last_seq = :seq WHERE tube = :tube AND (last_ms, last_seq) < (:ms, :seq);

-- name: set_serial
SELECT setval(serials, greatest(:serial::bigint, coalesce(pg_sequence_last_value(serials), 1)))
FROM penstock_tube WHERE no = :tube AND serials IS NOT NULL;

-- name: fold
-- Add the calls' own rows to the counters, those of tubes that no put with a capacity holds. One call does it at a time,
-- and nobody waits for it. Rows of tubes that are gone go.
WITH free AS MATERIALIZED (SELECT tube FROM penstock_counter
    WHERE pg_try_advisory_xact_lock('penstock_delta'::regclass::oid::integer, 0) ORDER BY tube FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM penstock_delta d WHERE d.tube = ANY (ARRAY(SELECT tube FROM free)) OR (EXISTS (SELECT 1 FROM free)
    AND NOT EXISTS (SELECT 1 FROM penstock_counter c WHERE c.tube = d.tube)) RETURNING d.tube, $counters),
n AS (SELECT tube, $sums FROM gone GROUP BY tube)
UPDATE penstock_counter c SET $added FROM n WHERE c.tube = n.tube;

-- fragment: stored
(SELECT c.ready + c.taken + c.delayed + c.buried + coalesce((SELECT sum(coalesce(d.ready, 0) + coalesce(d.taken, 0)
+ coalesce(d.delayed, 0) + coalesce(d.buried, 0)) FROM penstock_delta d WHERE d.tube = :tube), 0)
FROM penstock_counter c WHERE c.tube = :tube)::bigint

-- name: lock_capacity
SELECT 1 FROM penstock_counter WHERE tube = :tube FOR UPDATE;

-- name: admit
-- Whoever has added to a tube with a capacity looks again under the lock, one after the other.
SELECT 1 / CASE WHEN $stored > :capacity THEN 0 ELSE 1 END;

-- telling

-- fragment: others_wait
(:process::text IS NOT NULL AND EXISTS (
    SELECT 1 FROM penstock_waiter w WHERE w.tube = :tube AND w.process <> :process))

-- fragment: others_watch
(:process::text IS NOT NULL AND EXISTS (SELECT 1 FROM penstock_watching w WHERE w.tube = :tube
    AND w.process <> :process AND w.until > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint))

-- name: tell
-- A hint to other processes: `always`, where somebody waits for something takeable, or for an end.
SELECT pg_notify('{channel}', :process) WHERE :always
OR (:ready AND EXISTS (SELECT 1 FROM penstock_waiter w WHERE w.tube = ANY (:tubes::integer[]) AND w.process <> :process))
OR (:ended AND EXISTS (SELECT 1 FROM penstock_watching w WHERE w.tube = :tube AND w.process <> :process
    AND w.until > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint));

-- name: watch
-- Say that this process waits for ends in a tube, by the server's own clock; a row when that was news, so that an end
-- under way may not know it.
WITH c AS MATERIALIZED (SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS clock),
fresh AS MATERIALIZED (SELECT clock FROM c WHERE NOT EXISTS (SELECT 1 FROM penstock_watching
    WHERE tube = :tube AND process = :process AND until > clock + 2000)
    AND EXISTS (SELECT 1 FROM penstock_tube WHERE no = :tube)),
gone AS (DELETE FROM penstock_watching w USING fresh WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM penstock_watching
    WHERE until <= (SELECT clock FROM fresh) AND process <> :process FOR UPDATE SKIP LOCKED)))
INSERT INTO penstock_watching (tube, process, until) SELECT :tube::integer, :process::text, clock + 5000 FROM fresh
ON CONFLICT (tube, process) DO UPDATE SET until = excluded.until RETURNING 1;

-- bounds

-- fragment: lower
-- One at a time, or a higher one may be set over a lower; not until the end of the transaction.
pg_advisory_lock('penstock_counter'::regclass::oid::integer, :tube)

-- fragment: lowered
pg_advisory_unlock('penstock_counter'::regclass::oid::integer, :tube)

-- name: lower
SELECT $lower, CASE WHEN :head::bigint < pg_sequence_last_value(heads) THEN setval(heads, greatest(:head, 1)) END,
CASE WHEN :due::bigint < pg_sequence_last_value(dues) THEN setval(dues, greatest(:due, 1)) END, $lowered
FROM penstock_tube WHERE no = :tube
AND (:head::bigint < pg_sequence_last_value(heads) OR :due::bigint < pg_sequence_last_value(dues));

-- name: raise_bounds
-- Both, by somebody who has the tube to itself: to the first task that is ready, of which some thousand that are not are
-- passed by at a time, and to the first moment that there is, or `due` where there is none.
WITH b AS MATERIALIZED (SELECT heads, dues, heads_no = heads::oid AS known,
    CASE WHEN heads_no = heads::oid THEN coalesce(pg_sequence_last_value(heads), 1) ELSE 1 END AS low,
    CASE WHEN heads_no = heads::oid THEN coalesce(pg_sequence_last_value(dues), 1) ELSE 1 END AS soonest
    FROM penstock_tube WHERE no = :tube AND heads IS NOT NULL),
passed AS MATERIALIZED (SELECT f.pk, f.state FROM b CROSS JOIN LATERAL (SELECT pk, state FROM penstock_task
    WHERE pk >= (:tube::bigint << 40 | b.low) AND pk < (:tube::bigint + 1) << 40 ORDER BY pk LIMIT 1000) f),
found AS MATERIALIZED (SELECT b.*, coalesce((SELECT min(pk) FROM passed WHERE state = 'r'), (SELECT max(pk) + 1 FROM passed))
    & 1099511627775 AS head, coalesce((SELECT k.at FROM penstock_task k WHERE k.tube = :tube AND k.at >= b.soonest
    ORDER BY k.at LIMIT 1), :due::bigint) AS due FROM b),
known AS (UPDATE penstock_tube SET heads_no = heads WHERE no = :tube AND heads_no IS DISTINCT FROM heads::oid)
SELECT setval(heads, greatest(head, low)), setval(dues, greatest(due, soonest)) FROM found;

-- name: lower_all
SELECT setval(heads, 1), setval(dues, 1) FROM penstock_tube WHERE no = :tube AND heads IS NOT NULL;

-- put

-- fragment: told_waiters
(SELECT pg_notify('{channel}', :process) WHERE $others_wait)

-- name: put_plain
-- A task that says nothing but its data, into a tube without micro-queues and capacity. No row: the tube is gone.
WITH counted AS (INSERT INTO penstock_delta (tube, ready, put_calls) VALUES (:tube, 1, 1))
INSERT INTO penstock_task (pk, rank1, rank2, created, ttr, tube, pri, max_attempts, state, callback, data)
SELECT :tube::bigint << 40 | nextval(t.ids), :rank1::double precision, :rank2::double precision, $now, :ttr::bigint,
:tube, :pri::integer, :most::integer, 'r', :callback::text, :data::bytea FROM penstock_tube t WHERE t.no = :tube
RETURNING pk & 1099511627775, created, $told_waiters;

-- name: put_mortal
-- The same with a ttl.
WITH n AS MATERIALIZED (SELECT nextval(t.ids) AS id, $now AS clock, t.dues FROM penstock_tube t WHERE t.no = :tube),
lowered AS (SELECT $lower, CASE WHEN n.clock + :ttl::bigint < pg_sequence_last_value(n.dues)
    THEN setval(n.dues, n.clock + :ttl) END, $lowered FROM n WHERE n.clock + :ttl::bigint < pg_sequence_last_value(n.dues)),
counted AS (INSERT INTO penstock_delta (tube, ready, put_calls) SELECT :tube::integer, 1, 1 FROM n),
new AS (INSERT INTO penstock_task (pk, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, callback,
    data) SELECT :tube::bigint << 40 | n.id, :rank1::double precision, :rank2::double precision, n.clock,
    n.clock + :ttl, n.clock + :ttl, :ttr::bigint, :tube, :pri::integer, :most::integer, 'r', :callback::text,
    :data::bytea FROM n)
SELECT n.id, n.clock, $told_waiters, (SELECT count(*) FROM lowered) FROM n;

-- fragment: no_clash
-- An address that is in use is met before an id is drawn; and, where the put must be refused as a whole (`strict`), a lack
-- of room.
1 / CASE WHEN EXISTS (SELECT 1 FROM unnest(:addresses::text[]) v(name) CROSS JOIN LATERAL (
    SELECT 1 FROM penstock_task k WHERE k.tube = :tube AND k.address = v.name LIMIT 1) k)
THEN 0 WHEN :strict AND $stored + cardinality(:datas::bytea[]) > :capacity::bigint THEN 0 ELSE 1 END

-- fragment: putting
n AS MATERIALIZED (SELECT t.ids, t.dues, $now AS clock, $others_wait AS told, NULL::bigint AS ms, NULL::bigint AS seq,
    $no_clash AS free, CASE WHEN :capacity::bigint IS NOT NULL THEN $stored END AS stored FROM penstock_tube t WHERE t.no = :tube)

-- fragment: putting_marked
-- The counter's lock is had before the first id is drawn.
m AS (UPDATE penstock_counter SET
    last_seq = CASE WHEN $now > last_ms THEN 0 ELSE last_seq END + cardinality(:datas::bytea[]),
    last_ms = greatest(last_ms, $now) WHERE tube = :tube
    AND (:capacity::bigint IS NULL OR $stored + cardinality(:datas::bytea[]) <= :capacity)
    RETURNING last_ms, last_seq - cardinality(:datas::bytea[]) AS last_seq),
n AS MATERIALIZED (SELECT t.ids, t.dues, $now AS clock, $others_wait AS told, m.last_ms AS ms, m.last_seq AS seq,
    1 AS free, CASE WHEN :capacity::bigint IS NOT NULL THEN $stored END AS stored
    FROM penstock_tube t LEFT JOIN m ON true WHERE t.no = :tube)

-- fragment: entries
-- Every field is given once for all entries, or as an array, one for each.
e AS MATERIALIZED (SELECT nextval(n.ids) AS id, u.place, n.clock, u.data,
    coalesce(u.address, n.ms || '-' || n.seq + u.place) AS address,
    coalesce(u.base1, :base1) AS base1, coalesce(u.clock1, :clock1) AS clock1, coalesce(u.newest1, :newest1) AS newest1,
    coalesce(u.base2, :base2) AS base2, coalesce(u.clock2, :clock2) AS clock2, coalesce(u.newest2, :newest2) AS newest2,
    coalesce(u.pri, :pri) AS pri, coalesce(u.utube, :utube) AS utube, coalesce(u.ttl, :ttl) AS ttl,
    coalesce(u.ttr, :ttr) AS ttr, coalesce(u.delay, :delay) AS delay, coalesce(u.most, :most) AS most,
    coalesce(u.callback, :callback) AS callback, coalesce(u.reply_to, :reply_to) AS reply_to,
    coalesce(u.group_name, :group_name) AS group_name, coalesce(u.group_no, :group_no) AS group_no,
    coalesce(u.unstarted, :unstarted) AS unstarted
    FROM n CROSS JOIN unnest(:datas::bytea[], :addresses::text[], :base1s::double precision[], :clock1s::integer[],
        :newest1s::integer[], :base2s::double precision[], :clock2s::integer[], :newest2s::integer[], :pris::integer[],
        :utubes::text[], :ttls::bigint[], :ttrs::bigint[], :delays::bigint[], :mosts::integer[], :callbacks::text[],
        :reply_tos::text[], :group_names::text[], :group_nos::integer[], :unstarteds::integer[]) WITH ORDINALITY
    u(data, address, base1, clock1, newest1, base2, clock2, newest2, pri, utube, ttl, ttr, delay, most, callback, reply_to,
        group_name, group_no, unstarted, place)
    WHERE n.free = 1 AND (n.stored IS NULL OR n.stored + cardinality(:datas::bytea[]) <= :capacity))

-- fragment: state
CASE WHEN e.unstarted = 1 THEN 'g' WHEN e.delay > 0 THEN '~' ELSE 'r' END

-- fragment: columns
pk, rank1, rank2, created, expires, at, ttr, tube, pri, max_attempts, state, utube, callback, data, address, reply_to,
group_name, group_no

-- fragment: lowered_by_entries
lowered AS (SELECT $lower, CASE WHEN f.at < pg_sequence_last_value(n.dues) THEN setval(n.dues, f.at) END, $lowered
    FROM n CROSS JOIN (SELECT min(CASE WHEN delay > 0 THEN clock + delay ELSE clock + ttl END) AS at FROM e) f
    WHERE f.at < pg_sequence_last_value(n.dues))

-- fragment: counted_entries
counted AS (INSERT INTO penstock_delta (tube, ready, delayed, put_calls) SELECT :tube::integer,
    nullif(count(*) FILTER (WHERE delay = 0 AND unstarted = 0), 0),
    nullif(count(*) FILTER (WHERE delay > 0 OR unstarted = 1), 0), count(*) FROM e HAVING count(*) > 0)

-- fragment: stored_plain
new AS (INSERT INTO penstock_task ($columns) SELECT :tube::bigint << 40 | e.id,
    e.base1 + e.clock1 * e.clock - e.newest1 * e.id, e.base2 + e.clock2 * e.clock - e.newest2 * e.id, e.clock,
    e.clock + e.ttl + e.delay, e.clock + CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END, e.ttr, :tube, e.pri, e.most,
    $state::"char", e.utube, e.callback, e.data, coalesce(e.address, CASE WHEN :named THEN 'reply-' || e.id END), e.reply_to,
    e.group_name, e.group_no FROM e)
SELECT n.clock, n.stored, n.told AND EXISTS (SELECT 1 FROM e),
CASE WHEN n.told AND EXISTS (SELECT 1 FROM e) THEN pg_notify('{channel}', :process) END,
(SELECT count(*) FROM lowered), (SELECT array_agg(id) FROM e), n.ms, n.seq, NULL, NULL FROM n

-- name: insert
WITH $putting, $entries, $lowered_by_entries, $counted_entries, $stored_plain;

-- name: insert_marked
WITH $putting_marked, $entries, $lowered_by_entries, $counted_entries, $stored_plain;

-- name: insert_queued
-- Into micro-queues, one after the other by name. Those that find room where nobody waits are heads at once; RETURNING
-- tells of the newest row, whatever this statement sees otherwise.
WITH $putting, $entries, $counted_entries,
came AS (INSERT INTO penstock_utube AS l (tube, utube, heads, waiting, turn)
    SELECT :tube::integer, s.utube, least(s.c, :limit), s.c - least(s.c, :limit), CASE WHEN :fair THEN s.clock ELSE 0 END
    FROM (SELECT utube COLLATE "C" AS utube, count(*)::integer AS c, min(clock) AS clock FROM e
        WHERE delay = 0 AND unstarted = 0 GROUP BY 1 ORDER BY 1) s
    ON CONFLICT (tube, utube) DO UPDATE SET idle = false,
    heads = l.heads + CASE WHEN l.waiting = 0
        THEN greatest(least(excluded.heads + excluded.waiting, :limit - l.taken - l.heads), 0) ELSE 0 END,
    waiting = l.waiting + excluded.heads + excluded.waiting - CASE WHEN l.waiting = 0
        THEN greatest(least(excluded.heads + excluded.waiting, :limit - l.taken - l.heads), 0) ELSE 0 END,
    turn = CASE WHEN :fair AND l.taken = 0 AND l.heads = 0 AND l.waiting = 0 THEN greatest(excluded.turn, l.turn + 1)
        ELSE l.turn END
    RETURNING utube, waiting, turn),
p AS MATERIALIZED (SELECT r.*, CASE WHEN r.state <> 'r' THEN r.state WHEN row_number() OVER (PARTITION BY r.utube, r.state
        ORDER BY r.rank1, CASE WHEN :fair THEN 0 ELSE r.rank2 END, r.id) <= count(*) OVER (PARTITION BY r.utube, r.state)
        - (w.waiting ->> r.utube)::integer THEN 'r' ELSE 'q' END AS placed, (w.turns ->> r.utube)::bigint AS turn
    FROM (SELECT e.*, $state AS state, e.base1 + e.clock1 * e.clock - e.newest1 * e.id AS rank1,
        e.base2 + e.clock2 * e.clock - e.newest2 * e.id AS rank2 FROM e) r
    CROSS JOIN (SELECT jsonb_object_agg(utube, waiting) AS waiting, jsonb_object_agg(utube, turn) AS turns FROM came) w),
new AS (INSERT INTO penstock_task ($columns) SELECT :tube::bigint << 40 | e.id, e.rank1,
    CASE WHEN NOT :fair THEN e.rank2 WHEN e.placed = 'r' THEN e.turn ELSE 0 END, e.clock, e.clock + e.ttl + e.delay,
    e.clock + CASE WHEN e.delay > 0 THEN e.delay ELSE e.ttl END, e.ttr, :tube, e.pri, e.most, e.placed::"char", e.utube,
    e.callback, e.data, e.address, e.reply_to, e.group_name, e.group_no FROM p e)
SELECT n.clock, n.stored, n.told AND EXISTS (SELECT 1 FROM p WHERE placed = 'r'),
CASE WHEN n.told AND EXISTS (SELECT 1 FROM p WHERE placed <> 'q') THEN pg_notify('{channel}', :process) END,
set_config('penstock.utubes', coalesce((SELECT array_agg(utube) FROM came), '{}')::text, true),
(SELECT array_agg(id ORDER BY id) FROM p), NULL, NULL, (SELECT array_agg(placed ORDER BY id) FROM p),
(SELECT array_agg(CASE WHEN NOT :fair THEN rank2 WHEN placed = 'r' THEN turn ELSE 0 END ORDER BY id) FROM p) FROM n;

-- name: supersede
-- penstock_outcome_address; + 0 keeps it from penstock_outcome_until, which holds the whole tube's.
UPDATE penstock_outcome SET until = $now + :later WHERE pk = ANY (ARRAY(SELECT o.pk FROM unnest(:texts::text[]) v(name)
CROSS JOIN LATERAL (SELECT pk FROM penstock_outcome WHERE tube = :tube AND address = v.name
    AND until + 0 > $now + :later ORDER BY pk LIMIT 1000) o));

-- micro-queues

-- fragment: came
-- What came to micro-queues and went, as s(utube, taken, heads, waiting), beside `ok` with the clock.
queues AS (INSERT INTO penstock_utube AS l (tube, utube, taken, heads, waiting, turn)
    SELECT :tube::integer, s.utube, s.taken, s.heads, s.waiting, CASE WHEN :fair AND s.waiting > 0 THEN $now ELSE 0 END
    FROM s ORDER BY s.utube
    ON CONFLICT (tube, utube) DO UPDATE SET taken = l.taken + excluded.taken, heads = l.heads + excluded.heads,
    waiting = l.waiting + excluded.waiting, idle = false,
    turn = CASE WHEN excluded.turn > 0 AND l.taken = 0 AND l.heads = 0 AND l.waiting = 0
        THEN greatest(excluded.turn, l.turn + 1) ELSE l.turn END RETURNING utube)

-- name: heads
-- The rule of micro-queues: of these, which are locked, the first (limit - taken) ready tasks are heads, and no others. A
-- statement of its own, so that it sees all that was done before the locks were had. Empty ones go once their turn
-- cannot matter any more. How many more can be taken than before. (SELECT 'r') keeps it from penstock_ready.
WITH u AS MATERIALIZED (
    SELECT unnest(coalesce(nullif(current_setting('penstock.utubes', true), ''), '{}')::text[]) AS utube),
q AS MATERIALIZED (SELECT l.* FROM u CROSS JOIN LATERAL (SELECT l.ctid AS place, l.* FROM penstock_utube l
    WHERE l.tube = :tube AND l.utube = u.utube LIMIT 1) l),
c AS MATERIALIZED (SELECT l.utube, l.turn, k.pk, k.state, row_number() OVER (
        PARTITION BY l.utube ORDER BY k.rank1, k.r2, k.pk) <= :limit - l.taken AS head
    FROM q l CROSS JOIN LATERAL (
        (SELECT pk, state, rank1, CASE WHEN :fair THEN 0 ELSE rank2 END AS r2 FROM penstock_task
        WHERE tube = :tube AND utube = l.utube AND (state = 'r' OR state = 'q') AND state = (SELECT 'r'::"char"))
        UNION ALL
        (SELECT pk, state, rank1, rank2 FROM penstock_task WHERE tube = :tube AND utube = l.utube AND state = 'q'
        ORDER BY rank1, rank2, pk LIMIT :limit)) k
    WHERE l.waiting > 0 OR l.heads > :limit - l.taken),
changed AS (UPDATE penstock_task k SET state = CASE WHEN c.head THEN 'r' ELSE 'q' END::"char",
        rank2 = CASE WHEN NOT :fair THEN k.rank2 WHEN c.head THEN c.turn ELSE 0 END
    FROM c WHERE k.pk = ANY (ARRAY[c.pk]) AND c.head <> (c.state = 'r') RETURNING k.utube, k.state),
moved AS (INSERT INTO penstock_utube AS l (tube, utube, heads)
    SELECT :tube::integer, utube, sum(CASE state WHEN 'r' THEN 1 ELSE -1 END) FROM changed GROUP BY utube
    ON CONFLICT (tube, utube) DO UPDATE SET heads = l.heads + excluded.heads, waiting = l.waiting - excluded.heads),
empty AS MATERIALIZED (SELECT place, NOT :fair OR turn < $now AS over FROM q
    WHERE taken = 0 AND heads = 0 AND waiting = 0),
forgotten AS (DELETE FROM penstock_utube l USING empty WHERE empty.over AND l.ctid = empty.place),
kept AS (UPDATE penstock_utube l SET idle = true FROM empty WHERE NOT empty.over AND l.ctid = empty.place)
SELECT coalesce(sum(CASE state WHEN 'r' THEN 1 ELSE -1 END), 0)::integer FROM changed;

-- name: forget_idle_queues
-- penstock_idle_utube
DELETE FROM penstock_utube WHERE (tube, utube) IN (SELECT tube, utube FROM penstock_utube
WHERE tube = :tube AND idle AND turn < $now LIMIT :limit FOR UPDATE SKIP LOCKED);

-- take

-- fragment: look
-- The clock; the tube, and from where on takes look at it; whether its session lives, what is known of moments, and
-- whether this take may hand out here: not where an earlier tube of the same call had something (`mark`), and not
-- where something is due, unless it is forced.
c AS MATERIALIZED (SELECT $now AS clock),
b AS MATERIALIZED (SELECT t.no, t.paused, t.dues, t.serials, t.heads IS NULL AS unbounded,
    CASE WHEN t.heads_no = t.heads::oid THEN coalesce(pg_sequence_last_value(t.heads), 0) ELSE 0 END AS low,
    CASE WHEN t.heads_no = t.heads::oid THEN coalesce(pg_sequence_last_value(t.dues), 0) ELSE 0 END AS soonest,
    EXISTS (SELECT 1 FROM penstock_group g WHERE g.tube = :tube AND g.moving = 1) AS moving
    FROM penstock_tube t WHERE t.no = :tube),
l AS MATERIALIZED (SELECT c.clock, b.no, b.paused, b.dues, b.serials, b.low, b.moving, h.session,
    CASE WHEN b.unbounded THEN '-Infinity'::double precision ELSE 0 END AS least,
    least((SELECT k.at FROM penstock_task k WHERE k.tube = :tube AND k.at >= b.soonest ORDER BY k.at LIMIT 1),
        (SELECT min(until) FROM penstock_handle),
        (SELECT min(until) FROM penstock_session WHERE until IS NOT NULL)) AS next
    FROM c LEFT JOIN b ON true LEFT JOIN penstock_handle h ON h.id = :handle AND h.until > c.clock),
ok AS MATERIALIZED (SELECT l.*, NOT :forced AND (l.moving OR coalesce(l.next <= l.clock, false)) AS due,
    l.session IS NOT NULL AND l.paused = 0
    AND (:forced OR NOT (l.moving OR coalesce(l.next <= l.clock, false))) AND (:mark::text IS NULL
    OR coalesce(current_setting('penstock.took', true), '') NOT IN (:mark, '!' || :mark)) AS free FROM l)

-- fragment: uncancelled
(k.group_no IS NULL OR k.group_no <> ALL (ARRAY(
    SELECT g.no FROM penstock_group g WHERE g.tube = :tube AND g.moving = 1 AND g.state = 'cancelling')))

-- fragment: leased
got AS (UPDATE penstock_task k SET state = 't', attempts = k.attempts + 1, lease = k.lease + 1, taken = ok.clock,
    at = ok.clock + k.ttr, owner = ok.session, call = :call, progress = NULL
    FROM ok WHERE k.pk = ANY (ARRAY(SELECT pk FROM found)) RETURNING $record),
counted AS (INSERT INTO penstock_delta (tube, ready, taken, take_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM got HAVING count(*) > 0)

-- fragment: looked
ok.no, ok.clock, ok.next, ok.moving, ok.due, ok.session, ok.low, CASE WHEN :mark::text IS NULL THEN NULL
WHEN got.attempts IS NOT NULL THEN set_config('penstock.took', :mark, true)
WHEN ok.due THEN set_config('penstock.took', '!' || :mark, true) END

-- name: take
-- penstock_ready, in order. No pk below `low` means no place below this one; among those of other ranks, pks are told
-- apart in the index.
WITH $look,
found AS MATERIALIZED (SELECT f.pk, f.ttr FROM ok CROSS JOIN LATERAL (
    SELECT k.pk, k.ttr FROM penstock_task k WHERE k.tube = :tube AND k.state = 'r'
    AND (k.rank1, k.rank2, k.pk) >= (ok.least, ok.least, :tube::bigint << 40 | ok.low)
    AND k.pk >= (:tube::bigint << 40 | ok.low) AND k.rank1 <= :top AND (k.expires IS NULL OR k.expires > ok.clock)
    AND $uncancelled ORDER BY k.rank1, k.rank2, k.pk LIMIT :count FOR UPDATE SKIP LOCKED) f WHERE ok.free),
$leased,
lowered AS (SELECT $lower, CASE WHEN f.at < pg_sequence_last_value(ok.dues) THEN setval(ok.dues, f.at) END, $lowered
    FROM ok CROSS JOIN (SELECT min(ok.clock + found.ttr) AS at FROM ok CROSS JOIN found) f
    WHERE f.at < pg_sequence_last_value(ok.dues))
SELECT $looked, (SELECT count(*) FROM lowered), got.* FROM ok LEFT JOIN got ON true;

-- fragment: found_heads
-- The micro-queue is locked first; one that others have is passed over. Not joined: a plan made for few micro-queues
-- would walk through all of them.
found AS MATERIALIZED (SELECT f.pk, f.utube FROM ok CROSS JOIN LATERAL (
    SELECT k.pk, k.utube FROM penstock_task k CROSS JOIN LATERAL (SELECT FROM penstock_utube q
        WHERE q.tube = :tube AND q.utube = k.utube FOR UPDATE SKIP LOCKED) q
    WHERE k.tube = :tube AND k.state = 'r' AND k.rank1 <= :top AND (k.expires IS NULL OR k.expires > ok.clock)
    AND $uncancelled ORDER BY k.rank1, k.rank2, k.pk LIMIT :count FOR UPDATE OF k SKIP LOCKED) f WHERE ok.free)

-- fragment: served
queues AS (INSERT INTO penstock_utube AS q (tube, utube, taken, turn)
    SELECT :tube::integer, found.utube, count(*), min(ok.clock) FROM ok CROSS JOIN found GROUP BY found.utube
    ON CONFLICT (tube, utube) DO UPDATE SET taken = q.taken + excluded.taken, heads = q.heads - excluded.taken,
    turn = CASE WHEN :fair THEN greatest(excluded.turn, q.turn + 1) ELSE q.turn END RETURNING q.utube, q.turn)

-- name: take_heads
WITH $look, $found_heads, $leased, $served SELECT $looked, NULL, got.* FROM ok LEFT JOIN got ON true;

-- name: take_turns
-- The same where each hand-out moves its micro-queue behind the others, with the heads it has left.
WITH $look, $found_heads, $leased, $served,
left_heads AS MATERIALIZED (SELECT h.pk, queues.turn FROM queues CROSS JOIN LATERAL (SELECT pk FROM penstock_task
    WHERE tube = :tube AND utube = queues.utube AND (state = 'r' OR state = 'q') AND state = (SELECT 'r'::"char")
    AND pk <> ALL (ARRAY(SELECT pk FROM found)) OFFSET 0) h),
turned AS (UPDATE penstock_task k SET rank2 = left_heads.turn FROM left_heads WHERE k.pk = ANY (ARRAY[left_heads.pk]))
SELECT $looked, NULL, got.* FROM ok LEFT JOIN got ON true;

-- fragment: handed
-- Hand-outs without a lease (core.handout): by clock they stay ready, and delivered ones get a serial.
got AS (UPDATE penstock_task k SET state = CASE WHEN ok.serials IS NULL THEN 'r' ELSE 't' END::"char",
    rank1 = CASE WHEN ok.serials IS NULL THEN ok.clock ELSE found.place END, taken = ok.clock, attempts = k.attempts + 1
    FROM ok, found WHERE k.pk = ANY (ARRAY[found.key]) RETURNING found.place, $record)

-- name: hand_out
-- penstock_ready
WITH $look,
found AS MATERIALIZED (SELECT f.pk AS key,
    CASE WHEN ok.serials IS NULL THEN row_number() OVER () ELSE nextval(ok.serials) END AS place
    FROM ok CROSS JOIN LATERAL (SELECT k.pk FROM penstock_task k WHERE k.tube = :tube AND k.state = 'r'
        AND k.rank1 <= greatest(ok.clock - :period::bigint, 0) AND (k.expires IS NULL OR k.expires > ok.clock)
        ORDER BY k.rank1, k.rank2, k.pk LIMIT :count FOR UPDATE SKIP LOCKED) f WHERE ok.free),
$handed,
counted AS (INSERT INTO penstock_delta (tube, ready, taken, take_calls)
    SELECT :tube::integer, CASE WHEN ok.serials IS NOT NULL THEN -f.n END, CASE WHEN ok.serials IS NOT NULL THEN f.n END, f.n
    FROM ok CROSS JOIN (SELECT count(*) AS n FROM found) f WHERE f.n > 0)
SELECT $looked, CASE WHEN got.place IS NULL THEN (SELECT rank1 FROM penstock_task WHERE tube = :tube AND state = 'r'
    ORDER BY rank1, rank2, pk LIMIT 1) END, got.* FROM ok LEFT JOIN got ON true;

-- name: recover
-- penstock_delivered, up to one that is younger. What is being acked is passed over.
WITH ok AS MATERIALIZED (SELECT t.no, t.serials, t.paused, $now AS clock FROM penstock_tube t WHERE t.no = :tube),
found AS MATERIALIZED (SELECT r.pk AS key, nextval(r.serials) AS place FROM (SELECT f.pk, ok.serials,
        bool_and(f.taken + :elapsed::bigint <= ok.clock) OVER (ROWS UNBOUNDED PRECEDING) AS old
    FROM ok CROSS JOIN LATERAL (SELECT k.pk, k.taken FROM penstock_task k
        WHERE k.tube = :tube AND k.state = 't' AND k.owner IS NULL
        ORDER BY k.rank1, k.pk LIMIT :count FOR UPDATE SKIP LOCKED) f WHERE ok.paused = 0) r WHERE r.old),
$handed,
counted AS (INSERT INTO penstock_delta (tube, take_calls) SELECT :tube::integer, count(*) FROM found HAVING count(*) > 0)
SELECT ok.no, ok.clock, got.* FROM ok LEFT JOIN got ON true ORDER BY got.place;

-- name: enter
INSERT INTO penstock_waiter (tube, handle, takes, process) SELECT u, :handle::text, :number::bigint, :process::text
FROM unnest(:tubes::integer[]) u WHERE coalesce(current_setting('penstock.took', true), '') NOT IN (:mark, '!' || :mark)
AND EXISTS (SELECT 1 FROM penstock_handle WHERE id = :handle AND until > $now) ON CONFLICT DO NOTHING;

-- name: leave
DELETE FROM penstock_waiter WHERE tube = ANY (:tubes::integer[]) AND handle = :handle AND takes = :number
AND (:always OR current_setting('penstock.took', true) = :mark);

-- name: by_call
-- penstock_held: what a take whose answer was lost has leased.
SELECT $record, $now FROM penstock_task WHERE tube = :tube AND state = 't'
AND owner = (SELECT session FROM penstock_handle WHERE id = :handle) AND call = :call;

-- ack

-- fragment: acking
-- Groups that are started and have more tasks left than may go here are locked and counted down.
c AS MATERIALIZED (SELECT $now AS clock),
g AS MATERIALIZED (SELECT no FROM penstock_group WHERE no = ANY (ARRAY(SELECT group_no FROM penstock_task
    WHERE pk = ANY (:pks::bigint[]) AND EXISTS (SELECT 1 FROM penstock_group WHERE tube = :tube AND state = 'started')))
    AND state = 'started' AND remaining > cardinality(:pks::bigint[]) ORDER BY no FOR UPDATE),
gone AS (DELETE FROM penstock_task k USING c WHERE k.pk = ANY (:pks::bigint[]) AND k.state::text = 't'
    AND k.owner = (:sessions::integer[])[width_bucket(k.pk, :pks::bigint[])]
    AND (:leases::integer[])[width_bucket(k.pk, :pks::bigint[])] IN (0, k.lease)
    AND (k.at IS NULL OR k.at > c.clock) AND k.reply_to IS NULL
    AND (k.group_no IS NULL OR k.group_no = ANY (ARRAY(SELECT no FROM g)))

-- fragment: acked
counted AS (INSERT INTO penstock_delta (tube, taken, done, ack_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM gone HAVING count(*) > 0),
fewer AS (UPDATE penstock_group SET remaining = remaining - n.members
    FROM (SELECT group_no, count(*) AS members FROM gone WHERE group_no IS NOT NULL GROUP BY group_no) n
    WHERE no = ANY (ARRAY[n.group_no])),
kept AS (INSERT INTO penstock_outcome (pk, tube, address, status, result, until)
    SELECT gone.pk, :tube, gone.address, 'done', (:results::bytea[])[width_bucket(gone.pk, :pks::bigint[])],
    c.clock + :retention
    FROM gone CROSS JOIN c WHERE gone.address IS NOT NULL
    ON CONFLICT (pk) DO UPDATE SET status = excluded.status, result = excluded.result, error = NULL, code = NULL,
    until = excluded.until),
swept AS (DELETE FROM penstock_outcome WHERE pk = ANY (ARRAY(SELECT o.pk FROM penstock_outcome o, c
    WHERE o.tube = :tube AND o.until <= c.clock ORDER BY o.until
    LIMIT (SELECT 2 * count(*) FROM gone WHERE address IS NOT NULL) FOR UPDATE OF o SKIP LOCKED))),
told AS MATERIALIZED (SELECT :process::text IS NOT NULL AND count(*) > 0 AND (:bounded
    OR (count(address) > 0 AND $others_watch)) AS said FROM gone)
SELECT (SELECT array_agg(pk) FROM gone), (SELECT array_agg(pk) FROM gone WHERE address IS NOT NULL), told.said,
CASE WHEN told.said THEN pg_notify('{channel}', :process) END

-- name: ack
-- By the primary key: the state as text, so that no plan can prefer penstock_held. The place of a pk is found by halving.
WITH $acking RETURNING k.pk, k.address, k.group_no), $acked, NULL FROM told;

-- name: ack_queued
-- The same in micro-queues, whose rows are locked first.
WITH locked AS MATERIALIZED (SELECT q.utube FROM (
    SELECT DISTINCT k.utube FROM penstock_task k WHERE k.pk = ANY (:pks::bigint[]) ORDER BY 1) v CROSS JOIN LATERAL (
    SELECT q.utube FROM penstock_utube q WHERE q.tube = :tube AND q.utube = v.utube FOR UPDATE) q),
$acking AND (SELECT count(*) FROM locked) >= 0 RETURNING k.pk, k.address, k.group_no, k.utube),
s AS (SELECT utube, -count(*) AS taken, 0 AS heads, 0 AS waiting FROM gone GROUP BY utube), $came, $acked,
set_config('penstock.utubes', coalesce((SELECT array_agg(utube) FROM queues), '{}')::text, true) FROM told;

-- name: ack_named
-- penstock_address; delivered ones are anybody's.
WITH b AS MATERIALIZED (SELECT no FROM penstock_tube WHERE no = :tube),
gone AS (DELETE FROM penstock_task k USING b WHERE k.pk = ANY (ARRAY(SELECT f.pk FROM unnest(:texts::text[]) v(name)
    CROSS JOIN LATERAL (SELECT pk FROM penstock_task WHERE tube = :tube AND address = v.name LIMIT 1) f))
    AND k.state::text = 't' AND k.owner IS NULL RETURNING k.address),
counted AS (INSERT INTO penstock_delta (tube, taken, done, ack_calls)
    SELECT :tube::integer, -count(*), count(*), count(*) FROM gone HAVING count(*) > 0)
SELECT address, CASE WHEN :bounded AND :process::text IS NOT NULL THEN pg_notify('{channel}', :process) END FROM gone;

-- changes

-- fragment: moves
-- Tasks that still are as they were seen, while the decision holds, become what was decided: keys in order, and a class
-- for each, whose weights (`w`) are what the counters get.
c AS MATERIALIZED (SELECT $now AS clock),
b AS MATERIALIZED (SELECT no FROM penstock_tube WHERE no = :tube),
locked AS MATERIALIZED (SELECT q.utube FROM unnest(:queues::text[]) v(name) CROSS JOIN LATERAL (
    SELECT q.utube FROM penstock_utube q WHERE q.tube = :tube AND q.utube = v.name FOR UPDATE) q),

-- fragment: guarded
FROM b CROSS JOIN c CROSS JOIN u CROSS JOIN LATERAL (SELECT k.pk, k.utube, k.state::text AS real FROM penstock_task k
    WHERE k.pk = u.key AND CASE k.state WHEN 'q' THEN 'r' ELSE k.state END = u.was::"char" AND k.lease = u.held
    AND k.at IS NOT DISTINCT FROM u.due AND k.rank1 = u.rank
    AND (NOT :queued OR k.utube = ANY ((SELECT array_agg(utube) FROM locked)::text[])
        OR (SELECT count(*) FROM penstock_utube q WHERE q.tube = :tube AND q.utube = k.utube) = 0) FOR UPDATE) k
WHERE u.until IS NULL OR u.until > c.clock

-- fragment: removed
gone AS (DELETE FROM penstock_task k USING held h WHERE k.pk = ANY (ARRAY[h.pk]) AND h.state = '-')

-- fragment: requeued
s AS (SELECT utube, -count(*) FILTER (WHERE real = 't') + count(*) FILTER (WHERE state = 't') AS taken,
    -count(*) FILTER (WHERE real = 'r') AS heads,
    count(*) FILTER (WHERE state = 'q') - count(*) FILTER (WHERE real = 'q') AS waiting
    FROM held WHERE :queued AND (real IN ('r', 'q', 't') OR state IN ('q', 't')) GROUP BY utube), $came

-- fragment: weighed
counted AS (INSERT INTO penstock_delta (tube, ready, taken, delayed, buried, done, release_calls, ttr_calls, ttl_calls,
    bury_calls, delay_calls, touch_calls, ack_calls, fail_calls, delete_calls, kick_calls, put_calls)
    SELECT :tube::integer, n * w[1], n * w[2], n * w[3], n * w[4], n * w[5], n * w[6], n * w[7], n * w[8], n * w[9], n * w[10],
    n * w[11], n * w[12], n * w[13], n * w[14], n * w[15], 0
    FROM (SELECT class, count(*) AS n FROM held GROUP BY class) h
    CROSS JOIN LATERAL (SELECT (:weights::integer[])[class * 15 + 1 : class * 15 + 15] AS w) w)

-- fragment: flushed
SELECT c.clock, (SELECT array_agg(pk) FROM held), CASE WHEN :queued THEN set_config('penstock.utubes',
coalesce((SELECT array_agg(utube) FROM queues), '{}')::text, true) END,
1 / CASE WHEN :whole AND (SELECT count(*) FROM held) < cardinality(:keys::bigint[]) THEN 0 ELSE 1 END FROM c

-- name: flush
WITH $moves
u AS MATERIALIZED (SELECT * FROM unnest(:keys::bigint[], :was::text[], :held::integer[], :due::bigint[],
    :rank::double precision[], :until::bigint[], :class::integer[], :state::text[], :at::bigint[], :expires::bigint[],
    :attempts::integer[], :owner::integer[], :reason::text[], :progress::double precision[])
    u(key, was, held, due, rank, until, class, state, at, expires, attempts, owner, reason, progress)),
held AS MATERIALIZED (SELECT k.pk, k.utube, k.real, u.class, u.state, u.at, u.expires, u.attempts, u.owner, u.reason,
    u.progress $guarded), $removed,
changed AS (UPDATE penstock_task k SET state = h.state::"char", at = h.at, expires = h.expires, attempts = h.attempts,
    owner = h.owner, reason = h.reason, progress = h.progress,
    rank2 = CASE WHEN :fair AND h.state <> 't' THEN 0 ELSE k.rank2 END
    FROM held h WHERE k.pk = ANY (ARRAY[h.pk]) AND h.state <> '-'),
$requeued, $weighed
$flushed;

-- name: flush_ends
-- The same, where some end whose outcomes are kept.
WITH $moves
u AS MATERIALIZED (SELECT * FROM unnest(:keys::bigint[], :was::text[], :held::integer[], :due::bigint[],
    :rank::double precision[], :until::bigint[], :class::integer[], :state::text[], :at::bigint[], :expires::bigint[],
    :attempts::integer[], :owner::integer[], :reason::text[], :progress::double precision[],
    :addresses::text[], :statuses::text[], :results::bytea[], :errors::text[], :codes::text[])
    u(key, was, held, due, rank, until, class, state, at, expires, attempts, owner, reason, progress, address, status,
    result, error, code)),
held AS MATERIALIZED (SELECT k.pk, k.utube, k.real, u.class, u.state, u.at, u.expires, u.attempts, u.owner, u.reason,
    u.progress, u.address, u.status, u.result, u.error, u.code $guarded), $removed,
changed AS (UPDATE penstock_task k SET state = h.state::"char", at = h.at, expires = h.expires, attempts = h.attempts,
    owner = h.owner, reason = h.reason, progress = h.progress,
    rank2 = CASE WHEN :fair AND h.state <> 't' THEN 0 ELSE k.rank2 END
    FROM held h WHERE k.pk = ANY (ARRAY[h.pk]) AND h.state <> '-'),
$requeued, $weighed,
kept AS (INSERT INTO penstock_outcome (pk, tube, address, status, result, error, code, until)
    SELECT held.pk, :tube, held.address, held.status, held.result, held.error, held.code, c.clock + :retention
    FROM held CROSS JOIN c WHERE held.address IS NOT NULL
    ON CONFLICT (pk) DO UPDATE SET status = excluded.status, result = excluded.result, error = excluded.error,
    code = excluded.code, until = excluded.until),
swept AS (DELETE FROM penstock_outcome WHERE pk = ANY (ARRAY(SELECT o.pk FROM penstock_outcome o, c
    WHERE o.tube = :tube AND o.until <= c.clock ORDER BY o.until
    LIMIT (SELECT 2 * count(*) FROM held WHERE address IS NOT NULL) FOR UPDATE OF o SKIP LOCKED)))
$flushed;

-- name: flush_content
-- The same, where tasks get new content and another place.
WITH $moves
u AS MATERIALIZED (SELECT * FROM unnest(:keys::bigint[], :was::text[], :held::integer[], :due::bigint[],
    :rank::double precision[], :until::bigint[], :class::integer[], :state::text[], :at::bigint[], :expires::bigint[],
    :rank1::double precision[], :rank2::double precision[], :pri::integer[], :created::bigint[], :datas::bytea[])
    u(key, was, held, due, rank, until, class, state, at, expires, rank1, rank2, pri, created, data)),
held AS MATERIALIZED (SELECT k.pk, k.utube, k.real, u.class, u.state, u.at, u.expires, u.rank1, u.rank2, u.pri, u.created,
    u.data $guarded), $removed,
changed AS (UPDATE penstock_task k SET state = h.state::"char", at = h.at, expires = h.expires, rank1 = h.rank1,
    rank2 = CASE WHEN :fair AND h.state <> 't' THEN 0 ELSE h.rank2 END, pri = h.pri, created = h.created,
    data = coalesce(h.data, k.data)
    FROM held h WHERE k.pk = ANY (ARRAY[h.pk]) AND h.state <> '-'),
$requeued, $weighed
$flushed;

-- name: change_groups
-- Work that is not given stays: who put into an open group without a look at it does not know it.
WITH free AS MATERIALIZED (SELECT g.no FROM unnest(:nos::integer[]) v(number) CROSS JOIN LATERAL (
    SELECT g.no FROM penstock_group g WHERE g.no = v.number FOR UPDATE) g),
done AS (UPDATE penstock_group g SET state = u.state, total = g.total + u.total,
    remaining = g.remaining + u.remaining, end_work = coalesce(u.end_work, g.end_work),
    cancel_work = coalesce(u.cancel_work, g.cancel_work), moving = u.moving, until = u.until
    FROM unnest(:nos::integer[], :was::text[], :had::integer[], :exact::integer[], :state::text[], :total::integer[],
        :remaining::integer[], :end_work::bytea[], :cancel_work::bytea[], :moving::integer[], :until::bigint[])
    u(no, was, had, exact, state, total, remaining, end_work, cancel_work, moving, until)
    WHERE (SELECT count(*) FROM free) = cardinality(:nos::integer[]) AND g.no = ANY (ARRAY[u.no]) AND g.state = u.was AND CASE WHEN u.exact = 1 THEN g.remaining = u.had
        ELSE g.remaining + u.remaining > 0 END RETURNING g.no)
SELECT 1 / CASE WHEN (SELECT count(*) FROM done) < cardinality(:nos::integer[]) THEN 0 ELSE 1 END;

-- name: must_live
SELECT 1 / CASE WHEN count(*) < cardinality(:tubes::integer[]) THEN 0 ELSE 1 END FROM penstock_tube
WHERE no = ANY (:tubes::integer[]);

-- name: add_group
INSERT INTO penstock_group (tube, name, state, total, remaining, moving) SELECT :tube::integer, :name::text, 'open', 0, 0, 0
FROM penstock_tube WHERE no = :tube ON CONFLICT DO NOTHING;

-- loads

-- fragment: with_group
, g.* FROM found k LEFT JOIN LATERAL (SELECT no AS g_no, name AS g_name, state AS g_state, total AS g_total,
    remaining AS g_remaining, end_work AS g_end, cancel_work AS g_cancel, moving AS g_moving, until AS g_until
    FROM penstock_group WHERE no = k.group_no LIMIT 1) g ON true

-- name: look
-- The clock, and whether the tube lives.
SELECT $now, EXISTS (SELECT 1 FROM penstock_tube WHERE no = :tube);

-- name: by_id
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE pk = :pk) SELECT $record $with_group;

-- name: by_ids
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE pk = ANY (:ids::bigint[])) SELECT $record $with_group;

-- name: by_names
-- penstock_address
WITH found AS MATERIALIZED (SELECT k.* FROM unnest(:texts::text[]) v(name) CROSS JOIN LATERAL (
    SELECT * FROM penstock_task WHERE tube = :tube AND address = v.name LIMIT 1) k) SELECT $record $with_group;

-- name: due
-- penstock_timer, from where the tube says on
WITH b AS MATERIALIZED (SELECT CASE WHEN heads_no = heads::oid THEN coalesce(pg_sequence_last_value(dues), 0) ELSE 0 END
    AS soonest FROM penstock_tube WHERE no = :tube),
found AS MATERIALIZED (SELECT f.* FROM b CROSS JOIN LATERAL (SELECT * FROM penstock_task
    WHERE tube = :tube AND at >= b.soonest AND at <= $now ORDER BY at LIMIT :limit) f)
SELECT $record $with_group ORDER BY at, pk;

-- name: taken_after
-- penstock_held; the + 0 keeps the few taken ones from being looked for among all, in pk order.
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE tube = :tube AND state = 't' AND pk + 0 > :after
    ORDER BY pk + 0 LIMIT :limit) SELECT $record $with_group;

-- name: buried
-- penstock_buried
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE tube = :tube AND state = '!'
    ORDER BY rank1, rank2, pk LIMIT :limit) SELECT $record $with_group;

-- name: members
-- penstock_grouped
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE group_no = :group ORDER BY pk LIMIT :limit)
SELECT $record $with_group;

-- name: unstarted
-- penstock_unstarted
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE group_no = :group AND state = 'g'
    ORDER BY rank1, rank2, pk LIMIT :limit) SELECT $record $with_group;

-- name: page
WITH found AS MATERIALIZED (SELECT * FROM penstock_task WHERE pk > :low AND pk <= :high ORDER BY pk LIMIT :limit)
SELECT $record $with_group;

-- name: find_all
SELECT $record FROM penstock_task WHERE pk > :low AND pk <= :high
AND (state = 't' OR expires IS NULL OR expires > $now) ORDER BY pk LIMIT :limit;

-- name: find_taken
-- penstock_held
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND pk + 0 > :low AND pk + 0 <= :high
ORDER BY pk + 0 LIMIT :limit;

-- name: next_moment
SELECT $now, least((SELECT k.at FROM penstock_tube t CROSS JOIN LATERAL (SELECT at FROM penstock_task
    WHERE tube = :tube AND at >= CASE WHEN t.heads_no = t.heads::oid THEN coalesce(pg_sequence_last_value(t.dues), 0)
    ELSE 0 END ORDER BY at LIMIT 1) k WHERE t.no = :tube),
(SELECT min(until) FROM penstock_handle), (SELECT min(until) FROM penstock_session WHERE until IS NOT NULL),
(SELECT 0 FROM penstock_group WHERE tube = :tube AND moving = 1 LIMIT 1));

-- outcomes

-- name: sweep_outcomes
-- penstock_outcome_until
DELETE FROM penstock_outcome WHERE pk = ANY (ARRAY(SELECT pk FROM penstock_outcome
WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: sweep_groups
-- penstock_over_group
DELETE FROM penstock_group WHERE no = ANY (ARRAY(SELECT no FROM penstock_group
WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED));

-- sessions

-- name: add_session
-- It lives on when a handle joins it, and is forgotten if none does.
INSERT INTO penstock_session (id, ttr, until) VALUES (:id, :ttr, $now + :ttr + 15000) RETURNING no, $now;

-- name: resume_session
WITH resumed AS (UPDATE penstock_session SET until = NULL WHERE no = :no AND (until IS NULL OR until > $now) RETURNING no)
SELECT 1 / count(*) FROM resumed;

-- name: add_handle
INSERT INTO penstock_handle (id, session, host, pid, locus, beat, until)
VALUES (:id, :session, :host, :pid, :locus, $now, :until)
ON CONFLICT (id) DO UPDATE SET session = excluded.session, beat = excluded.beat, until = excluded.until;

-- name: beat
UPDATE penstock_handle SET beat = $now, until = $now + :lapse WHERE id = ANY (:texts::text[]) AND until > $now
RETURNING id;

-- name: lock_session
-- Before the statement that looks for other handles: two last ones that leave at once must not each see the other.
SELECT 1 FROM penstock_session WHERE no = :no FOR UPDATE;

-- name: part
-- The last handle to leave sets its session's end. `lapsed`: only if nobody has heard of it since.
WITH gone AS (DELETE FROM penstock_handle WHERE id = :id AND (NOT :lapsed OR until <= $now)
    RETURNING session, host, pid, beat),
waits AS (DELETE FROM penstock_waiter WHERE handle = :id AND EXISTS (SELECT 1 FROM gone))
UPDATE penstock_session s SET until = :moment + s.ttr, host = gone.host, pid = gone.pid, beat = gone.beat FROM gone
WHERE s.no = ANY (ARRAY[gone.session]) AND NOT EXISTS (SELECT 1 FROM penstock_handle h WHERE h.session = s.no AND h.id <> :id);

-- name: forget_session
-- Not while anything is held by it: by somebody else's hand that was undone, say.
DELETE FROM penstock_session s WHERE s.no = :no AND s.until <= $now AND NOT EXISTS (SELECT 1 FROM penstock_tube t
CROSS JOIN LATERAL (SELECT 1 FROM penstock_task k WHERE k.tube = t.no AND k.state = 't' AND k.owner = :no LIMIT 1) k);

-- name: held
-- penstock_held, tube by tube
SELECT k.tube, k.pk FROM (SELECT no FROM penstock_tube ORDER BY name) t CROSS JOIN LATERAL (
    SELECT tube, pk FROM penstock_task WHERE tube = t.no AND state = 't' AND owner = :session ORDER BY pk LIMIT :limit) k
LIMIT :limit;

-- transfer

-- name: import_tasks
INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr,
max_attempts, owner, reason, callback, data, address, reply_to, group_name, group_no, progress)
SELECT :tube::bigint << 40 | u.id, :tube, u.state::"char", u.rank1, u.rank2, u.pri, u.utube, u.attempts, u.lease,
u.created, u.taken, u.expires, u.at, u.ttr, u.max_attempts, u.owner, u.reason, u.callback, u.payload, u.address,
u.reply_to, u.group_name, u.group_no, u.progress
FROM unnest(:ids::bigint[], :state::text[], :rank1::double precision[], :rank2::double precision[], :pri::integer[],
:utube::text[], :attempts::integer[], :lease::integer[], :created::bigint[], :taken::bigint[], :expires::bigint[],
:at::bigint[], :ttr::bigint[], :max_attempts::integer[], :owner::integer[], :reason::text[], :callback::text[],
:payload::bytea[], :address::text[], :reply_to::text[], :group::text[], :group_no::integer[],
:progress::double precision[]) u(id, state, rank1, rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr,
max_attempts, owner, reason, callback, payload, address, reply_to, group_name, group_no, progress);

-- name: import_members
UPDATE penstock_group g SET total = g.total + u.members, remaining = g.remaining + u.members
FROM unnest(:nos::integer[], :members::integer[]) u(no, members) WHERE g.no = u.no;

-- name: import_outcomes
INSERT INTO penstock_outcome (pk, tube, address, status, result, error, code, until)
SELECT :tube::bigint << 40 | u.id, :tube, u.address, u.status, u.result, u.error, u.code, u.until
FROM unnest(:ids::bigint[], :addresses::text[], :statuses::text[], :results::bytea[], :errors::text[], :codes::text[],
:until::bigint[]) u(id, address, status, result, error, code, until) ON CONFLICT (pk) DO NOTHING;

-- name: import_counts
UPDATE penstock_counter SET last_id = :last, ready = ready + :ready, taken = taken + :taken,
delayed = delayed + :delayed, buried = buried + :buried, done = done + :done, put_calls = put_calls + :put,
delay_calls = delay_calls - :due WHERE tube = :tube;

-- name: import_calls
UPDATE penstock_counter SET take_calls = take_calls + :take, ack_calls = ack_calls + :ack,
release_calls = release_calls + :release, delete_calls = delete_calls + :delete, bury_calls = bury_calls + :bury,
kick_calls = kick_calls + :kick, touch_calls = touch_calls + :touch, ttl_calls = ttl_calls + :ttl,
ttr_calls = ttr_calls + :ttr, delay_calls = delay_calls + :delay, fail_calls = fail_calls + :fail WHERE tube = :tube;

-- name: set_last_id
SELECT setval(t.ids, greatest(c.last_id, coalesce(pg_sequence_last_value(t.ids), 0), 1)) FROM penstock_tube t
JOIN penstock_counter c ON c.tube = t.no WHERE t.no = :tube AND c.last_id > 0;

-- name: set_group_totals
UPDATE penstock_group g SET total = u.total FROM unnest(:nos::integer[], :totals::integer[]) u(no, total)
WHERE g.no = u.no;
