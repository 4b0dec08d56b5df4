-- The shortest ways to take and to ack one task, which most calls are. They do what has nothing to follow, and leave the
-- rest to the procedures for any number.
DROP PROCEDURE IF EXISTS penstock_take_one;

-- As penstock_take of one task from one tube that leases and has no micro-queues. What it hands out it answers in a row:
-- handed, moment, milliseconds to wait, session, record, data. MIN is one step in an index, and costs the server half of what
-- ORDER BY with LIMIT 1 does.
CREATE PROCEDURE penstock_take_one(
    p_tube INT UNSIGNED, p_handle VARBINARY(64), p_blocked INT, p_waiter BIGINT, p_now BIGINT, p_taking BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_session, v_next, v_id BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    -- Shared, as in penstock_take: neither the session nor the tube goes before the commit.
    SELECT h.session, LEAST(
        (SELECT MIN(lapses) FROM penstock_handle), IFNULL((SELECT MIN(ends) FROM penstock_session), 9007199254740991),
        IFNULL((SELECT MIN(at) FROM penstock_task FORCE INDEX (penstock_timer) WHERE tube = p_tube), 9007199254740991)
    ) INTO v_session, v_next
    FROM penstock_handle h STRAIGHT_JOIN penstock_tube t
    WHERE h.id = p_handle AND t.no = p_tube AND t.name IS NOT NULL AND NOT t.paused AND NOT t.moving LOCK IN SHARE MODE;
    IF v_next > v_now THEN
        SELECT id INTO v_id FROM penstock_task FORCE INDEX (penstock_ready)
        WHERE tube = p_tube AND state = 'r' AND (expires IS NULL OR expires > v_now)
        ORDER BY rank1, rank2, id LIMIT 1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF v_id IS NULL THEN
        CALL penstock_take(CONCAT('[', p_tube, ']'), 1, p_handle, 1e300, p_blocked, p_waiter, v_now, p_taking);
    ELSE
        UPDATE penstock_task FORCE INDEX (PRIMARY) SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = v_now,
            at = IFNULL(v_now + ttr, 9007199254740991), owner = v_session, taking = p_taking
        WHERE tube = p_tube AND id = v_id;
        INSERT INTO penstock_delta (tube, taken, take_calls) VALUES (p_tube, 1, 1);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
        IF p_blocked > 1 THEN
            CALL penstock_count_waiter(CONCAT('[', p_tube, ']'), p_handle, p_waiter, 0);
        END IF;
        SELECT 'handed', v_now, LEAST(v_next, at) - v_now, v_session, record, data
        FROM penstock_record WHERE tube = p_tube AND id = v_id;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_ack_one;

-- As penstock_ack of one task. Where it is acked and nothing follows, nothing is answered.
CREATE PROCEDURE penstock_ack_one(p_tube INT UNSIGNED, p_session BIGINT, p_id BIGINT, p_lease INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DELETE t FROM penstock_task t FORCE INDEX (PRIMARY) WHERE tube = p_tube AND id = p_id AND state = 't' AND owner = p_session
    AND (p_lease IS NULL OR lease = p_lease) AND at > v_now AND address IS NULL AND reply_to IS NULL AND group_no IS NULL;
    IF ROW_COUNT() > 0 THEN
        INSERT INTO penstock_delta (tube, taken, done, ack_calls) VALUES (p_tube, -1, 1, 1);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
    ELSE
        CALL penstock_ack(p_tube, p_session, JSON_ARRAY(JSON_ARRAY(p_id, p_lease)), v_now);
        SELECT 'settled', v_now, NULL, NULL;
    END IF;
END;
