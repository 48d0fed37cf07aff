-- The views on what models have learned.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro_internal._epochs AS
WITH unit AS (
    -- Sums of bigint are numeric, which takes longer.
    SELECT h.run, h.owner, h.model, h.epoch,
           h.rows::double precision AS trained, h.loss * h.rows AS training_loss,
           -- The metrics of a visit are those of the epoch so far: metrics such as a recall are no means of the visits.
           ARRAY[h.hop, h.metric] AS training_metric, h.metric_name,
           (h.seconds ->> 'train')::double precision AS seconds, h.finished_at,
           NULL::double precision AS validated, NULL::double precision AS weight,
           NULL::double precision AS validation_loss, NULL::double precision AS validation_metric
      FROM cerebro_internal._visible_hop h
     UNION ALL
    -- The metric of all parts is recorded with the part that was evaluated last.
    SELECT e.run, e.owner, e.model, e.epoch, NULL, NULL, NULL, NULL, NULL, NULL, e.rows,
           COALESCE(e.weight, e.rows), e.loss * COALESCE(e.weight, e.rows), e.metric
      FROM cerebro_internal._visible_evaluation e
     WHERE e.dataset = 'validation'
)
SELECT run, owner, model, epoch,
       sum(trained) AS trained, sum(training_loss) / sum(trained) AS training_loss,
       (max(training_metric))[2] AS training_metric, max(metric_name) AS metric_name,
       sum(seconds) AS seconds, max(finished_at) AS finished_at,
       sum(validated) AS validated, sum(validation_loss) / NULLIF(sum(weight), 0) AS validation_loss,
       max(validation_metric) AS validation_metric, count(trained) AS visits
  FROM unit
 GROUP BY run, owner, model, epoch
HAVING sum(trained) > 0;
COMMENT ON VIEW cerebro_internal._epochs IS
'What the log has of each epoch of each model that the current user may see, with the numbers of the owners. The other '
'views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro_internal._learning_curve AS
WITH model AS (
    SELECT run, owner, model, configuration, visits, fold, own_rows, group_number, group_value,
           max(validation_rows) OVER of_run AS validation_rows, max(segments) OVER of_run AS segments
      FROM (SELECT run, owner, model, configuration, cardinality(visits) AS visits, fold,
                   COALESCE(fold_rows, validation_rows) AS own_rows, group_number, group_value,
                   NULL::bigint AS validation_rows, NULL::integer AS segments
              FROM cerebro_internal._visible_model
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, validation_rows, segments
              FROM cerebro_internal._visible_run) u
    WINDOW of_run AS (PARTITION BY run, owner)
)
SELECT run, owner, m.configuration, t.epoch,
       t.training_loss, t.training_metric,
       -- Validation rows keep the order of their table, so some parts are no sample of the whole: there is no figure until
       -- all parts are evaluated.
       CASE WHEN t.validated >= COALESCE(m.own_rows, m.validation_rows) THEN t.validation_loss END AS validation_loss,
       CASE WHEN t.validated >= COALESCE(m.own_rows, m.validation_rows) THEN t.validation_metric END AS validation_metric,
       t.metric_name,
       LEAST(t.trained, 1e18)::bigint AS rows, t.seconds AS training_seconds, t.finished_at AS trained_at,
       model, t.visits >= COALESCE(m.visits, m.segments) AS complete, m.fold, m.group_number,
       -- A group's values are those of rows: a monitor does not see them.
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) THEN m.group_value END AS group_value
  FROM cerebro_internal._epochs t
  FULL JOIN model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration, m.segments) = 3;
COMMENT ON VIEW cerebro_internal._learning_curve IS
'The learning curves that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.learning_curve WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, configuration, epoch, training_loss, training_metric, validation_loss,
       validation_metric, metric_name, rows, training_seconds, trained_at, model, fold, group_number, group_value
  FROM cerebro_internal._learning_curve;
COMMENT ON VIEW cerebro.learning_curve IS
'Loss and metric of each model after each epoch.';
COMMENT ON COLUMN cerebro.learning_curve.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.learning_curve.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.learning_curve.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.learning_curve.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.training_loss IS
'Mean loss over the epoch''s rows, measured while training, as Keras prints it.';
COMMENT ON COLUMN cerebro.learning_curve.training_metric IS
'First metric over the epoch''s rows, measured while training; NULL: no metric is configured. cerebro.metrics has all '
'metrics.';
COMMENT ON COLUMN cerebro.learning_curve.validation_loss IS
'Loss on the validation table after the epoch; NULL until all of its parts are evaluated, and for epochs without '
'evaluation.';
COMMENT ON COLUMN cerebro.learning_curve.validation_metric IS
'First metric on the validation table after the epoch; NULL as validation_loss.';
COMMENT ON COLUMN cerebro.learning_curve.metric_name IS 'Name of the first metric, as Keras reports it.';
COMMENT ON COLUMN cerebro.learning_curve.rows IS
'Number of rows trained in the epoch. Below the size of the table while the epoch is under way.';
COMMENT ON COLUMN cerebro.learning_curve.training_seconds IS
'Seconds of computation in the epoch, summed over its visits; without reading rows and moving states.';
COMMENT ON COLUMN cerebro.learning_curve.trained_at IS 'When the last committed visit of the epoch ended.';
COMMENT ON COLUMN cerebro.learning_curve.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';
COMMENT ON COLUMN cerebro.learning_curve.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.learning_curve.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';

CREATE OR REPLACE VIEW cerebro_internal._leaderboard AS
WITH fact AS (
    SELECT run, owner, model, configuration, cardinality(visits) AS visits, parent,
           COALESCE(fold_rows, validation_rows) AS own_rows, NULL::integer AS hops,
           NULL::double precision[] AS trained, NULL::double precision[] AS validated,
           NULL::double precision[] AS least_trained, NULL::double precision[] AS least_validated,
           NULL::double precision[] AS latest, NULL::double precision[] AS least, NULL::double precision[] AS most,
           NULL::double precision[] AS kept,
           NULL::text[] AS trouble, NULL::text[] AS stop, NULL::bigint AS weights, NULL::text AS engine,
           NULL::text AS metric_name, NULL::integer AS rung, fold,
           group_number, group_value
      FROM cerebro_internal._visible_model
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_hop
     UNION ALL
    -- As in _learning_curve, an epoch has figures when all of its rows are trained or evaluated. How many these are is known
    -- of the model, and no epoch has more: so the arrays begin with the number, and one of all rows is the greatest, or least.
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, ARRAY[epoch, training_loss, training_metric],
           CASE WHEN validated > 0 THEN ARRAY[validated, epoch, validation_loss, validation_metric] END,
           -- NaN is larger than all other numbers.
           CASE WHEN training_loss > '-Infinity' AND training_loss < 'Infinity'
                THEN ARRAY[-visits, training_loss, epoch] END,
           CASE WHEN validation_loss > '-Infinity' AND validation_loss < 'Infinity'
                THEN ARRAY[-validated, validation_loss, epoch] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, metric_name, NULL, NULL, NULL, NULL
      FROM cerebro_internal._epochs
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           ARRAY[epoch, value], ARRAY[value, epoch], ARRAY[value, -epoch], CASE WHEN kept THEN ARRAY[epoch, value] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_objective
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN event <> 'built'
                THEN ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'reason'] COLLATE "C" END,
           NULL,
           CASE WHEN event = 'built' THEN (detail ->> 'parameters')::bigint END,
           -- A model that went on with another engine has a second event.
           CASE WHEN event = 'built' THEN lpad(event_id::text, 20, '0') || (detail ->> 'engine') END,
           NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_event
     WHERE model IS NOT NULL AND event IN ('built', 'model failed', 'model revived')
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN decision <> 'continue'
                THEN ARRAY[lpad(decision_id::text, 20, '0'), decision, reason, policy] COLLATE "C" END,
           NULL, NULL, NULL,
           -- Policies with rungs give such reasons.
           CASE WHEN decision <> 'go on'
                THEN substring(reason FROM '^(?:waits at|passes) rung ([0-9]{1,9})')::integer END, NULL, NULL, NULL
      FROM cerebro_internal._visible_decision
     WHERE model IS NOT NULL
       AND (decision IN ('stop', 'go on') OR decision = 'continue' AND reason LIKE 'passes rung %')
), model AS (
    -- The greatest array is that of the latest epoch, event or decision: the number comes first in it. Of equal values of the
    -- objective the one of the earlier epoch is best.
    SELECT run, owner, model, max(configuration) AS configuration, max(visits) AS visits, max(parent) AS parent,
           max(own_rows) AS own_rows, COALESCE(sum(hops), 0) AS hops,
           max(trained) AS trained, max(validated) AS validated,
           min(least_trained) AS least_trained, min(least_validated) AS least_validated,
           max(latest) AS latest, min(least) AS least, max(most) AS most, max(kept) AS kept,
           max(trouble) AS trouble, CASE WHEN (max(stop))[2] = 'stop' THEN max(stop) END AS stop,
           max(weights) AS weights, substr(max(engine), 21) AS engine, max(metric_name) AS metric_name,
           max(rung) AS rung, max(fold) AS fold, max(group_number) AS group_number, max(group_value) AS group_value,
           COALESCE((max(trouble))[2] = 'model failed', false) AS has_failed
      FROM fact
     GROUP BY run, owner, model
    HAVING max(configuration) IS NOT NULL  -- users can write rows about models that do not exist
), configured AS (
    -- The configurations, each with its architecture's name and what its run was asked to do.
    SELECT run, owner, configuration, model_id, parameters, chosen,
           COALESCE(max(architecture) OVER (PARTITION BY run, owner, model_id), 'architecture ' || model_id) AS architecture,
           max(epochs) OVER of_run AS epochs, max(segments) OVER of_run AS segments,
           max(source_table) OVER of_run AS source_table, max(validation_table) OVER of_run AS validation_table,
           max(model_table) OVER of_run AS model_table, max(run_name) OVER of_run AS run_name,
           max(objective) OVER of_run AS objective, max(direction) OVER of_run AS direction, max(keep) OVER of_run AS keep,
           max(validation_rows) OVER of_run AS validation_rows
      FROM (SELECT run, owner, configuration, model_id, parameters, chosen,
                   NULL::text AS architecture, NULL::integer AS epochs, NULL::integer AS segments,
                   NULL::text AS source_table, NULL::text AS validation_table, NULL::text AS model_table,
                   NULL::text AS run_name, NULL::text AS objective, NULL::text AS direction, NULL::text AS keep,
                   NULL::bigint AS validation_rows
              FROM cerebro_internal._visible_configuration
             UNION ALL
            SELECT run, owner, NULL, model_id, NULL, NULL, name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
              FROM cerebro_internal._visible_architecture
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, epochs, segments, source_table, validation_table,
                   model_table, name, objective, direction, keep, validation_rows
              FROM cerebro_internal._plan) u
    WINDOW of_run AS (PARTITION BY run, owner)
), joined AS (
    SELECT run, owner, m.model, configuration, m.visits, m.parent, m.hops, m.trained, m.trouble, m.stop,
           m.weights, m.engine, m.metric_name, m.rung, m.fold, m.group_number, m.group_value, m.has_failed,
           m.latest, m.least, m.most, m.kept,
           CASE WHEN m.validated[1] >= COALESCE(m.own_rows, c.validation_rows) THEN m.validated[2:4] END AS validated,
           CASE WHEN -m.least_validated[1] >= COALESCE(m.own_rows, c.validation_rows) THEN m.least_validated[2:3]
           END AS least_validated,
           CASE WHEN -m.least_trained[1] >= COALESCE(m.visits, c.segments) THEN m.least_trained[2:3] END AS least_trained,
           c.architecture, c.parameters, c.chosen, c.epochs, c.segments, c.source_table, c.validation_table,
           c.model_table, c.run_name, c.objective AS asked, c.direction, c.keep
      FROM model m
      FULL JOIN configured c USING (run, owner, configuration)
     WHERE num_nonnulls(m.model, c.model_id, c.segments) = 3
), told AS (
    SELECT run, owner, model, configuration, visits, parent, hops, trained, validated, trouble, stop,
           weights, engine, metric_name, rung, fold, group_number, group_value, has_failed,
           architecture, parameters, chosen, epochs, segments, source_table, model_table, run_name,
           owner = (SELECT quote_ident(current_user)::regrole) AS own,
           asked,
           COALESCE(asked, CASE WHEN validation_table IS NULL THEN 'loss' ELSE 'val_loss' END) AS objective,
           CASE WHEN direction = 'max' THEN -1 ELSE 1 END AS sign,
           CASE WHEN asked IS NULL THEN CASE WHEN validation_table IS NULL THEN trained[2] ELSE validated[2] END
                WHEN keep = 'best' THEN kept[2]
                ELSE latest[2]
           END AS objective_value,
           keep,
           -- With folds that say which epoch is best: that epoch, so far, of the model on all rows.
           (max(CASE WHEN keep = 'best' AND fold IS NULL AND parent IS NULL THEN kept END)
                OVER (PARTITION BY run, owner, configuration, group_number))[1] AS common_epoch,
           CASE WHEN asked IS NULL THEN CASE WHEN validation_table IS NULL THEN least_trained ELSE least_validated END
                WHEN direction = 'max' THEN ARRAY[most[1], -most[2]]
                ELSE least
           END AS best
      FROM joined
), aligned AS (
    -- The models of folds are compared after the same epoch.
    SELECT run, owner, model, configuration, visits, parent, hops, trained, validated, trouble, stop,
           weights, engine, metric_name, rung, fold, group_number, group_value, has_failed,
           architecture, parameters, chosen, epochs, segments, source_table, model_table, run_name,
           own, asked, objective, sign, best, keep,
           CASE WHEN fold > 0 AND parent IS NULL AND common_epoch IS NOT NULL
                THEN (SELECT max(o.value)
                        FROM cerebro_internal._visible_objective o
                       WHERE o.run = told.run AND o.owner = told.owner AND o.model = told.model
                         AND o.epoch = told.common_epoch)
                ELSE objective_value
           END AS objective_value
      FROM told
), folded AS (
    -- Of each configuration and group, the figures of the folds. A copy of a model is none of them: it goes on from a state.
    SELECT told.*,
           bool_or(fold IS NOT NULL) OVER (PARTITION BY run, owner) AS has_folds,
           fold IS NULL AND parent IS NULL AS on_all_rows,
           count(fold) FILTER (WHERE parent IS NULL) OVER configuration AS folds,
           count(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS valued,
           avg(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS mean,
           stddev_samp(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS spread,
           count(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS evaluated,
           avg(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS loss,
           avg(validated[3]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS metric
      FROM aligned told
    WINDOW configuration AS (PARTITION BY run, owner, configuration, group_number)
), figured AS (
    SELECT f.*,
           CASE WHEN NOT (has_folds AND on_all_rows) OR keep = 'best' THEN objective_value
                WHEN valued = folds THEN mean
           END AS value,
           CASE WHEN has_folds AND on_all_rows AND valued = folds AND (keep IS DISTINCT FROM 'best'
                                                                       OR objective_value IS NOT NULL)
                THEN spread
           END AS spread_of_folds,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[2] WHEN evaluated = folds THEN loss END
               AS validation_loss,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[3] WHEN evaluated = folds THEN metric END
               AS validation_metric
      FROM folded f
)
SELECT t.run,
       (row_number() OVER (PARTITION BY t.run, t.owner, t.group_number
                           ORDER BY t.fold IS NOT NULL,
                                    t.has_failed,
                                    CASE WHEN t.asked IS NULL AND NOT t.has_folds
                                         THEN COALESCE(t.validated[2], t.trained[2])
                                         ELSE t.sign * t.value
                                    END NULLS LAST,
                                    t.configuration, t.model))::integer AS rank,
       t.configuration,
       t.architecture,
       t.parameters,
       CASE WHEN t.has_failed THEN 'failed'
            WHEN t.stop IS NOT NULL THEN 'stopped'
            WHEN t.hops >= t.epochs::bigint * COALESCE(t.visits, t.segments) THEN 'finished'
            WHEN t.hops > 0 THEN 'training'
            ELSE 'waiting'
       END AS status,
       t.hops / COALESCE(t.visits, t.segments) AS epochs_done,
       t.trained[2] AS training_loss,
       t.trained[3] AS training_metric,
       t.validation_loss,
       t.validation_metric,
       t.metric_name,
       t.weights,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them.
       CASE WHEN t.has_failed THEN CASE WHEN t.own THEN t.trouble[3] END
            WHEN t.own OR t.stop[4] <> 'rule' THEN t.stop[3]
       END AS reason,
       t.source_table,
       t.model_table,
       t.run_name,
       t.owner,
       t.engine,
       t.model,
       t.objective,
       t.value AS objective_value,
       t.best[2]::integer AS best_epoch,
       t.best[1] AS best_value,
       t.parent,
       t.stop[4] AS stopped_by,
       t.rung,
       t.chosen,
       t.fold,
       t.spread_of_folds AS spread,
       t.group_number,
       CASE WHEN t.own THEN t.group_value END AS group_value
  FROM figured t;
COMMENT ON VIEW cerebro_internal._leaderboard IS
'The models that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.leaderboard WITH (security_barrier) AS
SELECT run, rank, configuration, architecture, parameters, status, epochs_done, training_loss, training_metric,
       validation_loss, validation_metric, metric_name, weights, reason, source_table, model_table,
       run_name, pg_get_userbyid(owner) AS owner, engine, model, objective, objective_value, best_epoch, best_value, parent,
       stopped_by, rung, chosen, fold, spread, group_number, group_value,
       CASE WHEN parameters ->> 'loss' IN ('mse', 'mean_squared_error')
            THEN sqrt(abs(CASE objective WHEN 'val_loss' THEN objective_value ELSE validation_loss END))
       END AS validation_rmse,
       @name_of model_table@ AS model_name
  FROM cerebro_internal._leaderboard;
COMMENT ON VIEW cerebro.leaderboard IS
'The models of each run with their latest losses and metrics. Rank 1 is the best model that the run trained; an ensemble is '
'made of several, and cerebro.runs and cerebro.models name it. In runs with groups, the models of '
'each group have ranks of their own, and so have the models on all rows.';
COMMENT ON COLUMN cerebro.leaderboard.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.leaderboard.rank IS
'Rank within the run, or within the group, by objective_value, the best first. In runs without the option objective by the latest loss: the '
'validation loss if there is one, else the training loss. Of equal models the one with the smaller number comes first, so '
'no rank occurs twice within a run or a group. Failed models come last. In runs with folds, the models on all '
'rows (of the group) come first, by the mean over the folds of their configuration; then come the models of single folds.';
COMMENT ON COLUMN cerebro.leaderboard.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.leaderboard.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.leaderboard.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.leaderboard.status IS
'waiting (no visit committed yet), training, finished (all epochs done), stopped (a decision ended it early; it may go on)'
' or failed.';
COMMENT ON COLUMN cerebro.leaderboard.epochs_done IS 'Number of completed epochs.';
COMMENT ON COLUMN cerebro.leaderboard.training_loss IS 'Training loss of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.training_metric IS
'Training metric of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.validation_loss IS
'Latest validation loss; of a model of a fold or group, the loss on its rows for validation. In a run with folds, of a model '
'on all rows (of the group), the mean over the folds.';
COMMENT ON COLUMN cerebro.leaderboard.validation_metric IS 'Validation metric of the same epoch as validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.metric_name IS
'Name of the first metric, as Keras reports it; NULL before the first committed visit. cerebro.metrics has all metrics.';
COMMENT ON COLUMN cerebro.leaderboard.weights IS
'Number of weights of the model; NULL until it is built.';
COMMENT ON COLUMN cerebro.leaderboard.reason IS 'Why the model failed or was stopped.';
COMMENT ON COLUMN cerebro.leaderboard.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.leaderboard.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.leaderboard.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.leaderboard.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.leaderboard.engine IS
'Engine that trains the model: tensorflow, jax or torch; NULL until the model is built.';
COMMENT ON COLUMN cerebro.leaderboard.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.leaderboard.objective IS
'Name of the metric that says which model is best: the option objective, else val_loss (with a validation table) or loss.';
COMMENT ON COLUMN cerebro.leaderboard.objective_value IS
'Value of the objective in the epoch whose state the model tables get: the latest one, or with the option keep => best the '
'best one. NULL: no epoch has a value yet. In a run with folds, of a model on all rows (of the group), the mean over the '
'folds; NULL: not every fold has a value. With folds and keep => best, all models of a configuration have their values after '
'one epoch: that with the best mean.';
COMMENT ON COLUMN cerebro.leaderboard.best_epoch IS
'Epoch with the best value of the objective so far; of equal values the earlier epoch. In a run with folds and keep => best, '
'of a model on all rows, that with the best mean over the folds; of a model of a fold, its own.';
COMMENT ON COLUMN cerebro.leaderboard.best_value IS 'Value of the objective in best_epoch.';
COMMENT ON COLUMN cerebro.leaderboard.parent IS
'Number of the model from whose state the model began; NULL: it began from a state of its own.';
COMMENT ON COLUMN cerebro.leaderboard.rung IS
'Last rung that the model has reached, from 1, in a search with rungs (asha, halving, hyperband); NULL: none.';
COMMENT ON COLUMN cerebro.leaderboard.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.leaderboard.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';
COMMENT ON COLUMN cerebro.leaderboard.spread IS
'In a run with folds, of a model on all rows (of the group): the standard deviation (of a sample) of objective_value over the '
'folds.';
COMMENT ON COLUMN cerebro.leaderboard.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.leaderboard.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';
COMMENT ON COLUMN cerebro.leaderboard.validation_rmse IS
'If the loss is the mean squared error, its square root on the validation rows: the usual size of an error, in the units '
'of the target (of several targets, of all together). With the objective val_loss it is the root of objective_value, else '
'of validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';
COMMENT ON COLUMN cerebro.leaderboard.stopped_by IS
'Who stopped the model: the name of the search policy, rule, request or budget; NULL: it was not stopped.';

CREATE OR REPLACE VIEW cerebro.parameters WITH (security_barrier) AS
SELECT c.run, pg_get_userbyid(c.owner) AS owner, c.configuration, p.parameter,
       -- Other numbers are no double precision.
       CASE WHEN jsonb_typeof(p.value) = 'number'
            THEN CASE WHEN abs((p.value #>> '{}')::numeric) < 1e-290 THEN 0.0
                      WHEN abs((p.value #>> '{}')::numeric) < 1e290 THEN (p.value #>> '{}')::double precision
                 END
       END AS value,
       p.value #>> '{}' AS text
  FROM cerebro_internal._visible_configuration c
 CROSS JOIN LATERAL jsonb_each(c.parameters) AS p (parameter, value);
COMMENT ON VIEW cerebro.parameters IS
'The parameters of each configuration, one per row: for charts of a loss against a parameter. The leaderboard has them as '
'one document.';
COMMENT ON COLUMN cerebro.parameters.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.parameters.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.parameters.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.parameters.parameter IS
'Name of the parameter: a key of parameters in cerebro.leaderboard, such as learning_rate.';
COMMENT ON COLUMN cerebro.parameters.value IS 'Value of the parameter; NULL: it is not a number.';
COMMENT ON COLUMN cerebro.parameters.text IS 'Value of the parameter as text; a list or an object as JSON.';

CREATE OR REPLACE VIEW cerebro.cross_validation WITH (security_barrier) AS
SELECT b.run,
       min(b.rank) AS rank,
       b.configuration,
       b.architecture,
       b.parameters,
       b.objective,
       min(b.objective_value) FILTER (WHERE b.fold IS NULL) AS mean,
       min(b.spread) AS spread,
       min(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS smallest,
       max(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS largest,
       count(b.fold)::integer AS folds,
       count(b.objective_value) FILTER (WHERE b.fold IS NOT NULL AND b.status <> 'failed') AS folds_done,
       min(b.epochs_done) FILTER (WHERE b.fold IS NOT NULL) AS epochs_done,
       min(b.model) FILTER (WHERE b.fold IS NULL) AS model,
       b.chosen,
       b.owner,
       b.group_number,
       b.group_value
  FROM cerebro.leaderboard b
 WHERE b.parent IS NULL
 GROUP BY b.run, b.owner, b.configuration, b.architecture, b.parameters, b.objective, b.chosen, b.group_number, b.group_value
HAVING count(b.fold) > 0;
COMMENT ON VIEW cerebro.cross_validation IS
'The configurations of runs with folds: how good each is over the folds. Rank 1 is the best configuration. In runs with '
'groups, each configuration has a row for all rows and one for each group.';
COMMENT ON COLUMN cerebro.cross_validation.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.cross_validation.rank IS
'Rank within the run, or within the group, by mean. Configurations without a mean come last.';
COMMENT ON COLUMN cerebro.cross_validation.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.cross_validation.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.cross_validation.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.cross_validation.objective IS
'Name of the metric that says which configuration is best: the option objective, else val_loss.';
COMMENT ON COLUMN cerebro.cross_validation.mean IS
'Mean of the objective over the folds, each fold counted once; NULL: not every fold has a value.';
COMMENT ON COLUMN cerebro.cross_validation.spread IS
'Standard deviation (of a sample) of the objective over the folds; NULL as mean.';
COMMENT ON COLUMN cerebro.cross_validation.smallest IS 'Smallest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.largest IS 'Largest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.folds IS
'Number of folds; of a group, of those that have rows of the group.';
COMMENT ON COLUMN cerebro.cross_validation.folds_done IS
'Number of folds whose model has a value of the objective and has not failed.';
COMMENT ON COLUMN cerebro.cross_validation.epochs_done IS 'Number of epochs that the model of each fold has completed.';
COMMENT ON COLUMN cerebro.cross_validation.model IS
'Number of the model of the configuration that is trained on all rows, or on all rows of the group.';
COMMENT ON COLUMN cerebro.cross_validation.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.cross_validation.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.cross_validation.group_number IS
'Number of the group on whose rows the models are trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.cross_validation.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';

CREATE OR REPLACE VIEW cerebro.groups WITH (security_barrier) AS
WITH judge AS (
    -- The models that say how good the best configuration is on all rows: that on all rows, or those of its folds.
    SELECT run, owner, model, best AS configuration, best_epoch
      FROM (SELECT run, owner, model, configuration, rank, fold, parent, count(fold) OVER of_run AS folds,
                   max(CASE WHEN rank = 1 THEN configuration END) OVER of_run AS best,
                   -- Models of folds are compared after the epoch that is best in their mean.
                   COALESCE(max(CASE WHEN fold IS NULL AND parent IS NULL THEN best_epoch END)
                                OVER (PARTITION BY run, owner, configuration),
                            best_epoch) AS best_epoch
              FROM cerebro_internal._leaderboard
             WHERE group_number IS NULL
            WINDOW of_run AS (PARTITION BY run, owner)) b
     WHERE CASE WHEN folds = 0 THEN rank = 1 ELSE fold > 0 AND parent IS NULL AND configuration = best END
), whole AS (
    -- Their evaluations: those of the epoch whose state the model tables get.
    SELECT run, owner, model, configuration, of_groups
      FROM (SELECT run, owner, model, configuration, of_groups, epoch,
                   CASE WHEN keep = 'best' AND best_epoch IS NOT NULL THEN best_epoch
                        ELSE max(epoch) OVER (PARTITION BY run, owner, model)
                   END AS wanted
              FROM (SELECT run, owner, model, epoch, of_groups, max(configuration) OVER of_model AS configuration,
                           max(best_epoch) OVER of_model AS best_epoch,
                           max(keep) OVER (PARTITION BY run, owner) AS keep
                      FROM (SELECT run, owner, model, epoch, of_groups, NULL::integer AS configuration,
                                   NULL::integer AS best_epoch, NULL::text AS keep
                              FROM cerebro_internal._visible_evaluation
                             WHERE of_groups IS NOT NULL AND dataset = 'validation'
                             UNION ALL
                            SELECT run, owner, model, NULL, NULL, configuration, best_epoch, NULL FROM judge
                             UNION ALL
                            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, keep FROM cerebro_internal._plan) u
                    WINDOW of_model AS (PARTITION BY run, owner, model)) w
             WHERE configuration IS NOT NULL) e
     WHERE epoch = wanted
), figure AS (
    SELECT run, owner, model, configuration, (g.figures ->> 0)::double precision::integer AS group_number,
           (g.figures ->> 1)::double precision AS rows, (g.figures ->> 2)::double precision AS loss,
           (g.figures ->> 3)::double precision AS value, (g.figures ->> 4)::double precision AS total,
           (g.figures ->> 5)::double precision AS counted
      FROM whole
     CROSS JOIN LATERAL jsonb_array_elements(of_groups) AS g (figures)
), judged AS (
    -- A group on several segments: losses are means over rows, but not all metrics are.
    SELECT run, owner, group_number, configuration, sum(loss * rows) / NULLIF(sum(rows), 0) AS loss,
           CASE WHEN count(*) = 1 THEN max(value)
                WHEN count(total) = count(*) THEN sum(total) / NULLIF(sum(counted), 0)
           END AS value
      FROM figure
     GROUP BY run, owner, group_number, configuration, model
), fact AS (
    SELECT run, owner, group_number, NULL::integer AS model, group_rows AS rows, validation_rows,
           cardinality(visits) AS segments, NULL::text AS group_value, NULL::integer AS configuration,
           NULL::text AS architecture, NULL::text AS status, NULL::integer AS epochs_done, NULL::text AS objective,
           NULL::double precision AS objective_value, NULL::double precision AS validation_loss,
           NULL::double precision AS training_loss, NULL::integer AS whole, NULL::double precision AS whole_loss,
           NULL::double precision AS whole_metric, NULL::text AS direction, fold, NULL::bigint AS judges
      FROM cerebro_internal._visible_model
     WHERE group_number IS NOT NULL
     UNION ALL
    SELECT run, owner, group_number, model, NULL, NULL, NULL,
           group_value, configuration, architecture, status, epochs_done, objective, objective_value, validation_loss,
           training_loss, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._leaderboard
     WHERE group_number IS NOT NULL AND rank = 1
     UNION ALL
    SELECT run, owner, group_number, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           configuration, avg(loss), CASE WHEN count(value) = count(*) THEN avg(value) END, NULL, NULL, count(*)
      FROM judged
     GROUP BY run, owner, group_number, configuration
     UNION ALL
    SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, direction, NULL, NULL
      FROM cerebro_internal._plan
), grouped AS (
    SELECT run, owner, group_number, max(group_value) AS group_value, max(rows) AS rows,
           max(validation_rows) AS validation_rows, max(segments) AS segments, max(model) AS model,
           max(configuration) AS configuration, max(architecture) AS architecture, max(status) AS status,
           max(epochs_done) AS epochs_done, max(objective) AS objective, max(objective_value) AS objective_value,
           max(validation_loss) AS validation_loss, max(training_loss) AS training_loss, max(whole) AS whole,
           -- With folds, a mean over some of them says nothing.
           CASE WHEN max(judges) >= count(DISTINCT fold) THEN max(whole_loss) END AS whole_loss,
           CASE WHEN max(judges) >= count(DISTINCT fold) THEN max(whole_metric) END AS whole_metric,
           max(max(direction)) OVER (PARTITION BY run, owner) AS direction
      FROM fact
     GROUP BY run, owner, group_number
), compared AS (
    SELECT grouped.*,
           CASE WHEN objective = 'val_loss' THEN whole_loss WHEN left(objective, 4) = 'val_' THEN whole_metric END AS whole_value
      FROM grouped
)
SELECT run, group_number, group_value, rows, validation_rows, segments, model, configuration, architecture, status,
       epochs_done, objective, objective_value, validation_loss, training_loss, pg_get_userbyid(owner) AS owner,
       whole AS all_rows_configuration, whole_value AS all_rows_objective_value, whole_loss AS all_rows_validation_loss,
       CASE WHEN left(objective, 4) = 'val_' AND direction = 'max' THEN objective_value < whole_value
            WHEN left(objective, 4) = 'val_' THEN objective_value > whole_value
            ELSE validation_loss > whole_loss
       END AS worse_than_all_rows
  FROM compared
 WHERE num_nonnulls(group_number, configuration) = 2;
COMMENT ON VIEW cerebro.groups IS
'The groups of runs on rows with group_by: the best model of each group. Groups without a model of their own are in the '
'table MODEL_groups only.';
COMMENT ON COLUMN cerebro.groups.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.groups.group_number IS 'Number of the group, from 1, in the order of the values.';
COMMENT ON COLUMN cerebro.groups.group_value IS
'Values of the group; of several columns, a JSON array. Only the owner of the run sees them.';
COMMENT ON COLUMN cerebro.groups.rows IS 'Number of rows of the group that train its models.';
COMMENT ON COLUMN cerebro.groups.validation_rows IS
'Number of rows of the group for validation; NULL: the run has no validation table. With folds, each row of the group is one '
'(0: all are in one fold).';
COMMENT ON COLUMN cerebro.groups.segments IS
'Number of segments that have training rows of the group. Its models hop if there are several.';
COMMENT ON COLUMN cerebro.groups.model IS 'Number of the best model of the group within the run: the one of rank 1.';
COMMENT ON COLUMN cerebro.groups.configuration IS 'Number of that model''s configuration.';
COMMENT ON COLUMN cerebro.groups.architecture IS
'Name of that model''s architecture: its kind or the name that it was added by.';
COMMENT ON COLUMN cerebro.groups.status IS 'Status of that model, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.groups.epochs_done IS 'Number of epochs that that model has completed.';
COMMENT ON COLUMN cerebro.groups.objective IS 'Name of the metric that says which model of the group is best.';
COMMENT ON COLUMN cerebro.groups.objective_value IS 'Value of the objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.groups.validation_loss IS
'Latest validation loss of that model, on the rows of the group.';
COMMENT ON COLUMN cerebro.groups.training_loss IS
'Training loss of that model in its latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.groups.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.groups.all_rows_configuration IS
'Number of the configuration that is best on all rows: its model on all rows is compared with the model of the group. NULL: '
'it was not evaluated on rows of the group.';
COMMENT ON COLUMN cerebro.groups.all_rows_objective_value IS
'Value of the objective of that model on the rows for validation of the group, after the epoch whose state the model tables '
'get; NULL: the objective is not measured on rows for validation, or the group is on several segments and its metric is no '
'mean over rows, such as auc. With folds, the mean over the folds: the model that is trained on the rows of all groups in the '
'other folds is evaluated on the rows of the group in each fold.';
COMMENT ON COLUMN cerebro.groups.all_rows_validation_loss IS
'Loss of that model on the rows for validation of the group, after the same epoch; with folds, the mean over the folds.';
COMMENT ON COLUMN cerebro.groups.worse_than_all_rows IS
'Whether the best model of the group is worse on the rows for validation of the group than the best model on all rows: by '
'the objective, or by the validation loss if the objective is measured while training. NULL: one of the values is not known.';

CREATE OR REPLACE VIEW cerebro.metrics WITH (security_barrier) AS
WITH figures AS (
    (SELECT DISTINCT ON (run, owner, model, epoch) run, owner, model, epoch, 'training'::text AS dataset, metrics
       FROM cerebro_internal._visible_hop
      ORDER BY run, owner, model, epoch, hop DESC)
     UNION ALL
    (SELECT DISTINCT ON (run, owner, model, epoch, dataset) run, owner, model, epoch,
            CASE dataset WHEN 'training' THEN 'training, after' ELSE dataset END, metrics
       FROM cerebro_internal._visible_evaluation
      WHERE metrics <> '{}'  -- they are with the part that was evaluated last, and are those of all parts
      ORDER BY run, owner, model, epoch, dataset, part)
), numbers AS NOT MATERIALIZED (
    -- What is no number here becomes NULL.
    SELECT run, owner, f.model, f.epoch, f.dataset, named.metric, jsonb_typeof(named.value) = 'array' AS listed,
           COALESCE(single.label, (single.place - 1)::text) AS label,
           CASE WHEN jsonb_typeof(single.value) = 'number'
                THEN CASE WHEN abs((single.value #>> '{}')::numeric) < 1e-290 THEN 0.0
                          WHEN abs((single.value #>> '{}')::numeric) < 1e290
                          THEN (single.value #>> '{}')::double precision
                     END
           END AS value
      FROM figures f
      -- The labels of the classes; monitors see no class values. With the layout itself in the lists' condition,
      -- Greenplum would move it with each value.
      FULL JOIN (SELECT run, owner, seed,
                        CASE WHEN owner = (SELECT quote_ident(current_user)::regrole)
                                  AND layout #> '{outputs,1}' IS NULL
                                  AND jsonb_typeof(layout #> '{outputs,0,preparation,labels}') = 'array'
                             THEN layout #> '{outputs,0,preparation,labels}'
                        END AS labels
                   FROM cerebro_internal._visible_run) r USING (run, owner)
     CROSS JOIN LATERAL jsonb_each(f.metrics) AS named (metric, value)
     CROSS JOIN LATERAL ROWS FROM (
               jsonb_array_elements(CASE jsonb_typeof(named.value)
                                         WHEN 'array' THEN named.value
                                         ELSE jsonb_build_array(named.value)
                                    END),
               jsonb_array_elements_text(
                   CASE WHEN named.metric ~ '^(f1|fbeta)_score' AND jsonb_typeof(named.value) = 'array'
                        THEN r.labels
                   END)
           ) WITH ORDINALITY AS single (value, label, place)
     WHERE single.value IS NOT NULL  -- there may be more labels
       AND num_nonnulls(r.seed) = 1
), told AS (
    -- The mean of a list, and besides each number of it.
    SELECT run, owner, model, epoch, dataset, metric, NULL AS label,
           CASE WHEN count(value) = count(*) THEN avg(value) END AS value
      FROM numbers
     GROUP BY run, owner, model, epoch, dataset, metric
     UNION ALL
    SELECT run, owner, model, epoch, dataset, metric, label, value FROM numbers WHERE listed
     UNION ALL
    SELECT run, owner, model, epoch, 'training', 'loss', NULL, training_loss FROM cerebro_internal._learning_curve
     UNION ALL
    SELECT run, owner, model, epoch, 'validation', 'loss', NULL, validation_loss
      FROM cerebro_internal._learning_curve
     WHERE validation_loss IS NOT NULL
     UNION ALL
    SELECT run, owner, e.model, e.epoch, 'training, after', 'loss', NULL, e.loss
      FROM (SELECT run, owner, model, epoch, sum(rows) AS rows,
                   sum(loss * COALESCE(weight, rows)) / NULLIF(sum(COALESCE(weight, rows)), 0) AS loss
              FROM cerebro_internal._visible_evaluation
             WHERE dataset = 'training'
             GROUP BY run, owner, model, epoch) e
      FULL JOIN cerebro_internal._visible_run r USING (run, owner)
     WHERE CASE WHEN e.rows >= r.rows_per_epoch THEN true END  -- all parts
)
SELECT run, model, m.configuration, t.epoch, t.dataset,
       CASE WHEN t.label IS NULL THEN t.metric ELSE format('%s[%s]', t.metric, t.label) END AS metric,
       t.value,
       pg_get_userbyid(owner) AS owner,
       m.group_number,
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) THEN m.group_value END AS group_value
  FROM told t
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration) = 2;
COMMENT ON VIEW cerebro.metrics IS
'The loss and all metrics of each model after each epoch, one row each.';
COMMENT ON COLUMN cerebro.metrics.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.metrics.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.metrics.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.metrics.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.metrics.dataset IS
'training (measured over the epoch''s rows while training), validation (measured after the epoch, on all parts of the '
'validation table, or on the rows of the fold or group), or in runs of MADlib''s functions training, after (measured after the epoch, on the '
'training table).';
COMMENT ON COLUMN cerebro.metrics.metric IS
'loss, or the name of the metric as Keras reports it; of a model with several outputs the output''s name comes first. A '
'metric with several values has a row with their mean, and a row for each: f1_score[setosa] is the F1 score of a class, '
'by its label (in runs of your own) or number, and precision[0] the precision at the first threshold.';
COMMENT ON COLUMN cerebro.metrics.value IS 'The value; NULL if it is not a finite number.';
COMMENT ON COLUMN cerebro.metrics.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.metrics.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.metrics.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';
