-- Settling: guarded moves, as core/lifecycle.decide has them. Reads lock, because a caller's own transaction (bind)
-- may be REPEATABLE READ, where a plain read shows the past.
DROP PROCEDURE IF EXISTS penstock_ack;

CREATE PROCEDURE penstock_ack(
    p_tube INT UNSIGNED, p_session BIGINT, p_moves LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    CALL penstock_ack_all(p_tube, p_session, p_moves, 0, p_now);
END;

DROP PROCEDURE IF EXISTS penstock_ack_all;

-- Acks by one session (0: of what nobody holds) in a tube without micro-queues, whatever their number in four statements.
-- p_moves: [[id, lease]], each id once.
-- The tasks answered are removed; there are none when nothing was the caller's. p_brief: where none is tied to others, their
-- ids alone, as a row: acked, moment, [id]. Where some are tied to others, more follows; where some are of a cancelled group,
-- all are settled as any moves.
CREATE PROCEDURE penstock_ack_all(
    p_tube INT UNSIGNED, p_session BIGINT, p_moves LONGTEXT CHARACTER SET utf8mb4, p_brief INT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_count, v_tied, v_cancelled INT DEFAULT 0;
    DECLARE v_retention BIGINT;
    SELECT CONCAT('[', GROUP_CONCAT(t.id ORDER BY j.place), ']'),
        MAX(t.address IS NOT NULL OR t.reply_to IS NOT NULL OR t.group_no IS NOT NULL) INTO v_ids, v_tied
    FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$[0]', lease INT PATH '$[1]')) j
    STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
    WHERE t.state = 't' AND t.owner = p_session AND (j.lease IS NULL OR t.lease = j.lease)
    AND t.at > v_now FOR UPDATE;
    IF v_tied THEN
        SELECT MAX(g.state = 'cancelling') INTO v_cancelled FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        STRAIGHT_JOIN penstock_group g ON g.no = t.group_no FOR UPDATE;
    END IF;
    IF v_cancelled THEN
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY('ack', j.id, p_session, j.lease, 0, NULL, 0) ORDER BY j.place), ']') INTO v_ids
        FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$[0]', lease INT PATH '$[1]')) j;
        CALL penstock_settle(p_tube, v_ids, v_now);
    ELSEIF v_ids IS NOT NULL THEN
        IF p_brief AND NOT v_tied THEN
            SELECT 'acked', v_now, v_ids, NULL;
        ELSE
            CALL penstock_show('settle', p_tube, v_now, v_ids);
        END IF;
        IF v_tied THEN
            SELECT IF(hand_out = 'lease', retention, NULL) INTO v_retention FROM penstock_tube WHERE no = p_tube;
            CALL penstock_leave_all(p_tube, v_ids, 'done', v_now + v_retention);
        END IF;
        DELETE t FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id;
        SET v_count = ROW_COUNT();
        INSERT INTO penstock_delta (tube, taken, done, ack_calls) VALUES (p_tube, -v_count, v_count, v_count);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
        IF v_tied THEN
            CALL penstock_follow_ends(p_tube, v_count, v_now);
            SELECT 'settled', v_now, NULL, NULL;
        END IF;
    ELSE
        SELECT COUNT(*) INTO v_count FROM penstock_id WHERE tube = p_tube;
        IF v_count = 0 THEN
            CALL penstock_no_tube();
        END IF;
    END IF;
END;

DROP PROCEDURE IF EXISTS penstock_settle;

-- Any moves, one after the other: [[verb, id, session, lease, extra, reason, unstarted, result in base64, code,
-- progress]].
-- Answers the tasks as they were before the first of them, a row for each that was gone with its group (gone, id) or still
-- waits for its group (unstarted, id), and a row: settled, moment.
CREATE PROCEDURE penstock_settle(p_tube INT UNSIGNED, p_moves LONGTEXT CHARACTER SET utf8mb4, p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT IFNULL(p_now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    DECLARE v_over, v_readied, v_good, v_tied INT DEFAULT 0;
    DECLARE v_lanes, v_fair, v_limit, v_unstarted, v_attempts, v_max INT;
    DECLARE v_taken, v_delayed, v_buried, v_done, v_acks, v_fails, v_releases, v_touches, v_buries, v_deletes, v_ttls,
        v_kicks INT DEFAULT 0;
    DECLARE v_id, v_session, v_lease, v_extra, v_expires, v_at, v_owner, v_held, v_group, v_retention BIGINT;
    DECLARE v_verb VARCHAR(10) CHARACTER SET ascii;
    DECLARE v_state, v_new CHAR(1) CHARACTER SET ascii;
    DECLARE v_group_state VARCHAR(10) CHARACTER SET ascii;
    DECLARE v_utube, v_address, v_reply_to VARBINARY(200);
    DECLARE v_rank1, v_rank2, v_progress DOUBLE;
    DECLARE v_reason, v_given, v_code TEXT CHARACTER SET utf8mb4;
    DECLARE v_ids, v_result LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_status VARCHAR(10) CHARACTER SET ascii;
    DECLARE c_moves CURSOR FOR
        SELECT j.verb, j.id, j.session, j.lease, j.extra, j.reason, j.unstarted, j.result, j.code, j.progress
        FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (
            verb VARCHAR(10) PATH '$[0]', id BIGINT PATH '$[1]', session BIGINT PATH '$[2]', lease BIGINT PATH '$[3]',
            extra BIGINT PATH '$[4]', reason TEXT CHARACTER SET utf8mb4 PATH '$[5]', unstarted INT PATH '$[6]',
            result LONGTEXT CHARACTER SET utf8mb4 PATH '$[7]', code TEXT CHARACTER SET utf8mb4 PATH '$[8]',
            progress DOUBLE PATH '$[9]'
        )) j;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
    SELECT lanes, fair, utube_limit, IF(hand_out = 'lease', retention, NULL) INTO v_lanes, v_fair, v_limit, v_retention
    FROM penstock_tube WHERE no = p_tube AND name IS NOT NULL LOCK IN SHARE MODE;
    IF v_over THEN
        CALL penstock_no_tube();
    END IF;
    -- Once each and in id order, so that two batches do not lock them crosswise.
    SELECT CONCAT('[', GROUP_CONCAT(DISTINCT j.id ORDER BY j.id), ']') INTO v_ids
    FROM JSON_TABLE(p_moves, '$[*]' COLUMNS (id BIGINT PATH '$[1]')) j;
    IF v_lanes THEN
        CALL penstock_lock_lanes(p_tube, v_ids);
    END IF;
    SELECT 'settle', v_now, t.record, t.data FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
    STRAIGHT_JOIN penstock_record t ON t.tube = p_tube AND t.id = j.id FOR UPDATE;
    SET v_over = 0;
    OPEN c_moves;
    settling: LOOP
        SET v_over = 0;
        FETCH c_moves INTO v_verb, v_id, v_session, v_lease, v_extra, v_given, v_unstarted, v_result, v_code, v_progress;
        IF v_over THEN
            LEAVE settling;
        END IF;
        SET v_state = NULL, v_new = NULL, v_group = NULL, v_group_state = NULL;
        SELECT state, lease, owner, NULLIF(at, 9007199254740991), expires, attempts, max_attempts, reason, utube, rank1, rank2,
            address, reply_to, group_no
        INTO v_state, v_held, v_owner, v_at, v_expires, v_attempts, v_max, v_reason, v_utube, v_rank1, v_rank2,
            v_address, v_reply_to, v_group
        FROM penstock_task WHERE tube = p_tube AND id = v_id FOR UPDATE;
        IF v_group IS NOT NULL THEN
            SELECT state INTO v_group_state FROM penstock_group WHERE no = v_group FOR UPDATE;
        END IF;
        SET v_over = 0, v_status = IF(v_verb = 'ack', 'done', IF(v_verb = 'fail', 'failed', 'deleted'));
        SET v_good = v_state = 't' AND (v_lease IS NULL OR v_held = v_lease) AND (v_at IS NULL OR v_at > v_now);
        IF v_verb IN ('bury', 'delete') THEN
            SET v_good = v_lease IS NULL OR v_good;
        ELSEIF v_verb = 'kick' THEN
            SET v_good = v_state = '!';
        ELSE
            SET v_good = v_good AND v_owner = IFNULL(v_session, 0);
        END IF;
        IF v_group_state = 'cancelling' THEN
            SET v_new = '-', v_deletes = v_deletes + 1, v_status = 'deleted';
            SELECT 'gone', v_id, NULL, NULL;
        ELSEIF v_state <> 't' AND v_expires <= v_now THEN
            SET v_new = '-', v_ttls = v_ttls + 1, v_status = 'expired';
        ELSEIF v_state IS NULL OR NOT IFNULL(v_good, 0) THEN
            SET v_new = NULL;
        ELSEIF v_verb = 'touch' THEN
            UPDATE penstock_task SET at = IF(at < 9007199254740991, at + v_extra, at), progress = IFNULL(v_progress, progress),
                said_in = IF(v_progress IS NULL, said_in, lease)
            WHERE tube = p_tube AND id = v_id;
            SET v_touches = v_touches + 1;
        ELSEIF v_verb = 'bury' THEN
            SET v_new = '!', v_buries = v_buries + 1, v_reason = IFNULL(NULLIF(v_given, ''), v_reason), v_at = v_expires;
        ELSEIF v_verb = 'kick' THEN
            SET v_new = IF(v_group_state <=> 'open', 'g', 'r'), v_kicks = v_kicks + 1, v_attempts = 0, v_reason = NULL,
                v_at = v_expires;
            IF v_new = 'g' THEN
                SELECT 'unstarted', v_id, NULL, NULL;
            END IF;
        ELSEIF v_verb = 'release' THEN
            SET v_attempts = v_attempts - v_unstarted, v_reason = IFNULL(v_given, v_reason), v_at = v_expires;
            IF v_expires <= v_now THEN
                SET v_new = '-', v_releases = v_releases + 1, v_ttls = v_ttls + 1, v_status = 'expired';
            ELSEIF v_attempts >= v_max THEN
                SET v_new = '!', v_buries = v_buries + 1;
                SET v_reason = IFNULL(NULLIF(v_reason, ''), CONCAT('handed out ', v_attempts, ' times without an ack'));
            ELSE
                SET v_releases = v_releases + 1, v_new = IF(v_extra > 0, '~', 'r');
                IF v_extra > 0 THEN
                    SET v_at = v_now + v_extra, v_expires = v_expires + v_extra;
                END IF;
            END IF;
        ELSE
            SET v_new = '-', v_acks = v_acks + (v_verb = 'ack'), v_fails = v_fails + (v_verb = 'fail'),
                v_deletes = v_deletes + (v_verb = 'delete');
        END IF;
        IF v_new IS NOT NULL THEN
            SET v_taken = v_taken - (v_state = 't'), v_delayed = v_delayed - (v_state IN ('~', 'g')) + (v_new IN ('~', 'g')),
                v_buried = v_buried - (v_state = '!') + (v_new = '!'), v_done = v_done + (v_new = '-');
            CALL penstock_move(
                p_tube, v_id, v_state, v_new, v_at, v_expires, v_attempts, v_reason, v_utube, v_rank1, v_rank2,
                v_lanes, v_fair, v_limit, v_now, v_readied
            );
        END IF;
        IF v_new = '-' AND (v_address IS NOT NULL OR v_reply_to IS NOT NULL OR v_group IS NOT NULL) THEN
            SET v_tied = v_tied + 1;
            CALL penstock_left(
                p_tube, v_id, v_address, v_reply_to, v_group, v_status, IF(v_status = 'done', FROM_BASE64(v_result), NULL),
                IF(v_status = 'failed', v_given, NULL), IF(v_status = 'failed', v_code, NULL), v_now + v_retention
            );
        END IF;
    END LOOP;
    IF v_acks OR v_fails OR v_releases OR v_touches OR v_buries OR v_deletes OR v_ttls OR v_kicks THEN
        INSERT INTO penstock_delta (tube, taken, delayed_tasks, buried, done, ack_calls, fail_calls, release_calls, touch_calls,
            bury_calls, delete_calls, ttl_calls, kick_calls)
        VALUES (p_tube, v_taken, v_delayed, v_buried, v_done, v_acks, v_fails, v_releases, v_touches, v_buries,
            v_deletes, v_ttls, v_kicks);
        IF LAST_INSERT_ID() % 64 = 0 THEN
            CALL penstock_fold();
        END IF;
    END IF;
    SELECT 'ready', p_tube, v_readied, NULL;
    IF v_tied THEN
        CALL penstock_follow_ends(p_tube, v_tied, v_now);
    END IF;
    SELECT 'settled', v_now, NULL, NULL;
END;
