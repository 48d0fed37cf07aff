-- The schema of the packed rows that a verb makes without a name of the user's. Each table belongs to who called the verb.

CREATE SCHEMA cerebro_data;
COMMENT ON SCHEMA cerebro_data IS
'cerebro_db: packed rows that cerebro.train, search and fit have made without packed_table. They belong to who called, and '
'go with the last model or run that needs them.';
REVOKE ALL ON SCHEMA cerebro_data FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA cerebro_data TO cerebro_user;
