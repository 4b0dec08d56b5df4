-- Tubes that leave and arrive, as store.moving says. A sealed tube has no name any more, as a dropped one, but an old_name
-- that begins with >, and its row of penstock_id stands under the number that its own and this add up to: 4294967295. So
-- no call finds it; its tasks stay where they are until they are erased. Hidden names are a byte longer than others.
ALTER TABLE penstock_tube MODIFY COLUMN name VARBINARY(201), MODIFY COLUMN old_name VARBINARY(201);
