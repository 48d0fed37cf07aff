-- The registry: versions of models by a name that users share, and the history of who did what with them.

-- The role that owns the tables of registered models and the function that writes them. It may do nothing else.
DO $role$
DECLARE
    known record;
BEGIN
    SELECT rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls
           OR EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE r.oid IN (m.roleid, m.member)) AS more
      INTO known
      FROM pg_catalog.pg_roles r
     WHERE rolname = 'cerebro_registry';
    IF NOT FOUND THEN
        CREATE ROLE cerebro_registry NOLOGIN;
    ELSIF known.more THEN
        RAISE EXCEPTION 'the role "cerebro_registry" exists already, and it has more rights than cerebro_db would give it,'
                        ' or members'
            USING ERRCODE = 'duplicate_object',
                  HINT = 'ALTER ROLE cerebro_registry RENAME TO another_name; makes room for it. Then try again.';
    END IF;
END
$role$;
COMMENT ON ROLE cerebro_registry IS
'cerebro_db: owns the tables of registered models. Nobody is a member of it, and it cannot log in.';

-- Greenplum's segments refuse AUTHORIZATION with a role that may not create schemas itself.
CREATE SCHEMA cerebro_registry;
ALTER SCHEMA cerebro_registry OWNER TO cerebro_registry;
COMMENT ON SCHEMA cerebro_registry IS
'cerebro_db: the tables of registered models, MODEL@VERSION and those beside it. cerebro.register() makes them, and who may read '
'which of them follows from cerebro.share().';
REVOKE ALL ON SCHEMA cerebro_registry FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_registry TO cerebro_user;

CREATE TABLE cerebro.registered_model (
    name          text        PRIMARY KEY CHECK (name ~ '^[a-z_][a-z0-9_]{0,39}$'),
    owner         regrole     NOT NULL,
    description   text        CHECK (octet_length(description) <= 1e5),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cerebro.registered_model IS
'The names of registered models. Only cerebro_registry inserts, and nobody updates or deletes.';

CREATE SEQUENCE cerebro.registry_event_id;
CREATE TABLE cerebro.registry_event (
    model   text        NOT NULL,
    id      bigint      NOT NULL DEFAULT nextval('cerebro.registry_event_id'),
    event   text        NOT NULL CHECK (event IN ('registered', 'unregistered', 'alias', 'shared', 'unshared')),
    version integer     CHECK (version > 0),
    alias   text        CHECK (alias ~ '^[a-z_][a-z0-9_]{0,39}$'),
    role    regrole,
    "right" text        CHECK ("right" IN ('use', 'read', 'alias')),
    by      text        NOT NULL,  -- the name that the user had then
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason  text        CHECK (octet_length(reason) <= 1e5),
    details json        CHECK (octet_length(details::text) <= 1e6),
    CHECK (event NOT IN ('registered', 'unregistered') OR version IS NOT NULL),
    CHECK ((event = 'alias') = (alias IS NOT NULL)),
    CHECK ((event IN ('shared', 'unshared')) = (role IS NOT NULL)),
    CHECK ((role IS NULL) = ("right" IS NULL))
);
-- Two calls that register a version of one model get different numbers: the second waits for the first.
CREATE UNIQUE INDEX registry_event_version ON cerebro.registry_event (model, version) WHERE event = 'registered';
CREATE INDEX registry_event_model ON cerebro.registry_event (model, id);
COMMENT ON TABLE cerebro.registry_event IS
'The history of the registry, from which its state follows: which versions there are, where each alias points, and who has '
'which right. Only cerebro_registry inserts, and nobody updates or deletes.';

-- As in 30_row_security.sql: on another server, the number of a role that was dropped may be that of another role.
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.registered_model', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.registry_event',
    'WHERE model IN (SELECT name FROM cerebro.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))'
    ' AND (role IS NULL OR role::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('cerebro.registry_event_id', '');
