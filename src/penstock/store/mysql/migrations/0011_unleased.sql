-- Kinds that lease nothing: round (hand-out by clock) and reliable (by delivery), as core/handout.py has them. A task's
-- own id is its address. What is delivered stands in penstock_ready under state t, in the order of its serials.
ALTER TABLE penstock_tube
    ADD COLUMN hand_out VARCHAR(7) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'lease',
    ADD COLUMN period BIGINT NOT NULL DEFAULT 0;

-- The last id that a reliable tube gave, kept when all its messages are gone.
ALTER TABLE penstock_id ADD COLUMN last_ms BIGINT NOT NULL DEFAULT 0, ADD COLUMN last_seq BIGINT NOT NULL DEFAULT 0;

-- The serial of a reliable tube's last hand-out. Not in penstock_id, where takers would wait for puts.
CREATE TABLE IF NOT EXISTS penstock_serial (
    tube INT UNSIGNED NOT NULL PRIMARY KEY,
    last BIGINT NOT NULL
) ENGINE = InnoDB;

DROP PROCEDURE IF EXISTS penstock_hand_out;

-- Hand out these locked tasks, in this order, to nobody in particular.
CREATE PROCEDURE penstock_hand_out(
    p_tube INT UNSIGNED, p_hand_out VARCHAR(7) CHARACTER SET ascii, p_ids LONGTEXT CHARACTER SET utf8mb4, p_count INT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_serial BIGINT;
    IF p_hand_out = 'clock' THEN
        UPDATE JSON_TABLE(p_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        SET t.rank1 = p_now, t.taken = p_now, t.attempts = t.attempts + 1;
    ELSE
        INSERT INTO penstock_serial (tube, last) VALUES (p_tube, p_count) ON DUPLICATE KEY UPDATE last = last + p_count;
        SELECT last - p_count INTO v_serial FROM penstock_serial WHERE tube = p_tube FOR UPDATE;
        UPDATE JSON_TABLE(p_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        SET t.state = 't', t.rank1 = v_serial + j.place, t.taken = p_now, t.attempts = t.attempts + 1;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_next_turn;

-- A take of a round tube got nothing: p_at becomes the moment of its first element, where that is earlier. One that may be
-- handed out now is in another's hands, who moves it in a moment, and without a word to those who wait.
CREATE PROCEDURE penstock_next_turn(p_tube INT UNSIGNED, p_period BIGINT, p_now BIGINT, INOUT p_at BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_rank DOUBLE;
    DECLARE v_turn BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT rank1 INTO v_rank FROM penstock_task FORCE INDEX (penstock_ready)
    WHERE tube = p_tube AND state = 'r' ORDER BY rank1, rank2, id LIMIT 1;
    SET v_turn = IF(v_rank <= GREATEST(p_now - p_period, 0), p_now + 20, v_rank + p_period);
    SET p_at = LEAST(IFNULL(p_at, v_turn), IFNULL(v_turn, p_at));
END;

DROP PROCEDURE IF EXISTS penstock_recover;

-- Hand out again up to p_count delivered messages, up to one that is younger than p_elapsed; what others are at is theirs.
CREATE PROCEDURE penstock_recover(p_tube INT UNSIGNED, p_count BIGINT, p_elapsed BIGINT, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_paused, v_count INT;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    SELECT MAX(paused) INTO v_paused FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL LOCK IN SHARE MODE;
    IF v_paused IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    IF NOT v_paused THEN
        SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.rank1), ']'), COUNT(*) INTO v_ids, v_count
        FROM (SELECT c.id, c.rank1, SUM(c.young) OVER (ORDER BY c.rank1 ROWS UNBOUNDED PRECEDING) AS young
            FROM (SELECT id, rank1, taken + p_elapsed > v_now AS young
                FROM penstock_task FORCE INDEX (penstock_ready) WHERE tube = p_tube AND state = 't'
                ORDER BY rank1, rank2, id LIMIT p_count FOR UPDATE SKIP LOCKED) c) d
        WHERE d.young = 0;
    END IF;
    IF v_ids IS NOT NULL THEN
        CALL penstock_hand_out(p_tube, 'deliver', v_ids, v_count, v_now);
        CALL penstock_show('take', p_tube, p_tube, v_ids);
        INSERT INTO penstock_delta (tube, take_calls) VALUES (p_tube, v_count);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_inspect;

-- A part of the delivered (p_pending) or undelivered messages, in their order, read from the end that is nearer.
CREATE PROCEDURE penstock_inspect(p_tube INT UNSIGNED, p_start BIGINT, p_count BIGINT, p_pending INT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_state CHAR(1) CHARACTER SET ascii DEFAULT IF(p_pending, 't', 'r');
    DECLARE v_last, v_taken, v_others, v_total, v_start, v_count, v_after BIGINT;
    SELECT MAX(last) INTO v_last FROM penstock_id WHERE tube = p_tube;
    IF v_last IS NULL THEN
        CALL penstock_no_tube();
    END IF;
    SELECT SUM(taken), SUM(delayed_tasks + buried + done) INTO v_taken, v_others FROM (
        SELECT taken, delayed_tasks, buried, done FROM penstock_counter WHERE tube = p_tube
        UNION ALL SELECT taken, delayed_tasks, buried, done FROM penstock_delta WHERE tube = p_tube
    ) every;
    SET v_total = IF(p_pending, v_taken, v_last - v_taken - v_others);
    SET v_start = p_start + IF(p_start < 0, v_total, 0);
    IF v_start BETWEEN 0 AND v_total - 1 THEN
        SET v_count = LEAST(p_count, v_total - v_start), v_after = v_total - v_start - v_count;
        IF v_start <= v_after THEN
            SELECT 'listed', p_tube, r.record, r.data FROM (SELECT id, rank1 FROM penstock_task FORCE INDEX (penstock_ready)
                WHERE tube = p_tube AND state = v_state ORDER BY rank1, rank2, id LIMIT v_count OFFSET v_start) d
            STRAIGHT_JOIN penstock_record r ON r.tube = p_tube AND r.id = d.id ORDER BY d.rank1, d.id;
        ELSE
            SELECT 'listed', p_tube, r.record, r.data FROM (SELECT id, rank1 FROM penstock_task FORCE INDEX (penstock_ready)
                WHERE tube = p_tube AND state = v_state ORDER BY rank1 DESC, rank2 DESC, id DESC LIMIT v_count OFFSET v_after) d
            STRAIGHT_JOIN penstock_record r ON r.tube = p_tube AND r.id = d.id ORDER BY d.rank1, d.id;
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_next_marks;

-- Messages are about to be put: their ids are p_ms-(p_seq + 1) and so on. Whoever calls it holds the tube's last id.
CREATE PROCEDURE penstock_next_marks(p_tube INT UNSIGNED, p_count INT, p_now BIGINT, OUT p_ms BIGINT, OUT p_seq BIGINT)
SQL SECURITY INVOKER
BEGIN
    -- Assigned from left to right, so that the number still sees the old moment.
    UPDATE penstock_id SET last_seq = IF(p_now > last_ms, 0, last_seq) + p_count, last_ms = GREATEST(last_ms, p_now)
    WHERE tube = p_tube;
    SELECT last_ms, last_seq - p_count INTO p_ms, p_seq FROM penstock_id WHERE tube = p_tube FOR UPDATE;
END;

DROP PROCEDURE IF EXISTS penstock_name_work;

-- The id that a reply gets in such a tube, in use from now on.
CREATE PROCEDURE penstock_name_work(
    p_tube INT UNSIGNED, p_id BIGINT, p_hand_out VARCHAR(7) CHARACTER SET ascii, p_now BIGINT, OUT p_name VARBINARY(200)
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ms, v_seq BIGINT;
    DECLARE v_used INT DEFAULT 0;
    IF p_hand_out = 'deliver' THEN
        CALL penstock_next_marks(p_tube, 1, p_now, v_ms, v_seq);
        SET p_name = CONCAT(v_ms, '-', v_seq + 1);
    ELSE
        SET p_name = CONCAT('reply-', p_id);
        naming: LOOP
            SELECT COUNT(*) INTO v_used FROM penstock_address WHERE tube = p_tube AND address = p_name FOR UPDATE;
            IF NOT v_used THEN
                LEAVE naming;
            END IF;
            SET p_name = CONCAT(p_name, '-');
        END LOOP;
    END IF;
    INSERT INTO penstock_address (tube, address, id) VALUES (p_tube, p_name, p_id);
END;

DROP PROCEDURE IF EXISTS penstock_refresh;

-- Give elements that are there new data, and nothing else. Those above p_last are of this put.
CREATE PROCEDURE penstock_refresh(p_tube INT UNSIGNED, p_entries LONGTEXT CHARACTER SET utf8mb4, p_last BIGINT)
SQL SECURITY INVOKER
BEGIN
    UPDATE JSON_TABLE(p_entries, '$[*]' COLUMNS (
        data LONGTEXT CHARACTER SET ascii PATH '$[13]', address VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[14]',
        turn INT PATH '$[15]'
    )) j STRAIGHT_JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.address AS BINARY)
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = a.id
    SET t.data = FROM_BASE64(j.data) WHERE j.turn IS NOT NULL AND a.id <= p_last;
END;

DROP PROCEDURE IF EXISTS penstock_ack_named;

-- Acks of delivered messages, whoever calls: as penstock_ack, by their ids. p_moves: [[verb, id]], each id once.
CREATE PROCEDURE penstock_ack_named(p_tube INT UNSIGNED, p_moves LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_moves LONGTEXT CHARACTER SET utf8mb4;
    SELECT CONCAT('[', IFNULL(GROUP_CONCAT(JSON_ARRAY(a.id, NULL) ORDER BY j.place), ''), ']') INTO v_moves
    FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (place FOR ORDINALITY, name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[1]')) j
    STRAIGHT_JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.name AS BINARY) FOR UPDATE;
    CALL penstock_ack(p_tube, 0, v_moves, p_now);
END;

DROP PROCEDURE IF EXISTS penstock_settle_named;

-- The same of any moves, as penstock_settle.
CREATE PROCEDURE penstock_settle_named(p_tube INT UNSIGNED, p_moves LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_moves LONGTEXT CHARACTER SET utf8mb4;
    SELECT CONCAT('[', IFNULL(GROUP_CONCAT(JSON_ARRAY(j.verb, a.id) ORDER BY j.place), ''), ']') INTO v_moves
    FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (
        place FOR ORDINALITY, verb VARCHAR(10) PATH '$[0]', name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$[1]'
    )) j STRAIGHT_JOIN penstock_address a ON a.tube = p_tube AND a.address = CAST(j.name AS BINARY) FOR UPDATE;
    CALL penstock_settle(p_tube, v_moves, p_now);
END;
