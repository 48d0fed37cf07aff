-- What is new in 0.3.0.

-- Functions with more arguments. If a view of a user's calls one of them, it cannot be dropped: it gets another name, which
-- the view follows, and calls the new one. It leaves the extension, so that a dump of the database has it.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure AS signature, p.proname AS name, p.pronamespace::regnamespace AS schema,
               pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS identity,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(c.name), ', ' ORDER BY c.place)
                  FROM ROWS FROM (pg_catalog.unnest(p.proargnames), pg_catalog.unnest(p.proargmodes))
                       WITH ORDINALITY c (name, mode, place)
                 WHERE c.mode = 't') AS columns, -- the new function may return more
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
           AND (p.proname IN ('train', 'search', 'fit', 'pack', '_packed_rows', 'pack_like', 'append',
                             'predict', '_predict_rows', 'predict_into', 'create_predictor', 'calibrate', '_judging',
                             '_scored', 'evaluate', 'confusion_matrix', 'class_metrics', 'roc_curve', 'precision_recall',
                             'calibration', 'residuals', 'mistakes', 'importance', '_explained', 'explain', 'drift', 'set_limits')
                OR p.proname = '_predictions' -- and those of judging, on Greenplum
                OR p.proname ~ ('^_(evaluate|confusion_matrix|class_metrics|roc_curve|precision_recall|calibration|residuals'
                                || '|mistakes|importance|explain|drift)_(rows|lines)$'))
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS %s LANGUAGE sql AS %L',
                                      old.schema, old.name, old.arguments, old.result,
                                      pg_catalog.format('SELECT %s%s.%I(%s)', old.columns || ' FROM ',
                                                        old.schema, old.name, old.given));
            EXECUTE pg_catalog.format('ALTER FUNCTION %s.%I(%s) RENAME TO %I', old.schema, old.name, old.identity,
                                      '_' || old.name || '_0_2');
            EXECUTE pg_catalog.format('ALTER EXTENSION cerebro_db DROP FUNCTION %s.%I(%s)', old.schema,
                                      '_' || old.name || '_0_2', old.identity);
        END;
    END LOOP;
END
$$;

ALTER TABLE cerebro.evaluation ADD COLUMN sampled bigint CHECK (sampled BETWEEN 1 AND 1e12::bigint);
ALTER TABLE cerebro.evaluation ADD COLUMN weight double precision CHECK (weight BETWEEN 0 AND 1e100);
ALTER TABLE cerebro.heartbeat ADD COLUMN queue jsonb
    CONSTRAINT queue_is_a_standing CHECK (jsonb_typeof(queue) = 'object' AND octet_length(queue::text) <= 1000);
ALTER TABLE cerebro.role_limit ADD COLUMN max_processors integer CHECK (max_processors > 0);
ALTER TABLE cerebro.role_limit ADD COLUMN processor_share integer CHECK (processor_share BETWEEN 1 AND 1000);
ALTER TABLE cerebro.event DROP CONSTRAINT event_is_known;
ALTER TABLE cerebro.event ADD CONSTRAINT event_is_known CHECK (event IN (
        'created', 'submitted', 'started', 'extended', 'cancel requested', 'finished', 'failed', 'cancelled',
        'materialized', 'not materialized', 'followed', 'waits', 'goes on', 'built', 'fused', 'not fused', 'unit failed',
        'model failed', 'model revived', 'forgotten'));

@api@
