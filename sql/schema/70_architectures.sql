-- Architectures that users have added by a name of their own.

CREATE TABLE cerebro.added_architecture (
    owner        regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    name         text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    dropped      boolean     NOT NULL DEFAULT false,  -- a row that says so lets _drop_architecture() delete both
    architecture json        CHECK (octet_length(architecture::text) <= 1e8),
    parameters   text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(parameters) <= 1000),
    weights      bytea,  -- only of version 0.1.0; later ones use the table added_weights
    description  text        CHECK (octet_length(description) <= 1e5),
    added_at     timestamptz NOT NULL DEFAULT clock_timestamp()
                             CHECK (added_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (dropped = (architecture IS NULL)),
    PRIMARY KEY (owner, name, dropped)
);
COMMENT ON TABLE cerebro.added_architecture IS
'The architectures of cerebro.add_architecture(). Users insert and read their own rows. Nobody has the right to update or
delete, because whoever has it may also lock the whole table.';

DO $security$
DECLARE
    mark text := '';
BEGIN
    -- As in 30_row_security.sql: Greenplum restores a policy in addition to this one.
    IF pg_catalog.current_setting('gp_role', true) IS NOT NULL THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    ALTER TABLE cerebro.added_architecture ENABLE ROW LEVEL SECURITY;
    EXECUTE format(
        'CREATE POLICY %I ON cerebro.added_architecture USING (owner = (SELECT quote_ident(current_user)::regrole))'
        ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark);
    PERFORM pg_catalog.pg_extension_config_dump(
        'cerebro.added_architecture', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
END
$security$;
