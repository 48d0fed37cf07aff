-- What only the product calls has a schema of its own.
@schema/05_internal.sql@

@schema/06_data.sql@

ALTER TYPE cerebro._chunk SET SCHEMA cerebro_internal;
ALTER TYPE cerebro._prediction SET SCHEMA cerebro_internal;

DO $$
DECLARE
    old text;
BEGIN
    FOR old IN
        SELECT COALESCE('ROUTINE ' || p.oid::regprocedure, 'VIEW ' || c.oid::regclass)
          FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'cerebro_db'
          LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
          LEFT JOIN pg_catalog.pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind = 'v'
         WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
           AND COALESCE(p.pronamespace, c.relnamespace) = 'cerebro'::regnamespace
           AND COALESCE(p.proname, c.relname) ~ '^_'
           -- Functions of users call these.
           AND COALESCE(p.proname, c.relname) NOT IN ('_require_window', '_begin_call')
    LOOP
        EXECUTE pg_catalog.format('ALTER %s SET SCHEMA cerebro_internal', old);
    END LOOP;
    IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'cerebro_db_madlib') THEN
        RAISE WARNING 'the functions of the schema madlib need an update, too: ALTER EXTENSION cerebro_db_madlib UPDATE;';
    END IF;
END
$$;

-- Functions whose arguments or results change. A function that a view of a user's calls cannot be dropped: it gets another
-- name, which the view follows, and calls the new one. It leaves the extension, so that a dump of the database has it.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid, p.oid::regprocedure AS signature, p.pronamespace::regnamespace AS schema, p.proname AS name,
               pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS identity,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(c.name), ', ' ORDER BY c.place)
                  FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargmodes)) WITH ORDINALITY AS c (name, mode, place)
                 WHERE c.mode = 't') AS columns,
               -- The arguments of the three verbs are in another order now, and have their names.
               (SELECT pg_catalog.string_agg(CASE WHEN p.proname IN ('fit', 'search', 'train')
                                                  THEN pg_catalog.quote_ident(p.proargnames[n]) || ' => ' ELSE '' END
                                             || '$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
           AND p.proname IN ('predict', 'evaluate', 'confusion_matrix', 'calibration', 'predict_into', 'create_predictor',
                             '_predict_rows', '_predictions', '_judging', '_scored', '_evaluate_rows', '_evaluate_lines',
                             '_confusion_matrix_rows', '_confusion_matrix_lines', '_calibration_rows',
                             '_calibration_lines', 'set_limits', 'pack', '_packed_rows',
                             'fit', 'search', 'train', 'materialize', 'ensemble', '_begin_call')
         ORDER BY p.proname ~ '^_'
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS %s LANGUAGE sql AS %L',
                                      old.schema, old.name, old.arguments, old.result,
                                      pg_catalog.format('SELECT %s FROM %s.%I(%s)', COALESCE(old.columns, '*'),
                                                        old.schema, old.name, old.given));
            EXECUTE pg_catalog.format('ALTER FUNCTION %s.%I(%s) RENAME TO %I', old.schema, old.name, old.identity,
                                      '_' || old.name || '_0_1');
            EXECUTE pg_catalog.format('ALTER EXTENSION cerebro_db DROP FUNCTION %s.%I(%s)',
                                      old.schema, '_' || old.name || '_0_1', old.identity);
        END;
    END LOOP;
END
$$;

ALTER TABLE cerebro.model
    ADD COLUMN group_number integer,
    ADD COLUMN group_value text,
    ADD COLUMN group_rows bigint,
    ADD COLUMN validation_rows bigint,
    ADD CONSTRAINT group_has_rows CHECK (
        (group_number IS NULL) = (group_rows IS NULL)
        AND (group_number IS NOT NULL OR num_nonnulls(group_value, validation_rows) = 0)
        AND group_number > 0 AND group_rows BETWEEN 0 AND 1e12::bigint
        AND octet_length(group_value) <= 5000),
    ADD CONSTRAINT validation_rows_are_possible CHECK (validation_rows BETWEEN 0 AND 1e12::bigint);

ALTER TABLE cerebro.hop
    ALTER COLUMN state_sha256 DROP NOT NULL,
    ADD COLUMN frozen jsonb,
    ADD CONSTRAINT frozen_is_a_part CHECK (jsonb_typeof(frozen) = 'object' AND octet_length(frozen::text) <= 300);
COMMENT ON TABLE cerebro.attempt IS
'Every attempt at a visit, committed before the visit starts. If an order has several visits of a model, only the first.';

ALTER TABLE cerebro.evaluation
    ADD COLUMN of_groups jsonb,
    ADD CONSTRAINT groups_are_arrays_of_numbers CHECK (
        jsonb_typeof(of_groups) = 'array' AND octet_length(of_groups::text) <= 2e7
        AND NOT jsonb_path_exists(of_groups, 'strict $[*] ? (@.type() != "array" || @.size() != 6)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][0 to 1] ? (@.type() != "number" || @ < 0 || @ > 2147483647)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][2 to 5] ? (@.type() != "null" && (@.type() != "number"
                                                 || @ > 1e100 || @ < -1e100 || (@ != 0 && @ > -1e-100 && @ < 1e-100)))'));

ALTER TABLE cerebro.event
    DROP CONSTRAINT event_is_known,
    ADD CONSTRAINT event_is_known CHECK (event IN (
        'created', 'submitted', 'started', 'extended', 'cancel requested', 'finished', 'failed', 'cancelled',
        'materialized', 'not materialized', 'followed', 'built', 'fused', 'not fused', 'unit failed', 'model failed',
        'model revived', 'forgotten'));

ALTER TABLE cerebro.role_limit ADD COLUMN max_predictors integer CHECK (max_predictors BETWEEN 0 AND 1000);

@schema/72_added_weights.sql@

@schema/75_registry.sql@

@schema/78_bi.sql@

@schema/79_optuna.sql@

@api@
