-- The schema of what only the product calls. The schema cerebro has what people and their own functions call.

CREATE SCHEMA cerebro_internal;
COMMENT ON SCHEMA cerebro_internal IS
'cerebro_db: functions, views and types that only cerebro_db itself uses. They change from version to version.';
REVOKE ALL ON SCHEMA cerebro_internal FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_internal TO cerebro_user, cerebro_monitor, cerebro_enrol;
