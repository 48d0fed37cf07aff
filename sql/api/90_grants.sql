-- Who may use what.  PUBLIC has no rights. Functions that only the server itself calls are granted to no user.
-- tests/sql/rights/privileges.txt is the complete matrix; a test compares it with the database.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON TYPE cerebro_internal._chunk, cerebro_internal._prediction FROM PUBLIC;

-- Users insert and read rows about their own runs; row-level security keeps them from other rows. Nobody needs UPDATE,
-- and only cerebro_internal._forget() needs DELETE.
GRANT SELECT, INSERT
   ON cerebro.run, cerebro.architecture, cerebro.configuration, cerebro.model, cerebro.event, cerebro.attempt,
      cerebro.hop, cerebro.evaluation, cerebro.objective, cerebro.decision, cerebro.heartbeat, cerebro.request,
      cerebro.profile, cerebro.added_architecture, cerebro.added_weights
   TO cerebro_user;
GRANT USAGE ON SEQUENCE cerebro.run_id, cerebro.event_id, cerebro.decision_id, cerebro.request_id TO cerebro_user;
GRANT USAGE ON TYPE cerebro_internal._chunk, cerebro_internal._prediction TO cerebro_user;

GRANT SELECT
   ON cerebro.run_plan, cerebro.runs, cerebro.models, cerebro.learning_curve, cerebro.leaderboard, cerebro.parameters, cerebro.cross_validation, cerebro.groups, cerebro.metrics,
      cerebro.run_progress,
      cerebro.decisions, cerebro.requests, cerebro.hop_timeline, cerebro.segments_now, cerebro.run_time, cerebro.profiles, cerebro.custom_functions, cerebro.custom_function
   TO cerebro_user, cerebro_monitor;
GRANT SELECT ON cerebro_internal._own_limits, cerebro.limits, cerebro.architectures TO cerebro_user;

-- The registry's own role writes its history, and nobody updates it: UPDATE of a description is for the lock on a model.
GRANT USAGE ON SCHEMA cerebro, cerebro_internal TO cerebro_registry;
GRANT SELECT, INSERT, UPDATE (description) ON cerebro.registered_model TO cerebro_registry;
GRANT SELECT, INSERT ON cerebro.registry_event TO cerebro_registry;
GRANT SELECT ON cerebro_internal._alias_now, cerebro_internal._right_now TO cerebro_registry;
GRANT USAGE ON SEQUENCE cerebro.registry_event_id TO cerebro_registry;
GRANT SELECT ON cerebro_internal._my_registered, cerebro.registered_models, cerebro.registered_versions,
      cerebro.registered_aliases, cerebro.registered_rights, cerebro.registry_history
   TO cerebro_user;

-- Administrators register functions and set limits. The database fills in registered_by, registered_at, set_by and
-- set_at, so these columns are not granted.
GRANT INSERT (name, version, kind, source, sha256, description) ON cerebro.custom_function TO cerebro_admin;
GRANT SELECT, DELETE ON cerebro.role_limit TO cerebro_admin;
GRANT INSERT (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
              max_waiting_seconds, max_trainer_mb, max_predictors, max_processors, processor_share)
   ON cerebro.role_limit TO cerebro_admin;

GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cerebro, cerebro_internal TO cerebro_user;
REVOKE ALL ON FUNCTION cerebro_internal._enrol(oid, text), cerebro_internal._close_login(name),
                       cerebro_internal._note_run(name, bigint, integer), cerebro_internal._drop_worker_roles(),
                       cerebro_internal._setup_logins(), cerebro_internal._bytes_array(bytea),
                       cerebro_internal._bytes_smallints(bytea), cerebro_internal._dependants(oid)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro_internal._enrol(oid, text), cerebro_internal._close_login(name),
                          cerebro_internal._note_run(name, bigint, integer)
   TO cerebro_enrol;
GRANT EXECUTE ON FUNCTION cerebro_internal._sessions(), cerebro_internal._models(),
                          cerebro_internal._run_no_strangers_code(oid[]), cerebro_internal._code_folder() TO cerebro_monitor;
GRANT EXECUTE ON FUNCTION cerebro_internal._code_folder() TO cerebro_registry;
REVOKE ALL ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                       cerebro_internal._forget(bigint, name),
                       cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer, integer, integer,
                                          integer)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                          cerebro_internal._forget(bigint, name),
                          cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer, integer, integer,
                                          integer)
   TO cerebro_admin;

-- The password is computed from a secret of the server, so repeating this keeps the login working.
SELECT cerebro_internal._setup_logins();
