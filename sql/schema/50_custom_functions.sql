-- Custom losses and metrics: source text that an administrator registers.

CREATE TABLE cerebro.custom_function (
    name          text        NOT NULL,
    version       integer     NOT NULL CHECK (version > 0),
    kind          text        NOT NULL CHECK (kind IN ('loss', 'metric', 'both')),
    source        text,       -- NULL: the function is retired with this version
    sha256        text,
    description   text,
    registered_by name        NOT NULL DEFAULT current_user,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);
COMMENT ON TABLE cerebro.custom_function IS
'All versions of all custom losses and metrics. Rows are inserted and never changed. Trainer processes execute the '
'source with the rights of the server''s operating-system account, so a role that may insert rows (cerebro_admin) is'
' as powerful as that account.';
SELECT pg_catalog.pg_extension_config_dump('cerebro.custom_function', '');
