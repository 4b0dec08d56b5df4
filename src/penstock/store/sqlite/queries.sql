-- Queries of the SQLite store only; the others are in store/sql/queries.sql. Hot queries have numbered parameters,
-- which cost less than named ones. tests/plans checks the index that each query uses.

-- fragment: now
:now
-- fragment: in_ids
IN (SELECT value FROM json_each(:ids))
-- fragment: in_texts
IN (SELECT value FROM json_each(:texts))
-- fragment: key
-- Without the +, queries scan the whole tube once the application that owns the file has run ANALYZE.
+pk
-- fragment: first_moment
(SELECT k.at FROM penstock_task k WHERE k.tube = t.no AND k.at IS NOT NULL ORDER BY k.at LIMIT 1)
-- name: get_meta
SELECT value FROM penstock_meta WHERE name = ?1;
-- name: has_meta
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'penstock_meta';

-- tubes and counters

-- name: add_tube
INSERT INTO penstock_tube (name, kind, options) VALUES (:name, :kind, :options) ON CONFLICT DO NOTHING;
-- name: add_counter
INSERT INTO penstock_counter (tube) VALUES (:tube);
-- fragment: last
-- The last id given: last_id, or the newest task's if that is higher (its pk may belong to another tube). Two seeks.
max(last_id, coalesce((SELECT pk FROM penstock_task WHERE pk < abs(c.tube) + 1 << 40 ORDER BY pk DESC LIMIT 1), 0)
- (abs(c.tube) << 40))
-- name: last_id
SELECT $last FROM penstock_counter c WHERE tube = ?1;
-- name: counters
SELECT tube, $last, last_ms, last_seq, (SELECT paused FROM penstock_tube WHERE no = c.tube), $counters
FROM json_each(:ids) CROSS JOIN penstock_counter c WHERE tube = value;
-- name: count_hand_outs
-- The number of hand-outs is also the serial of the last one.
UPDATE penstock_counter SET taken = taken + ?2, take_calls = take_calls + ?3 WHERE tube = ?1 RETURNING take_calls;
-- name: next_marks
UPDATE penstock_counter SET last_seq = CASE WHEN ?2 > last_ms THEN ?3 ELSE last_seq + ?3 END,
last_ms = max(last_ms, ?2) WHERE tube = ?1 RETURNING last_ms, last_seq;
-- name: set_mark
UPDATE penstock_counter SET last_ms = :ms, last_seq = :seq WHERE tube = :tube;

-- put

-- fragment: moment
CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
-- name: put_one
-- Puts a plain task in one statement, which is its own transaction and reads the clock while it holds the lock. If the
-- tube is gone or its ids are used up, the pk is not a number, and the statement fails.
INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, created, expires, at, ttr, extra, data)
VALUES (coalesce((SELECT nullif($last + 1 + (?1 << 40), ?2) FROM penstock_counter c WHERE tube = ?1), 'none'),
    ?1, 'r', ?3, ?4, ?5, $moment, iif(?6 IS NULL, NULL, $moment + ?6), iif(?6 IS NULL, NULL, $moment + ?6), ?7, ?8, ?9)
RETURNING pk, created;

-- take

-- fragment: never
(1 << 62)
-- name: look
-- Before a take: the next deadline (0 while tasks must follow their group: penstock_moving_group), the caller's
-- session, and whether the tube is paused. A deadline is that of a task (penstock_timer), a handle or a session.
SELECT nullif(min(iif(EXISTS (SELECT 1 FROM penstock_group WHERE tube = ?1 AND moving = 1), 0, $never),
coalesce((SELECT at FROM penstock_task WHERE tube = ?1 AND at IS NOT NULL ORDER BY at LIMIT 1), $never),
coalesce((SELECT min(until) FROM penstock_handle), $never),
coalesce((SELECT min(until) FROM penstock_session WHERE until IS NOT NULL), $never)), $never),
(SELECT session FROM penstock_handle WHERE id = ?2), paused FROM penstock_tube WHERE no = ?1;
-- fragment: takeable
-- Skips expired tasks that advance has not removed yet.
tube = ?1 AND state = 'r' AND rank1 <= ?2 AND (expires IS NULL OR expires > ?3)
-- name: to_lease
-- penstock_ready, in order. Skips tasks of cancelled groups, which are removed later.
SELECT $leased FROM penstock_task WHERE $takeable AND (group_no IS NULL
OR group_no NOT IN (SELECT no FROM penstock_group WHERE tube = ?1 AND moving = 1 AND state = 'cancelling'))
ORDER BY rank1, rank2, pk LIMIT ?4;
-- fragment: set_lease
UPDATE penstock_task SET state = 't', attempts = attempts + 1, lease = (lease >> 28) + 1 << 28 | ?4, taken = ?2,
at = ?2 + ttr, owner = ?3, progress = NULL
-- name: lease
$set_lease WHERE pk = ?1;
-- name: lease_many
$set_lease WHERE pk IN (SELECT value FROM json_each(?1));
-- name: to_hand_out
-- penstock_ready, in a kind without leases
SELECT $brief FROM penstock_task WHERE $takeable ORDER BY rank1, rank2, pk LIMIT ?4;
-- name: hand_out
UPDATE penstock_task SET state = ?2, rank1 = ?3, taken = ?4, attempts = attempts + 1 WHERE pk = ?1;
-- name: first_rank
-- penstock_ready
SELECT rank1 FROM penstock_task WHERE tube = ?1 AND state = 'r' ORDER BY rank1, rank2, pk LIMIT 1;
-- name: delivered_first
-- penstock_delivered
SELECT $brief FROM penstock_task WHERE tube = ?1 AND state = 't' AND owner IS NULL ORDER BY rank1, pk LIMIT ?2;
-- name: count_waiter
INSERT INTO penstock_waiter (handle, tube, takes) VALUES (?1, ?2, ?3)
ON CONFLICT (handle, tube) DO UPDATE SET takes = takes + ?3;
-- name: forget_waiter
DELETE FROM penstock_waiter WHERE handle = ?1 AND tube = ?2 AND takes <= 0;

-- ack

-- fragment: acked
-- Tasks that session ?2 holds at ?4, without a reply tube; a lease ?3 of NULL matches any.
state = 't' AND owner = ?2 AND (?3 IS NULL OR lease = ?3) AND (at IS NULL OR at > ?4) AND $no_reply
AND errors IS NULL
-- fragment: not_the_last
-- ?5 tasks are acked: they cannot end a started group that has more than ?5 tasks left.
(group_no IS NULL OR EXISTS (SELECT 1 FROM penstock_group g WHERE g.no = group_no AND g.state = 'started'
AND g.remaining > ?5))
-- name: ack_alone
-- One task without address and group, in no micro-queue: needs no RETURNING, which costs a tenth of an ack.
DELETE FROM penstock_task WHERE pk = ?1 AND $acked AND address IS NULL AND group_no IS NULL;
-- name: ack_many
-- By the primary key.
DELETE FROM penstock_task WHERE pk IN (SELECT value FROM json_each(?1)) AND $acked AND $not_the_last
RETURNING pk, utube, address, group_no;
-- name: delete
DELETE FROM penstock_task WHERE pk = ?1 AND address IS NULL AND reply_to IS NULL AND group_no IS NULL
AND (state = 't' OR expires IS NULL OR expires > ?2) RETURNING state;
-- name: count_down
UPDATE penstock_group SET remaining = remaining - ?2 WHERE no = ?1;
-- name: ack_named
-- penstock_address
DELETE FROM penstock_task WHERE tube = ?1 AND address IN (SELECT value FROM json_each(?2)) AND state = 't'
AND owner IS NULL RETURNING address, pk;

-- changes

-- name: supersede_outcomes
-- penstock_outcome_address; the + keeps SQLite from using penstock_outcome_until, which has all outcomes of the tube.
UPDATE penstock_outcome SET until = ?3
WHERE tube = ?1 AND address IN (SELECT value FROM json_each(?2)) AND +until > ?3;
-- name: outcomes_by_address
-- penstock_outcome_address, in pk order
SELECT $kept FROM json_each(:texts) CROSS JOIN penstock_outcome WHERE pk = (SELECT pk FROM penstock_outcome
WHERE tube = :tube AND address = value AND +until > :now ORDER BY pk DESC LIMIT 1);

-- micro-queues

-- name: queues_named
SELECT utube, taken, heads, waiting, turn FROM penstock_utube
WHERE tube = ?1 AND utube IN (SELECT value FROM json_each(?2));
-- name: serve_queue
UPDATE penstock_utube SET taken = taken + 1, heads = heads - 1 WHERE tube = ?1 AND utube = ?2;
-- fragment: pass_on
-- Not if the limit was lowered below the number of taken tasks.
UPDATE penstock_utube SET taken = taken - 1, heads = heads + 1, waiting = waiting - 1
WHERE tube = ?1 AND waiting > 0 AND taken + heads <= ?3 AND utube
-- name: pass_on
$pass_on = ?2;
-- name: pass_on_many
$pass_on IN (SELECT value FROM json_each(?2)) RETURNING utube;
-- name: forget_queue
DELETE FROM penstock_utube WHERE tube = ?1 AND utube = ?2;
-- name: forget_idle_queues
-- penstock_idle_utube
DELETE FROM penstock_utube WHERE (tube, utube) IN (SELECT tube, utube FROM penstock_utube
WHERE tube = :tube AND taken = 0 AND heads = 0 AND waiting = 0 AND turn < :now LIMIT :limit);
-- fragment: first
-- penstock_queued: the first waiting task.
tube = ?1 AND state = 'q' ORDER BY rank1, rank2, pk LIMIT 1
-- name: promote
UPDATE penstock_task SET state = 'r' WHERE pk = (SELECT pk FROM penstock_task WHERE utube = ?2 AND $first);
-- name: promote_many
-- ?3: the tube is fair, so the rank2 of a head is the turn of its micro-queue.
UPDATE penstock_task SET state = 'r', rank2 = CASE WHEN ?3 THEN (SELECT turn FROM penstock_utube u
    WHERE u.tube = ?1 AND u.utube = penstock_task.utube) ELSE rank2 END
WHERE pk IN (SELECT (SELECT pk FROM penstock_task WHERE utube = value AND $first) FROM json_each(?2));
-- fragment: place
-- ?3: the tube is fair, so the rank2 of a head is the turn of its micro-queue.
rank1, iif(?3, 0, rank2), pk
-- name: is_overtaken
-- penstock_queued: whether the first waiting task comes before the last head.
SELECT (SELECT $place FROM penstock_task WHERE utube = ?2 AND $first) < (SELECT $place FROM penstock_task
WHERE tube = ?1 AND utube = ?2 AND state = 'r' ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT 1);
-- name: demote
UPDATE penstock_task SET state = 'q', rank2 = iif(?3, 0, rank2) WHERE tube = ?1 AND utube = ?2 AND state = 'r';
-- name: turn_heads
UPDATE penstock_task SET rank2 = ?3 WHERE tube = ?1 AND utube = ?2 AND state = 'r';
-- name: sweep_groups
-- penstock_over_group. By a range of `until`: after an ANALYZE of few groups, IN (numbers) would read all groups.
DELETE FROM penstock_group WHERE tube = :tube AND until <= (SELECT max(until) FROM (
SELECT until FROM penstock_group WHERE tube = :tube AND until <= :now ORDER BY until LIMIT :limit));

-- reads

-- name: groups_by_no
-- By the primary key. CROSS JOIN, because after an ANALYZE of few groups, IN would read all groups.
SELECT $group FROM json_each(:ids) CROSS JOIN penstock_group WHERE no = value AND tube = :tube;
