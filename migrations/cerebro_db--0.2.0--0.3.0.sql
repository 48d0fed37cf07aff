-- What is new in 0.3.0.

-- cerebro.train has one more argument. If a view of a user's calls the function, it cannot be dropped: it gets another name,
-- which the view follows, and calls the new one. It leaves the extension, so that a dump of the database has it.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure AS signature, pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS identity,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro'::regnamespace AND p.proname = 'train'
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION cerebro.train(%s) RETURNS bigint LANGUAGE sql AS %L',
                                      old.arguments, pg_catalog.format('SELECT cerebro.train(%s)', old.given));
            EXECUTE pg_catalog.format('ALTER FUNCTION cerebro.train(%s) RENAME TO _train_0_2', old.identity);
            EXECUTE pg_catalog.format('ALTER EXTENSION cerebro_db DROP FUNCTION cerebro._train_0_2(%s)', old.identity);
        END;
    END LOOP;
END
$$;

@api@
