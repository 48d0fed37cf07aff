-- The views on runs.  People and BI tools read them: columns are plain scalars where possible, and each has a comment.
--
-- For all views of runs: users see their own runs, members of cerebro_monitor see all runs, but no values of rows
-- (tests/sql/rights/monitor_columns.txt says of each column why it has none). A view reads its tables with the rights of the
-- extension's owner, so row-level security does not apply; all rows come from the views of 15_visible_rows.sql.
-- security_barrier makes their filter run before the conditions of a query, whose functions could otherwise see rows of
-- other users.
-- A view over all runs must not take time in proportion to the square of their number. The planner knows little of joins
-- by several columns: where it expects few rows, it reads one table again for each row of another. So no view may depend
-- on what it expects:
-- * Rows of several tables are gathered by UNION ALL, and aggregated once. What each row needs of other rows (the name of
--   its architecture, the plan of its run) it gets from a window over the gathered rows.
-- * Where two sets of rows are joined, it is by FULL JOIN ... USING, which is never a loop over the rows of both sides, and
--   which no condition of a query turns into another join. num_nonnulls(), which says nothing to the planner, then leaves
--   out what one of the sides lacks. Joins are by the number of the owner: of names the planner knows nothing.
-- * A condition on the run reaches every table, but not through GROUPING SETS, nor through a FULL JOIN of a FULL JOIN: there
--   is one in each level of a query, and grouping, windows or UNION ALL are between the levels.
-- * LEFT JOIN is for the sessions of the server only. They are few.
-- tests/sql/runs/test_many_runs.py counts the rows that each view reads.
-- The tables have the number of the owner (10_runs.sql), and the views show the name, which a query can compare with a text.
-- CREATE OR REPLACE VIEW can add columns only at the end.

CREATE OR REPLACE VIEW cerebro.run_plan WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, r.name AS run_name, r.description, r.created_at, r.source_table, r.packed_table,
       r.validation_table, r.model_table,
       -- cerebro.resume(run, epochs => N) extends a run; cerebro.run keeps the number that was asked for first.
       COALESCE(extended.epochs, r.epochs) AS epochs,
       r.evaluate_every, r.seed, r.segments, r.dist_keys, r.configurations, r.rows_per_epoch, r.storage,
       -- These contain what rows contain, or may: a monitor does not see them.
       CASE WHEN own.is THEN r.options END AS options,
       CASE WHEN own.is THEN r.layout END AS layout,
       CASE WHEN own.is THEN r.validation_layout END AS validation_layout,
       CASE WHEN own.is THEN r.packed_summary END AS packed_summary,
       r.version AS cerebro_version
  FROM cerebro_internal._visible_run r
  FULL JOIN (SELECT run, owner, max((detail ->> 'epochs')::integer) AS epochs
               FROM cerebro_internal._visible_event
              WHERE event = 'extended'
              GROUP BY run, owner) extended USING (run, owner)
 CROSS JOIN LATERAL (SELECT owner = (SELECT quote_ident(current_user)::regrole) AS is) own
 WHERE num_nonnulls(r.seed) = 1;
COMMENT ON VIEW cerebro.run_plan IS
'What each run was asked to do, including later extensions.';
COMMENT ON COLUMN cerebro.run_plan.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_plan.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_plan.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.run_plan.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.run_plan.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.run_plan.validation_table IS
'Packed table that the run evaluates on; NULL: none. If the rows have folds, the table that it trains on.';
COMMENT ON COLUMN cerebro.run_plan.model_table IS 'Table that receives the trained models.';
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
'Number of configurations when the run was created; 0: a search proposes them.';
COMMENT ON COLUMN cerebro.run_plan.rows_per_epoch IS 'Number of rows of the packed table, which is one epoch.';
COMMENT ON COLUMN cerebro.run_plan.storage IS
'Prefix of the names of the run''s state tables in the schema cerebro_state.';
COMMENT ON COLUMN cerebro.run_plan.options IS
'Options of the run after defaults were filled in (JSON). Visible to the owner only, because the query of stop_when may '
'contain values.';
COMMENT ON COLUMN cerebro.run_plan.layout IS
'Columns and partitions of the packed table when the run was created (JSON). Visible to the owner only, because it '
'contains class labels, categories, means and deviations.';
COMMENT ON COLUMN cerebro.run_plan.validation_layout IS
'The same for the validation table (JSON), visible to the owner only; NULL: no validation table.';
COMMENT ON COLUMN cerebro.run_plan.packed_summary IS
'Row of the packed table''s summary (JSON). Visible to the owner only, because it contains labels.';
COMMENT ON COLUMN cerebro.run_plan.cerebro_version IS 'Version of cerebro_db that created the run.';

CREATE OR REPLACE VIEW cerebro_internal._plan AS
SELECT run, owner, max(seed) AS seed, max(name) AS name, max(source_table) AS source_table,
       max(validation_table) AS validation_table, max(model_table) AS model_table, max(segments) AS segments,
       COALESCE(max(extended), max(epochs)) AS epochs, max(objective) AS objective, max(direction) AS direction,
       max(keep) AS keep, max(validation_rows) AS validation_rows
  FROM (SELECT run, owner, seed, name, source_table, validation_table, model_table, segments, epochs,
               options ->> 'objective' AS objective, options ->> 'direction' AS direction, options ->> 'keep' AS keep,
               validation_rows, NULL::integer AS extended
          FROM cerebro_internal._visible_run
         UNION ALL
        SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, (detail ->> 'epochs')::integer
          FROM cerebro_internal._visible_event
         WHERE event = 'extended') fact
 GROUP BY run, owner
HAVING max(seed) IS NOT NULL;  -- users can write rows about runs that do not exist
COMMENT ON VIEW cerebro_internal._plan IS
'What the other views need to know of the runs that the current user may see, with the numbers of the owners. Users cannot '
'read it.';

CREATE OR REPLACE VIEW cerebro_internal._runs AS
WITH told AS (
    -- Of the latest event of each sort its words, in an array: the greatest array is that of the latest event, because the
    -- number comes first in it.
    SELECT run, owner, max(name) AS name, max(description) AS description, max(source_table) AS source_table,
           max(packed_table) AS packed_table, max(model_table) AS model_table,
           -- Those that the run began with, and those that were added. A search adds all of its own.
           GREATEST(max(configurations), count(configuration))::integer AS configurations, max(segments) AS segments,
           COALESCE(max(extended), max(epochs)) AS epochs, max(created_at) AS created_at,
           max(words) FILTER (WHERE event IN ('created', 'started', 'finished', 'failed', 'cancelled')) AS last,
           max(words) FILTER (WHERE event = 'started') AS started,
           max(words) FILTER (WHERE event IN ('materialized', 'not materialized')) AS made,
           min(at) FILTER (WHERE event = 'started') AS started_at,
           max(at) FILTER (WHERE event IN ('finished', 'failed', 'cancelled')) AS ended_at,
           max(words) FILTER (WHERE event = 'cancel requested') AS request,
           max(words) FILTER (WHERE event = 'followed' AND words[11] IS NOT NULL) AS judged,
           max(words) FILTER (WHERE event IN ('waits', 'goes on')) AS turn,
           bool_or(follows) AS follows,
           max(at) FILTER (WHERE event = 'cancel requested') AS requested_at
      FROM (SELECT run, owner, name, description, source_table, packed_table, model_table, configurations, segments, epochs,
                   created_at, NULL::text AS event, NULL::timestamptz AS at, NULL::integer AS extended, NULL::text[] AS words,
                   NULL::integer AS configuration, options ? 'follows' AS follows
              FROM cerebro_internal._visible_run
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   event, at, CASE event WHEN 'extended' THEN (detail ->> 'epochs')::integer END,
                   ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'pid', detail ->> 'backend_start',
                         detail ->> 'message', detail ->> 'sqlstate', detail ->> 'reason',
                         left(detail ->> 'transaction', 40), detail ->> 'configuration', left(detail ->> 'made_of', 1000),
                         left(detail #>> '{quality,says}', 4000)] COLLATE "C", NULL, NULL
              FROM cerebro_internal._visible_event
             WHERE model IS NULL
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration, NULL
              FROM cerebro_internal._visible_configuration) fact
     GROUP BY run, owner
    HAVING max(epochs) IS NOT NULL AND count(event) > 0  -- users can write rows about runs that do not exist
), known AS (
    SELECT t.*,
           -- The session that is to begin a run finds the request and does not begin it.
           CASE WHEN t.last[2] = 'created' AND t.request[1] > t.last[1] THEN 'cancelled' ELSE t.last[2] END AS word,
           COALESCE(t.request[1] > t.last[1], false) AS is_unwanted,
           COALESCE(t.made[1], '') > t.last[1] AS was_made_last,
           -- Before a session drives a run, the one that created it.
           COALESCE(t.started, t.last) AS driver,
           t.owner = (SELECT quote_ident(current_user)::regrole) AS own
      FROM told t
     WHERE t.last IS NOT NULL
)
SELECT k.run,
       k.owner,
       k.name AS run_name,
       CASE WHEN k.word = 'finished' AND holder.is_making THEN 'finishing'
            WHEN k.word NOT IN ('created', 'started') THEN k.word
            WHEN driver.pid IS NULL AND k.is_unwanted THEN 'cancelled'
            WHEN driver.pid IS NULL THEN 'interrupted'
            WHEN k.word = 'created' THEN 'created'
            ELSE 'running'
       END AS status,
       k.source_table,
       k.packed_table,
       k.model_table,
       k.configurations,
       k.segments,
       k.epochs,
       k.created_at,
       k.started_at,
       CASE WHEN k.word <> 'started' THEN COALESCE(k.ended_at, CASE k.word WHEN 'cancelled' THEN k.requested_at END)
            WHEN driver.pid IS NULL AND k.is_unwanted THEN k.requested_at
       END AS ended_at,
       -- The texts of errors may contain what rows contain: a monitor sees no more than the class of the error.
       CASE WHEN k.made[2] = 'not materialized' AND k.was_made_last
            THEN 'its model tables were not made' || COALESCE(CASE WHEN k.own THEN ': ' || k.made[5] END, '')
                 || '; SELECT cerebro.materialize(' || k.run || ', ''another_name'') makes them'
                 || CASE WHEN k.follows THEN ', and SELECT cerebro.resume(' || k.run || ') does all that follows' ELSE '' END
            -- The event 'materialized' is committed together with the tables, so it is missing if they are: the session
            -- ended before it had made them, or its caller has rolled back.
            WHEN k.word = 'finished' AND NOT k.was_made_last AND NOT holder.is_making
            THEN 'its models are in no table; SELECT cerebro.' || CASE WHEN k.follows THEN 'resume(' || k.run
                 ELSE 'materialize(' || k.run || ', ' || quote_literal(k.model_table) END || ') makes it'
            WHEN k.word = 'cancelled' AND k.last[2] = 'created' THEN 'the run was cancelled before it began'
            WHEN k.word = 'started' AND driver.pid IS NULL AND k.is_unwanted
            THEN 'the run was cancelled, and the session that drove it is gone'
            WHEN k.word = 'started' AND driver.pid IS NOT NULL AND k.turn[2] = 'waits' AND k.turn[1] > k.last[1]
            THEN 'waits for ' || left(k.turn[7], 200)
            WHEN k.own THEN k.last[5]
            WHEN k.last[5] IS NOT NULL
            THEN concat('only its owner sees the message', ' (SQLSTATE ' || k.last[6] || ')')
       END AS message,
       (CASE WHEN k.word = 'finished' AND holder.is_making THEN k.driver ELSE k.last END)[3]::integer AS driver_pid,
       k.description,
       -- Whether a run has ended is decided here and nowhere else. A run that has finished still makes its model tables, in
       -- the session that drove it; if that session is gone, nobody will make them.
       CASE k.word
            WHEN 'created' THEN driver.pid IS NULL
            WHEN 'started' THEN driver.pid IS NULL
            WHEN 'finished' THEN NOT holder.is_making
            ELSE true
       END AS ended,
       CASE k.word WHEN 'finished' THEN k.last[7] END AS reason,
       -- What was found before the run went on is not said of the new models. Labels are what rows contain.
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN substring(k.judged[9] FROM '^[0-9]{1,9}$')::integer
       END AS chosen_configuration,
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN k.judged[10] END AS made_of,
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN k.judged[11] END AS quality
  FROM known k
  LEFT JOIN cerebro_internal._sessions() driver
         ON driver.pid = k.driver[3]::integer AND driver.backend_start = k.driver[4]::timestamptz
 -- Whether the driver is still in the transaction that trains the run and then makes the model tables. Not by a lock: on
 -- Greenplum pg_locks asks the segments, and a query that has a subquery over this view could not do that.
 CROSS JOIN LATERAL (
    -- The session itself knows whether it has made them.
    -- What follows is done in the transaction of the driver, also if another session has made the tables.
    SELECT COALESCE(driver.transaction = k.driver[8] AND driver.pid <> pg_backend_pid(), false)
           AND (COALESCE(k.started[1], '') > COALESCE(k.made[1], '')
                OR COALESCE(k.follows AND k.made[2] = 'materialized', false)) AS is_making
 ) holder;
COMMENT ON VIEW cerebro_internal._runs IS
'The runs that the current user may see and their status, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.runs WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, run_name, status, source_table, packed_table, model_table, configurations, segments,
       epochs, created_at, started_at, ended_at, message, driver_pid, description, ended, reason, chosen_configuration,
       made_of, quality, @name_of model_table@ AS model_name
  FROM cerebro_internal._runs;
COMMENT ON VIEW cerebro.runs IS
'The runs and their status.';
COMMENT ON COLUMN cerebro.runs.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.runs.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.runs.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.status IS
'created, running, finishing, finished, failed, cancelled or interrupted. finishing: the models are trained, and the '
'session that drives the run makes its model tables and does what follows. interrupted: the session that drove the run, '
'or was to begin it, is gone. SELECT cerebro.resume(run) continues a run that failed, was cancelled or was interrupted.';
COMMENT ON COLUMN cerebro.runs.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.runs.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.runs.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.runs.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.runs.segments IS 'Number of segments that the run trains on.';
COMMENT ON COLUMN cerebro.runs.epochs IS 'Planned number of epochs per model.';
COMMENT ON COLUMN cerebro.runs.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.runs.started_at IS 'When a session first began to drive the run.';
COMMENT ON COLUMN cerebro.runs.ended_at IS
'When the training finished, failed or was cancelled; NULL while it runs and when it was interrupted.';
COMMENT ON COLUMN cerebro.runs.message IS
'Why the run failed or was cancelled; others than the owner see the SQLSTATE only, because the message may contain values. '
'Of a finished run: that its models are in no table, why (for the owner), and what makes it. Of a running run: for which run '
'it waits.';
COMMENT ON COLUMN cerebro.runs.driver_pid IS
'Process id of the session that drives the run; when interrupted, of the session that drove it last.';
COMMENT ON COLUMN cerebro.runs.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.ended IS
'True if no session works on the run any more: it is neither created nor running nor finishing.';
COMMENT ON COLUMN cerebro.runs.reason IS
'budget, if the run has finished because its budget was spent; else NULL.';
COMMENT ON COLUMN cerebro.runs.chosen_configuration IS
'Of a run of cerebro.train, for its owner: the configuration that cerebro.predict takes, usually an ensemble. NULL: its models '
'were not judged.';
COMMENT ON COLUMN cerebro.runs.made_of IS
'Of an ensemble: the configurations whose predictions it is the mean of. NULL: it is no ensemble.';
COMMENT ON COLUMN cerebro.runs.quality IS
'How good chosen_configuration was on the rows for validation, beside an answer that is the same for every row. Visible to the '
'owner only, because it may contain a class.';
COMMENT ON COLUMN cerebro.runs.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';
