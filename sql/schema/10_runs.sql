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
--   constraints refuse whatever would make such a computation fail (text that is not a number, numbers that overflow
--   or vanish, moments before the calendar, values too long for a row): without them, one user's row could end the
--   queries of a monitor with an error.
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
    source_table      text        NOT NULL,
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
    source_summary    jsonb       NOT NULL,
    version           text        NOT NULL,
    CHECK (epochs > 0 AND evaluate_every >= 0 AND segments > 0 AND configurations BETWEEN 0 AND 1000000),
    CHECK (COALESCE((validation_layout ->> 'rows')::bigint, 0) >= 0),
    CHECK (created_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (COALESCE(octet_length(name), 0) <= 1e6 AND COALESCE(octet_length(description), 0) <= 1e6
           AND octet_length(source_table) <= 1e6 AND COALESCE(octet_length(validation_table), 0) <= 1e6
           AND octet_length(model_table) <= 1e6 AND octet_length(selection_table) <= 1e6
           AND octet_length(arch_table) <= 1e6 AND octet_length(storage) <= 1e6 AND octet_length(version) <= 1e6
           AND octet_length(options::text) <= 1e6 AND octet_length(layout::text) <= 2e8
           AND COALESCE(octet_length(validation_layout::text), 0) <= 2e8),
    PRIMARY KEY (run, owner)
);
COMMENT ON TABLE cerebro.run IS
'One row per run: what the user asked for. What happened to the run is in cerebro.event.';

CREATE TABLE cerebro.architecture (
    run          bigint  NOT NULL,
    owner        regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model_id     integer NOT NULL,
    name         text    CHECK (octet_length(name) <= 1e6),
    given        json    NOT NULL,
    architecture json    NOT NULL,
    PRIMARY KEY (run, owner, model_id)
);
COMMENT ON TABLE cerebro.architecture IS
'The architectures of a run: as the user loaded them (given) and as they are trained (architecture).';

CREATE TABLE cerebro.configuration (
    run            bigint  NOT NULL,
    owner          regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    mst_key        integer NOT NULL,
    place          integer NOT NULL,
    model_id       integer NOT NULL,
    compile_params text    NOT NULL,
    fit_params     text    NOT NULL,
    compile        jsonb   NOT NULL,
    fit            jsonb   NOT NULL,
    chosen         jsonb,  -- the point of the search space; NULL: a row of the model selection table
    CHECK (octet_length(compile_params) <= 1e8 AND octet_length(fit_params) <= 1e8
           AND octet_length(compile::text) <= 1e8 AND COALESCE(octet_length(chosen::text), 0) <= 1e7),
    PRIMARY KEY (run, owner, mst_key)
);
COMMENT ON TABLE cerebro.configuration IS
'The configurations of a run, as text and parsed: the rows of its model selection table, and those that were added.';

CREATE TABLE cerebro.model (
    run            bigint  NOT NULL,
    owner          regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model          integer NOT NULL CHECK (model > 0),
    mst_key        integer NOT NULL,
    -- The segments of the hops of each epoch; NULL: each segment of the run once. If the run averages replicas, the last
    -- one is that of the average.
    visits         integer[],
    seed           bigint  NOT NULL,
    initial        text    NOT NULL,
    initial_sha256 text,
    parent         integer,    -- the model whose state after parent_hop hops this model starts from
    parent_hop     integer,
    fold           integer CHECK (fold > 0),  -- trained on the rows of all other folds; NULL: on all rows
    fold_rows      bigint  CHECK (fold_rows BETWEEN 0 AND 1e12::bigint),  -- rows of this fold, for validation
    CONSTRAINT initial_is_known CHECK (initial IN ('random', 'weights', 'full')),
    CHECK (cardinality(visits) > 0),
    CHECK ((parent IS NULL) = (parent_hop IS NULL)),
    CHECK ((fold IS NULL) = (fold_rows IS NULL)),
    PRIMARY KEY (run, owner, model)
);
COMMENT ON TABLE cerebro.model IS
'The models of a run, numbered from 1. A model is what trains: it has a configuration, a seed, an initial state and'
' a list of segments to visit.';
