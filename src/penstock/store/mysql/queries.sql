-- What only MySQL and MariaDB are asked; the rest is in store/sql/queries.sql. Where the two differ, MySQL alone reads
-- /*!80000 … */ and MariaDB alone /*M! … */.
--
-- Statements without parameters that use variables (@p_…) are prepared once per connection (queries.py). Several run in
-- one packet, which is one transaction and sets every variable that it reads: @p_t tube, @p_now its time, @p_k the number
-- of the call, @p_ids task keys as a JSON list, @p_got how many, @p_us micro-queues (a JSON list of hexadecimal names).
-- JSON_TABLE reads CAST(… AS CHAR), because MySQL fixes the type of a variable when it prepares the statement.

-- fragment: now
:now
-- fragment: ids
:ids
-- fragment: texts
:texts
-- fragment: first_moment
(SELECT k.at FROM penstock_task k FORCE INDEX (penstock_timer) WHERE k.tube = t.no ORDER BY k.tube, k.at LIMIT 1)

-- server

-- name: settings
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_connections;
-- name: oldest_transaction
SELECT TIMESTAMPDIFF(SECOND, MIN(trx_started), NOW()) FROM information_schema.innodb_trx;
-- name: all_meta
SELECT name, value FROM penstock_meta;
-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value);
-- name: set_altered
INSERT INTO penstock_meta (name, value) VALUES ('altered', :value) ON DUPLICATE KEY UPDATE value = VALUES(value);
-- name: lock_schema
SELECT GET_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64), %s);
-- name: unlock_schema
SELECT RELEASE_LOCK(LEFT(CONCAT('penstock ', DATABASE()), 64));
-- name: watch
-- Differs after every put, take, settle, pause and resume. Folding leaves the newest difference.
SELECT (SELECT MAX(id) FROM penstock_delta), (SELECT SUM(last) FROM penstock_id), (SELECT SUM(paused) FROM penstock_tube);
-- name: require
-- Error 1242 ends the packet where the condition does not hold.
SET @p_x = IF(:condition, 1, (SELECT 1 UNION SELECT 2));
-- name: require_tube
-- SET locks what it reads (shared).
SET @p_x = IF(EXISTS (SELECT 1 FROM penstock_tube WHERE no = :tube), 1, (SELECT 1 UNION SELECT 2));

-- tubes and counters

-- name: add_tube
INSERT IGNORE INTO penstock_tube (name, kind, options) VALUES (:name, :kind, :options);
-- name: add_id
INSERT INTO penstock_id (tube) VALUES (:tube);
-- name: add_counter
INSERT INTO penstock_counter (tube) VALUES (:tube);
-- name: tube_lives
SELECT 1 FROM penstock_tube WHERE no = :tube LOCK IN SHARE MODE;
-- name: lock_tube
-- With its last id, so that nobody puts either.
SELECT 1 FROM penstock_tube t STRAIGHT_JOIN penstock_id i ON i.tube = t.no WHERE t.no = :tube FOR UPDATE;
-- name: hide_counter
-- Counters keep the positive number: differences are folded into them until the tube is empty.
UPDATE penstock_id SET tube = -tube WHERE tube = :tube;
-- name: forget_counter
DELETE c, d FROM penstock_counter c LEFT JOIN penstock_delta d ON d.tube = c.tube WHERE c.tube = ABS(:tube);
-- name: forget_tube
DELETE t, i FROM penstock_tube t LEFT JOIN penstock_id i ON i.tube = t.no WHERE t.no = :tube;
-- name: add_counts
INSERT INTO penstock_delta (tube, :columns) VALUES (:tube, :numbers);
-- name: counters
SELECT i.last, i.last_ms, i.last_seq, $summed FROM penstock_id i JOIN penstock_counter c ON c.tube = ABS(i.tube)
LEFT JOIN (SELECT $sums FROM penstock_delta WHERE tube = :counted) d ON TRUE WHERE i.tube = :tube;
-- name: stored
-- How many tasks there are; the packet has locked the last id. Not in a SET, which would lock the differences.
SELECT i.last - c.done - (SELECT IFNULL(SUM(d.done), 0) FROM penstock_delta d WHERE d.tube = :tube) INTO @p_stored
FROM penstock_id i JOIN penstock_counter c ON c.tube = i.tube WHERE i.tube = :tube;
-- name: set_mark
UPDATE penstock_id SET last_seq = IF((last_ms, last_seq) < (:ms, :seq), :seq, last_seq),
last_ms = GREATEST(last_ms, :ms) WHERE tube = :tube;
-- name: raise_serial
UPDATE penstock_counter SET serial = GREATEST(serial, :serial) WHERE tube = :tube;

-- Folding adds differences to the counters, and waits for nobody: it skips what others have locked.

-- name: fold_upto
SELECT MAX(id) INTO @p_top FROM penstock_delta;
-- name: fold_find
SELECT CONCAT('[', GROUP_CONCAT(x.id), ']') INTO @p_ids FROM (SELECT d.id FROM penstock_delta d FORCE INDEX (PRIMARY)
STRAIGHT_JOIN penstock_counter c ON c.tube = d.tube WHERE d.id < @p_top ORDER BY d.id LIMIT 2000 FOR UPDATE SKIP LOCKED) x;
-- fragment: folded
JSON_TABLE(CAST(@p_ids AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_delta d FORCE INDEX (PRIMARY) ON d.id = j.i
-- name: fold_add
UPDATE (SELECT d.tube, $sums FROM $folded GROUP BY d.tube) d STRAIGHT_JOIN penstock_counter c ON c.tube = d.tube SET $added;
-- name: fold_drop
DELETE d FROM $folded;

-- loading, where it differs from the shared queries

-- name: look_at_tube
SELECT :now, (SELECT COUNT(*) FROM penstock_tube WHERE no = :tube);
-- name: unstarted
SELECT $record FROM penstock_task FORCE INDEX (penstock_queued)
WHERE tube = :tube AND place = CONCAT('g', :group) ORDER BY rank1, rank2, pk LIMIT :limit;
-- name: delivered
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't' ORDER BY rank1, rank2, pk LIMIT :limit OFFSET :start;
-- name: delivered_back
SELECT $record FROM penstock_task WHERE tube = :tube AND state = 't'
ORDER BY rank1 DESC, rank2 DESC, pk DESC LIMIT :limit OFFSET :start;
-- name: ahead
-- As ranges: an index does not compare rows.
SELECT COUNT(*) FROM (SELECT 1 FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 'r'
AND (rank1 < :rank1 OR (rank1 = :rank1 AND (rank2 < :rank2 OR (rank2 = :rank2 AND pk < :pk)))) LIMIT 1000) found;
-- name: live_group
SELECT $group FROM penstock_group WHERE tube = :tube AND live = :name;
-- name: live_groups
SELECT $group FROM penstock_group WHERE tube = :tube AND live > :after ORDER BY live LIMIT :limit;
-- name: add_group
INSERT IGNORE INTO penstock_group (tube, name, state) VALUES (:tube, :name, 'open');
-- name: find_old
-- Without locking: a range that ends before the last row would wait for whoever has locked that.
SELECT (SELECT CONCAT('[', GROUP_CONCAT(x.no), ']') FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_over_group)
WHERE tube = @p_t AND until <= @p_now ORDER BY until LIMIT :limit) x),
(SELECT CONCAT('["', GROUP_CONCAT(HEX(x.utube) SEPARATOR '","'), '"]') FROM (SELECT utube FROM penstock_utube
FORCE INDEX (penstock_idle_utube) WHERE tube = @p_t AND @p_fair AND idle_turn < @p_now ORDER BY idle_turn LIMIT :limit) x)
INTO @p_over, @p_us;
-- name: sweep_groups
DELETE g FROM JSON_TABLE(CAST(@p_over AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = j.i;
-- name: held
-- penstock_ready, tube by tube, of the kinds that lease.
SELECT k.tube, k.pk FROM penstock_tube t STRAIGHT_JOIN penstock_task k FORCE INDEX (penstock_ready)
ON k.tube = t.no AND k.state = 't' AND k.owner = :session WHERE t.kind LIKE '%"hand_out":"lease"%'
ORDER BY t.name, k.pk LIMIT :limit;

-- sessions

-- name: add_session
-- It lingers until its first handle joins, so that it ends if none does.
INSERT INTO penstock_session (id, ttr, until) VALUES (:id, :ttr, $now + :ttr + :lapse);
-- name: lock_session
SELECT until IS NULL OR until > $now FROM penstock_session WHERE no = :no FOR UPDATE;

-- put

-- name: reserve
-- An INSERT that finds its row, because an UPDATE costs the server 15 µs more. If the tube is gone it finds none: then
-- ROW_COUNT is 1, the id NULL, and the task that would get it is refused, which undoes the packet. Assigned from left to
-- right, so that the marks of a reliable tube (:marks) see the old moment.
INSERT INTO penstock_id (tube, last) VALUES (:tube, 0) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + :count):marks;
-- name: supersede
UPDATE penstock_outcome FORCE INDEX (penstock_outcome_address) SET until = @p_now + :most
WHERE tube = :tube AND address IN $texts AND until > @p_now + :most;

-- take

-- fragment: next
LEAST(IFNULL((SELECT MIN(until) FROM penstock_handle), $never), IFNULL((SELECT MIN(until) FROM penstock_session), $never),
IFNULL((SELECT MIN(at) FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = @p_t), $never),
IF(EXISTS (SELECT 1 FROM penstock_group WHERE tube = @p_t AND moving = 1), 0, $never))
-- name: next_moment
SELECT $next FROM DUAL;
-- name: look
-- The next deadline (MIN is one step in an index), and shared locks that keep the handle and the tube until the commit.
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
-- In index order and with a LIMIT, so that only what is taken is locked; :queues is empty or `queue_of_task`.
$choose FROM (SELECT k.pk, k.rank1, k.rank2 FROM penstock_task k FORCE INDEX (penstock_ready) :queues WHERE $ready
ORDER BY k.rank1, k.rank2, k.pk LIMIT :limit FOR UPDATE SKIP LOCKED) c;
-- name: find_cancelled
-- The largest group that is cancelled, as a constant: its tasks are passed over in the index, without reading their rows.
SELECT IFNULL(MAX(g.no), 0) INTO @p_gone FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_moving_group)
WHERE tube = @p_t AND moving = 1 AND state = 'cancelling' ORDER BY remaining DESC LIMIT 1) g;
-- name: find_some
-- Passes over what is cancelled or not urgent enough, without locking: a range that ends before the last task would lock
-- the next one, too. `lock_some` locks what is left.
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
-- A micro-queue that was served goes behind the others, with its remaining heads.
UPDATE (SELECT DISTINCT utube AS u FROM $chosen) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u STRAIGHT_JOIN penstock_task h FORCE INDEX (penstock_queued)
ON h.tube = @p_t AND h.place = CONCAT('r', l.utube) SET h.rank2 = l.turn;
-- name: count_takes
INSERT INTO penstock_delta (tube, taken, take_calls) SELECT @p_t, @p_got * @p_held, @p_got FROM DUAL WHERE @p_got > 0;
-- name: show_many
-- In the order of @p_ids, as JSON_TABLE reads it: sorting rows with data makes a table on disk.
SELECT @p_no, @p_ses, @p_now, @p_next, $brief FROM (SELECT 1) o LEFT JOIN ($chosen) ON TRUE;
-- name: stop
-- Whether to ignore the tubes that follow.
SELECT @p_stop OR @p_got > 0 OR @p_no IS NULL OR @p_ses IS NULL OR (@p_next <= @p_now AND @p_forced = 0), @p_all + @p_got,
@p_due OR (@p_stop = 0 AND @p_next <= @p_now AND @p_forced = 0) INTO @p_stop, @p_all, @p_due FROM DUAL;
-- name: hand_out_clocked
UPDATE $chosen SET rank1 = @p_now, penstock_task.taken = @p_now, attempts = attempts + 1;
-- name: serials
UPDATE penstock_counter SET serial = LAST_INSERT_ID(serial + @p_got) WHERE tube = @p_t AND @p_got > 0;
-- name: last_serial
SELECT LAST_INSERT_ID() - @p_got INTO @p_serial;
-- name: hand_out_delivered
UPDATE $chosen SET state = 't', rank1 = @p_serial + j.place, penstock_task.taken = @p_now, attempts = attempts + 1;
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
DELETE FROM penstock_waiter WHERE handle = :handle AND number = :number AND :condition;
-- name: lock_handle
-- Exclusive: waits for a take of this handle that is still running.
SELECT session FROM penstock_handle WHERE id = :handle FOR UPDATE;
-- name: leased_by
SELECT $record FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = :tube AND state = 't'
AND owner = (SELECT session FROM penstock_handle WHERE id = :handle) AND lease & 268435455 = :call
ORDER BY pk;

-- ack

-- name: ack
DELETE penstock_task FROM penstock_task FORCE INDEX (PRIMARY)
WHERE pk IN $ids AND :guards AND at > $now AND state = 't' AND reply_to IS NULL AND errors IS NULL;
-- name: count_down
UPDATE penstock_group SET remaining = remaining - :count WHERE no = :no AND state = 'started' AND remaining > :count;
-- name: add_outcomes
INSERT INTO penstock_outcome (pk, tube, address, status, result, until)
-- name: lock_named
SELECT CONCAT('[', GROUP_CONCAT(x.pk), ']'), COUNT(*) INTO @p_ids, @p_got FROM (SELECT pk FROM penstock_task
FORCE INDEX (penstock_address) WHERE tube = :tube AND address IN $texts AND state = 't' AND owner = 0 FOR UPDATE) x;
-- name: count_named
INSERT INTO penstock_delta (tube, taken, done, ack_calls) SELECT @p_t, -@p_got, @p_got, @p_got FROM DUAL WHERE @p_got > 0;
-- name: show_named
SELECT address FROM $chosen;
-- name: delete_named
DELETE penstock_task FROM $chosen;
-- name: keep_outcomes
-- Of the tasks that this packet removes.
REPLACE INTO penstock_outcome (pk, tube, address, status, result, error, code, errors, until)
SELECT k.pk, k.tube, IFNULL(k.address, ''), r.status, UNHEX(r.result), r.error, r.code, k.errors, @p_now + :retention
FROM JSON_TABLE(:outcomes, '$[*]' COLUMNS (i BIGINT PATH '$[0]', status VARCHAR(10) CHARACTER SET ascii PATH '$[1]',
result LONGTEXT CHARACTER SET ascii PATH '$[2]', error MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[3]',
code TEXT CHARACTER SET utf8mb4 PATH '$[4]')) r
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = r.i WHERE k.call_no = @p_k;
-- name: ended_addresses
-- With few rows the optimizer prefers penstock_outcome_until.
SELECT address FROM penstock_outcome FORCE INDEX (penstock_outcome_address)
WHERE tube = :tube AND address IN $texts AND until + 0 > $now;
-- name: old_outcomes
-- penstock_outcome_until. With each new outcome some old ones are removed, so that they never outnumber what the
-- retention asks for, even in a tube that nobody ever advances.
SELECT CONCAT('[', GROUP_CONCAT(x.pk), ']') INTO @p_old FROM (SELECT pk FROM penstock_outcome
FORCE INDEX (penstock_outcome_until) WHERE tube = @p_t AND until <= @p_now ORDER BY until LIMIT :limit
FOR UPDATE SKIP LOCKED) x;
-- name: forget_old_outcomes
DELETE o FROM JSON_TABLE(CAST(@p_old AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j
STRAIGHT_JOIN penstock_outcome o FORCE INDEX (PRIMARY) ON o.pk = j.i;

-- micro-queues (store/mysql/queues.py)

-- fragment: queues
JSON_TABLE(CAST(@p_us AS CHAR), '$[*]' COLUMNS (u VARCHAR(400) CHARACTER SET ascii PATH '$')) u
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = UNHEX(u.u)
-- fragment: promoted
JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$')) j STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY)
ON k.pk = j.i
-- name: queues_of
SELECT CONCAT('[', GROUP_CONCAT(DISTINCT CONCAT('"', HEX(utube), '"') ORDER BY utube), ']') INTO @p_us
FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk IN $ids;
-- name: lock_queues
SELECT COUNT(*) INTO @p_x FROM (SELECT l.utube FROM $queues FOR UPDATE /*!80000 OF l */) x;
-- name: pass_on
-- Where a micro-queue has one place: the task that leaves it makes room for the first that waits, which `pass_on` of
-- queues.py makes a head. Twice as fast as `lock_queues`, `leave_queues` and `find_promoted`.
UPDATE $queues SET l.heads = l.waiting > 0, l.waiting = l.waiting - (l.waiting > 0), l.taken = 0
WHERE l.taken = 1 AND l.heads = 0;
-- name: leave_queues
UPDATE (SELECT utube AS u, COUNT(*) AS n FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk IN $ids
GROUP BY utube ORDER BY NULL) s STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY)
ON l.tube = @p_t AND l.utube = s.u SET l.taken = l.taken - s.n;
-- name: nth
-- A task of a micro-queue by its place: of those that wait counted from the first, of its heads from the last (:way DESC).
(SELECT k.pk FROM penstock_task k FORCE INDEX (penstock_queued) WHERE k.tube = @p_t AND k.place = CONCAT(:state, l.utube)
ORDER BY k.rank1 :way, k.rank2 :way, k.pk :way LIMIT 1 OFFSET :place)
-- name: find_promoted
SELECT CONCAT('[', GROUP_CONCAT(x.p), ']'),
@p_gained + CAST(IFNULL(SUM(1 + LENGTH(x.p) - LENGTH(REPLACE(x.p, ',', ''))), 0) AS SIGNED) INTO @p_p, @p_gained
FROM (SELECT CONCAT_WS(',', :firsts) AS p FROM $queues WHERE :condition) x WHERE x.p <> '';
-- name: promote
-- :counted where each micro-queue has at most one of them: then its row is joined once, and counted here.
UPDATE $promoted STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = k.tube AND l.utube = k.utube
SET k.state = 'r', k.rank2 = IF(@p_fair, l.turn, k.rank2):counted;
-- name: promote_in_queues
UPDATE (SELECT k.utube AS u, COUNT(*) AS n FROM $promoted GROUP BY k.utube) s STRAIGHT_JOIN penstock_utube l
FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u SET l.heads = l.heads + s.n, l.waiting = l.waiting - s.n;
-- name: find_swaps
SELECT CONCAT('[', GROUP_CONCAT(CONCAT('[', q.pk, ',', h.pk, ']')), ']') INTO @p_p FROM (:pairs) x
STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = x.a
STRAIGHT_JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = x.b
WHERE (q.rank1, IF(@p_fair, 0, q.rank2), q.pk) < (h.rank1, IF(@p_fair, 0, h.rank2), h.pk);
-- name: swap_pair
SELECT :waiting AS a, :head AS b FROM $queues WHERE l.waiting > :place AND l.heads > :place;
-- name: swap
UPDATE JSON_TABLE(CAST(@p_p AS CHAR), '$[*]' COLUMNS (a BIGINT PATH '$[0]', b BIGINT PATH '$[1]')) j
STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = j.a
STRAIGHT_JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = j.b
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = q.utube
SET q.state = 'r', q.rank2 = IF(@p_fair, l.turn, q.rank2), h.state = 'q', h.rank2 = IF(@p_fair, 0, h.rank2);
-- name: forget_empty_queues
DELETE l FROM $queues WHERE l.taken = 0 AND l.heads = 0 AND l.waiting = 0 AND (NOT @p_fair OR l.turn < @p_now);

-- changes (store/mysql/flush.py): state1 is '-' for a task that is removed

-- fragment: changed
JSON_TABLE(CAST(@p_d AS CHAR), '$[*]' COLUMNS (i BIGINT PATH '$[0]', was VARCHAR(1) CHARACTER SET ascii PATH '$[1]',
lease0 BIGINT PATH '$[2]', at0 BIGINT PATH '$[3]', rank0 DOUBLE PATH '$[4]', until BIGINT PATH '$[5]', c INT PATH '$[6]',
state1 VARCHAR(1) CHARACTER SET ascii PATH '$[7]', rank21 DOUBLE PATH '$[8]', attempts1 INT PATH '$[9]',
expires1 BIGINT PATH '$[10]', at1 BIGINT PATH '$[11]', owner1 BIGINT PATH '$[12]',
reason1 TEXT CHARACTER SET utf8mb4 PATH '$[13]', progress1 DOUBLE PATH '$[14]',
errors1 LONGTEXT CHARACTER SET ascii PATH '$[15]', known INT PATH '$[16]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i
-- fragment: guard
(k.state = j.was OR (j.was IN ('r', 'q') AND k.state IN ('r', 'q'))) AND k.lease = j.lease0 AND IFNULL(k.at, $never) = j.at0
AND k.rank1 = j.rank0 AND (j.until IS NULL OR j.until > @p_now) AND (k.errors IS NULL OR j.known)
-- name: move_in_queues
-- What micro-queues gain and lose. A task that becomes ready waits first.
UPDATE (SELECT k.utube AS u, SUM(j.state1 = 't') - SUM(k.state = 't') AS t, SUM(k.state = 'r') AS r,
SUM(j.state1 = 'q') - SUM(k.state = 'q') AS q FROM $changed WHERE $guard GROUP BY k.utube) s
STRAIGHT_JOIN penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = s.u
SET l.taken = l.taken + s.t, l.heads = l.heads - s.r, l.waiting = l.waiting + s.q;
-- name: change_rows
UPDATE $changed SET k.state = IF(j.state1 = '-', k.state, j.state1), k.rank2 = j.rank21, k.attempts = j.attempts1,
k.expires = j.expires1, k.at = j.at1, k.owner = j.owner1, k.reason = j.reason1, k.progress = j.progress1,
k.errors = IFNULL(UNHEX(j.errors1), k.errors), k.call_no = @p_k
WHERE $guard;
-- name: count_changed
SELECT ROW_COUNT() INTO @p_got FROM DUAL;
-- name: rewrite
-- What a change of state leaves as it is.
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (i BIGINT PATH '$[0]', first DOUBLE PATH '$[1]', pri1 INT PATH '$[2]',
lease1 BIGINT PATH '$[3]', created1 BIGINT PATH '$[4]', taken1 BIGINT PATH '$[5]',
d LONGTEXT CHARACTER SET ascii PATH '$[6]')) j STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i
SET k.rank1 = j.first, k.pri = j.pri1, k.lease = j.lease1, k.created = j.created1, k.taken = j.taken1,
k.data = UNHEX(j.d) WHERE k.call_no = @p_k;
-- fragment: found
JSON_TABLE(IF(@p_got = :all, '[]', CAST(@p_d AS CHAR)), '$[*]' COLUMNS (i BIGINT PATH '$[0]', c INT PATH '$[6]')) j
STRAIGHT_JOIN penstock_task k FORCE INDEX (PRIMARY) ON k.pk = j.i WHERE k.call_no = @p_k
-- name: show_found
-- Where not all were changed: which were, before those that are gone are removed.
SELECT k.pk & 1099511627775 FROM $found;
-- name: count_found
INSERT INTO penstock_delta (tube, :columns) SELECT @p_t, :sums FROM (SELECT j.c FROM $found) f HAVING COUNT(*) > 0;
-- name: count_all
INSERT INTO penstock_delta (tube, :columns) SELECT @p_t, :sums FROM DUAL WHERE @p_got = :all;
-- name: delete_gone
DELETE k FROM $changed WHERE j.state1 = '-' AND k.call_no = @p_k;
-- name: import_members
UPDATE penstock_group SET total = total + :count, remaining = remaining + :count WHERE no = :no;
-- name: set_group_total
UPDATE penstock_group SET total = :total, failed = :failed WHERE no = :no;
