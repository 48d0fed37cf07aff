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
return api.fit_multiple_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_fit_multiple_model(text, text, text, integer, boolean, text, integer, boolean, text, text, boolean, jsonb) IS
'Trains every configuration of a model selection table on a packed table by model hopping, and returns the run''s number.
 Each configuration visits each segment once per iteration; its whole state hops with it.
 Leaves MODEL_OUTPUT_TABLE, _info and _summary, and _weights where a model is too large for one value. Follow it from another session: SELECT * FROM cerebro.run_progress.
 options: seed (number), deterministic (true/false), threads (per segment),
 engine (tensorflow, jax, torch where it is installed, or auto: of the first two the likelier one; where there is much
 to do both are tried for each architecture, but for deterministic runs),
 fuse (whether configurations that are alike train together, several in one pass, with the engine jax; if not said: where
 a short rehearsal finds that it pays; never with deterministic, since the numbers are those of single ones but not the bits),
 replay (a run whose numbers to have again: bit for bit, but within rounding for what trained together),
 hang_after (seconds that a trainer which neither reports nor computes is given; 300, 0: no limit),
 read_ahead (whether segments fetch the next state and store the last one while they train; if not said: where states
 are large and it takes long, compared with training),
 cache_mb (of each table''s rows a segment has at most so many megabytes in memory, or else all on disk, where the system
 keeps what it has room for; if not said: in memory as long as half of the machine''s is available),
 precision (mixed_bfloat16, mixed_float16 or float32, for all layers but the outputs, which stay float32, as do all
 weights; if not said: as the architecture says),
 nan (stop: a configuration whose loss is not finite fails, alone; keep: it goes on).
 Rows are always cached by the trainers; use_caching is accepted for MADlib''s sake.';

CREATE FUNCTION cerebro.submit(
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
return api.submit(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.submit(text, text, text, integer, boolean, text, integer, boolean, text, text, boolean, jsonb) IS
'As madlib_fit_multiple_model, but returns the run''s number at once; the run goes on without you, also when you disconnect.
 cerebro.wait(run), cerebro.runs and cerebro.run_progress follow it, cerebro.cancel(run) ends it.';

CREATE FUNCTION cerebro.resume(
    run          bigint,
    epochs       integer DEFAULT NULL,
    retry_failed boolean DEFAULT false,
    wait         boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.resume(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.resume(bigint, integer, boolean, boolean) IS
'Finishes a run that was cancelled, interrupted or failed, exactly as it would have gone on; nothing committed is trained again.
 epochs => N (more than planned) extends a run, also a finished one. retry_failed gives failed configurations another chance.
 wait => false returns at once, as submit does.';

CREATE FUNCTION cerebro.wait(run bigint, timeout double precision DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.wait(bigint, double precision) IS
'Waits until a run has ended and, if it was submitted, its model tables are there; at most so many seconds. Returns its status.';

CREATE FUNCTION cerebro.cancel(run bigint) RETURNS boolean
LANGUAGE plpython3u AS $py$
@cerebro@
return api.cancel(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.cancel(bigint) IS
'Ends a run that is being driven by any session, within a second or so; cerebro.resume(run) can take it up again. Yours, or as
 cerebro_admin anybody''s. False if nobody drives it.';

CREATE FUNCTION cerebro.forget(run bigint) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.forget(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.forget(bigint) IS
'Removes a run''s log and model states; yours, or as cerebro_admin anybody''s. The model tables that it left stay; they can no longer be extended or resumed.';

CREATE FUNCTION cerebro.materialize(run bigint, model_output_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.materialize_run(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.materialize(bigint, text) IS
'Makes the model tables of a run from its last states, also of one that did not finish.';
