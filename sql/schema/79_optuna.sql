-- The schema that optuna-dashboard is pointed at.  sql/api/58_optuna.sql makes its views.

CREATE SCHEMA cerebro_optuna;
COMMENT ON SCHEMA cerebro_optuna IS
'cerebro_db: runs in the shape of Optuna''s storage, to read, for optuna-dashboard. A run is a study, a model on all rows a trial.';
REVOKE ALL ON SCHEMA cerebro_optuna FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_optuna TO cerebro_user, cerebro_monitor;
