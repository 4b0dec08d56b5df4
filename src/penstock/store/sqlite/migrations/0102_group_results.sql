ALTER TABLE penstock_group ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_group ADD COLUMN on_failure TEXT NOT NULL DEFAULT 'hold';  -- or continue, cancel
CREATE INDEX penstock_named_group ON penstock_group (tube, name, no);
