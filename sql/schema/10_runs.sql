-- What was asked for: a run, its architectures, its configurations and its models.  These rows are written when the run
-- is created; a search policy may add models later.
--
-- For this file and for 20_log.sql:
-- * Rows are inserted, and deleted only by cerebro.forget(). They are never updated, so the history of a run cannot be
--   half-changed, and on Greenplum no statement locks a whole table. What is current is computed by views. Users have
--   neither right: whoever may update or delete may also lock a whole table, and with it everybody's runs.
-- * Every row has an owner, and row-level security lets users read and write their own rows only. The owner is a regrole:
--   the number of a role, which a dump contains as its name. So it follows when a role is renamed, a new role of an old
--   name inherits nothing, and a restored database has the owners that it had.
-- * Users can write any row about their own runs, and the views compute with the rows of all users. The CHECK
--   constraints refuse whatever would make such a computation fail or take long (text that is not a number, numbers that
--   overflow or vanish, moments before the calendar, JSON of another shape, values and lists that are too long): without
--   them, one user's row could end the queries of a monitor. tests/sql/rights/test_hostile_rows.py tries hostile values of
--   each column's type in every column, and what the views take out of the JSON in every JSON column.
-- * The bounds leave room for whatever the server itself writes. The length of a JSON is that of its text, because 1e9999
--   is short as it is given, and long as it is shown.
-- * Whatever views show of a column must be in bounds of its own; what only the owner sees may be as large as its use needs.
-- * Constraints named ..._is_known list the words of an enum in cerebro_db/core/events.py. A test compares them.

-- CACHE 1: the numbers of runs, events, decisions and requests then are in the order of the inserts. Greenplum's default
-- is a larger cache.
CREATE SEQUENCE cerebro.run_id CACHE 1;
CREATE SEQUENCE cerebro.event_id CACHE 1;
CREATE SEQUENCE cerebro.decision_id CACHE 1;
CREATE SEQUENCE cerebro.request_id CACHE 1;

CREATE TABLE cerebro.run (
    run               bigint      NOT NULL DEFAULT nextval('cerebro.run_id'),
    owner             regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    name              text,
    description       text,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    source_table      text        NOT NULL,  -- whose rows were packed
    packed_table      text        NOT NULL,
    validation_table  text,
    model_table       text        NOT NULL,
    selection_table   text        NOT NULL,
    arch_table        text        NOT NULL,
    epochs            integer     NOT NULL,
    evaluate_every    integer     NOT NULL,
    seed              bigint      NOT NULL,
    segments          integer     NOT NULL,
    dist_keys         integer[]   NOT NULL,
    configurations    integer     NOT NULL,
    rows_per_epoch    bigint      NOT NULL,
    storage           text        NOT NULL,
    options           jsonb       NOT NULL,
    layout            jsonb       NOT NULL,
    validation_layout jsonb,
    validation_rows   bigint,     -- of the validation table; NULL: there is none, or rows have folds
    packed_summary    jsonb       NOT NULL,
    version           text        NOT NULL,
    CHECK (epochs > 0 AND evaluate_every >= 0 AND segments BETWEEN 1 AND 10000 AND configurations BETWEEN 0 AND 1000000),
    CHECK (cardinality(dist_keys) = segments AND array_ndims(dist_keys) = 1 AND array_position(dist_keys, NULL) IS NULL),
    CHECK (rows_per_epoch BETWEEN 0 AND 1e12::bigint AND validation_rows BETWEEN 0 AND 1e12::bigint),
    CHECK (created_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (octet_length(name) <= 1e4),
    CHECK (octet_length(description) <= 1e5),
    CHECK (octet_length(source_table) <= 1000 AND octet_length(packed_table) <= 1000),
    CHECK (octet_length(model_table) <= 1000 AND octet_length(selection_table) <= 1000
           AND octet_length(arch_table) <= 1000),
    CHECK (octet_length(validation_table) <= 1000),
    CHECK (octet_length(storage) <= 100 AND octet_length(version) <= 100),
    CHECK (jsonb_typeof(options) = 'object' AND octet_length(options::text) <= 1e6),
    CHECK (octet_length(options ->> 'objective') <= 1000),
    CHECK (jsonb_typeof(layout) = 'object' AND octet_length(layout::text) <= 2e8),
    CHECK (jsonb_typeof(validation_layout) = 'object' AND octet_length(validation_layout::text) <= 2e8),
    CHECK (jsonb_typeof(packed_summary) = 'object' AND octet_length(packed_summary::text) <= 2e8),
    PRIMARY KEY (run, owner)
);
COMMENT ON TABLE cerebro.run IS
'One row per run: what the user asked for. What happened to the run is in cerebro.event.';

CREATE TABLE cerebro.architecture (
    run          bigint  NOT NULL,
    owner        regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model_id     integer NOT NULL,
    name         text    CHECK (octet_length(name) <= 1e4),
    given        json    NOT NULL CHECK (octet_length(given::text) <= 1e8),
    architecture json    NOT NULL CHECK (octet_length(architecture::text) <= 2e8),
    PRIMARY KEY (run, owner, model_id)
);
COMMENT ON TABLE cerebro.architecture IS
'The architectures of a run: as the user loaded them (given) and as they are trained (architecture).';

CREATE TABLE cerebro.configuration (
    run            bigint  NOT NULL,
    owner          regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    configuration  integer NOT NULL,
    place          integer NOT NULL,
    model_id       integer NOT NULL,
    compile_params text    NOT NULL,
    fit_params     text    NOT NULL,
    compile        jsonb   NOT NULL,
    fit            jsonb   NOT NULL,
    parameters     jsonb   NOT NULL,  -- the same flat, with those of the architecture (core/parameters/flat.py)
    chosen         jsonb,  -- the point of the search space; NULL: a row of the model selection table
    CHECK (octet_length(compile_params) <= 3e5 AND octet_length(fit_params) <= 3e5),
    CHECK (octet_length(compile::text) <= 1e7 AND octet_length(fit::text) <= 1e7),
    CHECK (jsonb_typeof(parameters) = 'object' AND octet_length(parameters::text) <= 1e7),
    CHECK (jsonb_typeof(chosen) = 'object' AND octet_length(chosen::text) <= 1e7),
    PRIMARY KEY (run, owner, configuration)
);
COMMENT ON TABLE cerebro.configuration IS
'The configurations of a run, as text and parsed: the rows of its model selection table, and those that were added.';

CREATE TABLE cerebro.model (
    run            bigint  NOT NULL,
    owner          regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model          integer NOT NULL CHECK (model > 0),
    configuration  integer NOT NULL,
    -- The segments of the hops of each epoch; NULL: each segment of the run once. If the run averages replicas, the last
    -- one is that of the average.
    visits         integer[],
    seed           bigint  NOT NULL,
    initial        text    NOT NULL,
    initial_sha256 text,
    parent         integer,    -- the model whose state after parent_hop hops this model starts from
    parent_hop     integer,
    fold           integer CHECK (fold > 0),  -- trained on the rows of all other folds; NULL: on all rows
    fold_rows      bigint  CHECK (fold_rows BETWEEN 0 AND 1e12::bigint),  -- rows of this fold (and group), for validation
    group_number   integer,  -- trained on the rows of this group; NULL: on all rows
    group_value    text,     -- the values of the group; several columns: a JSON array
    group_rows     bigint,   -- rows of the group
    validation_rows bigint,  -- rows for validation of the group; NULL: those of the run
    CONSTRAINT initial_is_known CHECK (initial IN ('random', 'weights', 'full')),
    CHECK (cardinality(visits) BETWEEN 1 AND 20000 AND array_ndims(visits) = 1),
    CHECK (octet_length(initial_sha256) <= 100),
    CHECK ((parent IS NULL) = (parent_hop IS NULL)),
    CHECK ((fold IS NULL) = (fold_rows IS NULL)),
    CONSTRAINT group_has_rows CHECK (
        (group_number IS NULL) = (group_rows IS NULL)
        AND (group_number IS NOT NULL OR num_nonnulls(group_value, validation_rows) = 0)
        AND group_number > 0 AND group_rows BETWEEN 0 AND 1e12::bigint
        AND octet_length(group_value) <= 5000),
    CONSTRAINT validation_rows_are_possible CHECK (validation_rows BETWEEN 0 AND 1e12::bigint),
    PRIMARY KEY (run, owner, model)
);
COMMENT ON TABLE cerebro.model IS
'The models of a run, numbered from 1. A model is what trains: it has a configuration, a seed, an initial state and'
' a list of segments to visit.';
