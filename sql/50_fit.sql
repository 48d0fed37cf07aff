-- Model hopping.

CREATE FUNCTION cerebro.madlib_fit_multiple_model(
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
return api.fit_multiple_model(plpy, source_table, model_output_table, model_selection_table, num_iterations, use_gpus, validation_table, metrics_compute_frequency, warm_start, name, description, use_caching, options)
$py$;
COMMENT ON FUNCTION cerebro.madlib_fit_multiple_model(text, text, text, integer, boolean, text, integer, boolean, text, text, boolean, jsonb) IS
'Trains every configuration of a model selection table on a packed table by model hopping, and returns the run''s number.
 Each configuration visits each segment once per iteration; its whole state hops with it.
 Leaves MODEL_OUTPUT_TABLE, _info and _summary. Follow it from another session: SELECT * FROM cerebro.run_progress.
 options: seed (number), deterministic (true/false), threads (per segment), nan (stop: a configuration whose loss is not finite fails alone; keep).
 Rows are always cached by the trainers; use_caching is accepted for MADlib''s sake.';

CREATE FUNCTION cerebro.materialize(run bigint, model_output_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.materialize_run(plpy, run, model_output_table)
$py$;
COMMENT ON FUNCTION cerebro.materialize(bigint, text) IS
'Makes the model tables of a run, for instance of one whose caller was gone when it finished.';
