-- What only the MySQL store asks, of MariaDB and MySQL alike; the rest is in store/sql/queries.sql. Where their words
-- differ, MySQL alone reads /*!80000 … */ and MariaDB alone /*M! … */.
--
-- Statements with user variables (@p_…) are prepared once a connection and run several to a packet, which is one
-- transaction. Every packet sets all variables that it reads: @p_t tube, @p_now its moment, @p_n how many,
-- @p_k its own number, @p_us names of micro-queues (a JSON list of their bytes in hexadecimal digits).
-- JSON_TABLE is asked of CAST(… AS CHAR): MySQL fixes a variable's type when it prepares a statement, and the value of
-- ROW_COUNT() and LAST_INSERT_ID(), too.

-- fragment: now
:now

-- fragment: time
(TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)

-- fragment: never
9007199254740991

-- fragment: ids
:ids

-- fragment: texts
:texts

-- fragment: group
no, name, state, total, remaining, end_work, cancel_work, moving, until

-- fragment: live
(state = 't' OR expires IS NULL OR expires > $now)

-- server

-- name: version
SELECT VERSION();

-- name: settings
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_connections;

-- name: grants
SHOW GRANTS;

-- name: oldest_transaction
SELECT TIMESTAMPDIFF(SECOND, MIN(trx_started), NOW()) FROM information_schema.innodb_trx;

-- name: time
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

-- name: watch
-- Changes whenever anybody puts, takes or settles anything: three lookups and a row per tube.
SELECT (SELECT MAX(id) FROM penstock_delta), (SELECT value FROM penstock_meta WHERE name = 'folded'),
(SELECT SUM(last) FROM penstock_id), (SELECT SUM(paused) FROM penstock_tube);

-- name: abort
-- A guard: error 1242 ends the packet where the condition does not hold.
SET @p_x = IF(:condition, 1, (SELECT 1 UNION SELECT 2));

-- tubes and counters

-- name: add_tube
INSERT IGNORE INTO penstock_tube (name, kind, options) VALUES (:name, :kind, :options);

-- name: new_tube
SELECT IF(ROW_COUNT() = 1, LAST_INSERT_ID(), NULL) INTO @p_t;

-- name: add_id
INSERT INTO penstock_id (tube) SELECT @p_t FROM DUAL WHERE @p_t IS NOT NULL;

-- name: add_counter
INSERT INTO penstock_counter (tube) SELECT @p_t FROM DUAL WHERE @p_t IS NOT NULL;

-- name: lock_tube
SELECT COUNT(*) INTO @p_live FROM (SELECT no FROM penstock_tube WHERE no = :tube FOR UPDATE) t;

-- name: share_tube
SELECT COUNT(*) INTO @p_live FROM (SELECT no FROM penstock_tube WHERE no = :tube LOCK IN SHARE MODE) t;

-- name: lock_id
SELECT COUNT(*) INTO @p_x FROM (SELECT tube FROM penstock_id WHERE tube = :tube FOR UPDATE) i;

-- name: busy
-- penstock_ready, penstock_waiter_tube, penstock_moving_group
SELECT :held AND EXISTS (SELECT 1 FROM penstock_task WHERE tube = :tube AND state = 't'),
:waiting AND EXISTS (SELECT 1 FROM penstock_waiter WHERE tube = :tube),
EXISTS (SELECT 1 FROM penstock_group WHERE tube = :tube AND moving = 1) INTO @p_a, @p_b, @p_c;

-- name: hide_id
UPDATE penstock_id SET tube = -tube WHERE tube = :tube AND NOT (@p_a OR @p_b OR @p_c);

-- name: hide_tube
UPDATE penstock_tube SET no = -no, name = :name, options = :options WHERE no = :tube AND NOT (@p_a OR @p_b OR @p_c);

-- name: forget_id
DELETE FROM penstock_id WHERE tube = :tube;

-- name: forget_deltas
DELETE FROM penstock_delta WHERE tube = :tube;

-- name: tally
SELECT i.last, i.last_ms, i.last_seq, $summed FROM penstock_id i JOIN penstock_counter c ON c.tube = ABS(i.tube)
LEFT JOIN (SELECT $sums FROM penstock_delta WHERE tube = :counted) d ON TRUE WHERE i.tube = :tube;

-- name: stored
-- How many tasks are there. Whoever asks has locked the last id.
SELECT i.last - c.done - (SELECT IFNULL(SUM(d.done), 0) FROM penstock_delta d WHERE d.tube = :tube) INTO @p_stored
FROM penstock_id i JOIN penstock_counter c ON c.tube = i.tube WHERE i.tube = :tube;

-- name: set_mark
UPDATE penstock_id SET last_ms = :ms, last_seq = :seq WHERE tube = :tube;

-- name: raise_mark
UPDATE penstock_id SET last_seq = IF((last_ms, last_seq) < (:ms, :seq), :seq, last_seq),
last_ms = GREATEST(last_ms, :ms) WHERE tube = :tube;

-- name: raise_serial
UPDATE penstock_counter SET serial = GREATEST(serial, :serial) WHERE tube = :tube;

-- fold: one at a time, and nobody waits for whoever does it. What is not committed yet is skipped.

-- name: fold_lock
SELECT MAX(f.value) INTO @p_f FROM (SELECT value FROM penstock_meta WHERE name = 'folded' FOR UPDATE SKIP LOCKED) f;

-- name: fold_find
SELECT CONCAT('[', GROUP_CONCAT(x.id), ']'), MAX(x.id) INTO @p_ids, @p_top FROM (SELECT id FROM penstock_delta
WHERE @p_f IS NOT NULL ORDER BY id LIMIT 2000 FOR UPDATE SKIP LOCKED) x;

-- name: fold_add
UPDATE (SELECT d.tube, $sums FROM JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_delta d FORCE INDEX (PRIMARY) ON d.id = j.i GROUP BY d.tube) d
STRAIGHT_JOIN penstock_counter c ON c.tube = d.tube SET $folded;

-- name: fold_drop
DELETE d FROM JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_delta d FORCE INDEX (PRIMARY) ON d.id = j.i;

-- name: fold_mark
UPDATE penstock_meta SET value = @p_top WHERE name = 'folded' AND @p_top IS NOT NULL;

-- loading: what differs from the shared queries

-- name: look_at_tube
SELECT :now, (SELECT COUNT(*) FROM penstock_tube WHERE no = :tube);

-- name: by_ids
SELECT $record FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk IN $ids ORDER BY pk;

-- name: by_names
SELECT $record FROM penstock_task FORCE INDEX (penstock_address) WHERE tube = :tube AND address IN $texts ORDER BY pk;

-- name: due
SELECT $record FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = :tube AND at <= $now
ORDER BY penstock_task.at, pk LIMIT :limit;

-- name: taken_after
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't' AND pk > :after
ORDER BY pk LIMIT :limit;

-- name: buried
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = '!'
ORDER BY rank1, rank2, pk LIMIT :limit;

-- name: members
SELECT $record FROM penstock_task FORCE INDEX (penstock_grouped) WHERE group_no = :group ORDER BY pk LIMIT :limit;

-- name: unstarted
SELECT $record FROM penstock_task FORCE INDEX (penstock_queued)
WHERE tube = :tube AND place = CONCAT('g', :group) ORDER BY rank1, rank2, pk LIMIT :limit;

-- name: find_taken
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't' AND pk > :low
AND pk <= :high ORDER BY pk LIMIT :limit;

-- name: find_delivered
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't' AND pk > :low
AND pk <= :high ORDER BY pk LIMIT :limit;

-- name: find_delayed
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = '~' AND pk > :low
AND pk <= :high AND $live ORDER BY pk LIMIT :limit;

-- name: find_buried
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = '!' AND pk > :low
AND pk <= :high AND $live ORDER BY pk LIMIT :limit;

-- name: find_unstarted
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'g' AND pk > :low
AND pk <= :high AND $live ORDER BY pk LIMIT :limit;

-- name: holders
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't' AND utube = :utube
ORDER BY penstock_task.taken, pk LIMIT :limit;

-- name: undelivered
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
ORDER BY rank1, rank2, pk LIMIT :limit OFFSET :start;

-- name: undelivered_back
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT :limit OFFSET :start;

-- name: delivered
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't'
ORDER BY rank1, rank2, pk LIMIT :limit OFFSET :start;

-- name: delivered_back
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't'
ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT :limit OFFSET :start;

-- name: ahead
-- As three ranges: rows are not compared by an index.
SELECT COUNT(*) FROM (SELECT 1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
AND (rank1 < :rank1 OR (rank1 = :rank1 AND (rank2 < :rank2 OR (rank2 = :rank2 AND pk < :pk)))) LIMIT 1000) found;

-- name: live_group
SELECT $group FROM penstock_group WHERE tube = :tube AND live = :name;

-- name: live_groups
SELECT $group FROM penstock_group WHERE tube = :tube AND live > :after ORDER BY live LIMIT :limit;

-- name: add_group
INSERT IGNORE INTO penstock_group (tube, name, state) SELECT :tube, :name, 'open' FROM DUAL WHERE @p_live;

-- What is past its time: found without a lock, for a range that ends before the last row waits for whoever has that.

-- name: find_old
SELECT (SELECT CONCAT('[', GROUP_CONCAT(x.pk), ']') FROM (SELECT pk FROM penstock_outcome FORCE INDEX (penstock_outcome_until)
WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit) x),
(SELECT CONCAT('[', GROUP_CONCAT(x.no), ']') FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_over_group)
WHERE tube = :tube AND until <= $now ORDER BY until LIMIT :limit) x),
(SELECT CONCAT('["', GROUP_CONCAT(HEX(x.utube) SEPARATOR '","'), '"]') FROM (SELECT utube FROM penstock_utube
FORCE INDEX (penstock_idle_utube) WHERE tube = :tube AND :fair AND idle_turn < $now ORDER BY idle_turn LIMIT :limit) x)
INTO @p_old, @p_over, @p_us;

-- name: sweep_groups
DELETE g FROM JSON_TABLE(CAST(@p_over AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = j.i;

-- name: held
-- penstock_ready, tube by tube, of those that lease.
SELECT k.tube, k.pk FROM penstock_tube t STRAIGHT_JOIN penstock_task k FORCE INDEX (penstock_ready)
ON k.tube = t.no AND k.state = 't' AND k.owner = :session WHERE t.kind LIKE '%"hand_out":"lease"%'
ORDER BY t.name, k.pk LIMIT :limit;

-- sessions

-- name: add_session
-- It lingers until its first handle joins, so that it ends where none does.
INSERT INTO penstock_session (id, ttr, until) VALUES (:id, :ttr, $now + :ttr + :lapse);

-- name: lock_session
SELECT COUNT(*) INTO @p_live FROM (SELECT no FROM penstock_session
WHERE no = :no AND (until IS NULL OR until > $now) FOR UPDATE) s;

-- name: lock_any_session
SELECT COUNT(*) INTO @p_live FROM (SELECT no FROM penstock_session WHERE no = :no FOR UPDATE) s;

-- name: presence
SELECT MAX(host), MAX(pid), MAX(beat) INTO @p_host, @p_pid, @p_beat FROM penstock_handle WHERE id = :id;

-- name: linger
-- The last handle to leave sets its session's end.
UPDATE penstock_session SET until = :moment + ttr, host = @p_host, pid = @p_pid, beat = @p_beat
WHERE no = :no AND @p_pid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM penstock_handle WHERE session = :no);

-- name: presences
-- Also of a handle that has lapsed and was not removed yet, while its session can still be joined.
SELECT h.host, h.pid, h.beat AS beat FROM penstock_handle h JOIN penstock_session s ON s.no = h.session
WHERE h.session = :no AND h.until + s.ttr > $now
UNION ALL SELECT host, pid, beat FROM penstock_session WHERE no = :no AND until > $now AND beat IS NOT NULL
ORDER BY beat DESC LIMIT 1;

-- integrity

-- name: stranded
-- core/soundness.py has what this means.
SELECT $record FROM penstock_task WHERE tube = :tube AND (state NOT IN ('r', 'q', 't', '~', '!', 'g')
OR (state = 'q' AND utube IS NULL) OR (state = '~' AND IFNULL(at, $never) = $never) OR (state = 'g' AND group_no IS NULL)) ORDER BY pk;

-- name: orphans
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't'
AND NOT EXISTS (SELECT 1 FROM penstock_session s WHERE s.no = penstock_task.owner) ORDER BY pk;

-- name: unsound
-- What cannot be in a tube of an unleased kind; `clocked` is 1 for round tubes.
SELECT $record FROM penstock_task WHERE tube = :tube AND (IFNULL(owner, 0) <> 0
OR (state <> 'r' AND (:clocked = 1 OR state <> 't'))
OR (state = 'r' AND rank1 <> CASE WHEN :clocked = 1 THEN penstock_task.taken ELSE 0 END)) ORDER BY pk;

-- name: restore
UPDATE penstock_task SET $mutable, group_name = :group, group_no = :group_no WHERE pk = :pk;

-- name: strays
SELECT $record FROM penstock_task WHERE tube = :tube AND group_no IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM penstock_group g WHERE g.no = group_no AND g.tube = :tube) ORDER BY pk;

-- put

-- name: reserve
-- An INSERT that finds a row there, because an UPDATE costs the server 15 µs more. Where the tube is gone it finds none:
-- ROW_COUNT is 1 then, the id NULL, and the task that would get it is refused, which undoes this.
INSERT INTO penstock_id (tube, last) VALUES (:tube, 0) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + :count);

-- name: reserve_marks
-- Assigned from left to right, so that the number still sees the old moment.
INSERT INTO penstock_id (tube, last) VALUES (:tube, 0) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + :count),
last_seq = IF(@p_now > last_ms, 0, last_seq) + :count, last_ms = GREATEST(last_ms, @p_now);

-- name: supersede
UPDATE penstock_outcome FORCE INDEX (penstock_outcome_address) SET until = @p_now + :most
WHERE tube = :tube AND address IN $texts AND until > @p_now + :most;

-- take

-- fragment: next
LEAST(IFNULL((SELECT MIN(until) FROM penstock_handle), $never),
IFNULL((SELECT MIN(until) FROM penstock_session), $never),
IFNULL((SELECT MIN(at) FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = @p_t), $never),
IF(EXISTS (SELECT 1 FROM penstock_group WHERE tube = @p_t AND moving = 1), 0, $never))

-- name: next_moment
SELECT $next FROM DUAL;

-- name: look
-- May it, and what is the next moment (MIN is one step in an index). Shared: neither the handle nor the tube goes before
-- the commit.
SELECT t.no, t.paused, h.session, $next INTO @p_no, @p_paused, @p_ses, @p_next FROM (SELECT 1) o
LEFT JOIN penstock_tube t ON t.no = @p_t LEFT JOIN penstock_handle h ON h.id = @p_h LOCK IN SHARE MODE;

-- fragment: go
@p_ses IS NOT NULL AND @p_paused = 0 AND (@p_next > @p_now OR @p_forced = 1) AND @p_stop = 0

-- fragment: ready
tube = @p_t AND state = 'r' AND (expires IS NULL OR expires > @p_now) AND $go

-- fragment: lease
state = 't', attempts = attempts + 1, lease = lease + 1, penstock_task.taken = @p_now,
at = IFNULL(@p_now + ttr, $never), owner = @p_ses, progress = NULL, call_no = @p_k

-- fragment: chosen
JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (place FOR ORDINALITY, i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task FORCE INDEX (PRIMARY) ON pk = j.i

-- name: find_one
SELECT pk INTO @p_id FROM penstock_task FORCE INDEX (penstock_ready) WHERE $ready
ORDER BY rank1, rank2, pk LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: lease_one
UPDATE penstock_task FORCE INDEX (PRIMARY) SET $lease WHERE pk = CAST(@p_id AS SIGNED);

-- name: count_one
INSERT INTO penstock_delta (tube, taken, take_calls) SELECT @p_t, 1, 1 FROM DUAL WHERE @p_id IS NOT NULL;

-- name: show_one
SELECT @p_no, @p_ses, @p_now, @p_next, $record FROM (SELECT 1) o
LEFT JOIN penstock_task ON pk = CAST(@p_id AS SIGNED);

-- name: find_many
-- In index order and with a LIMIT, so that only what is taken is locked.
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']'), COUNT(*) INTO @p_ids, @p_got
FROM (SELECT pk, rank1, rank2 FROM penstock_task FORCE INDEX (penstock_ready) WHERE $ready
ORDER BY rank1, rank2, pk LIMIT ? FOR UPDATE SKIP LOCKED) c;

-- name: find_heads
-- A head and its micro-queue.
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']'), COUNT(*) INTO @p_ids, @p_got
FROM (SELECT k.pk, k.rank1, k.rank2 FROM penstock_task k FORCE INDEX (penstock_ready)
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = k.tube AND l.utube = k.utube
WHERE k.tube = @p_t AND k.state = 'r' AND (k.expires IS NULL OR k.expires > @p_now) AND $go
ORDER BY k.rank1, k.rank2, k.pk LIMIT ? FOR UPDATE SKIP LOCKED) c;

-- name: find_gone
-- The largest group that is cancelled, as a constant: its tasks are passed by in the index, and their rows are not read.
SELECT IFNULL(MAX(g.no), 0) INTO @p_gone FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_moving_group)
WHERE tube = @p_t AND moving = 1 AND state = 'cancelling' ORDER BY remaining DESC LIMIT 1) g;

-- name: find_some
-- Passes by what is cancelled or not urgent enough without a lock; locked is afterwards what is left: a range that ends
-- before the last task locks the one behind it, too.
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']') INTO @p_some
FROM (SELECT pk, rank1, rank2 FROM penstock_task FORCE INDEX (penstock_ready) WHERE $ready AND rank1 <= @p_m
AND NOT group_no <=> @p_gone AND (group_no IS NULL OR group_no NOT IN (SELECT no FROM penstock_group
WHERE tube = @p_t AND moving = 1 AND state = 'cancelling')) ORDER BY rank1, rank2, pk LIMIT ?) c;

-- name: lock_some
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']'), COUNT(*) INTO @p_ids, @p_got
FROM (SELECT k.pk, k.rank1, k.rank2 FROM JSON_TABLE(CAST(@p_some AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.state = 'r' AND k.rank1 <= @p_m LIMIT ?
FOR UPDATE /*!80000 OF k */ SKIP LOCKED) c;

-- name: lock_some_heads
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']'), COUNT(*) INTO @p_ids, @p_got
FROM (SELECT k.pk, k.rank1, k.rank2 FROM JSON_TABLE(CAST(@p_some AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = k.tube AND l.utube = k.utube
WHERE k.state = 'r' AND k.rank1 <= @p_m LIMIT ? FOR UPDATE /*!80000 OF k, l */ SKIP LOCKED) c;

-- name: lease_many
UPDATE $chosen SET $lease;

-- name: lease_heads
-- Where a micro-queue has one head, each row of penstock_utube is joined once.
UPDATE $chosen STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = penstock_task.tube AND l.utube = penstock_task.utube
SET $lease, rank2 = IF(@p_fair, 0, rank2), l.taken = l.taken + 1, l.heads = l.heads - 1,
l.turn = IF(@p_fair, GREATEST(@p_now, l.turn + 1), l.turn);

-- name: serve_queues
UPDATE (SELECT utube AS u, COUNT(*) AS n FROM $chosen GROUP BY utube) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u SET l.taken = l.taken + s.n, l.heads = l.heads - s.n,
l.turn = IF(@p_fair, GREATEST(@p_now, l.turn + 1), l.turn);

-- name: turn_heads
-- A micro-queue that was served goes behind the others, with the heads that it has left.
UPDATE (SELECT DISTINCT utube AS u FROM $chosen) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u STRAIGHT_JOIN penstock_task h FORCE INDEX (penstock_queued)
ON h.tube = @p_t AND h.place = CONCAT('r', l.utube) SET h.rank2 = l.turn;

-- name: turn_taken
UPDATE $chosen SET rank2 = 0;

-- name: count_many
INSERT INTO penstock_delta (tube, taken, take_calls) SELECT @p_t, @p_got * @p_held, @p_got FROM DUAL WHERE @p_got > 0;

-- name: show_many
-- In the order of @p_ids, in which JSON_TABLE has its rows. To sort rows with data makes a table on disk.
SELECT @p_no, @p_ses, @p_now, @p_next, $record FROM (SELECT 1) o LEFT JOIN ($chosen) ON TRUE;

-- name: stop
-- The tubes behind are not looked at.
SELECT @p_stop OR @p_got > 0 OR @p_no IS NULL OR @p_ses IS NULL OR (@p_next <= @p_now AND @p_forced = 0), @p_all + @p_got,
@p_due OR (@p_stop = 0 AND @p_next <= @p_now AND @p_forced = 0) INTO @p_stop, @p_all, @p_due FROM DUAL;

-- name: hand_out_clocked
UPDATE $chosen SET rank1 = @p_now, penstock_task.taken = @p_now, attempts = attempts + 1;

-- name: serials
UPDATE penstock_counter SET serial = LAST_INSERT_ID(serial + @p_got) WHERE tube = @p_t AND @p_got > 0;

-- name: last_serial
SELECT LAST_INSERT_ID() - @p_got INTO @p_serial;

-- name: hand_out_delivered
UPDATE $chosen SET state = 't', rank1 = @p_serial + j.place,
penstock_task.taken = @p_now, attempts = attempts + 1;

-- name: first_rank
SELECT rank1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
ORDER BY rank1, rank2, pk LIMIT 1;

-- name: find_to_recover
-- Up to the first one that is younger.
SELECT CONCAT('[', GROUP_CONCAT(d.pk ORDER BY d.rank1, d.pk), ']'), COUNT(*) INTO @p_ids, @p_got FROM (
SELECT c.pk, c.rank1, SUM(c.young) OVER (ORDER BY c.rank1, c.pk ROWS UNBOUNDED PRECEDING) AS young FROM (
SELECT pk, rank1, penstock_task.taken + :elapsed > @p_now AS young FROM penstock_task FORCE INDEX (penstock_ready)
WHERE tube = @p_t AND state = 't' AND @p_paused = 0 ORDER BY rank1, rank2, pk LIMIT :count FOR UPDATE SKIP LOCKED) c) d
WHERE d.young = 0;

-- name: add_waiter
INSERT IGNORE INTO penstock_waiter (handle, tube, number)
SELECT :handle, no, :number FROM penstock_tube WHERE no IN $ids AND @p_all = 0 AND @p_ses IS NOT NULL AND NOT @p_due;

-- name: remove_waiter
DELETE FROM penstock_waiter WHERE handle = :handle AND number = :number AND (@p_all > 0 OR :anyway) AND NOT @p_due;

-- name: lock_handle
-- Alone, so that no take of it is under way.
SELECT session FROM penstock_handle WHERE id = :handle FOR UPDATE;

-- name: forget_waiter
DELETE FROM penstock_waiter WHERE handle = :handle AND number = :number;

-- name: leased_by
-- penstock_ready; what a take leased whose answer was lost.
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't' AND call_no = :call
ORDER BY pk;

-- ack

-- fragment: acked
state = 't' AND at > @p_now AND reply_to IS NULL AND (group_no IS NULL OR FIND_IN_SET(group_no, @p_groups))

-- name: ack_plain
DELETE penstock_task FROM penstock_task FORCE INDEX (PRIMARY)
WHERE pk IN $ids AND owner = :session AND (:any OR lease = :lease) AND at > $now AND state = 't' AND reply_to IS NULL
AND group_no IS NULL AND address IS NULL;

-- name: count_ack
INSERT INTO penstock_delta (tube, taken, done, ack_calls) SELECT :tube, -1, 1, 1 FROM DUAL WHERE ROW_COUNT() > 0;

-- name: count_acks
INSERT INTO penstock_delta (tube, taken, done, ack_calls) VALUES (:tube, -:count, :count, :count);

-- name: count_marked_acks
INSERT INTO penstock_delta (tube, taken, done, ack_calls)
SELECT @p_t, -@p_got, @p_got, @p_got FROM DUAL WHERE @p_got > 0;

-- name: groups_to_count
-- Those that cannot be over with these acks, locked in the order of their numbers.
SELECT GROUP_CONCAT(x.no) INTO @p_groups FROM (SELECT g.no FROM (SELECT DISTINCT group_no AS n FROM penstock_task
FORCE INDEX (PRIMARY) WHERE pk IN $ids AND group_no IS NOT NULL ORDER BY n) d
STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = d.n
WHERE g.state = 'started' AND g.remaining > :count FOR UPDATE) x;

-- name: count_down
UPDATE (SELECT group_no AS n, COUNT(*) AS c FROM $chosen WHERE group_no IS NOT NULL GROUP BY group_no) s
STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = s.n SET g.remaining = g.remaining - s.c;

-- name: mark_acks
UPDATE penstock_task FORCE INDEX (PRIMARY) SET call_no = @p_k WHERE pk IN $ids AND $acked AND (:guards) AND @p_live;

-- name: mark_named_acks
UPDATE penstock_task FORCE INDEX (penstock_address) SET call_no = @p_k
WHERE tube = :tube AND address IN $texts AND state = 't' AND owner = 0 AND @p_live;

-- name: marked
SELECT CONCAT('[', GROUP_CONCAT(pk), ']'), COUNT(*) INTO @p_ids, @p_got FROM penstock_task FORCE INDEX (PRIMARY)
WHERE pk IN $ids AND call_no = @p_k;

-- name: marked_named
SELECT CONCAT('[', GROUP_CONCAT(pk), ']'), COUNT(*) INTO @p_ids, @p_got FROM penstock_task FORCE INDEX (penstock_address)
WHERE tube = :tube AND address IN $texts AND call_no = @p_k;

-- name: show_marked
SELECT pk & 1099511627775, address FROM $chosen;

-- name: delete_marked
DELETE penstock_task FROM $chosen;

-- name: ack_outcomes
REPLACE INTO penstock_outcome (pk, tube, address, status, result, until)
SELECT pk, tube, address, 'done', UNHEX(r.result), @p_now + :retention
FROM JSON_TABLE(:results, '$[*]' COLUMNS (i BIGINT PATH '$[0]', result LONGTEXT CHARACTER SET ascii PATH '$[1]')) r
STRAIGHT_JOIN penstock_task FORCE INDEX (PRIMARY) ON pk = r.i WHERE call_no = @p_k AND address IS NOT NULL;

-- name: old_outcomes
-- penstock_outcome_until. With each new one some old ones are forgotten, so that they never outnumber what the retention
-- asks for, even in a tube that nobody ever advances.
SELECT CONCAT('[', GROUP_CONCAT(x.pk), ']') INTO @p_old FROM (SELECT pk FROM penstock_outcome
FORCE INDEX (penstock_outcome_until) WHERE tube = :tube AND until <= @p_now ORDER BY until LIMIT :limit
FOR UPDATE SKIP LOCKED) x;

-- name: forget_old_outcomes
DELETE o FROM JSON_TABLE(CAST(@p_old AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_outcome o FORCE INDEX (PRIMARY) ON o.pk = j.i;

-- name: left_queues
-- Micro-queues lose what was acked.
UPDATE (SELECT utube AS u, COUNT(*) AS n FROM $chosen GROUP BY utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u SET l.taken = l.taken - s.n;

-- micro-queues

-- fragment: queues
JSON_TABLE(CAST(@p_us AS CHAR), '$[*]' COLUMNS (u VARCHAR(400) CHARACTER SET ascii PATH '$')) u
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = UNHEX(u.u)

-- name: queues_of
SELECT CONCAT('[', GROUP_CONCAT(DISTINCT CONCAT('"', HEX(utube), '"') ORDER BY utube), ']') INTO @p_us
FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk IN $ids;

-- name: pass_on
-- The place of the one that was taken goes to the first that waits, where a micro-queue has one place: then `first_heads`
-- makes it a head.
UPDATE $queues SET l.heads = l.waiting > 0, l.waiting = l.waiting - (l.waiting > 0), l.taken = 0
WHERE l.taken = 1 AND l.heads = 0;

-- name: lock_queues
SELECT COUNT(*) INTO @p_x FROM (SELECT l.utube FROM $queues FOR UPDATE /*!80000 OF l */) x;

-- name: promoted
UPDATE JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = k.tube AND l.utube = k.utube
SET k.state = 'r', k.rank2 = IF(@p_fair, l.turn, k.rank2);

-- name: promoted_queues
UPDATE (SELECT k.utube AS u, COUNT(*) AS n FROM JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i GROUP BY k.utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u
SET l.heads = l.heads + s.n, l.waiting = l.waiting - s.n;

-- name: gained
SELECT @p_gained + IFNULL(JSON_LENGTH(@p_p), 0) INTO @p_gained FROM DUAL;

-- name: swapped
UPDATE JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (a BIGINT PATH '$[0]', b BIGINT PATH '$[1]')) j
STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = j.a
STRAIGHT_JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = j.b
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = q.utube
SET q.state = 'r', q.rank2 = IF(@p_fair, l.turn, q.rank2), h.state = 'q', h.rank2 = IF(@p_fair, 0, h.rank2);

-- name: forget_empty_queues
DELETE l FROM $queues WHERE l.taken = 0 AND l.heads = 0 AND l.waiting = 0 AND (NOT @p_fair OR l.turn < @p_now);

-- changes

-- fragment: changed
JSON_TABLE(CAST(@p_d AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$[0]', was VARCHAR(1) CHARACTER SET ascii PATH '$[1]',
lease0 BIGINT PATH '$[2]', at0 BIGINT PATH '$[3]', rank0 DOUBLE PATH '$[4]', until BIGINT PATH '$[5]', c INT PATH '$[6]',
state1 VARCHAR(1) CHARACTER SET ascii PATH '$[7]', rank21 DOUBLE PATH '$[8]', attempts1 INT PATH '$[9]',
expires1 BIGINT PATH '$[10]', at1 BIGINT PATH '$[11]', owner1 BIGINT PATH '$[12]',
reason1 TEXT CHARACTER SET utf8mb4 PATH '$[13]', progress1 DOUBLE PATH '$[14]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i

-- fragment: gone
JSON_TABLE(CAST(@p_g AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$[0]', was VARCHAR(1) CHARACTER SET ascii PATH '$[1]',
lease0 BIGINT PATH '$[2]', at0 BIGINT PATH '$[3]', rank0 DOUBLE PATH '$[4]', until BIGINT PATH '$[5]', c INT PATH '$[6]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i

-- fragment: guard
(k.state = j.was OR (j.was IN ('r', 'q') AND k.state IN ('r', 'q'))) AND k.lease = j.lease0 AND IFNULL(k.at, $never) = j.at0
AND k.rank1 = j.rank0 AND (j.until IS NULL OR j.until > @p_now)

-- name: change_rows
UPDATE $changed SET k.state = j.state1, k.rank2 = j.rank21, k.attempts = j.attempts1, k.expires = j.expires1, k.at = j.at1,
k.owner = j.owner1, k.reason = j.reason1, k.progress = j.progress1, k.call_no = @p_k WHERE $guard;

-- name: mark_gone
UPDATE $gone SET k.call_no = @p_k WHERE $guard;

-- name: move_changed
-- What micro-queues gain and lose by changes of their tasks. One that becomes ready waits first.
UPDATE (SELECT k.utube AS u, SUM(k.state = 't') AS t, SUM(k.state = 'r') AS r, SUM(k.state = 'q') AS q,
SUM(j.state1 = 'q') AS a, SUM(j.state1 = 't') AS b FROM $changed WHERE $guard GROUP BY k.utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u
SET l.taken = l.taken - s.t + s.b, l.heads = l.heads - s.r, l.waiting = l.waiting - s.q + s.a;

-- name: move_gone
UPDATE (SELECT k.utube AS u, SUM(k.state = 't') AS t, SUM(k.state = 'r') AS r, SUM(k.state = 'q') AS q
FROM $gone WHERE k.call_no = @p_k GROUP BY k.utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u
SET l.taken = l.taken - s.t, l.heads = l.heads - s.r, l.waiting = l.waiting - s.q;

-- name: count_marked
SELECT @p_got + ROW_COUNT() INTO @p_got FROM DUAL;

-- name: rewrite
-- What a change of state leaves as it is.
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (i BIGINT PATH '$[0]', first DOUBLE PATH '$[1]', pri1 INT PATH '$[2]',
lease1 BIGINT PATH '$[3]', created1 BIGINT PATH '$[4]', taken1 BIGINT PATH '$[5]',
d LONGTEXT CHARACTER SET ascii PATH '$[6]')) j STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i
SET k.rank1 = j.first, k.pri = j.pri1, k.lease = j.lease1, k.created = j.created1, k.taken = j.taken1,
k.data = UNHEX(j.d) WHERE k.call_no = @p_k;

-- name: outcomes_of
REPLACE INTO penstock_outcome (pk, tube, address, status, result, error, code, until)
SELECT k.pk, k.tube, k.address, r.status, UNHEX(r.result), r.error, r.code, @p_now + :retention
FROM JSON_TABLE(:outcomes, '$[*]' COLUMNS (i BIGINT PATH '$[0]', status VARCHAR(10) CHARACTER SET ascii PATH '$[1]',
result LONGTEXT CHARACTER SET ascii PATH '$[2]', error MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[3]',
code TEXT CHARACTER SET utf8mb4 PATH '$[4]')) r
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = r.i WHERE k.call_no = @p_k;

-- name: found
-- Where not all were changed: which were. Asked before those that are gone are removed.
SELECT k.pk & 1099511627775 FROM JSON_TABLE(IF(@p_got = :all, '[]', CAST(@p_d AS CHAR)), '$[*]'
COLUMNS (i BIGINT PATH '$[0]')) j STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.call_no = @p_k
UNION ALL SELECT k.pk & 1099511627775 FROM JSON_TABLE(IF(@p_got = :all, '[]', CAST(@p_g AS CHAR)), '$[*]'
COLUMNS (i BIGINT PATH '$[0]')) j STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.call_no = @p_k;

-- name: count_found
INSERT INTO penstock_delta (tube, :columns) SELECT @p_t, :sums FROM (
SELECT j.c FROM JSON_TABLE(IF(@p_got = :all, '[]', CAST(@p_d AS CHAR)), '$[*]'
COLUMNS (i BIGINT PATH '$[0]', c INT PATH '$[6]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.call_no = @p_k
UNION ALL SELECT j.c FROM JSON_TABLE(IF(@p_got = :all, '[]', CAST(@p_g AS CHAR)), '$[*]'
COLUMNS (i BIGINT PATH '$[0]', c INT PATH '$[6]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.call_no = @p_k) f HAVING COUNT(*) > 0;

-- name: count_all
INSERT INTO penstock_delta (tube, :columns) SELECT @p_t, :sums FROM DUAL WHERE @p_got = :all;

-- name: delete_gone
DELETE k FROM $gone WHERE k.call_no = @p_k;

-- name: import_members
UPDATE penstock_group SET total = total + :count, remaining = remaining + :count WHERE no = :no;

-- name: set_group_total
UPDATE penstock_group SET total = :total WHERE no = :no;
