-- Queries that all SQL stores share. A store's own queries.sql is read before this file. It defines the fragments now,
-- in_ids and in_texts (for lists of numbers and of texts); a query there replaces the query of the same name here.
-- A task's pk is tube << 40 | id. The comment of a query names the index that it relies on.
-- fragment: unowned
owner IS NULL
-- fragment: tube
no, name, kind, options
-- fragment: key
-- A store may use an expression, to keep its planner from scanning the tube in pk order for the few taken tasks.
pk
-- fragment: for_update
-- fragment: skip_locked
-- fragment: by_moving
-- fragment: unexpired
(expires IS NULL OR expires > $now)
-- fragment: page_of_span
pk > :low AND pk <= :high ORDER BY pk LIMIT :limit

-- name: meta
SELECT name, value FROM penstock_meta;
-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- tubes

-- name: all_tubes
SELECT $tube FROM penstock_tube ORDER BY name;
-- name: tubes_named
SELECT $tube FROM penstock_tube WHERE name $in_texts ORDER BY name;
-- name: clock
SELECT $now;
-- name: look_at_tube
-- The clock, and whether the tube exists.
SELECT $now, (SELECT count(*) FROM penstock_tube WHERE no = :tube);
-- name: tube_lives
SELECT 1 FROM penstock_tube WHERE no = :tube;
-- name: overdue
-- For each tube, one seek in penstock_timer, penstock_moving_group, penstock_outcome_until and penstock_over_group.
-- The row with number 0 is not a tube: the id of the last alteration, the clock, and whether a session has lapsed.
-- ORDER BY includes the tube for MySQL 9, which would otherwise sort all rows of the tube.
SELECT * FROM (SELECT $tube, 0 FROM penstock_tube t WHERE no > 0 AND (
    $first_moment <= $now
    OR EXISTS (SELECT 1 FROM penstock_group g $by_moving WHERE g.tube = t.no AND g.moving = 1)
    OR (SELECT o.until FROM penstock_outcome o WHERE o.tube = t.no ORDER BY o.tube, o.until LIMIT 1) <= $now
    OR (SELECT g.until FROM penstock_group g WHERE g.tube = t.no AND g.until IS NOT NULL ORDER BY g.tube, g.until LIMIT 1) <= $now
)) due UNION ALL SELECT 0, coalesce((SELECT value FROM penstock_meta WHERE name = 'altered'), ''), '', CAST($now AS CHAR(20)),
CASE WHEN (SELECT min(until) FROM penstock_handle) <= $now
    OR (SELECT min(until) FROM penstock_session WHERE until IS NOT NULL) <= $now THEN 1 ELSE 0 END;
-- name: set_tube
UPDATE penstock_tube SET name = coalesce(:name, name), options = coalesce(:options, options),
paused = coalesce(:paused, paused) WHERE no = :tube;
-- name: busy
-- penstock_aside, penstock_moving_group
SELECT EXISTS (SELECT 1 FROM penstock_task WHERE tube = :tube AND state = 't'),
EXISTS (SELECT 1 FROM penstock_waiter WHERE tube = :tube),
EXISTS (SELECT 1 FROM penstock_group WHERE tube = :tube AND moving = 1);
-- name: hide_counter
UPDATE penstock_counter SET tube = -tube WHERE tube = :tube;
-- name: hide_tube
UPDATE penstock_tube SET no = -no, name = :name, options = :options WHERE no = :tube;
-- name: forget_tube
DELETE FROM penstock_tube WHERE no = :tube;
-- name: forget_counter
DELETE FROM penstock_counter WHERE tube = :tube;
-- name: forget_queues
DELETE FROM penstock_utube WHERE tube = :tube;
-- name: forget_groups
DELETE FROM penstock_group WHERE tube = :tube;
-- name: forget_outcomes
DELETE FROM penstock_outcome WHERE tube = :tube;
-- name: forget_waiters
DELETE FROM penstock_waiter WHERE tube = :tube;
-- name: erase
-- By the primary key.
DELETE FROM penstock_task WHERE pk > :low AND pk <= :high;

-- tasks

-- name: by_id
SELECT $record FROM penstock_task WHERE pk = :pk;
-- name: by_ids
SELECT $record FROM penstock_task WHERE pk $in_ids ORDER BY pk;
-- name: by_names
-- penstock_address
SELECT $record FROM penstock_task WHERE tube = :tube AND address $in_texts;
-- name: due
-- penstock_timer
SELECT $record FROM penstock_task WHERE tube = :tube AND at <= $now ORDER BY at, pk LIMIT :limit;
-- name: buried
-- penstock_buried
SELECT $record FROM penstock_task WHERE tube = :tube AND state = '!' ORDER BY rank1, rank2, pk LIMIT :limit;
-- name: members
-- penstock_grouped
SELECT $record FROM penstock_task WHERE group_no = :group ORDER BY pk LIMIT :limit;
-- name: unstarted
-- penstock_unstarted
SELECT $record FROM penstock_task WHERE group_no = :group AND state = 'g' ORDER BY rank1, rank2, pk LIMIT :limit;
-- name: page
SELECT $record FROM penstock_task WHERE $page_of_span;
-- name: find_all
SELECT $record FROM penstock_task WHERE (state = 't' OR $unexpired) AND $page_of_span;
-- name: find_ready
SELECT $record FROM penstock_task WHERE (state = 'r' OR state = 'q') AND $unexpired AND $page_of_span;
-- name: find_taken
-- penstock_aside. Sorts if `key` is not a plain column, but never more rows than there are leases.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND $key > :low AND $key <= :high
ORDER BY $key LIMIT :limit;
-- name: find_delivered
-- penstock_aside, in order: delivered messages have no owner.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND $unowned AND $page_of_span;
-- name: find_delayed
-- penstock_aside, in order: no owner.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = '~' AND $unowned AND $unexpired AND $page_of_span;
-- name: find_buried
-- penstock_aside, in order: no owner.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = '!' AND $unowned AND $unexpired AND $page_of_span;
-- name: find_unstarted
-- penstock_unstarted_ids, in order.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 'g' AND $unexpired AND $page_of_span;
-- name: holders
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND utube = :utube
ORDER BY taken, pk LIMIT :limit;
-- name: undelivered
-- penstock_ready
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 'r'
ORDER BY rank1, rank2, pk LIMIT :limit OFFSET :start;
-- name: undelivered_back
-- The same from the end.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 'r'
ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT :limit OFFSET :start;
-- name: delivered
-- penstock_delivered: rank1 is the serial of the hand-out
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND $unowned
ORDER BY rank1, pk LIMIT :limit OFFSET :start;
-- name: delivered_back
-- The same from the end.
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' AND $unowned
ORDER BY rank1 DESC, pk DESC LIMIT :limit OFFSET :start;
-- fragment: ready_of_t
FROM penstock_task WHERE tube = t.no AND state = 'r'
-- fragment: since
CASE WHEN taken > created THEN taken ELSE created END
-- name: ready_since
-- penstock_ready, three seeks per tube: when two tasks were put or last taken, the one that is taken next and the
-- first one with the highest rank1. LIMIT keeps that rank in a derived table: otherwise MySQL 9 with old statistics
-- searches for it row by row.
SELECT $now, t.no, (SELECT $since $ready_of_t ORDER BY rank1, rank2, pk LIMIT 1),
(SELECT $since $ready_of_t AND rank1 = t.top ORDER BY rank1, rank2, pk LIMIT 1)
FROM (SELECT no, (SELECT rank1 $ready_of_t ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT 1) AS top
    FROM penstock_tube t WHERE no $in_ids LIMIT 1000000) t;
-- name: ahead
-- penstock_ready
SELECT count(*) FROM (SELECT 1 FROM penstock_task WHERE tube = :tube AND state = 'r'
AND (rank1, rank2, pk) < (:rank1, :rank2, :pk) LIMIT 1000) found;

-- groups

-- name: groups_by_no
SELECT $group FROM penstock_group WHERE no $in_ids AND tube = :tube;
-- name: live_group
-- penstock_live_group
SELECT $group FROM penstock_group WHERE tube = :tube AND name = :name AND (state = 'open' OR state = 'started');
-- name: newest_group
-- penstock_named_group, in order
SELECT $group FROM penstock_group WHERE tube = :tube AND name = :name ORDER BY no DESC LIMIT 1;
-- name: live_groups
-- penstock_live_group, in order
SELECT $group FROM penstock_group WHERE tube = :tube AND name > :after AND (state = 'open' OR state = 'started')
ORDER BY name LIMIT :limit;
-- name: groups_above
SELECT $group FROM penstock_group
WHERE tube = :tube AND no > :above AND state IN ('open', 'started', 'cancelling') ORDER BY no LIMIT :limit;
-- name: moving_groups
-- penstock_moving_group
SELECT $group FROM penstock_group WHERE tube = :tube AND moving = 1 ORDER BY no;
-- name: all_groups
SELECT $group FROM penstock_group WHERE tube = :tube ORDER BY no;
-- name: add_group
INSERT INTO penstock_group (tube, name, state, total, remaining, moving) VALUES (:tube, :name, 'open', 0, 0, 0);
-- name: change_group
-- NULL keeps the stored value: a put into an open group that was not loaded does not know the value.
UPDATE penstock_group SET state = :state, total = total + :total, remaining = remaining + :remaining,
end_work = coalesce(:end_work, end_work), cancel_work = coalesce(:cancel_work, cancel_work), moving = :moving,
until = :until, failed = failed + :failed, on_failure = coalesce(:on_failure, on_failure)
WHERE no = :no AND name = :name AND state = :was
AND ((:exact = 1 AND remaining = :had) OR (:exact = 0 AND remaining + :remaining > 0));
-- name: import_members
UPDATE penstock_group SET total = total + :count, remaining = remaining + :count WHERE no = :no;
-- name: set_group_total
UPDATE penstock_group SET total = :total, failed = :failed WHERE no = :no;
-- name: sweep_groups
-- penstock_over_group
DELETE FROM penstock_group WHERE no IN (SELECT no FROM (
SELECT no FROM penstock_group WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit $skip_locked) old);

-- outcomes

-- name: outcomes_by_id
SELECT $kept FROM penstock_outcome WHERE pk $in_ids AND until > $now;
-- name: outcomes_after
SELECT $kept FROM penstock_outcome WHERE $page_of_span;
-- name: sweep_outcomes
-- penstock_outcome_until
DELETE FROM penstock_outcome WHERE pk IN (SELECT pk FROM (
SELECT pk FROM penstock_outcome WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit $skip_locked) old);
-- name: drop_outcomes
DELETE FROM penstock_outcome WHERE pk $in_ids;

-- micro-queues

-- name: queue
SELECT taken, heads, waiting FROM penstock_utube WHERE tube = :tube AND utube = :utube;

-- sessions

-- name: held_leases
-- By the primary key. No session holds tasks of a cancelled group.
SELECT k.pk, k.lease FROM penstock_task k LEFT JOIN penstock_group g ON g.no = k.group_no
WHERE k.pk $in_ids AND k.state = 't' AND k.owner = :session AND (k.at IS NULL OR k.at > $now)
AND (g.state IS NULL OR g.state <> 'cancelling');
-- name: live_session
-- A session without an end ends when its last handle has lapsed and its ttr is over.
SELECT no FROM penstock_session s WHERE id = :id
AND coalesce(until, (SELECT coalesce(max(h.until), 0) FROM penstock_handle h WHERE h.session = s.no) + ttr) > $now;
-- name: all_sessions
SELECT no, id FROM penstock_session ORDER BY no;
-- name: add_session
-- The session ends at `until` unless a handle joins it.
INSERT INTO penstock_session (id, ttr, until) VALUES (:id, :ttr, $now + :ttr + :lapse);
-- name: resume_session
UPDATE penstock_session SET until = NULL WHERE no = :no AND (until IS NULL OR until > $now);
-- name: add_handle
INSERT INTO penstock_handle (id, session, host, pid, locus, beat, until)
VALUES (:handle, :session, :host, :pid, :locus, $now, $now + :lapse);
-- name: handles
SELECT id, session, locus FROM penstock_handle WHERE id $in_texts ORDER BY id;
-- name: beat
UPDATE penstock_handle SET beat = $now, until = $now + :lapse WHERE id $in_texts AND until > $now;
-- name: beating
SELECT id FROM penstock_handle WHERE id $in_texts AND until > $now;
-- name: lapsed_handles
SELECT id, session, until FROM penstock_handle WHERE until <= $now ORDER BY until, id;
-- name: ended_sessions
SELECT no FROM penstock_session WHERE until <= $now ORDER BY until, no;
-- name: linger
-- The last handle to leave sets the end of its session.
UPDATE penstock_session SET until = :moment + ttr, host = :host, pid = :pid, beat = :beat
WHERE no = :no AND NOT EXISTS (SELECT 1 FROM penstock_handle WHERE session = :no);
-- name: presence_of
SELECT host, pid, beat FROM penstock_handle WHERE id = :id AND until <= :until;
-- name: lock_session
SELECT until IS NULL OR until > $now FROM penstock_session WHERE no = :no $for_update;
-- name: forget_handle
DELETE FROM penstock_handle WHERE id = :id;
-- name: forget_handle_waiters
DELETE FROM penstock_waiter WHERE handle = :id;
-- name: forget_session
DELETE FROM penstock_session WHERE no = :no AND until <= $now;
-- name: held
-- penstock_aside, tube by tube: CROSS JOIN keeps SQLite from reading the tasks of all sessions.
SELECT k.tube, k.pk FROM penstock_tube t CROSS JOIN penstock_task k
WHERE k.tube = t.no AND k.state = 't' AND k.owner = :session ORDER BY t.name, k.pk LIMIT :limit;
-- name: presences
-- Includes a lapsed handle that was not removed yet, as long as its session can be joined.
SELECT h.host, h.pid, h.beat AS beat FROM penstock_handle h JOIN penstock_session s ON s.no = h.session
WHERE h.session = :no AND h.until + s.ttr > $now
UNION ALL SELECT host, pid, beat FROM penstock_session WHERE no = :no AND until > $now AND beat IS NOT NULL
ORDER BY beat DESC LIMIT 1;
-- name: waits_of
SELECT DISTINCT t.name FROM penstock_waiter w JOIN penstock_handle h ON h.id = w.handle
JOIN penstock_tube t ON t.no = w.tube WHERE h.session = :no ORDER BY t.name;

-- integrity

-- name: audited
SELECT $audited FROM penstock_task WHERE $page_of_span;
-- name: stored_queues
SELECT utube, taken, heads, waiting, turn FROM penstock_utube WHERE tube = :tube;
-- name: early_outcomes
SELECT o.pk FROM penstock_outcome o JOIN penstock_task k ON k.pk = o.pk WHERE o.pk > :low AND o.pk <= :high ORDER BY o.pk;
-- name: restore
UPDATE penstock_task SET $mutable, group_name = :group, group_no = :group_no WHERE pk = :pk;
-- name: set_ready_state
UPDATE penstock_task SET state = :state, rank2 = CASE WHEN :fair = 1 THEN :turn ELSE rank2 END WHERE pk = :pk;
-- name: add_queue
INSERT INTO penstock_utube (tube, utube, taken, heads, waiting, turn)
VALUES (:tube, :utube, :taken, :heads, :waiting, :turn);
-- name: stray_waiters
SELECT handle FROM penstock_waiter WHERE tube = :tube AND handle NOT IN (SELECT id FROM penstock_handle) ORDER BY handle;
-- name: forget_stray_waiters
DELETE FROM penstock_waiter WHERE tube = :tube AND handle NOT IN (SELECT id FROM penstock_handle);

-- transfer

-- name: import_task
INSERT INTO penstock_task (pk, tube, $imported) VALUES (:pk, :tube, $import);
-- name: import_outcome
INSERT INTO penstock_outcome (pk, tube, address, status, result, error, code, errors, until)
VALUES (:pk, :tube, :address, :status, :result, :error, :code, :errors, :until);
