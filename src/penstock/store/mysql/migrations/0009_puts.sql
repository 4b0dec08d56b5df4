-- Puts with addresses, replies or groups: the decisions of core/address.py, in one step.
DROP PROCEDURE IF EXISTS penstock_put;

-- p_entries: [[base1, clock1, newest1, base2, clock2, newest2, pri, utube, ttl, delay, ttr, max_attempts, callback, data in
-- base64, address, turn, reply_to, group, number of the group]], each address once. turn: what becomes of the task that
-- holds the address: -1 an error, NULL nothing, else it is replaced, in the order of these numbers. Answers a row put
-- (last id before, moment), the new tasks (fresh, id, record), those that were there (held, place from 1, record, data).
CREATE PROCEDURE penstock_put(
    p_tube INT UNSIGNED, p_entries LONGTEXT CHARACTER SET utf8mb4, p_addressed INT, p_grouped INT, p_capacity BIGINT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_last, v_ms, v_seq BIGINT;
    DECLARE v_count, v_delayed, v_lanes INT;
    DECLARE v_hand_out VARCHAR(7) CHARACTER SET ascii;
    DECLARE v_fresh LONGTEXT CHARACTER SET utf8mb4 DEFAULT p_entries;
    DECLARE v_held LONGTEXT CHARACTER SET utf8mb4;
    -- Whoever puts here waits for this row, so that no two put an address, or begin a group, at once.
    SELECT MAX(last) INTO v_last FROM penstock_id WHERE tube = p_tube FOR UPDATE;
    IF v_last IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    IF p_addressed THEN
        CALL penstock_make_way(p_tube, p_entries, v_now, v_fresh, v_held);
    END IF;
    IF p_grouped THEN
        CALL penstock_open_groups(p_tube, v_fresh);
    END IF;
    SELECT COUNT(*), IFNULL(SUM(j.delay > 0 OR IFNULL(g.state = 'open', 0)), 0) INTO v_count, v_delayed
    FROM JSON_TABLE(v_fresh, '$[*]' COLUMNS (
        delay BIGINT PATH '$[9]', group_name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[17]'
    )) j LEFT JOIN penstock_group g ON g.tube = p_tube AND g.live = CAST(j.group_name AS BINARY) LOCK IN SHARE MODE;
    CALL penstock_reserve(p_tube, v_count, v_delayed, p_capacity, v_now);
    SELECT lanes, hand_out INTO v_lanes, v_hand_out FROM penstock_tube WHERE no = p_tube;
    IF v_count > 0 THEN
        IF v_hand_out = 'deliver' THEN
            CALL penstock_next_marks(p_tube, v_count, v_now, v_ms, v_seq);
        END IF;
        CALL penstock_insert(p_tube, v_fresh, v_last, v_lanes, v_ms, v_seq, v_now);
        CALL penstock_tie(p_tube, v_last + 1, v_last + v_count, p_addressed OR v_ms IS NOT NULL, p_grouped, v_now);
        IF v_lanes THEN
            CALL penstock_arrive(p_tube, v_last + 1, v_last + v_count, v_now);
        ELSE
            SELECT 'ready', p_tube, v_count - v_delayed, NULL;
        END IF;
        SELECT 'fresh', id, record, NULL FROM penstock_record
        WHERE tube = p_tube AND id BETWEEN v_last + 1 AND v_last + v_count ORDER BY id;
    END IF;
    IF v_held IS NOT NULL THEN
        IF v_hand_out = 'clock' THEN
            CALL penstock_refresh(p_tube, p_entries, v_last);
        ELSE
            CALL penstock_replace(p_tube, p_entries, v_last, v_now);
        END IF;
        SELECT 'held', h.place, t.record, IF(h.turn IS NULL, t.data, NULL) FROM JSON_TABLE(v_held, '$[*]' COLUMNS (
            place INT PATH '$[0]', id BIGINT PATH '$[1]', turn INT PATH '$[2]'
        )) h STRAIGHT_JOIN penstock_record t ON t.tube = p_tube AND t.id = h.id FOR UPDATE;
    END IF;
    IF @penstock_works THEN
        CALL penstock_put_works(v_now);
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_make_way;

-- Look at the tasks that hold these addresses. Those that are past their ttl or of a cancelled group go. p_held: the
-- others, as [[place, id, turn]]; p_fresh: the entries whose addresses are free.
CREATE PROCEDURE penstock_make_way(
    p_tube INT UNSIGNED, p_entries LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT,
    OUT p_fresh LONGTEXT CHARACTER SET utf8mb4, OUT p_held LONGTEXT CHARACTER SET utf8mb4
)
SQL SECURITY INVOKER
making: BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_lanes INT;
    DECLARE v_refused VARCHAR(40);
    SET p_fresh = p_entries;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(j.place, a.id, j.turn) ORDER BY j.place), ']'),
        CONCAT('[', GROUP_CONCAT(a.id ORDER BY a.id), ']') INTO p_held, v_ids
    FROM JSON_TABLE(p_entries, '$[*]' COLUMNS (
        place FOR ORDINALITY, address VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[14]', turn INT PATH '$[15]'
    )) j STRAIGHT_JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.address AS BINARY) FOR UPDATE;
    IF v_ids IS NULL THEN
        LEAVE making;
    END IF;
    SELECT lanes INTO v_lanes FROM penstock_tube WHERE no = p_tube;
    IF v_lanes THEN
        CALL penstock_lock_lanes(p_tube, v_ids);
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(IF((t.state <> 't' AND IFNULL(t.expires <= p_now, 0)) OR IFNULL(g.state = 'cancelling', 0),
        t.id, NULL) ORDER BY t.id), ']') INTO v_ids
    FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
    LEFT JOIN penstock_group g ON g.no = t.group_no FOR UPDATE;
    IF v_ids IS NOT NULL THEN
        CALL penstock_sweep(p_tube, 'lapse', v_ids, NULL, p_now);
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(h.place, t.id, h.turn) ORDER BY h.place), ']'),
        MIN(IF(h.turn < 0, h.place, IF(h.turn IS NOT NULL AND t.state IN ('t', '!'), CONCAT(h.place, t.state), NULL)))
    INTO p_held, v_refused FROM JSON_TABLE(p_held, '$[*]' COLUMNS (
        place INT PATH '$[0]', id BIGINT PATH '$[1]', turn INT PATH '$[2]'
    )) h STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = h.id FOR UPDATE;
    IF v_refused IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31003, MESSAGE_TEXT = v_refused;
    END IF;
    IF p_held IS NOT NULL THEN
        SELECT CONCAT('[', IFNULL(GROUP_CONCAT(j.entry ORDER BY j.place), ''), ']') INTO p_fresh
        FROM JSON_TABLE(p_entries, '$[*]' COLUMNS (
            place FOR ORDINALITY, entry JSON PATH '$', address VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[14]'
        )) j LEFT JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.address AS BINARY)
        WHERE a.id IS NULL FOR UPDATE;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_insert;

-- New tasks; those of a micro-queue kind have yet to arrive there. p_ms, p_seq: messages are named from there on.
CREATE PROCEDURE penstock_insert(
    p_tube INT UNSIGNED, p_fresh LONGTEXT CHARACTER SET utf8mb4, p_last BIGINT, p_lanes INT, p_ms BIGINT, p_seq BIGINT,
    p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    INSERT INTO penstock_task (tube, id, state, rank1, rank2, pri, utube, created, expires, at, ttr, max_attempts, callback,
        data, address, reply_to, group_name, group_no)
    SELECT p_tube, p_last + j.place, IF(g.state = 'open', 'g', IF(j.delay > 0, '~', IF(p_lanes, 'n', 'r'))),
        j.base1 + j.clock1 * p_now - j.newest1 * (p_last + j.place),
        j.base2 + j.clock2 * p_now - j.newest2 * (p_last + j.place), j.pri, j.utube, p_now, p_now + j.ttl + j.delay,
        IF(j.delay > 0, p_now + j.delay, IFNULL(p_now + j.ttl, 9007199254740991)), j.ttr, j.max_attempts, j.callback,
        FROM_BASE64(j.data), IFNULL(CONCAT(p_ms, '-', p_seq + j.place), j.address), j.reply_to, j.group_name, g.no
    FROM JSON_TABLE(p_fresh, '$[*]' COLUMNS (
        place FOR ORDINALITY, base1 DOUBLE PATH '$[0]', clock1 INT PATH '$[1]', newest1 INT PATH '$[2]',
        base2 DOUBLE PATH '$[3]', clock2 INT PATH '$[4]', newest2 INT PATH '$[5]', pri INT PATH '$[6]',
        utube VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[7]', ttl BIGINT PATH '$[8]', delay BIGINT PATH '$[9]',
        ttr BIGINT PATH '$[10]', max_attempts INT PATH '$[11]', callback TEXT CHARACTER SET utf8mb4 PATH '$[12]',
        data LONGTEXT CHARACTER SET ascii PATH '$[13]', address VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[14]',
        reply_to VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[16]', group_name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[17]'
    )) j LEFT JOIN penstock_group g ON g.tube = p_tube AND g.live = CAST(j.group_name AS BINARY);
END;

DROP PROCEDURE IF EXISTS penstock_tie;

-- New tasks hold their addresses, whose old outcomes go, and count in their groups.
CREATE PROCEDURE penstock_tie(
    p_tube INT UNSIGNED, p_first BIGINT, p_last BIGINT, p_addressed INT, p_grouped INT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    IF p_addressed THEN
        INSERT INTO penstock_address (tube, address, id)
        SELECT tube, address, id FROM penstock_task FORCE INDEX (PRIMARY)
        WHERE tube = p_tube AND id BETWEEN p_first AND p_last AND address IS NOT NULL;
        -- Those who wait for the old ones still get them: core/ending.py, SUPERSEDED_MS.
        UPDATE penstock_task t FORCE INDEX (PRIMARY)
        STRAIGHT_JOIN penstock_outcome o FORCE INDEX (penstock_outcome_address) ON o.tube = t.tube AND o.address = t.address
        SET o.until = p_now + 60000
        WHERE t.tube = p_tube AND t.id BETWEEN p_first AND p_last AND o.until > p_now + 60000;
    END IF;
    IF p_grouped THEN
        INSERT INTO penstock_member (group_no, id, waits, rank1, rank2)
        SELECT group_no, id, state = 'g', rank1, rank2 FROM penstock_task FORCE INDEX (PRIMARY)
        WHERE tube = p_tube AND id BETWEEN p_first AND p_last AND group_no IS NOT NULL;
        UPDATE penstock_group g JOIN (
            SELECT group_no, COUNT(*) AS more FROM penstock_task FORCE INDEX (PRIMARY)
            WHERE tube = p_tube AND id BETWEEN p_first AND p_last AND group_no IS NOT NULL GROUP BY group_no
        ) c ON c.group_no = g.no SET g.total = g.total + c.more, g.remaining = g.remaining + c.more;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_replace;

-- Give tasks that are there new data, delay, pri and ttl, at the place these give them; all else stays, their ids too. Those
-- above p_last are of this put.
CREATE PROCEDURE penstock_replace(
    p_tube INT UNSIGNED, p_entries LONGTEXT CHARACTER SET utf8mb4, p_last BIGINT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_over, v_readied, v_delayed, v_lanes, v_fair, v_limit, v_attempts INT DEFAULT 0;
    DECLARE v_id, v_ttl, v_delay, v_expires BIGINT;
    DECLARE v_state, v_new CHAR(1) CHARACTER SET ascii;
    DECLARE v_rank1, v_rank2 DOUBLE;
    DECLARE v_pri INT;
    DECLARE v_data LONGBLOB;
    DECLARE v_utube VARBINARY(200);
    DECLARE v_reason TEXT CHARACTER SET utf8mb4;
    DECLARE c_held CURSOR FOR
        SELECT a.id, j.base1 + j.clock1 * p_now - j.newest1 * a.id, j.base2 + j.clock2 * p_now - j.newest2 * a.id,
            j.pri, j.ttl, j.delay, FROM_BASE64(j.data)
        FROM JSON_TABLE(p_entries, '$[*]' COLUMNS (
            base1 DOUBLE PATH '$[0]', clock1 INT PATH '$[1]', newest1 INT PATH '$[2]',
            base2 DOUBLE PATH '$[3]', clock2 INT PATH '$[4]', newest2 INT PATH '$[5]', pri INT PATH '$[6]',
            ttl BIGINT PATH '$[8]', delay BIGINT PATH '$[9]', data LONGTEXT CHARACTER SET ascii PATH '$[13]',
            address VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[14]', turn INT PATH '$[15]'
        )) j STRAIGHT_JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.address AS BINARY)
        WHERE j.turn IS NOT NULL AND a.id <= p_last ORDER BY j.turn FOR UPDATE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT lanes, fair, utube_limit INTO v_lanes, v_fair, v_limit FROM penstock_tube WHERE no = p_tube;
    OPEN c_held;
    replacing: LOOP
        SET v_over = 0;
        FETCH c_held INTO v_id, v_rank1, v_rank2, v_pri, v_ttl, v_delay, v_data;
        IF v_over THEN
            LEAVE replacing;
        END IF;
        -- Read here: a new task of this put may have demoted it.
        SELECT state, attempts, reason, utube INTO v_state, v_attempts, v_reason, v_utube
        FROM penstock_task WHERE tube = p_tube AND id = v_id FOR UPDATE;
        SET v_expires = p_now + v_ttl + v_delay, v_new = IF(v_state = 'g', 'g', IF(v_delay > 0, '~', 'r'));
        SET v_readied = v_readied - (v_state = 'r'),
            v_delayed = v_delayed - (v_state IN ('~', 'g')) + (v_new IN ('~', 'g'));
        -- In no micro-queue while it finds its place.
        UPDATE penstock_task SET state = '~', lane_state = NULL, rank1 = v_rank1, pri = v_pri, created = p_now, data = v_data
        WHERE tube = p_tube AND id = v_id;
        CALL penstock_move(
            p_tube, v_id, v_state, v_new, IF(v_delay > 0, p_now + v_delay, v_expires), v_expires, v_attempts, v_reason,
            v_utube, v_rank1, v_rank2, v_lanes, v_fair, v_limit, p_now, v_readied
        );
    END LOOP;
    IF v_delayed <> 0 THEN
        INSERT INTO penstock_delta (tube, delayed_tasks) VALUES (p_tube, v_delayed);
    END IF;
    SELECT 'ready', p_tube, v_readied, NULL;
END;
