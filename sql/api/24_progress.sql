-- The view on how far runs are.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH ending AS (
    -- The models, and the decisions to stop them. Those before a model went on hold no longer.
    SELECT run, owner, model, known, visits, epoch, hop,
           decision_id > COALESCE(max(went_on) OVER (PARTITION BY run, owner, model), 0) AS holds
      FROM (SELECT run, owner, model, true AS known, cardinality(visits) AS visits, NULL::integer AS epoch,
                   NULL::bigint AS hop, NULL::bigint AS decision_id, NULL::bigint AS went_on
              FROM cerebro.model
             UNION ALL
            SELECT run, owner, model, NULL, NULL, epoch, (detail ->> 'hop')::bigint,
                   CASE decision WHEN 'stop' THEN decision_id END, CASE decision WHEN 'go on' THEN decision_id END
              FROM cerebro.decision
             WHERE decision IN ('stop', 'go on') AND model IS NOT NULL) u
), planned_model AS (
    SELECT run, owner, model, max(visits) AS visits,
           min(epoch) FILTER (WHERE holds) AS epoch, max(hop) FILTER (WHERE holds) AS hop
      FROM ending
     WHERE owner = (SELECT quote_ident(current_user)::regrole)
           OR (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'))
     GROUP BY run, owner, model
    HAVING bool_or(known)  -- users can write rows about models that do not exist
)
SELECT r.run,
       r.name,
       runs.status,
       CASE WHEN runs.status = 'finished' THEN 100.0
            ELSE COALESCE(round((100.0 * beat.rows_done / NULLIF(beat.rows_total, 0))::numeric, 1), 0.0)
       END::double precision AS percent,
       pace.hops_done,
       COALESCE(planned.hops_total, 0) AS hops_total,
       board.finished AS configurations_finished,
       board.failed AS configurations_failed,
       r.configurations,
       CASE WHEN runs.status = 'running' THEN recent.rows_per_second END AS rows_per_second,
       -- What the segments have spent since the first visit of this session began, without building models and reading
       -- rows, is the price of the rows trained so far. The other rows have the same price. Models that have not visited a
       -- segment yet must be built there: the median is what most of them take, also if few visits had to compile for all
       -- the others.
       CASE WHEN runs.status = 'running' AND pace.segments >= planned.parallel AND beat.rows_done > pace.rows_before
            THEN (GREATEST(extract(epoch FROM beat.at - pace.began)::double precision * planned.parallel - pace.building,
                           0)
                      / (beat.rows_done - pace.rows_before) * (beat.rows_total - beat.rows_done)
                  + GREATEST(planned.first_visits - pace.first_visits, 0) * pace.first_build)
                 / planned.parallel
       END AS seconds_left,
       extract(epoch FROM COALESCE(runs.ended_at, CASE WHEN runs.status = 'running' THEN clock_timestamp() ELSE beat.at END)
                          - runs.started_at)::double precision AS seconds_elapsed,
       board.best_mst_key,
       board.best_loss,
       board.best_metric,
       beat.at AS seen_at,
       runs.owner,
       runs.message,
       board.objective,
       board.best_value
  FROM cerebro.runs
  JOIN cerebro.run r ON r.run = runs.run AND pg_get_userbyid(r.owner) = runs.owner
  LEFT JOIN LATERAL (
        SELECT h.at, h.rows_done, h.rows_total
          FROM cerebro.heartbeat h
         WHERE h.run = r.run AND h.owner = r.owner
         ORDER BY h.at DESC
         LIMIT 1) beat ON true
  LEFT JOIN LATERAL (
        -- The speed over the last 30 seconds, or since the start of a run that is younger.
        SELECT (max(h.rows_done) - min(h.rows_done))
                   / NULLIF(extract(epoch FROM max(h.at) - min(h.at))::double precision, 0) AS rows_per_second
          FROM cerebro.heartbeat h
         WHERE h.run = r.run AND h.owner = r.owner AND h.at >= beat.at - interval '30 seconds') recent ON true
  LEFT JOIN LATERAL (
        -- A stopped model has no visits after its decision, which may have come within an epoch.
        SELECT LEAST(COALESCE(sum(COALESCE(m.hop, LEAST(runs.epochs, m.epoch)::numeric
                                                      * COALESCE(m.visits, r.segments))), 0), 1e18)::bigint AS hops_total,
               sum(COALESCE(m.visits, r.segments)) AS first_visits,
               LEAST(count(*), r.segments) AS parallel
          FROM planned_model m
         WHERE m.run = r.run AND m.owner = r.owner) planned ON true
  LEFT JOIN LATERAL (
        -- On its own, because a subquery of Greenplum's may refer to the query around it only.
        SELECT max(e.at) AS at
          FROM cerebro.event e
         WHERE e.run = r.run AND e.owner = r.owner AND e.model IS NULL AND e.event = 'started') start ON true
  LEFT JOIN LATERAL (
        SELECT count(*) AS hops_done,
               COALESCE(sum(h.rows) FILTER (WHERE h.started_at < start.at), 0) AS rows_before,
               min(h.started_at) FILTER (WHERE h.started_at >= start.at) AS began,
               count(DISTINCT h.segment) FILTER (WHERE h.started_at >= start.at) AS segments,
               COALESCE(sum(COALESCE((h.seconds ->> 'build')::double precision, 0)
                            + COALESCE((h.seconds ->> 'data')::double precision, 0))
                            FILTER (WHERE h.started_at >= start.at), 0) AS building,
               count(*) FILTER (WHERE h.epoch = 1) AS first_visits,
               COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY (h.seconds ->> 'build')::double precision)
                            FILTER (WHERE h.epoch = 1), 0) AS first_build
          FROM cerebro.hop h
         WHERE h.run = r.run AND h.owner = r.owner) pace ON true
  LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE b.status IN ('finished', 'stopped')) AS finished,
               count(*) FILTER (WHERE b.status = 'failed') AS failed,
               min(b.mst_key) FILTER (WHERE b.rank = 1 AND b.status <> 'waiting') AS best_mst_key,
               min(COALESCE(b.validation_loss, b.training_loss)) FILTER (WHERE b.rank = 1) AS best_loss,
               min(COALESCE(b.validation_metric, b.training_metric)) FILTER (WHERE b.rank = 1) AS best_metric,
               min(b.objective) AS objective,
               min(b.objective_value) FILTER (WHERE b.rank = 1) AS best_value
          FROM cerebro.leaderboard b
         WHERE b.run = runs.run AND b.owner = runs.owner) board ON true
 WHERE r.owner = (SELECT quote_ident(current_user)::regrole)
    OR (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'));
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

'Estimated seconds until the run ends. NULL unless the run is running, and until every segment has committed a visit: '
'before that, starting and compiling would be taken for training.';
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
COMMENT ON COLUMN cerebro.run_progress.objective IS 'Name of the run''s objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.run_progress.best_value IS
'Value of the objective of the model that ranks first: objective_value in cerebro.leaderboard.';
