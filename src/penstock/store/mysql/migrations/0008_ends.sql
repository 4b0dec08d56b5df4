-- What follows from a task's end: its outcome is kept, its reply and its group's work are put, in the step that removes
-- it. Procedures are part of a caller's transaction, which holds the task.
DROP PROCEDURE IF EXISTS penstock_left;

-- A tied task is gone. p_until NULL: its tube keeps no outcomes.
CREATE PROCEDURE penstock_left(
    p_tube INT UNSIGNED, p_id BIGINT, p_address VARBINARY(200), p_reply_to VARBINARY(200), p_group BIGINT,
    p_status VARCHAR(10) CHARACTER SET ascii, p_result LONGBLOB, p_error TEXT CHARACTER SET utf8mb4,
    p_code TEXT CHARACTER SET utf8mb4, p_until BIGINT
)
SQL SECURITY INVOKER
BEGIN
    IF p_address IS NOT NULL THEN
        DELETE FROM penstock_address WHERE tube = p_tube AND address = p_address;
    END IF;
    IF p_address IS NOT NULL AND p_until IS NOT NULL THEN
        INSERT INTO penstock_outcome (tube, id, address, status, result, error, code, until)
        VALUES (p_tube, p_id, p_address, p_status, p_result, p_error, p_code, p_until);
    END IF;
    IF p_reply_to IS NOT NULL THEN
        CALL penstock_reply(p_reply_to, p_id, p_address, p_status, p_result, p_error, p_code);
    END IF;
    IF p_group IS NOT NULL THEN
        DELETE FROM penstock_member WHERE group_no = p_group AND id = p_id;
        UPDATE penstock_group SET remaining = remaining - 1 WHERE no = p_group;
        CALL penstock_end_group(p_tube, p_group, p_until);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_leave_all;

-- Tied tasks that are about to be removed, all of them ended so, in this order: as penstock_left for each, whatever their
-- number in a few statements.
CREATE PROCEDURE penstock_leave_all(
    p_tube INT UNSIGNED, p_ids LONGTEXT CHARACTER SET utf8mb4, p_status VARCHAR(10) CHARACTER SET ascii, p_until BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over, v_count INT DEFAULT 0;
    DECLARE v_id, v_group BIGINT;
    DECLARE v_address, v_reply_to VARBINARY(200);
    -- Of each group, the last one counts all of them.
    DECLARE c_tasks CURSOR FOR
        SELECT t.id, t.address, t.reply_to, IF(l.place = j.place, t.group_no, NULL), l.members
        FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        LEFT JOIN (
            SELECT m.group_no, MAX(i.place) AS place, COUNT(*) AS members
            FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) i
            STRAIGHT_JOIN penstock_task m FORCE INDEX (PRIMARY) ON m.tube = p_tube AND m.id = i.id
            WHERE m.group_no IS NOT NULL GROUP BY m.group_no
        ) l ON l.group_no = t.group_no
        WHERE t.reply_to IS NOT NULL OR l.place = j.place ORDER BY j.place FOR UPDATE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    INSERT INTO penstock_outcome (tube, id, address, status, until)
    SELECT p_tube, t.id, t.address, p_status, p_until FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
    WHERE t.address IS NOT NULL AND p_until IS NOT NULL;
    OPEN c_tasks;
    leaving: LOOP
        SET v_over = 0;
        FETCH c_tasks INTO v_id, v_address, v_reply_to, v_group, v_count;
        IF v_over THEN
            LEAVE leaving;
        END IF;
        IF v_reply_to IS NOT NULL THEN
            CALL penstock_reply(v_reply_to, v_id, v_address, p_status, NULL, NULL, NULL);
        END IF;
        IF v_group IS NOT NULL THEN
            UPDATE penstock_group SET remaining = remaining - v_count WHERE no = v_group;
            CALL penstock_end_group(p_tube, v_group, p_until);
        END IF;
    END LOOP;
    DELETE a, m FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
    LEFT JOIN penstock_address a ON a.tube = p_tube AND a.address = t.address
    LEFT JOIN penstock_member m ON m.group_no = t.group_no AND m.id = t.id;
END;

DROP PROCEDURE IF EXISTS penstock_reply;

-- The data is that of core/reply.py.
CREATE PROCEDURE penstock_reply(
    p_name VARBINARY(200), p_id BIGINT, p_address VARBINARY(200), p_status VARCHAR(10) CHARACTER SET ascii, p_result LONGBLOB,
    p_error TEXT CHARACTER SET utf8mb4, p_code TEXT CHARACTER SET utf8mb4
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_tube INT UNSIGNED;
    DECLARE v_end LONGBLOB;
    IF p_status <> 'done' THEN
        SET v_end = CONCAT(',"error":', IFNULL(JSON_QUOTE(p_error), 'null'), IFNULL(CONCAT(',"code":', p_code), ''));
    ELSEIF LEFT(p_result, 1) = X'00' THEN
        SET v_end = CONCAT(',"result":"', REPLACE(TO_BASE64(SUBSTRING(p_result, 2)), CHAR(10), ''), '","encoding":"base64"');
    ELSE
        SET v_end = CONCAT(',"result":', IFNULL(p_result, 'null'));
    END IF;
    CALL penstock_reply_tube(p_name, v_tube);
    INSERT INTO penstock_work (tube, data) VALUES (v_tube, CONCAT(
        '{"id":', p_id, ',"address":', IFNULL(JSON_QUOTE(CONVERT(p_address USING utf8mb4)), 'null'),
        ',"status":"', p_status, '"', v_end, '}'
    ));
    SET @penstock_works = 1;
END;

DROP PROCEDURE IF EXISTS penstock_reply_tube;

-- The tube of that name, which cannot be dropped before this step is over; created when it is missing.
CREATE PROCEDURE penstock_reply_tube(p_name VARBINARY(200), OUT p_tube INT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
    SELECT MAX(no) INTO p_tube FROM penstock_tube WHERE name = p_name LOCK IN SHARE MODE;
    IF p_tube IS NULL THEN
        INSERT IGNORE INTO penstock_tube (name, kind, options, lanes, fair, utube_limit, plain, retention)
        SELECT p_name, MAX(IF(name = 'reply_kind', value, NULL)), '{}', 0, 0, 1, MAX(IF(name = 'reply_plain', value, NULL)),
            MAX(IF(name = 'reply_retention', value, NULL))
        FROM penstock_meta;
        SELECT MAX(no) INTO p_tube FROM penstock_tube WHERE name = p_name LOCK IN SHARE MODE;
        INSERT IGNORE INTO penstock_id (tube) VALUES (p_tube);
        INSERT IGNORE INTO penstock_counter (tube) VALUES (p_tube);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_end_group;

-- Call a group over if nothing is left of it, once, and put its work.
CREATE PROCEDURE penstock_end_group(p_tube INT UNSIGNED, p_group BIGINT, p_until BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_state VARCHAR(10) CHARACTER SET ascii;
    DECLARE v_work LONGBLOB;
    SELECT MAX(state) INTO v_state FROM penstock_group
    WHERE no = p_group AND remaining <= 0 AND state IN ('started', 'cancelling') FOR UPDATE;
    IF v_state IS NOT NULL THEN
        SELECT IF(v_state = 'started', end_work, cancel_work) INTO v_work FROM penstock_group WHERE no = p_group FOR UPDATE;
        UPDATE penstock_group SET state = IF(v_state = 'started', 'done', 'cancelled'), live = NULL, moving = 0, until = p_until
        WHERE no = p_group;
        IF v_work IS NOT NULL THEN
            INSERT INTO penstock_work (tube, data) VALUES (p_tube, v_work);
            SET @penstock_works = 1;
        END IF;
        SELECT 'group', p_tube, p_group, NULL;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_follow_ends;

-- So many tied tasks were settled: put what follows. With each outcome two are forgotten, so that they never outnumber
-- what the retention asks for, even in a tube that nobody advances.
CREATE PROCEDURE penstock_follow_ends(p_tube INT UNSIGNED, p_count INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    CALL penstock_forget(p_tube, 2 * p_count, p_now);
    IF @penstock_works THEN
        CALL penstock_put_works(p_now);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_put_works;

-- Put what waits for it, each tube's in the order in which it came, whatever the tube's capacity.
CREATE PROCEDURE penstock_put_works(p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over, v_lanes INT DEFAULT 0;
    DECLARE v_no, v_last, v_first BIGINT;
    DECLARE v_tube, v_current INT UNSIGNED;
    DECLARE v_hand_out VARCHAR(7) CHARACTER SET ascii;
    DECLARE v_address VARBINARY(200);
    DECLARE v_data LONGBLOB;
    DECLARE c_works CURSOR FOR SELECT no, tube, data FROM penstock_work ORDER BY tube, no;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SET @penstock_works = 0;
    OPEN c_works;
    putting: LOOP
        SET v_over = 0;
        FETCH c_works INTO v_no, v_tube, v_data;
        IF v_current IS NOT NULL AND (v_over OR v_tube <> v_current) THEN
            CALL penstock_put_done(v_current, v_first, v_last, v_lanes, p_now);
        END IF;
        IF v_over THEN
            LEAVE putting;
        END IF;
        IF NOT v_tube <=> v_current THEN
            SET v_last = NULL, v_current = v_tube;
            SELECT last INTO v_last FROM penstock_id WHERE tube = v_tube FOR UPDATE;
            IF v_last IS NULL THEN
                CALL penstock_no_tube();
            END IF;
            SELECT lanes, hand_out INTO v_lanes, v_hand_out FROM penstock_tube WHERE no = v_tube LOCK IN SHARE MODE;
            SET v_first = v_last + 1;
        END IF;
        SET v_last = v_last + 1, v_address = NULL;
        IF v_hand_out <> 'lease' THEN
            CALL penstock_name_work(v_tube, v_last, v_hand_out, p_now, v_address);
        END IF;
        INSERT INTO penstock_task (tube, id, state, rank1, rank2, pri, utube, created, expires, at, ttr, max_attempts, callback,
            data, address)
        SELECT v_tube, v_last, IF(v_lanes, 'n', 'r'), p.base1 + p.clock1 * p_now - p.newest1 * v_last,
            p.base2 + p.clock2 * p_now - p.newest2 * v_last, p.pri, p.utube, p_now, p_now + p.ttl,
            IFNULL(p_now + p.ttl, 9007199254740991), p.ttr, p.max_attempts, p.callback, v_data, v_address
        FROM penstock_tube b STRAIGHT_JOIN JSON_TABLE(b.plain, '$' COLUMNS (
            base1 DOUBLE PATH '$[0]', clock1 INT PATH '$[1]', newest1 INT PATH '$[2]',
            base2 DOUBLE PATH '$[3]', clock2 INT PATH '$[4]', newest2 INT PATH '$[5]', pri INT PATH '$[6]',
            utube VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[7]', ttl BIGINT PATH '$[8]', ttr BIGINT PATH '$[9]',
            max_attempts INT PATH '$[10]', callback TEXT CHARACTER SET utf8mb4 PATH '$[11]'
        )) p WHERE b.no = v_tube;
        DELETE FROM penstock_work WHERE no = v_no;
    END LOOP;
END;

DROP PROCEDURE IF EXISTS penstock_put_done;

-- Tasks were put into a tube without its caller's asking: keep their ids, let them arrive, and answer them.
CREATE PROCEDURE penstock_put_done(p_tube INT UNSIGNED, p_first BIGINT, p_last BIGINT, p_lanes INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    UPDATE penstock_id SET last = p_last WHERE tube = p_tube;
    IF p_lanes THEN
        CALL penstock_arrive(p_tube, p_first, p_last, p_now);
    ELSE
        SELECT 'ready', p_tube, p_last - p_first + 1, NULL;
    END IF;
    SELECT 'work', p_tube, record, data FROM penstock_record WHERE tube = p_tube AND id BETWEEN p_first AND p_last;
END;

DROP PROCEDURE IF EXISTS penstock_forget;

-- Forget some outcomes and groups whose time is over; what others are at is theirs.
CREATE PROCEDURE penstock_forget(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    SELECT CONCAT('[', GROUP_CONCAT(o.id), ']') INTO v_ids
    FROM (SELECT id FROM penstock_outcome FORCE INDEX (penstock_outcome_until) WHERE tube = p_tube AND until <= p_now
        ORDER BY until LIMIT p_limit FOR UPDATE SKIP LOCKED) o;
    IF v_ids IS NOT NULL THEN
        DELETE o FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_outcome o FORCE INDEX (PRIMARY) ON o.tube = p_tube AND o.id = j.id;
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(g.no), ']') INTO v_ids
    FROM (SELECT no FROM penstock_group FORCE INDEX (penstock_over_group) WHERE tube = p_tube AND until <= p_now
        ORDER BY until LIMIT p_limit FOR UPDATE SKIP LOCKED) g;
    IF v_ids IS NOT NULL THEN
        DELETE g FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (no BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_group g FORCE INDEX (PRIMARY) ON g.no = j.no;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_remove;

-- Remove some tasks of a dropped tube; those that must reply do. Ends with a row: removed, moment, how many it were.
CREATE PROCEDURE penstock_remove(p_tube INT UNSIGNED, p_limit INT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_over, v_count INT DEFAULT 0;
    DECLARE v_id BIGINT;
    DECLARE v_address, v_reply_to VARBINARY(200);
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE c_replies CURSOR FOR
        SELECT t.id, t.address, t.reply_to FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        STRAIGHT_JOIN penstock_tube b ON b.no = p_tube
        WHERE t.reply_to IS NOT NULL AND NOT t.reply_to <=> b.old_name;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT CONCAT('[', GROUP_CONCAT(t.id ORDER BY t.id), ']'), COUNT(*) INTO v_ids, v_count
    FROM (SELECT id FROM penstock_task FORCE INDEX (PRIMARY) WHERE tube = p_tube ORDER BY id LIMIT p_limit FOR UPDATE) t;
    IF v_count > 0 THEN
        OPEN c_replies;
        replying: LOOP
            SET v_over = 0;
            FETCH c_replies INTO v_id, v_address, v_reply_to;
            IF v_over THEN
                LEAVE replying;
            END IF;
            CALL penstock_reply(v_reply_to, v_id, v_address, 'deleted', NULL, NULL, NULL);
        END LOOP;
        DELETE t, a, m FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        LEFT JOIN penstock_address a ON a.tube = p_tube AND a.address = t.address
        LEFT JOIN penstock_member m ON m.group_no = t.group_no AND m.id = t.id;
        IF @penstock_works THEN
            CALL penstock_put_works(v_now);
        END IF;
    END IF;
    SELECT 'removed', v_now, v_count, NULL;
END;
