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
                             'calibration', 'residuals', 'mistakes', 'importance', '_explained', 'explain', 'drift', 'set_limits', 'register')
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

-- What runs have measured.
CREATE TABLE cerebro.profile (
    run          bigint           NOT NULL,
    owner        regrole          NOT NULL DEFAULT quote_ident(current_user)::regrole,
    at           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    engine       text             NOT NULL,
    shapes       text             NOT NULL, -- a hash of what the speed of a model depends on; with the precision
    batch_size   integer          NOT NULL,
    parallel     text             NOT NULL,
    threads      integer          NOT NULL,
    trainers     integer          NOT NULL, -- that worked at the same time
    machine      text             NOT NULL,
    visits       bigint           NOT NULL, -- that were measured; 0: a trial of an engine, or a rehearsal
    train_row    double precision NOT NULL, -- seconds
    evaluate_row double precision,
    build        double precision,          -- seconds of a trainer for all models of these shapes
    hop          double precision,          -- seconds of a visit beside training
    state_bytes  bigint,
    memory_mb    integer,
    fused        integer,                   -- members that a rehearsal has fused
    fused_share  double precision,          -- what each of them costs, compared with a model alone
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (octet_length(engine) <= 100 AND octet_length(parallel) <= 100 AND octet_length(machine) <= 400),
    CHECK (octet_length(shapes) <= 100),
    CHECK (batch_size > 0 AND threads BETWEEN 1 AND 256 AND trainers BETWEEN 1 AND 10000),
    CHECK (visits BETWEEN 0 AND 1e12::bigint AND state_bytes BETWEEN 0 AND 1e15::bigint AND memory_mb >= 0 AND fused > 0),
    CHECK (train_row = 0 OR train_row BETWEEN 1e-12 AND 1e6),
    CHECK (evaluate_row = 0 OR evaluate_row BETWEEN 1e-12 AND 1e6),
    CHECK (build = 0 OR build BETWEEN 1e-12 AND 1e9),
    CHECK (hop = 0 OR hop BETWEEN 1e-12 AND 1e9),
    CHECK (fused_share = 0 OR fused_share BETWEEN 1e-9 AND 1e6)
);
COMMENT ON TABLE cerebro.profile IS
'What runs have measured of models with the same shapes: seconds of training, of evaluating, of building and of a hop. '
'The plans of later runs of the same user read it. A user has the last three rows of each sort, and at most 2,000.';

DO $security$
DECLARE
    mark text := '';
BEGIN
    IF pg_catalog.current_setting('gp_role', true) IS NOT NULL THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    ALTER TABLE cerebro.profile ENABLE ROW LEVEL SECURITY;
    CREATE INDEX profile_of_owner ON cerebro.profile (owner, run);
    EXECUTE pg_catalog.format(
        'CREATE POLICY %I ON cerebro.profile USING (owner = (SELECT quote_ident(current_user)::regrole))'
        ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark);
    PERFORM pg_catalog.pg_extension_config_dump(
        'cerebro.profile'::regclass, 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
END
$security$;

@api@
