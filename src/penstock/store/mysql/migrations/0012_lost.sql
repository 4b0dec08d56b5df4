-- The take that leased a task, so that one whose answer was lost can be undone.
ALTER TABLE penstock_task ADD COLUMN taking BIGINT NOT NULL DEFAULT 0;

DROP PROCEDURE IF EXISTS penstock_give_back;

-- Undo a take whose answer was lost, whether it was done or not: what it leased in this tube is released, unstarted, and it
-- waits no more. The handle is locked alone, so that the take is not under way any more.
CREATE PROCEDURE penstock_give_back(
    p_tube INT UNSIGNED, p_handle VARBINARY(64), p_taking BIGINT, p_waiter BIGINT, p_now BIGINT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_session BIGINT;
    DECLARE v_moves LONGTEXT CHARACTER SET utf8mb4;
    SELECT MAX(session) INTO v_session FROM penstock_handle WHERE id = p_handle FOR UPDATE;
    DELETE FROM penstock_waiter WHERE handle = p_handle AND tube = p_tube AND number = p_waiter;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY('release', id, v_session, lease, 0, NULL, 1) ORDER BY id), ']') INTO v_moves
    FROM penstock_task FORCE INDEX (penstock_ready)
    WHERE tube = p_tube AND state = 't' AND owner = v_session AND taking = p_taking;
    IF v_moves IS NOT NULL THEN
        CALL penstock_settle(p_tube, v_moves, p_now);
    END IF;
END;
