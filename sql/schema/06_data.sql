-- The schema of the packed rows that a verb makes if the user gives no name. Each table belongs to the caller.

CREATE SCHEMA cerebro_data;
COMMENT ON SCHEMA cerebro_data IS
'cerebro_db: packed rows that cerebro.train, search and fit have made without packed_table. They belong to the caller, '
'and are dropped with the last model or run that needs them.';
REVOKE ALL ON SCHEMA cerebro_data FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA cerebro_data TO cerebro_user;
