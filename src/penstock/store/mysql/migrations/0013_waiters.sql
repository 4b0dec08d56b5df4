-- Blocked takes by their numbers.
DROP TABLE IF EXISTS penstock_waiting;

DROP PROCEDURE IF EXISTS penstock_register;

DROP PROCEDURE IF EXISTS penstock_count_waiter;

-- Count a blocked take in or out.
CREATE PROCEDURE penstock_count_waiter(
    p_tubes LONGTEXT CHARACTER SET utf8mb4, p_handle VARBINARY(64), p_waiter BIGINT, p_in INT
)
SQL SECURITY INVOKER
BEGIN
    DECLARE v_place INT DEFAULT 0;
    DECLARE v_tube INT UNSIGNED;
    WHILE v_place < JSON_LENGTH(p_tubes) DO
        SET v_tube = JSON_EXTRACT(p_tubes, CONCAT('$[', v_place, ']')), v_place = v_place + 1;
        IF p_in THEN
            INSERT INTO penstock_waiter (handle, tube, number) VALUES (p_handle, v_tube, p_waiter);
        ELSE
            DELETE FROM penstock_waiter WHERE handle = p_handle AND tube = v_tube AND number = p_waiter;
        END IF;
    END WHILE;
END;
