-- What a take meets of cancelled groups.
DROP PROCEDURE IF EXISTS penstock_withdraw;

-- Ready tasks of cancelled groups, of those a step before the ones that are wanted, wait again for a start, which never
-- comes: no take meets them again, and they are removed with the rest of their group.
CREATE PROCEDURE penstock_withdraw(p_tube INT UNSIGNED, p_count INT, p_max DOUBLE)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_count INT;
    DECLARE v_window INT DEFAULT p_count + 1000;
    SELECT CONCAT('[', GROUP_CONCAT(f.id ORDER BY f.id), ']') INTO v_ids
    FROM (SELECT id, group_no FROM penstock_task FORCE INDEX (penstock_ready)
        WHERE tube = p_tube AND state = 'r' AND rank1 <= p_max ORDER BY rank1, rank2, id LIMIT v_window) f
    WHERE f.group_no IN (SELECT no FROM penstock_group WHERE tube = p_tube AND moving = 1 AND state = 'cancelling');
    SELECT CONCAT('[', GROUP_CONCAT(d.id), ']'), COUNT(*) INTO v_ids, v_count
    FROM (SELECT t.id FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        WHERE t.state = 'r' FOR UPDATE SKIP LOCKED) d;
    IF v_ids IS NOT NULL THEN
        UPDATE JSON_TABLE(v_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) j
        STRAIGHT_JOIN penstock_task t FORCE INDEX (PRIMARY) ON t.tube = p_tube AND t.id = j.id
        STRAIGHT_JOIN penstock_member m FORCE INDEX (PRIMARY) ON m.group_no = t.group_no AND m.id = t.id
        SET m.waits = 1, m.rank1 = t.rank1, m.rank2 = t.rank2, t.state = 'g';
        INSERT INTO penstock_delta (tube, delayed_tasks) VALUES (p_tube, v_count);
    END IF;
END;
