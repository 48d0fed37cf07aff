"""What the model tables say of a run, and the architectures in them: queries over the log."""

from __future__ import annotations

from cerebro_db.core.events import DataSetName
from cerebro_db.core.sql import literal, sql

from .base import ME, OF_ALL_ROWS

# The learning curve of the run ($1).  The figures of a model on all rows are the means over its folds, if it has some.
CURVE = sql(
    """(
SELECT configuration, model, epoch, training_metric, training_loss,
       COALESCE(validation_metric, avg(validation_metric) FILTER (WHERE fold > 0) OVER together) AS validation_metric,
       COALESCE(validation_loss, avg(validation_loss) FILTER (WHERE fold > 0) OVER together) AS validation_loss
  FROM cerebro.learning_curve
 WHERE run = $1 AND owner = current_user
WINDOW together AS (PARTITION BY configuration, group_number, epoch)
)"""
)
# What the table _info says of each configuration, by its best model ($1: run, $2: {configuration: {"loss": name,
# "metrics": names or null, "which": best or last, "epoch": of its state, "functions": references to custom functions as
# the text of an array, if there are any}}, $3: the fold of the models; NULL: those on all rows), and the architecture
# of one ($1: configuration, $2: run).  They are sources of INSERTs in the caller's session.
# The planner expects few rows of such queries, and there may be 50,000: a FULL JOIN ... USING is never a loop over the
# rows of both sides.  num_nonnulls(), which says nothing to the planner, leaves out what one of the sides lacks.
MODEL_INFO = sql(
    """
WITH best AS MATERIALIZED (
    SELECT DISTINCT ON (configuration) *
      FROM cerebro.leaderboard b
     WHERE run = $1 AND owner = current_user AND COALESCE(fold, 0) = COALESCE($3, 0)
       AND {of_all_rows}
     ORDER BY configuration, rank, model
), named AS (
    SELECT n.configuration::integer AS configuration, n.told ->> 'loss' AS loss, n.told ->> 'which' AS which,
           (n.told ->> 'epoch')::integer AS epoch, (n.told ->> 'functions')::text[] AS functions,
           array_agg(m.metric ORDER BY m.place) FILTER (WHERE m.metric IS NOT NULL) AS metrics
      FROM jsonb_each($2::jsonb) AS n (configuration, told)
      LEFT JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(n.told -> 'metrics')
                                                       WHEN 'array' THEN n.told -> 'metrics'
                                                       ELSE '[]'
                                                  END) WITH ORDINALITY AS m (metric, place) ON true
     GROUP BY 1, 2, 3, 4, 5
), stored AS MATERIALIZED (
    -- The figures of the epoch whose state the table has.
    SELECT l.model, max(l.training_metric) AS training_metric, max(l.training_loss) AS training_loss,
           max(l.validation_metric) AS validation_metric, max(l.validation_loss) AS validation_loss
      FROM {curve} l JOIN named n ON n.configuration = l.configuration AND n.epoch = l.epoch
     GROUP BY l.model
), weighed AS MATERIALIZED (
    SELECT DISTINCT ON (model) model, weights_bytes
      FROM cerebro.hop
     WHERE run = $1 AND owner = {me}
     ORDER BY model, hop DESC
)
-- A model on all rows has no figures of its own in a run with folds: they are the means over the folds.
SELECT configuration, model, b.status, b.reason, n.which, epoch,
       COALESCE(o.value, CASE WHEN b.spread IS NOT NULL THEN b.objective_value END) AS objective_value,
       CASE WHEN n.which = 'best' THEN s.validation_loss ELSE b.validation_loss END AS validation_loss,
       CASE WHEN n.which = 'best' THEN s.validation_metric ELSE b.validation_metric END AS validation_metric,
       CASE WHEN n.which = 'best' THEN s.training_loss ELSE b.training_loss END AS training_loss,
       CASE WHEN n.which = 'best' THEN s.training_metric ELSE b.training_metric END AS training_metric,
       b.architecture, c.parameters, n.loss AS loss_name, n.metrics AS metric_names, n.functions,
       w.weights_bytes AS bytes
  FROM (SELECT configuration, parameters, true AS asked FROM cerebro.configuration WHERE run = $1 AND owner = {me}) c
  FULL JOIN best b USING (configuration)
  FULL JOIN named n USING (configuration)
  FULL JOIN stored s USING (model)
  FULL JOIN weighed w USING (model)
  FULL JOIN (SELECT model, epoch, value FROM cerebro.objective WHERE run = $1 AND owner = {me}) o USING (model, epoch)
 WHERE num_nonnulls(c.asked) = 1 AND num_nonnulls(b.status) = 1
""",
    curve=CURVE,
    of_all_rows=OF_ALL_ROWS,
    me=ME,
)
CHANGED = literal("its state is not the one that was committed")
# What the table _groups says ($1: run, $2: the states of models as a JSON array, $3: the groups as a JSON array, $4:
# the least number of rows of a group with models, $5: the fold of the models; NULL: those on all rows of the group).
# Before it stands the query state_row: the rows of states.
GROUP_INFO = sql(
    """
best AS MATERIALIZED (
    SELECT DISTINCT ON (configuration, group_number) *
      FROM cerebro.leaderboard
     WHERE run = $1 AND owner = current_user AND group_number IS NOT NULL AND COALESCE(fold, 0) = COALESCE($5, 0)
     ORDER BY configuration, group_number, rank, model
), told AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($2::jsonb) AS t (model integer, hop integer, which text, epoch integer, dist_key integer,
                                               sha256 text, first bigint, size bigint)
), figured AS (
    SELECT model, epoch, t.which, t.sha256, t.size, l.training_metric, l.training_loss, l.validation_metric,
           l.validation_loss, o.value
      FROM told t
      FULL JOIN {curve} l USING (model, epoch)
      FULL JOIN (SELECT * FROM cerebro.objective WHERE run = $1 AND owner = {me}) o USING (model, epoch)
     WHERE num_nonnulls(t.which) = 1
), weighed AS (
    SELECT model, encode(pg_catalog.sha256(state), 'hex') = sha256 AS sound,
           substr(state, first::integer + 1, size::integer) AS weights
      FROM (SELECT t.model, t.sha256, t.first, t.size, string_agg(r.payload, ''::bytea ORDER BY r.start) AS state
              FROM told t
              JOIN state_row r ON r.model = t.model AND r.hop = t.hop AND r.__dist_key__ = t.dist_key
             GROUP BY t.model, t.sha256, t.first, t.size) w
), wanted AS (
    SELECT c.configuration, g.*
      FROM cerebro.configuration c
     CROSS JOIN jsonb_to_recordset($3::jsonb) AS g (group_number integer, group_value text, label jsonb, rows bigint)
     WHERE c.run = $1 AND c.owner = {me}
)
SELECT configuration, group_number, g.group_value, g.label::text AS group_key, g.rows, model, b.rank, b.status,
       CASE WHEN t.which IS NOT NULL AND w.sound IS NOT TRUE THEN {changed}
            WHEN model IS NULL AND g.rows >= $4
            THEN 'the configuration has no model of this group' || CASE WHEN $5 IS NULL THEN '' ELSE ' and fold' END
            WHEN model IS NULL THEN format('it has %s rows, fewer than the option least_group_rows (%s)', g.rows, $4)
            WHEN t.which IS NULL AND b.reason IS NULL THEN 'no epoch was completed'
            ELSE b.reason
       END AS reason,
       t.which, t.epoch,
       COALESCE(t.value, b.objective_value) AS objective_value,
       CASE WHEN t.which = 'best' THEN t.validation_loss ELSE b.validation_loss END AS validation_loss,
       CASE WHEN t.which = 'best' THEN t.validation_metric ELSE b.validation_metric END AS validation_metric,
       CASE WHEN t.which = 'best' THEN t.training_loss ELSE b.training_loss END AS training_loss,
       CASE WHEN t.which = 'best' THEN t.training_metric ELSE b.training_metric END AS training_metric,
       CASE WHEN w.sound THEN t.size END AS bytes,
       CASE WHEN w.sound THEN w.weights END AS weights
  FROM wanted g
  FULL JOIN best b USING (configuration, group_number)
  FULL JOIN figured t USING (model)
  FULL JOIN weighed w USING (model)
 WHERE num_nonnulls(g.rows) = 1
""",
    curve=CURVE,
    me=ME,
    changed=CHANGED,
)
# The configurations as a model selection table has them ($1: run).
SELECTION_ROWS = sql(
    "SELECT configuration AS mst_key, model_id, compile_params, fit_params FROM cerebro.configuration"
    " WHERE run = $1 AND owner = {me}",
    me=ME,
)
# The loss and the metric on the training table after each epoch, once all parts are evaluated ($1: run).  Runs
# with the option evaluate_training have them.
EVALUATED = sql(
    """
SELECT e.model, e.epoch, max(e.metric) AS metric,
       sum(e.loss * COALESCE(e.weight, e.rows)) / NULLIF(sum(COALESCE(e.weight, e.rows)), 0) AS loss
  FROM cerebro.evaluation e
 WHERE e.run = $1 AND e.owner = {me} AND e.dataset = {training}
 GROUP BY e.model, e.epoch
HAVING sum(e.rows) >= (SELECT r.rows_per_epoch FROM cerebro.run r WHERE r.run = $1 AND r.owner = {me})
""",
    me=ME,
    training=literal(DataSetName.TRAINING.value),
)
ARCHITECTURE = sql(
    "SELECT architecture FROM cerebro.architecture JOIN cerebro.configuration USING (run, owner, model_id)"
    " WHERE run = $2 AND owner = {me} AND configuration = $1",
    me=ME,
)
