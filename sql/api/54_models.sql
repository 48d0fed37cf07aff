-- The trained models of the database, as a list, and what is not about single runs or models.
--
-- The list is computed from the catalog and from what the tables themselves say, so it also has ensembles, tables of other
-- users, and tables that were renamed or restored. Whoever reads it has not chosen these tables, so none of them may run
-- another user's code, wait or fail:
-- * Only tables of the current user and of superusers are read. An owner can give a table an index or a statistic, and
--   change it between any check and the reading. Of other tables the list says what the log says.
-- * No lock is waited for, and each is released at once by an exception: thousands of tables would not fit into the table
--   of locks.
-- * What is read has a bound.

-- Members of the role that owns a table do not count: each of them can make it run code with the rights of the others.
-- The owner of a schema can rename it, and then a name in it is that of another table.
CREATE OR REPLACE FUNCTION cerebro_internal._run_no_strangers_code(tables oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH trusted AS (
        SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
    ), trusted_with_schemas AS (
        SELECT oid FROM trusted
         UNION ALL
        SELECT o.oid FROM pg_roles o, pg_database d
         WHERE o.rolname = 'pg_database_owner' AND d.datname = current_database() AND d.datdba IN (SELECT oid FROM trusted)
    )
    SELECT count(*) = cardinality($1)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY ($1) AND c.relkind = 'r' AND c.relowner IN (SELECT oid FROM trusted)
       AND n.nspowner IN (SELECT oid FROM trusted_with_schemas)
       -- Else this transaction may see owners of the past.
       AND (current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
            OR c.xmax::text = '0' AND n.xmax::text = '0')
$$;
COMMENT ON FUNCTION cerebro_internal._run_no_strangers_code(@types@) IS
'Whether these tables and their schemas belong to the current user or to superusers, as far as the transaction can know.';

CREATE OR REPLACE FUNCTION cerebro_internal._models() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found     record;
    own       boolean;
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
               (SELECT string_agg(CASE WHEN a.attname IS NULL THEN 'NULL::' || v.type ELSE v.value END
                                  || ' AS ' || v.name, ', ')
                  FROM (VALUES ('objective_value', 'objective_value', 'double precision', 'i.objective_value'),
                               ('validation_loss', s.validation_loss, 'double precision', 'i.' || s.validation_loss),
                               ('training_loss', s.training_loss, 'double precision', 'i.' || s.training_loss),
                               ('made_of', 'reason', 'text', 'left(i.reason, 1000)'),
                               ('quality', 'quality', 'jsonb', 'CASE WHEN pg_column_size(i.quality) <= 1000000 '
                                'THEN i.quality END')) AS v (name, "column", type, value)
                  LEFT JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = v.type::regtype
                                          AND a.attrelid = s.info AND NOT a.attisdropped) AS figures,
               (SELECT count(*) = 2 FROM pg_attribute a
                 WHERE a.attrelid IN (s.oid, s.info) AND a.attname = s.number AND a.atttypid = 'integer'::regtype
                   AND NOT a.attisdropped) AS is_keyed,
               s.number
          FROM several s
         WHERE s.summary IS NOT NULL
    LOOP
        said := NULL;
        best := NULL;
        bytes := NULL;
        own := cerebro_internal._run_no_strangers_code(found.tables);
        BEGIN
            IF own AND found.says IS NOT NULL THEN
                EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE NOWAIT',
                               (SELECT string_agg('ONLY ' || t::regclass, ', ') FROM unnest(found.tables) AS t));
                -- From here on the tables keep their owners and their names.
                IF NOT cerebro_internal._run_no_strangers_code(found.tables) THEN
                    RAISE EXCEPTION SQLSTATE 'CE000';
                END IF;
                EXECUTE format('SELECT to_jsonb(t) FROM (SELECT %s FROM ONLY %s s LIMIT 1) t', found.says, found.summary)
                   INTO said;
                IF found.is_keyed THEN
                    -- The last part is the model that cerebro.predict takes (best_keys in models/trained.py).
                    EXECUTE format(
                        'WITH r AS (SELECT %1$I AS chosen, %2$s FROM ONLY %3$s m JOIN ONLY %4$s i USING (%1$I) LIMIT 100000)'
                        ' SELECT to_jsonb(a) || COALESCE(to_jsonb(c), ''{}'') FROM (SELECT count(*) AS configurations,'
                        ' COALESCE(%5$s(r.objective_value), min(r.validation_loss), min(r.training_loss)) AS value'
                        ' FROM r) a LEFT JOIN (SELECT r.chosen, left(r.quality ->> ''says'', 4000) AS quality,'
                        ' CASE WHEN r.training_loss IS NULL THEN r.made_of END AS made_of FROM r'
                        ' ORDER BY r.training_loss IS NULL AND r.%6$s IS NOT NULL DESC, r.objective_value %7$s NULLS LAST,'
                        ' r.validation_loss NULLS LAST, r.training_loss NULLS LAST,'
                        ' CASE WHEN r.training_loss IS NULL AND r.%6$s IS NOT NULL THEN -r.chosen ELSE r.chosen END'
                        ' LIMIT 1) c ON true',
                        found.number, found.figures, found.model, found.info,
                        CASE WHEN said ->> 'direction' = 'max' THEN 'max' ELSE 'min' END,
                        CASE WHEN said ->> 'direction' IS NULL THEN 'validation_loss' ELSE 'objective_value' END,
                        CASE WHEN said ->> 'direction' = 'max' THEN 'DESC' ELSE 'ASC' END)
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
            'bytes', bytes, 'own', own, 'chosen', best -> 'chosen', 'made_of', best -> 'made_of',
            'quality', best -> 'quality')::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._models() IS
'The model tables that the current user may read, as JSON. One column and no more: on Greenplum the function runs before '
'the query that calls it.';

CREATE OR REPLACE VIEW cerebro.models WITH (security_barrier) AS
SELECT t.j ->> 'model_table' AS model_table, t.j ->> 'target' AS target,
       COALESCE((t.j ->> 'run')::bigint, logged.run) AS run,
       COALESCE(t.j ->> 'run_name', logged.name) AS run_name,
       COALESCE(t.j ->> 'objective', logged.objective) AS objective,
       (t.j ->> 'best_value')::double precision AS best_value,
       COALESCE((t.j ->> 'rows')::bigint, logged.rows_per_epoch) AS rows,
       COALESCE((t.j ->> 'configurations')::integer, logged.configurations) AS configurations,
       COALESCE(r.created_at, (t.j ->> 'began')::timestamptz, logged.created_at) AS created_at,
       (t.j ->> 'bytes')::bigint AS bytes,
       pg_get_userbyid((t.j ->> 'owner')::oid) AS owner,
       (t.j ->> 'chosen')::integer AS chosen_configuration,
       t.j ->> 'made_of' AS made_of,
       t.j ->> 'quality' AS quality,
       @name_of (t.j ->> 'model_table')@ AS model_name
  FROM (SELECT line::json AS j FROM (SELECT m AS line FROM cerebro_internal._models() m OFFSET 0) l) t
  LEFT JOIN cerebro_internal._visible_run r ON r.run = (t.j ->> 'run')::bigint AND r.owner::oid = (t.j ->> 'owner')::oid
  LEFT JOIN (SELECT DISTINCT ON (owner, model_table) owner::oid AS owner, model_table, run, left(name, 1000) AS name,
                    left(options ->> 'objective', 1000) AS objective, rows_per_epoch,
                    NULLIF(configurations, 0) AS configurations, created_at
               FROM cerebro_internal._visible_run
              ORDER BY owner, model_table, run DESC) logged
         ON t.j ->> 'own' = 'false' AND logged.owner = (t.j ->> 'owner')::oid
            AND logged.model_table = t.j ->> 'model_table';
COMMENT ON VIEW cerebro.models IS
'The tables of trained models that the current user may read. Only tables of the current user and of superusers are read, in '
'schemas of theirs. Of the tables of others the view has what the log says of the latest run with this model table, for members of '
'cerebro_monitor; for others all columns but model_table and owner are NULL. They are also NULL where a table is in '
'exclusive use, is not as cerebro_db makes it, or has changed since a REPEATABLE READ transaction began.';
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
COMMENT ON COLUMN cerebro.models.chosen_configuration IS
'The configuration that cerebro.predict takes if none is named: the ensemble, or else the best one.';
COMMENT ON COLUMN cerebro.models.made_of IS
'Of an ensemble: the configurations whose predictions it is the mean of. NULL: it is no ensemble.';
COMMENT ON COLUMN cerebro.models.quality IS
'How good chosen_configuration was on the rows of its calibration, which for cerebro.train are the rows for validation, beside '
'an answer that is the same for every row. NULL: it is not calibrated.';
COMMENT ON COLUMN cerebro.models.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';

CREATE OR REPLACE FUNCTION cerebro.drop_model(model_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.drop_model(@types@) IS
'Drops a table of trained models with the tables beside it (_summary, _info, _weights, _groups). Packed rows in the schema
cerebro_data go, too, unless another model of yours, a registered version of yours or an unfinished run needs them.
Architectures and the run stay: cerebro.materialize makes the tables again, until cerebro.forget deletes the run.
Functions that cerebro.create_predictor made for it fail from then on.

- model_table: a table of yours that cerebro.models lists. If one of its tables is gone, the others are dropped. A view or
  function that depends on one of them is an error that names it.';

CREATE OR REPLACE FUNCTION cerebro.version() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT extversion FROM pg_extension WHERE extname = 'cerebro_db'
$$;
COMMENT ON FUNCTION cerebro.version() IS
'The version of cerebro_db in this database, for instance 0.1.0.';
