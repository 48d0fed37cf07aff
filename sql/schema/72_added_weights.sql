-- The weights that training of an added architecture starts from, in pieces: a value has 1 GB at most.

CREATE TABLE cerebro.added_weights (
    owner   regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    name    text    NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),  -- of the architecture
    start   bigint  NOT NULL CHECK (start >= 0),  -- the position of the first byte
    payload bytea   NOT NULL CHECK (octet_length(payload) BETWEEN 1 AND 16777216),
    PRIMARY KEY (owner, name, start)
);
ALTER TABLE cerebro.added_weights ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON TABLE cerebro.added_weights IS
'The weights of the architectures of cerebro.add_architecture(). Users insert and read their own rows, as in added_architecture.';

DO $security$
DECLARE
    mark text := '';
BEGIN
    -- As in 30_row_security.sql: Greenplum restores a policy in addition to this one.
    IF pg_catalog.current_setting('gp_role', true) IS NOT NULL THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    ALTER TABLE cerebro.added_weights ENABLE ROW LEVEL SECURITY;
    EXECUTE format(
        'CREATE POLICY %I ON cerebro.added_weights USING (owner = (SELECT quote_ident(current_user)::regrole))'
        ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark);
    PERFORM pg_catalog.pg_extension_config_dump(
        'cerebro.added_weights', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
END
$security$;
