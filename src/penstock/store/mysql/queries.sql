-- What the MySQL store asks besides its procedures. Hot queries stand in the procedures (migrations/);
-- tests/mysql holds them to their indexes.

-- fragment: time
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000

-- fragment: counters
taken, delayed_tasks, buried, done, take_calls, ack_calls, release_calls, delete_calls, bury_calls, kick_calls, touch_calls,
ttl_calls, ttr_calls, delay_calls, fail_calls

-- name: version
SELECT VERSION();

-- name: settings
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_connections;

-- name: grants
SHOW GRANTS;

-- name: oldest_transaction
SELECT TIMESTAMPDIFF(SECOND, MIN(trx_started), NOW()) FROM information_schema.innodb_trx;

-- name: now
SELECT $time;

-- name: all_meta
SELECT name, value FROM penstock_meta;

-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value);

-- name: add_meta
INSERT IGNORE INTO penstock_meta (name, value) VALUES (%s, %s);

-- name: lock_schema
SELECT GET_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64), %s);

-- name: unlock_schema
SELECT RELEASE_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64));

-- name: look
-- Changes whenever anybody puts, takes or settles anything: three lookups and a row per tube.
SELECT (SELECT MAX(id) FROM penstock_delta), (SELECT value FROM penstock_meta WHERE name = 'folded'),
(SELECT SUM(last) FROM penstock_id), (SELECT SUM(paused) FROM penstock_tube);

-- tubes

-- name: add_tube
INSERT INTO penstock_tube (name, kind, options, lanes, fair, utube_limit, hand_out, period, plain, retention)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: add_id
INSERT INTO penstock_id (tube) VALUES (%s);

-- name: add_counter
INSERT INTO penstock_counter (tube) VALUES (%s);

-- name: get_tube
SELECT no, name, kind, options FROM penstock_tube WHERE name = %s;

-- name: find_tube
-- Also one that hides behind the name, so that this is one look; the tube itself comes first. By name: few have none.
(SELECT no, name, kind, options FROM penstock_tube WHERE name = %s)
UNION ALL (SELECT no, old_name, kind, options FROM penstock_tube WHERE name IS NULL AND old_name IN (%s, CONCAT('>', %s))
AND LEFT(old_name, 1) = '>')
UNION ALL (SELECT no, name, kind, options FROM penstock_tube WHERE name = CONCAT('<', %s));

-- name: all_tubes
-- Without those that are arriving.
SELECT no, name, kind, options FROM penstock_tube WHERE name IS NOT NULL AND LEFT(name, 1) <> '<' ORDER BY name;

-- name: tubes_without_plain
SELECT no, name, kind, options FROM penstock_tube WHERE name IS NOT NULL AND plain IS NULL;

-- name: set_plain
UPDATE penstock_tube SET plain = %s, retention = %s WHERE no = %s;

-- name: lock_tube
SELECT no FROM penstock_tube WHERE no = %s AND name IS NOT NULL FOR UPDATE;

-- name: is_paused
SELECT paused FROM penstock_tube WHERE no = %s AND name IS NOT NULL;

-- name: set_paused
UPDATE penstock_tube SET paused = %s WHERE no = %s;

-- name: any_taken
-- penstock_ready
SELECT 1 FROM penstock_task WHERE tube = %s AND state = 't' LIMIT 1;

-- name: any_waiting
SELECT 1 FROM penstock_waiter WHERE tube = %s LIMIT 1;

-- name: hide_tube
UPDATE penstock_tube SET old_name = name, name = NULL WHERE no = %s;

-- name: forget_id
DELETE FROM penstock_id WHERE tube = %s;

-- name: forget_counter
DELETE FROM penstock_counter WHERE tube = %s;

-- name: hidden_tubes
-- Of dropped tubes; those that were moved stay.
SELECT no FROM penstock_tube WHERE name IS NULL AND (old_name IS NULL OR LEFT(old_name, 1) <> '>');

-- name: forget_outcomes
DELETE FROM penstock_outcome WHERE tube = %s ORDER BY id LIMIT %s;

-- name: forget_groups
DELETE FROM penstock_group WHERE tube = %s;

-- name: forget_lanes
DELETE FROM penstock_lane WHERE tube = %s;

-- name: forget_serial
DELETE FROM penstock_serial WHERE tube = %s;

-- name: forget_deltas
DELETE FROM penstock_delta WHERE tube = %s;

-- name: forget_waiting_tube
DELETE FROM penstock_waiter WHERE tube = %s;

-- name: forget_tube
DELETE FROM penstock_tube WHERE no = %s;

-- counters

-- name: counts
-- One statement, so that a fold is seen as a whole or not at all.
SELECT MAX(last), SUM(taken), SUM(delayed_tasks), SUM(buried), SUM(done), SUM(take_calls), SUM(ack_calls), SUM(release_calls),
SUM(delete_calls), SUM(bury_calls), SUM(kick_calls), SUM(touch_calls), SUM(ttl_calls), SUM(ttr_calls), SUM(delay_calls),
SUM(fail_calls) FROM (
SELECT (SELECT last FROM penstock_id WHERE tube = %(tube)s) AS last, $counters
FROM penstock_counter WHERE tube = %(tube)s
UNION ALL SELECT NULL, $counters FROM penstock_delta WHERE tube = %(tube)s
) every;

-- name: last_id
SELECT last FROM penstock_id WHERE tube = %s;

-- tasks

-- name: records
-- Those of a cancelled group are gone, whether or not they are removed yet.
SELECT record, data FROM penstock_record t WHERE tube = %s AND id IN %s
AND NOT EXISTS (SELECT 1 FROM penstock_group g WHERE g.no = t.group_no AND g.state = 'cancelling');

-- name: find_all
-- the primary key, in order
SELECT record, data FROM penstock_record
WHERE tube = %s AND id > %s AND (state = 't' OR expires IS NULL OR expires > %s) ORDER BY id LIMIT %s;

-- name: find_ready
SELECT record, data FROM penstock_record
WHERE tube = %s AND id > %s AND state IN ('r', 'q') AND (expires IS NULL OR expires > %s) ORDER BY id LIMIT %s;

-- name: find_aside
-- penstock_ready; sorted, but never more than there are of that state.
SELECT r.record, r.data FROM penstock_task t FORCE INDEX (penstock_ready)
STRAIGHT_JOIN penstock_record r ON r.tube = t.tube AND r.id = t.id
WHERE t.tube = %s AND t.id > %s AND t.state IN (%s, %s) AND (t.state = 't' OR t.expires IS NULL OR t.expires > %s)
ORDER BY t.id LIMIT %s;

-- name: ahead
-- penstock_ready
SELECT COUNT(*) FROM (SELECT 1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = %s AND state = 'r'
AND (rank1 < %s OR (rank1 = %s AND rank2 < %s) OR (rank1 = %s AND rank2 = %s AND id < %s)) LIMIT 1000) before_it;

-- name: lane
SELECT taken, heads, waiting FROM penstock_lane WHERE tube = %s AND utube = %s;

-- name: lane_holders
SELECT r.record, r.data FROM penstock_task t FORCE INDEX (penstock_ready)
STRAIGHT_JOIN penstock_record r ON r.tube = t.tube AND r.id = t.id
WHERE t.tube = %s AND t.state = 't' AND t.utube = %s ORDER BY t.taken, t.id LIMIT %s;

-- addresses, outcomes and groups

-- name: seek
-- The primary keys of penstock_tube and penstock_address; penstock_outcome_address, in order.
(SELECT no, NULL, NULL, NULL, NULL, NULL FROM penstock_tube WHERE no = %s AND name IS NOT NULL)
UNION ALL (SELECT NULL, id, NULL, NULL, NULL, NULL FROM penstock_address WHERE tube = %s AND address = %s)
UNION ALL (SELECT NULL, NULL, status, result, error, code FROM penstock_outcome FORCE INDEX (penstock_outcome_address)
WHERE tube = %s AND address = %s AND until > %s ORDER BY id DESC LIMIT 1);

-- name: sought
-- Primary keys.
(SELECT no, NULL, NULL, NULL, NULL, NULL FROM penstock_tube WHERE no = %s AND name IS NOT NULL)
UNION ALL (SELECT NULL, id, NULL, NULL, NULL, NULL FROM penstock_task WHERE tube = %s AND id = %s)
UNION ALL (SELECT NULL, NULL, status, result, error, code FROM penstock_outcome
WHERE tube = %s AND id = %s AND until > %s);

-- fragment: group
no, name, state, total, remaining, end_work, cancel_work, moving, until

-- name: group
-- NULLs where there is no such group, or it is past its retention; no row where the tube is gone.
SELECT b.no, g.no, g.name, g.state, g.total, g.remaining, g.end_work, g.cancel_work, g.moving, g.until
FROM penstock_tube b LEFT JOIN penstock_group g ON g.no = %s AND g.tube = b.no AND (g.until IS NULL OR g.until > %s)
WHERE b.no = %s AND b.name IS NOT NULL;

-- name: live_groups
-- penstock_live_group, in order
SELECT no, name, state, total, remaining, end_work, cancel_work, moving, until FROM penstock_group
WHERE tube = %s AND live > %s ORDER BY live LIMIT %s;

-- unleased kinds

-- name: named
-- Primary keys.
SELECT r.record, r.data FROM penstock_address a STRAIGHT_JOIN penstock_record r ON r.tube = a.tube AND r.id = a.id
WHERE a.tube = %s AND a.address IN %s;

-- sessions

-- name: add_session
INSERT INTO penstock_session (id, ttr) VALUES (%s, %s);

-- name: lock_session
SELECT no, ttr, ends FROM penstock_session WHERE id = %s FOR UPDATE;

-- name: last_lapse
SELECT COALESCE(MAX(lapses), 0) FROM penstock_handle WHERE session = %s;

-- name: rejoin
UPDATE penstock_session SET ends = NULL WHERE no = %s;

-- name: add_handle
INSERT INTO penstock_handle (id, session, host, pid, locus, beat, lapses) VALUES (%s, %s, %s, %s, %s, %s, %s);

-- name: living
SELECT id FROM penstock_handle WHERE id IN %s AND lapses > %s FOR UPDATE;

-- name: beat
UPDATE penstock_handle SET beat = %s, lapses = %s WHERE id IN %s AND lapses > %s;

-- name: handles
SELECT id, session, locus FROM penstock_handle WHERE id IN %s;

-- name: all_sessions
SELECT no, id, host, pid, beat, ends FROM penstock_session ORDER BY no;

-- name: session_by_no
SELECT no, id, host, pid, beat, ends FROM penstock_session WHERE no = %s;

-- name: presences
SELECT h.session, h.host, h.pid, h.beat FROM penstock_handle h JOIN penstock_session s ON s.no = h.session
WHERE h.lapses + s.ttr > %s ORDER BY h.beat;

-- name: held
-- penstock_ready, once per tube; in the others nobody holds anything
SELECT t.owner, b.name, t.id FROM penstock_tube b
STRAIGHT_JOIN penstock_task t FORCE INDEX (penstock_ready) ON t.tube = b.no AND t.state = 't'
WHERE b.name IS NOT NULL AND b.hand_out = 'lease' ORDER BY b.name, t.id;

-- name: waits
SELECT DISTINCT h.session, b.name FROM penstock_waiter w
JOIN penstock_handle h ON h.id = w.handle JOIN penstock_tube b ON b.no = w.tube
WHERE b.name IS NOT NULL ORDER BY b.name;

-- check

-- name: recount
SELECT state, COUNT(*) FROM penstock_task WHERE tube = %s GROUP BY state;

-- name: correct
INSERT INTO penstock_delta (tube, taken, delayed_tasks, buried, done) VALUES (%s, %s, %s, %s, %s);

-- name: stranded
-- core/soundness.py has what this means.
SELECT id, state FROM penstock_task WHERE tube = %s AND (state NOT IN ('r', 'q', 't', '~', '!', 'g')
OR (state = 'q' AND utube IS NULL) OR (state = '~' AND at = 9007199254740991) OR (state = 'g' AND group_no IS NULL))
ORDER BY id;

-- name: make_ready
UPDATE penstock_task SET state = 'r', owner = 0, at = COALESCE(expires, 9007199254740991) WHERE tube = %s AND id = %s;

-- name: orphans
SELECT r.record, r.data FROM penstock_task t FORCE INDEX (penstock_ready)
STRAIGHT_JOIN penstock_record r ON r.tube = t.tube AND r.id = t.id
LEFT JOIN penstock_session s ON s.no = t.owner
WHERE t.tube = %s AND t.state = 't' AND s.no IS NULL ORDER BY t.id;

-- name: unsound
-- What cannot be in a tube of an unleased kind; the second argument: it hands out by clock.
SELECT record, data FROM penstock_record WHERE tube = %s AND (owner <> 0 OR (state <> 'r' AND (%s OR state <> 't'))
OR (state = 'r' AND rank1 <> IF(%s, taken, 0))) ORDER BY id;

-- name: mend
UPDATE penstock_task SET state = %s, rank1 = %s, owner = 0 WHERE tube = %s AND id = %s;

-- name: last_mark
SELECT last_ms, last_seq FROM penstock_id WHERE tube = %s FOR UPDATE;

-- name: set_last_mark
UPDATE penstock_id SET last_ms = %s, last_seq = %s WHERE tube = %s;

-- name: newest_record
SELECT record, data FROM penstock_record WHERE tube = %s ORDER BY id DESC LIMIT 1;

-- name: serials
-- The last one that is kept, and the last one that a task has.
SELECT IFNULL((SELECT last FROM penstock_serial WHERE tube = %s FOR UPDATE), 0),
IFNULL((SELECT MAX(rank1) FROM penstock_task WHERE tube = %s AND state = 't'), 0);

-- name: set_serial
INSERT INTO penstock_serial (tube, last) VALUES (%s, %s) ON DUPLICATE KEY UPDATE last = VALUES(last);

-- name: astray
SELECT id, state, lane_state FROM penstock_task t JOIN penstock_tube b ON b.no = t.tube
WHERE t.tube = %s AND NOT (lane_state <=> IF(b.lanes AND state IN ('r', 'q'), state, NULL));

-- name: mend_lane_states
UPDATE penstock_task t JOIN penstock_tube b ON b.no = t.tube
SET t.lane_state = IF(b.lanes AND t.state IN ('r', 'q'), t.state, NULL) WHERE t.tube = %s;

-- name: true_lanes
SELECT utube, CAST(SUM(state = 't') AS SIGNED), CAST(SUM(state = 'r') AS SIGNED), CAST(SUM(state = 'q') AS SIGNED)
FROM penstock_task WHERE tube = %s AND utube IS NOT NULL AND state IN ('t', 'r', 'q') GROUP BY utube;

-- name: stored_lanes
SELECT utube, taken, heads, waiting, turn FROM penstock_lane WHERE tube = %s FOR UPDATE;

-- name: lane_order
SELECT id, state, rank1, rank2 FROM penstock_task
WHERE tube = %s AND utube = %s AND state IN ('r', 'q') ORDER BY rank1, id;

-- name: set_head
UPDATE penstock_task SET state = %s, lane_state = %s, rank2 = %s WHERE tube = %s AND id = %s;

-- name: save_lane
INSERT INTO penstock_lane (tube, utube, taken, heads, waiting, turn) VALUES (%s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE taken = VALUES(taken), heads = VALUES(heads), waiting = VALUES(waiting), turn = VALUES(turn),
idle_turn = NULL;

-- name: stray_members
SELECT t.id FROM penstock_task t LEFT JOIN penstock_group g ON g.no = t.group_no AND g.tube = t.tube
WHERE t.tube = %s AND t.group_no IS NOT NULL AND g.no IS NULL ORDER BY t.id;

-- name: free_strays
-- What waited for the start of a group that is not there is ready when the clock is next looked at.
UPDATE penstock_task t LEFT JOIN penstock_group g ON g.no = t.group_no AND g.tube = t.tube
LEFT JOIN penstock_member m FORCE INDEX (PRIMARY)
ON m.group_no = t.group_no AND m.id = t.id
SET t.at = IF(t.state = 'g', %s, t.at), t.state = IF(t.state = 'g', '~', t.state), t.group_no = NULL, t.group_name = NULL
WHERE t.tube = %s AND t.group_no IS NOT NULL AND g.no IS NULL;

-- name: wrong_addresses
-- Tasks and rows of penstock_address that do not name each other. The key is forced here and below: where the server
-- does not know yet how large a table has become, it reads all of it for each row of the other.
SELECT t.id, t.address FROM penstock_task t LEFT JOIN penstock_address a FORCE INDEX (PRIMARY)
ON a.tube = t.tube AND a.address = t.address
WHERE t.tube = %s AND t.address IS NOT NULL AND NOT a.id <=> t.id
UNION ALL SELECT a.id, a.address FROM penstock_address a LEFT JOIN penstock_task t FORCE INDEX (PRIMARY)
ON t.tube = a.tube AND t.id = a.id
WHERE a.tube = %s AND NOT t.address <=> a.address;

-- name: forget_wrong_addresses
DELETE a FROM penstock_address a LEFT JOIN penstock_task t FORCE INDEX (PRIMARY)
ON t.tube = a.tube AND t.id = a.id
WHERE a.tube = %s AND NOT t.address <=> a.address;

-- name: set_addresses
INSERT IGNORE INTO penstock_address (tube, address, id)
SELECT tube, address, id FROM penstock_task WHERE tube = %s AND address IS NOT NULL;

-- name: early_outcomes
SELECT o.id FROM penstock_outcome o STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY)
ON t.tube = o.tube AND t.id = o.id WHERE o.tube = %s;

-- name: forget_early_outcomes
DELETE o FROM penstock_outcome o STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY)
ON t.tube = o.tube AND t.id = o.id WHERE o.tube = %s;

-- name: all_groups
SELECT $group FROM penstock_group WHERE tube = %s ORDER BY no FOR UPDATE;

-- name: recount_groups
SELECT group_no, state, COUNT(*) FROM penstock_task WHERE tube = %s AND group_no IS NOT NULL GROUP BY group_no, state;

-- name: wrong_members
-- Members and tasks of a group that do not name each other.
SELECT COUNT(*) FROM (
SELECT t.id FROM penstock_task t LEFT JOIN penstock_member m FORCE INDEX (PRIMARY)
ON m.group_no = t.group_no AND m.id = t.id
WHERE t.tube = %s AND t.group_no = %s
AND NOT (m.waits <=> (t.state = 'g') AND (m.waits = 0 OR (m.rank1 = t.rank1 AND m.rank2 = t.rank2)))
UNION ALL SELECT m.id FROM penstock_member m LEFT JOIN penstock_task t FORCE INDEX (PRIMARY)
ON t.tube = %s AND t.id = m.id
WHERE m.group_no = %s AND NOT t.group_no <=> m.group_no
) wrong;

-- name: forget_members
DELETE FROM penstock_member WHERE group_no = %s;

-- name: set_members
INSERT INTO penstock_member (group_no, id, waits, rank1, rank2)
SELECT group_no, id, state = 'g', rank1, rank2 FROM penstock_task WHERE tube = %s AND group_no = %s;

-- name: hold_back
-- Tasks that can be taken before their group is started; their micro-queues are mended after them.
UPDATE penstock_task SET state = 'g', lane_state = NULL WHERE tube = %s AND group_no = %s AND state IN ('r', 'q', '~');

-- name: mend_group
UPDATE penstock_group SET state = %s, live = %s, total = %s, remaining = %s, moving = %s, until = %s WHERE no = %s;

-- name: is_marked
SELECT moving, EXISTS (SELECT 1 FROM penstock_group WHERE tube = b.no AND moving = 1) FROM penstock_tube b WHERE no = %s;

-- name: mark
UPDATE penstock_tube SET moving = 1 WHERE no = %s;

-- name: stray_waiting
SELECT DISTINCT w.handle, b.name FROM penstock_waiter w LEFT JOIN penstock_handle h ON h.id = w.handle
LEFT JOIN penstock_tube b ON b.no = w.tube WHERE h.id IS NULL;

-- name: forget_waiting_handle
DELETE FROM penstock_waiter WHERE handle = %s;

-- moving

-- name: hidden_tube
SELECT no, COALESCE(name, old_name), kind, options FROM penstock_tube
WHERE name = CONCAT('<', %s) OR (name IS NULL AND old_name = CONCAT('>', %s));

-- name: sealed_tubes
SELECT no, old_name, kind, options FROM penstock_tube WHERE name IS NULL AND LEFT(old_name, 1) = '>' ORDER BY old_name;

-- name: set_options
UPDATE penstock_tube SET options = %s WHERE no = %s;

-- name: any_following
SELECT 1 FROM penstock_group WHERE tube = %s AND moving = 1 LIMIT 1;

-- name: seal_tube
UPDATE penstock_tube SET name = NULL, old_name = %s, options = %s WHERE no = %s;

-- name: seal_id
UPDATE penstock_id SET tube = 4294967295 - tube WHERE tube = %s;

-- name: rename_tube
UPDATE penstock_tube SET name = %s WHERE no = %s;

-- name: lock_id
SELECT last FROM penstock_id WHERE tube = %s FOR UPDATE;

-- name: set_last
UPDATE penstock_id SET last = %s WHERE tube = %s;

-- name: tally
SELECT last, last_ms, last_seq, IFNULL((SELECT last FROM penstock_serial WHERE tube = %s), 0) FROM penstock_id
WHERE tube IN (%s, 4294967295 - %s);

-- name: read_tasks
-- the primary key, in order
SELECT record, data FROM penstock_record WHERE tube = %s AND id > %s ORDER BY id LIMIT %s;

-- name: read_groups
SELECT $group FROM penstock_group WHERE tube = %s AND no > %s AND state IN ('open', 'started', 'cancelling')
ORDER BY no LIMIT %s;

-- name: read_outcomes
-- the primary key, in order
SELECT id, address, status, result, error, code, until FROM penstock_outcome WHERE tube = %s AND id > %s
ORDER BY id LIMIT %s;

-- name: erase_tasks
DELETE FROM penstock_task WHERE tube = %s ORDER BY id LIMIT %s;

-- name: erase_addresses
DELETE FROM penstock_address WHERE tube = %s LIMIT %s;

-- name: erase_members
DELETE m FROM penstock_member m JOIN penstock_group g ON g.no = m.group_no WHERE g.tube = %s;

-- name: adopt_outcome
REPLACE INTO penstock_outcome (tube, id, address, status, result, error, code, until)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s);

-- name: adopt_members
UPDATE penstock_group SET total = total + %s, remaining = remaining + %s WHERE no = %s;

-- name: adopt_counts
UPDATE penstock_counter SET taken = taken + %s, delayed_tasks = delayed_tasks + %s, buried = buried + %s,
done = done + %s, delay_calls = delay_calls - %s WHERE tube = %s;

-- name: land_counts
UPDATE penstock_counter SET take_calls = take_calls + %s, ack_calls = ack_calls + %s,
release_calls = release_calls + %s, delete_calls = delete_calls + %s, bury_calls = bury_calls + %s,
kick_calls = kick_calls + %s, touch_calls = touch_calls + %s, ttl_calls = ttl_calls + %s, ttr_calls = ttr_calls + %s,
delay_calls = delay_calls + %s, fail_calls = fail_calls + %s WHERE tube = %s;

-- name: land_mark
UPDATE penstock_id SET last_ms = %s, last_seq = %s WHERE tube = %s AND (last_ms, last_seq) < (%s, %s);

-- name: land_serial
INSERT INTO penstock_serial (tube, last) VALUES (%s, %s) ON DUPLICATE KEY UPDATE last = GREATEST(last, VALUES(last));

-- name: set_group_total
UPDATE penstock_group SET total = %s WHERE no = %s;
