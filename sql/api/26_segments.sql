-- The views on what segments do.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro_internal._hop_timeline AS
SELECT u.run, u.owner, u.segment, u.activity, u.configuration, u.epoch, u.hop, u.dataset, u.part,
       u.started_at, u.finished_at, u.seconds, u.rows, u.loss, u.metric,
       u.seconds_reading, u.seconds_state_in, u.seconds_training, u.seconds_state_out, u.seconds_building,
       u.seconds_behind, u.worker_pid, u.trainer_pid, u.engine, u.model, u.seconds_features
  FROM (SELECT t.run, t.owner, t.segment, t.activity, t.epoch, t.hop, t.dataset, t.part, t.started_at, t.finished_at,
               extract(epoch FROM t.finished_at - t.started_at)::double precision AS seconds,
               t.rows, t.loss, t.metric,
               COALESCE((t.stages ->> 'data')::double precision, 0) AS seconds_reading,
               COALESCE((t.stages ->> 'load')::double precision, 0) AS seconds_state_in,
               COALESCE((t.stages ->> t.activity)::double precision, 0) AS seconds_training,
               COALESCE((t.stages ->> 'save')::double precision, 0) AS seconds_state_out,
               COALESCE((t.stages ->> 'build')::double precision, 0) AS seconds_building,
               COALESCE((t.stages ->> 'behind')::double precision, 0) AS seconds_behind,
               COALESCE((t.stages ->> 'features')::double precision, 0) AS seconds_features,
               t.worker_pid, t.trainer_pid, t.model,
               max(t.configuration) OVER (PARTITION BY t.run, t.owner, t.model) AS configuration,
               substr(max(t.engine) OVER (PARTITION BY t.run, t.owner, t.model), 21) AS engine
          FROM (SELECT h.run, h.owner, h.model, CASE h.kind WHEN 'average' THEN h.kind ELSE 'train' END AS activity,
                       h.segment, h.epoch, h.hop, NULL AS dataset, NULL::integer AS part,
                       h.started_at, h.finished_at, h.rows, h.loss, h.metric, h.seconds AS stages,
                       h.worker_pid, h.trainer_pid, NULL::integer AS configuration, NULL AS engine
                  FROM cerebro_internal._visible_hop h
                 UNION ALL
                SELECT e.run, e.owner, e.model, 'evaluate', e.segment, e.epoch, NULL, e.dataset,
                       e.part, e.started_at, e.finished_at, COALESCE(e.sampled, e.rows), e.loss, e.metric,
                       e.seconds, e.worker_pid, NULL, NULL, NULL
                  FROM cerebro_internal._visible_evaluation e
                 UNION ALL
                SELECT m.run, m.owner, m.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, m.configuration, NULL
                  FROM cerebro_internal._visible_model m
                 UNION ALL
                SELECT b.run, b.owner, b.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL,
                       -- A model that went on with another engine has a second event.
                       lpad(b.event_id::text, 20, '0') || (b.detail ->> 'engine')
                  FROM cerebro_internal._visible_event b
                 WHERE b.model IS NOT NULL AND b.event = 'built') t) u
 WHERE u.activity IS NOT NULL
       AND u.configuration IS NOT NULL;  -- users can write rows about models that do not exist
COMMENT ON VIEW cerebro_internal._hop_timeline IS
'What the current user may see of what segments did, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.hop_timeline WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, segment, activity, configuration, epoch, hop, dataset, part, started_at,
       finished_at, seconds, rows, loss, metric AS first_metric, seconds_reading, seconds_state_in, seconds_training,
       seconds_state_out, seconds_building, seconds_behind, worker_pid, trainer_pid, engine, model, seconds_features
  FROM cerebro_internal._hop_timeline;
COMMENT ON VIEW cerebro.hop_timeline IS
'What each segment did and when: one row per committed visit or evaluation, with its duration in parts. The visits '
'of a fusion group begin together; the parts of the group''s duration are divided equally among them.';
COMMENT ON COLUMN cerebro.hop_timeline.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.hop_timeline.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.hop_timeline.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.hop_timeline.activity IS
'train (a visit), evaluate, or average (of the states of a model''s replicas, in runs of madlib_keras_fit).';
COMMENT ON COLUMN cerebro.hop_timeline.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.hop_timeline.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.hop_timeline.hop IS
'Number of the visit, or of the average, within the model, from 1; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.dataset IS
'Data set that was evaluated: training or validation; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.part IS 'Part of the data set that was evaluated, from 0; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.started_at IS 'When the visit or evaluation started.';
COMMENT ON COLUMN cerebro.hop_timeline.finished_at IS 'When the visit or evaluation was recorded, its state stored.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds IS 'Seconds from started_at to finished_at.';
COMMENT ON COLUMN cerebro.hop_timeline.rows IS 'Number of rows trained on or evaluated.';
COMMENT ON COLUMN cerebro.hop_timeline.loss IS 'Mean loss over these rows.';
COMMENT ON COLUMN cerebro.hop_timeline.first_metric IS
'First metric over the rows of the epoch so far; of an evaluation over all parts, at the part that was evaluated last.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_reading IS 'Seconds spent on reading rows into the row cache.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_in IS 'Seconds spent on fetching and loading the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_training IS 'Seconds of computation: training, or evaluating.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_out IS 'Seconds spent on saving and storing the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_building IS 'Seconds spent on building and compiling the model.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_behind IS
'Seconds in which the state was stored while the trainer already worked on the next unit, or was free for it. These '
'seconds may overlap with that unit.';
COMMENT ON COLUMN cerebro.hop_timeline.worker_pid IS 'Process id of the worker session.';
COMMENT ON COLUMN cerebro.hop_timeline.trainer_pid IS 'Process id of the trainer; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.engine IS 'Engine that trains the model: tensorflow, jax or torch.';
COMMENT ON COLUMN cerebro.hop_timeline.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_features IS
'Seconds spent on computing the features of frozen layers (option reuse).';

CREATE OR REPLACE VIEW cerebro.segments_now WITH (security_barrier) AS
WITH visit AS (
    SELECT run, owner, model, hop, segment, max(started_at) AS started_at, max(finished_at) AS finished_at
      FROM (SELECT run, owner, model, hop, segment, started_at, NULL::timestamptz AS finished_at
              FROM cerebro_internal._visible_attempt
             UNION ALL
            SELECT run, owner, model, hop, segment, NULL, finished_at
              FROM cerebro_internal._visible_hop) u
     GROUP BY run, owner, model, hop, segment
    HAVING max(started_at) IS NOT NULL
), latest AS (
    SELECT DISTINCT ON (run, owner, segment) run, owner, model, hop, segment, started_at, finished_at
      FROM visit
     ORDER BY run, owner, segment, started_at DESC, finished_at IS NOT NULL, model
)
SELECT run, l.segment, m.configuration,
       (l.hop - 1) / COALESCE(cardinality(m.visits), l.segments) + 1 AS epoch,
       l.hop,
       CASE WHEN l.finished_at IS NOT NULL OR l.status = 'running'
            THEN extract(epoch FROM COALESCE(l.finished_at, clock_timestamp()) - l.started_at)::double precision
       END AS seconds,
       l.finished_at IS NOT NULL AS done,
       pg_get_userbyid(owner) AS owner,
       model
  -- No WITH, which would keep a condition on the run from the rows: cerebro_internal._runs asks for sessions and locks.
  FROM (SELECT run, owner, model, hop, segment, started_at, finished_at,
               max(segments) OVER of_run AS segments, max(status) OVER of_run AS status
          FROM (SELECT run, owner, model, hop, segment, started_at, finished_at, NULL::integer AS segments,
                       NULL::text AS status
                  FROM latest
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, segments, status
                  FROM cerebro_internal._runs) u
        WINDOW of_run AS (PARTITION BY run, owner)) l
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(l.hop, l.status, m.configuration) = 3;
COMMENT ON VIEW cerebro.segments_now IS
'The latest visit that each segment of each run has started. If several models train in one order, together or one '
'after the other, the first of them stands for all. A visit of several segments at the same time (option parallel) '
'stands at the one that commits it.';
COMMENT ON COLUMN cerebro.segments_now.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.segments_now.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.segments_now.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.segments_now.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.hop IS 'Number of the visit within the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.seconds IS
'Duration of the visit in seconds, so far if it is still under way; NULL if the visit was broken off.';
COMMENT ON COLUMN cerebro.segments_now.done IS 'True if the visit is committed.';
COMMENT ON COLUMN cerebro.segments_now.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.segments_now.model IS 'Number of the model within the run, from 1.';

CREATE OR REPLACE VIEW cerebro.run_time WITH (security_barrier) AS
WITH spent AS (
    SELECT run, owner,
           sum(seconds - seconds_behind) AS busy,
           sum(seconds_training) FILTER (WHERE activity = 'train') AS training,
           sum(seconds_training) FILTER (WHERE activity = 'evaluate') AS validation,
           sum(seconds_reading) AS reading,
           sum(seconds_building) AS building,
           sum(seconds_state_in) AS state_in,
           sum(seconds_state_out) AS state_out,
           sum(seconds_features) AS features,
           min(started_at) AS first_unit,
           max(finished_at) AS last_unit,
           min(begun) AS begun,
           max(segments) AS segments
      FROM (SELECT run, owner, activity, seconds, seconds_behind, seconds_training, seconds_reading, seconds_building,
                   seconds_state_in, seconds_state_out, seconds_features, started_at, finished_at,
                   NULL::timestamptz AS begun, NULL::integer AS segments
              FROM cerebro_internal._hop_timeline
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, at, NULL
              FROM cerebro_internal._visible_event
             WHERE model IS NULL AND event = 'started'
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, segments
              FROM cerebro_internal._visible_run) fact
     GROUP BY run, owner
    HAVING count(activity) > 0 AND max(segments) > 0
), whole AS (
    SELECT s.*,
           extract(epoch FROM s.last_unit - s.first_unit)::double precision * s.segments AS available,
           GREATEST(extract(epoch FROM s.first_unit - s.begun)::double precision, 0) * s.segments AS starting
      FROM spent s
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
                                         - w.state_in - w.state_out - w.features),
           (8, 'waiting',         w.available - w.busy),
           (9, 'starting',        w.starting),
           (10, 'features',       w.features)) AS part (position, activity, seconds)
     WHERE part.position < 10 OR part.seconds > 0
)
SELECT run, position, activity, seconds, seconds / NULLIF(total, 0) AS share, pg_get_userbyid(owner) AS owner
  FROM parts;
COMMENT ON VIEW cerebro.run_time IS
'How the segments of a run spent their time: one row per activity, summed over all segments.';
COMMENT ON COLUMN cerebro.run_time.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_time.position IS 'Position of the activity in the list, from 1, for sorting.';
COMMENT ON COLUMN cerebro.run_time.activity IS
'training, validation, reading data, building models, state load (fetching and loading states), state emit (saving '
'and storing states), bookkeeping (the rest of a unit), waiting (between units), starting (before the first unit) '
'or, if some were computed, features (of frozen layers; see the option reuse).';
COMMENT ON COLUMN cerebro.run_time.seconds IS 'Seconds, summed over the segments.';
COMMENT ON COLUMN cerebro.run_time.share IS 'Share of the run''s total segment time, from 0 to 1.';
COMMENT ON COLUMN cerebro.run_time.owner IS 'The user who owns the run.';
