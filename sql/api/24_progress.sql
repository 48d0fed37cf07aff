-- The view on how far runs are.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH ending AS (
    -- The models, and the decisions to stop them. Those before a model went on hold no longer.
    SELECT run, owner, model, known, visits, epoch, hop,
           decision_id > COALESCE(max(went_on) OVER (PARTITION BY run, owner, model), 0) AS holds
      FROM (SELECT run, owner, model, true AS known, cardinality(visits) AS visits, NULL::integer AS epoch,
                   NULL::bigint AS hop, NULL::bigint AS decision_id, NULL::bigint AS went_on
              FROM cerebro_internal._visible_model
             UNION ALL
            SELECT run, owner, model, NULL, NULL, epoch, (detail ->> 'hop')::bigint,
                   CASE decision WHEN 'stop' THEN decision_id END, CASE decision WHEN 'go on' THEN decision_id END
              FROM cerebro_internal._visible_decision
             WHERE decision IN ('stop', 'go on') AND model IS NOT NULL) u
), ended AS (
    SELECT run, owner, model, max(visits) AS visits,
           min(epoch) FILTER (WHERE holds) AS epoch, max(hop) FILTER (WHERE holds) AS hop
      FROM ending
     GROUP BY run, owner, model
    HAVING bool_or(known)  -- users can write rows about models that do not exist
), fact AS (
    SELECT run, owner, 'run' AS kind, NULL::timestamptz AS at, NULL::bigint AS rows_done, NULL::bigint AS rows_total,
           segments, epochs AS epoch, NULL::integer AS visits, NULL::bigint AS hop, NULL::double precision AS seconds_left,
           NULL::integer AS configuration, NULL::text AS status, NULL::bigint AS rank,
           NULL::double precision AS loss, NULL::double precision AS metric, NULL::text AS objective,
           NULL::double precision AS value
      FROM cerebro_internal._plan
     UNION ALL
    -- A run of a day has 86,400 of these.
    SELECT run, owner, 'beat', h.at, h.rows_done, h.rows_total, NULL, NULL, NULL, NULL, h.seconds_left,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM (SELECT run, owner, max(at) AS at FROM cerebro_internal._visible_heartbeat GROUP BY run, owner) l
      FULL JOIN cerebro_internal._visible_heartbeat h USING (run, owner)
     WHERE CASE WHEN h.at >= l.at - interval '30 seconds' THEN true END
     UNION ALL
    SELECT run, owner, 'visit', NULL, rows, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_hop
     UNION ALL
    SELECT run, owner, 'model', NULL, NULL, NULL, NULL, epoch, visits, hop, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL
      FROM ended
     UNION ALL
    SELECT run, owner, 'rank', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration, status,
           CASE WHEN group_number IS NULL THEN rank END,
           COALESCE(validation_loss, training_loss), COALESCE(validation_metric, training_metric), objective,
           objective_value
      FROM cerebro_internal._leaderboard
), timed AS (
    SELECT f.*,
           max(at) FILTER (WHERE kind = 'beat') OVER of_run AS seen_at,
           max(segments) FILTER (WHERE kind = 'run') OVER of_run AS run_segments,
           max(epoch) FILTER (WHERE kind = 'run') OVER of_run AS run_epochs
      FROM fact f
    WINDOW of_run AS (PARTITION BY run, owner)
), told AS (
    SELECT run, owner, max(seen_at) AS seen_at,
           max(rows_done) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_done,
           max(rows_total) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_total,
           -- The speed over the last 30 seconds, or since the start of a run that is younger.
           (max(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds')
            - min(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds'))
               / NULLIF(extract(epoch FROM seen_at - min(at) FILTER (WHERE kind = 'beat'
                                                                      AND at >= seen_at - interval '30 seconds')
                                )::double precision, 0) AS rows_per_second,
           -- A stopped model has no visits after its decision, which may have come within an epoch.
           LEAST(COALESCE(sum(COALESCE(hop, LEAST(run_epochs, epoch)::numeric * COALESCE(visits, run_segments)))
                              FILTER (WHERE kind = 'model'), 0), 1e18)::bigint AS hops_total,
           count(*) FILTER (WHERE kind = 'visit') AS hops_done,
           COALESCE(sum(rows_done) FILTER (WHERE kind = 'visit'), 0) AS rows_visited,
           max(seconds_left) FILTER (WHERE kind = 'beat' AND at = seen_at) AS seconds_left,
           count(*) FILTER (WHERE status IN ('finished', 'stopped')) AS finished,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           min(configuration) FILTER (WHERE rank = 1 AND status <> 'waiting') AS best_configuration,
           min(loss) FILTER (WHERE rank = 1) AS best_loss,
           min(metric) FILTER (WHERE rank = 1) AS best_metric,
           min(objective) AS objective,
           min(value) FILTER (WHERE rank = 1) AS best_value
      FROM timed
     GROUP BY run, owner, seen_at
    HAVING bool_or(kind = 'run')  -- users can write rows about runs that do not exist
)
SELECT run,
       r.run_name,
       r.status,
       -- A heartbeat counts the rows of visits under way, too, but there is one per second.
       CASE WHEN r.status IN ('finishing', 'finished') THEN 100.0
            ELSE COALESCE(round((100.0 * LEAST(GREATEST(t.rows_done, t.rows_visited), t.rows_total)
                                 / NULLIF(t.rows_total, 0))::numeric, 1), 0.0)
       END::double precision AS percent,
       t.hops_done,
       t.hops_total,
       t.finished AS configurations_finished,
       t.failed AS configurations_failed,
       r.configurations,
       CASE WHEN r.status = 'running' THEN t.rows_per_second END AS rows_per_second,
       CASE WHEN r.status = 'running' THEN t.seconds_left END AS seconds_left,
       extract(epoch FROM COALESCE(r.ended_at, CASE WHEN r.status = 'running' THEN clock_timestamp() ELSE t.seen_at END)
                          - r.started_at)::double precision AS seconds_elapsed,
       t.best_configuration,
       t.best_loss,
       t.best_metric,
       t.seen_at,
       pg_get_userbyid(owner) AS owner,
       r.message,
       t.objective,
       t.best_value
  FROM told t
  FULL JOIN cerebro_internal._runs r USING (run, owner)
 WHERE num_nonnulls(t.hops_done, r.status) = 2;
COMMENT ON VIEW cerebro.run_progress IS
'How far each run is, how fast it trains, and when it will end. Updated about once per second while a run is '
'driven.';
COMMENT ON COLUMN cerebro.run_progress.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_progress.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_progress.status IS 'Status of the run, as in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.percent IS
'Share of the rows of the whole run that have been trained on, in percent (0 to 100).';
COMMENT ON COLUMN cerebro.run_progress.hops_done IS
'Number of committed visits (a visit trains one model on one segment). An average of a model''s replicas counts as '
'one.';
COMMENT ON COLUMN cerebro.run_progress.hops_total IS
'Number of visits of all models in all epochs, and of averages of replicas. A stopped model counts only up to the '
'epoch it was stopped after.';
COMMENT ON COLUMN cerebro.run_progress.configurations_finished IS
'Number of models that need no more training: finished or stopped.';
COMMENT ON COLUMN cerebro.run_progress.configurations_failed IS 'Number of models that failed.';
COMMENT ON COLUMN cerebro.run_progress.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.run_progress.rows_per_second IS
'Rows trained per second over the last 30 seconds, all segments together; NULL unless the run is running.';
COMMENT ON COLUMN cerebro.run_progress.seconds_left IS
'Estimated seconds until the run ends, by the pace of its visits, its method and its budget. NULL unless the run is '
'running, and until the pace of a visit is known.';
COMMENT ON COLUMN cerebro.run_progress.seconds_elapsed IS
'Seconds from the start of the run to its end, or to now while it is running.';
COMMENT ON COLUMN cerebro.run_progress.best_configuration IS
'Configuration of the model that ranks first on the leaderboard; NULL before the first committed visit.';
COMMENT ON COLUMN cerebro.run_progress.best_loss IS
'Loss of that model: validation loss if there is one, else training loss.';
COMMENT ON COLUMN cerebro.run_progress.best_metric IS
'Metric of that model: validation metric if there is one, else training metric.';
COMMENT ON COLUMN cerebro.run_progress.seen_at IS 'When the run last reported its progress.';
COMMENT ON COLUMN cerebro.run_progress.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_progress.message IS 'As in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.objective IS 'Name of the run''s objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.run_progress.best_value IS
'Value of the objective of the model that ranks first: objective_value in cerebro.leaderboard.';
