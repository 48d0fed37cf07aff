-- The view on how far runs are.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH beat AS (
    SELECT DISTINCT ON (run, owner) run, owner, at, rows_done, rows_total
      FROM cerebro.heartbeat
     ORDER BY run, owner, at DESC
), recent AS (
    -- The speed over the last 30 seconds, or since the start of a run that is younger.
    SELECT h.run, h.owner,
           (max(h.rows_done) - min(h.rows_done))
               / NULLIF(extract(epoch FROM max(h.at) - min(h.at))::double precision, 0) AS rows_per_second
      FROM cerebro.heartbeat h
      JOIN beat USING (run, owner)
     WHERE h.at >= beat.at - interval '30 seconds'
     GROUP BY h.run, h.owner
), units AS (
    SELECT run, owner, count(*) AS hops_done FROM cerebro.hop GROUP BY run, owner
), stopped AS (
    SELECT run, owner, model, min(epoch) AS epoch
      FROM cerebro.decision
     WHERE decision = 'stop'
     GROUP BY run, owner, model
), planned AS (
    -- A stopped model has no visits after the epoch of its decision.
    SELECT r.run, r.owner,
           LEAST(sum(LEAST(r.epochs, stopped.epoch)::numeric * COALESCE(cardinality(m.visits), r.segments)),
                 1e18)::bigint AS hops_total
      FROM cerebro.run_plan r
      JOIN cerebro.model m USING (run, owner)
      LEFT JOIN stopped USING (run, owner, model)
     GROUP BY r.run, r.owner
), board AS (
    SELECT run, owner,
           count(*) FILTER (WHERE status IN ('finished', 'stopped')) AS finished,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           min(mst_key) FILTER (WHERE rank = 1 AND status <> 'waiting') AS best_mst_key,
           min(COALESCE(validation_loss, training_loss)) FILTER (WHERE rank = 1) AS best_loss,
           min(COALESCE(validation_metric, training_metric)) FILTER (WHERE rank = 1) AS best_metric
      FROM cerebro.leaderboard
     GROUP BY run, owner
)
SELECT r.run,
       r.name,
       runs.status,
       CASE WHEN runs.status = 'finished' THEN 100.0
            ELSE COALESCE(round((100.0 * beat.rows_done / NULLIF(beat.rows_total, 0))::numeric, 1), 0.0)
       END::double precision AS percent,
       COALESCE(units.hops_done, 0) AS hops_done,
       COALESCE(planned.hops_total, 0) AS hops_total,
       board.finished AS configurations_finished,
       board.failed AS configurations_failed,
       r.configurations,
       CASE WHEN runs.status = 'running' THEN recent.rows_per_second END AS rows_per_second,
       CASE WHEN runs.status = 'running' AND recent.rows_per_second > 0
            THEN (beat.rows_total - beat.rows_done) / recent.rows_per_second
       END AS seconds_left,
       extract(epoch FROM COALESCE(runs.ended_at, CASE WHEN runs.status = 'running' THEN clock_timestamp() ELSE beat.at END)
                          - runs.started_at)::double precision AS seconds_elapsed,
       board.best_mst_key,
       board.best_loss,
       board.best_metric,
       beat.at AS seen_at,
       r.owner,
       runs.message
  FROM cerebro.run_plan r
  JOIN cerebro.runs USING (run, owner)
  LEFT JOIN beat USING (run, owner)
  LEFT JOIN recent USING (run, owner)
  LEFT JOIN units USING (run, owner)
  LEFT JOIN planned USING (run, owner)
  LEFT JOIN board USING (run, owner)
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.run_progress IS
'How far each run is, how fast it trains, and when it will end. Updated about once per second while a run is '
'driven.';
COMMENT ON COLUMN cerebro.run_progress.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_progress.name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_progress.status IS 'Status of the run, as in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.percent IS
'Share of the rows of the whole run that have been trained on, in percent (0 to 100).';
COMMENT ON COLUMN cerebro.run_progress.hops_done IS
'Number of committed visits (a visit trains one model on one segment).';
COMMENT ON COLUMN cerebro.run_progress.hops_total IS
'Number of visits of all models in all epochs. A stopped model counts only up to the epoch it was stopped after.';
COMMENT ON COLUMN cerebro.run_progress.configurations_finished IS
'Number of models that need no more training: finished or stopped.';
COMMENT ON COLUMN cerebro.run_progress.configurations_failed IS 'Number of models that failed.';
COMMENT ON COLUMN cerebro.run_progress.configurations IS 'Number of configurations of the run.';
COMMENT ON COLUMN cerebro.run_progress.rows_per_second IS
'Rows trained per second over the last 30 seconds, all segments together; NULL unless the run is running.';
COMMENT ON COLUMN cerebro.run_progress.seconds_left IS
'Estimated seconds until the run ends; NULL unless the run is running.';
COMMENT ON COLUMN cerebro.run_progress.seconds_elapsed IS
'Seconds from the start of the run to its end, or to now while it is running.';
COMMENT ON COLUMN cerebro.run_progress.best_mst_key IS
'Configuration of the model that ranks first on the leaderboard; NULL before the first committed visit.';
COMMENT ON COLUMN cerebro.run_progress.best_loss IS
'Loss of that model: validation loss if there is one, else training loss.';
COMMENT ON COLUMN cerebro.run_progress.best_metric IS
'Metric of that model: validation metric if there is one, else training metric.';
COMMENT ON COLUMN cerebro.run_progress.seen_at IS 'When the run last reported its progress.';
COMMENT ON COLUMN cerebro.run_progress.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_progress.message IS 'As in cerebro.runs.';
