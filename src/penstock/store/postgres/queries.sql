-- Every call of the PostgreSQL store: one function each, so one round trip and one transaction.

-- fragment: entries
-- Their data, which of the shapes each has, the shapes as JSON, and their addresses, if any.
ARRAY(
    SELECT ROW(d.place, s.base1, s.clock1, s.newest1, s.base2, s.clock2, s.newest2, s.pri, s.utube, s.ttl, s.ttr, s.delay,
        s.max_attempts, s.callback, d.data, d.address, s.duplicate, s.reply_to, s.group_name, s.group_no,
        NULL)::{schema}.penstock_entry
    FROM unnest(%s::bytea[], %s::integer[], %s::text[]) WITH ORDINALITY d(data, shape, address, place)
    JOIN ROWS FROM (jsonb_to_recordset(%s::jsonb) AS (
        base1 double precision, clock1 boolean, newest1 boolean, base2 double precision, clock2 boolean,
        newest2 boolean, pri integer, utube text, ttl bigint, ttr bigint, delay bigint, max_attempts integer,
        callback text, duplicate text, reply_to text, group_name text, group_no integer)
    ) WITH ORDINALITY s(base1, clock1, newest1, base2, clock2, newest2, pri, utube, ttl, ttr, delay, max_attempts,
        callback, duplicate, reply_to, group_name, group_no, number) ON s.number = d.shape
    ORDER BY d.place)

-- fragment: progress
-- Only of taken tasks: the others cost no look.
CASE WHEN shown.state = 't' THEN {schema}.penstock_progress(shown.tube, shown.id, shown.lease) END

-- name: plans
-- What every verb's function runs with, {plans} in functions/. The tables go from empty to millions of rows and
-- back within minutes, so plans must not depend on statistics: one made for an empty table would scan a full one.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off SET lock_timeout = '10s'

-- name: has_meta
-- Not by to_regclass, which may remember from before the wait for the lock that there was none.
SELECT FROM pg_class WHERE relname = 'penstock_meta'
AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)

-- name: get_meta
SELECT value FROM {schema}.penstock_meta WHERE name = %s

-- name: set_meta
INSERT INTO {schema}.penstock_meta (name, value) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtext('penstock'), hashtext('{schema}'))

-- name: begin_schema
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.penstock_meta (name text PRIMARY KEY, value text NOT NULL)

-- name: unchecked
-- Functions are made in any order, so that some name others that are not there yet.
SET LOCAL check_function_bodies = off

-- name: server
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery()

-- name: bind
-- From here to its end the caller's transaction is not ours to relax or to fold counters in.
SELECT value, set_config('penstock.bound', 'on', true) FROM {schema}.penstock_meta WHERE name = 'id'

-- name: describe
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('full_page_writes'), current_setting('autovacuum'), current_setting('max_connections')::integer,
    (SELECT value FROM {schema}.penstock_meta WHERE name = 'schema')::integer,
    (SELECT extract(epoch FROM clock_timestamp() - min(xact_start))::integer FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
    (SELECT pg_notification_queue_usage() * 100)::integer

-- name: now
SELECT {schema}.penstock_now(NULL)

-- tubes

-- name: save_tube
SELECT * FROM {schema}.penstock_name_tube(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: get_tube
-- Also one that hides behind the name, so that this is one look; the tube itself comes first.
SELECT no, name, kind, options FROM {schema}.penstock_tube WHERE name = %s
UNION ALL SELECT no, name, kind, options FROM {schema}.penstock_sealed WHERE name = %s
UNION ALL SELECT * FROM {schema}.penstock_hidden(%s)

-- name: all_tubes
-- Without those that are arriving.
SELECT no, name, kind, options FROM {schema}.penstock_tube WHERE left(name, 1) <> '<' ORDER BY name

-- name: hidden_tube
SELECT * FROM {schema}.penstock_hidden(%s)

-- name: drop_tube
SELECT * FROM {schema}.penstock_drop_tube(%s, %s, %s)

-- name: pause
SELECT {schema}.penstock_pause(%s, %s, %s)

-- name: paused
SELECT paused FROM {schema}.penstock_tube WHERE no = %s

-- tasks

-- name: put_one
SELECT * FROM {schema}.penstock_put_one(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: put_plain
SELECT {schema}.penstock_put_plain($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: put_alike
SELECT * FROM {schema}.penstock_put_alike(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: put
-- Entries that differ.
SELECT * FROM {schema}.penstock_put(%s, $entries, %s, %s)

-- name: put_linked
SELECT * FROM {schema}.penstock_put_linked(%s, $entries, %s, %s)

-- name: take
SELECT * FROM {schema}.penstock_take(%s::integer[], %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: give_back
SELECT * FROM {schema}.penstock_give_back(%s::integer[], %s, %s, %s, %s, %s)

-- name: settle
SELECT * FROM {schema}.penstock_settle(%s, %s, %s, %s)

-- name: settle_telling
SELECT shown.*, $progress FROM {schema}.penstock_settle_telling(%s, %s, %s, %s) shown

-- name: ack
SELECT * FROM {schema}.penstock_ack(%s, %s::bigint[], %s::integer[], %s::integer[], %s::bytea[], %s, %s, %s, %s)

-- name: kick
SELECT * FROM {schema}.penstock_kick(%s, %s, %s, %s)

-- name: release_all
SELECT * FROM {schema}.penstock_release_all(%s, %s, %s)

-- name: advance
SELECT * FROM {schema}.penstock_advance(%s, %s, %s, %s)

-- name: truncate
SELECT * FROM {schema}.penstock_truncate(%s, %s, %s, %s, %s, %s)

-- name: get
SELECT shown.*, $progress FROM {schema}.penstock_get(%s, %s::bigint[], %s) shown

-- name: find
SELECT shown.*, $progress FROM {schema}.penstock_find(%s, %s, %s, %s, %s) shown

-- name: count
SELECT * FROM {schema}.penstock_count(%s)

-- addresses and groups

-- name: sought
SELECT * FROM {schema}.penstock_sought(%s, %s, %s, %s, %s)

-- name: open_group
SELECT * FROM {schema}.penstock_open_group(%s, %s)

-- name: get_group
SELECT fresh, (found).* FROM {schema}.penstock_get_group(%s, %s, %s, %s)

-- name: live_groups
-- penstock_live_group, in order
SELECT * FROM {schema}.penstock_group WHERE tube = %s AND name > %s AND state IN ('open', 'started')
ORDER BY name LIMIT %s

-- name: set_group_work
SELECT {schema}.penstock_set_group_work(%s, %s, %s, %s)

-- name: turn_group
SELECT * FROM {schema}.penstock_turn_group(%s, %s, %s, %s, %s, %s)

-- kinds that lease nothing

-- name: push
SELECT * FROM {schema}.penstock_push(%s, $entries, %s, %s)

-- name: ack_named
SELECT * FROM {schema}.penstock_ack_named(%s, %s::text[], %s)

-- name: settle_named
SELECT * FROM {schema}.penstock_settle_named(%s, %s::text[], %s::text[], %s, %s)

-- name: named
SELECT * FROM {schema}.penstock_named(%s, %s::text[], %s)

-- name: recover
SELECT * FROM {schema}.penstock_recover(%s, %s, %s, %s)

-- name: inspect
SELECT * FROM {schema}.penstock_inspect(%s, %s, %s, %s)

-- moving

-- name: seal
SELECT {schema}.penstock_seal(%s, %s, %s, %s)

-- name: sealed_tubes
SELECT no, name, kind, options FROM {schema}.penstock_sealed ORDER BY name

-- name: forget_sealed
DELETE FROM {schema}.penstock_sealed WHERE no = %s RETURNING no

-- name: erase
SELECT {schema}.penstock_erase(%s, %s, %s)

-- name: tally
SELECT * FROM {schema}.penstock_tally(%s)

-- name: sum
SELECT * FROM {schema}.penstock_sum(%s)

-- name: read_tasks
-- By the primary key.
SELECT (found.shown).* FROM (
    SELECT {schema}.penstock_shown(k) AS shown FROM {schema}.penstock_task k WHERE k.tube = %s AND k.key > %s
    ORDER BY k.key LIMIT %s OFFSET 0) found

-- name: read_groups
SELECT * FROM {schema}.penstock_group
WHERE tube = %s AND no > %s AND state IN ('open', 'started', 'cancelling') ORDER BY no LIMIT %s

-- name: read_outcomes
-- By the primary key.
SELECT key & 1099511627775, address, status, result, error, code, until FROM {schema}.penstock_outcome
WHERE key > %s AND key <= %s ORDER BY key LIMIT %s

-- name: adopt
SELECT {schema}.penstock_adopt(%s, %s, %s::bytea[], %s, %s::bytea[], %s)

-- name: land
SELECT {schema}.penstock_land(%s, %s, %s, %s, %s, %s)

-- sessions

-- name: join
SELECT * FROM {schema}.penstock_join(%s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: beat
SELECT * FROM {schema}.penstock_beat(%s::text[], %s, %s)

-- name: leave
SELECT * FROM {schema}.penstock_leave(%s::text[], %s, %s, %s)

-- name: sessions
SELECT * FROM {schema}.penstock_sessions(%s, %s)

-- looking closer

-- name: ahead
SELECT {schema}.penstock_ahead(%s, %s, %s, %s)

-- name: lane
SELECT taken, heads, waiting FROM {schema}.penstock_lane WHERE tube = %s AND utube = %s

-- name: lane_holders
SELECT * FROM {schema}.penstock_lane_holders(%s, %s, %s)

-- name: stranded
-- core/soundness.py has what this means. Before penstock_check, which counts and places what is made ready here.
WITH found AS (
    SELECT k.key, t.name, k.state::text AS state FROM {schema}.penstock_task k JOIN {schema}.penstock_tube t ON t.no = k.tube
    WHERE t.hand_out = 'lease' AND (k.state NOT IN ('r', 'q', 't', '~', '!', 'g') OR (k.state = 'q' AND k.utube IS NULL)
        OR (k.state = '~' AND k.at IS NULL) OR (k.state = 'g' AND k.group_no IS NULL))
), mended AS (
    UPDATE {schema}.penstock_task k SET state = 'r', owner = NULL, at = expires FROM found WHERE %s AND k.key = found.key
)
SELECT name, key & 1099511627775, state FROM found ORDER BY key

-- name: check
SELECT * FROM {schema}.penstock_check(%s, %s)
