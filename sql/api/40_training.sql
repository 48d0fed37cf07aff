-- Runs: training a list of configurations by model hopping, and managing the runs.

CREATE OR REPLACE FUNCTION cerebro.fit(
@arguments@
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.fit(@types@) IS
'Trains a list of configurations by model hopping, and returns the number of the run. In each epoch every model visits
every segment once, and its whole training state moves with it.

The trained models are in model_table, their losses and metrics in model_table_info, the arguments of the run in
model_table_summary. Models too large for one value have their weights in model_table_weights. From another session,
SELECT * FROM cerebro.run_progress shows how far the run is.

- source_table: a table, a view or a foreign table, which is packed as cerebro.train says; or a packed table. With a
  packed table, the arguments from target to packed_table stay NULL; the rows for validation are in validation_table, or
  in the table with the ending _validation.
- configurations: JSON, such as [{"learning_rate": 0.01}, {"architecture": "resnet", "units": 64}]; or a query whose
  columns are the keys; or the name of a table whose columns are the keys. The keys are architecture (a kind such as mlp,
  the name of an architecture of cerebro.add_architecture, or JSON of Keras), the parameters of the architecture,
  frozen (how many layers at the beginning keep their weights, or the name of the last one), loss, metrics, optimizer, the
  arguments of the optimizer, batch_size, passes (over the rows of a segment in one visit) and other fit parameters of
  Keras. What is left out follows from the rows, as in cerebro.train. A model selection table of MADlib''s form is taken,
  too.
- target: the columns to predict, separated by commas.
- @packing@: as in cerebro.pack.
- group_by: as in cerebro.pack. The run trains one model of each configuration for each group, and one on all rows.
  cerebro.predict picks the model of each row''s group.
- validation, stratify, packed_table: as in cerebro.train.
- epochs: how often the run goes over all rows. NULL: 27 times, or as often as the budget probably allows.
- evaluate_every: number of epochs between two evaluations. NULL: the models are evaluated after the last epoch only, and
  after every epoch if the objective is measured on the validation table.
- objective, direction: the metric that says which model is best, such as val_accuracy, and min or max.
- budget: when to end: an interval such as 2 hours, or JSON with seconds, unit_hours, hops or configurations. An interval
  counts from the start of the call, but training has at least a tenth of it; JSON counts from the start of the run. Visits
  that have begun are completed. With an interval, at least one model completes an epoch.
- stop_when: a query that stops models, such as $$SELECT configuration, ''no better than chance'' FROM cerebro.learning_curve
  WHERE run = $1 AND epoch >= 3 AND training_loss > 1.1$$. $1 is the number of the run.
- use_gpus: true trains on GPUs.
- warm_start: true starts from the models that an earlier run has left in model_table; the new models replace them.
- replace: true allows that model_table is a model of yours. The old model stays until the new one is complete. Other
  tables are never replaced, and privileges on the old tables have to be granted again.
- run_name, description: texts that the views show with the run.
- wait: false returns as soon as the rows are packed and the run has begun. The run continues in a session of its own, also
  after you have disconnected. cerebro.wait(run) waits for its end, cerebro.cancel(run) ends it.
- dry_run: true shows what would be done, makes nothing, and returns NULL.
- options: a JSON object; docs/reference/options.md describes each option. The options are
  seed (a number from which all random choices of the run follow),
  deterministic (true: the same seed gives the same models, bit for bit),
  engine (tensorflow, jax, torch or auto),
  precision (float32, mixed_bfloat16 or mixed_float16),
  nan (stop: a model whose loss is not finite fails; keep: it goes on),
  threads (processor threads per segment),
  cache_mb (maximum megabytes of rows cached in memory per segment),
  reuse (none, auto or all: whether what frozen layers give is computed once and kept),
  features_mb (maximum megabytes of that per segment),
  features_type (float32 or float16: the numbers in which that is kept),
  shard (auto, never or a number: into how many shards models are cut that are larger than a trainer''s memory),
  memory_mb (megabytes that the trainer of each segment may use),
  fuse (whether similar models train together in one pass; jax only),
  read_ahead (whether segments fetch the next state while they train),
  synchronous_commit (whether the commit of a visit waits for the disk),
  hang_after (seconds without progress after which a trainer is ended),
  objective (as the argument),
  direction (as the argument),
  budget (as the argument, but only a JSON object),
  stop_when (as the argument),
  keep (best: the state of each model''s best epoch is kept, and the model tables get it),
  execution (session: the run trains in your own session, and commits nothing in between),
  method (which stops unpromising models early: docs/train.md),
  parallel (hopping, or gradients: all segments train a model at the same time, by adding up their gradients),
  visit_rows (the most rows of its segment that a visit takes, so that models are compared before they have seen all),
  least_group_rows (with group_by: least number of training rows of a group with models of its own),
  groups_start (with group_by: random or all rows: the weights that models of groups start with),
  new_groups (with group_by: error or all rows: what predicts rows of groups that had no training row) and
  replay (number of an earlier run whose options, seed and order of visits are used again).';

CREATE OR REPLACE FUNCTION cerebro.madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true,
    options                   jsonb   DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit_multiple_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.madlib_fit_multiple_model(@types@) IS
'cerebro.fit with the name, the arguments and the tables of MADlib, for a packed table: model_output_table is model_table,
model_selection_table lists the configurations, num_iterations is epochs and metrics_compute_frequency is evaluate_every.
use_caching has no effect, because trainers always cache their rows.';

CREATE OR REPLACE FUNCTION cerebro.resume(
    run          bigint,
    epochs       integer DEFAULT NULL,
    retry_failed boolean DEFAULT false,
    wait         boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.resume(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.resume(@types@) IS
'Continues a run that failed, was cancelled or was interrupted, and returns its number. Committed visits are not
repeated, and the models become what they would have become without the interruption.

- epochs: a new total number of epochs, larger than the planned one. It extends the run, also a finished one.
- retry_failed: true gives failed models another chance.
- wait: false returns at once; a session of its own continues the run.';

CREATE OR REPLACE FUNCTION cerebro_internal._drive(run bigint, epochs integer, retry_failed boolean) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drive(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._drive(@types@) IS
'Drives a run for which nobody waits. The session that a call with wait => false opens calls it.';

CREATE OR REPLACE FUNCTION cerebro.wait(run bigint, timeout double precision DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.wait(@types@) IS
'Waits until a run has ended and has made its model tables. Returns the status of the run. A warning
says if the run is finished but its models are in no table, and which call makes it.

- timeout: maximum time to wait, in seconds. NULL: no limit.';

CREATE OR REPLACE FUNCTION cerebro.cancel(run bigint, owner name DEFAULT NULL) RETURNS boolean
LANGUAGE plpython3u AS $py$
@cerebro@
return api.cancel(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.cancel(@types@) IS
'Ends a run within about a second, whichever session drives it or is to begin it. Returns true if the run will be
cancelled, and false if there is nothing to cancel: no session drives the run, or all its models are trained.
cerebro.resume(run) can continue it later. Users can cancel their own runs, members of cerebro_admin any run.

- owner: the user whose run it is. NULL: the caller if it has a run of this number, else whoever has. An administrator
  has to say it if several users have a run of this number.';

CREATE OR REPLACE FUNCTION cerebro_internal._to_forget(run bigint, owner name) RETURNS name
LANGUAGE plpython3u AS $py$
@cerebro@
return api.to_forget(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._to_forget(@types@) IS
'Locks a run that cerebro.forget() may remove, and returns its owner; raises an error for any other run.';

-- The rows are changed here and not in Python, where each statement is a subtransaction: Greenplum 7.0.0 sometimes takes
-- those for aborted in another session that reads the same rows while they are committed, and the rows come back.
CREATE OR REPLACE FUNCTION cerebro.forget(run bigint, owner name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    whose name := cerebro_internal._to_forget($1, $2);
BEGIN
    IF whose = current_user THEN
        INSERT INTO cerebro.event (run, event, detail) VALUES ($1, 'forgotten', '{}');
        PERFORM cerebro_internal._forget_own($1, whose);
    ELSE
        PERFORM cerebro_internal._forget($1, whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro.forget(@types@) IS
'Deletes the log and the model states of a run, and its packed rows in the schema cerebro_data if no other run was trained
on them. The run cannot be resumed or extended any more. Its model tables stay.
Users can forget their own runs, members of cerebro_admin any run. If somebody has made other objects of a state table,
for instance a view, the table stays without its rows, and a warning names the objects and their owners. Packed rows on
which other objects depend stay as they are, with a warning, too.

- owner: as in cerebro.cancel.';

CREATE OR REPLACE FUNCTION cerebro.materialize(
    run bigint, model_table text, which text DEFAULT NULL, fold integer DEFAULT NULL, replace boolean DEFAULT false)
RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off
AS $py$
@cerebro@
return api.materialize_run(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.materialize(@types@) IS
'Makes the model tables of a run from its states on record. The run need not have finished. cerebro.runs says in the
column message if a finished run has none: its session ended too early, or its caller rolled back.

- which: best (the states of the best epochs, of a run with the option keep => best) or last (the latest states). NULL:
  best if the run keeps best states, else last. The columns which and epoch of the _info table say which state each model
  has.
- fold: of a run with folds, the models that are evaluated on this fold, and trained on all others. NULL: the models on
  all rows.
- replace: true replaces a model of yours that has this name. Other tables are never replaced.';
