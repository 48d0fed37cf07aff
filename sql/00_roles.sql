-- Roles are shared by all databases of a server: they may exist already, from another database that
-- has the extension.  A role of our name that is more than we would make it is not trusted.

-- Who can make functions and operators in our schema decides what the rest of this script calls, as a superuser.
-- So this comes first, and every name in it is qualified.
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
                                        UNION ALL SELECT relnamespace, relowner FROM pg_catalog.pg_class) held (place, owner)
                             JOIN pg_catalog.pg_roles h ON h.oid OPERATOR(pg_catalog.=) held.owner
                            WHERE held.place OPERATOR(pg_catalog.=) n.oid AND NOT h.rolsuper))
    ) THEN
        RAISE EXCEPTION 'the schema "@extschema@" exists already, and others than superusers have a hand in it'
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'Look at what is in it, then rename or drop it, and try again.';
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
            RAISE EXCEPTION 'the role "%" exists already and may do more than it should', wanted
                USING ERRCODE = 'duplicate_object',
                      HINT = format('If nobody uses it: ALTER ROLE %I NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS; and try again.', wanted);
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

    -- These two are the server's own: whoever else is a member could log in where only workers may.
    SELECT g.rolname AS role, m.rolname AS member
      INTO known
      FROM pg_catalog.pg_auth_members a
      JOIN pg_catalog.pg_roles g ON g.oid = a.roleid
      JOIN pg_catalog.pg_roles m ON m.oid = a.member
     WHERE (g.rolname = 'cerebro_worker' AND m.rolname <> 'cerebro_enrol' AND m.rolname !~ '^cerebro_w_[0-9]+$')
        OR g.rolname = 'cerebro_enrol';
    IF FOUND THEN
        RAISE EXCEPTION 'the role "%" exists already and "%" is a member of it', known.role, known.member
            USING ERRCODE = 'duplicate_object',
                  HINT = format('REVOKE %I FROM %I; and try again.', known.role, known.member);
    END IF;
END
$roles$;

COMMENT ON ROLE cerebro_user    IS 'cerebro_db: may train, evaluate and predict; sees its own runs.';
COMMENT ON ROLE cerebro_monitor IS 'cerebro_db: may read progress and leaderboards of all runs, but no weights.';
COMMENT ON ROLE cerebro_admin   IS 'cerebro_db: a user and monitor who may also cancel and forget the runs of others, set limits, and register code that the server runs: as powerful as its operating-system account.';
COMMENT ON ROLE cerebro_worker  IS 'cerebro_db: the group of worker logins; the line in pg_hba.conf names it.';
COMMENT ON ROLE cerebro_enrol   IS 'cerebro_db: the login that makes worker logins; used by the server itself.';

GRANT cerebro_user, cerebro_monitor TO cerebro_admin;
GRANT cerebro_worker TO cerebro_enrol;

REVOKE ALL ON SCHEMA @extschema@ FROM PUBLIC;
GRANT USAGE ON SCHEMA @extschema@ TO cerebro_user, cerebro_monitor, cerebro_enrol;

-- State tables of runs are made here at run time; each belongs to the run's owner.
CREATE SCHEMA cerebro_state;
COMMENT ON SCHEMA cerebro_state IS 'cerebro_db: the model states of runs, one set of tables per run, owned by its owner.';
REVOKE ALL ON SCHEMA cerebro_state FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA cerebro_state TO cerebro_user;
