ALTER TABLE {schema}.penstock_group ADD COLUMN failed integer NOT NULL DEFAULT 0,
    ADD COLUMN on_failure text NOT NULL DEFAULT 'hold';  -- or continue, cancel
CREATE INDEX penstock_named_group ON {schema}.penstock_group (tube, name, no);
