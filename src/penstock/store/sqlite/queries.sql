-- Everything the SQLite store asks. A task's key is tube << 40 | id. Hot queries name their index;
-- tests/plans holds them to it.

-- fragment: record
key & 1099511627775, state, rank1, rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr,
max_attempts, owner, reason, callback, data, address, reply_to, group_name, group_no, progress

-- fragment: leased
-- A ready task as it is once session ?5 has it at ?3.
key & 1099511627775, 't', rank1, rank2, pri, utube, attempts + 1, lease + 1, created, ?3, expires, ?3 + ttr, ttr,
max_attempts, ?5, reason, callback, data, address, reply_to, group_name, group_no

-- fragment: group
no, name, state, total, remaining, end_work, cancel_work, moving, until

-- name: get_meta
SELECT value FROM penstock_meta WHERE name = ?1;

-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2;

-- name: has_meta
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'penstock_meta';

-- tubes

-- name: add_tube
INSERT INTO penstock_tube (name, kind, options) VALUES (?1, ?2, ?3) RETURNING no;

-- name: add_counter
INSERT INTO penstock_counter (tube) VALUES (?1);

-- name: get_tube
SELECT no, name, kind, options FROM penstock_tube WHERE name = ?1;

-- name: all_tubes
-- Without those that are arriving or gone.
SELECT no, name, kind, options FROM penstock_tube
WHERE name IS NOT NULL AND substr(name, 1, 1) NOT IN ('<', '>') ORDER BY name;

-- name: tube_by_no
SELECT no, name, kind, options FROM penstock_tube WHERE no = ?1 AND name IS NOT NULL;

-- name: is_paused
SELECT paused FROM penstock_tube WHERE no = ?1 AND name IS NOT NULL;

-- name: set_paused
UPDATE penstock_tube SET paused = ?2 WHERE no = ?1 AND name IS NOT NULL RETURNING no;

-- name: hide_tube
UPDATE penstock_tube SET name = NULL, old_name = name WHERE no = ?1;

-- name: hidden_tubes
SELECT no, old_name FROM penstock_tube WHERE name IS NULL;

-- name: forget_tube
DELETE FROM penstock_tube WHERE no = ?1;

-- name: forget_counter
DELETE FROM penstock_counter WHERE tube = ?1;

-- name: forget_lanes
DELETE FROM penstock_lane WHERE tube = ?1;

-- name: forget_outcomes
DELETE FROM penstock_outcome WHERE tube = ?1;

-- name: forget_groups
DELETE FROM penstock_group WHERE tube = ?1;

-- name: replies_in_range
-- Of a page of a dropped tube's tasks.
SELECT $record FROM penstock_task WHERE key BETWEEN ?1 AND ?2 AND reply_to IS NOT NULL AND reply_to IS NOT ?3
ORDER BY key;

-- name: forget_waiting_tube
DELETE FROM penstock_waiting WHERE tube = ?1;

-- counters

-- name: newest
-- The last id given, as its floor and the newest task's key (which may be another tube's): two seeks.
SELECT last_id, (SELECT key FROM penstock_task WHERE key < ?2 ORDER BY key DESC LIMIT 1)
FROM penstock_counter WHERE tube = ?1;

-- name: bump
UPDATE penstock_counter
SET last_id = max(last_id, ?2), taken = taken + ?3, delayed = delayed + ?4, buried = buried + ?5, done = done + ?6,
take_calls = take_calls + ?7, ack_calls = ack_calls + ?8, release_calls = release_calls + ?9,
delete_calls = delete_calls + ?10, bury_calls = bury_calls + ?11, kick_calls = kick_calls + ?12,
touch_calls = touch_calls + ?13, ttl_calls = ttl_calls + ?14, ttr_calls = ttr_calls + ?15,
delay_calls = delay_calls + ?16, fail_calls = fail_calls + ?17
WHERE tube = ?1 RETURNING tube;

-- name: bump_take
UPDATE penstock_counter SET taken = taken + ?2, take_calls = take_calls + ?2 WHERE tube = ?1;

-- name: bump_ack
UPDATE penstock_counter
SET last_id = max(last_id, ?3), taken = taken - ?2, done = done + ?2, ack_calls = ack_calls + ?2 WHERE tube = ?1;

-- name: counts
SELECT taken, delayed, buried, done, take_calls, ack_calls, release_calls, delete_calls, bury_calls, kick_calls,
touch_calls, ttl_calls, ttr_calls, delay_calls, fail_calls FROM penstock_counter WHERE tube = ?1;

-- name: tube_lives
SELECT 1 FROM penstock_counter WHERE tube = ?1;

-- tasks

-- name: insert
INSERT INTO penstock_task (key, tube, state, rank1, rank2, pri, utube, attempts, lease, created, expires, at, ttr,
max_attempts, callback, data) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?);

-- fragment: moment
coalesce(?3, CAST(round(unixepoch('subsec') * 1000) AS INTEGER))

-- name: put_one
-- A plain task in one statement, which is its own transaction. The clock is read when the lock is held, unless ?3
-- gives the moment. A key that is no number, and so refused: the tube is gone, or its ids are used up.
INSERT INTO penstock_task (key, tube, state, rank1, rank2, pri, attempts, lease, created, expires, at, ttr,
max_attempts, callback, data)
VALUES (coalesce((SELECT nullif(max(last_id + (?1 << 40),
    coalesce((SELECT key FROM penstock_task WHERE key < ?2 ORDER BY key DESC LIMIT 1), 0)) + 1, ?2)
    FROM penstock_counter WHERE tube = ?1), 'none'), ?1, 'r', ?4, ?5, ?6, 0, 0, $moment,
    iif(?7 IS NULL, NULL, $moment + ?7), iif(?7 IS NULL, NULL, $moment + ?7), ?8, ?9, ?10, ?11)
RETURNING key, created;

-- name: insert_linked
INSERT INTO penstock_task (key, tube, state, rank1, rank2, pri, utube, attempts, lease, created, expires, at, ttr,
max_attempts, callback, data, address, reply_to, group_name, group_no)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: look
-- Before a take: is anything due (penstock_timer), has a session lapsed, does the caller's live, is it paused, must
-- tasks follow their group.
SELECT (SELECT at FROM penstock_task WHERE tube = ?1 AND at IS NOT NULL ORDER BY at LIMIT 1),
(SELECT min(until) FROM penstock_handle),
(SELECT min(until) FROM penstock_session WHERE until IS NOT NULL),
(SELECT session FROM penstock_handle WHERE id = ?2), paused, moving
FROM penstock_tube WHERE no = ?1 AND name IS NOT NULL;

-- name: due
SELECT $record FROM penstock_task WHERE tube = ?1 AND at IS NOT NULL AND at <= ?2 ORDER BY at, key LIMIT ?3;

-- name: ready
-- penstock_ready, in order; an expired one that advance has not reached yet is passed over.
SELECT $record FROM penstock_task
WHERE tube = ?1 AND state = 'r' AND rank1 <= ?2 AND (expires IS NULL OR expires > ?3)
ORDER BY rank1, rank2, key LIMIT ?4;

-- name: to_lease
-- The same, of a leased kind.
SELECT $leased FROM penstock_task
WHERE tube = ?1 AND state = 'r' AND rank1 <= ?2 AND (expires IS NULL OR expires > ?3)
ORDER BY rank1, rank2, key LIMIT ?4;

-- name: to_lease_not_cancelled
-- The same, while tasks of cancelled groups are still to be removed.
SELECT $leased FROM penstock_task
WHERE tube = ?1 AND state = 'r' AND rank1 <= ?2 AND (expires IS NULL OR expires > ?3) AND (group_no IS NULL
OR group_no NOT IN (SELECT no FROM penstock_group WHERE tube = ?1 AND moving = 1 AND state = 'cancelling'))
ORDER BY rank1, rank2, key LIMIT ?4;

-- name: lease
UPDATE penstock_task SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = ?2, at = ?2 + ttr, owner = ?3,
progress = NULL WHERE key = ?1;

-- name: lease_many
UPDATE penstock_task SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = ?2, at = ?2 + ttr, owner = ?3,
progress = NULL WHERE key IN (SELECT value FROM json_each(?1));

-- fragment: acked
-- What session ?2 holds at ?4 and is tied to nothing; a lease of NULL is any.
state = 't' AND owner = ?2 AND (?3 IS NULL OR lease = ?3) AND (at IS NULL OR at > ?4) AND address IS NULL
AND reply_to IS NULL AND group_no IS NULL

-- name: ack_one
DELETE FROM penstock_task WHERE key = ?1 AND $acked;

-- name: ack_laned
-- The same, of a micro-queue.
DELETE FROM penstock_task WHERE key = ?1 AND $acked RETURNING utube;

-- name: ack_many
-- By the primary key.
DELETE FROM penstock_task WHERE key IN (SELECT value FROM json_each(?1)) AND $acked
RETURNING key & 1099511627775, utube;

-- name: record
SELECT $record FROM penstock_task WHERE key = ?1;

-- name: change
UPDATE penstock_task SET state = ?2, rank2 = ?3, expires = ?4, at = ?5, attempts = ?6, owner = ?7, reason = ?8,
progress = NULL WHERE key = ?1;

-- name: touch
UPDATE penstock_task SET at = ?2, progress = ?3 WHERE key = ?1;

-- name: delete
DELETE FROM penstock_task WHERE key = ?1;

-- name: buried
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = '!' ORDER BY rank1, rank2, key LIMIT ?2;

-- name: taken
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't' ORDER BY key;

-- name: held
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't' AND owner = ?2 ORDER BY key;

-- name: held_ids
SELECT key & 1099511627775 FROM penstock_task WHERE tube = ?1 AND state = 't' AND owner = ?2 ORDER BY key;

-- name: any_taken
SELECT 1 FROM penstock_task WHERE tube = ?1 AND state = 't' LIMIT 1;

-- name: page_keys
SELECT key FROM penstock_task WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?3;

-- name: delete_range
DELETE FROM penstock_task WHERE key BETWEEN ?1 AND ?2;

-- name: page
SELECT $record FROM penstock_task WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3;

-- name: find_all
SELECT $record FROM penstock_task
WHERE key > ?1 AND key <= ?2 AND (state = 't' OR expires IS NULL OR expires > ?3) AND +tube = ?5 ORDER BY key LIMIT ?4;

-- name: find_ready
SELECT $record FROM penstock_task
WHERE key > ?1 AND key <= ?2 AND (state = 'r' OR state = 'q') AND (expires IS NULL OR expires > ?3)
AND +tube = ?5 ORDER BY key LIMIT ?4;

-- name: find_taken
-- penstock_aside; sorted, but never more than there are leases. The + keep it from walking the tube in key order,
-- which it chooses once the application that owns the file has run ANALYZE.
SELECT $record FROM penstock_task WHERE tube = ?5 AND state = 't' AND +key > ?1 AND +key <= ?2 AND ?3 = ?3
ORDER BY +key LIMIT ?4;

-- name: find_delivered
-- penstock_aside, in order: no owner, and so no lease.
SELECT $record FROM penstock_task
WHERE tube = ?5 AND state = 't' AND owner IS NULL AND key > ?1 AND key <= ?2 AND ?3 = ?3 ORDER BY key LIMIT ?4;

-- name: find_delayed
-- penstock_aside, in order: no owner.
SELECT $record FROM penstock_task
WHERE tube = ?5 AND state = '~' AND owner IS NULL AND key > ?1 AND key <= ?2 AND (expires IS NULL OR expires > ?3)
ORDER BY key LIMIT ?4;

-- name: find_buried
-- penstock_aside, in order: no owner.
SELECT $record FROM penstock_task
WHERE tube = ?5 AND state = '!' AND owner IS NULL AND key > ?1 AND key <= ?2 AND (expires IS NULL OR expires > ?3)
ORDER BY key LIMIT ?4;

-- name: find_unstarted
-- penstock_unstarted_ids, in order.
SELECT $record FROM penstock_task
WHERE tube = ?5 AND state = 'g' AND key > ?1 AND key <= ?2 AND (expires IS NULL OR expires > ?3)
ORDER BY key LIMIT ?4;

-- name: ahead
SELECT count(*) FROM (SELECT 1 FROM penstock_task WHERE tube = ?1 AND state = 'r'
AND (rank1, rank2, key) < (?2, ?3, ?4) LIMIT 1000);

-- unleased kinds

-- name: set_clock
UPDATE penstock_task SET rank1 = ?2, taken = ?2, attempts = attempts + 1 WHERE key = ?1;

-- name: first_rank
-- penstock_ready
SELECT rank1 FROM penstock_task WHERE tube = ?1 AND state = 'r' ORDER BY rank1, rank2, key LIMIT 1;

-- name: deliver
UPDATE penstock_task SET state = 't', rank1 = ?2, taken = ?3, attempts = attempts + 1 WHERE key = ?1;

-- name: bump_hand_outs
-- The number of hand-outs is also the serial of the last one.
UPDATE penstock_counter SET taken = taken + ?2, take_calls = take_calls + ?3 WHERE tube = ?1 RETURNING take_calls;

-- name: next_marks
UPDATE penstock_counter SET last_seq = CASE WHEN ?2 > last_ms THEN ?3 ELSE last_seq + ?3 END,
last_ms = max(last_ms, ?2) WHERE tube = ?1 RETURNING last_ms, last_seq;

-- name: ack_named
-- penstock_address
DELETE FROM penstock_task
WHERE tube = ?1 AND address IN (SELECT value FROM json_each(?2)) AND state = 't' AND owner IS NULL
RETURNING address, key & 1099511627775;

-- name: undelivered
-- penstock_ready
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 'r' ORDER BY rank1, rank2, key LIMIT ?2 OFFSET ?3;

-- name: undelivered_back
-- penstock_ready
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 'r'
ORDER BY rank1 DESC, rank2 DESC, key DESC LIMIT ?2 OFFSET ?3;

-- name: delivered
-- penstock_delivered
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't' AND owner IS NULL
ORDER BY rank1, key LIMIT ?2 OFFSET ?3;

-- name: delivered_back
-- penstock_delivered
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't' AND owner IS NULL
ORDER BY rank1 DESC, key DESC LIMIT ?2 OFFSET ?3;

-- addresses and outcomes

-- name: by_address
-- penstock_address
SELECT $record FROM penstock_task WHERE tube = ?1 AND address = ?2;

-- name: address_id
SELECT key & 1099511627775 FROM penstock_task WHERE tube = ?1 AND address = ?2;

-- name: has_task
SELECT 1 FROM penstock_task WHERE key = ?1;

-- name: replace
UPDATE penstock_task
SET state = ?2, rank1 = ?3, rank2 = ?4, pri = ?5, created = ?6, expires = ?7, at = ?8, data = ?9 WHERE key = ?1;

-- name: keep_outcome
INSERT INTO penstock_outcome (key, tube, address, status, result, error, code, until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: supersede_outcome
-- penstock_outcome_address; the + keeps it from penstock_outcome_until, which holds the whole tube's.
UPDATE penstock_outcome SET until = ?3 WHERE tube = ?1 AND address = ?2 AND +until > ?3;

-- name: outcome
SELECT status, result, error, code FROM penstock_outcome WHERE key = ?1 AND until > ?2;

-- name: last_outcome
-- penstock_outcome_address, in key order
SELECT status, result, error, code FROM penstock_outcome
WHERE tube = ?1 AND address = ?2 AND +until > ?3 ORDER BY key DESC LIMIT 1;

-- name: sweep_outcomes
-- penstock_outcome_until
DELETE FROM penstock_outcome WHERE key IN
(SELECT key FROM penstock_outcome WHERE tube = ?1 AND until <= ?2 ORDER BY until LIMIT ?3);

-- groups

-- name: group
SELECT $group FROM penstock_group WHERE no = ?1 AND tube = ?2;

-- name: live_group
-- penstock_live_group
SELECT $group FROM penstock_group WHERE tube = ?1 AND name = ?2 AND (state = 'open' OR state = 'started');

-- name: live_groups
-- penstock_live_group, in order
SELECT $group FROM penstock_group WHERE tube = ?1 AND name > ?2 AND (state = 'open' OR state = 'started')
ORDER BY name LIMIT ?3;

-- name: add_group
INSERT INTO penstock_group (tube, name, state, total, remaining, moving) VALUES (?1, ?2, 'open', 0, 0, 0)
RETURNING no;

-- name: save_group
UPDATE penstock_group SET state = ?2, total = ?3, remaining = ?4, end_work = ?5, cancel_work = ?6, moving = ?7,
until = ?8 WHERE no = ?1;

-- name: note_moving
UPDATE penstock_tube SET moving = EXISTS (SELECT 1 FROM penstock_group WHERE tube = ?1 AND moving = 1)
WHERE no = ?1;

-- name: moving_groups
-- penstock_moving_group
SELECT $group FROM penstock_group WHERE tube = ?1 AND moving = 1 ORDER BY no;

-- name: unstarted
-- penstock_unstarted, in take order
SELECT $record FROM penstock_task WHERE group_no = ?1 AND state = 'g' ORDER BY rank1, rank2, key LIMIT ?2;

-- name: member_ids
-- penstock_grouped
SELECT key & 1099511627775 FROM penstock_task WHERE group_no = ?1 ORDER BY key LIMIT ?2;

-- name: sweep_groups
-- penstock_over_group
DELETE FROM penstock_group WHERE no IN
(SELECT no FROM penstock_group WHERE tube = ?1 AND until IS NOT NULL AND until <= ?2 ORDER BY until LIMIT ?3);

-- micro-queues

-- name: lane
SELECT taken, heads, waiting, turn FROM penstock_lane WHERE tube = ?1 AND utube = ?2;

-- name: save_lane
INSERT INTO penstock_lane (tube, utube, taken, heads, waiting, turn) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (tube, utube) DO UPDATE SET taken = ?3, heads = ?4, waiting = ?5, turn = ?6;

-- name: set_lane
UPDATE penstock_lane SET taken = ?3, heads = ?4, waiting = ?5, turn = ?6 WHERE tube = ?1 AND utube = ?2;

-- name: shift_lane
UPDATE penstock_lane SET taken = taken + ?3, heads = heads + ?4, waiting = waiting + ?5 WHERE tube = ?1 AND utube = ?2;

-- name: forget_lane
DELETE FROM penstock_lane WHERE tube = ?1 AND utube = ?2;

-- name: forget_idle_lanes
DELETE FROM penstock_lane WHERE (tube, utube) IN (SELECT tube, utube FROM penstock_lane
WHERE tube = ?1 AND taken = 0 AND heads = 0 AND waiting = 0 AND turn < ?2 LIMIT 100) RETURNING utube;

-- name: first_waiting
-- penstock_laned
SELECT key, rank1, rank2 FROM penstock_task
WHERE tube = ?1 AND utube = ?2 AND state = 'q' ORDER BY rank1, rank2, key LIMIT 1;

-- name: worst_head
-- penstock_laned
SELECT key, rank1, rank2 FROM penstock_task
WHERE tube = ?1 AND utube = ?2 AND state = 'r' ORDER BY rank1 DESC, rank2 DESC, key DESC LIMIT 1;

-- name: promote_first
-- penstock_laned
UPDATE penstock_task SET state = 'r' WHERE key = (SELECT key FROM penstock_task
WHERE tube = ?1 AND utube = ?2 AND state = 'q' ORDER BY rank1, rank2, key LIMIT 1);

-- name: set_head
UPDATE penstock_task SET state = ?2, rank2 = ?3 WHERE key = ?1;

-- name: turn_heads
UPDATE penstock_task SET rank2 = ?3 WHERE tube = ?1 AND utube = ?2 AND state = 'r';

-- name: lane_holders
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't' AND utube = ?2 ORDER BY taken, key LIMIT ?3;

-- sessions

-- name: add_session
INSERT INTO penstock_session (id, ttr) VALUES (?1, ?2) RETURNING no;

-- name: get_session
SELECT no, id, ttr, until FROM penstock_session WHERE id = ?1;

-- name: session_by_no
SELECT no, id, ttr, until FROM penstock_session WHERE no = ?1;

-- name: all_sessions
SELECT no, id, ttr, until FROM penstock_session ORDER BY no;

-- name: ended_sessions
SELECT no FROM penstock_session WHERE until IS NOT NULL AND until <= ?1;

-- name: set_until
UPDATE penstock_session SET until = ?2 WHERE no = ?1;

-- name: linger
UPDATE penstock_session SET until = ?2, host = ?3, pid = ?4, beat = ?5 WHERE no = ?1;

-- name: forget_session
DELETE FROM penstock_session WHERE no = ?1;

-- name: add_handle
INSERT INTO penstock_handle (id, session, host, pid, locus, beat, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: get_handle
SELECT session FROM penstock_handle WHERE id = ?1;

-- name: get_locus
SELECT session, locus FROM penstock_handle WHERE id = ?1;

-- name: beat
UPDATE penstock_handle SET beat = ?2, until = ?3 WHERE id = ?1 AND until > ?2 RETURNING id;

-- name: lapsed_handles
SELECT id, session, until FROM penstock_handle WHERE until <= ?1 ORDER BY until, id;

-- name: forget_handle
DELETE FROM penstock_handle WHERE id = ?1 RETURNING host, pid, beat;

-- name: last_lapse
SELECT coalesce(max(until), 0) FROM penstock_handle WHERE session = ?1;

-- name: has_handles
SELECT 1 FROM penstock_handle WHERE session = ?1 LIMIT 1;

-- name: session_presence
-- Also of a handle that has lapsed and was not let go yet, while its session can still be joined.
SELECT host, pid, beat FROM penstock_handle
WHERE session = ?1 AND until + (SELECT ttr FROM penstock_session WHERE no = ?1) > ?2
UNION ALL SELECT host, pid, beat FROM penstock_session WHERE no = ?1 AND until > ?2
ORDER BY beat DESC LIMIT 1;

-- name: add_waiting
INSERT INTO penstock_waiting (handle, tube, takes) VALUES (?1, ?2, 1)
ON CONFLICT (handle, tube) DO UPDATE SET takes = takes + 1;

-- name: drop_waiting
UPDATE penstock_waiting SET takes = takes - 1 WHERE handle = ?1 AND tube = ?2;

-- name: forget_done_waiting
DELETE FROM penstock_waiting WHERE handle = ?1 AND tube = ?2 AND takes <= 0;

-- name: forget_waiting_handle
DELETE FROM penstock_waiting WHERE handle = ?1;

-- name: any_waiting
SELECT 1 FROM penstock_waiting WHERE tube = ?1 LIMIT 1;

-- name: waits_of
SELECT DISTINCT penstock_tube.name FROM penstock_waiting
JOIN penstock_handle ON penstock_handle.id = penstock_waiting.handle
JOIN penstock_tube ON penstock_tube.no = penstock_waiting.tube
WHERE penstock_handle.session = ?1 AND penstock_tube.name IS NOT NULL ORDER BY 1;

-- check

-- name: recount
SELECT state, count(*) FROM penstock_task WHERE tube = ?1 GROUP BY state;

-- name: set_counts
UPDATE penstock_counter SET taken = ?2, delayed = ?3, buried = ?4, done = ?5 WHERE tube = ?1;

-- name: stranded
-- core/soundness.py has what this means.
SELECT $record FROM penstock_task WHERE tube = ?1 AND (state NOT IN ('r', 'q', 't', '~', '!', 'g')
OR (state = 'q' AND utube IS NULL) OR (state = '~' AND at IS NULL) OR (state = 'g' AND group_no IS NULL)) ORDER BY key;

-- name: make_ready
UPDATE penstock_task SET state = 'r', owner = NULL, at = expires WHERE key = ?1;

-- name: orphans
SELECT $record FROM penstock_task WHERE tube = ?1 AND state = 't'
AND (owner IS NULL OR owner NOT IN (SELECT no FROM penstock_session));

-- name: unsound
-- What cannot be in a tube of an unleased kind.
SELECT $record FROM penstock_task WHERE tube = ?1 AND (owner IS NOT NULL OR (state <> 'r' AND (?2 OR state <> 't'))
OR (state = 'r' AND rank1 <> CASE WHEN ?2 THEN coalesce(taken, 0) ELSE 0 END)) ORDER BY key;

-- name: newest_record
SELECT $record FROM penstock_task WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1;

-- name: mend
UPDATE penstock_task SET state = ?2, rank1 = ?3, owner = ?4 WHERE key = ?1;

-- name: last_mark
SELECT last_ms, last_seq FROM penstock_counter WHERE tube = ?1;

-- name: set_last_mark
UPDATE penstock_counter SET last_ms = ?2, last_seq = ?3 WHERE tube = ?1;

-- name: true_lanes
SELECT utube, sum(state = 't'), sum(state = 'r'), sum(state = 'q') FROM penstock_task
WHERE tube = ?1 AND utube IS NOT NULL AND (state = 't' OR state = 'r' OR state = 'q') GROUP BY utube;

-- name: stored_lanes
SELECT utube, taken, heads, waiting, turn FROM penstock_lane WHERE tube = ?1;

-- name: lane_order
SELECT key, state, rank1, rank2 FROM penstock_task
WHERE tube = ?1 AND utube = ?2 AND (state = 'r' OR state = 'q') ORDER BY rank1, key;

-- name: stray_waiting
SELECT handle, tube FROM penstock_waiting WHERE handle NOT IN (SELECT id FROM penstock_handle);

-- name: all_groups
SELECT $group FROM penstock_group WHERE tube = ?1 ORDER BY no;

-- name: recount_group
SELECT state, count(*) FROM penstock_task WHERE group_no = ?1 GROUP BY state;

-- name: early_members
SELECT $record FROM penstock_task WHERE group_no = ?1 AND (state = 'r' OR state = 'q' OR state = '~') ORDER BY key;

-- name: stray_members
SELECT key & 1099511627775 FROM penstock_task WHERE tube = ?1 AND group_no IS NOT NULL
AND group_no NOT IN (SELECT no FROM penstock_group WHERE tube = ?1) ORDER BY key;

-- name: free_strays
-- What waited for the start of a group that is not there is ready when the clock is next looked at.
UPDATE penstock_task SET at = CASE state WHEN 'g' THEN ?2 ELSE at END,
state = CASE state WHEN 'g' THEN '~' ELSE state END, group_no = NULL, group_name = NULL
WHERE tube = ?1 AND group_no IS NOT NULL AND group_no NOT IN (SELECT no FROM penstock_group WHERE tube = ?1);

-- name: early_outcomes
SELECT key & 1099511627775 FROM penstock_outcome WHERE tube = ?1 AND key IN (SELECT key FROM penstock_task)
ORDER BY key;

-- name: forget_early_outcomes
DELETE FROM penstock_outcome WHERE tube = ?1 AND key IN (SELECT key FROM penstock_task);

-- name: check_moving
SELECT moving, EXISTS (SELECT 1 FROM penstock_group WHERE tube = ?1 AND moving = 1)
FROM penstock_tube WHERE no = ?1;

-- moving; a sealed tube's row and counters have its number with a minus, so that no step finds them

-- name: hidden_tube
SELECT no, name, kind, options FROM penstock_tube WHERE name = '<' || ?1 OR name = '>' || ?1;

-- name: sealed_tubes
SELECT no, name, kind, options FROM penstock_tube WHERE name >= '>' AND name < '?' ORDER BY name;

-- name: set_options
UPDATE penstock_tube SET options = ?2 WHERE no = ?1;

-- name: any_following
SELECT 1 FROM penstock_group WHERE tube = ?1 AND moving = 1;

-- name: seal_tube
UPDATE penstock_tube SET no = -no, name = ?2, options = ?3 WHERE no = ?1;

-- name: seal_counter
UPDATE penstock_counter SET tube = -tube WHERE tube = ?1 RETURNING tube;

-- name: rename_tube
UPDATE penstock_tube SET name = ?2 WHERE no = ?1;

-- name: read_groups
SELECT $group FROM penstock_group
WHERE tube = ?1 AND no > ?2 AND state IN ('open', 'started', 'cancelling') ORDER BY no LIMIT ?3;

-- name: read_outcomes
SELECT key & 1099511627775, address, status, result, error, code, until FROM penstock_outcome
WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3;

-- name: adopt
INSERT INTO penstock_task (key, tube, state, rank1, rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr,
max_attempts, owner, reason, callback, data, address, reply_to, group_name, group_no, progress)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: adopt_outcome
INSERT OR REPLACE INTO penstock_outcome (key, tube, address, status, result, error, code, until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: adopt_members
UPDATE penstock_group SET total = total + ?2, remaining = remaining + ?2 WHERE no = ?1;

-- name: set_group_total
UPDATE penstock_group SET total = ?2 WHERE no = ?1;
