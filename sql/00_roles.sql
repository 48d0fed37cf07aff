-- Roles are shared by all databases of a server: they may exist already, from another database that
-- has the extension.  A role of our name that is more than we would make it is not trusted.

DO $roles$
DECLARE
    wanted text;
    known  record;
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
    END LOOP;
END
$roles$;

COMMENT ON ROLE cerebro_user    IS 'cerebro_db: may train, evaluate and predict; sees its own runs.';
COMMENT ON ROLE cerebro_monitor IS 'cerebro_db: may read progress and leaderboards of all runs, but no weights.';
COMMENT ON ROLE cerebro_admin   IS 'cerebro_db: a monitor who may also remove the runs of others.';
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
