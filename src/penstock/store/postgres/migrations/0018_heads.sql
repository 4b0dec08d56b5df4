-- Where takes begin to look (functions/heads.sql), of the tubes whose tasks all rank from 0 on.
ALTER TABLE {schema}.penstock_tube ADD COLUMN IF NOT EXISTS heads regclass, ADD COLUMN IF NOT EXISTS dues regclass;
ALTER TABLE {schema}.penstock_sealed ADD COLUMN IF NOT EXISTS heads regclass, ADD COLUMN IF NOT EXISTS dues regclass;
DROP FUNCTION IF EXISTS {schema}.penstock_lease(
    {schema}.penstock_tube, integer, integer, double precision, bigint, bigint, integer[]);
DROP FUNCTION IF EXISTS {schema}.penstock_next_due(integer, bigint, integer, bigint);
DO $$
DECLARE
    v_no integer;
BEGIN
    FOR v_no IN
        SELECT no FROM {schema}.penstock_tube WHERE heads IS NULL AND hand_out = 'lease' AND NOT laned
            AND kind::jsonb -> 'order' IN ('["id"]', '["pri", "id"]') AND NOT (plain ->> 'clock1')::boolean
    LOOP
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_heads_%s', v_no);
        EXECUTE format('CREATE SEQUENCE {schema}.penstock_dues_%s', v_no);
        UPDATE {schema}.penstock_tube SET heads = format('{schema}.penstock_heads_%s', v_no)::regclass,
            dues = format('{schema}.penstock_dues_%s', v_no)::regclass
        WHERE no = v_no;
    END LOOP;
END $$;
