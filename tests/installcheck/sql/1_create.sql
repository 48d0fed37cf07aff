-- Both extensions, and what cerebro.doctor() finds wrong.
CREATE EXTENSION cerebro_db CASCADE;
CREATE EXTENSION cerebro_db_madlib;
SELECT cerebro.version() = default_version AS same_version FROM pg_available_extensions WHERE name = 'cerebro_db';
SELECT component, check_name, found, advice FROM cerebro.doctor() WHERE status = 'problem';
