-- What becomes of tasks: the decisions of core/lifecycle.py, applied. Procedures are part of a caller's transaction.
-- A result set of them has four columns, the first names it: what happens to a task (tube, record before it, data),
-- 'ready' (tube, how many became takeable), 'group' (tube, number of one that is over), or 'work' (tube, record and
-- data of a reply or of group work that was put). Python derives events and the records afterwards by core's own rules.
DROP PROCEDURE IF EXISTS penstock_move;

-- Bring one locked task from p_old to p_new: r, ~, g, ! or -. Where it says r, its micro-queue decides between r and q.
CREATE PROCEDURE penstock_move(
    p_tube INT UNSIGNED, p_id BIGINT, p_old CHAR(1) CHARACTER SET ascii, p_new CHAR(1) CHARACTER SET ascii,
    p_at BIGINT, p_expires BIGINT, p_attempts INT, p_reason TEXT CHARACTER SET utf8mb4,
    p_utube VARBINARY(200), p_rank1 DOUBLE, p_rank2 DOUBLE,
    p_lanes INT, p_fair INT, p_limit INT, p_now BIGINT, INOUT p_readied INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_state CHAR(1) CHARACTER SET ascii DEFAULT p_new;
    DECLARE v_rank2 DOUBLE DEFAULT IF(p_fair, 0, p_rank2);  -- a turn is its lane's: only heads carry it
    IF p_new = 'r' AND p_lanes THEN
        CALL penstock_lane_arrive(
            p_tube, p_utube, p_id, p_rank1, p_old, p_fair, p_limit, p_now, v_state, v_rank2, p_readied
        );
    ELSEIF p_new = 'r' THEN
        SET p_readied = p_readied + 1;
    END IF;
    IF p_new = '-' THEN
        DELETE FROM penstock_task WHERE tube = p_tube AND id = p_id;
    ELSE
        UPDATE penstock_task SET state = v_state, lane_state = IF(p_lanes AND p_new = 'r', v_state, NULL),
            rank2 = v_rank2, at = IFNULL(p_at, 9007199254740991), expires = p_expires, attempts = p_attempts, owner = 0, reason = p_reason
        WHERE tube = p_tube AND id = p_id;
        IF p_old = 'g' OR p_new = 'g' THEN
            UPDATE penstock_task t FORCE INDEX (PRIMARY)
            STRAIGHT_JOIN penstock_member m FORCE INDEX (PRIMARY) ON m.group_no = t.group_no AND m.id = t.id
            SET m.waits = p_new = 'g', m.rank1 = t.rank1, m.rank2 = t.rank2 WHERE t.tube = p_tube AND t.id = p_id;
        END IF;
    END IF;
    IF p_lanes AND p_new <> 'r' AND p_old IN ('r', 'q', 't') THEN
        CALL penstock_lane_left(p_tube, p_utube, p_old, p_fair, p_limit, p_now, p_readied);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_sweep;

-- Do one thing to these tasks, as far as they are still such: due (their moment has come), release (they are taken,
-- by p_owner if given), kick (buried), start (they wait for their group's start), delete or lapse (any; what
-- expired goes by its ttl). Every change of a group's task passes the group's gate, as in core/group.py; so the result
-- set names the group's state, too: due/open.
CREATE PROCEDURE penstock_sweep(
    p_tube INT UNSIGNED, p_what VARCHAR(10) CHARACTER SET ascii, p_ids LONGTEXT CHARACTER SET utf8mb4, p_owner BIGINT,
    p_now BIGINT
)
SQL SECURITY INVOKER
sweeping: BEGIN
    DECLARE v_over, v_readied, v_bury, v_gone, v_cancelled, v_open INT DEFAULT 0;
    DECLARE v_removes INT DEFAULT p_what IN ('delete', 'lapse');
    DECLARE v_lanes, v_fair, v_limit, v_attempts, v_max INT;
    DECLARE v_taken, v_delayed, v_buried, v_done, v_buries, v_ttls, v_ttrs, v_dues INT DEFAULT 0;
    DECLARE v_releases, v_kicks, v_deletes INT DEFAULT 0;
    DECLARE v_id, v_at, v_expires, v_group, v_retention BIGINT;
    DECLARE v_state, v_new CHAR(1) CHARACTER SET ascii;
    DECLARE v_group_state VARCHAR(10) CHARACTER SET ascii;
    DECLARE v_utube, v_address, v_reply_to VARBINARY(200);
    DECLARE v_rank1, v_rank2 DOUBLE;
    DECLARE v_reason TEXT CHARACTER SET utf8mb4;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE c_tasks CURSOR FOR
        SELECT t.id, t.state, t.at, t.expires, t.attempts, t.max_attempts, t.reason, t.utube, t.rank1, t.rank2,
            t.address, t.reply_to, t.group_no, g.state
        FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        LEFT JOIN penstock_group g ON g.no = t.group_no FOR UPDATE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT lanes, fair, utube_limit, IF(hand_out = 'lease', retention, NULL) INTO v_lanes, v_fair, v_limit, v_retention
    FROM penstock_tube WHERE no = p_tube;
    IF v_lanes THEN
        CALL penstock_lock_lanes(p_tube, p_ids);
    END IF;
    -- All tasks before any group, as those do who settle. Who follows a group's record leaves out what others are at.
    IF p_what = 'start' THEN
        SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.place), ']') INTO v_ids FROM (
            SELECT t.id, j.place FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) j
            STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
            WHERE t.state = 'g' FOR UPDATE SKIP LOCKED
        ) d;
    ELSE
        SELECT CONCAT('[', GROUP_CONCAT(t.id ORDER BY j.place), ']') INTO v_ids
        FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE (p_what <> 'due' OR t.at <= p_now) AND (p_what <> 'kick' OR t.state = '!')
        AND (p_what <> 'release' OR (t.state = 't' AND (p_owner IS NULL OR t.owner = p_owner))) FOR UPDATE;
    END IF;
    IF v_ids IS NULL THEN
        LEAVE sweeping;
    END IF;
    -- Of a start nothing is told, unless the group was cancelled meanwhile.
    SELECT IF(p_what = 'start', 'cancel/cancelling', CONCAT_WS('/', p_what, g.state)), p_tube, t.record, t.data
    FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_record t ON t.tube = p_tube AND t.id = j.id
    LEFT JOIN penstock_group g ON g.no = t.group_no
    WHERE p_what <> 'start' OR g.state = 'cancelling' FOR UPDATE;
    IF v_lanes AND v_removes THEN
        CALL penstock_lane_skip(p_tube, v_ids);
    END IF;
    OPEN c_tasks;
    tasks: LOOP
        SET v_over = 0;
        FETCH c_tasks INTO v_id, v_state, v_at, v_expires, v_attempts, v_max, v_reason, v_utube, v_rank1, v_rank2,
            v_address, v_reply_to, v_group, v_group_state;
        IF v_over THEN
            LEAVE tasks;
        END IF;
        IF v_lanes AND v_state IN ('r', 'q') THEN
            -- An earlier one of this sweep may have promoted or demoted it.
            SELECT state INTO v_state FROM penstock_task WHERE tube = p_tube AND id = v_id;
        END IF;
        SET v_cancelled = IFNULL(v_group_state = 'cancelling', 0), v_open = IFNULL(v_group_state = 'open', 0);
        SET v_gone = p_what <> 'kick' AND v_expires IS NOT NULL AND v_expires <= p_now;
        SET v_bury = v_state = 't' AND v_max IS NOT NULL AND v_attempts >= v_max;
        SET v_taken = v_taken - (v_state = 't'), v_delayed = v_delayed - (v_state IN ('~', 'g')),
            v_buried = v_buried - (v_state = '!');
        IF v_removes OR (v_cancelled AND NOT v_gone) THEN
            SET v_gone = v_gone AND v_state <> 't' AND NOT v_cancelled, v_new = '-';
            SET v_ttls = v_ttls + v_gone, v_deletes = v_deletes + (NOT v_gone);
        ELSEIF p_what = 'kick' THEN
            SET v_new = IF(v_open, 'g', 'r'), v_attempts = 0, v_reason = NULL, v_kicks = v_kicks + 1;
        ELSEIF p_what = 'start' THEN
            SET v_new = IF(v_at < 9007199254740991 AND v_at > p_now AND NOT v_at <=> v_expires, '~', 'r');
        ELSEIF v_gone THEN
            SET v_new = '-', v_ttls = v_ttls + 1;
            SET v_ttrs = v_ttrs + (p_what = 'due' AND v_state = 't'), v_releases = v_releases + (p_what = 'release');
        ELSEIF v_bury THEN
            SET v_new = '!', v_buries = v_buries + 1, v_ttrs = v_ttrs + (p_what = 'due');
            SET v_reason = IFNULL(NULLIF(v_reason, ''), CONCAT('handed out ', v_attempts, ' times without an ack'));
        ELSE
            SET v_new = IF(v_open OR v_state = 'g', 'g', 'r'), v_ttrs = v_ttrs + (p_what = 'due' AND v_state = 't');
            SET v_dues = v_dues + (p_what = 'due' AND v_state = '~'), v_releases = v_releases + (p_what = 'release');
        END IF;
        SET v_delayed = v_delayed + (v_new IN ('~', 'g')), v_buried = v_buried + (v_new = '!'), v_done = v_done + (v_new = '-');
        CALL penstock_move(
            p_tube, v_id, v_state, v_new, IF(v_new = '~', v_at, v_expires), v_expires, v_attempts, v_reason, v_utube,
            v_rank1, v_rank2, v_lanes AND NOT (v_removes AND v_state = 'q'), v_fair, v_limit, p_now, v_readied
        );
        IF v_new = '-' AND (v_address IS NOT NULL OR v_reply_to IS NOT NULL OR v_group IS NOT NULL) THEN
            CALL penstock_left(
                p_tube, v_id, v_address, v_reply_to, v_group, IF(v_gone, 'expired', 'deleted'), NULL, NULL, NULL,
                p_now + v_retention
            );
        END IF;
    END LOOP;
    INSERT INTO penstock_delta (tube, taken, delayed_tasks, buried, done, release_calls, delete_calls, bury_calls, kick_calls,
        ttl_calls, ttr_calls, delay_calls)
    VALUES (p_tube, v_taken, v_delayed, v_buried, v_done, v_releases, v_deletes, v_buries, v_kicks, v_ttls, v_ttrs, v_dues);
    SELECT 'ready', p_tube, v_readied, NULL;
END;

DROP PROCEDURE IF EXISTS penstock_due;

-- Do what the clock demands of a tube, at most p_limit tasks; p_count: how many it were.
CREATE PROCEDURE penstock_due(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT, OUT p_count INT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_lanes, v_fair INT;
    SELECT lanes, fair INTO v_lanes, v_fair FROM penstock_tube WHERE no = p_tube;
    -- Unlocked: InnoDB would lock the record behind the range, too, which takers then pass by. In tubes with lanes these
    -- must be locked first, and the sweep looks again.
    SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.at, d.id), ']'), COUNT(*) INTO v_ids, p_count
    FROM (SELECT id, at FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = p_tube AND at <= p_now
        ORDER BY at, id LIMIT p_limit) d;
    IF p_count > 0 AND NOT v_lanes THEN
        SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.at, d.id), ']'), COUNT(*) INTO v_ids, p_count
        FROM (SELECT t.id, t.at FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
            STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
            WHERE t.at <= p_now FOR UPDATE SKIP LOCKED) d;
    END IF;
    IF p_count > 0 THEN
        CALL penstock_sweep(p_tube, 'due', v_ids, NULL, p_now);
    END IF;
    IF v_fair THEN
        DELETE FROM penstock_lane WHERE tube = p_tube AND idle_turn < p_now ORDER BY idle_turn LIMIT 100;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_fold;

-- Add deltas into the counter rows, one folder at a time; nobody waits for it, and it waits for nobody.
CREATE PROCEDURE penstock_fold()
SQL SECURITY INVOKER
folding: BEGIN
    DECLARE v_name VARCHAR(40) CHARACTER SET ascii;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_last BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_name = NULL;
    SELECT name INTO v_name FROM penstock_meta WHERE name = 'folded' FOR UPDATE SKIP LOCKED;
    IF v_name IS NULL THEN
        LEAVE folding;
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(d.id), ']'), MAX(d.id) INTO v_ids, v_last
    FROM (SELECT id FROM penstock_delta ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED) d;
    IF v_ids IS NULL THEN
        LEAVE folding;
    END IF;
    UPDATE penstock_counter c JOIN (
        SELECT d.tube, SUM(d.taken) taken, SUM(d.delayed_tasks) delayed_tasks, SUM(d.buried) buried, SUM(d.done) done,
            SUM(d.take_calls) take_calls, SUM(d.ack_calls) ack_calls, SUM(d.release_calls) release_calls,
            SUM(d.delete_calls) delete_calls, SUM(d.bury_calls) bury_calls, SUM(d.kick_calls) kick_calls,
            SUM(d.touch_calls) touch_calls, SUM(d.ttl_calls) ttl_calls, SUM(d.ttr_calls) ttr_calls,
            SUM(d.delay_calls) delay_calls, SUM(d.fail_calls) fail_calls
        FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_delta d FORCE INDEX (PRIMARY) ON d.id = j.id GROUP BY d.tube
    ) s ON c.tube = s.tube
    SET c.taken = c.taken + s.taken, c.delayed_tasks = c.delayed_tasks + s.delayed_tasks, c.buried = c.buried + s.buried,
        c.done = c.done + s.done, c.take_calls = c.take_calls + s.take_calls, c.ack_calls = c.ack_calls + s.ack_calls,
        c.release_calls = c.release_calls + s.release_calls, c.delete_calls = c.delete_calls + s.delete_calls,
        c.bury_calls = c.bury_calls + s.bury_calls, c.kick_calls = c.kick_calls + s.kick_calls,
        c.touch_calls = c.touch_calls + s.touch_calls, c.ttl_calls = c.ttl_calls + s.ttl_calls,
        c.ttr_calls = c.ttr_calls + s.ttr_calls, c.delay_calls = c.delay_calls + s.delay_calls,
        c.fail_calls = c.fail_calls + s.fail_calls;
    DELETE d FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j STRAIGHT_JOIN penstock_delta d FORCE INDEX (PRIMARY) ON d.id = j.id;
    UPDATE penstock_meta SET value = v_last WHERE name = 'folded';
END;

DROP PROCEDURE IF EXISTS penstock_end_lapsed;

-- End the handles whose heartbeat lapsed, then the sessions whose time is over; their tasks are released.
CREATE PROCEDURE penstock_end_lapsed(p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over INT DEFAULT 0;
    DECLARE v_handle VARBINARY(64);
    DECLARE v_session, v_lapses BIGINT;
    DECLARE c_handles CURSOR FOR
        SELECT id, session, lapses FROM penstock_handle WHERE lapses <= p_now ORDER BY lapses, id;
    DECLARE c_sessions CURSOR FOR SELECT no FROM penstock_session WHERE ends <= p_now ORDER BY ends, no;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    OPEN c_handles;
    lapsing: LOOP
        SET v_over = 0;
        FETCH c_handles INTO v_handle, v_session, v_lapses;
        IF v_over THEN
            LEAVE lapsing;
        END IF;
        CALL penstock_part(v_handle, v_session, v_lapses, p_now);
    END LOOP;
    SET v_over = 0;
    OPEN c_sessions;
    ending: LOOP
        SET v_over = 0;
        FETCH c_sessions INTO v_session;
        IF v_over THEN
            LEAVE ending;
        END IF;
        CALL penstock_end_session(v_session, p_now);
    END LOOP;
END;

DROP PROCEDURE IF EXISTS penstock_part;

-- One handle goes at that moment, unless it beat meanwhile (p_lapsed_at); the last one sets its session's end.
CREATE PROCEDURE penstock_part(p_handle VARBINARY(64), p_session BIGINT, p_moment BIGINT, p_lapsed_at BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ttr, v_pid, v_beat, v_left, v_lapses BIGINT;
    DECLARE v_host VARBINARY(255);
    -- The session first, so that two handles that go at once do not each leave its end to the other.
    SELECT MAX(ttr) INTO v_ttr FROM penstock_session WHERE no = p_session FOR UPDATE;
    SELECT MAX(host), MAX(pid), MAX(beat), MAX(lapses) INTO v_host, v_pid, v_beat, v_lapses
    FROM penstock_handle WHERE id = p_handle FOR UPDATE;
    IF v_lapses IS NOT NULL AND (p_lapsed_at IS NULL OR v_lapses <= p_lapsed_at) THEN
        DELETE FROM penstock_handle WHERE id = p_handle;
        DELETE FROM penstock_waiter WHERE handle = p_handle;
        SELECT COUNT(*) INTO v_left FROM penstock_handle WHERE session = p_session;
        IF v_left = 0 THEN
            -- One that had lapsed went when it lapsed, whoever says so now.
            UPDATE penstock_session
            SET ends = LEAST(p_moment, v_lapses) + v_ttr, host = v_host, pid = v_pid, beat = v_beat
            WHERE no = p_session;
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_end_session;

CREATE PROCEDURE penstock_end_session(p_session BIGINT, p_now BIGINT)
SQL SECURITY INVOKER
ending: BEGIN
    DECLARE v_over, v_ended INT DEFAULT 0;
    DECLARE v_tube INT UNSIGNED;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE c_tubes CURSOR FOR
        SELECT t.tube, CONCAT('[', GROUP_CONCAT(t.id ORDER BY t.id), ']') FROM penstock_tube b
        STRAIGHT_JOIN penstock_task t FORCE INDEX (penstock_ready) ON t.tube = b.no AND t.state = 't'
        WHERE b.name IS NOT NULL AND b.hand_out = 'lease' AND t.owner = p_session GROUP BY t.tube;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT 1 INTO v_ended FROM penstock_session WHERE no = p_session AND ends <= p_now FOR UPDATE SKIP LOCKED;
    IF NOT v_ended THEN
        LEAVE ending;  -- another step is at it, or somebody joined it
    END IF;
    SET v_over = 0;
    OPEN c_tubes;
    releasing: LOOP
        SET v_over = 0;
        FETCH c_tubes INTO v_tube, v_ids;
        IF v_over THEN
            LEAVE releasing;
        END IF;
        CALL penstock_sweep(v_tube, 'release', v_ids, p_session, p_now);
    END LOOP;
    DELETE FROM penstock_session WHERE no = p_session;
END;
