-- Groups: one record decides what their tasks may do; start and cancel change it, and the tasks follow.

CREATE OR REPLACE FUNCTION {schema}.penstock_over(p_tube integer, p_no integer) RETURNS {schema}.penstock_effect
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    e {schema}.penstock_effect;
BEGIN
    e.tube := p_tube;
    e.events := 'over';
    e.group_no := p_no;
    RETURN e;
END $$;

-- group.end: call a locked group over if nothing is left of it, and give its work.
CREATE OR REPLACE FUNCTION {schema}.penstock_end_group(
    t {schema}.penstock_tube, p_no integer, p_now bigint, OUT over boolean, OUT work bytea
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.penstock_group SET state = CASE state WHEN 'started' THEN 'done' ELSE 'cancelled' END, moving = false,
        until = p_now + t.retention
    WHERE no = p_no AND remaining <= 0 AND state IN ('started', 'cancelling')
    RETURNING CASE state WHEN 'done' THEN end_work ELSE cancel_work END INTO work;
    over := FOUND;
END $$;

-- The live group of that name (penstock_live_group), begun when there is none.
CREATE OR REPLACE FUNCTION {schema}.penstock_open_group(p_tube integer, p_name text) RETURNS SETOF {schema}.penstock_group
LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    g {schema}.penstock_group;
BEGIN
    LOOP
        SELECT * INTO g FROM {schema}.penstock_group
        WHERE tube = t.no AND name = p_name AND state IN ('open', 'started');
        EXIT WHEN FOUND;
        INSERT INTO {schema}.penstock_group (tube, name) VALUES (t.no, p_name)
        ON CONFLICT DO NOTHING RETURNING * INTO g;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NEXT g;
END $$;

-- No row when it is past its retention or never was. `fresh` as penstock_watch says.
CREATE OR REPLACE FUNCTION {schema}.penstock_get_group(p_tube integer, p_no integer, p_now bigint, p_process text)
RETURNS TABLE (fresh boolean, found {schema}.penstock_group) LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_fresh boolean := {schema}.penstock_watch(t.no, p_process);
BEGIN
    RETURN QUERY SELECT v_fresh, g FROM {schema}.penstock_group g
    WHERE g.no = p_no AND (g.until IS NULL OR g.until > {schema}.penstock_now(p_now));
END $$;

-- Set what is put at a group's end or after its cancel, where it is given; false when it has ended.
CREATE OR REPLACE FUNCTION {schema}.penstock_set_group_work(p_tube integer, p_no integer, p_end bytea, p_cancel bytea)
RETURNS boolean LANGUAGE plpgsql {plans} AS $$
BEGIN
    PERFORM {schema}.penstock_open(p_tube);
    UPDATE {schema}.penstock_group SET end_work = coalesce(p_end, end_work), cancel_work = coalesce(p_cancel, cancel_work)
    WHERE no = p_no AND state IN ('open', 'started');
    RETURN FOUND;
END $$;

-- Move up to p_limit tasks after their groups' records: started ones in take order, cancelled ones go (penstock_grouped).
-- What others are at, they do.
CREATE OR REPLACE FUNCTION {schema}.penstock_follow(t {schema}.penstock_tube, p_limit integer, p_now bigint, p_process text)
RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql AS $$
DECLARE
    g {schema}.penstock_group;
    v_keys bigint[];
BEGIN
    FOR g IN
        SELECT * FROM {schema}.penstock_group WHERE tube = t.no AND moving ORDER BY no FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN p_limit <= 0;
        IF g.state = 'cancelling' THEN
            v_keys := ARRAY(SELECT key FROM (
                SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND group_no = g.no LIMIT p_limit) members ORDER BY key);
        ELSE
            v_keys := ARRAY(SELECT key FROM {schema}.penstock_task WHERE tube = t.no AND group_no = g.no AND state = 'g'
                ORDER BY rank1, rank2, key LIMIT p_limit);
        END IF;
        p_limit := p_limit - cardinality(v_keys);
        RETURN QUERY SELECT * FROM {schema}.penstock_apply(t, {schema}.penstock_moves(
            CASE g.state WHEN 'cancelling' THEN 'look' ELSE 'start' END, v_keys), p_now, true, p_process);
        UPDATE {schema}.penstock_group SET moving = false
        WHERE no = g.no AND (cardinality(v_keys) = 0 OR (g.state = 'started'
            AND NOT EXISTS (SELECT FROM {schema}.penstock_task WHERE tube = t.no AND group_no = g.no AND state = 'g')));
    END LOOP;
    IF t.moving AND NOT EXISTS (SELECT FROM {schema}.penstock_group WHERE tube = t.no AND moving) THEN
        PERFORM {schema}.penstock_mark_moving(t.no);
    END IF;
END $$;

-- Set the tube's mark anew, under the lock that whoever begins to move takes too.
CREATE OR REPLACE FUNCTION {schema}.penstock_mark_moving(p_tube integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {schema}.penstock_tube WHERE no = p_tube FOR NO KEY UPDATE;
    UPDATE {schema}.penstock_tube SET moving = EXISTS (
        SELECT FROM {schema}.penstock_group WHERE tube = p_tube AND moving) WHERE no = p_tube;
END $$;

-- When tasks of a tube must follow their groups next: at once, after p_moved were moved just now; a little later when
-- none could be, because others are at it; never when none has to.
CREATE OR REPLACE FUNCTION {schema}.penstock_next_move(p_tube integer, p_moved bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM {schema}.penstock_group WHERE tube = p_tube AND moving)
        THEN p_now + CASE WHEN p_moved > 0 THEN 0 ELSE 20 END END;
END $$;

-- group.turn: start or cancel a group (p_to is its next state) and move some of its tasks. The last row has no tube: its
-- events say whether more must move.
CREATE OR REPLACE FUNCTION {schema}.penstock_turn_group(
    p_tube integer, p_no integer, p_to text, p_limit integer, p_now bigint, p_process text
) RETURNS SETOF {schema}.penstock_effect LANGUAGE plpgsql {plans} AS $$
DECLARE
    t {schema}.penstock_tube := {schema}.penstock_open(p_tube);
    v_now bigint := {schema}.penstock_now(p_now);
    g {schema}.penstock_group;
    v_over boolean;
    v_work bytea;
    v_total bigint;
    last {schema}.penstock_effect;
BEGIN
    IF t.capacity IS NOT NULL THEN
        v_total := {schema}.penstock_overfull(t, 1);
    END IF;
    UPDATE {schema}.penstock_group SET state = p_to, moving = remaining > 0
    WHERE no = p_no AND (state = 'open' OR (state = 'started' AND p_to <> 'started')) RETURNING * INTO g;
    IF FOUND THEN
        SELECT * INTO v_over, v_work FROM {schema}.penstock_end_group(t, g.no, v_now);
    END IF;
    IF v_work IS NOT NULL THEN
        IF v_total IS NOT NULL THEN
            RAISE '%', v_total USING ERRCODE = 'PS006', DETAIL = 1;
        END IF;
        RETURN QUERY SELECT * FROM {schema}.penstock_put_works(
            ARRAY[ROW(0, t.name, v_work)::{schema}.penstock_work], v_now, p_process);
    END IF;
    IF v_over THEN
        RETURN NEXT {schema}.penstock_over(t.no, g.no);
        IF {schema}.penstock_tell_end(t.no, p_process) THEN
            RETURN NEXT {schema}.penstock_told();
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM {schema}.penstock_follow(t, p_limit, v_now, p_process);
    IF EXISTS (SELECT FROM {schema}.penstock_group WHERE tube = t.no AND moving) THEN
        PERFORM {schema}.penstock_mark_moving(t.no);
        last.events := 'more';
    END IF;
    RETURN NEXT last;
END $$;
