-- The views on what models have learned.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.learning_curve WITH (security_barrier) AS
WITH trained AS (
    SELECT h.run, h.owner, h.model, h.epoch,
           LEAST(sum(h.rows), 1e18)::bigint AS rows,
           sum(h.loss * h.rows) / sum(h.rows) AS training_loss,
           sum(h.metric * h.rows) / sum(h.rows) AS training_metric,
           max(h.finished_at) AS trained_at,
           sum((h.seconds ->> 'train')::double precision) AS training_seconds
      FROM cerebro.hop h
     GROUP BY h.run, h.owner, h.model, h.epoch
    HAVING sum(h.rows) > 0
), validated AS (
    SELECT e.run, e.owner, e.model, e.epoch,
           sum(e.loss * e.rows) / sum(e.rows) AS validation_loss,
           sum(e.metric * e.rows) / sum(e.rows) AS validation_metric
      FROM cerebro.evaluation e
      JOIN cerebro.run r USING (run, owner)
     WHERE e.dataset = 'validation'
     GROUP BY e.run, e.owner, e.model, e.epoch, r.validation_layout
    -- Validation rows keep the order of their table, so some parts are no sample of the whole: there is no figure until
    -- all parts are evaluated.
    HAVING sum(e.rows) > 0 AND sum(e.rows) >= (r.validation_layout ->> 'rows')::bigint
)
SELECT t.run, t.owner, m.mst_key, t.epoch,
       t.training_loss, t.training_metric,
       v.validation_loss, v.validation_metric,
       c.compile #>> '{metrics,0}' AS metric_name,
       t.rows, t.training_seconds, t.trained_at,
       t.model
  FROM trained t
  JOIN cerebro.model m USING (run, owner, model)
  JOIN cerebro.configuration c USING (run, owner, mst_key)
  LEFT JOIN validated v USING (run, owner, model, epoch)
 WHERE t.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.learning_curve IS
'Loss and metric of each model after each epoch.';
COMMENT ON COLUMN cerebro.learning_curve.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.learning_curve.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.learning_curve.mst_key IS 'Configuration: key of its row in the model selection table.';
COMMENT ON COLUMN cerebro.learning_curve.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.training_loss IS
'Mean loss over the epoch''s rows, measured while training, as Keras prints it.';
COMMENT ON COLUMN cerebro.learning_curve.training_metric IS
'Mean of the first metric over the epoch''s rows, measured while training; NULL: no metric is configured.';
COMMENT ON COLUMN cerebro.learning_curve.validation_loss IS
'Loss on the validation table after the epoch; NULL until all of its parts are evaluated, and for epochs without '
'evaluation.';
COMMENT ON COLUMN cerebro.learning_curve.validation_metric IS
'First metric on the validation table after the epoch; NULL as validation_loss.';
COMMENT ON COLUMN cerebro.learning_curve.metric_name IS 'Name of the first metric in compile_params.';
COMMENT ON COLUMN cerebro.learning_curve.rows IS
'Number of rows trained in the epoch. Below the size of the table while the epoch is under way.';
COMMENT ON COLUMN cerebro.learning_curve.training_seconds IS
'Seconds of computation in the epoch, summed over its visits; without reading rows and moving states.';
COMMENT ON COLUMN cerebro.learning_curve.trained_at IS 'When the last committed visit of the epoch ended.';
COMMENT ON COLUMN cerebro.learning_curve.model IS 'Number of the model within the run, from 1.';

CREATE OR REPLACE VIEW cerebro.leaderboard WITH (security_barrier) AS
WITH last AS (
    SELECT DISTINCT ON (run, owner, model) *
      FROM cerebro.learning_curve
     ORDER BY run, owner, model, epoch DESC
), validated AS (
    SELECT DISTINCT ON (run, owner, model) run, owner, model, validation_loss, validation_metric
      FROM cerebro.learning_curve
     WHERE validation_loss IS NOT NULL
     ORDER BY run, owner, model, epoch DESC
), troubled AS (
    SELECT DISTINCT ON (run, owner, model) run, owner, model, event, detail ->> 'reason' AS reason
      FROM cerebro.event
     WHERE model IS NOT NULL AND event IN ('model failed', 'model revived')
     ORDER BY run, owner, model, event_id DESC
), stopped AS (
    SELECT DISTINCT ON (run, owner, model) run, owner, model, reason
      FROM cerebro.decision
     WHERE decision = 'stop'
     ORDER BY run, owner, model, epoch
), built AS (
    SELECT run, owner, model, max((detail ->> 'parameters')::bigint) AS parameters, max(detail ->> 'engine') AS engine
      FROM cerebro.event
     WHERE event = 'built'
     GROUP BY run, owner, model
), hops AS (
    SELECT run, owner, model, count(*) AS hops
      FROM cerebro.hop
     GROUP BY run, owner, model
)
SELECT r.run,
       rank() OVER (PARTITION BY r.run, r.owner
                    ORDER BY (troubled.event IS NOT DISTINCT FROM 'model failed'),
                             COALESCE(validated.validation_loss, last.training_loss) NULLS LAST) AS rank,
       c.mst_key,
       c.model_id,
       a.name AS model_name,
       c.compile_params,
       c.fit_params,
       CASE WHEN troubled.event = 'model failed' THEN 'failed'
            WHEN stopped.model IS NOT NULL THEN 'stopped'
            WHEN COALESCE(hops.hops, 0) >= r.epochs::bigint * COALESCE(cardinality(m.visits), r.segments)
            THEN 'finished'
            WHEN hops.hops > 0 THEN 'training'
            ELSE 'waiting'
       END AS status,
       COALESCE(hops.hops, 0) / COALESCE(cardinality(m.visits), r.segments) AS epochs_done,
       last.training_loss,
       last.training_metric,
       validated.validation_loss,
       validated.validation_metric,
       c.compile #>> '{metrics,0}' AS metric_name,
       built.parameters,
       CASE WHEN troubled.event = 'model failed' THEN troubled.reason ELSE stopped.reason END AS reason,
       r.source_table,
       r.model_table,
       r.name AS run_name,
       r.owner,
       built.engine,
       m.model
  FROM cerebro.run_plan r
  JOIN cerebro.model m USING (run, owner)
  JOIN cerebro.configuration c USING (run, owner, mst_key)
  JOIN cerebro.architecture a USING (run, owner, model_id)
  LEFT JOIN hops USING (run, owner, model)
  LEFT JOIN built USING (run, owner, model)
  LEFT JOIN last USING (run, owner, model)
  LEFT JOIN validated USING (run, owner, model)
  LEFT JOIN troubled USING (run, owner, model)
  LEFT JOIN stopped USING (run, owner, model)
 WHERE r.owner = current_user OR pg_has_role(current_user, 'cerebro_monitor', 'USAGE');
COMMENT ON VIEW cerebro.leaderboard IS
'The models of each run with their latest losses and metrics. Rank 1 is the best model.';
COMMENT ON COLUMN cerebro.leaderboard.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.leaderboard.rank IS
'Rank within the run by loss, lowest first: the validation loss if there is one, else the training loss. Failed '
'models come last.';
COMMENT ON COLUMN cerebro.leaderboard.mst_key IS 'Configuration: key of its row in the model selection table.';
COMMENT ON COLUMN cerebro.leaderboard.model_id IS 'Architecture: key of its row in the table of architectures.';
COMMENT ON COLUMN cerebro.leaderboard.model_name IS 'Name of the architecture.';
COMMENT ON COLUMN cerebro.leaderboard.compile_params IS
'Compile parameters of the configuration, as in the model selection table.';
COMMENT ON COLUMN cerebro.leaderboard.fit_params IS
'Fit parameters of the configuration, as in the model selection table.';
COMMENT ON COLUMN cerebro.leaderboard.status IS
'waiting (no visit committed yet), training, finished (all epochs done), stopped (the search policy ended it early)'
' or failed.';
COMMENT ON COLUMN cerebro.leaderboard.epochs_done IS 'Number of completed epochs.';
COMMENT ON COLUMN cerebro.leaderboard.training_loss IS 'Training loss of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.training_metric IS
'Training metric of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.validation_loss IS 'Latest validation loss.';
COMMENT ON COLUMN cerebro.leaderboard.validation_metric IS 'Validation metric of the same epoch as validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.metric_name IS 'Name of the first metric in compile_params.';
COMMENT ON COLUMN cerebro.leaderboard.parameters IS
'Number of parameters (weights) of the model; NULL until it is built.';
COMMENT ON COLUMN cerebro.leaderboard.reason IS 'Why the model failed or was stopped.';
COMMENT ON COLUMN cerebro.leaderboard.source_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.leaderboard.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.leaderboard.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.leaderboard.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.leaderboard.engine IS
'Engine that trains the model: tensorflow, jax or torch; NULL until the model is built.';
COMMENT ON COLUMN cerebro.leaderboard.model IS 'Number of the model within the run, from 1.';
