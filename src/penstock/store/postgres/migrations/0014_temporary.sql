-- The temporary tubes that met no crash since they were last put right: unlogged, so it is emptied with their tasks.
CREATE UNLOGGED TABLE {schema}.penstock_unbroken (tube integer PRIMARY KEY);
