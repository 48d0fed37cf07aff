-- The trained models of the database, as a list, and what is not about single runs or models.
--
-- The list is computed from the catalog and from what the tables themselves say, so it also has ensembles, tables of other
-- users, and tables that were renamed or restored. Whoever reads it has not chosen these tables, so none of them may run
-- code, wait or fail:
-- * Only plain tables are read: no views, policies, constraints, expressions or types of users.
-- * A table's owner could change it between this check and the reading. So a superuser reads only tables of superusers.
-- * No lock is waited for, and each is released at once by an exception: thousands of tables would not fit into the table
--   of locks.
-- * What is read has a bound.

CREATE OR REPLACE FUNCTION cerebro._models() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found     record;
    said      jsonb;
    best      jsonb;
    bytes     bigint;
BEGIN
    FOR found IN
        -- What the columns are called: in plain tables, and in those of MADlib, where a table of one model has no number.
        WITH form (required, number, validation_loss, training_loss, run_name, target, target_type, target_text, began,
                   began_type) AS (
            VALUES ('{configuration,weights,architecture}'::text[], 'configuration', 'validation_loss', 'training_loss',
                    'run_name', 'target', 'text', 's.target', 'started_at', 'timestamptz'),
                   ('{model_weights,model_arch}', 'mst_key', 'validation_loss_final', 'training_loss_final', 'name',
                    'dependent_varname', 'text[]', 'array_to_string(s.dependent_varname, '', '')', 'start_training_time',
                    'timestamp')
        ), model AS (
            SELECT DISTINCT ON (m.oid) m.oid, m.relnamespace, m.relname, m.relowner,
                   format('%I.%I', n.nspname, m.relname) AS named, f.*
              FROM form f JOIN pg_class m
                ON f.required <@ (SELECT array_agg(a.attname::text) FROM pg_attribute a
                                   WHERE a.attrelid = m.oid AND a.attname = ANY (f.required) AND NOT a.attisdropped)
              JOIN pg_namespace n ON n.oid = m.relnamespace
             WHERE m.relkind = 'r' AND (m.relpersistence <> 't' OR n.oid = pg_my_temp_schema())
               AND n.nspname <> 'cerebro_registry'  -- cerebro.registered_versions has these
               AND has_table_privilege(m.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
             ORDER BY m.oid, f.number
        ), beside AS (
            SELECT m.oid AS model, c.oid, e.ending
              FROM model m CROSS JOIN (VALUES ('_summary'), ('_info'), ('_weights'), ('_groups')) AS e (ending)
              JOIN pg_class c ON c.relname = (m.relname || e.ending)::name AND c.relnamespace = m.relnamespace
             WHERE c.relkind = 'r' AND octet_length(m.relname || e.ending) < 64
               AND (e.ending <> '_groups'
                    OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'group_key'))
        ), several AS (
            SELECT m.*, m.relowner AS owner, b.summary, b.info, b.tables || m.oid AS tables
              FROM model m
              JOIN (SELECT model, max(oid) FILTER (WHERE ending = '_summary') AS summary,
                           max(oid) FILTER (WHERE ending = '_info') AS info, array_agg(oid) AS tables
                      FROM beside GROUP BY model) b ON b.model = m.oid
        )
        SELECT s.oid::bigint AS oid, s.named, s.owner::bigint AS owner, s.tables,
               s.oid::regclass AS model, s.summary::regclass AS summary, s.info::regclass AS info,
               (SELECT bool_and(has_table_privilege(c.oid, 'SELECT') AND NOT c.relrowsecurity AND c.relchecks = 0
                                AND NOT c.relhasrules AND NOT c.relispartition
                                AND (NOT me.rolsuper
                                     OR EXISTS (SELECT FROM pg_roles o WHERE o.oid = c.relowner AND o.rolsuper))
                                AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                                                                         AND (i.indpred IS NOT NULL OR i.indexprs IS NOT NULL))
                                AND NOT EXISTS (SELECT FROM pg_statistic_ext e WHERE e.stxrelid = c.oid))
                  FROM pg_class c WHERE c.oid = ANY (s.tables)) AS is_plain,
               (SELECT string_agg(v.value || ' AS ' || v.name, ', ')
                  FROM (VALUES ('run', 'run', 'bigint', 's.run'),
                               ('name', s.run_name, 'text', format('left(s.%I, 1000)', s.run_name)),
                               ('objective', 'objective', 'text', 'left(s.objective, 1000)'),
                               ('direction', 'direction', 'text', 'left(s.direction, 10)'),
                               ('began', s.began, s.began_type, format('CASE WHEN s.%1$I BETWEEN ''2000-01-01'' '
                                'AND ''3000-01-01'' THEN s.%1$I END', s.began)),
                               ('validation_loss', s.validation_loss, 'double precision', format('s.%I', s.validation_loss)),
                               ('training_loss', s.training_loss, 'double precision', format('s.%I', s.training_loss)),
                               ('target', s.target, s.target_type, format('CASE WHEN pg_column_size(s.%I) <= 10000 '
                                'THEN left(%s, 1000) END', s.target, s.target_text)),
                               ('rows', 'layout', 'jsonb', 'CASE WHEN pg_column_size(s.layout) <= 1000000 '
                                'THEN CASE jsonb_typeof(s.layout -> ''rows'') WHEN ''number'' '
                                'THEN LEAST(GREATEST((s.layout ->> ''rows'')::numeric, 0), 1e15)::bigint END END'))
                       AS v (name, "column", type, value)
                  JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = v.type::regtype
                 WHERE a.attrelid = s.summary AND NOT a.attisdropped) AS says,
               (SELECT string_agg(CASE WHEN a.attname IS NULL THEN 'NULL::double precision' ELSE 'i.' || v."column" END
                                  || ' AS ' || v.name, ', ')
                  FROM (VALUES ('objective_value', 'objective_value'), ('validation_loss', s.validation_loss),
                               ('training_loss', s.training_loss)) AS v (name, "column")
                  LEFT JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = 'double precision'::regtype
                                          AND a.attrelid = s.info AND NOT a.attisdropped) AS figures,
               (SELECT count(*) = 2 FROM pg_attribute a
                 WHERE a.attrelid IN (s.oid, s.info) AND a.attname = s.number AND a.atttypid = 'integer'::regtype
                   AND NOT a.attisdropped) AS is_keyed,
               s.number
          FROM several s JOIN pg_roles me ON me.rolname = current_user
         WHERE s.summary IS NOT NULL
    LOOP
        said := NULL;
        best := NULL;
        bytes := NULL;
        BEGIN
            IF found.is_plain AND found.says IS NOT NULL THEN
                EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE NOWAIT',
                               (SELECT string_agg('ONLY ' || t::regclass, ', ') FROM unnest(found.tables) AS t));
                EXECUTE format('SELECT to_jsonb(t) FROM (SELECT %s FROM ONLY %s s LIMIT 1) t', found.says, found.summary)
                   INTO said;
                IF found.is_keyed THEN
                    EXECUTE format(
                        'SELECT to_jsonb(t) FROM (SELECT count(*) AS configurations, COALESCE(%s(r.objective_value),'
                        ' min(r.validation_loss), min(r.training_loss)) AS value FROM (SELECT %s'
                        ' FROM ONLY %s m JOIN ONLY %s i USING (%I) LIMIT 100000) r) t',
                        CASE WHEN said ->> 'direction' = 'max' THEN 'max' ELSE 'min' END, found.figures, found.model,
                        found.info, found.number)
                       INTO best;
                ELSE
                    best := jsonb_build_object('configurations', 1, 'value', COALESCE(
                        NULLIF(said -> 'validation_loss', 'null'), said -> 'training_loss'));
                END IF;
                bytes := (SELECT sum(pg_total_relation_size(t)) FROM unnest(found.tables) AS t);
            END IF;
            RAISE EXCEPTION SQLSTATE 'CE000';
        EXCEPTION WHEN OTHERS THEN
            NULL; -- the locks are released
        END;
        RETURN NEXT jsonb_build_object(
            'model_table', found.named, 'owner', found.owner, 'run', said -> 'run', 'run_name', said -> 'name',
            'target', said -> 'target', 'objective', said -> 'objective', 'best_value', best -> 'value',
            'rows', said -> 'rows', 'configurations', best -> 'configurations', 'began', said -> 'began',
            'bytes', bytes)::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro._models() IS
'The model tables that the current user may read, as JSON. One column and no more: on Greenplum the function runs before '
'the query that calls it.';

CREATE OR REPLACE VIEW cerebro.models WITH (security_barrier) AS
SELECT t.j ->> 'model_table' AS model_table, t.j ->> 'target' AS target, (t.j ->> 'run')::bigint AS run,
       t.j ->> 'run_name' AS run_name, t.j ->> 'objective' AS objective,
       (t.j ->> 'best_value')::double precision AS best_value, (t.j ->> 'rows')::bigint AS rows,
       (t.j ->> 'configurations')::integer AS configurations,
       COALESCE(r.created_at, (t.j ->> 'began')::timestamptz) AS created_at, (t.j ->> 'bytes')::bigint AS bytes,
       pg_get_userbyid((t.j ->> 'owner')::oid) AS owner
  FROM (SELECT line::json AS j FROM (SELECT m AS line FROM cerebro._models() m OFFSET 0) l) t
  LEFT JOIN cerebro._visible_run r ON r.run = (t.j ->> 'run')::bigint AND r.owner::oid = (t.j ->> 'owner')::oid;
COMMENT ON VIEW cerebro.models IS
'The tables of trained models that the current user may read. Where columns but model_table and owner are NULL, a table is '
'in exclusive use, or it is not as cerebro_db makes it, or it belongs to an ordinary user and the current user is a '
'superuser.';
COMMENT ON COLUMN cerebro.models.model_table IS 'The model table, with its schema: what cerebro.predict takes.';
COMMENT ON COLUMN cerebro.models.target IS 'The columns that the models predict, with commas.';
COMMENT ON COLUMN cerebro.models.run IS 'Number of the run that trained the models, of the owner of the table.';
COMMENT ON COLUMN cerebro.models.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.models.objective IS
'Metric that the run optimised, for instance val_accuracy. A loss if the run has no objective.';
COMMENT ON COLUMN cerebro.models.best_value IS
'The best value of the objective that a model in the table has, or else the least loss (on the validation table if there '
'was one). NULL of an ensemble, which was not evaluated.';
COMMENT ON COLUMN cerebro.models.rows IS 'Number of rows (or windows) that the models were trained on.';
COMMENT ON COLUMN cerebro.models.configurations IS 'Number of models in the table.';
COMMENT ON COLUMN cerebro.models.created_at IS
'When the run was created. Of a run that the current user may not see: when it began to train.';
COMMENT ON COLUMN cerebro.models.bytes IS 'Size of the model table and of the tables beside it, in bytes.';
COMMENT ON COLUMN cerebro.models.owner IS 'The user who owns the table.';

CREATE OR REPLACE FUNCTION cerebro.drop_model(model_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.drop_model(text) IS
'Drops a table of trained models with the tables beside it (_summary, _info, _weights, _groups). Packed rows, architectures
and the run stay: cerebro.materialize makes the tables again, until cerebro.forget deletes the run. Functions that
cerebro.create_predictor made for it fail from then on.

- model_table: a table of yours that cerebro.models lists. If one of its tables is gone, the others are dropped. A view or
  function that depends on one of them is an error that names it.';

CREATE OR REPLACE FUNCTION cerebro.version() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT extversion FROM pg_extension WHERE extname = 'cerebro_db'
$$;
COMMENT ON FUNCTION cerebro.version() IS
'The version of cerebro_db in this database, for instance 0.1.0.';
