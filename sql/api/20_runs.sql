-- The views on runs.  People and BI tools read them: columns are plain scalars where possible, and each has a comment.
--
-- For all views of runs: users see their own runs, members of cerebro_monitor see all runs. A view reads its tables with
-- the rights of the extension's owner, so row-level security does not apply and the view filters by owner itself.
-- security_barrier makes that filter run before the conditions of a query, whose functions could otherwise see rows of
-- other users.
-- A view over all runs must not take time in proportion to the square of their number. The planner knows little of joins
-- by several columns and would run an aggregated subquery again for each row. So rows of several tables are gathered by
-- UNION ALL and aggregated once. Other tables are joined to that by LEFT JOIN, because the planner may begin an inner join
-- with the other table; num_nonnulls(), which says nothing to the planner, then leaves out what the other table lacks.
-- Figures of one run or model that a query may leave out may be scalar subqueries, of few rows: Greenplum reads the whole
-- table for each. What needs a figure of all rows (the latest moment, the engine) gets it from a window over the gathered
-- rows. A condition on the run reaches every table, but not through GROUPING SETS. tests/sql/test_many_runs.py counts the
-- rows that each view reads.
-- The tables have the number of the owner (10_runs.sql), and the views show the name, which a query can compare with a text.
-- CREATE OR REPLACE VIEW can add columns only at the end.

CREATE OR REPLACE VIEW cerebro.run_plan WITH (security_barrier) AS
SELECT r.run, pg_get_userbyid(r.owner) AS owner, r.name, r.description, r.created_at, r.source_table, r.validation_table,
       r.model_table, r.selection_table, r.arch_table,
       -- cerebro.resume(run, epochs => N) extends a run; cerebro.run keeps the number that was asked for first.
       COALESCE((SELECT max((e.detail ->> 'epochs')::integer)
                   FROM cerebro.event e
                  WHERE e.run = r.run AND e.owner = r.owner AND e.event = 'extended'), r.epochs) AS epochs,
       r.evaluate_every, r.seed, r.segments, r.dist_keys, r.configurations, r.rows_per_epoch, r.storage,
       r.options, r.layout, r.validation_layout,
       -- The summary contains class values, which are data: a monitor does not see them.
       CASE WHEN r.owner = (SELECT quote_ident(current_user)::regrole) THEN r.source_summary END AS source_summary, r.version
  FROM cerebro.run r
 WHERE r.owner = (SELECT quote_ident(current_user)::regrole)
    OR (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'));
COMMENT ON VIEW cerebro.run_plan IS
'What each run was asked to do, including later extensions.';
COMMENT ON COLUMN cerebro.run_plan.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_plan.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_plan.name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.run_plan.source_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.run_plan.validation_table IS
'Packed table that the run evaluates on; NULL: none. If the rows have folds, the table that it trains on.';
COMMENT ON COLUMN cerebro.run_plan.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.run_plan.selection_table IS 'Model selection table that listed the configurations.';
COMMENT ON COLUMN cerebro.run_plan.arch_table IS 'Table of architectures that the selection table refers to.';
COMMENT ON COLUMN cerebro.run_plan.epochs IS
'Planned number of epochs per model. cerebro.resume(run, epochs => N) raises it.';
COMMENT ON COLUMN cerebro.run_plan.evaluate_every IS
'Number of epochs between two evaluations of a model; each model is also evaluated after its last epoch. 0: after '
'the last epoch only.';
COMMENT ON COLUMN cerebro.run_plan.seed IS
'Seed of the run: initial weights, order of visits and shuffling follow from it.';
COMMENT ON COLUMN cerebro.run_plan.segments IS 'Number of segments that hold the packed rows.';
COMMENT ON COLUMN cerebro.run_plan.dist_keys IS 'Value of __dist_key__ of each segment, in the order of the segments.';
COMMENT ON COLUMN cerebro.run_plan.configurations IS
'Number of configurations in the model selection table when the run was created.';
COMMENT ON COLUMN cerebro.run_plan.rows_per_epoch IS 'Number of rows of the packed table, which is one epoch.';
COMMENT ON COLUMN cerebro.run_plan.storage IS
'Prefix of the names of the run''s state tables in the schema cerebro_state.';
COMMENT ON COLUMN cerebro.run_plan.options IS 'Options of the run after defaults were filled in (JSON).';
COMMENT ON COLUMN cerebro.run_plan.layout IS
'Columns and partitions of the packed table when the run was created (JSON).';
COMMENT ON COLUMN cerebro.run_plan.validation_layout IS
'The same for the validation table (JSON); NULL: no validation table.';
COMMENT ON COLUMN cerebro.run_plan.source_summary IS
'Row of the packed table''s summary (JSON). Visible to the owner only, because it contains class values.';
COMMENT ON COLUMN cerebro.run_plan.version IS 'Version of cerebro_db that created the run.';

CREATE OR REPLACE VIEW cerebro.runs WITH (security_barrier) AS
WITH told AS (
    SELECT run, owner,
           max(event_id) FILTER (WHERE model IS NULL
                                 AND event IN ('created', 'started', 'finished', 'failed', 'cancelled')) AS last,
           max(event_id) FILTER (WHERE model IS NULL AND event = 'started') AS started,
           max(event_id) FILTER (WHERE event IN ('materialized', 'not materialized')) AS made,
           min(at) FILTER (WHERE model IS NULL AND event = 'started') AS started_at,
           max(at) FILTER (WHERE model IS NULL AND event IN ('finished', 'failed', 'cancelled')) AS ended_at,
           bool_or(model IS NULL AND event = 'submitted') AS submitted
      FROM cerebro.event
     GROUP BY run, owner
)
SELECT r.run,
       r.owner,
       r.name,
       CASE WHEN last.event NOT IN ('created', 'started') THEN last.event
            WHEN driver.pid IS NULL THEN 'interrupted'
            WHEN last.event = 'created' THEN 'created'
            ELSE 'running'
       END AS status,
       r.source_table,
       r.model_table,
       r.configurations,
       r.segments,
       r.epochs,
       r.created_at,
       told.started_at,
       CASE WHEN last.event <> 'started' THEN told.ended_at END AS ended_at,
       CASE WHEN made.event = 'not materialized' AND made.event_id > last.event_id
            THEN 'its model tables were not made: ' || (made.detail ->> 'message')
                 || '; SELECT cerebro.materialize(' || r.run || ', ''another_name'') makes them'
            -- The event 'materialized' is committed together with the tables, so it is missing if they are: the session
            -- ended before it had made them, or its caller has rolled back.
            WHEN last.event = 'finished' AND COALESCE(made.event_id, 0) < last.event_id AND NOT holder.is_making
            THEN 'its models are in no table; SELECT cerebro.materialize(' || r.run || ', '
                 || quote_literal(r.model_table) || ') makes it'
            ELSE last.detail ->> 'message'
       END AS message,
       (last.detail ->> 'pid')::integer AS driver_pid,
       r.description,
       -- Whether a run has ended is decided here and nowhere else. A submitted run that has finished still makes its
       -- model tables, in the session that drove it; if that session is gone, nobody will make them.
       CASE last.event
            WHEN 'created' THEN driver.pid IS NULL
            WHEN 'started' THEN driver.pid IS NULL
            WHEN 'finished' THEN NOT (told.submitted AND holder.is_making
                                      AND started.event_id > COALESCE(made.event_id, 0))
            ELSE true
       END AS ended,
       CASE last.event WHEN 'finished' THEN last.detail ->> 'reason' END AS reason
  FROM cerebro.run_plan r
  JOIN told ON told.run = r.run AND pg_get_userbyid(told.owner) = r.owner
  JOIN cerebro.event last ON last.run = told.run AND last.owner = told.owner AND last.event_id = told.last
  LEFT JOIN cerebro.event started
         ON started.run = told.run AND started.owner = told.owner AND started.event_id = told.started
  LEFT JOIN cerebro.event made ON made.run = told.run AND made.owner = told.owner AND made.event_id = told.made
  -- Before a session drives a run, the one that created it.
  LEFT JOIN cerebro._sessions() driver
         ON driver.pid = (COALESCE(started.detail, last.detail) ->> 'pid')::integer
        AND driver.backend_start = (COALESCE(started.detail, last.detail) ->> 'backend_start')::timestamptz
 -- Whether the driver is still in the transaction that makes the model tables (locks.of_models).
 CROSS JOIN LATERAL (
    SELECT COALESCE((driver.pid, hashtextextended('cerebro_db models of run ' || r.run, 0))
                    IN (SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint
                          FROM pg_catalog.pg_locks l
                         WHERE l.locktype = 'advisory'), false) AS is_making
 ) holder;
COMMENT ON VIEW cerebro.runs IS
'The runs and their status.';
COMMENT ON COLUMN cerebro.runs.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.runs.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.runs.name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.status IS
'created, running, finished, failed, cancelled or interrupted. interrupted: the session that drove the run, or was to '
'begin it, is gone. SELECT cerebro.resume(run) continues a run that failed, was cancelled or was interrupted.';
COMMENT ON COLUMN cerebro.runs.source_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.runs.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.runs.configurations IS 'Number of configurations of the run.';
COMMENT ON COLUMN cerebro.runs.segments IS 'Number of segments that the run trains on.';
COMMENT ON COLUMN cerebro.runs.epochs IS 'Planned number of epochs per model.';
COMMENT ON COLUMN cerebro.runs.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.runs.started_at IS 'When a session first began to drive the run.';
COMMENT ON COLUMN cerebro.runs.ended_at IS
'When the run finished, failed or was cancelled; NULL while it runs and when it was interrupted.';
COMMENT ON COLUMN cerebro.runs.message IS 
'Why the run failed or was cancelled. Of a finished run: that its models are in no table, why, and what makes it.';
COMMENT ON COLUMN cerebro.runs.driver_pid IS
'Process id of the session that drives the run; when interrupted, of the session that drove it last.';
COMMENT ON COLUMN cerebro.runs.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.ended IS
'True if no session works on the run any more: it is not running, and a submitted run has also made its model '
'tables (or message says why not).';
COMMENT ON COLUMN cerebro.runs.reason IS
'budget, if the run has finished because its budget was spent; else NULL.';
