"""What the model tables say of a run, and the architectures in them: queries over the log."""

from __future__ import annotations

from cerebro_db.core.events import DataSetName
from cerebro_db.core.sql import literal, sql

from .base import ME

# What the model tables say of each configuration, by its best model ($1: run, $2: its start, $3: evaluate_every,
# $4: epochs, $5: {configuration: {"metrics": names or null, "loss": name, "which": best or last, "epoch": of its state,
# "functions": references to custom functions as the text of an array, if there are any}}, and for MADlib's AutoML
# "epochs": those that it counts, "s" and "i": bracket and round, $6: the fold of the models; NULL: those on all rows),
# and the architecture of one ($1: configuration, $2: run).  They are sources of INSERTs in the caller's session.
MODEL_INFO = sql(
    """
WITH best AS MATERIALIZED (
    SELECT DISTINCT ON (configuration) *
      FROM cerebro.leaderboard
     WHERE run = $1 AND owner = current_user AND COALESCE(fold, 0) = COALESCE($6, 0)
     ORDER BY configuration, rank, model
), evaluated AS MATERIALIZED (
    -- Of MADlib's functions: on the training table after an epoch, once all of its parts are evaluated.
    SELECT e.model, e.epoch, sum(e.loss * e.rows) / NULLIF(sum(e.rows), 0) AS loss, max(e.metric) AS metric
      FROM cerebro.evaluation e
     WHERE e.run = $1 AND e.owner = {me} AND e.dataset = {training}
     GROUP BY e.model, e.epoch
    HAVING sum(e.rows) >= (SELECT r.rows_per_epoch FROM cerebro.run r WHERE r.run = $1 AND r.owner = {me})
), named AS (
    SELECT n.configuration::integer AS configuration, n.told ->> 'loss' AS loss, n.told ->> 'which' AS which,
           (n.told ->> 'epoch')::integer AS epoch, n.told -> 'epochs' AS epochs,
           (n.told ->> 's')::integer AS s, (n.told ->> 'i')::integer AS i,
           (n.told ->> 'functions')::text[] AS functions,
           array_agg(m.metric ORDER BY m.place) FILTER (WHERE m.metric IS NOT NULL) AS metrics
      FROM jsonb_each($5::jsonb) AS n (configuration, told)
      LEFT JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(n.told -> 'metrics')
                                                       WHEN 'array' THEN n.told -> 'metrics'
                                                       ELSE '[]'
                                                  END) WITH ORDINALITY AS m (metric, place) ON true
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
), told AS MATERIALIZED (
    -- What the columns have an entry for in each iteration, and the figures of the epoch whose state the table has.
    SELECT l.model,
           array_agg(extract(epoch FROM l.trained_at - $2::timestamptz)::double precision ORDER BY l.epoch)
               FILTER (WHERE l.counts) AS elapsed,
           array_agg(COALESCE(l.metric, l.training_metric) ORDER BY l.epoch) FILTER (WHERE l.counts)
               AS training_metrics,
           array_agg(COALESCE(l.loss, l.training_loss) ORDER BY l.epoch) FILTER (WHERE l.counts) AS training_loss,
           array_agg(l.validation_metric ORDER BY l.epoch) FILTER (WHERE l.counts) AS validation_metrics,
           array_agg(l.validation_loss ORDER BY l.epoch) FILTER (WHERE l.counts) AS validation_loss,
           array_agg(l.epoch ORDER BY l.epoch) FILTER (WHERE l.counts) AS iterations,
           max(l.metric) FILTER (WHERE l.is_stored) AS metric,
           max(l.loss) FILTER (WHERE l.is_stored) AS loss,
           max(l.training_metric) FILTER (WHERE l.is_stored) AS stored_training_metric,
           max(l.training_loss) FILTER (WHERE l.is_stored) AS stored_training_loss,
           max(l.validation_metric) FILTER (WHERE l.is_stored) AS stored_validation_metric,
           max(l.validation_loss) FILTER (WHERE l.is_stored) AS stored_validation_loss
      FROM (SELECT c.*, e.metric, e.loss, c.epoch = n.epoch AS is_stored,
                   CASE WHEN n.epochs IS NULL THEN COALESCE(c.epoch % NULLIF($3, 0) = 0, false) OR c.epoch = $4
                        ELSE n.epochs @> to_jsonb(c.epoch)
                   END AS counts
              FROM cerebro.learning_curve c
              LEFT JOIN named n ON n.configuration = c.configuration
              LEFT JOIN evaluated e ON e.model = c.model AND e.epoch = c.epoch
             WHERE c.run = $1 AND c.owner = current_user) l
     GROUP BY l.model
)
SELECT c.configuration AS mst_key, c.model_id, c.compile_params, c.fit_params, 'madlib_keras' AS model_type,
       (SELECT h.weights_bytes / 1024.0 FROM cerebro.hop h
         WHERE h.run = c.run AND h.owner = c.owner AND h.model = b.model ORDER BY h.hop DESC LIMIT 1) AS model_size,
       t.elapsed AS metrics_elapsed_time,
       n.metrics AS metrics_type, n.loss AS loss_type,
       COALESCE(t.metric, CASE WHEN n.which = 'best' THEN t.stored_training_metric ELSE b.training_metric END)
           AS training_metrics_final,
       COALESCE(t.loss, CASE WHEN n.which = 'best' THEN t.stored_training_loss ELSE b.training_loss END)
           AS training_loss_final,
       CASE WHEN b.training_metric IS NOT NULL THEN t.training_metrics END AS training_metrics,
       t.training_loss,
       CASE WHEN n.which = 'best' THEN t.stored_validation_metric ELSE b.validation_metric END
           AS validation_metrics_final,
       CASE WHEN n.which = 'best' THEN t.stored_validation_loss ELSE b.validation_loss END AS validation_loss_final,
       CASE WHEN b.validation_metric IS NOT NULL AND b.spread IS NULL THEN t.validation_metrics END
           AS validation_metrics,
       -- A model on all rows has no figures of its own; its final ones are the means over the folds.
       CASE WHEN b.validation_loss IS NOT NULL AND b.spread IS NULL THEN t.validation_loss END AS validation_loss,
       t.iterations AS metrics_iters, n.s, n.i, b.status, b.reason, n.which, n.epoch,
       COALESCE(o.value, CASE WHEN b.spread IS NOT NULL THEN b.objective_value END) AS objective_value,
       n.functions
  FROM cerebro.configuration c
  JOIN best b USING (run, configuration)
  LEFT JOIN told t ON t.model = b.model
  LEFT JOIN named n ON n.configuration = c.configuration
  LEFT JOIN cerebro.objective o ON o.run = c.run AND o.owner = c.owner AND o.model = b.model AND o.epoch = n.epoch
 WHERE c.run = $1 AND c.owner = {me}
""",
    me=ME,
    training=literal(DataSetName.TRAINING.value),
)
ARCHITECTURE = sql(
    "SELECT architecture FROM cerebro.architecture JOIN cerebro.configuration USING (run, owner, model_id)"
    " WHERE run = $2 AND owner = {me} AND configuration = $1",
    me=ME,
)
