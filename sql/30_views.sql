-- What people and BI tools look at: plain scalar columns, one's own runs (a cerebro_monitor: all).

CREATE VIEW cerebro.run_plan WITH (security_barrier) AS
SELECT r.run, r.owner, r.name, r.description, r.created_at, r.source_table, r.validation_table, r.model_table,
       r.selection_table, r.arch_table,
       -- A finished run can be extended; the run itself stays as it was asked for.
       COALESCE((SELECT max((e.detail ->> 'epochs')::integer)
                   FROM cerebro.event e
                  WHERE e.run = r.run AND e.owner = r.owner AND e.event = 'extended'), r.epochs) AS epochs,
       r.evaluate_every, r.seed, r.segments, r.dist_keys, r.configurations, r.rows_per_epoch, r.storage,
       r.options, r.layout, r.validation_layout,
       -- The summary has the class values of the data: not a monitor's business.
       CASE WHEN r.owner = current_user THEN r.source_summary END AS source_summary, r.version
  FROM cerebro.run r
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.run_plan IS 'What each run was asked to do, extensions included.';

CREATE VIEW cerebro.runs WITH (security_barrier) AS
WITH last AS (
    SELECT DISTINCT ON (run, owner) run, owner, event_id, event, at, detail
      FROM cerebro.event
     WHERE mst_key IS NULL AND event IN ('created', 'started', 'finished', 'failed', 'cancelled')
     ORDER BY run, owner, event_id DESC
), made AS (
    SELECT DISTINCT ON (run, owner) run, owner, event_id, event, detail
      FROM cerebro.event
     WHERE event IN ('materialized', 'not materialized')
     ORDER BY run, owner, event_id DESC
), span AS (
    SELECT run, owner,
           min(at) FILTER (WHERE event = 'started') AS started_at,
           max(at) FILTER (WHERE event IN ('finished', 'failed', 'cancelled')) AS ended_at
      FROM cerebro.event
     WHERE mst_key IS NULL
     GROUP BY run, owner
)
SELECT r.run,
       r.owner,
       r.name,
       CASE WHEN last.event <> 'started' THEN last.event
            WHEN driver.pid IS NOT NULL THEN 'running'
            ELSE 'interrupted'
       END AS status,
       r.source_table,
       r.model_table,
       r.configurations,
       r.segments,
       r.epochs,
       r.created_at,
       span.started_at,
       CASE WHEN last.event <> 'started' THEN span.ended_at END AS ended_at,
       CASE WHEN made.event = 'not materialized' THEN 'its model tables were not made: ' || (made.detail ->> 'message')
            ELSE last.detail ->> 'message'
       END AS message,
       (last.detail ->> 'pid')::integer AS driver_pid,
       r.description
  FROM cerebro.run_plan r
  JOIN last USING (run, owner)
  JOIN span USING (run, owner)
  LEFT JOIN made
         ON made.run = r.run AND made.owner = r.owner AND made.event_id > last.event_id
  LEFT JOIN cerebro._sessions() driver
         ON driver.pid = (last.detail ->> 'pid')::integer
        AND driver.backend_start = (last.detail ->> 'backend_start')::timestamptz
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.runs IS
    'Your runs and how they stand: created, running, finished, failed, cancelled, or interrupted (its session is gone; SELECT cerebro.resume(run) goes on).';

CREATE VIEW cerebro.learning_curve WITH (security_barrier) AS
WITH trained AS (
    SELECT h.run, h.owner, h.mst_key, h.epoch,
           LEAST(sum(h.rows), 1e18)::bigint AS rows,
           sum(h.loss * h.rows) / sum(h.rows) AS training_loss,
           sum(h.metric * h.rows) / sum(h.rows) AS training_metric,
           max(h.finished_at) AS trained_at,
           sum((h.seconds ->> 'train')::double precision) AS training_seconds
      FROM cerebro.hop h
     GROUP BY h.run, h.owner, h.mst_key, h.epoch
    HAVING sum(h.rows) > 0
), validated AS (
    SELECT e.run, e.owner, e.mst_key, e.epoch,
           sum(e.loss * e.rows) / sum(e.rows) AS validation_loss,
           sum(e.metric * e.rows) / sum(e.rows) AS validation_metric
      FROM cerebro.evaluation e
      JOIN cerebro.run r USING (run, owner)
     WHERE e.dataset = 'validation'
     GROUP BY e.run, e.owner, e.mst_key, e.epoch, r.validation_layout
    -- Parts keep the order of the table: some of them say nothing about all, so none are shown before all are there.
    HAVING sum(e.rows) > 0 AND sum(e.rows) >= (r.validation_layout ->> 'rows')::bigint
)
SELECT t.run, t.owner, t.mst_key, t.epoch,
       t.training_loss, t.training_metric,
       v.validation_loss, v.validation_metric,
       c.compile #>> '{metrics,0}' AS metric_name,
       t.rows, t.training_seconds, t.trained_at
  FROM trained t
  JOIN cerebro.configuration c USING (run, owner, mst_key)
  LEFT JOIN validated v USING (run, owner, mst_key, epoch)
 WHERE t.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.learning_curve IS
    'Loss and metric per configuration and epoch. Training figures are the running mean while training, as Keras prints them.';

CREATE VIEW cerebro.leaderboard WITH (security_barrier) AS
WITH last AS (
    SELECT DISTINCT ON (run, owner, mst_key) *
      FROM cerebro.learning_curve
     ORDER BY run, owner, mst_key, epoch DESC
), validated AS (
    SELECT DISTINCT ON (run, owner, mst_key) run, owner, mst_key, validation_loss, validation_metric
      FROM cerebro.learning_curve
     WHERE validation_loss IS NOT NULL
     ORDER BY run, owner, mst_key, epoch DESC
), troubled AS (
    SELECT DISTINCT ON (run, owner, mst_key) run, owner, mst_key, event, detail ->> 'reason' AS reason
      FROM cerebro.event
     WHERE mst_key IS NOT NULL AND event IN ('configuration failed', 'configuration revived')
     ORDER BY run, owner, mst_key, event_id DESC
), built AS (
    SELECT run, owner, mst_key, max((detail ->> 'parameters')::bigint) AS parameters, max(detail ->> 'engine') AS engine
      FROM cerebro.event
     WHERE event = 'built'
     GROUP BY run, owner, mst_key
), hops AS (
    SELECT run, owner, mst_key, count(*) AS hops
      FROM cerebro.hop
     GROUP BY run, owner, mst_key
)
SELECT r.run,
       rank() OVER (PARTITION BY r.run, r.owner
                    ORDER BY (troubled.event IS NOT DISTINCT FROM 'configuration failed'),
                             COALESCE(validated.validation_loss, last.training_loss) NULLS LAST) AS rank,
       c.mst_key,
       c.model_id,
       a.name AS model_name,
       c.compile_params,
       c.fit_params,
       CASE WHEN troubled.event = 'configuration failed' THEN 'failed'
            WHEN COALESCE(hops.hops, 0) >= r.epochs::bigint * r.segments THEN 'finished'
            WHEN hops.hops > 0 THEN 'training'
            ELSE 'waiting'
       END AS status,
       COALESCE(hops.hops, 0) / r.segments AS epochs_done,
       last.training_loss,
       last.training_metric,
       validated.validation_loss,
       validated.validation_metric,
       c.compile #>> '{metrics,0}' AS metric_name,
       built.parameters,
       CASE WHEN troubled.event = 'configuration failed' THEN troubled.reason END AS reason,
       r.source_table,
       r.model_table,
       r.name AS run_name,
       r.owner,
       built.engine
  FROM cerebro.run_plan r
  JOIN cerebro.configuration c USING (run, owner)
  JOIN cerebro.architecture a USING (run, owner, model_id)
  LEFT JOIN hops USING (run, owner, mst_key)
  LEFT JOIN built USING (run, owner, mst_key)
  LEFT JOIN last USING (run, owner, mst_key)
  LEFT JOIN validated USING (run, owner, mst_key)
  LEFT JOIN troubled USING (run, owner, mst_key)
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.leaderboard IS
    'The configurations of every run, best first: by validation loss where there is one, else by training loss.';

CREATE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH beat AS (
    SELECT DISTINCT ON (run, owner) run, owner, at, rows_done, rows_total
      FROM cerebro.heartbeat
     ORDER BY run, owner, at DESC
), recent AS (
    -- The speed of about the last half minute; a run that has just begun is judged by all it did.
    SELECT h.run, h.owner,
           (max(h.rows_done) - min(h.rows_done))
               / NULLIF(extract(epoch FROM max(h.at) - min(h.at))::double precision, 0) AS rows_per_second
      FROM cerebro.heartbeat h
      JOIN beat USING (run, owner)
     WHERE h.at >= beat.at - interval '30 seconds'
     GROUP BY h.run, h.owner
), units AS (
    SELECT run, owner, count(*) AS hops_done FROM cerebro.hop GROUP BY run, owner
), board AS (
    SELECT run, owner,
           count(*) FILTER (WHERE status = 'finished') AS finished,
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
            ELSE round((100.0 * COALESCE(beat.rows_done, 0) / NULLIF(beat.rows_total, 0))::numeric, 1)
       END::double precision AS percent,
       COALESCE(units.hops_done, 0) AS hops_done,
       r.epochs::bigint * r.segments * r.configurations AS hops_total,
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
       r.owner
  FROM cerebro.run_plan r
  JOIN cerebro.runs USING (run, owner)
  LEFT JOIN beat USING (run, owner)
  LEFT JOIN recent USING (run, owner)
  LEFT JOIN units USING (run, owner)
  LEFT JOIN board USING (run, owner)
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.run_progress IS 'How far each run is, how fast, and how long it will still take; live from any session.';

CREATE VIEW cerebro.hop_timeline WITH (security_barrier) AS
SELECT u.*, built.engine
  FROM (SELECT h.run, h.owner, h.segment, 'train' AS activity, h.mst_key, h.epoch, h.hop,
               NULL AS dataset, NULL::integer AS part,
               h.started_at, h.finished_at,
               extract(epoch FROM h.finished_at - h.started_at)::double precision AS seconds,
               h.rows, h.loss, h.metric,
               COALESCE((h.seconds ->> 'data')::double precision, 0) AS seconds_reading,
               COALESCE((h.seconds ->> 'load')::double precision, 0) AS seconds_state_in,
               COALESCE((h.seconds ->> 'train')::double precision, 0) AS seconds_training,
               COALESCE((h.seconds ->> 'save')::double precision, 0) AS seconds_state_out,
               COALESCE((h.seconds ->> 'build')::double precision, 0) AS seconds_building,
               -- Storing the state while the segment's trainer was at the next unit.
               COALESCE((h.seconds ->> 'behind')::double precision, 0) AS seconds_behind,
               h.worker_pid, h.trainer_pid
          FROM cerebro.hop h
         UNION ALL
        SELECT e.run, e.owner, e.segment, 'evaluate', e.mst_key, e.epoch, NULL,
               e.dataset, e.part,
               e.started_at, e.finished_at,
               extract(epoch FROM e.finished_at - e.started_at)::double precision,
               e.rows, e.loss, e.metric,
               COALESCE((e.seconds ->> 'data')::double precision, 0),
               COALESCE((e.seconds ->> 'load')::double precision, 0),
               COALESCE((e.seconds ->> 'evaluate')::double precision, 0),
               0,
               COALESCE((e.seconds ->> 'build')::double precision, 0),
               0,
               e.worker_pid, NULL
          FROM cerebro.evaluation e) u
  LEFT JOIN (SELECT run, owner, mst_key, max(detail ->> 'engine') AS engine
               FROM cerebro.event
              WHERE event = 'built'
              GROUP BY run, owner, mst_key) built USING (run, owner, mst_key)
 WHERE u.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.hop_timeline IS 'What every segment did and when: each hop and each evaluation, with the parts of its time and the engine.';

CREATE VIEW cerebro.segments_now WITH (security_barrier) AS
SELECT DISTINCT ON (a.run, a.owner, a.segment)
       a.run, a.segment, a.mst_key,
       (a.hop - 1) / r.segments + 1 AS epoch,
       a.hop,
       CASE WHEN h.hop IS NOT NULL OR r.status = 'running'
            THEN extract(epoch FROM COALESCE(h.finished_at, clock_timestamp()) - a.started_at)::double precision
       END AS seconds,
       h.hop IS NOT NULL AS done,
       a.owner
  FROM cerebro.attempt a
  JOIN cerebro.runs r USING (run, owner)
  LEFT JOIN cerebro.hop h USING (run, owner, mst_key, hop)
 WHERE a.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE')
 ORDER BY a.run, a.owner, a.segment, a.started_at DESC;
COMMENT ON VIEW cerebro.segments_now IS
    'The last hop that each segment of each run began, its seconds so far (none if it was broken off), and whether it is done.';

CREATE VIEW cerebro.run_time WITH (security_barrier) AS
WITH spent AS (
    SELECT run, owner,
           sum(seconds - seconds_behind) AS busy,
           sum(seconds_training) FILTER (WHERE activity = 'train') AS training,
           sum(seconds_training) FILTER (WHERE activity = 'evaluate') AS validation,
           sum(seconds_reading) AS reading,
           sum(seconds_building) AS building,
           sum(seconds_state_in) AS state_in,
           sum(seconds_state_out) AS state_out,
           min(started_at) AS first_unit,
           max(finished_at) AS last_unit
      FROM cerebro.hop_timeline
     GROUP BY run, owner
), whole AS (
    SELECT s.*, r.segments,
           extract(epoch FROM s.last_unit - s.first_unit)::double precision * r.segments AS available,
           GREATEST(extract(epoch FROM s.first_unit - runs.started_at)::double precision, 0) * r.segments AS starting
      FROM spent s
      JOIN cerebro.run_plan r USING (run, owner)
      JOIN cerebro.runs USING (run, owner)
), parts AS (
    SELECT w.run, w.owner, w.available + w.starting AS total, part.*
      FROM whole w
     CROSS JOIN LATERAL (VALUES
           (1, 'training',        w.training),
           (2, 'validation',      COALESCE(w.validation, 0)),
           (3, 'reading data',    w.reading),
           (4, 'building models', w.building),
           (5, 'state load',      w.state_in),
           (6, 'state emit',      w.state_out),
           (7, 'bookkeeping',     w.busy - w.training - COALESCE(w.validation, 0) - w.reading - w.building
                                         - w.state_in - w.state_out),
           (8, 'waiting',         w.available - w.busy),
           (9, 'starting',        w.starting)) AS part (place, activity, seconds)
)
SELECT run, place, activity, seconds, seconds / NULLIF(total, 0) AS share, owner
  FROM parts;
COMMENT ON VIEW cerebro.run_time IS
    'Where the segments'' time of a run went, in seconds summed over the segments and as a share of the whole.';

GRANT SELECT ON cerebro.run_plan, cerebro.runs, cerebro.learning_curve, cerebro.leaderboard, cerebro.run_progress,
                cerebro.hop_timeline, cerebro.segments_now, cerebro.run_time
             TO cerebro_user, cerebro_monitor;
