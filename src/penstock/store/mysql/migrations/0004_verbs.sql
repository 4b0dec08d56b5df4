-- The verbs: each CALL is one step of the contract, sent with its COMMIT in one packet. p_now is the test's clock, or
-- NULL for the server's. Errors of ours: 31001 the tube is gone, 31002 it is full, 31003 an address is in use, 31004 a group has ended.
-- Where a step ended tasks that are tied to others, @penstock_works says that works wait to be put before it is over.
DROP PROCEDURE IF EXISTS penstock_no_tube;

CREATE PROCEDURE penstock_no_tube()
SQL SECURITY INVOKER
BEGIN
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT = 'no such tube';
END;

DROP PROCEDURE IF EXISTS penstock_room;

-- Refuse where a tube has no room for so many more. Whoever calls it holds the tube's last id.
CREATE PROCEDURE penstock_room(p_tube INT UNSIGNED, p_last BIGINT, p_count INT, p_capacity BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_total BIGINT;
    DECLARE v_text VARCHAR(40);
    SELECT p_last - c.done - (SELECT IFNULL(SUM(d.done), 0) FROM penstock_delta d WHERE d.tube = p_tube)
    INTO v_total FROM penstock_counter c WHERE c.tube = p_tube;
    IF v_total + p_count > p_capacity THEN
        SET v_text = v_total;
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31002, MESSAGE_TEXT = v_text;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_reserve;

-- Give a put its ids. The last id and the moment stand in @penstock_id and @penstock_now for the INSERT that follows.
CREATE PROCEDURE penstock_reserve(p_tube INT UNSIGNED, p_count INT, p_delayed INT, p_capacity BIGINT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_last BIGINT;
    SELECT MAX(last) INTO v_last FROM penstock_id WHERE tube = p_tube FOR UPDATE;
    IF v_last IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    IF p_capacity IS NOT NULL AND p_count > 0 THEN
        CALL penstock_room(p_tube, v_last, p_count, p_capacity);
    END IF;
    UPDATE penstock_id SET last = v_last + p_count WHERE tube = p_tube;
    IF p_delayed > 0 THEN
        INSERT INTO penstock_delta (tube, delayed_tasks) VALUES (p_tube, p_delayed);
    END IF;
    SET @penstock_id = v_last,
        @penstock_now = IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    SELECT 'put', @penstock_id, @penstock_now, NULL;
END;

DROP PROCEDURE IF EXISTS penstock_lease_lanes;

-- Choose up to p_count heads whose micro-queues nobody else is at, and mark their micro-queues as served.
CREATE PROCEDURE penstock_lease_lanes(
    p_tube INT UNSIGNED, p_count INT, p_max DOUBLE, p_session BIGINT, p_taking BIGINT, p_fair INT, p_limit INT, p_moving INT,
    p_gone BIGINT, p_now BIGINT, OUT p_ids LONGTEXT CHARACTER SET utf8mb4
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_got, v_skipped, v_before, v_seen, v_over, v_window, v_wait INT DEFAULT 0;
    -- Where each hand-out moves its micro-queue behind the others, the next one is known only after it.
    DECLARE v_single INT DEFAULT p_fair AND p_limit > 1;
    DECLARE v_taken, v_heads INT;
    DECLARE v_turn, v_id, v_ok BIGINT;
    DECLARE v_utube VARBINARY(200);
    SET p_ids = NULL;
    choosing: LOOP
        -- What was skipped is still in the way, so the next round looks past it.
        SET v_window = v_skipped + IF(v_single, 1, p_count - v_got + 20);
        SET v_before = v_got, v_seen = 0, v_skipped = 0, v_over = 0;
        BEGIN
            DECLARE c_heads CURSOR FOR
                SELECT id, utube FROM penstock_task FORCE INDEX (penstock_ready)
                WHERE tube = p_tube AND state = 'r' AND rank1 <= p_max AND (expires IS NULL OR expires > p_now)
                AND NOT group_no <=> p_gone AND (NOT p_moving OR group_no IS NULL OR group_no NOT IN (
                    SELECT no FROM penstock_group WHERE tube = p_tube AND moving = 1 AND state = 'cancelling'))
                ORDER BY rank1, rank2, id LIMIT v_window;
            DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
            OPEN c_heads;
            heads: LOOP
                SET v_over = 0;
                FETCH c_heads INTO v_id, v_utube;
                IF v_over OR v_got >= p_count OR (v_single AND v_got > v_before) THEN
                    LEAVE heads;
                END IF;
                SET v_seen = v_seen + 1, v_taken = NULL, v_ok = NULL;
                IF v_wait THEN
                    SELECT taken, heads, turn INTO v_taken, v_heads, v_turn
                    FROM penstock_lane WHERE tube = p_tube AND utube = v_utube FOR UPDATE;
                ELSE
                    SELECT taken, heads, turn INTO v_taken, v_heads, v_turn
                    FROM penstock_lane WHERE tube = p_tube AND utube = v_utube FOR UPDATE SKIP LOCKED;
                END IF;
                IF v_taken IS NOT NULL THEN
                    SELECT id INTO v_ok FROM penstock_task WHERE tube = p_tube AND id = v_id AND state = 'r' FOR UPDATE;
                END IF;
                SET v_over = 0;
                IF v_ok IS NULL THEN
                    SET v_skipped = v_skipped + 1;
                ELSE
                    UPDATE penstock_task SET state = 't', lane_state = NULL, rank2 = IF(p_fair, 0, rank2),
                        attempts = attempts + 1, lease = lease + 1, taken = p_now,
                        at = IFNULL(p_now + ttr, 9007199254740991), owner = p_session, taking = p_taking
                    WHERE tube = p_tube AND id = v_id;
                    SET v_turn = IF(p_fair, GREATEST(p_now, v_turn + 1), v_turn);
                    UPDATE penstock_lane SET taken = v_taken + 1, heads = v_heads - 1, turn = v_turn
                    WHERE tube = p_tube AND utube = v_utube;
                    IF p_fair AND v_heads > 1 THEN
                        UPDATE penstock_task FORCE INDEX (penstock_laned) SET rank2 = v_turn
                        WHERE tube = p_tube AND utube = v_utube AND lane_state = 'r';
                    END IF;
                    SET v_got = v_got + 1, v_wait = 0, p_ids = CONCAT_WS(',', p_ids, v_id);
                END IF;
            END LOOP;
            CLOSE c_heads;
        END;
        IF v_got >= p_count OR v_seen = 0 THEN
            LEAVE choosing;
        END IF;
        IF v_seen < v_window AND (v_got = v_before OR NOT v_single) THEN
            -- Heads there are, but others are at all their micro-queues: wait for the first, once.
            IF v_got > 0 OR v_wait THEN
                LEAVE choosing;
            END IF;
            SET v_wait = 1;
        END IF;
    END LOOP;
END;

DROP PROCEDURE IF EXISTS penstock_show;

-- Answer these locked tasks, a row each. Not strung together by GROUP_CONCAT: texts make it create a table on disk, which costs
-- more than the rows it spares.
CREATE PROCEDURE penstock_show(
    p_what VARCHAR(10) CHARACTER SET ascii, p_tube INT UNSIGNED, p_number BIGINT, p_ids LONGTEXT CHARACTER SET utf8mb4
)
SQL SECURITY INVOKER
BEGIN
    SELECT p_what, p_number, t.record, t.data FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_record t ON t.tube = p_tube AND t.id = j.id FOR UPDATE;
END;

DROP PROCEDURE IF EXISTS penstock_lease;

-- Hand out up to p_count tasks of one tube, in its order, and answer them; p_got: how many it were. p_moving: tasks of
-- cancelled groups may still stand there, and are gone.
CREATE PROCEDURE penstock_lease(
    p_tube INT UNSIGNED, p_count INT, p_max DOUBLE, p_session BIGINT, p_taking BIGINT, p_lanes INT, p_fair INT, p_limit INT,
    p_moving INT, p_hand_out VARCHAR(7) CHARACTER SET ascii, p_now BIGINT, OUT p_got INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_window INT DEFAULT p_count + 100;  -- more than is wanted, for others may be at some
    DECLARE v_gone BIGINT DEFAULT 0;
    IF p_moving THEN
        -- The largest of them as a constant: its tasks are passed by in the index, and their rows are not read.
        SELECT IFNULL(MAX(g.no), 0) INTO v_gone FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_moving_group)
            WHERE tube = p_tube AND moving = 1 AND state = 'cancelling' ORDER BY remaining DESC LIMIT 1) g;
    END IF;
    IF p_lanes THEN
        CALL penstock_lease_lanes(p_tube, p_count, p_max, p_session, p_taking, p_fair, p_limit, p_moving, v_gone, p_now, v_ids);
    ELSEIF p_moving OR (p_max < 1e300 AND p_hand_out = 'lease') THEN
        -- Passes by what is cancelled or not urgent enough without a lock, and then locks what is left: a range that ends
        -- before the last task locks the one behind it, too.
        SELECT CONCAT('[', GROUP_CONCAT(c.id), ']') INTO v_ids
        FROM (SELECT id FROM penstock_task FORCE INDEX (penstock_ready)
            WHERE tube = p_tube AND state = 'r' AND rank1 <= p_max AND (expires IS NULL OR expires > p_now)
            AND NOT group_no <=> v_gone AND (group_no IS NULL OR group_no NOT IN (
                SELECT no FROM penstock_group WHERE tube = p_tube AND moving = 1 AND state = 'cancelling'))
            ORDER BY rank1, rank2, id LIMIT v_window) c;
        SELECT GROUP_CONCAT(c.id ORDER BY c.rank1, c.rank2, c.id) INTO v_ids
        FROM (SELECT t.id, t.rank1, t.rank2 FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
            STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
            WHERE t.state = 'r' LIMIT p_count FOR UPDATE SKIP LOCKED) c;
    ELSE
        -- In index order and with a LIMIT, so that only what is taken is locked.
        SELECT GROUP_CONCAT(c.id ORDER BY c.rank1, c.rank2, c.id) INTO v_ids
        FROM (SELECT id, rank1, rank2 FROM penstock_task FORCE INDEX (penstock_ready)
            WHERE tube = p_tube AND state = 'r' AND rank1 <= p_max AND (expires IS NULL OR expires > p_now)
            ORDER BY rank1, rank2, id LIMIT p_count FOR UPDATE SKIP LOCKED) c;
    END IF;
    SET p_got = 0;
    IF v_ids IS NOT NULL THEN
        SET v_ids = CONCAT('[', v_ids, ']'), p_got = JSON_LENGTH(v_ids);
        IF p_hand_out <> 'lease' THEN
            CALL penstock_hand_out(p_tube, p_hand_out, v_ids, p_got, p_now);
        ELSEIF NOT p_lanes THEN
            UPDATE JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
            STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
            SET t.state = 't', t.attempts = t.attempts + 1, t.lease = t.lease + 1, t.taken = p_now,
                t.at = IFNULL(p_now + t.ttr, 9007199254740991), t.owner = p_session, t.taking = p_taking;
        END IF;
        CALL penstock_show('take', p_tube, p_tube, v_ids);
        INSERT INTO penstock_delta (tube, taken, take_calls) VALUES (p_tube, IF(p_hand_out = 'clock', 0, p_got), p_got);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_take;

-- Advance these tubes and lease tasks of the first that has any. p_blocked counts a waiting caller in when nothing
-- came (1), out when something came (2), or out (3), by the number p_waiter. p_taking: a number by which it can be undone. Ends with a row: take, moment, milliseconds to wait, session.
CREATE PROCEDURE penstock_take(
    p_tubes LONGTEXT CHARACTER SET utf8mb4, p_count INT, p_handle VARBINARY(64), p_max DOUBLE, p_blocked INT, p_waiter BIGINT,
    p_now BIGINT, p_taking BIGINT
)
SQL SECURITY INVOKER
taking: BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_place, v_got, v_count INT DEFAULT 0;
    DECLARE v_tubes INT DEFAULT JSON_LENGTH(p_tubes);
    DECLARE v_paused, v_moving, v_lanes, v_fair, v_limit INT;
    DECLARE v_tube INT UNSIGNED;
    DECLARE v_session, v_at, v_lapse, v_end, v_next, v_period BIGINT;
    DECLARE v_hand_out VARCHAR(7) CHARACTER SET ascii;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    IF v_tubes > 1 THEN
        SELECT COUNT(*) INTO v_count FROM JSON_TABLE(p_tubes, '$[*]' COLUMNS (no INT PATH '$')) j
        STRAIGHT_JOIN penstock_tube t ON t.no = j.no AND t.name IS NOT NULL LOCK IN SHARE MODE;
        IF v_count < v_tubes THEN
            CALL penstock_no_tube();
        END IF;
    END IF;
    -- Shared: the handle cannot go, and so its session cannot end, between this look and the commit.
    SELECT session INTO v_session FROM penstock_handle WHERE id = p_handle LOCK IN SHARE MODE;
    SELECT MIN(lapses) INTO v_lapse FROM penstock_handle;
    SELECT MIN(ends) INTO v_end FROM penstock_session;
    IF v_lapse <= v_now OR v_end <= v_now THEN
        CALL penstock_end_lapsed(v_now);
        SET v_session = NULL;
        SELECT session INTO v_session FROM penstock_handle WHERE id = p_handle LOCK IN SHARE MODE;
        SELECT MIN(lapses) INTO v_lapse FROM penstock_handle;
        SELECT MIN(ends) INTO v_end FROM penstock_session;
    END IF;
    SET v_next = LEAST(IFNULL(v_lapse, v_end), IFNULL(v_end, v_lapse));
    WHILE v_place < v_tubes DO
        SET v_tube = JSON_EXTRACT(p_tubes, CONCAT('$[', v_place, ']')), v_paused = NULL, v_at = NULL;
        -- Shared: a drop waits for this take, and then sees what it took.
        SELECT paused, moving, lanes, fair, utube_limit, hand_out, period
        INTO v_paused, v_moving, v_lanes, v_fair, v_limit, v_hand_out, v_period
        FROM penstock_tube WHERE no = v_tube AND name IS NOT NULL LOCK IN SHARE MODE;
        IF v_paused IS NULL THEN
            CALL penstock_no_tube();
        END IF;
        SELECT MIN(at) INTO v_at FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = v_tube;
        IF v_session IS NOT NULL AND v_got = 0 THEN
            SET v_count = 0;
            IF v_at <= v_now THEN
                CALL penstock_due(v_tube, 1000, v_now, v_count);
            END IF;
            IF v_moving THEN
                CALL penstock_follow(v_tube, 1000 - v_count, v_now, v_moving);
            END IF;
            IF @penstock_works THEN
                CALL penstock_put_works(v_now);  -- what follows may be what is taken
            END IF;
            IF NOT v_paused AND p_count > 0 THEN
                CALL penstock_lease(
                    v_tube, p_count, IF(v_hand_out = 'clock', GREATEST(v_now - v_period, 0), p_max), v_session, p_taking,
                    v_lanes, v_fair, v_limit, v_moving, v_hand_out, v_now, v_got
                );
            END IF;
            IF v_moving THEN
                SET v_at = v_now;
            ELSEIF v_at <= v_now OR v_got > 0 THEN
                SELECT MIN(at) INTO v_at FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = v_tube;
            END IF;
            IF v_hand_out = 'clock' AND v_got = 0 AND NOT v_paused THEN
                CALL penstock_next_turn(v_tube, v_period, v_now, v_at);
            END IF;
        END IF;
        SET v_at = NULLIF(v_at, 9007199254740991);
        SET v_next = LEAST(IFNULL(v_next, v_at), IFNULL(v_at, v_next)), v_place = v_place + 1;
    END WHILE;
    IF v_session IS NOT NULL AND (p_blocked = 3 OR (p_blocked = 1 AND v_got = 0) OR (p_blocked = 2 AND v_got > 0)) THEN
        CALL penstock_count_waiter(p_tubes, p_handle, p_waiter, p_blocked = 1);
    END IF;
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
    SELECT 'taken', v_now, GREATEST(v_next - v_now, 0), v_session;
END;
