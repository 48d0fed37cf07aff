-- The schema that BI tools are pointed at.  sql/api/92_bi.sql makes its views.

CREATE SCHEMA cerebro_bi;
COMMENT ON SCHEMA cerebro_bi IS
'cerebro_db: the views of the schema cerebro for BI tools. Each column is a number, a text, a boolean or a moment.';
REVOKE ALL ON SCHEMA cerebro_bi FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_bi TO cerebro_user, cerebro_monitor;
