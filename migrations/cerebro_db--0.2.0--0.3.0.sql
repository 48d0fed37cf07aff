-- What is new in 0.3.0.

-- These functions have more arguments. If a view of a user's calls one, it cannot be dropped: it gets another name, which
-- the view follows, and calls the new one. It leaves the extension, so that a dump of the database has it.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure AS signature, p.proname AS name,
               pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS identity,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro'::regnamespace AND p.proname IN ('pack', 'train', 'search', 'fit')
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION cerebro.%I(%s) RETURNS %s LANGUAGE sql AS %L',
                                      old.name, old.arguments, old.result,
                                      pg_catalog.format('SELECT cerebro.%I(%s)', old.name, old.given));
            EXECUTE pg_catalog.format('ALTER FUNCTION cerebro.%I(%s) RENAME TO %I', old.name, old.identity,
                                      '_' || old.name || '_0_2');
            EXECUTE pg_catalog.format('ALTER EXTENSION cerebro_db DROP FUNCTION cerebro.%I(%s)',
                                      '_' || old.name || '_0_2', old.identity);
        END;
    END LOOP;
    FOR old IN
        SELECT p.oid::regprocedure AS signature FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro_internal'::regnamespace AND p.proname = '_packed_rows'
    LOOP
        EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
    END LOOP;
END
$$;

@api@
