-- How much of the server each role may use.

CREATE TABLE cerebro.role_limit (
    role                 regrole NOT NULL PRIMARY KEY,
    max_running_runs     integer CHECK (max_running_runs >= 0),
    max_segments         integer CHECK (max_segments >= 0),
    max_state_bytes      bigint  CHECK (max_state_bytes >= 0),
    max_run_seconds      integer CHECK (max_run_seconds > 0),
    min_free_connections integer CHECK (min_free_connections >= 0),
    max_waiting_seconds  integer CHECK (max_waiting_seconds BETWEEN 0 AND 86400),
    max_trainer_mb       integer CHECK (max_trainer_mb > 0),
    set_by               name        NOT NULL DEFAULT current_user,
    set_at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    max_predictors       integer CHECK (max_predictors BETWEEN 0 AND 1000),
    max_processors       integer CHECK (max_processors > 0),
    processor_share      integer CHECK (processor_share BETWEEN 1 AND 1000)
);
COMMENT ON TABLE cerebro.role_limit IS
'The limits that cerebro.set_limits() has set, per role. The row with the role ''-'' holds for every role; a value '
'in a role''s own row takes precedence.';
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.role_limit', 'WHERE role::oid = 0 OR role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
