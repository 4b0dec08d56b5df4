-- What is done to a whole tube, in bounded steps or at once. Each CALL is one step of the contract, as in 0004.
DROP PROCEDURE IF EXISTS penstock_catch_up;

-- Do what the clock and the groups demand, at most p_limit tasks; when p_limit is 0, all that is in nobody's hands: who has
-- some of it may wait for what this step holds. p_more: more is due.
CREATE PROCEDURE penstock_catch_up(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT, OUT p_more INT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_step INT DEFAULT IF(p_limit = 0, 1000, p_limit);
    DECLARE v_count INT DEFAULT 0;
    DECLARE v_moving, v_deltas INT;
    DECLARE v_lapse, v_end, v_before BIGINT;
    SELECT MAX(moving) INTO v_moving FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL;
    IF v_moving IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    SELECT (SELECT MIN(lapses) FROM penstock_handle), (SELECT MIN(ends) FROM penstock_session) INTO v_lapse, v_end;
    IF v_lapse <= p_now OR v_end <= p_now THEN
        CALL penstock_end_lapsed(p_now);
    END IF;
    REPEAT
        SET v_before = LAST_INSERT_ID();  -- every change inserts a delta
        CALL penstock_due(p_tube, v_step, p_now, v_count);
        SET p_more = v_count >= v_step;
        IF v_moving AND NOT p_more THEN
            CALL penstock_follow(p_tube, v_step - v_count, p_now, p_more);
        END IF;
    UNTIL p_limit > 0 OR NOT p_more OR LAST_INSERT_ID() = v_before END REPEAT;
    CALL penstock_forget(p_tube, 1000, p_now);
    SELECT COUNT(*) INTO v_deltas FROM (SELECT 1 FROM penstock_delta LIMIT 64) d;
    IF v_deltas = 64 THEN
        CALL penstock_fold();
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_advance;

-- Ends with a row: advanced, moment, milliseconds to wait, whether more is due.
CREATE PROCEDURE penstock_advance(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_more INT;
    DECLARE v_at, v_next BIGINT;
    CALL penstock_catch_up(p_tube, p_limit, v_now, v_more);
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
    SELECT MIN(at) INTO v_at FROM penstock_task FORCE INDEX (penstock_timer)
    WHERE tube = p_tube AND at < 9007199254740991;
    SELECT MIN(m) INTO v_next FROM (SELECT v_at m UNION ALL SELECT MIN(lapses) FROM penstock_handle
        UNION ALL SELECT MIN(ends) FROM penstock_session) n;
    SELECT 'advanced', v_now, GREATEST(IF(v_more, v_now, v_next) - v_now, 0), v_more;
END;

DROP PROCEDURE IF EXISTS penstock_sweep_all;

-- After everything due: kick up to p_count buried tasks in take order, or release all that are taken.
CREATE PROCEDURE penstock_sweep_all(p_tube INT UNSIGNED, p_what VARCHAR(10) CHARACTER SET ascii, p_count INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_more INT;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    CALL penstock_catch_up(p_tube, 0, v_now, v_more);
    IF p_what = 'kick' THEN
        SELECT CONCAT('[', GROUP_CONCAT(b.id ORDER BY b.rank1, b.rank2, b.id), ']') INTO v_ids
        FROM (SELECT id, rank1, rank2 FROM penstock_task FORCE INDEX (penstock_ready)
            WHERE tube = p_tube AND state = '!' ORDER BY rank1, rank2, id LIMIT p_count) b;
    ELSE
        SELECT CONCAT('[', GROUP_CONCAT(id ORDER BY id), ']') INTO v_ids FROM penstock_task FORCE INDEX (penstock_ready)
        WHERE tube = p_tube AND state = 't';
    END IF;
    SELECT 'mark', v_now, NULL, NULL;
    IF v_ids IS NOT NULL THEN
        CALL penstock_sweep(p_tube, p_what, v_ids, NULL, v_now);
    END IF;
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_truncate;

-- Remove up to p_limit of the tasks up to an id; those behind their micro-queue first, so that none becomes ready
-- on the way. Ends with a row: truncated, moment, how many it were.
CREATE PROCEDURE penstock_truncate(p_tube INT UNSIGNED, p_last BIGINT, p_limit INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_lanes, v_count INT DEFAULT 0;
    SELECT lanes INTO v_lanes FROM penstock_tube WHERE no = p_tube;
    IF v_lanes THEN
        SELECT CONCAT('[', GROUP_CONCAT(t.id ORDER BY t.id), ']'), COUNT(*) INTO v_ids, v_count
        FROM (SELECT id FROM penstock_task FORCE INDEX (penstock_ready)
            WHERE tube = p_tube AND state = 'q' AND id <= p_last LIMIT p_limit) t;
    END IF;
    IF v_count = 0 THEN
        SELECT CONCAT('[', GROUP_CONCAT(t.id ORDER BY t.id), ']'), COUNT(*) INTO v_ids, v_count
        FROM (SELECT id FROM penstock_task FORCE INDEX (PRIMARY)
            WHERE tube = p_tube AND id <= p_last ORDER BY id LIMIT p_limit) t;
    END IF;
    IF v_count > 0 THEN
        CALL penstock_sweep(p_tube, 'delete', v_ids, NULL, v_now);
    END IF;
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
    SELECT 'truncated', v_now, v_count, NULL;
END;
