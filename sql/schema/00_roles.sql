-- Roles and schemas.  The roles are shared by all databases of a server, so they may exist already.  CREATE EXTENSION
-- stops if an existing role of these names has more rights than this script would give it.

-- This check comes first, because everything after it runs as a superuser: a function or operator that somebody has
-- planted in the schema could be called by the statements below.  Every name in the check itself is qualified.
DO $schema$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_namespace n
          JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) n.nspowner
         WHERE n.nspname OPERATOR(pg_catalog.=) '@extschema@'
           AND (NOT o.rolsuper
                OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
                            WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
                              AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner)
                OR EXISTS (SELECT FROM (SELECT pronamespace, proowner FROM pg_catalog.pg_proc
                                        UNION ALL SELECT oprnamespace, oprowner FROM pg_catalog.pg_operator
                                        UNION ALL SELECT typnamespace, typowner FROM pg_catalog.pg_type
                                        UNION ALL SELECT relnamespace, relowner FROM pg_catalog.pg_class)
                                       AS object (schema, owner)
                             JOIN pg_catalog.pg_roles h ON h.oid OPERATOR(pg_catalog.=) object.owner
                            WHERE object.schema OPERATOR(pg_catalog.=) n.oid AND NOT h.rolsuper))
    ) THEN
        RAISE EXCEPTION 'the schema "@extschema@" exists already, and roles that are not superusers have a hand in it'
            USING ERRCODE = 'duplicate_schema',
                  DETAIL = 'A role that is not a superuser owns the schema or an object in it, or may create objects in it.',
                  HINT = 'Look at what the schema contains, rename it, and try again.';
    END IF;
END
$schema$;

DO $roles$
DECLARE
    wanted text;
    known  record;
    other  name;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['cerebro_user', 'cerebro_monitor', 'cerebro_admin', 'cerebro_worker', 'cerebro_enrol']
    LOOP
        SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls AS powerful,
               rolcanlogin AS login
          INTO known
          FROM pg_catalog.pg_roles
         WHERE rolname = wanted;
        IF NOT FOUND THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        ELSIF known.powerful OR (known.login AND wanted <> 'cerebro_enrol') THEN
            RAISE EXCEPTION 'the role "%" exists already and has more rights than cerebro_db would give it', wanted
                USING ERRCODE = 'duplicate_object',
                      HINT = format('If nobody uses the role: ALTER ROLE %I NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB'
                                    ' NOREPLICATION NOBYPASSRLS; and try again.', wanted);
        END IF;
        SELECT g.rolname
          INTO other
          FROM pg_catalog.pg_auth_members a
          JOIN pg_catalog.pg_roles g ON g.oid = a.roleid
          JOIN pg_catalog.pg_roles m ON m.oid = a.member
         WHERE m.rolname = wanted AND g.rolname NOT IN ('cerebro_user', 'cerebro_monitor', 'cerebro_worker');
        IF FOUND THEN
            RAISE EXCEPTION 'the role "%" exists already and is a member of "%"', wanted, other
                USING ERRCODE = 'duplicate_object', HINT = format('REVOKE %I FROM %I; and try again.', other, wanted);
        END IF;
    END LOOP;

    -- A member of cerebro_worker or cerebro_enrol can log in by the line of pg_hba.conf that is meant for worker
    -- sessions only.
    SELECT g.rolname AS role, m.rolname AS member
      INTO known
      FROM pg_catalog.pg_auth_members a
      JOIN pg_catalog.pg_roles g ON g.oid = a.roleid
      JOIN pg_catalog.pg_roles m ON m.oid = a.member
     WHERE (g.rolname = 'cerebro_worker' AND m.rolname <> 'cerebro_enrol'
            AND m.rolname !~ '^cerebro_w_[0-9]+_[0-9a-f]+$')
        OR g.rolname = 'cerebro_enrol';
    IF FOUND THEN
        RAISE EXCEPTION 'the role "%" exists already and "%" is a member of it', known.role, known.member
            USING ERRCODE = 'duplicate_object',
                  HINT = format('REVOKE %I FROM %I; and try again.', known.role, known.member);
    END IF;
END
$roles$;

COMMENT ON ROLE cerebro_user IS
'cerebro_db: may train, evaluate and predict, and sees its own runs.';
COMMENT ON ROLE cerebro_monitor IS
'cerebro_db: may read the progress and the leaderboards of all runs, but no weights.';
COMMENT ON ROLE cerebro_admin IS
'cerebro_db: has the rights of cerebro_user and cerebro_monitor. May also cancel and forget the runs of other '
'users, set limits, and register code that the server executes. The last right makes it as powerful as the server''s'
' operating-system account.';
COMMENT ON ROLE cerebro_worker IS
'cerebro_db: the group of all worker roles. A line of pg_hba.conf lets this group log in.';
COMMENT ON ROLE cerebro_enrol IS
'cerebro_db: the login by which the server creates worker roles. Only the server uses it.';

GRANT cerebro_user, cerebro_monitor TO cerebro_admin;
GRANT cerebro_worker TO cerebro_enrol;

REVOKE ALL ON SCHEMA @extschema@ FROM PUBLIC;
GRANT USAGE ON SCHEMA @extschema@ TO cerebro_user, cerebro_monitor, cerebro_enrol;

-- A run creates its state tables in this schema. They belong to the owner of the run.
CREATE SCHEMA cerebro_state;
COMMENT ON SCHEMA cerebro_state IS
'cerebro_db: the state tables of all runs. Each table belongs to the owner of its run.';
REVOKE ALL ON SCHEMA cerebro_state FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA cerebro_state TO cerebro_user;
