-- Sealed tubes. A column that penstock_tube gets is needed here, too.
CREATE TABLE {schema}.penstock_sealed (LIKE {schema}.penstock_tube);
CREATE UNIQUE INDEX penstock_sealed_name ON {schema}.penstock_sealed (name);
