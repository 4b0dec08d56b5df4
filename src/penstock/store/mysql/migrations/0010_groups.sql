-- Groups: one record each, which start and cancel flip; the tasks follow in bounded steps.
DROP PROCEDURE IF EXISTS penstock_open_groups;

-- Lock the groups that these entries go to, begun where they must be; refused where one group was meant and has ended.
CREATE PROCEDURE penstock_open_groups(p_tube INT UNSIGNED, p_entries LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over INT DEFAULT 0;
    DECLARE v_no, v_meant BIGINT;
    DECLARE v_name VARBINARY(200);
    DECLARE c_groups CURSOR FOR
        SELECT DISTINCT j.group_name, j.group_no FROM JSON_TABLE(p_entries, '$[*]' COLUMNS (
            group_name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[17]', group_no BIGINT PATH '$[18]'
        )) j WHERE j.group_name IS NOT NULL;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    OPEN c_groups;
    opening: LOOP
        SET v_over = 0;
        FETCH c_groups INTO v_name, v_meant;
        IF v_over THEN
            LEAVE opening;
        END IF;
        IF v_meant IS NULL THEN
            INSERT INTO penstock_group (tube, name, live) VALUES (p_tube, v_name, v_name) ON DUPLICATE KEY UPDATE name = name;
        END IF;
        SELECT MAX(no) INTO v_no FROM penstock_group WHERE tube = p_tube AND live = v_name FOR UPDATE;
        IF v_meant IS NOT NULL AND NOT v_meant <=> v_no THEN
            SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31004, MESSAGE_TEXT = 'the group has ended';
        END IF;
    END LOOP;
END;

DROP PROCEDURE IF EXISTS penstock_open_group;

-- The live group of that name, begun when there is none; answered as penstock_get_group does.
CREATE PROCEDURE penstock_open_group(p_tube INT UNSIGNED, p_name VARBINARY(200))
SQL SECURITY INVOKER
BEGIN
    DECLARE v_tube INT UNSIGNED;
    SELECT MAX(no) INTO v_tube FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL LOCK IN SHARE MODE;
    IF v_tube IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    INSERT INTO penstock_group (tube, name, live) VALUES (p_tube, p_name, p_name) ON DUPLICATE KEY UPDATE name = name;
    SELECT no, name, state, total, remaining, end_work, cancel_work, moving, until FROM penstock_group
    WHERE tube = p_tube AND live = p_name FOR UPDATE;
END;

DROP PROCEDURE IF EXISTS penstock_set_work;

-- Set what is put at a group's end or after its cancel, where it is given; answers how many groups it were.
CREATE PROCEDURE penstock_set_work(p_tube INT UNSIGNED, p_group BIGINT, p_end LONGBLOB, p_cancel LONGBLOB)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_count INT;
    DECLARE v_tube INT UNSIGNED;
    SELECT MAX(no) INTO v_tube FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL LOCK IN SHARE MODE;
    IF v_tube IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    SELECT COUNT(*) INTO v_count FROM penstock_group WHERE no = p_group AND tube = p_tube AND live IS NOT NULL FOR UPDATE;
    IF v_count > 0 THEN
        UPDATE penstock_group SET end_work = IFNULL(p_end, end_work), cancel_work = IFNULL(p_cancel, cancel_work)
        WHERE no = p_group;
    END IF;
    SELECT v_count;
END;

DROP PROCEDURE IF EXISTS penstock_turn;

-- Start or cancel a group (p_to: started, cancelling). A second time does nothing. Takes wait for the tube's row, so that
-- none of them hands out what was cancelled before it.
CREATE PROCEDURE penstock_turn(
    p_tube INT UNSIGNED, p_group BIGINT, p_to VARCHAR(10) CHARACTER SET ascii, p_capacity BIGINT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_retention, v_remaining, v_last BIGINT;
    DECLARE v_works INT;
    SELECT MAX(retention) INTO v_retention FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL FOR UPDATE;
    IF v_retention IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    SELECT MAX(remaining), MAX(IF(p_to = 'started', end_work, cancel_work) IS NOT NULL) INTO v_remaining, v_works
    FROM penstock_group WHERE no = p_group AND tube = p_tube AND live IS NOT NULL AND state <> p_to FOR UPDATE;
    IF v_remaining = 0 AND v_works AND p_capacity IS NOT NULL THEN
        SELECT last INTO v_last FROM penstock_id WHERE tube = p_tube FOR UPDATE;
        CALL penstock_room(p_tube, v_last, 1, p_capacity);
    END IF;
    IF v_remaining IS NOT NULL THEN
        UPDATE penstock_group SET state = p_to, live = IF(p_to = 'started', live, NULL), moving = v_remaining > 0
        WHERE no = p_group;
        IF v_remaining > 0 THEN
            UPDATE penstock_tube SET moving = 1 WHERE no = p_tube;
        END IF;
        CALL penstock_end_group(p_tube, p_group, v_now + v_retention);
        INSERT INTO penstock_delta (tube) VALUES (p_tube);  -- whoever looks for changes sees one
    END IF;
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_turned;

-- The first step after a turn, in a transaction of its own: there tasks are locked before groups, as everywhere. Ends
-- with a row: turned, moment, NULL, whether more must follow.
CREATE PROCEDURE penstock_turned(p_tube INT UNSIGNED, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_more INT DEFAULT 0;
    CALL penstock_follow(p_tube, 1000, v_now, v_more);
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
    SELECT 'turned', v_now, NULL, v_more;
END;

DROP PROCEDURE IF EXISTS penstock_follow;

-- Let at most p_limit tasks follow the records of their groups: started ones become ready, cancelled ones go; of these at
-- most 200, some 7 ms, because takes pass by the others. p_more: some must still. The tube's mark goes when none must and nobody is taking; else the next one to follow takes it away. A
-- caller's own transaction (@penstock_bound) may not see the newest tasks, so it calls nothing done.
CREATE PROCEDURE penstock_follow(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT, OUT p_more INT)
SQL SECURITY INVOKER
follow: BEGIN
    DECLARE v_over, v_lanes, v_count, v_some, v_mark INT DEFAULT 0;
    DECLARE v_left INT DEFAULT p_limit;
    DECLARE v_going INT DEFAULT LEAST(p_limit, 200);
    DECLARE v_group BIGINT;
    DECLARE v_state VARCHAR(10) CHARACTER SET ascii;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE c_groups CURSOR FOR
        SELECT no, state FROM penstock_group FORCE INDEX (penstock_moving_group) WHERE tube = p_tube AND moving = 1 ORDER BY no;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT lanes INTO v_lanes FROM penstock_tube WHERE no = p_tube;
    OPEN c_groups;
    moving: LOOP
        SET v_over = 0;
        FETCH c_groups INTO v_group, v_state;
        IF v_over OR v_left <= 0 THEN
            LEAVE moving;
        END IF;
        SET v_some = IF(v_state = 'cancelling', LEAST(v_left, v_going), v_left);
        IF v_state = 'cancelling' THEN
            SELECT CONCAT('[', GROUP_CONCAT(m.id ORDER BY m.id), ']'), COUNT(*) INTO v_ids, v_count
            FROM (SELECT id FROM penstock_member FORCE INDEX (PRIMARY) WHERE group_no = v_group ORDER BY id LIMIT v_some) m;
            SET v_going = v_going - v_count;
        ELSE
            SELECT CONCAT('[', GROUP_CONCAT(m.id ORDER BY m.rank1, m.rank2, m.id), ']'), COUNT(*) INTO v_ids, v_count
            FROM (SELECT id, rank1, rank2 FROM penstock_member FORCE INDEX (penstock_unstarted)
                WHERE group_no = v_group AND waits = 1 ORDER BY rank1, rank2, id LIMIT v_some) m;
        END IF;
        IF v_state = 'cancelling' THEN
            CALL penstock_cancel_all(p_tube, v_ids, p_now);
        ELSEIF v_lanes THEN
            CALL penstock_sweep(p_tube, 'start', v_ids, NULL, p_now);
        ELSE
            CALL penstock_start_plain(p_tube, v_group, v_ids, p_now);
        END IF;
        SET v_left = v_left - v_count;
        IF v_count < v_some AND @penstock_bound IS NULL THEN
            -- All of it was looked at. What is not moved is in another's hands, or was moved before.
            SELECT COUNT(*) INTO v_count FROM (SELECT 1 FROM penstock_member
                WHERE group_no = v_group AND (v_state = 'cancelling' OR waits = 1) LIMIT 1) m;
            UPDATE penstock_group SET moving = 0 WHERE no = v_group AND state = v_state AND v_count = 0;
        END IF;
    END LOOP;
    CLOSE c_groups;
    IF @penstock_bound THEN
        SET p_more = v_left <= 0 OR v_going <= 0;
        LEAVE follow;
    END IF;
    SELECT COUNT(*) INTO p_more FROM (SELECT 1 FROM penstock_group WHERE tube = p_tube AND moving = 1 LIMIT 1) g;
    IF NOT p_more THEN
        SELECT MAX(moving) INTO v_mark FROM (SELECT moving FROM penstock_tube WHERE no = p_tube FOR UPDATE SKIP LOCKED) b;
        SELECT COUNT(*) INTO p_more FROM (SELECT 1 FROM penstock_group WHERE tube = p_tube AND moving = 1 LIMIT 1) g;
        IF v_mark AND NOT p_more THEN
            UPDATE penstock_tube SET moving = 0 WHERE no = p_tube;
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_cancel_plain;

DROP PROCEDURE IF EXISTS penstock_cancel_all;

-- As a sweep that deletes, whatever their number in a few statements; what others are at stays.
CREATE PROCEDURE penstock_cancel_all(p_tube INT UNSIGNED, p_ids LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids, v_filled LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_lanes, v_fair, v_limit, v_count, v_taken, v_delayed, v_buried INT;
    DECLARE v_readied INT DEFAULT 0;
    DECLARE v_retention BIGINT;
    SELECT lanes, fair, utube_limit, retention INTO v_lanes, v_fair, v_limit, v_retention FROM penstock_tube WHERE no = p_tube;
    IF v_lanes THEN
        CALL penstock_lanes_hold(p_tube, p_ids);
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.id), ']'), COUNT(*), SUM(d.state = 't'), SUM(d.state IN ('~', 'g')),
        SUM(d.state = '!') INTO v_ids, v_count, v_taken, v_delayed, v_buried
    FROM (SELECT t.id, t.state FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id FOR UPDATE SKIP LOCKED) d;
    IF v_ids IS NOT NULL THEN
        SELECT 'cancel/cancelling', p_tube, t.record, t.data FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_record t ON t.tube = p_tube AND t.id = j.id FOR UPDATE;
        IF v_lanes THEN
            CALL penstock_lanes_lose(p_tube, v_ids, v_fair, v_limit, p_now, v_filled);
        END IF;
        CALL penstock_leave_all(p_tube, v_ids, 'deleted', p_now + v_retention);
        DELETE t FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id;
        INSERT INTO penstock_delta (tube, taken, delayed_tasks, buried, done, delete_calls)
        VALUES (p_tube, -v_taken, -v_delayed, -v_buried, v_count, v_count);
        IF v_filled IS NOT NULL THEN
            CALL penstock_lanes_fill(p_tube, v_filled, v_fair, v_limit, v_readied);
            SELECT 'ready', p_tube, v_readied, NULL;
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_start_plain;

-- A sweep's start, for a tube without micro-queues: whatever their number in a few statements.
CREATE PROCEDURE penstock_start_plain(
    p_tube INT UNSIGNED, p_group BIGINT, p_ids LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_count INT DEFAULT 0;
    SELECT CONCAT('[', GROUP_CONCAT(d.id), ']'), IFNULL(SUM(d.ready), 0) INTO v_ids, v_count FROM (
        SELECT t.id, t.at = 9007199254740991 OR t.at <= p_now OR t.at <=> t.expires AS ready
        FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE t.state = 'g' FOR UPDATE SKIP LOCKED
    ) d;
    IF v_ids IS NOT NULL THEN
        UPDATE JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        STRAIGHT_JOIN penstock_member m FORCE INDEX (PRIMARY) ON m.group_no = p_group AND m.id = t.id
        SET m.waits = 0, t.state = IF(t.at = 9007199254740991 OR t.at <= p_now OR t.at <=> t.expires, 'r', '~'),
            t.at = IF(t.at <= p_now, IFNULL(t.expires, 9007199254740991), t.at);
        INSERT INTO penstock_delta (tube, delayed_tasks) VALUES (p_tube, -v_count);
        SELECT 'ready', p_tube, v_count, NULL;
    END IF;
END;
