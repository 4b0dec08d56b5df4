ALTER TABLE penstock_group ADD COLUMN failed BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN on_failure VARBINARY(10) NOT NULL DEFAULT 'hold',  -- or continue, cancel
    ADD KEY penstock_named_group (tube, name, no);
