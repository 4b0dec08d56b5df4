-- Queries for MySQL and MariaDB only; the rest is in store/sql/queries.sql. Only MySQL reads /*!80000 … */.
--
-- Statements without parameters that use variables (@p_…) are prepared once per connection (mysql_queries.py). Several
-- run in one packet, which is one transaction and sets every variable that it reads: @p_t the tube, @p_now the packet's
-- time, @p_k the number of the call, @p_ids task keys as a JSON list, @p_got their number, @p_us micro-queues (a JSON
-- list of hexadecimal names). JSON_TABLE reads CAST(… AS CHAR), because MySQL fixes the type of a variable when it
-- prepares the statement.

-- fragment: now
:now
-- fragment: in_ids
IN :ids
-- fragment: in_texts
IN :texts
-- fragment: for_update
FOR UPDATE
-- fragment: by_moving
FORCE INDEX (penstock_moving_group)
-- fragment: ready_of_t
FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = t.no AND state = 'r'
-- fragment: first_moment
(SELECT k.at FROM penstock_task k FORCE INDEX (penstock_timer) WHERE k.tube = t.no ORDER BY k.tube, k.at LIMIT 1)

-- server

-- name: settings
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_connections;
-- name: oldest_transaction
SELECT TIMESTAMPDIFF(SECOND, MIN(trx_started), NOW()) FROM information_schema.innodb_trx;
-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (:name, :value) ON DUPLICATE KEY UPDATE value = VALUES(value);
-- name: lock_schema
SELECT GET_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64), %s);
-- name: unlock_schema
SELECT RELEASE_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64));
-- name: watch
-- The result differs after every put, take, settle, pause and resume. Folding keeps the newest difference.
SELECT (SELECT MAX(id) FROM penstock_counter), (SELECT SUM(last) FROM penstock_id), (SELECT SUM(paused) FROM penstock_tube);
-- name: require
-- Error 1242 ends the packet if the condition does not hold.
SET @p_x = IF(:condition, 1, (SELECT 1 UNION SELECT 2));
-- name: require_tube
-- SET takes shared locks on the rows that it reads.
SET @p_x = IF(EXISTS (SELECT 1 FROM penstock_tube WHERE no = :tube), 1, (SELECT 1 UNION SELECT 2));

-- tubes and counters

-- name: add_tube
INSERT IGNORE INTO penstock_tube (name, kind, options) VALUES (:name, :kind, :options);
-- name: add_counter
INSERT INTO penstock_id (tube) VALUES (:tube);
-- name: tube_lives
SELECT 1 FROM penstock_tube WHERE no = :tube LOCK IN SHARE MODE;
-- name: lock_tube
-- Also locks the tube's last id, which keeps out puts.
SELECT 1 FROM penstock_tube t STRAIGHT_JOIN penstock_id i ON i.tube = t.no WHERE t.no = :tube FOR UPDATE;
-- name: hide_counter
-- Counters keep the positive number.
UPDATE penstock_id SET tube = -tube WHERE tube = :tube;
-- name: forget_counter
DELETE FROM penstock_counter WHERE tube = ABS(:tube);
-- name: forget_tube
DELETE t, i FROM penstock_tube t LEFT JOIN penstock_id i ON i.tube = t.no WHERE t.no = :tube;
-- name: add_counts
INSERT INTO penstock_counter (tube, :columns) VALUES (:tube, :numbers);
-- name: counters
-- Counters keep the positive number.
SELECT i.tube, last, last_ms, last_seq, (SELECT paused FROM penstock_tube WHERE no = i.tube), $sums
FROM penstock_id i LEFT JOIN penstock_counter c ON c.tube = ABS(i.tube) WHERE i.tube $in_ids GROUP BY i.tube;
-- name: stored
-- The number of stored tasks; the packet has locked the last id. Not a SET, which would lock the differences.
SELECT last - (SELECT IFNULL(SUM(done), 0) FROM penstock_counter WHERE tube = :tube) INTO @p_stored
FROM penstock_id WHERE tube = :tube;
-- name: set_mark
UPDATE penstock_id SET last_seq = IF((last_ms, last_seq) < (:ms, :seq), :seq, last_seq),
last_ms = GREATEST(last_ms, :ms) WHERE tube = :tube;
-- name: raise_last
UPDATE penstock_id SET last = GREATEST(last, :last) WHERE tube = :tube;
-- name: raise_serial
UPDATE penstock_id SET serial = GREATEST(serial, :serial) WHERE tube = :tube;
-- name: fold_find
-- Folding replaces the rows of a tube by one, and skips locked rows.
SELECT CONCAT('[', GROUP_CONCAT(x.id), ']') INTO @p_ids FROM (SELECT id FROM penstock_counter
FORCE INDEX (penstock_counter_tube) WHERE tube = @p_t LIMIT 2000 FOR UPDATE SKIP LOCKED) x;
-- fragment: folded
JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_counter c FORCE INDEX (PRIMARY) ON c.id = j.i
-- name: fold_add
INSERT INTO penstock_counter (tube, $counters) SELECT @p_t, $sums FROM $folded HAVING COUNT(*) > 0;
-- name: fold_drop
DELETE c FROM $folded;

-- loading, where it differs from the shared queries

-- name: unstarted
SELECT $record FROM penstock_task FORCE INDEX (penstock_queued)
WHERE tube = :tube AND place = CONCAT('g', :group) ORDER BY rank1, rank2, pk LIMIT :limit;
-- name: delivered
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' ORDER BY rank1, rank2, pk LIMIT :limit OFFSET :start;
-- name: delivered_back
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't'
ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT :limit OFFSET :start;
-- name: ahead
-- Written as ranges: a row comparison would not use the index.
SELECT COUNT(*) FROM (SELECT 1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
AND (rank1 < :rank1 OR (rank1 = :rank1 AND (rank2 < :rank2 OR (rank2 = :rank2 AND pk < :pk)))) LIMIT 1000) found;
-- name: live_group
SELECT $group FROM penstock_group WHERE tube = :tube AND live = :name;
-- name: live_groups
SELECT $group FROM penstock_group WHERE tube = :tube AND live > :after ORDER BY live LIMIT :limit;
-- name: add_group
INSERT IGNORE INTO penstock_group (tube, name, state) SELECT no, :name, 'open' FROM penstock_tube WHERE no = :tube LOCK IN SHARE MODE;
-- name: sweep_groups
DELETE g FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_over_group) WHERE tube = :tube AND until <= $now
ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED) old STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = old.no;
-- name: sweep_outcomes
DELETE o FROM (SELECT pk FROM penstock_outcome FORCE INDEX (penstock_outcome_until) WHERE tube = :tube AND until <= $now
ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED) old STRAIGHT_JOIN penstock_outcome o FORCE INDEX (PRIMARY) ON o.pk = old.pk;
-- name: forget_idle_queues
DELETE l FROM (SELECT utube FROM penstock_utube FORCE INDEX (penstock_idle_utube) WHERE tube = :tube AND idle_turn < $now
ORDER BY idle_turn LIMIT :limit FOR UPDATE SKIP LOCKED) old STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = :tube AND l.utube = old.utube;
-- name: held
-- penstock_ready, tube by tube, for kinds with leases.
SELECT k.tube, k.pk FROM penstock_tube t STRAIGHT_JOIN penstock_task k FORCE INDEX (penstock_ready)
ON k.tube = t.no AND k.state = 't' AND k.owner = :session WHERE t.kind LIKE '%"hand_out":"lease"%'
ORDER BY t.name, k.pk LIMIT :limit;

-- put

-- name: reserve
-- An INSERT that finds its row, because an UPDATE costs the server 15 µs more. If the tube is gone, there is no row to
-- find: ROW_COUNT is 1, the id is NULL, and the task with this id is refused, which undoes the packet.
-- Statements with a ? are prepared on MariaDB, where parsing was a third of the time of a put, and sent as text on MySQL.
INSERT INTO penstock_id (tube, last) VALUES (?, 0) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + ?);
-- name: reserve_one
-- A constant costs the server 10 µs less than a second ?.
INSERT INTO penstock_id (tube, last) VALUES (?, 0) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + 1);
-- name: next_marks
-- The ids of a reliable tube's messages: a time, and a number that restarts with each new time. Assignments run from
-- left to right, so that the number follows from the old time.
UPDATE penstock_id SET last_seq = IF(@p_now > last_ms, 0, last_seq) + :count, last_ms = GREATEST(last_ms, @p_now)
WHERE tube = :tube;
-- name: store_one
-- `columns` are those that are not NULL: each further one would cost the server 0.5 µs.
INSERT INTO penstock_task (tube, pk, state, rank1, rank2, pri, created, :columns)
VALUES (?, IF(ROW_COUNT() = 2, LAST_INSERT_ID(), NULL) + ?, 'r', ?, ?, ?, LAST_INSERT_ID($time), :terms);
-- name: find_name
SELECT CONCAT('reply-', :id, REPEAT('-', COUNT(*))) INTO :name FROM penstock_task FORCE INDEX (penstock_address)
WHERE tube = :tube AND address IN (:used);
-- name: supersede
UPDATE penstock_outcome FORCE INDEX (penstock_outcome_address) SET until = @p_now + :most
WHERE tube = :tube AND address $in_texts AND until > @p_now + :most;

-- take

-- fragment: next
LEAST(IFNULL((SELECT MIN(until) FROM penstock_handle), $never), IFNULL((SELECT MIN(until) FROM penstock_session), $never),
IFNULL((SELECT MIN(at) FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = @p_t), $never),
IF(EXISTS (SELECT 1 FROM penstock_group WHERE tube = @p_t AND moving = 1), 0, $never))
-- name: look
-- The next deadline (MIN is one index seek), and shared locks that keep the handle and the tube until the commit.
SELECT t.no, t.paused, h.session, $next INTO @p_no, @p_paused, @p_ses, @p_next FROM (SELECT 1) o
LEFT JOIN penstock_tube t ON t.no = @p_t LEFT JOIN penstock_handle h ON h.id = @p_h LOCK IN SHARE MODE;
-- fragment: ready
k.tube = @p_t AND k.state = 'r' AND (k.expires IS NULL OR k.expires > @p_now)
AND @p_ses IS NOT NULL AND @p_paused = 0 AND (@p_next > @p_now OR @p_forced = 1) AND @p_stop = 0
-- fragment: lease
state = 't', attempts = attempts + 1, lease = (lease >> 28) + 1 << 28 | @p_k, penstock_task.taken = @p_now,
rank2 = IF(@p_fair, 0, rank2), at = IFNULL(@p_now + ttr, $never), owner = @p_ses, progress = NULL
-- fragment: chosen
JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (place FOR ORDINALITY, i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task FORCE INDEX (PRIMARY) ON pk = j.i
-- fragment: choose
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']'), COUNT(*) INTO @p_ids, @p_got
-- name: find_one
SELECT k.pk, 1 INTO @p_id, @p_got FROM penstock_task k FORCE INDEX (penstock_ready) WHERE $ready
ORDER BY k.rank1, k.rank2, k.pk LIMIT 1 FOR UPDATE SKIP LOCKED;
-- name: lease_one
UPDATE penstock_task FORCE INDEX (PRIMARY) SET $lease WHERE pk = CAST(@p_id AS SIGNED);
-- name: show_one
SELECT @p_no, @p_ses, @p_now, @p_next, $brief FROM (SELECT 1) o LEFT JOIN penstock_task ON pk = CAST(@p_id AS SIGNED);
-- name: queue_of_task
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = k.tube AND l.utube = k.utube
-- name: find_many
-- In index order and with a LIMIT, so that only the taken rows are locked; :queues is empty or `queue_of_task`.
$choose FROM (SELECT k.pk, k.rank1, k.rank2 FROM penstock_task k FORCE INDEX (penstock_ready) :queues WHERE $ready
ORDER BY k.rank1, k.rank2, k.pk LIMIT ? FOR UPDATE SKIP LOCKED) c;
-- name: find_cancelled
-- The largest cancelled group, as a constant, so that its tasks are skipped in the index without reading their rows.
SELECT IFNULL(MAX(g.no), 0) INTO @p_gone FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_moving_group)
WHERE tube = @p_t AND moving = 1 AND state = 'cancelling' ORDER BY remaining DESC LIMIT 1) g;
-- name: find_some
-- Skips tasks that are cancelled or not urgent enough. Takes no locks: a range that ends before the last task would
-- lock the next one, too. `lock_some` locks the tasks that were found.
SELECT CONCAT('[', GROUP_CONCAT(c.pk ORDER BY c.rank1, c.rank2, c.pk), ']') INTO @p_some
FROM (SELECT pk, rank1, rank2 FROM penstock_task k FORCE INDEX (penstock_ready) WHERE $ready AND rank1 <= @p_m
AND NOT group_no <=> @p_gone AND (group_no IS NULL OR group_no NOT IN (SELECT no FROM penstock_group
WHERE tube = @p_t AND moving = 1 AND state = 'cancelling')) ORDER BY rank1, rank2, pk LIMIT :limit) c;
-- name: lock_some
$choose FROM (SELECT k.pk, k.rank1, k.rank2 FROM JSON_TABLE(CAST(@p_some AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i :queues WHERE k.state = 'r' AND k.rank1 <= @p_m
LIMIT :limit FOR UPDATE /*!80000 OF :tables */ SKIP LOCKED) c;
-- name: lease_many
UPDATE $chosen SET $lease;
-- name: serve_queues
UPDATE (SELECT utube AS u, COUNT(*) AS n FROM $chosen GROUP BY utube) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u SET l.taken = l.taken + s.n, l.heads = l.heads - s.n,
l.turn = IF(@p_fair, GREATEST(@p_now, l.turn + 1), l.turn);
-- name: turn_heads
-- Moves a micro-queue behind the others after a hand-out, with its remaining heads.
UPDATE (SELECT DISTINCT utube AS u FROM $chosen) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u STRAIGHT_JOIN penstock_task h FORCE INDEX (penstock_queued)
ON h.tube = @p_t AND h.place = CONCAT('r', l.utube) AND h.state = 'r' SET h.rank2 = l.turn;
-- name: count_takes
INSERT INTO penstock_counter (tube, taken, take_calls) SELECT @p_t, @p_got * @p_held, @p_got FROM DUAL WHERE @p_got > 0;
-- name: show_many
-- In the order of @p_ids, as JSON_TABLE returns it: sorting rows with data would create a table on disk.
SELECT @p_no, @p_ses, @p_now, @p_next, $brief FROM (SELECT 1) o LEFT JOIN ($chosen) ON TRUE;
-- name: stop
-- Whether to ignore the tubes that follow.
SELECT @p_stop OR @p_got > 0 OR @p_no IS NULL OR @p_ses IS NULL OR (@p_next <= @p_now AND @p_forced = 0), @p_all + @p_got,
@p_due OR (@p_stop = 0 AND @p_next <= @p_now AND @p_forced = 0) INTO @p_stop, @p_all, @p_due FROM DUAL;
-- name: hand_out_clocked
UPDATE $chosen SET rank1 = @p_now, penstock_task.taken = @p_now, attempts = attempts + 1;
-- name: serials
UPDATE penstock_id SET serial = LAST_INSERT_ID(serial + @p_got) WHERE tube = @p_t AND @p_got > 0;
-- name: hand_out_delivered
UPDATE $chosen SET state = 't', rank1 = LAST_INSERT_ID() - @p_got + j.place, penstock_task.taken = @p_now, attempts = attempts + 1;
-- name: first_rank
SELECT rank1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r' AND IFNULL(@p_paused, 0) = 0
ORDER BY rank1, rank2, pk LIMIT 1;
-- name: find_to_recover
-- Stops at the first message that is too young.
SELECT CONCAT('[', GROUP_CONCAT(d.pk ORDER BY d.rank1, d.pk), ']'), COUNT(*) INTO @p_ids, @p_got FROM (
SELECT c.pk, c.rank1, SUM(c.young) OVER (ORDER BY c.rank1, c.pk ROWS UNBOUNDED PRECEDING) AS young FROM (
SELECT pk, rank1, penstock_task.taken + :elapsed > @p_now AS young FROM penstock_task FORCE INDEX (penstock_ready)
WHERE tube = @p_t AND state = 't' AND @p_paused = 0 ORDER BY rank1, rank2, pk LIMIT :count FOR UPDATE SKIP LOCKED) c) d
WHERE d.young = 0;
-- name: add_waiter
-- Only for a handle that is there, which the lock keeps until the commit.
INSERT IGNORE INTO penstock_waiter (handle, tube, number)
SELECT h.id, t.no, :number FROM penstock_handle h STRAIGHT_JOIN penstock_tube t
WHERE h.id = :handle AND t.no $in_ids AND @p_all = 0 AND NOT @p_due LOCK IN SHARE MODE;
-- name: remove_waiter
DELETE FROM penstock_waiter WHERE handle = :handle AND number = :number AND :condition;
-- name: lock_handle
-- Exclusive, so it waits for a take of this handle that is still running.
SELECT session FROM penstock_handle WHERE id = :handle FOR UPDATE;
-- name: leased_by
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't'
AND owner = (SELECT session FROM penstock_handle WHERE id = :handle) AND lease & 268435455 = :call
ORDER BY pk;

-- ack

-- name: ack
-- `plain`: only tasks without group and address.
DELETE penstock_task FROM penstock_task FORCE INDEX (PRIMARY)
WHERE pk IN :ids AND state = 't' AND owner = :session AND (:lease IS NULL OR lease = :lease) AND at > $now AND $no_reply
AND errors IS NULL AND (:plain = 0 OR (group_no IS NULL AND address IS NULL));
-- name: ack_named
DELETE penstock_task FROM penstock_task FORCE INDEX (penstock_address)
WHERE tube = :tube AND address $in_texts AND state = 't' AND owner = 0;
-- name: ack_one
DELETE FROM penstock_task WHERE pk = ? AND owner = ? AND lease = ? AND at > $time AND state = 't' AND $no_reply
AND group_no IS NULL AND address IS NULL AND errors IS NULL;
-- name: count_one
INSERT INTO penstock_counter (tube, taken, done, ack_calls) SELECT ?, -1, 1, 1 FROM DUAL WHERE ROW_COUNT() = 1;
-- name: count_down
UPDATE penstock_group SET remaining = remaining - :count WHERE no = :no AND state = 'started' AND remaining > :count;
-- name: add_outcomes
INSERT INTO penstock_outcome (pk, tube, address, result, until) VALUES :rows;
-- name: keep_outcomes
-- Stores the outcomes of tasks that this packet removes.
REPLACE INTO penstock_outcome (pk, tube, address, status, result, error, code, errors, until)
SELECT pk, tube, IFNULL(address, ''), :ending, @p_now + :retention
FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk IN :ids AND call_no = @p_k;
-- name: outcomes_by_address
-- With few rows the optimizer would prefer penstock_outcome_until. The latest outcome of an address comes last.
SELECT $kept FROM penstock_outcome FORCE INDEX (penstock_outcome_address)
WHERE tube = :tube AND address $in_texts AND until + 0 > $now ORDER BY pk;

-- micro-queues: a packet has locked the rows of @p_us. The first (@p_l - taken) ready tasks of each are its heads.

-- fragment: queues
JSON_TABLE(CAST(@p_us AS CHAR), '$[*]' COLUMNS (u VARCHAR(400) CHARACTER SET ascii PATH '$')) u
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = UNHEX(u.u)
-- fragment: first_waiting
(SELECT k.pk FROM penstock_task k FORCE INDEX (penstock_queued) WHERE k.tube = @p_t AND k.place = CONCAT('q', l.utube)
ORDER BY k.rank1, k.rank2, k.pk LIMIT 1)
-- fragment: last_head
(SELECT k.pk FROM penstock_task k FORCE INDEX (penstock_queued) WHERE k.tube = @p_t AND k.place = CONCAT('r', l.utube)
AND k.state = 'r' ORDER BY k.rank1 DESC, k.rank2 DESC, k.pk DESC LIMIT 1)
-- name: enter_queues
-- Adds to a column of micro-queues. Creates missing ones, and locks them in the given order. In a fair tube, an empty
-- micro-queue gets a new turn.
INSERT INTO penstock_utube (tube, utube, :column, turn) VALUES :rows ON DUPLICATE KEY UPDATE
turn = IF(@p_fair AND penstock_utube.taken = 0 AND heads = 0 AND waiting = 0, GREATEST(@p_now, turn + 1), turn),
:column = penstock_utube.:column + VALUES(:column);
-- name: find_heads
-- Finds one task of each micro-queue: the first waiting one, if the limit allows another head or if it precedes the
-- last head (possible only if @p_over), whose place it takes. The next round handles only these micro-queues.
SELECT CONCAT('[', GROUP_CONCAT(CONCAT('[', q.pk, ',', IF(x.room, 'null', h.pk), ']')), ']'),
CONCAT('["', GROUP_CONCAT(HEX(q.utube) SEPARATOR '","'), '"]'), @p_gained + CAST(IFNULL(SUM(x.room), 0) AS SIGNED)
INTO @p_p, @p_us, @p_gained FROM (
SELECT l.taken + l.heads < @p_l AS room, $first_waiting AS a, IF(l.taken + l.heads < @p_l, NULL, $last_head) AS b
FROM $queues WHERE l.waiting > 0 AND (@p_over OR l.taken + l.heads < @p_l)) x
STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = x.a
LEFT JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = x.b
WHERE x.room OR (q.rank1, IF(@p_fair, 0, q.rank2), q.pk) < (h.rank1, IF(@p_fair, 0, h.rank2), h.pk);
-- name: make_heads
UPDATE JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (a BIGINT PATH '$[0]', b BIGINT PATH '$[1]')) j
STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = j.a
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = q.utube
LEFT JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = j.b
SET q.state = 'r', q.rank2 = IF(@p_fair, l.turn, q.rank2), h.state = 'q', h.rank2 = IF(@p_fair, 0, h.rank2),
l.heads = l.heads + (j.b IS NULL), l.waiting = l.waiting - (j.b IS NULL);
-- name: forget_empty_queues
DELETE l FROM $queues WHERE l.taken = 0 AND l.heads = 0 AND l.waiting = 0 AND (NOT @p_fair OR l.turn < @p_now);

-- changes

-- name: move_in_queues
-- Updates the counts of micro-queues. A task that becomes ready is counted as waiting first.
UPDATE (SELECT k.utube AS u, COUNT(*) AS n, SUM(k.state = 'r') AS r, SUM(k.state = 'q') AS q
FROM penstock_task k FORCE INDEX (PRIMARY) WHERE :guard GROUP BY k.utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u
SET l.taken = l.taken + s.n * :taken, l.heads = l.heads - s.r, l.waiting = l.waiting + s.n * :waits - s.q;
-- name: change_rows
UPDATE penstock_task k FORCE INDEX (PRIMARY) SET k.call_no = @p_k:new WHERE :guard;
-- name: count_changed
SELECT :count + ROW_COUNT(), @p_got + ROW_COUNT() INTO :count, @p_got FROM DUAL;
-- name: show_changed
-- If not all rows were changed: those that were, before some of them are deleted.
SELECT pk & 1099511627775 FROM penstock_task FORCE INDEX (PRIMARY) WHERE @p_got < :all AND pk IN :ids AND call_no = @p_k;
-- name: delete_gone
DELETE k FROM penstock_task k FORCE INDEX (PRIMARY) WHERE k.pk IN :ids AND k.call_no = @p_k;
