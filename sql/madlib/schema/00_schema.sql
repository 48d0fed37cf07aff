-- The schema of the extension: a new one, or one that belongs to a superuser and has at most tables. DROP EXTENSION leaves
-- the schema, with the users' tables of custom functions. Every name in this check is qualified, because it runs as a
-- superuser and the schema may have been prepared by somebody else.
DO $schema$
DECLARE
    taken   boolean;
    madlib  boolean;
    unsafe  boolean;
BEGIN
    SELECT EXISTS (SELECT FROM (SELECT pronamespace FROM pg_catalog.pg_proc
                                UNION ALL SELECT oprnamespace FROM pg_catalog.pg_operator
                                UNION ALL SELECT typnamespace FROM pg_catalog.pg_type
                                           WHERE typrelid OPERATOR(pg_catalog.=) 0 AND typelem OPERATOR(pg_catalog.=) 0)
                               AS object (schema)
                    WHERE object.schema OPERATOR(pg_catalog.=) n.oid),
           EXISTS (SELECT FROM pg_catalog.pg_class c
                    WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid
                      AND c.relname OPERATOR(pg_catalog.=) 'migrationhistory'),
           NOT o.rolsuper OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
                                      WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
                                        AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner
                                        AND a.grantee OPERATOR(pg_catalog.<>)
                                            'cerebro_admin'::pg_catalog.regrole::pg_catalog.oid)
      INTO taken, madlib, unsafe
      FROM pg_catalog.pg_namespace n
      JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) n.nspowner
     WHERE n.nspname OPERATOR(pg_catalog.=) '@extschema@';
    IF madlib THEN
        RAISE EXCEPTION 'the schema "@extschema@" contains an installation of Apache MADlib, which stays as it is'
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'Install beside it: make install MADLIB_SCHEMA=madlib_dl, then CREATE EXTENSION again; scripts'
                         ' find the functions by SET search_path = madlib_dl, …. Or use another database.';
    ELSIF taken THEN
        RAISE EXCEPTION 'the schema "@extschema@" exists already and contains objects of others'
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'Look at what it contains, rename it, and try again; or choose another schema:'
                         ' make install MADLIB_SCHEMA=madlib_dl.';
    ELSIF unsafe THEN
        RAISE EXCEPTION 'the schema "@extschema@" exists already, and roles that are not superusers may create objects in it'
            USING ERRCODE = 'duplicate_schema', HINT = 'Look at what it contains, rename it, and try again.';
    END IF;
END
$schema$;
