-- Micro-queues: the rules of core/lane.py, as store/sqlite/lanes.py applies them. Each procedure is part of a
-- caller's transaction, locks the lane's row first, and adds to p_readied what became takeable.
DROP PROCEDURE IF EXISTS penstock_lane_save;

CREATE PROCEDURE penstock_lane_save(
    p_tube INT UNSIGNED, p_utube VARBINARY(200), p_taken INT, p_heads INT, p_waiting INT, p_turn BIGINT,
    p_fair INT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    -- An empty one is forgotten once its turn cannot matter any more.
    DECLARE v_empty INT DEFAULT p_taken = 0 AND p_heads = 0 AND p_waiting = 0;
    IF v_empty AND (NOT p_fair OR p_turn < p_now) THEN
        DELETE FROM penstock_lane WHERE tube = p_tube AND utube = p_utube;
    ELSE
        UPDATE penstock_lane SET taken = p_taken, heads = p_heads, waiting = p_waiting, turn = p_turn,
            idle_turn = IF(v_empty, p_turn, NULL)
        WHERE tube = p_tube AND utube = p_utube;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_lane_arrive;

-- A task becomes ready: its state, r or q, and its second rank. p_was: the state it was in; it gives its slot back,
-- to itself or to a more urgent one.
CREATE PROCEDURE penstock_lane_arrive(
    p_tube INT UNSIGNED, p_utube VARBINARY(200), p_id BIGINT, p_rank1 DOUBLE,
    p_was CHAR(1) CHARACTER SET ascii, p_fair INT, p_limit INT, p_now BIGINT,
    OUT p_state CHAR(1) CHARACTER SET ascii, INOUT p_rank2 DOUBLE, INOUT p_readied INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_taken, v_heads, v_waiting INT;
    DECLARE v_turn, v_id BIGINT;
    DECLARE v_rank1, v_rank2 DOUBLE;
    INSERT INTO penstock_lane (tube, utube) VALUES (p_tube, p_utube) ON DUPLICATE KEY UPDATE utube = p_utube;
    SELECT taken, heads, waiting, turn INTO v_taken, v_heads, v_waiting, v_turn
    FROM penstock_lane WHERE tube = p_tube AND utube = p_utube FOR UPDATE;
    IF p_fair AND v_taken = 0 AND v_heads = 0 AND v_waiting = 0 THEN
        SET v_turn = GREATEST(p_now, v_turn + 1);
    END IF;
    SET v_taken = v_taken - (p_was = 't'), v_heads = v_heads - (p_was = 'r'), v_waiting = v_waiting - (p_was = 'q'),
        p_state = 'q';
    IF p_limit - v_taken - v_heads > 0 THEN
        SET p_state = 'r';
        IF v_waiting > 0 THEN
            SELECT id, rank1, rank2 INTO v_id, v_rank1, v_rank2 FROM penstock_task FORCE INDEX (penstock_laned)
            WHERE tube = p_tube AND utube = p_utube AND lane_state = 'q' ORDER BY rank1, rank2, id LIMIT 1 FOR UPDATE;
            IF (v_rank1, v_rank2, v_id) < (p_rank1, p_rank2, p_id) THEN
                SET p_state = 'q', v_waiting = v_waiting - 1, v_heads = v_heads + 1, p_readied = p_readied + 1;
                UPDATE penstock_task SET state = 'r', lane_state = 'r', rank2 = IF(p_fair, v_turn, rank2)
                WHERE tube = p_tube AND id = v_id;
            END IF;
        END IF;
    ELSEIF v_heads > 0 THEN
        -- In a fair tube all heads carry the lane's turn, so the order inside the lane is rank1, id.
        SELECT id, rank1, IF(p_fair, 0, rank2) INTO v_id, v_rank1, v_rank2
        FROM penstock_task FORCE INDEX (penstock_laned)
        WHERE tube = p_tube AND utube = p_utube AND lane_state = 'r'
        ORDER BY rank1 DESC, rank2 DESC, id DESC LIMIT 1 FOR UPDATE;
        IF (p_rank1, p_rank2, p_id) < (v_rank1, v_rank2, v_id) THEN
            SET p_state = 'r', v_heads = v_heads - 1, v_waiting = v_waiting + 1, p_readied = p_readied - 1;
            UPDATE penstock_task SET state = 'q', lane_state = 'q', rank2 = IF(p_fair, 0, rank2)
            WHERE tube = p_tube AND id = v_id;
        END IF;
    END IF;
    IF p_state = 'r' THEN
        SET v_heads = v_heads + 1, p_readied = p_readied + 1;
        IF p_fair THEN
            SET p_rank2 = v_turn;
        END IF;
    ELSE
        SET v_waiting = v_waiting + 1;
    END IF;
    CALL penstock_lane_save(p_tube, p_utube, v_taken, v_heads, v_waiting, v_turn, p_fair, p_now);
END;

DROP PROCEDURE IF EXISTS penstock_lane_left;

-- A task has left its ready or taken state, in the table too: the next one is promoted.
CREATE PROCEDURE penstock_lane_left(
    p_tube INT UNSIGNED, p_utube VARBINARY(200), p_state CHAR(1) CHARACTER SET ascii,
    p_fair INT, p_limit INT, p_now BIGINT, INOUT p_readied INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_taken, v_heads, v_waiting INT DEFAULT 0;
    DECLARE v_turn BIGINT DEFAULT 0;
    DECLARE v_id BIGINT;
    SELECT taken, heads, waiting, turn INTO v_taken, v_heads, v_waiting, v_turn
    FROM penstock_lane WHERE tube = p_tube AND utube = p_utube FOR UPDATE;
    SET v_taken = v_taken - (p_state = 't'), v_heads = v_heads - (p_state = 'r'),
        v_waiting = v_waiting - (p_state = 'q');
    WHILE v_waiting > 0 AND p_limit - v_taken - v_heads > 0 DO
        SELECT id INTO v_id FROM penstock_task FORCE INDEX (penstock_laned)
        WHERE tube = p_tube AND utube = p_utube AND lane_state = 'q' ORDER BY rank1, rank2, id LIMIT 1 FOR UPDATE;
        UPDATE penstock_task SET state = 'r', lane_state = 'r', rank2 = IF(p_fair, v_turn, rank2)
        WHERE tube = p_tube AND id = v_id;
        SET v_waiting = v_waiting - 1, v_heads = v_heads + 1, p_readied = p_readied + 1;
    END WHILE;
    CALL penstock_lane_save(p_tube, p_utube, v_taken, v_heads, v_waiting, v_turn, p_fair, p_now);
END;

DROP PROCEDURE IF EXISTS penstock_lane_skip;

-- Those of these tasks that wait behind their micro-queues are about to go: none of them is to be promoted on the way,
-- where each search would pass all that went before.
CREATE PROCEDURE penstock_lane_skip(p_tube INT UNSIGNED, p_ids LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
    UPDATE penstock_lane l JOIN (
        SELECT t.utube, COUNT(*) AS waiting FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE t.state = 'q' GROUP BY t.utube
    ) s ON s.utube = l.utube SET l.waiting = l.waiting - s.waiting WHERE l.tube = p_tube;
    UPDATE JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
    SET t.lane_state = NULL WHERE t.state = 'q';
END;

DROP PROCEDURE IF EXISTS penstock_lanes_hold;

-- Lock the lanes of these tasks, and leave out the tasks of those that others are at: nobody is waited for.
CREATE PROCEDURE penstock_lanes_hold(p_tube INT UNSIGNED, INOUT p_ids LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
    SELECT CONCAT('[', GROUP_CONCAT(h.id ORDER BY h.id), ']') INTO p_ids FROM (
        SELECT d.id FROM (
            SELECT DISTINCT t.id, t.utube, t.state FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
            STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        ) d LEFT JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = d.utube
        WHERE l.utube IS NOT NULL OR d.state NOT IN ('r', 'q', 't') FOR UPDATE SKIP LOCKED
    ) h;
END;

DROP PROCEDURE IF EXISTS penstock_lanes_lose;

-- These locked tasks are about to go: as penstock_lane_left for each, whatever their number in a few statements, but that
-- nobody is promoted yet. p_lanes: the lanes, in hexadecimal, where somebody must be.
CREATE PROCEDURE penstock_lanes_lose(
    p_tube INT UNSIGNED, p_ids LONGTEXT CHARACTER SET utf8mb4, p_fair INT, p_limit INT, p_now BIGINT,
    OUT p_lanes LONGTEXT CHARACTER SET utf8mb4
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_lanes LONGTEXT CHARACTER SET utf8mb4;
    UPDATE (
        SELECT t.utube, SUM(t.state = 't') AS taken, SUM(t.state = 'r') AS heads, SUM(t.state = 'q') AS waiting
        FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE t.state IN ('r', 'q', 't') GROUP BY t.utube
    ) s STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = s.utube
    SET l.taken = l.taken - s.taken, l.heads = l.heads - s.heads, l.waiting = l.waiting - s.waiting;
    SELECT CONCAT('["', GROUP_CONCAT(DISTINCT HEX(t.utube) SEPARATOR '","'), '"]') INTO v_lanes
    FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id FOR UPDATE;
    IF p_fair THEN
        UPDATE JSON_TABLE(v_lanes, '$[*]' COLUMNS (utube VARCHAR(400) PATH '$')) j
        STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = UNHEX(j.utube)
        SET l.idle_turn = l.turn WHERE l.taken = 0 AND l.heads = 0 AND l.waiting = 0;
    END IF;
    DELETE l FROM JSON_TABLE(v_lanes, '$[*]' COLUMNS (utube VARCHAR(400) PATH '$')) j
    STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = UNHEX(j.utube)
    WHERE l.taken = 0 AND l.heads = 0 AND l.waiting = 0 AND (NOT p_fair OR l.turn < p_now);
    SELECT CONCAT('["', GROUP_CONCAT(j.utube SEPARATOR '","'), '"]') INTO p_lanes
    FROM JSON_TABLE(v_lanes, '$[*]' COLUMNS (utube VARCHAR(400) PATH '$')) j
    STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = UNHEX(j.utube)
    WHERE l.waiting > 0 AND p_limit > l.taken + l.heads FOR UPDATE;
END;

DROP PROCEDURE IF EXISTS penstock_lanes_fill;

-- Promote those who come next in these lanes, one of each in a round, until no lane has room for who waits there.
CREATE PROCEDURE penstock_lanes_fill(
    p_tube INT UNSIGNED, p_lanes LONGTEXT CHARACTER SET utf8mb4, p_fair INT, p_limit INT, INOUT p_readied INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_count INT DEFAULT 1;
    WHILE v_count > 0 DO
        SELECT CONCAT('[', GROUP_CONCAT(f.id), ']'), COUNT(*) INTO v_ids, v_count FROM (
            SELECT (SELECT t.id FROM penstock_task t FORCE INDEX (penstock_laned)
                WHERE t.tube = p_tube AND t.utube = l.utube AND t.lane_state = 'q' ORDER BY t.rank1, t.rank2, t.id LIMIT 1 FOR UPDATE
            ) AS id FROM JSON_TABLE(p_lanes, '$[*]' COLUMNS (utube VARCHAR(400) PATH '$')) j
            STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = UNHEX(j.utube)
            WHERE l.waiting > 0 AND p_limit > l.taken + l.heads FOR UPDATE
        ) f;
        UPDATE JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        STRAIGHT_JOIN penstock_lane l FORCE INDEX (PRIMARY) ON l.tube = p_tube AND l.utube = t.utube
        SET t.state = 'r', t.lane_state = 'r', t.rank2 = IF(p_fair, l.turn, t.rank2), l.heads = l.heads + 1,
            l.waiting = l.waiting - 1;
        SET p_readied = p_readied + v_count;
    END WHILE;
END;

DROP PROCEDURE IF EXISTS penstock_arrive;

-- The tasks of a put stand in the table in state n, in no lane yet: they arrive one by one, in order.
CREATE PROCEDURE penstock_arrive(p_tube INT UNSIGNED, p_first BIGINT, p_last BIGINT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_fair, v_limit INT;
    DECLARE v_id BIGINT DEFAULT p_first;
    DECLARE v_utube VARBINARY(200);
    DECLARE v_rank1, v_rank2 DOUBLE;
    DECLARE v_state CHAR(1) CHARACTER SET ascii;
    DECLARE v_readied INT DEFAULT 0;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    SELECT fair, utube_limit INTO v_fair, v_limit FROM penstock_tube WHERE no = p_tube LOCK IN SHARE MODE;
    SELECT CONCAT('[', GROUP_CONCAT(id), ']') INTO v_ids FROM penstock_task
    WHERE tube = p_tube AND id BETWEEN p_first AND p_last;
    CALL penstock_lock_lanes(p_tube, v_ids);
    WHILE v_id <= p_last DO
        SELECT state, utube, rank1, IF(v_fair, 0, rank2) INTO v_state, v_utube, v_rank1, v_rank2
        FROM penstock_task WHERE tube = p_tube AND id = v_id;
        IF v_state = 'n' THEN
            CALL penstock_lane_arrive(
                p_tube, v_utube, v_id, v_rank1, v_state, v_fair, v_limit, p_now, v_state, v_rank2, v_readied
            );
            UPDATE penstock_task SET state = v_state, lane_state = v_state, rank2 = v_rank2
            WHERE tube = p_tube AND id = v_id;
        END IF;
        SET v_id = v_id + 1;
    END WHILE;
    SELECT 'ready', p_tube, v_readied, NULL;
    SELECT 'state', id, state, rank2 FROM penstock_task WHERE tube = p_tube AND id BETWEEN p_first AND p_last;
END;

DROP PROCEDURE IF EXISTS penstock_lock_lanes;

-- Lock the lanes of these tasks in their order, before the tasks themselves: so two steps on the same lanes do not
-- meet crosswise.
CREATE PROCEDURE penstock_lock_lanes(p_tube INT UNSIGNED, p_ids LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over INT DEFAULT 0;
    DECLARE v_found INT;
    DECLARE v_utube VARBINARY(200);
    DECLARE c_lanes CURSOR FOR
        SELECT DISTINCT t.utube FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE t.utube IS NOT NULL ORDER BY t.utube;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    OPEN c_lanes;
    locking: LOOP
        SET v_over = 0;
        FETCH c_lanes INTO v_utube;
        IF v_over THEN
            LEAVE locking;
        END IF;
        SELECT COUNT(*) INTO v_found FROM penstock_lane WHERE tube = p_tube AND utube = v_utube FOR UPDATE;
    END LOOP;
END;
