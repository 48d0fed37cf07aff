-- Steering a run from any session.  Each function writes a row into cerebro.request, which the session that drives the
-- run reads once a second.

CREATE OR REPLACE FUNCTION cerebro_internal._rule(query text, run bigint) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    -- A loop takes one statement, which has rows.
    FOR found IN EXECUTE query USING run LOOP
        RETURN NEXT pg_catalog.row_to_json(found)::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._rule(@types@) IS
'Runs the query of the option stop_when on a run, and returns its rows as JSON. The session that drives the run calls it in
another session of the same user.';

CREATE OR REPLACE FUNCTION cerebro.stop_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.stop_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.stop_model(@types@) IS
'Stops a model of a run at the end of its epoch, and returns the number of the request. The other models go on, and the
segments are free for them. cerebro.go_on() lets the model train on later.

The request takes effect when your transaction is committed. If no session drives the run, the request takes effect when
cerebro.resume(run) continues it. cerebro.requests shows what became of it. The same holds for cerebro.go_on,
cerebro.clone_model, cerebro.add_configuration, cerebro.extend and cerebro.set_budget.

- configuration: the configuration whose model is meant.
- reason: your reason, as a text. The views show it.
- model: the number of the model, if the configuration has several. cerebro.leaderboard shows both numbers.
- owner: as in cerebro.cancel. Users can steer their own runs, members of cerebro_admin any run.';

CREATE OR REPLACE FUNCTION cerebro.go_on(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.go_on(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.go_on(@types@) IS
'Lets a model of a run that was stopped train on from its last state, until its last epoch. Returns the number of the
request.

- configuration, reason, model, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.clone_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    changes       jsonb   DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.clone_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.clone_model(@types@) IS
'Adds a model to a run that begins with the weights and the optimizer''s state of another model, its parent, and has
other parameters. The parent trains on. A parent that is training is copied at the end of its epoch. Returns the number
of the request.

- changes: a JSON object with the keys of a configuration, such as {"learning_rate": 0.001, "batch_size": 64}. Their
  values replace those of the parent. The architecture and the class of the
  optimizer stay. NULL: the clone has the parameters of its parent, but sees the rows in another order.
- configuration, reason, model, owner: as in cerebro.stop_model; configuration and model say which model is the parent.';

CREATE OR REPLACE FUNCTION cerebro.add_configuration(
    run        bigint,
    parameters jsonb,
    reason     text DEFAULT NULL,
    owner      name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_configuration(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.add_configuration(@types@) IS
'Adds a configuration to a run. Its model starts at epoch 0: from the weights of its architecture, if it was added with
weights (cerebro.add_architecture), otherwise from random weights. Returns the number of the request.

- parameters: a JSON object, as in the argument configurations of cerebro.fit, such as {"architecture": "mlp",
  "units": 64, "learning_rate": 0.01}. What is left out follows from the rows.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.extend(
    run    bigint,
    epochs integer,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.extend(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.extend(@types@) IS
'Gives all models of a run more epochs, as cerebro.resume(run, epochs) does, also while the run goes on. Returns the
number of the request.

- epochs: the new total number of epochs, larger than the planned one.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.set_budget(
    run    bigint,
    budget text,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.set_budget(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.set_budget(@types@) IS
'Replaces the budget of a run. When its budget is spent, a run begins no visit and finishes. What the run has used so
far counts. Returns the number of the request.

- budget: an interval such as 2 hours, or a JSON object with limits: seconds, unit_hours (hours of work of one segment),
  hops and configurations, such as {"unit_hours": 2}. {}: no limit.
- reason, owner: as in cerebro.stop_model.';
