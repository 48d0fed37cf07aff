-- Runs in the shape of Optuna's storage (its schema version 12), so that optuna-dashboard shows them as they go on.  The
-- views read those of the schema cerebro, which say who sees which rows, and nothing can be written through them. A run is a
-- study; its models on all rows are the trials.

CREATE OR REPLACE VIEW cerebro_internal._optuna_study AS
SELECT DISTINCT ON (run) r.run, r.owner, r.run_name, r.status, r.source_table, r.model_table, r.started_at, r.ended_at,
       r.ended, b.objective,
       -- Others than the owner do not see the options, but the order of the leaderboard.
       COALESCE(p.options ->> 'direction',
                CASE WHEN b.objective !~ 'loss$' AND b.best > b.worst THEN 'max' ELSE 'min' END) AS direction
  FROM cerebro.runs r
  JOIN (SELECT run, owner, max(objective) AS objective,
               (array_agg(objective_value ORDER BY rank) FILTER (WHERE objective_value IS NOT NULL))[1] AS best,
               (array_agg(objective_value ORDER BY rank DESC) FILTER (WHERE objective_value IS NOT NULL))[1] AS worst
          FROM cerebro.leaderboard
         WHERE fold IS NULL AND group_number IS NULL
         GROUP BY run, owner) b USING (run, owner)
  LEFT JOIN cerebro.run_plan p USING (run, owner)
 WHERE run BETWEEN 1 AND 1e12::bigint  -- the numbers of trials are made of it
 ORDER BY run, r.owner <> current_user, r.owner;
COMMENT ON VIEW cerebro_internal._optuna_study IS
'The runs that have models. Of runs of several users with one number, one''s own.';

CREATE OR REPLACE VIEW cerebro_internal._optuna_trial AS
SELECT run, owner, b.model, b.configuration, b.architecture, b.objective_value, b.engine, b.reason, s.direction, s.objective,
       s.started_at, s.ended_at, run * 1000000 + b.model AS trial_id,
       row_number() OVER (PARTITION BY run, owner ORDER BY b.model) - 1 AS number,
       CASE WHEN b.status = 'failed' THEN 'FAIL'
            WHEN b.status = 'stopped' THEN 'PRUNED'
            WHEN b.status = 'finished' OR s.ended
            THEN CASE WHEN abs(b.objective_value) < 1e300 THEN 'COMPLETE' ELSE 'FAIL' END
            WHEN b.status = 'waiting' THEN 'WAITING'
            ELSE 'RUNNING'
       END AS state
  FROM cerebro.leaderboard b
  JOIN cerebro_internal._optuna_study s USING (run, owner)
 WHERE b.fold IS NULL AND b.group_number IS NULL;
COMMENT ON VIEW cerebro_internal._optuna_trial IS 'The models on all rows of each run, with their state in Optuna''s words.';

CREATE OR REPLACE VIEW cerebro_internal._optuna_parameter AS
WITH given AS (
    SELECT t.run, t.owner, t.trial_id, t.model, p.parameter, p.value, left(p.text, 500) AS text
      FROM cerebro_internal._optuna_trial t
      JOIN (SELECT run, owner, configuration, parameter, value, text FROM cerebro.parameters
             UNION ALL
            SELECT DISTINCT run, owner, configuration, 'architecture', NULL::double precision, architecture
              FROM cerebro.leaderboard) p
        ON p.run = t.run AND p.owner = t.owner AND p.configuration = t.configuration
     WHERE p.text IS NOT NULL
), range AS (
    SELECT run, owner, parameter, min(value) AS low, max(value) AS high, count(value) = count(*) AS is_number,
           count(DISTINCT text) AS different, jsonb_agg(DISTINCT text) AS choices,
           bool_and(value = floor(value) AND text !~ '[.eE]') AS is_whole
      FROM given
     GROUP BY run, owner, parameter
)
SELECT g.trial_id, g.model, g.parameter,
       CASE WHEN r.is_number THEN g.value
            ELSE (SELECT c.place - 1 FROM jsonb_array_elements_text(r.choices) WITH ORDINALITY AS c (text, place)
                   WHERE c.text = g.text)
       END::double precision AS value,
       CASE WHEN NOT r.is_number
            THEN jsonb_build_object('name', 'CategoricalDistribution', 'attributes', jsonb_build_object('choices', r.choices))
            WHEN r.is_whole
            THEN jsonb_build_object('name', 'IntDistribution', 'attributes', jsonb_build_object(
                                        'log', false, 'step', 1, 'low', r.low::numeric, 'high', r.high::numeric))
            ELSE jsonb_build_object('name', 'FloatDistribution', 'attributes', jsonb_build_object(
                                        'step', NULL, 'low', r.low, 'high', r.high,
                                        'log', r.low > 0 AND r.high >= 100 * r.low))
       END AS distribution
  FROM given g
  JOIN range r USING (run, owner, parameter)
 WHERE r.different > 1
       AND (r.is_number OR r.different <= 100);  -- the list of the values stands in each row
COMMENT ON VIEW cerebro_internal._optuna_parameter IS
'The parameters that differ within a run, with the range or the list of their values as Optuna describes it. Texts with more '
'than 100 different values are left out.';

CREATE OR REPLACE VIEW cerebro_optuna.studies WITH (security_barrier) AS
SELECT run AS study_id, 'run ' || run || COALESCE(': ' || left(run_name, 400), '') AS study_name FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.studies IS 'The runs that you may see, as studies of Optuna.';

CREATE OR REPLACE VIEW cerebro_optuna.study_directions WITH (security_barrier) AS
SELECT run AS study_direction_id, CASE direction WHEN 'max' THEN 'MAXIMIZE' ELSE 'MINIMIZE' END AS direction, run AS study_id,
       0 AS objective
  FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.study_directions IS 'Whether the objective of a run is to be large or small.';

CREATE OR REPLACE VIEW cerebro_optuna.study_user_attributes WITH (security_barrier) AS
SELECT run * 10 + a.place AS study_user_attribute_id, run AS study_id, a.key, to_jsonb(a.value)::text AS value_json
  FROM cerebro_internal._optuna_study s
 CROSS JOIN LATERAL (VALUES (1, 'owner', s.owner::text), (2, 'status', s.status), (3, 'source_table', s.source_table),
                            (4, 'model_table', s.model_table)) AS a (place, key, value);
COMMENT ON VIEW cerebro_optuna.study_user_attributes IS 'Owner, status and tables of a run.';

CREATE OR REPLACE VIEW cerebro_optuna.study_system_attributes WITH (security_barrier) AS
SELECT run AS study_system_attribute_id, run AS study_id, 'study:metric_names' AS key,
       jsonb_build_array(left(objective, 400))::text AS value_json
  FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.study_system_attributes IS 'The name of the objective of a run.';

CREATE OR REPLACE VIEW cerebro_optuna.trials WITH (security_barrier) AS
SELECT t.trial_id, t.number, t.run AS study_id, t.state, t.started_at AT TIME ZONE 'UTC' AS datetime_start,
       CASE WHEN t.state IN ('COMPLETE', 'PRUNED', 'FAIL')
            THEN COALESCE(c.ended_at, t.ended_at, t.started_at) AT TIME ZONE 'UTC'
       END AS datetime_complete
  FROM cerebro_internal._optuna_trial t
  LEFT JOIN (SELECT run, owner, model, max(trained_at) AS ended_at FROM cerebro.learning_curve GROUP BY run, owner, model) c
         ON c.run = t.run AND c.owner = t.owner AND c.model = t.model;
COMMENT ON VIEW cerebro_optuna.trials IS 'The models on all rows of a run, as trials of Optuna.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_user_attributes WITH (security_barrier) AS
SELECT t.trial_id::numeric * 10 + a.place AS trial_user_attribute_id, t.trial_id, a.key, a.value::text AS value_json
  FROM cerebro_internal._optuna_trial t
 CROSS JOIN LATERAL (VALUES (1, 'model', to_jsonb(t.model)), (2, 'configuration', to_jsonb(t.configuration)),
                            (3, 'engine', to_jsonb(t.engine)), (4, 'reason', to_jsonb(t.reason))) AS a (place, key, value)
 WHERE a.value IS NOT NULL;
COMMENT ON VIEW cerebro_optuna.trial_user_attributes IS 'Number, configuration and engine of a model, and why it ended.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_system_attributes WITH (security_barrier) AS
SELECT NULL::bigint AS trial_system_attribute_id, NULL::bigint AS trial_id, NULL::text AS key, NULL::text AS value_json
 WHERE false;
COMMENT ON VIEW cerebro_optuna.trial_system_attributes IS 'Has no rows.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_params WITH (security_barrier) AS
SELECT trial_id::numeric * 1000 + row_number() OVER (PARTITION BY trial_id ORDER BY parameter) AS param_id, trial_id,
       left(parameter, 400) AS param_name, value AS param_value, distribution::text AS distribution_json
  FROM cerebro_internal._optuna_parameter;
COMMENT ON VIEW cerebro_optuna.trial_params IS 'The parameters of a model that differ within its run.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_values WITH (security_barrier) AS
SELECT trial_id AS trial_value_id, trial_id, 0 AS objective, objective_value AS value, 'FINITE' AS value_type
  FROM cerebro_internal._optuna_trial
 WHERE state IN ('COMPLETE', 'PRUNED') AND abs(objective_value) < 1e300;
COMMENT ON VIEW cerebro_optuna.trial_values IS 'The value of the objective of a model that has ended.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_intermediate_values WITH (security_barrier) AS
SELECT t.trial_id::numeric * 10000000000 + m.epoch AS trial_intermediate_value_id, t.trial_id, m.epoch AS step, m.value AS intermediate_value,
       'FINITE' AS intermediate_value_type
  FROM cerebro_internal._optuna_trial t
  JOIN cerebro.metrics m
    ON m.run = t.run AND m.owner = t.owner AND m.model = t.model
       AND m.dataset = CASE WHEN t.objective LIKE 'val|_%' ESCAPE '|' THEN 'validation'
                            WHEN t.objective LIKE 'train|_%' ESCAPE '|' THEN 'training, after'
                            ELSE 'training' END
       AND m.metric = regexp_replace(t.objective, '^(val|train)_', '')
 WHERE m.value IS NOT NULL;
COMMENT ON VIEW cerebro_optuna.trial_intermediate_values IS 'The value of the objective of a model after each epoch.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_heartbeats WITH (security_barrier) AS
SELECT NULL::bigint AS trial_heartbeat_id, NULL::bigint AS trial_id, NULL::timestamp AS heartbeat WHERE false;
COMMENT ON VIEW cerebro_optuna.trial_heartbeats IS 'Has no rows.';

CREATE OR REPLACE VIEW cerebro_optuna.version_info WITH (security_barrier) AS
SELECT 1 AS version_info_id, 12 AS schema_version, '3.2.0' AS library_version;
COMMENT ON VIEW cerebro_optuna.version_info IS 'The version of Optuna''s storage that these views have.';

CREATE OR REPLACE VIEW cerebro_optuna.alembic_version WITH (security_barrier) AS SELECT 'v3.2.0.a' AS version_num;
COMMENT ON VIEW cerebro_optuna.alembic_version IS 'The revision of Optuna''s storage that these views have.';

REVOKE ALL ON ALL TABLES IN SCHEMA cerebro_optuna FROM PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA cerebro_optuna TO cerebro_user, cerebro_monitor;
