-- sql/schema/00_roles.sql
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
                  HINT = 'Look at what the schema contains, rename or drop it, and try again.';
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

-- sql/schema/10_runs.sql
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
    fold_rows      bigint  CHECK (fold_rows BETWEEN 0 AND 1e12::bigint),  -- rows of this fold, for validation
    CONSTRAINT initial_is_known CHECK (initial IN ('random', 'weights', 'full')),
    CHECK (cardinality(visits) BETWEEN 1 AND 20000 AND array_ndims(visits) = 1),
    CHECK (octet_length(initial_sha256) <= 100),
    CHECK ((parent IS NULL) = (parent_hop IS NULL)),
    CHECK ((fold IS NULL) = (fold_rows IS NULL)),
    PRIMARY KEY (run, owner, model)
);
COMMENT ON TABLE cerebro.model IS
'The models of a run, numbered from 1. A model is what trains: it has a configuration, a seed, an initial state and'
' a list of segments to visit.';

-- sql/schema/20_log.sql
-- What happened: the log of all runs.  The head of 10_runs.sql says which rules hold for these tables.

CREATE TABLE cerebro.event (
    event_id bigint      NOT NULL DEFAULT nextval('cerebro.event_id'),
    run      bigint      NOT NULL,
    owner    regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    event    text        NOT NULL,
    model    integer,    -- NULL: the event concerns the whole run
    detail   jsonb       NOT NULL DEFAULT '{}',
    CONSTRAINT event_is_known CHECK (event IN (
        'created', 'submitted', 'started', 'extended', 'cancel requested', 'finished', 'failed', 'cancelled',
        'materialized', 'not materialized', 'built', 'fused', 'not fused', 'unit failed', 'model failed',
        'model revived', 'forgotten')),
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (jsonb_typeof(detail) = 'object' AND octet_length(detail::text) <= 1e6),
    CHECK (octet_length(detail ->> 'message') <= 1e5 AND octet_length(detail ->> 'reason') <= 1e5),
    CHECK (COALESCE((detail ->> 'pid')::integer, 1) > 0),
    -- ISO 8601 with a time zone, as JSON has timestamps: any session can parse it, whatever its DateStyle.
    CHECK (detail ->> 'backend_start'
           ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?[+-][0-9]{2}(:[0-9]{2}){0,2}$'
           AND isfinite((detail ->> 'backend_start')::timestamptz)),
    CHECK (COALESCE((detail ->> 'epochs')::integer, 1) > 0),
    CHECK (COALESCE((detail ->> 'parameters')::bigint, 0) >= 0),
    CHECK (octet_length(detail ->> 'engine') <= 100),
    CHECK (detail ->> 'sqlstate' ~ '^[0-9A-Z]{5}$'),
    PRIMARY KEY (run, owner, event_id)
);
-- The views look up the events of one model, and whether a run was extended.
CREATE INDEX event_of_model ON cerebro.event (run, owner, model) WHERE model IS NOT NULL;
CREATE INDEX event_extended ON cerebro.event (run, owner) WHERE event = 'extended';
COMMENT ON TABLE cerebro.event IS
'The events of runs and of their models: created, started, finished, failed, cancelled and so on.';

CREATE TABLE cerebro.attempt (
    run        bigint      NOT NULL,
    owner      regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model      integer     NOT NULL,
    hop        integer     NOT NULL,
    segment    integer     NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    worker_pid integer     NOT NULL DEFAULT pg_backend_pid(),
    CHECK (hop > 0 AND started_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00')
);
CREATE INDEX attempt_run ON cerebro.attempt (run, owner);
COMMENT ON TABLE cerebro.attempt IS
'Every attempt at a visit, committed before the visit starts.';

CREATE TABLE cerebro.hop (
    run            bigint           NOT NULL,
    owner          regrole          NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model          integer          NOT NULL,
    hop            integer          NOT NULL,
    kind           text             NOT NULL DEFAULT 'train',
    epoch          integer          NOT NULL,
    segment        integer          NOT NULL,
    started_at     timestamptz      NOT NULL,
    finished_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    worker_pid     integer          NOT NULL DEFAULT pg_backend_pid(),
    trainer_pid    integer          NOT NULL,
    rows           bigint           NOT NULL,
    steps          bigint           NOT NULL,
    loss           double precision NOT NULL, -- of these rows
    metric_name    text,
    metric         double precision,
    metrics        jsonb            NOT NULL, -- of the epoch's rows up to and with these
    metric_states  text,                      -- what the metrics have counted; the values follow from it
    state_bytes    bigint           NOT NULL,
    state_sha256   text             NOT NULL,
    weights_offset bigint           NOT NULL,
    weights_bytes  bigint           NOT NULL,
    seconds        jsonb            NOT NULL,
    CHECK (hop > 0),
    CHECK (octet_length(state_sha256) <= 100),
    CONSTRAINT kind_is_known CHECK (kind IN ('train', 'train replica', 'average')),
    PRIMARY KEY (run, owner, model, hop)
);
COMMENT ON TABLE cerebro.hop IS
'Every committed visit of a model to a segment, with its results, its durations and a checksum of the state that it'
' left. If replicas of a model train at the same time, also the averages of their states.';

CREATE TABLE cerebro.evaluation (
    run         bigint           NOT NULL,
    owner       regrole          NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model       integer          NOT NULL,
    epoch       integer          NOT NULL,
    dataset     text             NOT NULL,
    part        integer          NOT NULL,
    segment     integer          NOT NULL,
    started_at  timestamptz      NOT NULL,
    finished_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    worker_pid  integer          NOT NULL DEFAULT pg_backend_pid(),
    rows        bigint           NOT NULL,
    loss        double precision NOT NULL, -- of this part
    metric_name text,
    metric      double precision,
    metrics     jsonb            NOT NULL, -- of all parts, with the part that was evaluated last; else empty
    metric_states text,                    -- what the metrics have counted in this part
    seconds     jsonb            NOT NULL,
    CONSTRAINT dataset_is_known CHECK (dataset IN ('training', 'validation')),
    PRIMARY KEY (run, owner, model, epoch, dataset, part)
);
COMMENT ON TABLE cerebro.evaluation IS
'Every evaluation of a model on one part of a data set.';

CREATE TABLE cerebro.objective (
    run   bigint           NOT NULL,
    owner regrole          NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model integer          NOT NULL,
    epoch integer          NOT NULL,
    hop   integer          NOT NULL, -- the last one of the epoch
    at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    value double precision NOT NULL,
    kept  boolean          NOT NULL, -- whether the state is kept because no epoch before was as good
    CHECK (epoch > 0 AND hop > 0 AND at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (value = 0 OR abs(value) BETWEEN 1e-100 AND 1e100),
    PRIMARY KEY (run, owner, model, epoch)
);
COMMENT ON TABLE cerebro.objective IS
'The value of the run''s objective after each complete epoch of a model, if the run has the option objective or keeps '
'best states. Committed with the hop or the evaluation that completes the epoch.';

CREATE TABLE cerebro.decision (
    decision_id bigint      NOT NULL DEFAULT nextval('cerebro.decision_id'),
    run         bigint      NOT NULL,
    owner       regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    model       integer,    -- NULL: the decision concerns the whole run
    epoch       integer,    -- how many epochs of the model were complete
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    decision    text        NOT NULL,
    reason      text,
    policy      text        NOT NULL, -- the name of the search policy, or the word for somebody else
    request     bigint,     -- the person's request that the decision answers
    detail      jsonb       NOT NULL DEFAULT '{}',
    CONSTRAINT decision_is_known CHECK (decision IN ('continue', 'stop', 'add', 'go on', 'extend', 'budget', 'refuse')),
    CHECK (epoch >= 0 AND at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK ((model IS NULL) = (epoch IS NULL)),
    CHECK (COALESCE((detail ->> 'hop')::integer, 0) >= 0),
    CHECK (octet_length(reason) <= 1e5),
    CHECK (octet_length(policy) <= 1000),
    CHECK (jsonb_typeof(detail) = 'object' AND octet_length(detail::text) <= 1e8),
    -- As many as a grid has points.
    CHECK (jsonb_array_length(CASE jsonb_typeof(detail -> 'added') WHEN 'array' THEN detail -> 'added' END) <= 1e5),
    PRIMARY KEY (run, owner, decision_id)
);
CREATE INDEX decision_of_model ON cerebro.decision (run, owner, model) WHERE model IS NOT NULL;
COMMENT ON TABLE cerebro.decision IS
'What was decided about a run or one of its models: by the search policy, by a rule of the user, at the request of a '
'person, or because the budget was spent. Committed before it takes effect. Resume and replay read the decisions '
'instead of asking again.';

CREATE TABLE cerebro.request (
    request_id bigint      NOT NULL DEFAULT nextval('cerebro.request_id'),
    run        bigint      NOT NULL,
    owner      regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    by         name        NOT NULL DEFAULT current_user, -- an administrator may steer the runs of others
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    action     text        NOT NULL,
    reason     text,
    detail     jsonb       NOT NULL DEFAULT '{}',
    CONSTRAINT action_is_known CHECK (action IN ('stop', 'go on', 'add', 'extend', 'budget')),
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (octet_length(reason) <= 1e5),
    -- An architecture is shown to nobody.
    CHECK (jsonb_typeof(detail) = 'object' AND octet_length(detail::text) <= 1e8),
    CHECK (action <> 'budget' OR octet_length(detail::text) <= 1e4),
    CHECK (octet_length(detail ->> 'parameters') <= 1e6),
    CHECK (COALESCE((detail ->> 'model')::integer, 1) > 0 AND COALESCE((detail #>> '{new,parent}')::integer, 1) > 0
           AND COALESCE((detail ->> 'epochs')::integer, 1) > 0),
    PRIMARY KEY (run, owner, request_id)
);
COMMENT ON TABLE cerebro.request IS
'What people ask of a run while it is there: stop a model, add one and so on. The session that drives the run carries'
' each request out and records that in cerebro.decision.';

-- The views add up durations, losses and rows, and divide them: the bounds keep the results in range, however many rows
-- there are. cerebro_db/core/metrics.py keeps what trainers measure within the same bounds.
-- In the strict mode of a path an array is no list of its elements. What a path finds makes a row wrong.
DO $computable$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['hop', 'evaluation']
    LOOP
        EXECUTE format(
            $sql$
            ALTER TABLE cerebro.%I
                ADD CHECK (started_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
                ADD CHECK (finished_at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
                ADD CHECK (rows BETWEEN 0 AND 1e12::bigint),
                ADD CHECK (epoch > 0 AND segment >= 0),
                ADD CHECK (octet_length(metric_name) <= 2000),
                ADD CHECK (octet_length(metric_states) < 4000000),
                ADD CHECK (loss = 0 OR abs(loss) BETWEEN 1e-100 AND 1e100 OR loss IN ('NaN', 'Infinity', '-Infinity')),
                ADD CHECK (metric = 0 OR abs(metric) BETWEEN 1e-100 AND 1e100
                           OR metric IN ('NaN', 'Infinity', '-Infinity')),
                -- One number for each stage.
                ADD CHECK (jsonb_typeof(seconds) = 'object' AND octet_length(seconds::text) <= 10000
                           AND NOT jsonb_path_exists(seconds, 'strict $.* ? (@.type() != "number" || @ > 1e12 || @ < -1e12
                                                               || (@ != 0 && @ > -1e-100 && @ < 1e-100))')),
                -- A number, null, or a list of them for each metric (cerebro_db/core/metrics.py: MOST_ON_RECORD).
                ADD CHECK (jsonb_typeof(metrics) = 'object' AND octet_length(metrics::text) <= 4e6
                           AND NOT jsonb_path_exists(metrics, 'strict $.* ? (@.type() != "number" && @.type() != "null"
                                                               && @.type() != "array")')
                           AND jsonb_array_length(jsonb_path_query_array(metrics, 'strict $.*')) <= 10000
                           AND jsonb_array_length(jsonb_path_query_array(metrics, 'lax $.*[*]')) <= 30000)
            $sql$, named);
    END LOOP;
END
$computable$;

CREATE TABLE cerebro.heartbeat (
    run        bigint      NOT NULL,
    owner      regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows_done  bigint      NOT NULL,
    rows_total bigint      NOT NULL,
    seconds_left double precision,
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (seconds_left BETWEEN 0 AND 1e18),
    CHECK (rows_done BETWEEN 0 AND 1e18::bigint AND rows_total BETWEEN 0 AND 1e18::bigint)
);
CREATE INDEX heartbeat_run ON cerebro.heartbeat (run, owner, at);
COMMENT ON TABLE cerebro.heartbeat IS
'How many rows a run has trained on so far, including visits that are not committed yet, and the estimated seconds '
'until it ends. About one row per second '
'while the run is driven.';

-- sql/schema/30_row_security.sql
-- Users see and write only their own rows of the runs and their log; dumps contain all rows.

DO $security$
DECLARE
    named text;
    mark text := '';
BEGIN
    -- Greenplum's pg_dump writes the policies of an extension's tables, too. In a restored database they come in addition
    -- to those that are made here. They say the same, and so they only need other names.
    IF pg_catalog.version() LIKE '%Greenplum%' THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'objective', 'decision', 'heartbeat', 'request']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I ENABLE ROW LEVEL SECURITY', named);
        -- A user who reads all of their runs reads no rows of others. The index has the run, too, because PostgreSQL 18
        -- prefers it to the primary key where a query asks for one run.
        EXECUTE format('CREATE INDEX %I ON cerebro.%I (owner, run)', named || '_of_owner', named);
        EXECUTE format(
            'CREATE POLICY %I ON cerebro.%I USING (owner = (SELECT quote_ident(current_user)::regrole))'
            ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark, named);
        -- A role that was dropped has no name in a dump, and on another server its number may be that of another role.
        PERFORM pg_catalog.pg_extension_config_dump(
            format('cerebro.%I', named)::regclass, 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
    END LOOP;

    -- An administrator may ask the run of any user to end, and may write no other event.
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.event FOR INSERT
            WITH CHECK (event = 'cancel requested' AND pg_has_role(current_user, 'cerebro_admin', 'USAGE'))
    $policy$, 'admin_cancels' || mark);

    -- An administrator may steer the run of any user. Whoever asks is named in the request.
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.request FOR INSERT
            WITH CHECK (pg_has_role(current_user, 'cerebro_admin', 'USAGE'))
    $policy$, 'admin_steers' || mark);
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.request AS RESTRICTIVE FOR INSERT WITH CHECK (by = current_user)
    $policy$, 'own_name' || mark);
END
$security$;

SELECT pg_catalog.pg_extension_config_dump('cerebro.run_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.event_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.decision_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.request_id', '');

-- sql/schema/40_types.sql
-- Types that internal functions return.

CREATE TYPE cerebro._chunk AS (start bigint, payload bytea);
COMMENT ON TYPE cerebro._chunk IS 'A piece of a model state: the bytes of payload begin at the offset start of the state.';

CREATE TYPE cerebro._prediction AS (output integer, rank integer, classes bytea, numbers bytea);
COMMENT ON TYPE cerebro._prediction IS
'The predictions of a model for a chunk of rows at one output: all its numbers or, for one rank, the class of each '
'row with its probability.';

-- sql/schema/50_custom_functions.sql
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

-- sql/schema/60_limits.sql
-- How much of the server each role may use.

CREATE TABLE cerebro.role_limit (
    role                 regrole NOT NULL PRIMARY KEY,
    max_running_runs     integer CHECK (max_running_runs >= 0),
    max_segments         integer CHECK (max_segments >= 0),
    max_state_bytes      bigint  CHECK (max_state_bytes >= 0),
    max_run_seconds      integer CHECK (max_run_seconds > 0),
    min_free_connections integer CHECK (min_free_connections >= 0),
    max_waiting_seconds  integer CHECK (max_waiting_seconds BETWEEN 0 AND 86400),
    max_trainer_mb       integer CHECK (max_trainer_mb > 0),
    set_by               name        NOT NULL DEFAULT current_user,
    set_at               timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cerebro.role_limit IS
'The limits that cerebro.set_limits() has set, per role. The row with the role ''-'' holds for every role; a value '
'in a role''s own row takes precedence.';
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.role_limit', 'WHERE role::oid = 0 OR role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');

-- sql/schema/70_architectures.sql
-- Architectures that users have added by a name of their own.

CREATE TABLE cerebro.added_architecture (
    owner        regrole     NOT NULL DEFAULT quote_ident(current_user)::regrole,
    name         text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    dropped      boolean     NOT NULL DEFAULT false,  -- a row that says so lets _drop_architecture() delete both
    architecture json        CHECK (octet_length(architecture::text) <= 1e8),
    parameters   text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(parameters) <= 1000),
    weights      bytea,
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
    IF pg_catalog.version() LIKE '%Greenplum%' THEN
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

-- sql/schema/80_greenplum.sql
-- Tables that Greenplum needs besides, and how the others are distributed.  On PostgreSQL this does nothing.

DO $greenplum$
DECLARE
    named text;
BEGIN
    IF pg_catalog.version() NOT LIKE '%Greenplum%' THEN
        RETURN;
    END IF;

    -- SELECT f() FROM cerebro.place WHERE __dist_key__ = <constant> runs f on one segment. Greenplum's hash decides which
    -- key belongs to which segment, so the table has enough keys to find several on every segment.
    EXECUTE 'CREATE TABLE cerebro.place (__dist_key__ integer PRIMARY KEY) DISTRIBUTED BY (__dist_key__)';
    EXECUTE $sql$COMMENT ON TABLE cerebro.place IS
        'Distribution keys. A statement that names one of them runs on the segment where Greenplum''s hash puts '
        'the key.'$sql$;
    INSERT INTO cerebro.place
    SELECT pg_catalog.generate_series(0, GREATEST(4096, 64 * count(*)::integer))
      FROM pg_catalog.gp_segment_configuration WHERE role = 'p' AND content >= 0;

    -- The bodies of our functions; api/95_greenplum_calls.sql says why.
    EXECUTE 'CREATE SCHEMA cerebro_python';
    EXECUTE $sql$COMMENT ON SCHEMA cerebro_python IS
        'The Python bodies of the functions of the schema cerebro. Call those of the schema cerebro.'$sql$;

    -- Trainers on the segments read the source of custom functions from their own segment.
    EXECUTE 'ALTER TABLE cerebro.custom_function SET DISTRIBUTED REPLICATED';
    -- And so do worker processes with the limit of their trainers.
    EXECUTE 'ALTER TABLE cerebro.role_limit SET DISTRIBUTED REPLICATED';

    -- All rows about a run are stored on one segment, so that joins between them need no data movement. Tables without
    -- a primary key are distributed by their first column, run, as they are.
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'hop', 'evaluation', 'objective',
                                 'decision', 'request']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I SET DISTRIBUTED BY (run)', named);
    END LOOP;
END
$greenplum$;

-- sql/api/05_code.sql
-- Where the Python code of the functions lies.

CREATE OR REPLACE FUNCTION cerebro._code_folder() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    folder text := @code@;
BEGIN
    IF (pg_stat_file(folder || '/cerebro_plpy', true)).isdir IS NOT TRUE THEN
        RAISE EXCEPTION 'the code of cerebro_db is not there: this server has no folder %', folder
            USING ERRCODE = 'undefined_file',
                  HINT = 'Install cerebro_db for PostgreSQL ' || current_setting('server_version') || ': its package, or make '
                         || 'install with the pg_config of this server. pg_upgrade does not do it.';
    END IF;
    RETURN folder;
END
$$;
COMMENT ON FUNCTION cerebro._code_folder() IS
'The folder of the Python code, of which every function in Python asks when a session calls the first one. It is found '
'in the share folder of the server that runs, because pg_upgrade takes the functions to another server.';

-- sql/api/10_sessions.sql
-- Worker sessions: how the server logs in to itself as one of its users, and what such a session calls on its segment.
-- docs/security.md describes the rights of each login.

CREATE OR REPLACE FUNCTION cerebro._drop_worker_roles() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
DECLARE
    ended record;
BEGIN
    FOR ended IN
        SELECT w.rolname AS name,
               EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = w.oid)
                   AS has_dependents,
               (SELECT string_agg(DISTINCT quote_ident(g.rolname), ', ')
                  FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = w.oid) AS groups
          FROM pg_roles w
         WHERE w.rolname ~ '^cerebro_w_[0-9]+_[0-9a-f]+$' AND w.rolvaliduntil < clock_timestamp()
               AND NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a WHERE a.usesysid = w.oid)
         ORDER BY random()  -- a role that cannot be dropped must not always be the first
    LOOP
        BEGIN
            IF NOT ended.has_dependents THEN
                EXECUTE format('DROP ROLE %I', ended.name);
            ELSIF ended.groups IS NOT NULL THEN
                -- The role owns objects or has privileges in some database. It keeps those, and nothing else.
                EXECUTE format('REVOKE %s FROM %I', ended.groups, ended.name);
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                EXIT;  -- Another login drops the role, or somebody grants something to it. The next login tries again.
            WHEN OTHERS THEN
                NULL;  -- Another login has just dropped the role.
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro._drop_worker_roles() IS
'Drops the worker roles whose sessions have ended. A worker role that owns objects, or has privileges of its own, '
'loses its memberships instead.';

CREATE OR REPLACE FUNCTION cerebro._enrol(owner oid, verifier text) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known  record;
    worker name;
BEGIN
    IF COALESCE(verifier !~ '^SCRAM-SHA-256[$]', true) THEN
        RAISE EXCEPTION 'this is no SCRAM verifier' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM cerebro._drop_worker_roles();
    SELECT rolname, rolcanlogin AND COALESCE(rolvaliduntil > clock_timestamp(), true) AS may_log_in
      INTO known FROM pg_roles WHERE oid = owner;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no role with the OID %', owner USING ERRCODE = 'undefined_object';
    ELSIF NOT known.may_log_in THEN
        RETURN NULL;
    END IF;
    -- A role that exists already is never used: somebody may act as it, or own something of it. The verifier contains
    -- random bytes.
    worker := format('cerebro_w_%s_%s', owner, left(encode(sha256(verifier::bytea), 'hex'), 12));
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L VALID UNTIL %L IN ROLE %I, cerebro_worker',
                   worker, verifier, clock_timestamp() + interval '30 seconds', known.rolname);
    -- The user may have been renamed meanwhile, and another role may have the name.
    IF NOT EXISTS (SELECT FROM pg_auth_members WHERE roleid = owner AND member = worker::regrole) THEN
        RAISE EXCEPTION 'the role "%" has been renamed', known.rolname USING ERRCODE = 'undefined_object';
    END IF;
    RETURN worker;
END
$$;
COMMENT ON FUNCTION cerebro._enrol(oid, text) IS
'Creates the worker role of one session of a user, with a password that is valid for 30 seconds, and drops the worker '
'roles of sessions that have ended. Returns the name of the role. NULL: the user may not log in. The server calls this '
'through the login cerebro_enrol.';

CREATE OR REPLACE FUNCTION cerebro._close_login(worker name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(worker !~ '^cerebro_w_[0-9]+_[0-9a-f]+$', true) THEN
        RAISE EXCEPTION '"%" is no worker role', worker USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Not NOLOGIN: then the session could start no parallel workers, nor processes on the segments of Greenplum.
    EXECUTE format('ALTER ROLE %I PASSWORD NULL VALID UNTIL %L', worker, 'epoch');
END
$$;
COMMENT ON FUNCTION cerebro._close_login(name) IS
'Ends the validity of the password of a worker role for good. The session of the role goes on.';

CREATE OR REPLACE FUNCTION cerebro._setup_logins() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.setup_logins(plpy)
$py$;
COMMENT ON FUNCTION cerebro._setup_logins() IS
'Sets the password of the login cerebro_enrol. CREATE EXTENSION calls it. A superuser calls it again after a '
'restore on another server.';

CREATE OR REPLACE FUNCTION cerebro._sessions() RETURNS TABLE (pid integer, backend_start timestamptz, transaction text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Without this a transaction would go on seeing the sessions that there were when it looked first.
    SELECT pg_catalog.pg_stat_clear_snapshot();
    SELECT a.pid, a.backend_start, to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')
      FROM pg_catalog.pg_stat_activity a WHERE a.backend_start IS NOT NULL;
$$;
COMMENT ON FUNCTION cerebro._sessions() IS
'The sessions that are open now. A process id can be reused, so a session is identified by its process id and its '
'start time. transaction: when its transaction began, which identifies the transaction; NULL: it is in none.';

CREATE OR REPLACE FUNCTION cerebro._dismiss_waiting() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
      FROM pg_stat_activity a
     WHERE a.usename ~ '^cerebro_w_[0-9]+_[0-9a-f]+$' AND a.application_name = 'cerebro_db waiting' AND a.state = 'idle'
$$;
COMMENT ON FUNCTION cerebro._dismiss_waiting() IS
'Ends the idle worker sessions that all users keep for their next call, and returns their number. Called when '
'connections or memory are short.';

-- A statement of its own could not be run in a function that REFRESH MATERIALIZED VIEW, CREATE INDEX or ANALYZE calls.
CREATE OR REPLACE FUNCTION cerebro._close_cursor(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    opened CONSTANT refcursor := name;
BEGIN
    IF (name OPERATOR(pg_catalog.~) '^cerebro_[0-9a-f]+$') IS NOT TRUE THEN
        RAISE EXCEPTION '% is no cursor of cerebro_db', pg_catalog.quote_nullable(name)
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    CLOSE opened;
END
$$;
COMMENT ON FUNCTION cerebro._close_cursor(text) IS
'Closes a cursor that our functions have opened in this session.';

-- What a worker session calls on its segment.  Each function acts for its caller, and can use only what belongs to the
-- session that calls it: no argument is a path or a credential.

CREATE OR REPLACE FUNCTION cerebro._warm_up(engine text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up_here(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._warm_up(text) IS
'Has the server of this segment import an engine, and does not wait for that.';

CREATE OR REPLACE FUNCTION cerebro._worker_open(settings jsonb) RETURNS jsonb
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_open(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._worker_open(jsonb) IS
'Starts the trainer of this session, or describes the one that is running.';

CREATE OR REPLACE FUNCTION cerebro._data_in(handle text, variable text, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.data_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._data_in(text, text, bytea) IS
'Adds one variable of one packed buffer to the row cache of this session.';

CREATE OR REPLACE FUNCTION cerebro._state_in(state text, start bigint, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_in(text, bigint, bytea) IS
'Adds one chunk to a model state that this session is receiving.';

CREATE OR REPLACE FUNCTION cerebro._work(work text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.work(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._work(text) IS
'Carries out one order of the driver, with the trainer of this session where the order is for it, and listens for a '
'cancel meanwhile.';

CREATE OR REPLACE FUNCTION cerebro._state_out(visit integer, index integer) RETURNS SETOF cerebro._chunk
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_out(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_out(integer, integer) IS
'The model state that a visit in this session has left, in chunks. index: place of the model in the order, from 0, '
'counted over all groups.';

CREATE OR REPLACE FUNCTION cerebro._worker_close() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_close(plpy)
$py$;
COMMENT ON FUNCTION cerebro._worker_close() IS
'Ends the trainer of this session and removes its files.';

CREATE OR REPLACE FUNCTION cerebro._gpus() RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpus_here(plpy)
$py$;
COMMENT ON FUNCTION cerebro._gpus() IS
'The number of GPUs of the machine on which the function runs: on Greenplum, the machine of a segment.';

-- sql/api/15_visible_rows.sql
-- The rows of the log that the current user may see.  The views on runs read these views and no table of the log, so the
-- rule of who sees what stands here and nowhere else.
--
-- A user reads its own rows through an index, however many rows others have. BETWEEN and not =: the planner expects few
-- rows in a range whose bounds it does not know, but as many as the average owner has for an unknown owner, and then it
-- would read the rows of all users. Whoever may see the runs of all reads the whole table: the second part, whose
-- condition is asked once and before any row is read.

DO $visible$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'objective', 'decision', 'heartbeat', 'request']
    LOOP
        EXECUTE format(
            $sql$
            CREATE OR REPLACE VIEW cerebro.%1$I AS
            SELECT *
              FROM cerebro.%2$I
             WHERE NOT (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'))
               AND owner::oid BETWEEN (SELECT quote_ident(current_user)::regrole::oid)
                                  AND (SELECT quote_ident(current_user)::regrole::oid)
             UNION ALL
            SELECT *
              FROM cerebro.%2$I
             WHERE (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'))
            $sql$, '_visible_' || named, named);
        EXECUTE format('COMMENT ON VIEW cerebro.%I IS %L', '_visible_' || named,
                       format('The rows of cerebro.%s that the current user may see: its own, or for members of '
                              'cerebro_monitor all. The views on runs read it; users cannot.', named));
    END LOOP;
END
$visible$;

-- sql/api/20_runs.sql
-- The views on runs.  People and BI tools read them: columns are plain scalars where possible, and each has a comment.
--
-- For all views of runs: users see their own runs, members of cerebro_monitor see all runs, but no values of rows
-- (tests/sql/rights/monitor_columns.txt says of each column why it has none). A view reads its tables with the rights of the
-- extension's owner, so row-level security does not apply; all rows come from the views of 15_visible_rows.sql.
-- security_barrier makes their filter run before the conditions of a query, whose functions could otherwise see rows of
-- other users.
-- A view over all runs must not take time in proportion to the square of their number. The planner knows little of joins
-- by several columns: where it expects few rows, it reads one table again for each row of another. So no view may depend
-- on what it expects:
-- * Rows of several tables are gathered by UNION ALL, and aggregated once. What each row needs of other rows (the name of
--   its architecture, the plan of its run) it gets from a window over the gathered rows.
-- * Where two sets of rows are joined, it is by FULL JOIN ... USING, which is never a loop over the rows of both sides, and
--   which no condition of a query turns into another join. num_nonnulls(), which says nothing to the planner, then leaves
--   out what one of the sides lacks. Joins are by the number of the owner: of names the planner knows nothing.
-- * A condition on the run reaches every table, but not through GROUPING SETS, nor through a FULL JOIN of a FULL JOIN: there
--   is one in each level of a query, and grouping, windows or UNION ALL are between the levels.
-- * LEFT JOIN is for the sessions of the server only. They are few.
-- tests/sql/runs/test_many_runs.py counts the rows that each view reads.
-- The tables have the number of the owner (10_runs.sql), and the views show the name, which a query can compare with a text.
-- CREATE OR REPLACE VIEW can add columns only at the end.

CREATE OR REPLACE VIEW cerebro.run_plan WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, r.name AS run_name, r.description, r.created_at, r.source_table, r.packed_table,
       r.validation_table, r.model_table,
       -- cerebro.resume(run, epochs => N) extends a run; cerebro.run keeps the number that was asked for first.
       COALESCE(extended.epochs, r.epochs) AS epochs,
       r.evaluate_every, r.seed, r.segments, r.dist_keys, r.configurations, r.rows_per_epoch, r.storage,
       -- These contain what rows contain, or may: a monitor does not see them.
       CASE WHEN own.is THEN r.options END AS options,
       CASE WHEN own.is THEN r.layout END AS layout,
       CASE WHEN own.is THEN r.validation_layout END AS validation_layout,
       CASE WHEN own.is THEN r.packed_summary END AS packed_summary,
       r.version AS cerebro_version
  FROM cerebro._visible_run r
  FULL JOIN (SELECT run, owner, max((detail ->> 'epochs')::integer) AS epochs
               FROM cerebro._visible_event
              WHERE event = 'extended'
              GROUP BY run, owner) extended USING (run, owner)
 CROSS JOIN LATERAL (SELECT owner = (SELECT quote_ident(current_user)::regrole) AS is) own
 WHERE num_nonnulls(r.seed) = 1;
COMMENT ON VIEW cerebro.run_plan IS
'What each run was asked to do, including later extensions.';
COMMENT ON COLUMN cerebro.run_plan.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_plan.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_plan.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.run_plan.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.run_plan.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.run_plan.validation_table IS
'Packed table that the run evaluates on; NULL: none. If the rows have folds, the table that it trains on.';
COMMENT ON COLUMN cerebro.run_plan.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.run_plan.epochs IS
'Planned number of epochs per model. cerebro.resume(run, epochs => N) raises it.';
COMMENT ON COLUMN cerebro.run_plan.evaluate_every IS
'Number of epochs between two evaluations of a model; each model is also evaluated after its last epoch. 0: after '
'the last epoch only.';
COMMENT ON COLUMN cerebro.run_plan.seed IS
'Seed of the run: initial weights, order of visits and shuffling follow from it.';
COMMENT ON COLUMN cerebro.run_plan.segments IS 'Number of segments that hold the packed rows.';
COMMENT ON COLUMN cerebro.run_plan.dist_keys IS 'Value of __dist_key__ of each segment, in the order of the segments.';
COMMENT ON COLUMN cerebro.run_plan.configurations IS
'Number of configurations when the run was created; 0: a search proposes them.';
COMMENT ON COLUMN cerebro.run_plan.rows_per_epoch IS 'Number of rows of the packed table, which is one epoch.';
COMMENT ON COLUMN cerebro.run_plan.storage IS
'Prefix of the names of the run''s state tables in the schema cerebro_state.';
COMMENT ON COLUMN cerebro.run_plan.options IS
'Options of the run after defaults were filled in (JSON). Visible to the owner only, because the query of stop_when may '
'contain values.';
COMMENT ON COLUMN cerebro.run_plan.layout IS
'Columns and partitions of the packed table when the run was created (JSON). Visible to the owner only, because it '
'contains class labels, categories, means and deviations.';
COMMENT ON COLUMN cerebro.run_plan.validation_layout IS
'The same for the validation table (JSON), visible to the owner only; NULL: no validation table.';
COMMENT ON COLUMN cerebro.run_plan.packed_summary IS
'Row of the packed table''s summary (JSON). Visible to the owner only, because it contains labels.';
COMMENT ON COLUMN cerebro.run_plan.cerebro_version IS 'Version of cerebro_db that created the run.';

CREATE OR REPLACE VIEW cerebro._plan AS
SELECT run, owner, max(seed) AS seed, max(name) AS name, max(source_table) AS source_table,
       max(validation_table) AS validation_table, max(model_table) AS model_table, max(segments) AS segments,
       COALESCE(max(extended), max(epochs)) AS epochs, max(objective) AS objective, max(direction) AS direction,
       max(keep) AS keep
  FROM (SELECT run, owner, seed, name, source_table, validation_table, model_table, segments, epochs,
               options ->> 'objective' AS objective, options ->> 'direction' AS direction, options ->> 'keep' AS keep,
               NULL::integer AS extended
          FROM cerebro._visible_run
         UNION ALL
        SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, (detail ->> 'epochs')::integer
          FROM cerebro._visible_event
         WHERE event = 'extended') fact
 GROUP BY run, owner
HAVING max(seed) IS NOT NULL;  -- users can write rows about runs that do not exist
COMMENT ON VIEW cerebro._plan IS
'What the other views need to know of the runs that the current user may see, with the numbers of the owners. Users cannot '
'read it.';

CREATE OR REPLACE VIEW cerebro._runs AS
WITH told AS (
    -- Of the latest event of each sort its words, in an array: the greatest array is that of the latest event, because the
    -- number comes first in it.
    SELECT run, owner, max(name) AS name, max(description) AS description, max(source_table) AS source_table,
           max(packed_table) AS packed_table, max(model_table) AS model_table,
           -- Those that the run began with, and those that were added. A search adds all of its own.
           GREATEST(max(configurations), count(configuration))::integer AS configurations, max(segments) AS segments,
           COALESCE(max(extended), max(epochs)) AS epochs, max(created_at) AS created_at,
           max(words) FILTER (WHERE event IN ('created', 'started', 'finished', 'failed', 'cancelled')) AS last,
           max(words) FILTER (WHERE event = 'started') AS started,
           max(words) FILTER (WHERE event IN ('materialized', 'not materialized')) AS made,
           min(at) FILTER (WHERE event = 'started') AS started_at,
           max(at) FILTER (WHERE event IN ('finished', 'failed', 'cancelled')) AS ended_at,
           bool_or(event = 'submitted') AS submitted,
           max(words) FILTER (WHERE event = 'cancel requested') AS request,
           max(at) FILTER (WHERE event = 'cancel requested') AS requested_at
      FROM (SELECT run, owner, name, description, source_table, packed_table, model_table, configurations, segments, epochs,
                   created_at, NULL::text AS event, NULL::timestamptz AS at, NULL::integer AS extended, NULL::text[] AS words,
                   NULL::integer AS configuration
              FROM cerebro._visible_run
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   event, at, CASE event WHEN 'extended' THEN (detail ->> 'epochs')::integer END,
                   ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'pid', detail ->> 'backend_start',
                         detail ->> 'message', detail ->> 'sqlstate', detail ->> 'reason',
                         left(detail ->> 'transaction', 40)] COLLATE "C", NULL
              FROM cerebro._visible_event
             WHERE model IS NULL
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration
              FROM cerebro._visible_configuration) fact
     GROUP BY run, owner
    HAVING max(epochs) IS NOT NULL AND count(event) > 0  -- users can write rows about runs that do not exist
), known AS (
    SELECT t.*,
           -- The session that is to begin a run finds the request and does not begin it.
           CASE WHEN t.last[2] = 'created' AND t.request[1] > t.last[1] THEN 'cancelled' ELSE t.last[2] END AS word,
           COALESCE(t.made[1], '') > t.last[1] AS was_made_last,
           -- Before a session drives a run, the one that created it.
           COALESCE(t.started, t.last) AS driver,
           t.owner = (SELECT quote_ident(current_user)::regrole) AS own
      FROM told t
     WHERE t.last IS NOT NULL
)
SELECT k.run,
       k.owner,
       k.name AS run_name,
       CASE WHEN k.word NOT IN ('created', 'started') THEN k.word
            WHEN driver.pid IS NULL THEN 'interrupted'
            WHEN k.word = 'created' THEN 'created'
            ELSE 'running'
       END AS status,
       k.source_table,
       k.packed_table,
       k.model_table,
       k.configurations,
       k.segments,
       k.epochs,
       k.created_at,
       k.started_at,
       CASE WHEN k.word <> 'started' THEN COALESCE(k.ended_at, CASE k.word WHEN 'cancelled' THEN k.requested_at END)
       END AS ended_at,
       -- The texts of errors may contain what rows contain: a monitor sees no more than the class of the error.
       CASE WHEN k.made[2] = 'not materialized' AND k.was_made_last
            THEN 'its model tables were not made' || COALESCE(CASE WHEN k.own THEN ': ' || k.made[5] END, '')
                 || '; SELECT cerebro.materialize(' || k.run || ', ''another_name'') makes them'
            -- The event 'materialized' is committed together with the tables, so it is missing if they are: the session
            -- ended before it had made them, or its caller has rolled back.
            WHEN k.word = 'finished' AND NOT k.was_made_last AND NOT holder.is_making
            THEN 'its models are in no table; SELECT cerebro.materialize(' || k.run || ', '
                 || quote_literal(k.model_table) || ') makes it'
            WHEN k.word = 'cancelled' AND k.last[2] = 'created' THEN 'the run was cancelled before it began'
            WHEN k.own THEN k.last[5]
            WHEN k.last[5] IS NOT NULL
            THEN concat('only its owner sees the message', ' (SQLSTATE ' || k.last[6] || ')')
       END AS message,
       k.last[3]::integer AS driver_pid,
       k.description,
       -- Whether a run has ended is decided here and nowhere else. A submitted run that has finished still makes its
       -- model tables, in the session that drove it; if that session is gone, nobody will make them.
       CASE k.word
            WHEN 'created' THEN driver.pid IS NULL
            WHEN 'started' THEN driver.pid IS NULL
            WHEN 'finished' THEN NOT (k.submitted AND holder.is_making AND COALESCE(k.started[1], '') > COALESCE(k.made[1], ''))
            ELSE true
       END AS ended,
       CASE k.word WHEN 'finished' THEN k.last[7] END AS reason
  FROM known k
  LEFT JOIN cerebro._sessions() driver
         ON driver.pid = k.driver[3]::integer AND driver.backend_start = k.driver[4]::timestamptz
 -- Whether the driver is still in the transaction that trains the run and then makes the model tables. Not by a lock: on
 -- Greenplum pg_locks asks the segments, and a query that has a subquery over this view could not do that.
 CROSS JOIN LATERAL (
    -- The session itself knows whether it has made them.
    SELECT COALESCE(driver.transaction = k.driver[8] AND driver.pid <> pg_backend_pid(), false) AS is_making
 ) holder;
COMMENT ON VIEW cerebro._runs IS
'The runs that the current user may see and their status, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.runs WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, run_name, status, source_table, packed_table, model_table, configurations, segments,
       epochs, created_at, started_at, ended_at, message, driver_pid, description, ended, reason
  FROM cerebro._runs;
COMMENT ON VIEW cerebro.runs IS
'The runs and their status.';
COMMENT ON COLUMN cerebro.runs.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.runs.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.runs.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.status IS
'created, running, finished, failed, cancelled or interrupted. interrupted: the session that drove the run, or was to '
'begin it, is gone. SELECT cerebro.resume(run) continues a run that failed, was cancelled or was interrupted.';
COMMENT ON COLUMN cerebro.runs.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.runs.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.runs.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.runs.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.runs.segments IS 'Number of segments that the run trains on.';
COMMENT ON COLUMN cerebro.runs.epochs IS 'Planned number of epochs per model.';
COMMENT ON COLUMN cerebro.runs.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.runs.started_at IS 'When a session first began to drive the run.';
COMMENT ON COLUMN cerebro.runs.ended_at IS
'When the run finished, failed or was cancelled; NULL while it runs and when it was interrupted.';
COMMENT ON COLUMN cerebro.runs.message IS
'Why the run failed or was cancelled; others than the owner see the SQLSTATE only, because the message may contain values. '
'Of a finished run: that its models are in no table, why (for the owner), and what makes it.';
COMMENT ON COLUMN cerebro.runs.driver_pid IS
'Process id of the session that drives the run; when interrupted, of the session that drove it last.';
COMMENT ON COLUMN cerebro.runs.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.ended IS
'True if no session works on the run any more: it is not running, and a submitted run has also made its model '
'tables (or message says why not).';
COMMENT ON COLUMN cerebro.runs.reason IS
'budget, if the run has finished because its budget was spent; else NULL.';

-- sql/api/22_results.sql
-- The views on what models have learned.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro._learning_curve AS
WITH unit AS (
    SELECT h.run, h.owner, h.model, h.epoch,
           h.rows AS trained, h.loss * h.rows AS training_loss,
           -- The metrics of a visit are those of the epoch so far: metrics such as a recall are no means of the visits.
           ARRAY[h.hop, h.metric] AS training_metric, h.metric_name,
           (h.seconds ->> 'train')::double precision AS seconds, h.finished_at,
           NULL::bigint AS validated, NULL::double precision AS validation_loss,
           NULL::double precision AS validation_metric
      FROM cerebro._visible_hop h
     UNION ALL
    -- The metric of all parts is recorded with the part that was evaluated last.
    SELECT e.run, e.owner, e.model, e.epoch, NULL, NULL, NULL, NULL, NULL, NULL, e.rows, e.loss * e.rows, e.metric
      FROM cerebro._visible_evaluation e
     WHERE e.dataset = 'validation'
), epoch AS (
    SELECT run, owner, model, epoch,
           sum(trained) AS trained, sum(training_loss) / sum(trained) AS training_loss,
           (max(training_metric))[2] AS training_metric, max(metric_name) AS metric_name,
           sum(seconds) AS seconds, max(finished_at) AS finished_at,
           sum(validated) AS validated, sum(validation_loss) / NULLIF(sum(validated), 0) AS validation_loss,
           max(validation_metric) AS validation_metric, count(trained) AS visits
      FROM unit
     GROUP BY run, owner, model, epoch
    HAVING sum(trained) > 0
), model AS (
    SELECT run, owner, model, configuration, visits, fold, fold_rows,
           max(validation_rows) OVER of_run AS validation_rows, max(segments) OVER of_run AS segments
      FROM (SELECT run, owner, model, configuration, cardinality(visits) AS visits, fold, fold_rows,
                   NULL::bigint AS validation_rows, NULL::integer AS segments
              FROM cerebro._visible_model
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, validation_rows, segments
              FROM cerebro._visible_run) u
    WINDOW of_run AS (PARTITION BY run, owner)
)
SELECT run, owner, m.configuration, t.epoch,
       t.training_loss, t.training_metric,
       -- Validation rows keep the order of their table, so some parts are no sample of the whole: there is no figure until
       -- all parts are evaluated.
       CASE WHEN t.validated >= COALESCE(m.fold_rows, m.validation_rows) THEN t.validation_loss END AS validation_loss,
       CASE WHEN t.validated >= COALESCE(m.fold_rows, m.validation_rows) THEN t.validation_metric END AS validation_metric,
       t.metric_name,
       LEAST(t.trained, 1e18)::bigint AS rows, t.seconds AS training_seconds, t.finished_at AS trained_at,
       model, t.visits >= COALESCE(m.visits, m.segments) AS complete, m.fold
  FROM epoch t
  FULL JOIN model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration, m.segments) = 3;
COMMENT ON VIEW cerebro._learning_curve IS
'The learning curves that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.learning_curve WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, configuration, epoch, training_loss, training_metric, validation_loss,
       validation_metric, metric_name, rows, training_seconds, trained_at, model, fold
  FROM cerebro._learning_curve;
COMMENT ON VIEW cerebro.learning_curve IS
'Loss and metric of each model after each epoch.';
COMMENT ON COLUMN cerebro.learning_curve.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.learning_curve.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.learning_curve.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.learning_curve.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.training_loss IS
'Mean loss over the epoch''s rows, measured while training, as Keras prints it.';
COMMENT ON COLUMN cerebro.learning_curve.training_metric IS
'First metric over the epoch''s rows, measured while training; NULL: no metric is configured. cerebro.metrics has all '
'metrics.';
COMMENT ON COLUMN cerebro.learning_curve.validation_loss IS
'Loss on the validation table after the epoch; NULL until all of its parts are evaluated, and for epochs without '
'evaluation.';
COMMENT ON COLUMN cerebro.learning_curve.validation_metric IS
'First metric on the validation table after the epoch; NULL as validation_loss.';
COMMENT ON COLUMN cerebro.learning_curve.metric_name IS 'Name of the first metric, as Keras reports it.';
COMMENT ON COLUMN cerebro.learning_curve.rows IS
'Number of rows trained in the epoch. Below the size of the table while the epoch is under way.';
COMMENT ON COLUMN cerebro.learning_curve.training_seconds IS
'Seconds of computation in the epoch, summed over its visits; without reading rows and moving states.';
COMMENT ON COLUMN cerebro.learning_curve.trained_at IS 'When the last committed visit of the epoch ended.';
COMMENT ON COLUMN cerebro.learning_curve.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';

CREATE OR REPLACE VIEW cerebro._leaderboard AS
WITH fact AS (
    SELECT run, owner, model, configuration, cardinality(visits) AS visits, parent, NULL::integer AS hops,
           NULL::double precision[] AS trained, NULL::double precision[] AS validated,
           NULL::double precision[] AS least_trained, NULL::double precision[] AS least_validated,
           NULL::double precision[] AS latest, NULL::double precision[] AS least, NULL::double precision[] AS most,
           NULL::double precision[] AS kept,
           NULL::text[] AS trouble, NULL::text[] AS stop, NULL::bigint AS weights, NULL::text AS engine,
           NULL::text AS metric_name, NULL::integer AS rung, fold
      FROM cerebro._visible_model
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL
      FROM cerebro._visible_hop
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, ARRAY[epoch, training_loss, training_metric],
           CASE WHEN validation_loss IS NOT NULL THEN ARRAY[epoch, validation_loss, validation_metric] END,
           -- NaN is larger than all other numbers.
           CASE WHEN complete AND training_loss > '-Infinity' AND training_loss < 'Infinity'
                THEN ARRAY[training_loss, epoch] END,
           CASE WHEN validation_loss > '-Infinity' AND validation_loss < 'Infinity' THEN ARRAY[validation_loss, epoch] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, metric_name, NULL, NULL
      FROM cerebro._learning_curve
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           ARRAY[epoch, value], ARRAY[value, epoch], ARRAY[value, -epoch], CASE WHEN kept THEN ARRAY[epoch, value] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro._visible_objective
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN event <> 'built'
                THEN ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'reason'] COLLATE "C" END,
           NULL,
           CASE WHEN event = 'built' THEN (detail ->> 'parameters')::bigint END,
           -- A model that went on with another engine has a second event.
           CASE WHEN event = 'built' THEN lpad(event_id::text, 20, '0') || (detail ->> 'engine') END,
           NULL, NULL, NULL
      FROM cerebro._visible_event
     WHERE model IS NOT NULL AND event IN ('built', 'model failed', 'model revived')
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN decision <> 'continue'
                THEN ARRAY[lpad(decision_id::text, 20, '0'), decision, reason, policy] COLLATE "C" END,
           NULL, NULL, NULL,
           -- Policies with rungs give such reasons.
           CASE WHEN decision <> 'go on'
                THEN substring(reason FROM '^(?:waits at|passes) rung ([0-9]{1,9})')::integer END, NULL
      FROM cerebro._visible_decision
     WHERE model IS NOT NULL
       AND (decision IN ('stop', 'go on') OR decision = 'continue' AND reason LIKE 'passes rung %')
), model AS (
    -- The greatest array is that of the latest epoch, event or decision: the number comes first in it. Of equal values of the
    -- objective the one of the earlier epoch is best.
    SELECT run, owner, model, max(configuration) AS configuration, max(visits) AS visits, max(parent) AS parent,
           COALESCE(sum(hops), 0) AS hops,
           max(trained) AS trained, max(validated) AS validated,
           min(least_trained) AS least_trained, min(least_validated) AS least_validated,
           max(latest) AS latest, min(least) AS least, max(most) AS most, max(kept) AS kept,
           max(trouble) AS trouble, CASE WHEN (max(stop))[2] = 'stop' THEN max(stop) END AS stop,
           max(weights) AS weights, substr(max(engine), 21) AS engine, max(metric_name) AS metric_name,
           max(rung) AS rung, max(fold) AS fold,
           COALESCE((max(trouble))[2] = 'model failed', false) AS has_failed
      FROM fact
     GROUP BY run, owner, model
    HAVING max(configuration) IS NOT NULL  -- users can write rows about models that do not exist
), configured AS (
    -- The configurations, each with its architecture's name and what its run was asked to do.
    SELECT run, owner, configuration, model_id, parameters, chosen,
           COALESCE(max(architecture) OVER (PARTITION BY run, owner, model_id), 'architecture ' || model_id) AS architecture,
           max(epochs) OVER of_run AS epochs, max(segments) OVER of_run AS segments,
           max(source_table) OVER of_run AS source_table, max(validation_table) OVER of_run AS validation_table,
           max(model_table) OVER of_run AS model_table, max(run_name) OVER of_run AS run_name,
           max(objective) OVER of_run AS objective, max(direction) OVER of_run AS direction, max(keep) OVER of_run AS keep
      FROM (SELECT run, owner, configuration, model_id, parameters, chosen,
                   NULL::text AS architecture, NULL::integer AS epochs, NULL::integer AS segments,
                   NULL::text AS source_table, NULL::text AS validation_table, NULL::text AS model_table,
                   NULL::text AS run_name, NULL::text AS objective, NULL::text AS direction, NULL::text AS keep
              FROM cerebro._visible_configuration
             UNION ALL
            SELECT run, owner, NULL, model_id, NULL, NULL, name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
              FROM cerebro._visible_architecture
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, epochs, segments, source_table, validation_table,
                   model_table, name, objective, direction, keep
              FROM cerebro._plan) u
    WINDOW of_run AS (PARTITION BY run, owner)
), told AS (
    SELECT run, owner, m.model, configuration, m.visits, m.parent, m.hops, m.trained, m.validated, m.trouble, m.stop,
           m.weights, m.engine, m.metric_name, m.rung, m.fold, m.has_failed,
           c.architecture, c.parameters, c.chosen,
           c.epochs, c.segments, c.source_table, c.model_table, c.run_name,
           owner = (SELECT quote_ident(current_user)::regrole) AS own,
           c.objective AS asked,
           COALESCE(c.objective, CASE WHEN c.validation_table IS NULL THEN 'loss' ELSE 'val_loss' END) AS objective,
           CASE WHEN c.direction = 'max' THEN -1 ELSE 1 END AS sign,
           CASE WHEN c.objective IS NULL
                THEN CASE WHEN c.validation_table IS NULL THEN m.trained[2] ELSE m.validated[2] END
                WHEN c.keep = 'best' THEN m.kept[2]
                ELSE m.latest[2]
           END AS objective_value,
           CASE WHEN c.objective IS NULL
                THEN CASE WHEN c.validation_table IS NULL THEN m.least_trained ELSE m.least_validated END
                WHEN c.direction = 'max' THEN ARRAY[m.most[1], -m.most[2]]
                ELSE m.least
           END AS best
      FROM model m
      FULL JOIN configured c USING (run, owner, configuration)
     WHERE num_nonnulls(m.model, c.model_id, c.segments) = 3
), folded AS (
    -- Of each configuration, the figures of the folds. A copy of a model is none of them: it goes on from a state.
    SELECT told.*,
           bool_or(fold IS NOT NULL) OVER (PARTITION BY run, owner) AS has_folds,
           fold IS NULL AND parent IS NULL AS on_all_rows,
           count(fold) FILTER (WHERE parent IS NULL) OVER configuration AS folds,
           count(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS valued,
           avg(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS mean,
           stddev_samp(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS spread,
           count(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS evaluated,
           avg(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS loss,
           avg(validated[3]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS metric
      FROM told
    WINDOW configuration AS (PARTITION BY run, owner, configuration)
), figured AS (
    SELECT f.*,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN objective_value WHEN valued = folds THEN mean END AS value,
           CASE WHEN has_folds AND on_all_rows AND valued = folds THEN spread END AS spread_of_folds,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[2] WHEN evaluated = folds THEN loss END
               AS validation_loss,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[3] WHEN evaluated = folds THEN metric END
               AS validation_metric
      FROM folded f
)
SELECT t.run,
       (row_number() OVER (PARTITION BY t.run, t.owner
                           ORDER BY t.fold IS NOT NULL,
                                    t.has_failed,
                                    CASE WHEN t.asked IS NULL AND NOT t.has_folds
                                         THEN COALESCE(t.validated[2], t.trained[2])
                                         ELSE t.sign * t.value
                                    END NULLS LAST,
                                    t.configuration, t.model))::integer AS rank,
       t.configuration,
       t.architecture,
       t.parameters,
       CASE WHEN t.has_failed THEN 'failed'
            WHEN t.stop IS NOT NULL THEN 'stopped'
            WHEN t.hops >= t.epochs::bigint * COALESCE(t.visits, t.segments) THEN 'finished'
            WHEN t.hops > 0 THEN 'training'
            ELSE 'waiting'
       END AS status,
       t.hops / COALESCE(t.visits, t.segments) AS epochs_done,
       t.trained[2] AS training_loss,
       t.trained[3] AS training_metric,
       t.validation_loss,
       t.validation_metric,
       t.metric_name,
       t.weights,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them.
       CASE WHEN t.has_failed THEN CASE WHEN t.own THEN t.trouble[3] END
            WHEN t.own OR t.stop[4] <> 'rule' THEN t.stop[3]
       END AS reason,
       t.source_table,
       t.model_table,
       t.run_name,
       t.owner,
       t.engine,
       t.model,
       t.objective,
       t.value AS objective_value,
       t.best[2]::integer AS best_epoch,
       t.best[1] AS best_value,
       t.parent,
       t.stop[4] AS stopped_by,
       t.rung,
       t.chosen,
       t.fold,
       t.spread_of_folds AS spread
  FROM figured t;
COMMENT ON VIEW cerebro._leaderboard IS
'The models that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.leaderboard WITH (security_barrier) AS
SELECT run, rank, configuration, architecture, parameters, status, epochs_done, training_loss, training_metric,
       validation_loss, validation_metric, metric_name, weights, reason, source_table, model_table,
       run_name, pg_get_userbyid(owner) AS owner, engine, model, objective, objective_value, best_epoch, best_value, parent,
       stopped_by, rung, chosen, fold, spread
  FROM cerebro._leaderboard;
COMMENT ON VIEW cerebro.leaderboard IS
'The models of each run with their latest losses and metrics. Rank 1 is the best model.';
COMMENT ON COLUMN cerebro.leaderboard.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.leaderboard.rank IS
'Rank within the run by objective_value, the best first. In runs without the option objective by the latest loss: the '
'validation loss if there is one, else the training loss. Of equal models the one with the smaller number comes first, so '
'no rank occurs twice. Failed models come last. In runs with folds, the models on all '
'rows come first, by the mean over the folds of their configuration; then come the models of single folds.';
COMMENT ON COLUMN cerebro.leaderboard.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.leaderboard.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.leaderboard.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.leaderboard.status IS
'waiting (no visit committed yet), training, finished (all epochs done), stopped (a decision ended it early; it may go on)'
' or failed.';
COMMENT ON COLUMN cerebro.leaderboard.epochs_done IS 'Number of completed epochs.';
COMMENT ON COLUMN cerebro.leaderboard.training_loss IS 'Training loss of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.training_metric IS
'Training metric of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.validation_loss IS
'Latest validation loss; of a model of a fold, the loss on the rows of the fold. Of a model on all rows in a run with '
'folds, the mean over the folds.';
COMMENT ON COLUMN cerebro.leaderboard.validation_metric IS 'Validation metric of the same epoch as validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.metric_name IS
'Name of the first metric, as Keras reports it; NULL before the first committed visit. cerebro.metrics has all metrics.';
COMMENT ON COLUMN cerebro.leaderboard.weights IS
'Number of weights of the model; NULL until it is built.';
COMMENT ON COLUMN cerebro.leaderboard.reason IS 'Why the model failed or was stopped.';
COMMENT ON COLUMN cerebro.leaderboard.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.leaderboard.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.leaderboard.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.leaderboard.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.leaderboard.engine IS
'Engine that trains the model: tensorflow, jax or torch; NULL until the model is built.';
COMMENT ON COLUMN cerebro.leaderboard.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.leaderboard.objective IS
'Name of the metric that says which model is best: the option objective, else val_loss (with a validation table) or loss.';
COMMENT ON COLUMN cerebro.leaderboard.objective_value IS
'Value of the objective in the epoch whose state the model tables get: the latest one, or with the option keep => best the '
'best one. NULL: no epoch has a value yet. Of a model on all rows in a run with folds, the mean over the folds; NULL: not '
'every fold has a value.';
COMMENT ON COLUMN cerebro.leaderboard.best_epoch IS
'Epoch with the best value of the objective so far; of equal values the earlier epoch.';
COMMENT ON COLUMN cerebro.leaderboard.best_value IS 'Value of the objective in best_epoch.';
COMMENT ON COLUMN cerebro.leaderboard.parent IS
'Number of the model from whose state the model began; NULL: it began from a state of its own.';
COMMENT ON COLUMN cerebro.leaderboard.rung IS
'Last rung that the model has reached, from 1, in a search with rungs (asha, halving, hyperband); NULL: none.';
COMMENT ON COLUMN cerebro.leaderboard.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.leaderboard.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';
COMMENT ON COLUMN cerebro.leaderboard.spread IS
'Of a model on all rows in a run with folds: the standard deviation (of a sample) of objective_value over the folds.';
COMMENT ON COLUMN cerebro.leaderboard.stopped_by IS
'Who stopped the model: the name of the search policy, rule, request or budget; NULL: it was not stopped.';

CREATE OR REPLACE VIEW cerebro.cross_validation WITH (security_barrier) AS
SELECT b.run,
       min(b.rank) AS rank,
       b.configuration,
       b.architecture,
       b.parameters,
       b.objective,
       min(b.objective_value) FILTER (WHERE b.fold IS NULL) AS mean,
       min(b.spread) AS spread,
       min(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS smallest,
       max(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS largest,
       count(b.fold)::integer AS folds,
       count(b.objective_value) FILTER (WHERE b.fold IS NOT NULL AND b.status <> 'failed') AS folds_done,
       min(b.epochs_done) FILTER (WHERE b.fold IS NOT NULL) AS epochs_done,
       min(b.model) FILTER (WHERE b.fold IS NULL) AS model,
       b.chosen,
       b.owner
  FROM cerebro.leaderboard b
 WHERE b.parent IS NULL
 GROUP BY b.run, b.owner, b.configuration, b.architecture, b.parameters, b.objective, b.chosen
HAVING count(b.fold) > 0;
COMMENT ON VIEW cerebro.cross_validation IS
'The configurations of runs with folds: how good each is over the folds. Rank 1 is the best configuration.';
COMMENT ON COLUMN cerebro.cross_validation.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.cross_validation.rank IS
'Rank within the run by mean. Configurations without a mean come last.';
COMMENT ON COLUMN cerebro.cross_validation.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.cross_validation.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.cross_validation.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.cross_validation.objective IS
'Name of the metric that says which configuration is best: the option objective, else val_loss.';
COMMENT ON COLUMN cerebro.cross_validation.mean IS
'Mean of the objective over the folds, each fold counted once; NULL: not every fold has a value.';
COMMENT ON COLUMN cerebro.cross_validation.spread IS
'Standard deviation (of a sample) of the objective over the folds; NULL as mean.';
COMMENT ON COLUMN cerebro.cross_validation.smallest IS 'Smallest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.largest IS 'Largest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.folds IS 'Number of folds.';
COMMENT ON COLUMN cerebro.cross_validation.folds_done IS
'Number of folds whose model has a value of the objective and has not failed.';
COMMENT ON COLUMN cerebro.cross_validation.epochs_done IS 'Number of epochs that the model of each fold has completed.';
COMMENT ON COLUMN cerebro.cross_validation.model IS
'Number of the model of the configuration that is trained on all rows.';
COMMENT ON COLUMN cerebro.cross_validation.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.cross_validation.owner IS 'The user who owns the run.';

CREATE OR REPLACE VIEW cerebro.metrics WITH (security_barrier) AS
WITH figures AS (
    (SELECT DISTINCT ON (run, owner, model, epoch) run, owner, model, epoch, 'training'::text AS dataset, metrics
       FROM cerebro._visible_hop
      ORDER BY run, owner, model, epoch, hop DESC)
     UNION ALL
    (SELECT DISTINCT ON (run, owner, model, epoch, dataset) run, owner, model, epoch,
            CASE dataset WHEN 'training' THEN 'training, after' ELSE dataset END, metrics
       FROM cerebro._visible_evaluation
      WHERE metrics <> '{}'  -- they are with the part that was evaluated last, and are those of all parts
      ORDER BY run, owner, model, epoch, dataset, part)
), numbers AS NOT MATERIALIZED (
    -- What is no number here becomes NULL.
    SELECT run, owner, f.model, f.epoch, f.dataset, named.metric, jsonb_typeof(named.value) = 'array' AS listed,
           COALESCE(single.label, (single.place - 1)::text) AS label,
           CASE WHEN jsonb_typeof(single.value) = 'number'
                THEN CASE WHEN abs((single.value #>> '{}')::numeric) < 1e-290 THEN 0.0
                          WHEN abs((single.value #>> '{}')::numeric) < 1e290
                          THEN (single.value #>> '{}')::double precision
                     END
           END AS value
      FROM figures f
      -- The labels of the classes; monitors see no class values. With the layout itself in the lists' condition,
      -- Greenplum would move it with each value.
      FULL JOIN (SELECT run, owner, seed,
                        CASE WHEN owner = (SELECT quote_ident(current_user)::regrole)
                                  AND layout #> '{outputs,1}' IS NULL
                                  AND jsonb_typeof(layout #> '{outputs,0,preparation,labels}') = 'array'
                             THEN layout #> '{outputs,0,preparation,labels}'
                        END AS labels
                   FROM cerebro._visible_run) r USING (run, owner)
     CROSS JOIN LATERAL jsonb_each(f.metrics) AS named (metric, value)
     CROSS JOIN LATERAL ROWS FROM (
               jsonb_array_elements(CASE jsonb_typeof(named.value)
                                         WHEN 'array' THEN named.value
                                         ELSE jsonb_build_array(named.value)
                                    END),
               jsonb_array_elements_text(
                   CASE WHEN named.metric ~ '^(f1|fbeta)_score' AND jsonb_typeof(named.value) = 'array'
                        THEN r.labels
                   END)
           ) WITH ORDINALITY AS single (value, label, place)
     WHERE single.value IS NOT NULL  -- there may be more labels
       AND num_nonnulls(r.seed) = 1
), told AS (
    -- The mean of a list, and besides each number of it.
    SELECT run, owner, model, epoch, dataset, metric, NULL AS label,
           CASE WHEN count(value) = count(*) THEN avg(value) END AS value
      FROM numbers
     GROUP BY run, owner, model, epoch, dataset, metric
     UNION ALL
    SELECT run, owner, model, epoch, dataset, metric, label, value FROM numbers WHERE listed
     UNION ALL
    SELECT run, owner, model, epoch, 'training', 'loss', NULL, training_loss FROM cerebro._learning_curve
     UNION ALL
    SELECT run, owner, model, epoch, 'validation', 'loss', NULL, validation_loss
      FROM cerebro._learning_curve
     WHERE validation_loss IS NOT NULL
     UNION ALL
    SELECT run, owner, e.model, e.epoch, 'training, after', 'loss', NULL, e.loss
      FROM (SELECT run, owner, model, epoch, sum(loss * rows) / NULLIF(sum(rows), 0) AS loss, sum(rows) AS rows
              FROM cerebro._visible_evaluation
             WHERE dataset = 'training'
             GROUP BY run, owner, model, epoch) e
      FULL JOIN cerebro._visible_run r USING (run, owner)
     WHERE CASE WHEN e.rows >= r.rows_per_epoch THEN true END  -- all parts
)
SELECT run, model, m.configuration, t.epoch, t.dataset,
       CASE WHEN t.label IS NULL THEN t.metric ELSE format('%s[%s]', t.metric, t.label) END AS metric,
       t.value,
       pg_get_userbyid(owner) AS owner
  FROM told t
  FULL JOIN cerebro._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration) = 2;
COMMENT ON VIEW cerebro.metrics IS
'The loss and all metrics of each model after each epoch, one row each.';
COMMENT ON COLUMN cerebro.metrics.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.metrics.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.metrics.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.metrics.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.metrics.dataset IS
'training (measured over the epoch''s rows while training), validation (measured after the epoch, on all parts of the '
'validation table, or on the rows of the fold), or in runs of MADlib''s functions training, after (measured after the epoch, on the '
'training table).';
COMMENT ON COLUMN cerebro.metrics.metric IS
'loss, or the name of the metric as Keras reports it; of a model with several outputs the output''s name comes first. A '
'metric with several values has a row with their mean, and a row for each: f1_score[setosa] is the F1 score of a class, '
'by its label (in runs of your own) or number, and precision[0] the precision at the first threshold.';
COMMENT ON COLUMN cerebro.metrics.value IS 'The value; NULL if it is not a finite number.';
COMMENT ON COLUMN cerebro.metrics.owner IS 'The user who owns the run.';

-- sql/api/24_progress.sql
-- The view on how far runs are.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH ending AS (
    -- The models, and the decisions to stop them. Those before a model went on hold no longer.
    SELECT run, owner, model, known, visits, epoch, hop,
           decision_id > COALESCE(max(went_on) OVER (PARTITION BY run, owner, model), 0) AS holds
      FROM (SELECT run, owner, model, true AS known, cardinality(visits) AS visits, NULL::integer AS epoch,
                   NULL::bigint AS hop, NULL::bigint AS decision_id, NULL::bigint AS went_on
              FROM cerebro._visible_model
             UNION ALL
            SELECT run, owner, model, NULL, NULL, epoch, (detail ->> 'hop')::bigint,
                   CASE decision WHEN 'stop' THEN decision_id END, CASE decision WHEN 'go on' THEN decision_id END
              FROM cerebro._visible_decision
             WHERE decision IN ('stop', 'go on') AND model IS NOT NULL) u
), ended AS (
    SELECT run, owner, model, max(visits) AS visits,
           min(epoch) FILTER (WHERE holds) AS epoch, max(hop) FILTER (WHERE holds) AS hop
      FROM ending
     GROUP BY run, owner, model
    HAVING bool_or(known)  -- users can write rows about models that do not exist
), fact AS (
    SELECT run, owner, 'run' AS kind, NULL::timestamptz AS at, NULL::bigint AS rows_done, NULL::bigint AS rows_total,
           segments, epochs AS epoch, NULL::integer AS visits, NULL::bigint AS hop, NULL::double precision AS seconds_left,
           NULL::integer AS configuration, NULL::text AS status, NULL::bigint AS rank,
           NULL::double precision AS loss, NULL::double precision AS metric, NULL::text AS objective,
           NULL::double precision AS value
      FROM cerebro._plan
     UNION ALL
    -- A run of a day has 86,400 of these.
    SELECT run, owner, 'beat', h.at, h.rows_done, h.rows_total, NULL, NULL, NULL, NULL, h.seconds_left,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM (SELECT run, owner, max(at) AS at FROM cerebro._visible_heartbeat GROUP BY run, owner) l
      FULL JOIN cerebro._visible_heartbeat h USING (run, owner)
     WHERE CASE WHEN h.at >= l.at - interval '30 seconds' THEN true END
     UNION ALL
    SELECT run, owner, 'visit', NULL, rows, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro._visible_hop
     UNION ALL
    SELECT run, owner, 'model', NULL, NULL, NULL, NULL, epoch, visits, hop, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL
      FROM ended
     UNION ALL
    SELECT run, owner, 'rank', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration, status, rank,
           COALESCE(validation_loss, training_loss), COALESCE(validation_metric, training_metric), objective,
           objective_value
      FROM cerebro._leaderboard
), timed AS (
    SELECT f.*,
           max(at) FILTER (WHERE kind = 'beat') OVER of_run AS seen_at,
           max(segments) FILTER (WHERE kind = 'run') OVER of_run AS run_segments,
           max(epoch) FILTER (WHERE kind = 'run') OVER of_run AS run_epochs
      FROM fact f
    WINDOW of_run AS (PARTITION BY run, owner)
), told AS (
    SELECT run, owner, max(seen_at) AS seen_at,
           max(rows_done) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_done,
           max(rows_total) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_total,
           -- The speed over the last 30 seconds, or since the start of a run that is younger.
           (max(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds')
            - min(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds'))
               / NULLIF(extract(epoch FROM seen_at - min(at) FILTER (WHERE kind = 'beat'
                                                                      AND at >= seen_at - interval '30 seconds')
                                )::double precision, 0) AS rows_per_second,
           -- A stopped model has no visits after its decision, which may have come within an epoch.
           LEAST(COALESCE(sum(COALESCE(hop, LEAST(run_epochs, epoch)::numeric * COALESCE(visits, run_segments)))
                              FILTER (WHERE kind = 'model'), 0), 1e18)::bigint AS hops_total,
           count(*) FILTER (WHERE kind = 'visit') AS hops_done,
           COALESCE(sum(rows_done) FILTER (WHERE kind = 'visit'), 0) AS rows_visited,
           max(seconds_left) FILTER (WHERE kind = 'beat' AND at = seen_at) AS seconds_left,
           count(*) FILTER (WHERE status IN ('finished', 'stopped')) AS finished,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           min(configuration) FILTER (WHERE rank = 1 AND status <> 'waiting') AS best_configuration,
           min(loss) FILTER (WHERE rank = 1) AS best_loss,
           min(metric) FILTER (WHERE rank = 1) AS best_metric,
           min(objective) AS objective,
           min(value) FILTER (WHERE rank = 1) AS best_value
      FROM timed
     GROUP BY run, owner, seen_at
    HAVING bool_or(kind = 'run')  -- users can write rows about runs that do not exist
)
SELECT run,
       r.run_name,
       r.status,
       -- A heartbeat counts the rows of visits under way, too, but there is one per second.
       CASE WHEN r.status = 'finished' THEN 100.0
            ELSE COALESCE(round((100.0 * LEAST(GREATEST(t.rows_done, t.rows_visited), t.rows_total)
                                 / NULLIF(t.rows_total, 0))::numeric, 1), 0.0)
       END::double precision AS percent,
       t.hops_done,
       t.hops_total,
       t.finished AS configurations_finished,
       t.failed AS configurations_failed,
       r.configurations,
       CASE WHEN r.status = 'running' THEN t.rows_per_second END AS rows_per_second,
       CASE WHEN r.status = 'running' THEN t.seconds_left END AS seconds_left,
       extract(epoch FROM COALESCE(r.ended_at, CASE WHEN r.status = 'running' THEN clock_timestamp() ELSE t.seen_at END)
                          - r.started_at)::double precision AS seconds_elapsed,
       t.best_configuration,
       t.best_loss,
       t.best_metric,
       t.seen_at,
       pg_get_userbyid(owner) AS owner,
       r.message,
       t.objective,
       t.best_value
  FROM told t
  FULL JOIN cerebro._runs r USING (run, owner)
 WHERE num_nonnulls(t.hops_done, r.status) = 2;
COMMENT ON VIEW cerebro.run_progress IS
'How far each run is, how fast it trains, and when it will end. Updated about once per second while a run is '
'driven.';
COMMENT ON COLUMN cerebro.run_progress.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_progress.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_progress.status IS 'Status of the run, as in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.percent IS
'Share of the rows of the whole run that have been trained on, in percent (0 to 100).';
COMMENT ON COLUMN cerebro.run_progress.hops_done IS
'Number of committed visits (a visit trains one model on one segment). An average of a model''s replicas counts as '
'one.';
COMMENT ON COLUMN cerebro.run_progress.hops_total IS
'Number of visits of all models in all epochs, and of averages of replicas. A stopped model counts only up to the '
'epoch it was stopped after.';
COMMENT ON COLUMN cerebro.run_progress.configurations_finished IS
'Number of models that need no more training: finished or stopped.';
COMMENT ON COLUMN cerebro.run_progress.configurations_failed IS 'Number of models that failed.';
COMMENT ON COLUMN cerebro.run_progress.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.run_progress.rows_per_second IS
'Rows trained per second over the last 30 seconds, all segments together; NULL unless the run is running.';
COMMENT ON COLUMN cerebro.run_progress.seconds_left IS
'Estimated seconds until the run ends, by the pace of its visits, its method and its budget. NULL unless the run is '
'running, and until the pace of a visit is known.';
COMMENT ON COLUMN cerebro.run_progress.seconds_elapsed IS
'Seconds from the start of the run to its end, or to now while it is running.';
COMMENT ON COLUMN cerebro.run_progress.best_configuration IS
'Configuration of the model that ranks first on the leaderboard; NULL before the first committed visit.';
COMMENT ON COLUMN cerebro.run_progress.best_loss IS
'Loss of that model: validation loss if there is one, else training loss.';
COMMENT ON COLUMN cerebro.run_progress.best_metric IS
'Metric of that model: validation metric if there is one, else training metric.';
COMMENT ON COLUMN cerebro.run_progress.seen_at IS 'When the run last reported its progress.';
COMMENT ON COLUMN cerebro.run_progress.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_progress.message IS 'As in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.objective IS 'Name of the run''s objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.run_progress.best_value IS
'Value of the objective of the model that ranks first: objective_value in cerebro.leaderboard.';

-- sql/api/25_decisions.sql
-- The views on what was decided about runs, and on what people asked.  The head of 20_runs.sql says which rules hold
-- for views.

CREATE OR REPLACE VIEW cerebro.decisions WITH (security_barrier) AS
SELECT run, d.decision_id, d.at, d.decision, model, m.configuration, d.epoch, d.policy AS decided_by,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them. Whoever
       -- has made a request sees why it was refused.
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) OR d.by = current_user
                 OR (d.decision <> 'refuse' AND d.policy <> 'rule')
            THEN d.reason
       END AS reason,
       -- Users may write rows of their own: whatever is no number of a model is left out.
       NULLIF(btrim(jsonb_path_query_array(
                        d.detail, '$.added[*].model ? (@.type() == "number" && @ > 0 && @ <= 2147483647)')::text, '[]'), '')
           AS added,
       d.request AS request_id, d.by AS requested_by, pg_get_userbyid(owner) AS owner
  -- Before its decisions comes the request itself.
  FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
               first_value(by) OVER (PARTITION BY run, owner, request ORDER BY decision_id NULLS FIRST) AS by
          FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
                       NULL::name AS by
                  FROM cerebro._visible_decision
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, request_id, by
                  FROM cerebro._visible_request) u) d
  FULL JOIN cerebro._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(d.decision_id) = 1;
COMMENT ON VIEW cerebro.decisions IS
'Each decision about a run or one of its models: what was decided, when, by whom, why, and which models it added.';
COMMENT ON COLUMN cerebro.decisions.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.decisions.decision_id IS 'Number of the decision; later decisions have larger numbers.';
COMMENT ON COLUMN cerebro.decisions.at IS 'When it was decided.';
COMMENT ON COLUMN cerebro.decisions.decision IS
'continue (the model trains on), stop, go on (a model that was stopped trains on), add (new models begin), extend (the '
'run gets more epochs), budget (the run gets another budget) or refuse (a request cannot be carried out; reason says '
'why).';
COMMENT ON COLUMN cerebro.decisions.model IS
'Number of the model within the run, from 1; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.configuration IS
'Number of the model''s configuration in its run.';
COMMENT ON COLUMN cerebro.decisions.epoch IS
'Number of epochs that the model had completed; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.decided_by IS
'The name of the search policy, or rule (the option stop_when), request (a person) or budget (the budget was spent).';
COMMENT ON COLUMN cerebro.decisions.reason IS
'Why it was decided. Of a rule (the option stop_when) visible to the owner only, and of a refusal to the owner and to '
'whoever made the request, because such texts may contain values.';
COMMENT ON COLUMN cerebro.decisions.added IS 'Numbers of the models that the decision added; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.request_id IS
'The request that the decision answers, as in cerebro.requests; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.requested_by IS 'The user who made the request; NULL: nobody.';
COMMENT ON COLUMN cerebro.decisions.owner IS 'The user who owns the run.';

CREATE OR REPLACE VIEW cerebro.requests WITH (security_barrier) AS
SELECT run, r.request_id, r.at, r.by,
       CASE WHEN r.action = 'add' AND r.detail #>> '{new,parent}' IS NOT NULL THEN 'clone' ELSE r.action END AS action,
       CASE WHEN num_nonnulls(m.configuration) = 1 THEN model END AS model, m.configuration,
       CASE r.action
            WHEN 'add' THEN r.detail ->> 'parameters'
            WHEN 'extend' THEN (r.detail ->> 'epochs') || ' epochs'
            WHEN 'budget' THEN r.detail::text
       END AS parameters,
       r.reason,
       CASE WHEN r.decision IS NULL THEN 'waiting' WHEN r.decision = 'refuse' THEN 'refused' ELSE 'done' END AS status,
       r.answered_at,
       CASE WHEN r.decision = 'refuse'
                 -- As in cerebro.decisions.
                 AND (owner = (SELECT quote_ident(current_user)::regrole) OR r.by = current_user)
            THEN r.answer
       END AS refusal,
       r.decision_id, pg_get_userbyid(owner) AS owner
  -- After its decisions comes the request itself, so the first one of all is the decision that answers it.
  FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
               COALESCE(detail ->> 'model', detail #>> '{new,parent}')::integer AS model,
               first_value(decision_id) OVER answers AS decision_id, first_value(decision) OVER answers AS decision,
               first_value(answered_at) OVER answers AS answered_at, first_value(answer) OVER answers AS answer
          FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
                       NULL::bigint AS decision_id, NULL::text AS decision, NULL::timestamptz AS answered_at,
                       NULL::text AS answer
                  FROM cerebro._visible_request
                 UNION ALL
                SELECT run, owner, request, NULL, NULL, NULL, NULL, NULL, decision_id, decision, at, reason
                  FROM cerebro._visible_decision
                 WHERE request IS NOT NULL) u
        WINDOW answers AS (PARTITION BY run, owner, request_id ORDER BY decision_id)) r
  FULL JOIN cerebro._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(r.action) = 1;
COMMENT ON VIEW cerebro.requests IS
'Each request that a user made with cerebro.stop_model, go_on, clone_model, add_configuration, extend or set_budget, and '
'its result.';
COMMENT ON COLUMN cerebro.requests.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.requests.request_id IS 'Number of the request; later requests have larger numbers.';
COMMENT ON COLUMN cerebro.requests.at IS 'When the request was made.';
COMMENT ON COLUMN cerebro.requests.by IS 'The user who made the request.';
COMMENT ON COLUMN cerebro.requests.action IS 'stop, go on, clone, add, extend or budget.';
COMMENT ON COLUMN cerebro.requests.model IS
'The model that is to stop, to go on or to be cloned; NULL for other requests.';
COMMENT ON COLUMN cerebro.requests.configuration IS 'Configuration of that model.';
COMMENT ON COLUMN cerebro.requests.parameters IS
'As the user gave them: the parameters of the new configuration (of a clone, those that change), the new number of '
'epochs, or the new budget.';
COMMENT ON COLUMN cerebro.requests.reason IS 'The reason that the user gave.';
COMMENT ON COLUMN cerebro.requests.status IS
'waiting, done or refused. A request about a model in training waits for the end of its epoch. Requests about a run '
'that no session drives wait for cerebro.resume(run).';
COMMENT ON COLUMN cerebro.requests.answered_at IS 'When it was done or refused; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.refusal IS
'Why it was refused, for the owner and for whoever made the request; NULL if it was not.';
COMMENT ON COLUMN cerebro.requests.decision_id IS
'The decision that answers it, as in cerebro.decisions; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.owner IS 'The user who owns the run.';

-- sql/api/26_segments.sql
-- The views on what segments do.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro._hop_timeline AS
SELECT u.run, u.owner, u.segment, u.activity, u.configuration, u.epoch, u.hop, u.dataset, u.part,
       u.started_at, u.finished_at, u.seconds, u.rows, u.loss, u.metric,
       u.seconds_reading, u.seconds_state_in, u.seconds_training, u.seconds_state_out, u.seconds_building,
       u.seconds_behind, u.worker_pid, u.trainer_pid, u.engine, u.model
  FROM (SELECT t.run, t.owner, t.segment, t.activity, t.epoch, t.hop, t.dataset, t.part, t.started_at, t.finished_at,
               extract(epoch FROM t.finished_at - t.started_at)::double precision AS seconds,
               t.rows, t.loss, t.metric,
               COALESCE((t.stages ->> 'data')::double precision, 0) AS seconds_reading,
               COALESCE((t.stages ->> 'load')::double precision, 0) AS seconds_state_in,
               COALESCE((t.stages ->> t.activity)::double precision, 0) AS seconds_training,
               COALESCE((t.stages ->> 'save')::double precision, 0) AS seconds_state_out,
               COALESCE((t.stages ->> 'build')::double precision, 0) AS seconds_building,
               COALESCE((t.stages ->> 'behind')::double precision, 0) AS seconds_behind,
               t.worker_pid, t.trainer_pid, t.model,
               max(t.configuration) OVER (PARTITION BY t.run, t.owner, t.model) AS configuration,
               substr(max(t.engine) OVER (PARTITION BY t.run, t.owner, t.model), 21) AS engine
          FROM (SELECT h.run, h.owner, h.model, CASE h.kind WHEN 'average' THEN h.kind ELSE 'train' END AS activity,
                       h.segment, h.epoch, h.hop, NULL AS dataset, NULL::integer AS part,
                       h.started_at, h.finished_at, h.rows, h.loss, h.metric, h.seconds AS stages,
                       h.worker_pid, h.trainer_pid, NULL::integer AS configuration, NULL AS engine
                  FROM cerebro._visible_hop h
                 UNION ALL
                SELECT e.run, e.owner, e.model, 'evaluate', e.segment, e.epoch, NULL, e.dataset,
                       e.part, e.started_at, e.finished_at, e.rows, e.loss, e.metric,
                       e.seconds, e.worker_pid, NULL, NULL, NULL
                  FROM cerebro._visible_evaluation e
                 UNION ALL
                SELECT m.run, m.owner, m.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, m.configuration, NULL
                  FROM cerebro._visible_model m
                 UNION ALL
                SELECT b.run, b.owner, b.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL,
                       -- A model that went on with another engine has a second event.
                       lpad(b.event_id::text, 20, '0') || (b.detail ->> 'engine')
                  FROM cerebro._visible_event b
                 WHERE b.model IS NOT NULL AND b.event = 'built') t) u
 WHERE u.activity IS NOT NULL
       AND u.configuration IS NOT NULL;  -- users can write rows about models that do not exist
COMMENT ON VIEW cerebro._hop_timeline IS
'What the current user may see of what segments did, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.hop_timeline WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, segment, activity, configuration, epoch, hop, dataset, part, started_at,
       finished_at, seconds, rows, loss, metric AS first_metric, seconds_reading, seconds_state_in, seconds_training,
       seconds_state_out, seconds_building, seconds_behind, worker_pid, trainer_pid, engine, model
  FROM cerebro._hop_timeline;
COMMENT ON VIEW cerebro.hop_timeline IS
'What each segment did and when: one row per committed visit or evaluation, with its duration in parts. The visits '
'of a fusion group begin together; the parts of the group''s duration are divided equally among them.';
COMMENT ON COLUMN cerebro.hop_timeline.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.hop_timeline.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.hop_timeline.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.hop_timeline.activity IS
'train (a visit), evaluate, or average (of the states of a model''s replicas, in runs of madlib_keras_fit).';
COMMENT ON COLUMN cerebro.hop_timeline.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.hop_timeline.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.hop_timeline.hop IS
'Number of the visit, or of the average, within the model, from 1; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.dataset IS
'Data set that was evaluated: training or validation; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.part IS 'Part of the data set that was evaluated, from 0; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.started_at IS 'When the visit or evaluation started.';
COMMENT ON COLUMN cerebro.hop_timeline.finished_at IS 'When the visit or evaluation was recorded, its state stored.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds IS 'Seconds from started_at to finished_at.';
COMMENT ON COLUMN cerebro.hop_timeline.rows IS 'Number of rows trained on or evaluated.';
COMMENT ON COLUMN cerebro.hop_timeline.loss IS 'Mean loss over these rows.';
COMMENT ON COLUMN cerebro.hop_timeline.first_metric IS
'First metric over the rows of the epoch so far; of an evaluation over all parts, at the part that was evaluated last.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_reading IS 'Seconds spent on reading rows into the row cache.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_in IS 'Seconds spent on fetching and loading the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_training IS 'Seconds of computation: training, or evaluating.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_out IS 'Seconds spent on saving and storing the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_building IS 'Seconds spent on building and compiling the model.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_behind IS
'Seconds in which the state was stored while the trainer already worked on the next unit, or was free for it. These '
'seconds may overlap with that unit.';
COMMENT ON COLUMN cerebro.hop_timeline.worker_pid IS 'Process id of the worker session.';
COMMENT ON COLUMN cerebro.hop_timeline.trainer_pid IS 'Process id of the trainer; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.engine IS 'Engine that trains the model: tensorflow, jax or torch.';
COMMENT ON COLUMN cerebro.hop_timeline.model IS 'Number of the model within the run, from 1.';

CREATE OR REPLACE VIEW cerebro.segments_now WITH (security_barrier) AS
WITH visit AS (
    SELECT run, owner, model, hop, segment, max(started_at) AS started_at, max(finished_at) AS finished_at
      FROM (SELECT run, owner, model, hop, segment, started_at, NULL::timestamptz AS finished_at
              FROM cerebro._visible_attempt
             UNION ALL
            SELECT run, owner, model, hop, segment, NULL, finished_at
              FROM cerebro._visible_hop) u
     GROUP BY run, owner, model, hop, segment
    HAVING max(started_at) IS NOT NULL
), latest AS (
    SELECT DISTINCT ON (run, owner, segment) run, owner, model, hop, segment, started_at, finished_at
      FROM visit
     ORDER BY run, owner, segment, started_at DESC, finished_at IS NOT NULL, model
)
SELECT run, l.segment, m.configuration,
       (l.hop - 1) / COALESCE(cardinality(m.visits), l.segments) + 1 AS epoch,
       l.hop,
       CASE WHEN l.finished_at IS NOT NULL OR l.status = 'running'
            THEN extract(epoch FROM COALESCE(l.finished_at, clock_timestamp()) - l.started_at)::double precision
       END AS seconds,
       l.finished_at IS NOT NULL AS done,
       pg_get_userbyid(owner) AS owner,
       model
  -- No WITH, which would keep a condition on the run from the rows: cerebro._runs asks for sessions and locks.
  FROM (SELECT run, owner, model, hop, segment, started_at, finished_at,
               max(segments) OVER of_run AS segments, max(status) OVER of_run AS status
          FROM (SELECT run, owner, model, hop, segment, started_at, finished_at, NULL::integer AS segments,
                       NULL::text AS status
                  FROM latest
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, segments, status
                  FROM cerebro._runs) u
        WINDOW of_run AS (PARTITION BY run, owner)) l
  FULL JOIN cerebro._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(l.hop, l.status, m.configuration) = 3;
COMMENT ON VIEW cerebro.segments_now IS
'The latest visit that each segment of each run has started. If several models train in one order, together or one '
'after the other, the first of them stands for all.';
COMMENT ON COLUMN cerebro.segments_now.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.segments_now.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.segments_now.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.segments_now.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.hop IS 'Number of the visit within the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.seconds IS
'Duration of the visit in seconds, so far if it is still under way; NULL if the visit was broken off.';
COMMENT ON COLUMN cerebro.segments_now.done IS 'True if the visit is committed.';
COMMENT ON COLUMN cerebro.segments_now.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.segments_now.model IS 'Number of the model within the run, from 1.';

CREATE OR REPLACE VIEW cerebro.run_time WITH (security_barrier) AS
WITH spent AS (
    SELECT run, owner,
           sum(seconds - seconds_behind) AS busy,
           sum(seconds_training) FILTER (WHERE activity = 'train') AS training,
           sum(seconds_training) FILTER (WHERE activity = 'evaluate') AS validation,
           sum(seconds_reading) AS reading,
           sum(seconds_building) AS building,
           sum(seconds_state_in) AS state_in,
           sum(seconds_state_out) AS state_out,
           min(started_at) AS first_unit,
           max(finished_at) AS last_unit,
           min(begun) AS begun,
           max(segments) AS segments
      FROM (SELECT run, owner, activity, seconds, seconds_behind, seconds_training, seconds_reading, seconds_building,
                   seconds_state_in, seconds_state_out, started_at, finished_at, NULL::timestamptz AS begun,
                   NULL::integer AS segments
              FROM cerebro._hop_timeline
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, at, NULL
              FROM cerebro._visible_event
             WHERE model IS NULL AND event = 'started'
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, segments
              FROM cerebro._visible_run) fact
     GROUP BY run, owner
    HAVING count(activity) > 0 AND max(segments) > 0
), whole AS (
    SELECT s.*,
           extract(epoch FROM s.last_unit - s.first_unit)::double precision * s.segments AS available,
           GREATEST(extract(epoch FROM s.first_unit - s.begun)::double precision, 0) * s.segments AS starting
      FROM spent s
), parts AS (
    SELECT w.run, w.owner, w.available + w.starting AS total, part.*
      FROM whole w
     CROSS JOIN LATERAL (VALUES
           (1, 'training',        w.training),
           (2, 'validation',      COALESCE(w.validation, 0)),
           (3, 'reading data',    w.reading),
           (4, 'building models', w.building),
           (5, 'state load',      w.state_in),
           (6, 'state emit',      w.state_out),
           (7, 'bookkeeping',     w.busy - w.training - COALESCE(w.validation, 0) - w.reading - w.building
                                         - w.state_in - w.state_out),
           (8, 'waiting',         w.available - w.busy),
           (9, 'starting',        w.starting)) AS part (position, activity, seconds)
)
SELECT run, position, activity, seconds, seconds / NULLIF(total, 0) AS share, pg_get_userbyid(owner) AS owner
  FROM parts;
COMMENT ON VIEW cerebro.run_time IS
'How the segments of a run spent their time: one row per activity, summed over all segments.';
COMMENT ON COLUMN cerebro.run_time.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_time.position IS 'Position of the activity in the list, from 1, for sorting.';
COMMENT ON COLUMN cerebro.run_time.activity IS
'training, validation, reading data, building models, state load (fetching and loading states), state emit (saving '
'and storing states), bookkeeping (the rest of a unit), waiting (between units) or starting (before the first '
'unit).';
COMMENT ON COLUMN cerebro.run_time.seconds IS 'Seconds, summed over the segments.';
COMMENT ON COLUMN cerebro.run_time.share IS 'Share of the run''s total segment time, from 0 to 1.';
COMMENT ON COLUMN cerebro.run_time.owner IS 'The user who owns the run.';

-- sql/api/30_packing.sql
-- Packing: a table becomes buffers of rows, spread over the segments.  docs/architecture.md describes the format.

-- The order in which a scan returns the rows affects the packed table. Without parallel workers, and without
-- synchronized scans (joining a scan that another session has begun), the order is the same each time.
CREATE OR REPLACE FUNCTION cerebro.pack_plain(
    source_table text,
    output_table text,
    target text,
    inputs text,
    buffer_size integer DEFAULT NULL,
    divide_by real DEFAULT 1.0,
    classes integer[] DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_plain(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.pack_plain(
    text, text, text, text, integer, real, integer[], integer, text, bigint) IS
'Packs columns as they are: a table or view whose columns are numbers, arrays of numbers and labels already.
output_table receives the rows, shuffled, in buffers that are spread over the segments; OUTPUT_TABLE_summary describes
them. cerebro.pack also takes columns of other types, and splits the rows.

- target: columns to predict, separated by commas. Text, integers, booleans, dates and the like are class
  labels and become one-hot vectors. real, double precision and numeric are regression targets. Arrays are stored as
  they are (integers as int16, others as float32).
- inputs: input columns, separated by commas. Each array of numbers is one input of the model. All plain
  number columns together are one input named features. Arrays of smallint, integer or boolean stay integers and are
  divided by divide_by when they are read. All other inputs become float32 and are divided when they are packed.
- buffer_size: rows per buffer. NULL chooses it from the size of the rows.
- divide_by: the inputs are divided by it.
- classes: number of classes per column of target, where the model has room for more classes than the table
  contains. NULL: the number of classes in the table.
- segments: number of segments. NULL: the setting cerebro.segments, else one per GPU, else one per
  processor; on PostgreSQL a table gets at most one segment per 500 rows.
- distribution_rules: on Greenplum, the segments to use: all_segments, gpu_segments (segments on hosts with GPUs), or
  the name of a table whose column dbid lists segments. Ignored on PostgreSQL.
- seed: the same seed and the same rows give the same packed table, whatever the order of the rows in the source and
  whether on PostgreSQL or Greenplum. NULL draws a seed, which the summary records.';

CREATE OR REPLACE FUNCTION cerebro.pack_like(
    source_table text,
    output_table text,
    target text,
    inputs text,
    packed_table text,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_like(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.pack_like(text, text, text, text, text, integer, text) IS
'Packs other rows as a packed table was packed, for validation: the same preparation, the same classes, the same number
of segments. The columns may have other names, but must have the same
shapes, and every class label must occur in packed_table. On PostgreSQL the rows keep their order if they have
one.

- packed_table: the packed table with the rows for training.
- inputs: NULL if cerebro.pack has packed packed_table. The inputs are then the columns that have the
  names of the training columns, and are prepared as these were.';

-- sql/api/31_pack.sql
-- Packing a table as it is: names, dates, gaps and texts become numbers. docs/prepare.md describes what becomes what.

CREATE OR REPLACE FUNCTION cerebro.pack(
    source_table text,
    output_table text,
    target text,
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT false,
    buffer_size integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL,
    sequence json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    folds integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.pack(
    text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint, json, text,
    text, integer) IS
'Packs a table or view with columns of nearly any type for training. output_table receives the rows for training,
OUTPUT_TABLE_validation those for validation. OUTPUT_TABLE_summary and OUTPUT_TABLE_validation_summary describe them.
Each column becomes an input by its type and its values, which docs/prepare.md explains and cerebro.prepared_columns
shows. Predictions prepare rows in the same way.

- target: the columns to predict, separated by commas. real, double precision and numeric are numbers to predict, and so
  are integers with many different values. Other columns are class labels.
- inputs: the input columns, separated by commas. NULL: all others. Keys, columns that number the rows and columns with
  one value are ignored, with a notice.
- prepare: what columns become, by name or by type, for instance {"zip": "category", "date": "ignore"}.
- validation: the share of the rows for validation, chosen by a hash of the key. A row stays on its side when other
  rows are added. 0: none. NULL: 0.2, or none if there are folds or a validation_table.
- validation_table: a table with the rows for validation, instead of a share.
- split_by: a column, such as patient. All rows with the same value are on the same side.
- split_at: a column, such as a time; the rows with its largest values are for validation.
- stratify: true takes the same share of the rows of each class for validation.
- buffer_size, segments, distribution_rules, seed: as in cerebro.pack_plain.
- sequence: makes windows of consecutive rows, for instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.
  No window has rows of two subjects. Its target is that of its last row, or the most frequent class with
  "target": "majority". Without split_by and split_at, all windows of a subject are on the same side.
- weights: a column with the weight of each row in training.
- class_weight: balanced gives all classes the same weight in training.
- folds: for cross-validation, the number of folds that the rows are divided into, by the same hash. A fit then trains one
  model of each configuration for each fold, on the rows of all other folds, and one model on all rows. split_by keeps
  all rows with the same value in one fold; stratify gives each fold the same share of each class.';

-- The settings are those of cerebro.pack.
CREATE OR REPLACE FUNCTION cerebro._text_in_utc(anyelement) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET timezone = 'UTC' AS $sql$
SELECT $1::text
$sql$;
COMMENT ON FUNCTION cerebro._text_in_utc(anyelement) IS
'The text of an array, a range or a row, whatever the time zone of the session is.';

CREATE OR REPLACE FUNCTION cerebro._packed_rows(
    same_name boolean,
    source_table text,
    output_table text,
    target text,
    inputs text,
    prepare json,
    validation double precision,
    validation_table text,
    split_by text,
    split_at text,
    stratify boolean,
    buffer_size integer,
    segments integer,
    distribution_rules text,
    seed bigint,
    sequence json,
    weights text,
    class_weight text,
    folds integer
) RETURNS text
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.packed_rows(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._packed_rows(
    boolean, text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint,
    json, text, text, integer) IS
'As cerebro.pack, for cerebro.train, search and fit: returns the name of a packed table of the same rows if the user has
one in the schema of output_table, and packs otherwise. same_name: the table can only be output_table.';

CREATE OR REPLACE FUNCTION cerebro.prepared_columns(packed_table text)
RETURNS TABLE (variable text, is_target boolean, column_name text, column_type text, prepared_as text, start integer,
               width integer, parameters jsonb)
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.prepared_columns(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.prepared_columns(text) IS
'Returns what the columns of a packed table have become: a row for each column. It also takes the table of trained
models.

- variable: the input or output of the model that the column belongs to; start (from 1) and width say which of its elements.
- prepared_as: number, date, category, words, or another way to pack the column.
- parameters: what packing has found in the rows, for instance mean and deviation, or the values that have codes.';

CREATE OR REPLACE FUNCTION cerebro.architecture(kind text, packed_table text, parameters jsonb DEFAULT NULL) RETURNS json
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.architecture(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.architecture(text, text, jsonb) IS
'Returns an architecture that fits the inputs and the target of a packed table: JSON of Keras, for
cerebro.add_architecture. docs/train.md says what is in it.

- kind: mlp, resnet or transformer for every table; lstm and conv1d for windows, texts and arrays of one or two dimensions;
  cnn for images.
- parameters: a JSON object, for instance {"units": 64}. Each kind has its own, which docs/train.md lists. A text such as
  "$units" is left in its place, to be filled in later; layers, blocks, linear and embedding must be numbers.';

-- A function, not a part of the query: PostgreSQL runs no query with a subquery over a row's words on several processors.
CREATE OR REPLACE FUNCTION cerebro._word_ids(value text, length integer, ids integer) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- Otherwise the variables would have the collation of the column: words would end elsewhere with "C", and
    -- nondeterministic collations can neither replace nor match.
    -- Of no text more than this is read, because the functions below hear no cancel.
    lowered text COLLATE "default" := pg_catalog.lower(pg_catalog.left(value, 1000000) COLLATE "default");
    spaced text COLLATE "default" := lowered;
    word text COLLATE "default";
    codes integer[] := '{}';
    missing integer := length;
BEGIN
    IF COALESCE(length NOT BETWEEN 1 AND 10000 OR ids NOT BETWEEN 2 AND 1000000, true) THEN
        RAISE EXCEPTION 'length must be from 1 to 10000, and ids from 2 to 1000000, not % and %', length, ids
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Most texts have no letters beyond ASCII and few punctuation characters. Dividing such a text at its spaces takes a
    -- tenth of the time that the regular expression takes.
    spaced := pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(spaced, '.', ' '), ',', ' '), '-', ' ');
    spaced := pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(spaced, '''', ' '), '"', ' '), ':', ' ');
    spaced := pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(spaced, '!', ' '), '?', ' '), '/', ' ');
    spaced := pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(spaced, '(', ' '), ')', ' '), ';', ' ');
    FOREACH word IN ARRAY
        CASE WHEN value IS NULL THEN '{}'
             WHEN spaced COLLATE "C" ~ '^[a-z0-9 ]*$' THEN pg_catalog.string_to_array(spaced, ' ')
             ELSE pg_catalog.regexp_split_to_array(lowered, '[[:space:][:punct:]]+') END
    LOOP
        EXIT WHEN missing = 0;
        IF word <> '' THEN
            codes := codes || (1 + (pg_catalog.hashtextextended(word COLLATE "C", 0) % (ids - 1) + ids - 1) % (ids - 1))::integer;
            missing := missing - 1;
        END IF;
    END LOOP;
    RETURN codes || pg_catalog.array_fill(0, ARRAY[missing]);
END
$$;
COMMENT ON FUNCTION cerebro._word_ids(text, integer, integer) IS
'The ids of a text''s first words, each from 1 to ids - 1 by a hash, and then 0 up to length. Words are in lower case and end
at spaces and punctuation. The first 1,000,000 characters of a text are read.';

-- sql/api/36_architectures.sql
-- Architectures by name, for the configurations of the three verbs.

CREATE OR REPLACE VIEW cerebro.architectures WITH (security_barrier = true) AS
SELECT name, pg_get_userbyid(owner) AS owner, parameters AS parameter_names, octet_length(weights)::bigint / 4 AS weights, description, added_at
  FROM cerebro.added_architecture
 WHERE owner = (SELECT quote_ident(current_user)::regrole) AND NOT dropped;
COMMENT ON VIEW cerebro.architectures IS 'The architectures that you have added with cerebro.add_architecture().';
COMMENT ON COLUMN cerebro.architectures.name IS 'Name of the architecture, as configurations and spaces refer to it.';
COMMENT ON COLUMN cerebro.architectures.owner IS 'The user who added it: you.';
COMMENT ON COLUMN cerebro.architectures.parameter_names IS
'The parameters of the architecture, which configurations give values.';
COMMENT ON COLUMN cerebro.architectures.weights IS
'How many weights training starts from. NULL: it starts from random weights.';
COMMENT ON COLUMN cerebro.architectures.description IS 'Description given with the architecture.';
COMMENT ON COLUMN cerebro.architectures.added_at IS 'When the architecture was added.';

CREATE OR REPLACE FUNCTION cerebro.add_architecture(
    name            text,
    architecture    json,
    initial_weights bytea DEFAULT NULL,
    description     text  DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_architecture(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.add_architecture(text, json, bytea, text) IS
'Adds an architecture by a name, which the configurations of cerebro.fit and the spaces of cerebro.search and cerebro.train
can then name. Each user has names of their own. Architectures with layers that can execute code (Lambda and others) are
refused.

- architecture: what model.to_json() returns in Keras 2 or Keras 3. It can have parameters: "units": "$width" stands for
  a value, and in the list of layers of a Sequential model {"repeat": "$depth", "layers": [...]} stands for layers that
  are repeated. A configuration gives them values: {"architecture": "name", "width": 64, "depth": 2}.
- initial_weights: the arrays of model.get_weights(), flattened and concatenated, as float32. A fit starts from
  them. NULL: training starts from random weights.';

CREATE OR REPLACE FUNCTION cerebro._drop_architecture(gone text, whose name) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Here the caller is not known any more, but only the owner can have written the row that says dropped.
    DELETE FROM cerebro.added_architecture
     WHERE name = gone AND owner = quote_ident(whose)::regrole
       AND EXISTS (SELECT FROM cerebro.added_architecture d
                    WHERE d.name = gone AND d.owner = quote_ident(whose)::regrole AND d.dropped);
$$;
COMMENT ON FUNCTION cerebro._drop_architecture(text, name) IS
'Deletes an architecture whose owner has recorded that it is dropped. Called by cerebro.drop_architecture().';

CREATE OR REPLACE FUNCTION cerebro.drop_architecture(name text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR NOT EXISTS (SELECT FROM cerebro.architectures a WHERE a.name = $1) THEN
        RAISE EXCEPTION 'cerebro.drop_architecture: you have added no architecture %', COALESCE(quote_literal(left($1, 80)), 'NULL')
              USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM cerebro.architectures lists yours.';
    END IF;
    INSERT INTO cerebro.added_architecture (name, dropped) VALUES ($1, true);
    PERFORM cerebro._drop_architecture($1, current_user);
END
$$;
COMMENT ON FUNCTION cerebro.drop_architecture(text) IS
'Removes an architecture that you have added. Runs that were made with it keep what they need of it.';

-- sql/api/40_training.sql
-- Runs: training a list of configurations by model hopping, and managing the runs.

CREATE OR REPLACE FUNCTION cerebro.fit(
    source_table     text,
    model_table      text,
    configurations   text,
    target           text    DEFAULT NULL,
    inputs           text    DEFAULT NULL,
    prepare          json    DEFAULT NULL,
    weights          text    DEFAULT NULL,
    class_weight     text    DEFAULT NULL,
    sequence         json    DEFAULT NULL,
    validation       double precision DEFAULT NULL,
    validation_table text    DEFAULT NULL,
    split_by         text    DEFAULT NULL,
    split_at         text    DEFAULT NULL,
    stratify         boolean DEFAULT NULL,
    folds            integer DEFAULT NULL,
    segments         integer DEFAULT NULL,
    packed_table     text    DEFAULT NULL,
    epochs           integer DEFAULT NULL,
    objective        text    DEFAULT NULL,
    direction        text    DEFAULT NULL,
    stop_when        text    DEFAULT NULL,
    budget           text    DEFAULT NULL,
    evaluate_every   integer DEFAULT NULL,
    use_gpus         boolean DEFAULT false,
    warm_start       boolean DEFAULT false,
    run_name         text    DEFAULT NULL,
    description      text    DEFAULT NULL,
    options          jsonb   DEFAULT NULL,
    wait             boolean DEFAULT true,
    dry_run          boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.fit(
    text, text, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer,
    integer, text, integer, text, text, text, text, integer, boolean, boolean, text, text, jsonb, boolean,
    boolean
) IS
'Trains a list of configurations by model hopping, and returns the number of the run. In each epoch every model visits
every segment once, and its whole training state moves with it.

The trained models are in model_table, their losses and metrics in model_table_info, the arguments of the run in
model_table_summary. Models too large for one value have their weights in model_table_weights. From another session,
SELECT * FROM cerebro.run_progress shows how far the run is.

- source_table: a table, a view or a foreign table, which is packed as cerebro.train says; or a packed table. With a
  packed table, the arguments from target to packed_table stay NULL; the rows for validation are in validation_table, or
  in the table with the ending _validation.
- configurations: JSON, such as [{"learning_rate": 0.01}, {"architecture": "resnet", "units": 64}]; or a query whose
  columns are the keys; or the name of a table whose columns are the keys. The keys are architecture (a kind such as mlp,
  the name of an architecture of cerebro.add_architecture, or JSON of Keras), the parameters of the architecture, loss,
  metrics, optimizer, the arguments of the optimizer, batch_size, passes (over the rows of a segment in one visit) and
  other fit parameters of Keras. What is left out follows from the rows, as in cerebro.train. A model selection table of
  MADlib''s form is taken, too.
- target: the columns to predict, separated by commas.
- inputs, prepare, weights, class_weight, sequence, validation_table, split_by, split_at, folds, segments: as in cerebro.pack.
- validation, stratify, packed_table: as in cerebro.train.
- epochs: how often the run goes over all rows.
- evaluate_every: number of epochs between two evaluations. NULL: the models are evaluated after the last epoch only, and
  after every epoch if the objective is measured on the validation table.
- objective, direction: the metric that says which model is best, such as val_accuracy, and min or max.
- budget: when to end: an interval such as 2 hours, or JSON with seconds, unit_hours, hops or configurations. An interval
  counts from the start of the call, but training has at least half of it; JSON counts from the start of the run. Visits
  that have begun are completed. With an interval, at least one model completes an epoch.
- stop_when: a query that stops models, such as $$SELECT configuration, ''no better than chance'' FROM cerebro.learning_curve
  WHERE run = $1 AND epoch >= 3 AND training_loss > 1.1$$. $1 is the number of the run.
- use_gpus: true trains on GPUs.
- warm_start: true starts from the models that an earlier run has left in model_table; the new models replace them.
- run_name, description: texts that the views show with the run.
- wait: false returns as soon as the rows are packed and the run has begun. The run continues in a session of its own, also
  after you have disconnected. cerebro.wait(run) waits for its end, cerebro.cancel(run) ends it.
- dry_run: true shows what would be done, makes nothing, and returns NULL.
- options: a JSON object; docs/reference/options.md describes each option. The options are
  seed (a number from which all random choices of the run follow),
  deterministic (true: the same seed gives the same models, bit for bit),
  engine (tensorflow, jax, torch or auto),
  precision (float32, mixed_bfloat16 or mixed_float16),
  nan (stop: a model whose loss is not finite fails; keep: it goes on),
  threads (processor threads per segment),
  cache_mb (maximum megabytes of rows cached in memory per segment),
  fuse (whether similar models train together in one pass; jax only),
  read_ahead (whether segments fetch the next state while they train),
  synchronous_commit (whether the commit of a visit waits for the disk),
  hang_after (seconds without progress after which a trainer is ended),
  objective (as the argument),
  direction (as the argument),
  budget (as the argument, but only a JSON object),
  stop_when (as the argument),
  keep (best: the state of each model''s best epoch is kept, and the model tables get it),
  execution (session: the run trains in your own session, and commits nothing in between),
  method (which stops unpromising models early: docs/search.md) and
  replay (number of an earlier run whose options, seed and order of visits are used again).';

CREATE OR REPLACE FUNCTION cerebro.madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true,
    options                   jsonb   DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit_multiple_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_fit_multiple_model(
    text, text, text, integer, boolean, text, integer, boolean, text, text, boolean, jsonb
) IS
'cerebro.fit with the name, the arguments and the tables of MADlib, for a packed table: model_output_table is model_table,
model_selection_table lists the configurations, num_iterations is epochs and metrics_compute_frequency is evaluate_every.
use_caching has no effect, because trainers always cache their rows.';

CREATE OR REPLACE FUNCTION cerebro.resume(
    run          bigint,
    epochs       integer DEFAULT NULL,
    retry_failed boolean DEFAULT false,
    wait         boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.resume(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.resume(bigint, integer, boolean, boolean) IS
'Continues a run that failed, was cancelled or was interrupted, and returns its number. Committed visits are not
repeated, and the models become what they would have become without the interruption.

- epochs: a new total number of epochs, larger than the planned one. It extends the run, also a finished one.
- retry_failed: true gives failed models another chance.
- wait: false returns at once; a session of its own continues the run.';

CREATE OR REPLACE FUNCTION cerebro._drive(run bigint, epochs integer, retry_failed boolean) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drive(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._drive(bigint, integer, boolean) IS
'Drives a run for which nobody waits. The session that a call with wait => false opens calls it.';

CREATE OR REPLACE FUNCTION cerebro.wait(run bigint, timeout double precision DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.wait(bigint, double precision) IS
'Waits until a run has ended and, if it was submitted, has made its model tables. Returns the status of the run. A warning
says if the run is finished but its models are in no table, and which call of cerebro.materialize() makes it.

- timeout: maximum time to wait, in seconds. NULL: no limit.';

CREATE OR REPLACE FUNCTION cerebro.cancel(run bigint, owner name DEFAULT NULL) RETURNS boolean
LANGUAGE plpython3u AS $py$
@cerebro@
return api.cancel(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.cancel(bigint, name) IS
'Ends a running run within about a second, whichever session drives it. Returns false if no session drives the run.
cerebro.resume(run) can continue it later. Users can cancel their own runs, members of cerebro_admin any run.

- owner: the user whose run it is. NULL: the caller if it has a run of this number, else whoever has. An administrator
  has to say it if several users have a run of this number.';

CREATE OR REPLACE FUNCTION cerebro._to_forget(run bigint, owner name) RETURNS name
LANGUAGE plpython3u AS $py$
@cerebro@
return api.to_forget(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._to_forget(bigint, name) IS
'Locks a run that cerebro.forget() may remove, and returns its owner; raises an error for any other run.';

-- The rows are changed here and not in Python, where each statement is a subtransaction: Greenplum 7.0.0 sometimes takes
-- those for aborted in another session that reads the same rows while they are committed, and the rows come back.
CREATE OR REPLACE FUNCTION cerebro.forget(run bigint, owner name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    whose name := cerebro._to_forget($1, $2);
BEGIN
    IF whose = current_user THEN
        INSERT INTO cerebro.event (run, event, detail) VALUES ($1, 'forgotten', '{}');
        PERFORM cerebro._forget_own($1, whose);
    ELSE
        PERFORM cerebro._forget($1, whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro.forget(bigint, name) IS
'Deletes the log and the model states of a run. The run cannot be resumed or extended any more. Its model tables stay.
Users can forget their own runs, members of cerebro_admin any run. If somebody has made other objects of a state table,
for instance a view, the table stays without its rows, and a warning names the objects and their owners.

- owner: as in cerebro.cancel.';

CREATE OR REPLACE FUNCTION cerebro.materialize(
    run bigint, model_table text, which text DEFAULT NULL, fold integer DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.materialize_run(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.materialize(bigint, text, text, integer) IS
'Makes the model tables of a run from its states on record. The run need not have finished. cerebro.runs says in the
column message if a finished run has none: its session ended too early, or its caller rolled back.

- which: best (the states of the best epochs, of a run with the option keep => best) or last (the latest states). NULL:
  best if the run keeps best states, else last. The columns which and epoch of the _info table say which state each model
  has.
- fold: of a run with folds, the models that are evaluated on this fold, and trained on all others. NULL: the models on
  all rows.';

-- sql/api/41_search.sql
-- Search: runs whose configurations are proposed from a space while the run goes on.

CREATE OR REPLACE FUNCTION cerebro.search(
    source_table       text,
    model_table        text,
    space              jsonb,
    target             text    DEFAULT NULL,
    inputs             text    DEFAULT NULL,
    prepare            json    DEFAULT NULL,
    weights            text    DEFAULT NULL,
    class_weight       text    DEFAULT NULL,
    sequence           json    DEFAULT NULL,
    validation         double precision DEFAULT NULL,
    validation_table   text    DEFAULT NULL,
    split_by           text    DEFAULT NULL,
    split_at           text    DEFAULT NULL,
    stratify           boolean DEFAULT NULL,
    folds              integer DEFAULT NULL,
    segments           integer DEFAULT NULL,
    packed_table       text    DEFAULT NULL,
    architectures      jsonb   DEFAULT NULL,
    method             text    DEFAULT NULL,
    epochs             integer DEFAULT NULL,
    max_configurations integer DEFAULT NULL,
    at_once            integer DEFAULT NULL,
    start_from         text    DEFAULT NULL,
    objective          text    DEFAULT NULL,
    direction          text    DEFAULT NULL,
    stop_when          text    DEFAULT NULL,
    budget             text    DEFAULT NULL,
    evaluate_every     integer DEFAULT NULL,
    use_gpus           boolean DEFAULT false,
    run_name           text    DEFAULT NULL,
    description        text    DEFAULT NULL,
    options            jsonb   DEFAULT NULL,
    wait               boolean DEFAULT true,
    dry_run            boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.search_space(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.search(
    text, text, jsonb, text, text, json, text, text, json, double precision, text, text, text, boolean, integer,
    integer, text, jsonb, text, integer, integer, integer, text, text, text, text, text, integer, boolean, text,
    text, jsonb, boolean, boolean
) IS
'Searches a space of configurations for the best model, and returns the number of the run. The method proposes
configurations while others train, and stops unpromising ones early. docs/search.md describes spaces and
methods. The models, their metrics and the views are those of cerebro.fit; cerebro.leaderboard shows the point of the
space of each model in its column chosen.

- space: a JSON object with the keys of a configuration of cerebro.fit. Each has a value or a dimension, for instance
  {"architecture": ["mlp", "resnet"], "units": {"choice": [64, 128]}, "optimizer": {"choice": ["Adam", "SGD"]},
  "learning_rate": {"log_uniform": [0.0001, 0.1]}}. A parameter of architectures applies to those that have it.
- architectures: as the key architecture of the space; or an object with the parameters of each kind, as in cerebro.train.
- method: the name of a method, or JSON with its parameters: {"name": "asha", "reduction": 4, "sampler": "tpe"}.
  docs/search.md describes the methods; an unknown name gets an error that lists them. NULL: asha.
- epochs: number of epochs of a model that is never stopped. NULL: as in cerebro.train.
- max_configurations: how many configurations are tried in all; of pbt, how many train at once. NULL: all points of a
  grid, or as many as the budget allows.
- at_once: how many models train or wait for a segment. NULL: twice the number of segments. If points are random
  or a grid and there is no budget: four times, and 16 times if segments have up to 5,000 rows each.
- start_from: past starts tpe from the results of your earlier runs on the same table, or on a table of the same shape.
  A NOTICE says which runs.
- evaluate_every: number of epochs between two evaluations. NULL: every epoch if there are rows for validation.
- the other arguments: as in cerebro.fit.';

-- sql/api/42_steering.sql
-- Steering a run from any session.  Each function writes a row into cerebro.request, which the session that drives the
-- run reads once a second.

CREATE OR REPLACE FUNCTION cerebro._rule(query text, run bigint) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    -- A loop takes one statement, which has rows.
    FOR found IN EXECUTE query USING run LOOP
        RETURN NEXT pg_catalog.row_to_json(found)::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro._rule(text, bigint) IS
'Runs the query of the option stop_when on a run, and returns its rows as JSON. The session that drives the run calls it in
another session of the same user.';

CREATE OR REPLACE FUNCTION cerebro.stop_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.stop_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.stop_model(bigint, integer, text, integer, name) IS
'Stops a model of a run at the end of its epoch, and returns the number of the request. The other models go on, and the
segments are free for them. cerebro.go_on() lets the model train on later.

The request takes effect when your transaction is committed. If no session drives the run, the request takes effect when
cerebro.resume(run) continues it. cerebro.requests shows what became of it. The same holds for cerebro.go_on,
cerebro.clone_model, cerebro.add_configuration, cerebro.extend and cerebro.set_budget.

- configuration: the configuration whose model is meant.
- reason: your reason, as a text. The views show it.
- model: the number of the model, if the configuration has several. cerebro.leaderboard shows both numbers.
- owner: as in cerebro.cancel. Users can steer their own runs, members of cerebro_admin any run.';

CREATE OR REPLACE FUNCTION cerebro.go_on(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.go_on(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.go_on(bigint, integer, text, integer, name) IS
'Lets a model of a run that was stopped train on from its last state, until its last epoch. Returns the number of the
request.

- configuration, reason, model, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.clone_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    changes       jsonb   DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.clone_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.clone_model(bigint, integer, jsonb, text, integer, name) IS
'Adds a model to a run that begins with the weights and the optimizer''s state of another model, its parent, and has
other parameters. The parent trains on. A parent that is training is copied at the end of its epoch. Returns the number
of the request.

- changes: a JSON object with the keys of a configuration, such as {"learning_rate": 0.001, "batch_size": 64}. Their
  values replace those of the parent. The architecture and the class of the
  optimizer stay. NULL: the clone has the parameters of its parent, but sees the rows in another order.
- configuration, reason, model, owner: as in cerebro.stop_model; configuration and model say which model is the parent.';

CREATE OR REPLACE FUNCTION cerebro.add_configuration(
    run        bigint,
    parameters jsonb,
    reason     text DEFAULT NULL,
    owner      name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_configuration(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.add_configuration(bigint, jsonb, text, name) IS
'Adds a configuration to a run. Its model starts at epoch 0, from random weights. Returns the number of the request.

- parameters: a JSON object, as in the argument configurations of cerebro.fit, such as {"architecture": "mlp",
  "units": 64, "learning_rate": 0.01}. What is left out follows from the rows.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.extend(
    run    bigint,
    epochs integer,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.extend(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.extend(bigint, integer, text, name) IS
'Gives all models of a run more epochs, as cerebro.resume(run, epochs) does, also while the run goes on. Returns the
number of the request.

- epochs: the new total number of epochs, larger than the planned one.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.set_budget(
    run    bigint,
    budget text,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.set_budget(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.set_budget(bigint, text, text, name) IS
'Replaces the budget of a run. When its budget is spent, a run begins no visit and finishes. What the run has used so
far counts. Returns the number of the request.

- budget: an interval such as 2 hours, or a JSON object with limits: seconds, unit_hours (hours of work of one segment),
  hops and configurations, such as {"unit_hours": 2}. {}: no limit.
- reason, owner: as in cerebro.stop_model.';

-- sql/api/43_train.sql
-- From a table to a trained model in one call.

CREATE OR REPLACE FUNCTION cerebro.train(
    source_table       text,
    model_table        text,
    target             text    DEFAULT NULL,
    inputs             text    DEFAULT NULL,
    prepare            json    DEFAULT NULL,
    weights            text    DEFAULT NULL,
    class_weight       text    DEFAULT NULL,
    sequence           json    DEFAULT NULL,
    validation         double precision DEFAULT NULL,
    validation_table   text    DEFAULT NULL,
    split_by           text    DEFAULT NULL,
    split_at           text    DEFAULT NULL,
    stratify           boolean DEFAULT NULL,
    folds              integer DEFAULT NULL,
    segments           integer DEFAULT NULL,
    packed_table       text    DEFAULT NULL,
    architectures      jsonb   DEFAULT NULL,
    space              jsonb   DEFAULT NULL,
    method             text    DEFAULT NULL,
    epochs             integer DEFAULT NULL,
    max_configurations integer DEFAULT NULL,
    at_once            integer DEFAULT NULL,
    start_from         text    DEFAULT NULL,
    objective          text    DEFAULT NULL,
    direction          text    DEFAULT NULL,
    stop_when          text    DEFAULT NULL,
    budget             text    DEFAULT '10 minutes',
    evaluate_every     integer DEFAULT NULL,
    use_gpus           boolean DEFAULT false,
    run_name           text    DEFAULT NULL,
    description        text    DEFAULT NULL,
    options            jsonb   DEFAULT NULL,
    wait               boolean DEFAULT true,
    dry_run            boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.train(
    text, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer,
    integer, text, jsonb, jsonb, text, integer, integer, integer, text, text, text, text, text, integer,
    boolean, text, text, jsonb, boolean, boolean
) IS
'Trains a model on a table with columns of nearly any type, and returns the number of the run. It packs the table,
chooses architectures and a search space for the target, searches until the budget is used, and keeps the best epoch of
each model. The models are in model_table, which cerebro.predict takes. Notices say what was decided; an argument
overrides each decision. docs/train.md says how the decisions are made.

- source_table: a table, a view or a foreign table, which is packed unless an earlier call has packed the same rows with
  the same arguments; or a packed table.
- target: the columns to predict, separated by commas.
- inputs, prepare, weights, class_weight, sequence, validation_table, split_by, split_at, segments: as in cerebro.pack.
- validation: the share of the rows for validation. NULL: a fifth of the rows, and at most 200,000 rows or windows.
- stratify: as in cerebro.pack. NULL: true if the target has few classes and the table at most 100,000 rows.
  With a sequence, NULL is false.
- folds: chooses the configuration by cross-validation with so many folds, as in cerebro.pack, instead of rows for
  validation. The models in the table are trained on all rows; cerebro.cross_validation shows mean and spread.
- packed_table: the name of the packed table. NULL: that of an earlier call, or that of model_table with the ending
  _packed, and a number if it is taken.
- architectures: a list of architectures, such as ["mlp"], or an object with the parameters of each kind, as in
  cerebro.architecture. A parameter "$units" is one of the space.
- space: as in cerebro.search. Each entry replaces the planned one of that name.
- method, max_configurations, at_once, start_from, evaluate_every: as in cerebro.search.
- epochs: number of epochs of a model that is never stopped. NULL: follows from the number of rows and the budget.
- budget: how long the call may take, for instance 2 hours; or limits as in cerebro.fit. It counts
  from the start of the call, but training has at least half of it. Visits that have begun are completed, and at least one
  model completes an epoch. NULL: no limit.
- options: as in cerebro.fit; keep is best (with folds: last), unless it says otherwise.
- the other arguments: as in cerebro.fit.';

-- sql/api/50_serving.sql
-- Evaluating trained models and predicting with them.

-- Rows travel to the trainer, and predictions back, in chunks of bytes. A SQL function that handles single array elements
-- takes longer than the prediction itself.

CREATE OR REPLACE FUNCTION cerebro._predict(rows bigint, variables bytea[]) RETURNS cerebro._prediction[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_chunk(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._predict(bigint, bytea[]) IS
'The predictions of this session''s model for a chunk of rows. variables: per input, the bytes of the arrays of all rows,
concatenated.';

-- PostgreSQL stores an array and a bytea value alike: a length, then the bytes. So byteasend, which copies a bytea value,
-- also copies an array.
CREATE OR REPLACE FUNCTION cerebro._array_bytes(anyarray) RETURNS bytea
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro._array_bytes(anyarray) IS
'The bytes of an array as PostgreSQL stores it: its header and its elements.';

CREATE OR REPLACE FUNCTION cerebro._bytes_array(bytea) RETURNS real[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro._bytes_array(bytea) IS
'The reverse of _array_bytes for real[]. The server does not check the bytes, so no role may call this function '
'directly.';

CREATE OR REPLACE FUNCTION cerebro._bytes_smallints(bytea) RETURNS smallint[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro._bytes_smallints(bytea) IS
'As _bytes_array, for smallint[].';

CREATE OR REPLACE FUNCTION cerebro._reals(numbers bytea) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sql$
SELECT CASE WHEN octet_length($1) % 4 = 0 THEN
       -- the header of a real[] with that many elements, and then the numbers
       cerebro._bytes_array(substring(cerebro._array_bytes(array_fill(0::real, ARRAY[octet_length($1) / 4])) FOR 20) || $1)
       END
$sql$;
COMMENT ON FUNCTION cerebro._reals(bytea) IS
'Converts numbers of four bytes each (float32, in the byte order of the machine) to an array.';

CREATE OR REPLACE FUNCTION cerebro._smallints(numbers bytea) RETURNS smallint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sql$
SELECT CASE WHEN octet_length($1) % 2 = 0 THEN
       cerebro._bytes_smallints(
           substring(cerebro._array_bytes(array_fill(0::smallint, ARRAY[octet_length($1) / 2])) FOR 20) || $1)
       END
$sql$;
COMMENT ON FUNCTION cerebro._smallints(bytea) IS
'As _reals, for numbers of two bytes each.';

-- One row for each chunk of rows, so that the rows themselves are made by the server and not by Python.
CREATE OR REPLACE FUNCTION cerebro._predict_rows(
    model_table text, query text, key text, configuration integer, top integer
)
RETURNS TABLE (ids text[], outputs jsonb, answers cerebro._prediction[])
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_rows(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._predict_rows(text, text, text, integer, integer) IS
'The predictions for the rows of a query: a row for each chunk of them.';

CREATE OR REPLACE FUNCTION cerebro.predict(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1
) RETURNS TABLE (key_value text, target text, value double precision, class text, probability double precision,
                 rank integer)
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT p.id, o.name, CASE WHEN o.labels IS NULL THEN p.number::double precision END, o.labels[1 + p.class::integer],
       CASE WHEN o.labels IS NOT NULL THEN p.number::double precision END, a.rank
  FROM cerebro._predict_rows($1, $2, $3, $4, $5) s
 CROSS JOIN LATERAL unnest(s.answers) AS a
 CROSS JOIN LATERAL jsonb_to_recordset(s.outputs) AS o (output integer, name text, labels text[])
 CROSS JOIN LATERAL ROWS FROM (unnest(s.ids), unnest(cerebro._reals(a.classes)), unnest(cerebro._reals(a.numbers)))
       AS p (id, class, number)
 WHERE o.output = a.output
$sql$;
COMMENT ON FUNCTION cerebro.predict(text, text, text, integer, integer) IS
'Returns the predictions of a trained model for the rows of a query, in the caller''s session. It writes no table: it
works in read-only transactions, and sees rows that the caller has not committed. The inputs are the columns of the
query with the names of the training columns; they are prepared as in training.

- model_table: the table of trained models.
- query: a query that returns the rows, for instance SELECT * FROM new_rows.
- key: the column that key_value returns, as text. NULL: a column that the model does not use, whose values differ in
  all rows; if there is none, the number of the row. A notice names it, unless it is the first column.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one.
- top: how many classes of each row, the most probable first.

A number to predict is in value. A class is in class, with its probability.';

CREATE OR REPLACE FUNCTION cerebro.predict_into(
    model_table   text,
    source_table  text,
    output_table  text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1
) RETURNS bigint
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.predict_into(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.predict_into(text, text, text, text, integer, integer) IS
'Predicts all rows of a table or view, and writes the predictions into a new table with the columns that cerebro.predict
returns. Returns the number of predicted rows (or windows). The inputs are the columns with the names of the training
columns; they are prepared as in training. On PostgreSQL, a table or materialized view of more than 4 MB is predicted on
all segments at the same time; all else is predicted in your own session. On Greenplum, only what other sessions cannot
see is predicted in your own session.

- model_table: the table of trained models.
- source_table: the table or view with the rows.
- output_table: the table to be made, with key_value, target, value, class, probability and rank.
- key: the column that key_value contains, as text. NULL: the columns of the primary key or of another unique index; else
  a column that the model does not use, whose values differ in the first 1,000 rows.
- configuration, top: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro.create_predictor(
    model_table text, function_name text, configuration integer DEFAULT NULL, replace boolean DEFAULT false
) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.create_predictor(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.create_predictor(text, text, integer, boolean) IS
'Creates a SQL function that predicts one row: its arguments are the input columns of a trained model, its result is the
number or the class. Returns how to call it. Each call predicts on its own; for many rows use cerebro.predict.

If the model reads windows, the function predicts one window. Each argument is an array with the values of its rows, in
their order.

While a transaction replaces the model table, the function waits for it. Afterwards it predicts with the new table.

- model_table: the table of trained models.
- function_name: of the new function, with or without a schema.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one. The function
  chooses it in each call.
- replace: true replaces a function of that name that cerebro.create_predictor has made.';

CREATE OR REPLACE FUNCTION cerebro._require_window(length integer, given integer[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT length = ALL (given) OR pg_catalog.array_position(given, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'the model reads windows of % rows, and the arrays have % elements', length,
                        pg_catalog.array_to_string(given, ', ', '0')
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Each array has the values of all rows, in their order.';
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION cerebro._require_window(integer, integer[]) IS
'True if all these lengths of arrays are that of a window; else an error.';

CREATE OR REPLACE FUNCTION cerebro.ensemble(
    model_table text, output_table text, members integer DEFAULT 5, all_join boolean DEFAULT false
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.ensemble(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.ensemble(text, text, integer, boolean) IS
'Makes one model of the best few models of a run. Its predictions are the means of their predictions. It begins with the
best model; each of the others joins only if the validation rows of the run are predicted better with it. So the ensemble
is never worse on these rows than the best model, and may be this model alone. The objective of the run decides, or the
loss on the validation rows if the objective is not measured on them. Each trial evaluates the models that have joined.
The tables output_table, output_table_info and output_table_summary are as those of cerebro.fit, with one model,
configuration 1.

- model_table: the table of trained models. They need functional architectures, as cerebro.architecture makes them.
- output_table: the table to be made.
- members: how many of the models are tried, the best first by the objective of the run.
- all_join: true makes the mean of all of them. So does a run without validation rows.';

-- sql/api/52_judging.sql
-- How good a trained model is, as plain rows: the predictions for the rows of a query beside the values that they have.
--
-- What cerebro._judging returns goes through a variable: on Greenplum, the arguments of cerebro.predict cannot come from
-- another table of the query.

CREATE OR REPLACE FUNCTION cerebro._judging(
    function text, model_table text, query text, target text, key text, wanted text, configuration integer,
    bins integer DEFAULT 1
) RETURNS TABLE (rows_query text, row_key text, of_target text, class text, null_is_class boolean, classes integer)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.judging(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._judging(text, text, text, text, text, text, integer, integer) IS
'What the functions that judge a model give to cerebro.predict. Each row_key of rows_query is an array in JSON: the key of the
row and the value that the target has. classes: how many the target has; NULL: it is a number.';

CREATE OR REPLACE FUNCTION cerebro.evaluate(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (metric text, value double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro._judging('cerebro.evaluate', $1, $2, $3, NULL, 'any', $4);
    IF judged.classes IS NULL THEN
        RETURN QUERY
        SELECT m.metric, m.value
          FROM (SELECT count(*) AS n, avg(a.error ^ 2) AS mse, avg(abs(a.error)) AS mae,
                       avg(abs(a.error / nullif(a.actual, 0))) AS mape,
                       1 - sum(a.error ^ 2) / nullif(var_pop(a.actual) * count(*), 0) AS r2
                  FROM (SELECT p.actual, p.actual - p.value AS error
                          FROM (SELECT (p.key_value::json ->> 1)::double precision AS actual, p.value
                                  FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4) p
                                 WHERE p.target = judged.of_target) p
                         WHERE p.actual IS NOT NULL) a) f
         CROSS JOIN LATERAL (VALUES (1, 'rmse', sqrt(f.mse)), (2, 'mse', f.mse), (3, 'mae', f.mae), (4, 'mape', f.mape),
                                    (5, 'r2', f.r2), (6, 'rows', f.n)) AS m (place, metric, value)
         ORDER BY m.place;
        RETURN;
    END IF;
    -- The predictions are read in one place only: on Greenplum, cerebro.predict can be read once in a query.
    RETURN QUERY
    SELECT m.metric, m.value
      FROM (SELECT max(c.n) AS n, max(c.hits) AS hits, max(c.known) AS known, max(c.logarithms) AS logarithms,
                   avg(c.f1) FILTER (WHERE judged.classes <> 2 OR c.class IS NOT DISTINCT FROM judged.class) AS f1,
                   avg(c.auc) FILTER (WHERE judged.classes <> 2 OR c.class IS NOT DISTINCT FROM judged.class) AS auc
              FROM (SELECT v.class,
                           max(l.n) FILTER (WHERE l.kind = 'all') AS n, max(l.hits) FILTER (WHERE l.kind = 'all') AS hits,
                           max(l.known) FILTER (WHERE l.kind = 'all') AS known,
                           max(l.logarithms) FILTER (WHERE l.kind = 'all') AS logarithms,
                           2 * sum(v.hits) FILTER (WHERE l.kind = 'pair')
                             / sum(l.n) FILTER (WHERE l.kind = 'pair')::double precision AS f1,
                           -- the share of the pairs of a row with the class and a row without it whose order is right
                           sum(l.known * (l.below + (l.answers - l.known) / 2.0)) FILTER (WHERE l.kind = 'probability')
                             / nullif(sum(l.known) FILTER (WHERE l.kind = 'probability')
                                      * sum(l.answers - l.known) FILTER (WHERE l.kind = 'probability'), 0) AS auc
                      FROM (SELECT k.*, COALESCE(sum(k.answers - k.known)
                                                 OVER (PARTITION BY k.kind, k.class ORDER BY k.probability
                                                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS below
                              FROM (SELECT CASE grouping(a.actual, a.class, a.probability)
                                                WHEN 7 THEN 'all' WHEN 1 THEN 'pair' ELSE 'probability' END AS kind,
                                           a.actual, a.class, a.probability, count(*) AS answers,
                                           count(*) FILTER (WHERE a.rank = 1) AS n,
                                           count(*) FILTER (WHERE a.rank = 1 AND a.is_right) AS hits,
                                           count(*) FILTER (WHERE a.is_right) AS known,
                                           -- A class that training did not have has the probability 0. The least one
                                           -- is that of Keras.
                                           sum(ln(GREATEST(a.probability, 1e-7))) FILTER (WHERE a.is_right) AS logarithms
                                      FROM (-- a row for each row of the query and each class
                                            SELECT p.actual, p.class, p.probability, p.rank,
                                                   p.actual IS NOT DISTINCT FROM p.class AS is_right
                                              FROM (SELECT p.key_value::json ->> 1 AS actual, p.class, p.probability,
                                                           p.rank
                                                      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4, 1000000) p
                                                     WHERE p.target = judged.of_target) p
                                             WHERE p.actual IS NOT NULL OR judged.null_is_class) a
                                     GROUP BY GROUPING SETS ((), (a.actual, a.class), (a.class, a.probability))) k) l
                     -- A pair counts for its actual and for its predicted class.
                     CROSS JOIN LATERAL (VALUES (true, l.actual, l.hits), (false, l.class, 0)) AS v (for_actual, class, hits)
                     WHERE CASE l.kind WHEN 'pair' THEN l.n > 0 ELSE NOT v.for_actual END
                     GROUP BY v.class) c) t
     CROSS JOIN LATERAL (VALUES
         (1, 'accuracy', t.hits / nullif(t.n, 0)::double precision),
         (2, 'log_loss', -(COALESCE(t.logarithms, 0) + (t.n - t.known) * ln(1e-7::double precision)) / nullif(t.n, 0)),
         (3, 'f1', t.f1),
         (4, 'auc', t.auc::double precision),
         (5, 'rows', t.n)) AS m (place, metric, value)
     ORDER BY m.place;
END
$$;
COMMENT ON FUNCTION cerebro.evaluate(text, text, text, integer) IS
'Returns how good a trained model is on the rows of a query, a row for each metric. It writes no table.

- Of a class: accuracy, log_loss (probabilities below 1e-7 count as 1e-7), f1 and auc. With two classes, f1 and auc are
  those of the second class; with more, the means over the classes that occur (each class against all others).
- Of a number: rmse, mse, mae, mape (as a part of 1, over the rows whose target is not 0) and r2.
- rows: how many rows were compared. Rows whose target is NULL are left out, unless NULL is a class of the model. A class
  that training did not have counts as a wrong prediction with the probability 0.
- A metric is NULL if these rows do not define it, for instance auc if they have one class only.
- model_table, query, target, configuration: as in cerebro.confusion_matrix. A window is compared with the
  target that packing gives it: that of its last row, or the majority.';

CREATE OR REPLACE FUNCTION cerebro.confusion_matrix(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (actual text, predicted text, count bigint, share double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro._judging('cerebro.confusion_matrix', $1, $2, $3, NULL, 'class', $4);
    RETURN QUERY
    SELECT g.actual, g.predicted, g.n, g.n / sum(g.n) OVER (PARTITION BY g.actual)::double precision
      FROM (SELECT p.key_value::json ->> 1 AS actual, p.class AS predicted, count(*) AS n
              FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4) p
             WHERE p.target = judged.of_target
             GROUP BY 1, 2) g
     ORDER BY 1, 2;
END
$$;
COMMENT ON FUNCTION cerebro.confusion_matrix(text, text, text, integer) IS
'Returns how many rows of each class a trained model predicts as which class. share is the part of the rows of the actual
class. Values of the target are read in the type that it had in training, so that 0 is the class 0.0 of a numeric. A value
that no class has is shown as text.

- model_table: the table of trained models.
- query: a query that returns rows with the inputs and the target, for instance SELECT * FROM new_rows.
- target: the column that is judged. NULL: the only target of the model.
- configuration: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro._scored(
    function text, model_table text, query text, class text, target text, configuration integer, bins integer DEFAULT 1
) RETURNS TABLE (positive integer, probability double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro._judging($1, $2, $3, $5, NULL, concat_ws(' ', 'one', $4), $6, $7);
    RETURN QUERY
    SELECT ((p.key_value::json ->> 1) IS NOT DISTINCT FROM judged.class)::integer, p.probability
      FROM cerebro.predict($2, judged.rows_query, judged.row_key, $6, 1000000) p
     WHERE p.target = judged.of_target AND p.class IS NOT DISTINCT FROM judged.class
       AND ((p.key_value::json ->> 1) IS NOT NULL OR judged.null_is_class);
END
$$;
COMMENT ON FUNCTION cerebro._scored(text, text, text, text, text, integer, integer) IS
'The probability of a class for each row of a query, and whether the row has the class (1 or 0).';

CREATE OR REPLACE FUNCTION cerebro.roc_curve(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (threshold double precision, true_positive_rate double precision, false_positive_rate double precision)
LANGUAGE sql AS $sql$
SELECT g.probability, sum(g.positives) OVER higher / nullif(sum(g.positives) OVER (), 0)::double precision,
       sum(g.n - g.positives) OVER higher / nullif(sum(g.n - g.positives) OVER (), 0)::double precision
  FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
          FROM cerebro._scored('cerebro.roc_curve', $1, $2, $3, $4, $5) s GROUP BY 1) g
WINDOW higher AS (ORDER BY g.probability DESC)
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.roc_curve(text, text, text, text, integer) IS
'Returns the ROC curve of a class: for each threshold, which part of the rows with the class, and of those without it,
has at least this probability. Rates are NULL if there are no such rows. Rows whose target is NULL are left out, unless
NULL is a class of the model.

- class: the class, as text. NULL: the second one of a target with two classes.
- model_table, query, target, configuration: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.precision_recall(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (threshold double precision, "precision" double precision, recall double precision, f1 double precision)
LANGUAGE sql AS $sql$
SELECT c.probability, c.found / c.n, c.found / nullif(c.positives, 0), 2 * c.found / nullif(c.n + c.positives, 0)
  FROM (SELECT g.probability, sum(g.positives) OVER higher::double precision AS found, sum(g.n) OVER higher AS n,
               sum(g.positives) OVER () AS positives
          FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
                  FROM cerebro._scored('cerebro.precision_recall', $1, $2, $3, $4, $5) s GROUP BY 1) g
        WINDOW higher AS (ORDER BY g.probability DESC)) c
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.precision_recall(text, text, text, text, integer) IS
'Returns for each threshold of a class''s probability the precision (which part of the rows at or above it has the class),
the recall (which part of the rows with the class is at or above it), and F1.

- model_table, query, class, target, configuration: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.calibration(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    bins          integer DEFAULT 10,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (bin integer, predicted double precision, actual double precision, count bigint)
LANGUAGE sql AS $sql$
SELECT b.bin, avg(b.probability), avg(b.positive)::double precision, count(*)
  FROM (SELECT LEAST(floor(s.probability * $4), $4 - 1)::integer + 1 AS bin, s.probability, s.positive
          FROM cerebro._scored('cerebro.calibration', $1, $2, $3, $5, $6, $4) s) b
 GROUP BY 1
 ORDER BY 1
$sql$;
COMMENT ON FUNCTION cerebro.calibration(text, text, text, integer, text, integer) IS
'Returns, for bins of the probability of a class, the mean probability and the part of the rows that have the class. They
are equal if the probabilities are right. Bins without rows are left out.

- bins: how many bins from 0 to 1.
- model_table, query, class, target, configuration: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.residuals(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (key_value text, actual double precision, predicted double precision, residual double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro._judging('cerebro.residuals', $1, $2, $4, $3, 'number', $5);
    RETURN QUERY
    SELECT p.key_value::json ->> 0, (p.key_value::json ->> 1)::double precision, p.value,
           (p.key_value::json ->> 1)::double precision - p.value
      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $5) p
     WHERE p.target = judged.of_target;
END
$$;
COMMENT ON FUNCTION cerebro.residuals(text, text, text, text, integer) IS
'Returns for each row of a query the number that the target has, the number that a trained model predicts, and the
difference: actual - predicted.

- key: the column that key_value returns, as text. NULL: the number of the row.
- model_table, query, target, configuration: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.importance(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    repeats       integer DEFAULT 1
) RETURNS TABLE (column_name text, importance double precision, loss double precision, loss_before double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.importance(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.importance(text, text, text, integer, integer) IS
'Returns how much a trained model needs each input column, the most important first: by how much its loss grows if the
values of the column are shuffled among the rows.

- query: a query as in cerebro.confusion_matrix, or the name of a packed table that cerebro.pack,
  cerebro.pack_plain or cerebro.pack_like has made. The rows of a query are predicted in this session, once
  for each column and shuffle; the loss is the mean squared error of a number, and the mean cross-entropy of a class. The
  rows of a packed table are evaluated on their segments, and values are shuffled among the rows of a segment. The loss
  is that of madlib.madlib_keras_evaluate. All numbers that a column became are shuffled together, an array as a whole, and of
  a window the values of all its rows. The shuffles are the same in each call.
- target: as in cerebro.confusion_matrix. With a packed table, NULL takes the loss of all targets.
- repeats: over how many random shuffles of each column the loss is averaged, from 1 to 1000.
- model_table, configuration: as in cerebro.confusion_matrix.';

-- sql/api/54_models.sql
-- The trained models of the database, as a list, and what is not about single runs or models.
--
-- The list is computed from the catalog and from what the tables themselves say, so it also has ensembles, tables of other
-- users, and tables that were renamed or restored. Whoever reads it has not chosen these tables, so none of them may run
-- code, wait or fail:
-- * Only plain tables are read: no views, policies, constraints, expressions or types of users.
-- * A table's owner could change it between this check and the reading. So a superuser reads only tables of superusers.
-- * No lock is waited for, and each is released at once by an exception: thousands of tables would not fit into the table
--   of locks.
-- * What is read has a bound.

CREATE OR REPLACE FUNCTION cerebro._models() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found     record;
    said      jsonb;
    best      jsonb;
    bytes     bigint;
BEGIN
    FOR found IN
        -- What the columns are called: in plain tables, and in those of MADlib, where a table of one model has no number.
        WITH form (required, number, validation_loss, training_loss, run_name, target, target_type, target_text, began,
                   began_type) AS (
            VALUES ('{configuration,weights,architecture}'::text[], 'configuration', 'validation_loss', 'training_loss',
                    'run_name', 'target', 'text', 's.target', 'started_at', 'timestamptz'),
                   ('{model_weights,model_arch}', 'mst_key', 'validation_loss_final', 'training_loss_final', 'name',
                    'dependent_varname', 'text[]', 'array_to_string(s.dependent_varname, '', '')', 'start_training_time',
                    'timestamp')
        ), model AS (
            SELECT DISTINCT ON (m.oid) m.oid, m.relnamespace, m.relname, m.relowner,
                   format('%I.%I', n.nspname, m.relname) AS named, f.*
              FROM form f JOIN pg_class m
                ON f.required <@ (SELECT array_agg(a.attname::text) FROM pg_attribute a
                                   WHERE a.attrelid = m.oid AND a.attname = ANY (f.required) AND NOT a.attisdropped)
              JOIN pg_namespace n ON n.oid = m.relnamespace
             WHERE m.relkind = 'r' AND (m.relpersistence <> 't' OR n.oid = pg_my_temp_schema())
               AND has_table_privilege(m.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
             ORDER BY m.oid, f.number
        ), beside AS (
            SELECT m.oid AS model, c.oid, e.ending
              FROM model m CROSS JOIN (VALUES ('_summary'), ('_info'), ('_weights')) AS e (ending)
              JOIN pg_class c ON c.relname = (m.relname || e.ending)::name AND c.relnamespace = m.relnamespace
             WHERE c.relkind = 'r' AND octet_length(m.relname || e.ending) < 64
        ), several AS (
            SELECT m.*, m.relowner AS owner, b.summary, b.info, b.tables || m.oid AS tables
              FROM model m
              JOIN (SELECT model, max(oid) FILTER (WHERE ending = '_summary') AS summary,
                           max(oid) FILTER (WHERE ending = '_info') AS info, array_agg(oid) AS tables
                      FROM beside GROUP BY model) b ON b.model = m.oid
        )
        SELECT s.oid::bigint AS oid, s.named, s.owner::bigint AS owner, s.tables,
               s.oid::regclass AS model, s.summary::regclass AS summary, s.info::regclass AS info,
               (SELECT bool_and(has_table_privilege(c.oid, 'SELECT') AND NOT c.relrowsecurity AND c.relchecks = 0
                                AND NOT c.relhasrules AND NOT c.relispartition
                                AND (NOT me.rolsuper
                                     OR EXISTS (SELECT FROM pg_roles o WHERE o.oid = c.relowner AND o.rolsuper))
                                AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                                                                         AND (i.indpred IS NOT NULL OR i.indexprs IS NOT NULL))
                                AND NOT EXISTS (SELECT FROM pg_statistic_ext e WHERE e.stxrelid = c.oid))
                  FROM pg_class c WHERE c.oid = ANY (s.tables)) AS is_plain,
               (SELECT string_agg(v.value || ' AS ' || v.name, ', ')
                  FROM (VALUES ('run', 'run', 'bigint', 's.run'),
                               ('name', s.run_name, 'text', format('left(s.%I, 1000)', s.run_name)),
                               ('objective', 'objective', 'text', 'left(s.objective, 1000)'),
                               ('direction', 'direction', 'text', 'left(s.direction, 10)'),
                               ('began', s.began, s.began_type, format('CASE WHEN s.%1$I BETWEEN ''2000-01-01'' '
                                'AND ''3000-01-01'' THEN s.%1$I END', s.began)),
                               ('validation_loss', s.validation_loss, 'double precision', format('s.%I', s.validation_loss)),
                               ('training_loss', s.training_loss, 'double precision', format('s.%I', s.training_loss)),
                               ('target', s.target, s.target_type, format('CASE WHEN pg_column_size(s.%I) <= 10000 '
                                'THEN left(%s, 1000) END', s.target, s.target_text)),
                               ('rows', 'layout', 'jsonb', 'CASE WHEN pg_column_size(s.layout) <= 1000000 '
                                'THEN CASE jsonb_typeof(s.layout -> ''rows'') WHEN ''number'' '
                                'THEN LEAST(GREATEST((s.layout ->> ''rows'')::numeric, 0), 1e15)::bigint END END'))
                       AS v (name, "column", type, value)
                  JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = v.type::regtype
                 WHERE a.attrelid = s.summary AND NOT a.attisdropped) AS says,
               (SELECT string_agg(CASE WHEN a.attname IS NULL THEN 'NULL::double precision' ELSE 'i.' || v."column" END
                                  || ' AS ' || v.name, ', ')
                  FROM (VALUES ('objective_value', 'objective_value'), ('validation_loss', s.validation_loss),
                               ('training_loss', s.training_loss)) AS v (name, "column")
                  LEFT JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = 'double precision'::regtype
                                          AND a.attrelid = s.info AND NOT a.attisdropped) AS figures,
               (SELECT count(*) = 2 FROM pg_attribute a
                 WHERE a.attrelid IN (s.oid, s.info) AND a.attname = s.number AND a.atttypid = 'integer'::regtype
                   AND NOT a.attisdropped) AS is_keyed,
               s.number
          FROM several s JOIN pg_roles me ON me.rolname = current_user
         WHERE s.summary IS NOT NULL
    LOOP
        said := NULL;
        best := NULL;
        bytes := NULL;
        BEGIN
            IF found.is_plain AND found.says IS NOT NULL THEN
                EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE NOWAIT',
                               (SELECT string_agg('ONLY ' || t::regclass, ', ') FROM unnest(found.tables) AS t));
                EXECUTE format('SELECT to_jsonb(t) FROM (SELECT %s FROM ONLY %s s LIMIT 1) t', found.says, found.summary)
                   INTO said;
                IF found.is_keyed THEN
                    EXECUTE format(
                        'SELECT to_jsonb(t) FROM (SELECT count(*) AS configurations, COALESCE(%s(r.objective_value),'
                        ' min(r.validation_loss), min(r.training_loss)) AS value FROM (SELECT %s'
                        ' FROM ONLY %s m JOIN ONLY %s i USING (%I) LIMIT 100000) r) t',
                        CASE WHEN said ->> 'direction' = 'max' THEN 'max' ELSE 'min' END, found.figures, found.model,
                        found.info, found.number)
                       INTO best;
                ELSE
                    best := jsonb_build_object('configurations', 1, 'value', COALESCE(
                        NULLIF(said -> 'validation_loss', 'null'), said -> 'training_loss'));
                END IF;
                bytes := (SELECT sum(pg_total_relation_size(t)) FROM unnest(found.tables) AS t);
            END IF;
            RAISE EXCEPTION SQLSTATE 'CE000';
        EXCEPTION WHEN OTHERS THEN
            NULL; -- the locks are released
        END;
        RETURN NEXT jsonb_build_object(
            'model_table', found.named, 'owner', found.owner, 'run', said -> 'run', 'run_name', said -> 'name',
            'target', said -> 'target', 'objective', said -> 'objective', 'best_value', best -> 'value',
            'rows', said -> 'rows', 'configurations', best -> 'configurations', 'began', said -> 'began',
            'bytes', bytes)::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro._models() IS
'The model tables that the current user may read, as JSON. One column and no more: on Greenplum the function runs before '
'the query that calls it.';

CREATE OR REPLACE VIEW cerebro.models WITH (security_barrier) AS
SELECT t.j ->> 'model_table' AS model_table, t.j ->> 'target' AS target, (t.j ->> 'run')::bigint AS run,
       t.j ->> 'run_name' AS run_name, t.j ->> 'objective' AS objective,
       (t.j ->> 'best_value')::double precision AS best_value, (t.j ->> 'rows')::bigint AS rows,
       (t.j ->> 'configurations')::integer AS configurations,
       COALESCE(r.created_at, (t.j ->> 'began')::timestamptz) AS created_at, (t.j ->> 'bytes')::bigint AS bytes,
       pg_get_userbyid((t.j ->> 'owner')::oid) AS owner
  FROM (SELECT line::json AS j FROM (SELECT m AS line FROM cerebro._models() m OFFSET 0) l) t
  LEFT JOIN cerebro._visible_run r ON r.run = (t.j ->> 'run')::bigint AND r.owner::oid = (t.j ->> 'owner')::oid;
COMMENT ON VIEW cerebro.models IS
'The tables of trained models that the current user may read. Where columns but model_table and owner are NULL, a table is '
'in exclusive use, or it is not as cerebro_db makes it, or it belongs to an ordinary user and the current user is a '
'superuser.';
COMMENT ON COLUMN cerebro.models.model_table IS 'The model table, with its schema: what cerebro.predict takes.';
COMMENT ON COLUMN cerebro.models.target IS 'The columns that the models predict, with commas.';
COMMENT ON COLUMN cerebro.models.run IS 'Number of the run that trained the models, of the owner of the table.';
COMMENT ON COLUMN cerebro.models.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.models.objective IS
'Metric that the run optimised, for instance val_accuracy. A loss if the run has no objective.';
COMMENT ON COLUMN cerebro.models.best_value IS
'Value of the objective of the best model in the table, or else its loss (on the validation table if there was one). NULL '
'of an ensemble, which was not evaluated.';
COMMENT ON COLUMN cerebro.models.rows IS 'Number of rows (or windows) that the models were trained on.';
COMMENT ON COLUMN cerebro.models.configurations IS 'Number of models in the table.';
COMMENT ON COLUMN cerebro.models.created_at IS
'When the run was created. Of a run that the current user may not see: when it began to train.';
COMMENT ON COLUMN cerebro.models.bytes IS 'Size of the model table and of the tables beside it, in bytes.';
COMMENT ON COLUMN cerebro.models.owner IS 'The user who owns the table.';

CREATE OR REPLACE FUNCTION cerebro.drop_model(model_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.drop_model(text) IS
'Drops a table of trained models with the tables beside it (_summary, _info, _weights). Packed rows, architectures and the
run stay: cerebro.materialize makes the tables again, until cerebro.forget deletes the run. Functions that
cerebro.create_predictor made for it fail from then on.

- model_table: a table of yours that cerebro.models lists. A view or function that depends on it is an error that names it.';

CREATE OR REPLACE FUNCTION cerebro.version() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT extversion FROM pg_extension WHERE extname = 'cerebro_db'
$$;
COMMENT ON FUNCTION cerebro.version() IS
'The version of cerebro_db in this database, for instance 0.1.0.';

-- sql/api/55_custom_functions.sql
-- Custom losses and metrics.  The table is in sql/schema/50_custom_functions.sql.

CREATE OR REPLACE VIEW cerebro.custom_functions AS
SELECT name, version, kind, description, registered_by AS added_by, registered_at AS added_at, sha256, source
  FROM (SELECT DISTINCT ON (name) * FROM cerebro.custom_function ORDER BY name, version DESC) newest
 WHERE source IS NOT NULL;
COMMENT ON VIEW cerebro.custom_functions IS
'The custom losses and metrics that compile parameters can name, for instance loss=''name''. A new run uses the version '
'that is listed here.';
COMMENT ON COLUMN cerebro.custom_functions.name IS 'Name of the function, as compile parameters refer to it.';
COMMENT ON COLUMN cerebro.custom_functions.version IS 'Newest version, from 1.';
COMMENT ON COLUMN cerebro.custom_functions.kind IS 'loss, metric or both.';
COMMENT ON COLUMN cerebro.custom_functions.description IS 'Description that the administrator gave.';
COMMENT ON COLUMN cerebro.custom_functions.added_by IS 'The administrator who added this version.';
COMMENT ON COLUMN cerebro.custom_functions.added_at IS 'When this version was added.';
COMMENT ON COLUMN cerebro.custom_functions.sha256 IS 'SHA-256 checksum of the source, in hexadecimal.';
COMMENT ON COLUMN cerebro.custom_functions.source IS 'Python source of the function.';

CREATE OR REPLACE FUNCTION cerebro.add_custom_function(name text, source text, kind text, description text DEFAULT NULL)
RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.add_custom_function(text, text, text, text) IS
'Registers a custom loss or metric from its Python source, or a new version of it, and returns the version. For
cerebro_admin. THE SOURCE RUNS WITH THE RIGHTS OF THE SERVER''S OPERATING-SYSTEM ACCOUNT, in the trainers of all users
who name the function. Registration checks the syntax and executes nothing. A run keeps the version that it started
with.

- source: one function, def NAME(y_true, y_pred). It can use keras, and keras.ops as ops.
- kind: loss, metric or both.';

CREATE OR REPLACE FUNCTION cerebro.drop_custom_function(name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.drop_custom_function(text) IS
'Retires a custom loss or metric. New runs cannot name it. Existing runs and models keep the version that they use. For
cerebro_admin.';

-- sql/api/60_limits.sql
-- Limits on what a role may use of the server.  The table is in sql/schema/60_limits.sql.

-- On Greenplum, 80_greenplum.sql replaces this view.
-- To measure a table the server has to lock it. If a transaction has locked one exclusively (it may have dropped it), the
-- last known size stands in: else that transaction would hold up every new run of the owner.
CREATE OR REPLACE VIEW cerebro._state_size AS
SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner,
       CASE WHEN l.relation IS NULL THEN pg_catalog.pg_total_relation_size(c.oid)
            ELSE c.relpages::bigint * current_setting('block_size')::bigint
       END AS bytes
  FROM pg_catalog.pg_class c
  LEFT JOIN (SELECT DISTINCT relation FROM pg_catalog.pg_locks
              WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock' AND pid <> pg_catalog.pg_backend_pid()
                AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) l
         ON l.relation = c.oid
 WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace;
COMMENT ON VIEW cerebro._state_size IS
'The disk space of the state tables of all runs, in bytes per table, with its owner.';

-- Worker processes read this themselves, so that nobody who calls their functions by hand can leave the limit out. The
-- user of the session counts, too: SET ROLE to a group must not lift a limit.
-- (A function and no view: on Greenplum a segment may read this table, of which it has a copy, but no view.)
CREATE OR REPLACE FUNCTION cerebro._trainer_limit(one name, other name) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT COALESCE(min(max_trainer_mb) FILTER (WHERE role::oid <> 0), min(max_trainer_mb))
              FROM cerebro.role_limit
             WHERE role::oid IN (0, quote_ident(one)::regrole::oid, quote_ident(other)::regrole::oid));
END
$$;
COMMENT ON FUNCTION cerebro._trainer_limit(name, name) IS
'The megabytes of private memory that each trainer of the current user and of the user of the session may take; NULL: '
'no limit.';

-- On its own, because each prediction asks for waiting_seconds, and the view on the limits also counts what is used.
CREATE OR REPLACE VIEW cerebro._own_limits AS
SELECT COALESCE(own.max_running_runs, everybody.max_running_runs) AS running_runs,
       COALESCE(own.max_segments, everybody.max_segments) AS segments,
       COALESCE(own.max_state_bytes, everybody.max_state_bytes) AS state_bytes,
       COALESCE(own.max_run_seconds, everybody.max_run_seconds) AS run_seconds,
       COALESCE(own.min_free_connections, everybody.min_free_connections,
                GREATEST(3, current_setting('max_connections')::integer / 10)) AS free_connections,
       COALESCE(own.max_waiting_seconds, everybody.max_waiting_seconds, 60) AS waiting_seconds
  FROM (VALUES (1)) one
  LEFT JOIN cerebro.role_limit own ON own.role = quote_ident(current_user)::regrole
  LEFT JOIN cerebro.role_limit everybody ON everybody.role::oid = 0;
COMMENT ON VIEW cerebro._own_limits IS
'The limits of the current role, in one row; NULL: no limit.';

-- A run is checked against the same figures that users see here.
CREATE OR REPLACE VIEW cerebro.limits WITH (security_barrier) AS
WITH mine AS (
    SELECT o.*, cerebro._trainer_limit(current_user, session_user) AS trainer_mb FROM cerebro._own_limits o
), running AS (
    SELECT count(*) AS runs, COALESCE(sum(segments), 0) AS segments,
           max(extract(epoch FROM clock_timestamp() - last.at)) AS seconds
      FROM cerebro.runs
     CROSS JOIN LATERAL (SELECT max(e.at) AS at
                           FROM cerebro.event e
                          WHERE e.run = runs.run AND pg_catalog.pg_get_userbyid(e.owner) = runs.owner
                                AND e.event = 'started') last
     WHERE runs.owner = current_user AND runs.status = 'running'
)
SELECT l.name, l.allowed::bigint AS allowed, l.used::bigint AS used, l.about
  FROM mine, running,
       LATERAL (VALUES
           ('running_runs', mine.running_runs, running.runs, 'your runs that are running'),
           ('segments', mine.segments, running.segments,
            'segments of your running runs; each segment has a trainer process'),
           ('state_bytes', mine.state_bytes,
            -- A subquery that stands alone: Greenplum's _state_size cannot be joined.
            (SELECT COALESCE(sum(bytes), 0) FROM cerebro._state_size WHERE owner = current_user),
            'bytes of disk space for the model states of all your runs'),
           ('run_seconds', mine.run_seconds, COALESCE(running.seconds, 0),
            'seconds that a run may take from its start or its last resume'),
           ('connections',
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                - COALESCE(current_setting('reserved_connections', true)::integer, 0) - mine.free_connections,
            (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database),
            'connections to the whole server; a run takes one connection per segment and one more'),
           ('waiting_seconds', mine.waiting_seconds, NULL::numeric,
            'seconds for which worker sessions stay open for the next call of your session; 0: they end with the call'),
           ('trainer_mb', mine.trainer_mb, NULL::numeric,
            'megabytes of private memory that each trainer process of yours may take, without a GPU')
       ) AS l (name, allowed, used, about);
COMMENT ON VIEW cerebro.limits IS
'What you may use of the server, and what you use now.';
COMMENT ON COLUMN cerebro.limits.name IS
'Name of the limit: running_runs, segments, state_bytes, run_seconds, connections, waiting_seconds or trainer_mb.';
COMMENT ON COLUMN cerebro.limits.allowed IS 'The most that you may use, in the unit that about names; NULL: no limit.';
COMMENT ON COLUMN cerebro.limits.used IS 'What is used now, in the same unit; NULL: not measured.';
COMMENT ON COLUMN cerebro.limits.about IS 'What the limit counts, and its unit.';

CREATE OR REPLACE FUNCTION cerebro.set_limits(
    role                 text    DEFAULT NULL,
    max_running_runs     integer DEFAULT NULL,
    max_segments         integer DEFAULT NULL,
    max_state_bytes      bigint  DEFAULT NULL,
    max_run_seconds      integer DEFAULT NULL,
    min_free_connections integer DEFAULT NULL,
    max_waiting_seconds  integer DEFAULT NULL,
    max_trainer_mb       integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(role, '') <> '' AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        RAISE EXCEPTION 'cerebro.set_limits: there is no role %', quote_literal(left(role, 80)) USING
            ERRCODE = 'undefined_object',
            HINT = 'The limits of all roles that have none of their own are set with NULL.';
    END IF;
    DELETE FROM cerebro.role_limit l WHERE l.role = COALESCE(quote_ident(NULLIF(set_limits.role, '')), '-')::regrole;
    INSERT INTO cerebro.role_limit
           (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
            max_waiting_seconds, max_trainer_mb)
    VALUES (COALESCE(quote_ident(NULLIF(set_limits.role, '')), '-')::regrole, set_limits.max_running_runs,
            set_limits.max_segments,
            set_limits.max_state_bytes, set_limits.max_run_seconds, set_limits.min_free_connections,
            set_limits.max_waiting_seconds, set_limits.max_trainer_mb);
END
$$;
COMMENT ON FUNCTION cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer) IS
'Sets all limits of a role, replacing the limits that the role had. For cerebro_admin. The limits bound what runs use;
PostgreSQL itself limits the role''s own sessions.

- role: NULL sets the limits of every role that has none of its own. In the other arguments NULL means no limit of the
  role''s own.
- max_running_runs: runs at the same time.
- max_segments: segments of all running runs together.
- max_state_bytes: disk space for model states, in bytes.
- max_run_seconds: duration of a run, in seconds. A run that takes longer is cancelled and can be resumed.
- min_free_connections: connections that stay free for other users. Default: a tenth of max_connections, at least 3.
- max_waiting_seconds: how long the worker sessions of a call stay open, with their memory, for the next call of the
  same session, in seconds. Default: 60. They end at once when other users lack connections or memory.
- max_trainer_mb: private memory of each trainer process, in megabytes. A model that needs more fails, or its trainer
  ends. A trainer needs about 600 MB before it builds a model. Trainers that use a GPU are not limited, because drivers
  reserve far more than they use.';

CREATE OR REPLACE FUNCTION cerebro._forget_own(forgotten bigint, whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Here the caller is not known any more, but only the owner of a run can have written this event.
    IF EXISTS (SELECT FROM cerebro.event
                WHERE run = forgotten AND pg_get_userbyid(owner) = whose AND event = 'forgotten') THEN
        PERFORM cerebro._forget(forgotten, whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro._forget_own(bigint, name) IS
'Deletes the log and the model states of a run whose owner has recorded that it is to be forgotten. Called by '
'cerebro.forget().';

-- Anybody who may use the schema can make things that depend on a table in it: a function's argument may have the type of
-- its rows. As DROP TABLE does, this leaves out what goes with the table: its indexes, rules, policies, triggers.
CREATE OR REPLACE FUNCTION cerebro._dependants(state_table oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE gone (classid, objid) AS (
        SELECT 'pg_class'::regclass::oid, $1
         UNION
        SELECT d.classid, d.objid
          FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
         WHERE d.deptype IN ('a', 'i', 'P', 'S')
    ), kept AS (
        SELECT DISTINCT d.classid, d.objid
          FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
         WHERE d.deptype = 'n' AND NOT EXISTS (SELECT FROM gone o WHERE o.classid = d.classid AND o.objid = d.objid)
    )
    SELECT left(string_agg(DISTINCT regexp_replace(
               CASE WHEN w.oid IS NULL THEN pg_describe_object(k.classid, k.objid, 0)
                    ELSE pg_describe_object('pg_class'::regclass, w.ev_class, 0) END
               || COALESCE(' of ' || quote_ident(pg_get_userbyid(COALESCE(r.relowner, f.proowner, t.typowner))), ''),
               '[[:cntrl:]]', '?', 'g'), ', '), 2000)
      FROM kept k
      LEFT JOIN pg_rewrite w ON k.classid = 'pg_rewrite'::regclass AND w.oid = k.objid
      LEFT JOIN pg_constraint c ON k.classid = 'pg_constraint'::regclass AND c.oid = k.objid
      LEFT JOIN pg_policy p ON k.classid = 'pg_policy'::regclass AND p.oid = k.objid
      LEFT JOIN pg_attrdef a ON k.classid = 'pg_attrdef'::regclass AND a.oid = k.objid
      LEFT JOIN pg_class r ON r.oid = COALESCE(w.ev_class, c.conrelid, p.polrelid, a.adrelid,
                                               CASE WHEN k.classid = 'pg_class'::regclass THEN k.objid END)
      LEFT JOIN pg_proc f ON k.classid = 'pg_proc'::regclass AND f.oid = k.objid
      LEFT JOIN pg_type t ON k.classid = 'pg_type'::regclass AND t.oid = k.objid
$$;
COMMENT ON FUNCTION cerebro._dependants(oid) IS
'The objects that keep a state table from being dropped, in words; NULL: none. For cerebro._forget().';

CREATE OR REPLACE FUNCTION cerebro._forget(forgotten bigint, whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until    constant timestamptz := clock_timestamp()
                                     + COALESCE(NULLIF(current_setting('lock_timeout')::interval, '0'), '1 minute');
    stored   text;
    states   oid[];
    state    record;
    holder   record;
    kept     text;
    named    text;
BEGIN
    -- A user can write any text into the column storage. So a table is dropped only if it belongs to the owner of the
    -- run and has the name of a state table.
    SELECT storage INTO stored
      FROM cerebro.run
     WHERE run = forgotten AND pg_get_userbyid(owner) = whose AND storage ~ '^run_[0-9a-f]{12}$';
    -- The catalogs have a query of their own, because joined with a table, Greenplum would read them in another process,
    -- and with the fault that docs/greenplum.md describes.
    states := ARRAY(
        SELECT c.oid
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'cerebro_state'
         WHERE c.relkind IN ('r', 'p') AND pg_get_userbyid(c.relowner) = whose
           AND c.relname ~ ('^' || stored || '_(shared_[01]|[0-9]+_([01]|best|replica_[0-9]+))$')
         ORDER BY c.oid);
    -- Whoever uses a state is waited for here, because an error of DROP could not name the session.
    LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT l.pid, a.usename::text AS role, l.relation::regclass AS held INTO holder
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.relation = ANY (states) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND (l.pid IS NULL OR a.pid IS NOT NULL) -- else it is a process of a segment of Greenplum
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF clock_timestamp() > until THEN
            RAISE EXCEPTION 'cerebro.forget: a state of run % is in use: % holds a lock on %', forgotten,
                  COALESCE(format('session %s of role %s', holder.pid,
                                  regexp_replace(quote_ident(holder.role), '[[:cntrl:]]', '?', 'g')), 'a prepared transaction'),
                  holder.held
            USING ERRCODE = 'lock_not_available', HINT = 'Try again when its transaction has ended. The setting '
                  'lock_timeout says how long to wait; without it, a minute.';
        END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
    FOR state IN
        SELECT s.oid::regclass AS name, cerebro._dependants(s.oid) AS dependants,
               c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.confrelid = s.oid
                                                                             AND k.conrelid <> s.oid) AS can_be_emptied
          FROM unnest(states) AS s (oid) JOIN pg_class c ON c.oid = s.oid
    LOOP
        IF state.dependants IS NULL THEN
            EXECUTE format('DROP TABLE %s', state.name);
            CONTINUE;
        END IF;
        -- Nobody's objects are dropped unasked. The table stays, without its rows. None of its triggers may run here.
        IF state.can_be_emptied THEN
            EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER ALL', state.name);
            EXECUTE format('TRUNCATE ONLY %s', state.name);
        END IF;
        kept := concat_ws('; ', kept, format('%s%s (%s)', state.name, CASE WHEN NOT state.can_be_emptied THEN ' with its rows' END,
                                             state.dependants));
    END LOOP;
    FOREACH named IN ARRAY ARRAY['request', 'heartbeat', 'decision', 'objective', 'attempt', 'evaluation', 'hop', 'event',
                                 'model', 'configuration', 'architecture', 'run']
    LOOP
        EXECUTE format('DELETE FROM cerebro.%I WHERE run = $1 AND pg_get_userbyid(owner) = $2', named)
          USING forgotten, whose;
    END LOOP;
    IF kept IS NOT NULL THEN
        RAISE WARNING 'cerebro.forget: run % is forgotten, but tables of its states stay, because other objects depend on them: %',
              forgotten, left(kept, 4000)
        USING HINT = format('%I can drop each of them with the objects that depend on it: DROP TABLE … CASCADE. Tables'
                            ' without the words "with its rows" are empty.', whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro._forget(bigint, name) IS
'Deletes the log and the model states of any user''s run. cerebro.forget() calls it for a member of cerebro_admin.';

-- sql/api/65_madlib.sql
-- What the functions of the extension cerebro_db_madlib call, beside the functions that users of cerebro call, too.

CREATE OR REPLACE FUNCTION cerebro._madlib_usage(name text, message text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_usage(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_usage(text, text) IS
'The help of a function of MADlib''s: a summary, or for the message usage its arguments, or for example an example.';

CREATE OR REPLACE FUNCTION cerebro._hyperband_schedule(schedule_table text, r integer, eta integer, skip_last integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.hyperband_schedule(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._hyperband_schedule(text, integer, integer, integer) IS
'Writes the rounds of a Hyperband search into a new table: bracket s, round i, configurations n_i, iterations r_i.';

CREATE OR REPLACE FUNCTION cerebro._train_test_split(
    source_table           text,
    output_table           text,
    train_proportion       double precision,
    test_proportion        double precision,
    grouping_cols          text,
    target_cols            text,
    with_replacement       boolean,
    separate_output_tables boolean
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train_test_split(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._train_test_split(
    text, text, double precision, double precision, text, text, boolean, boolean) IS
'Draws the rows of a training and of a test table from a table, in each group in the same proportion.';

CREATE OR REPLACE FUNCTION cerebro._gpu_texts(source text) RETURNS text[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_texts(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._gpu_texts(text) IS
'The GPUs of the host on which the function runs, described as TensorFlow or as nvidia-smi would (source).';

CREATE OR REPLACE FUNCTION cerebro._gpu_configuration(output_table text, source text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_configuration(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._gpu_configuration(text, text) IS
'Writes the GPUs of every host into a new table: hostname and gpu_descr.';

-- The query of the elements in their order becomes, dimension by dimension from the last, a query of arrays.
CREATE OR REPLACE FUNCTION cerebro._array_product(x anyarray, k anyelement) RETURNS anyarray
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    query  text := 'SELECT e OPERATOR(pg_catalog.*) coalesce($2, e) AS v, n - 1 AS n'
                   ' FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (e, n)';
    size   integer;
    result x%TYPE := x;
BEGIN
    IF pg_catalog.array_ndims(x) IS NULL THEN
        RETURN x;
    END IF;
    FOR place IN REVERSE pg_catalog.array_ndims(x)..1 LOOP
        size := pg_catalog.array_length(x, place);
        query := pg_catalog.format('SELECT pg_catalog.array_agg(v ORDER BY n) AS v, n / %s AS n FROM (%s) q'
                                   ' GROUP BY n / %s', size, query, size);
    END LOOP;
    EXECUTE 'SELECT v FROM (' || query || ') q' INTO result USING x, k;
    RETURN result;
END
$$;
COMMENT ON FUNCTION cerebro._array_product(anyarray, anyelement) IS
'The array with each element multiplied by k, or by itself if k is NULL. The dimensions stay.';

-- The functions of the same names without _madlib_, as MADlib has them.

CREATE OR REPLACE FUNCTION cerebro._madlib_training_preprocessor_dl(
    source_table        text,
    output_table        text,
    dependent_varname   text,
    independent_varname text,
    buffer_size         integer,
    normalizing_const   real,
    num_classes         integer[],
    distribution_rules  text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_training_preprocessor_dl(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_training_preprocessor_dl(
    text, text, text, text, integer, real, integer[], text) IS
'training_preprocessor_dl as MADlib has it: numbers to predict are classes, NULL is a class, inputs become float32.';

CREATE OR REPLACE FUNCTION cerebro._madlib_validation_preprocessor_dl(
    source_table                text,
    output_table                text,
    dependent_varname           text,
    independent_varname         text,
    training_preprocessor_table text,
    buffer_size                 integer,
    distribution_rules          text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_validation_preprocessor_dl(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_validation_preprocessor_dl(text, text, text, text, text, integer, text) IS
'validation_preprocessor_dl as MADlib has it: labels may be NULL if some of the training table are, or vectors of as many '
'classes.';

CREATE OR REPLACE FUNCTION cerebro._madlib_load_keras_model(
    keras_model_arch_table text, model_arch json, model_weights bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_keras_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_load_keras_model(text, json, bytea, text, text) IS
'load_keras_model as MADlib has it: any JSON and any weights are stored, and checked when they are used.';

CREATE OR REPLACE FUNCTION cerebro._madlib_delete_keras_model(keras_model_arch_table text, model_id integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_keras_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_delete_keras_model(text, integer) IS
'delete_keras_model as MADlib has it: drops the table with its last architecture.';

CREATE OR REPLACE FUNCTION cerebro._madlib_load_model_selection_table(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_list   text[],
    fit_params_list       text[],
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_model_selection_table(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_load_model_selection_table(text, text, integer[], text[], text[], text) IS
'load_model_selection_table as MADlib has it: fit parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro._madlib_generate_model_configs(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_grid   text,
    fit_params_grid       text,
    search_type           text,
    num_configs           integer,
    random_state          integer,
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_generate_model_configs(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_generate_model_configs(
    text, text, integer[], text, text, text, integer, integer, text) IS
'generate_model_configs as MADlib has it: a selection table whose summary is gone gets a new one, and fit '
'parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro._madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_fit_multiple_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_fit_multiple_model(
    text, text, text, integer, boolean, text, integer, boolean, text, text, boolean) IS
'madlib_fit_multiple_model as MADlib has it: the tables have the names of tables, losses and metrics as they were written.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_evaluate(
    model_table  text,
    test_table   text,
    output_table text,
    use_gpus     boolean DEFAULT false,
    mst_key      integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_evaluate(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_evaluate(text, text, text, boolean, integer) IS
'Computes the loss and the metric of a trained model on a packed table, on all of its segments at the same time.
output_table receives one row.

- mst_key: the model to evaluate, where model_table contains several.';

-- Ids are on their way as texts, which have to be the very same values when they are read.
CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text    DEFAULT 'prob',
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict(text, text, text, text, text, text, boolean, integer) IS
'Predicts with a trained model for the rows of a table or view, which need not be packed. output_table receives the
predictions with the values of id_col. A regression model writes one column estimated_<name> per dependent variable.

- independent_varname: the input columns, separated by commas. NULL, for a model trained on what cerebro.pack packed:
  the columns that have the names of the training columns. They are prepared as in training.
- pred_type: prob writes all classes of each row, with probability and rank. response writes the most probable class
  only.
- mst_key: the model to predict with, where model_table contains several.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict(text, text, text, text, text, integer, boolean, integer) IS
'As madlib_keras_predict with pred_type prob, but for each row only the pred_type most probable classes.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict(text, text, text, text, text, double precision, boolean, integer) IS
'As madlib_keras_predict with pred_type prob, but only the classes whose probability is above pred_type (0.0 to 1.0).';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict_byom(
    text, integer, text, text, text, text, text, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict_byom(
    text, integer, text, text, text, text, integer, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_predict_byom(
    text, integer, text, text, text, text, double precision, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_fit(
    source_table              text,
    model                     text,
    model_arch_table          text,
    model_id                  integer,
    compile_params            text,
    fit_params                text,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    warm_start                boolean,
    name                      text,
    description               text,
    object_table              text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_fit(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_fit(
    text, text, text, integer, text, text, integer, boolean, text, integer, boolean, text, text, text) IS
'Trains one model, as a run with one configuration; its table has one row, and its summary the contents of MADlib''s.';

CREATE OR REPLACE FUNCTION cerebro._madlib_keras_automl(
    source_table              text,
    model_output_table        text,
    model_arch_table          text,
    model_selection_table     text,
    model_id_list             integer[],
    compile_params_grid       text,
    fit_params_grid           text,
    automl_method             text,
    automl_params             text,
    random_state              integer,
    object_table              text,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    name                      text,
    description               text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_automl(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_keras_automl(
    text, text, text, text, integer[], text, text, text, text, integer, text, boolean, text, integer, text, text) IS
'A search by MADlib''s Hyperband or hyperopt, as a run; its tables have the contents of MADlib''s, and the selection table has '
'the best configuration.';

CREATE OR REPLACE FUNCTION cerebro._madlib_object_table(name text, schema text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_object_table(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_object_table(text, text) IS
'The name of a table of custom functions, with this schema if it has none.';

CREATE OR REPLACE FUNCTION cerebro._madlib_load_custom_function(
    object_table text, object bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_load_custom_function(text, bytea, text, text) IS
'Registers a custom function from its source text, and lists it in a table as MADlib has it. For cerebro_admin. Pickled '
'objects are refused.';

CREATE OR REPLACE FUNCTION cerebro._madlib_delete_custom_function(object_table text, id integer, name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_delete_custom_function(text, integer, text) IS
'Retires the custom function with this id, or else this name, and deletes it from a table as MADlib has it. For '
'cerebro_admin.';

CREATE OR REPLACE FUNCTION cerebro._madlib_load_top_k_accuracy_function(object_table text, k integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_top_k_accuracy_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._madlib_load_top_k_accuracy_function(text, integer) IS
'Lists the metric top_<k>_accuracy, which is built in, in a table as MADlib has it.';

CREATE OR REPLACE FUNCTION cerebro.convert_madlib_table(table_name text, packed_table text DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.convert_madlib_table(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.convert_madlib_table(text, text) IS
$doc$Makes a table that Apache MADlib has made usable here, and says what it did.

A packed table is copied, buffer by buffer as it is, into a table of the same name; MADlib's table gets the ending _madlib.
The summary of a model table (of madlib_keras_fit, madlib_keras_fit_multiple_model or madlib_keras_automl) gets further
columns; the weights stay as they are. Tables of architectures and model selection tables need no conversion.

- table_name: the table; its summary has the ending _summary.
- packed_table: for a model table, the packed table that the models were trained on. It must have been converted or packed
  here. NULL: the table that the summary names.

SELECT cerebro.convert_madlib_table('iris_train_packed');
SELECT cerebro.convert_madlib_table('iris_model');$doc$;

-- MADlib's functions for the bytes of packed tables. They copy bytes, because PL/Python would make an object of each number
-- and hear no cancel meanwhile.
CREATE OR REPLACE FUNCTION cerebro._convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro._convert_array_to_bytea(real[]) IS
'Converts an array to bytes: little-endian float32 values in C order.';

CREATE OR REPLACE FUNCTION cerebro._convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro._convert_array_to_bytea(smallint[]) IS
'Converts an array to bytes: little-endian int16 values in C order.';

-- Where the elements begin is in the second word of the array, which counts four bytes more; it is 0 for an array without
-- a map of NULLs, whose header is three words, then the size and the lower bound of each dimension.
CREATE OR REPLACE FUNCTION cerebro._element_bytes(elements anyarray, function text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := cerebro._array_bytes(elements);
    start integer := 0;
BEGIN
    FOR place IN REVERSE 7..4 LOOP
        start := 256 * start + pg_catalog.get_byte(bytes, place);
    END LOOP;
    IF start = 0 THEN
        RETURN pg_catalog.substring(bytes, 13 + 8 * COALESCE(pg_catalog.array_ndims(elements), 0));
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.unnest(elements) AS u (e) WHERE e IS NULL) THEN
        RAISE EXCEPTION '%: an element is NULL.', function
            USING ERRCODE = 'null_value_not_allowed', HINT = 'coalesce() or array_remove() can help.';
    END IF;
    RETURN pg_catalog.substring(bytes, start - 3);
END
$$;
COMMENT ON FUNCTION cerebro._element_bytes(anyarray, text) IS
'The bytes of an array''s elements, in the byte order of the machine. function: what an error names.';

CREATE OR REPLACE FUNCTION cerebro._convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro._require_whole(var, 4);
    RETURN cerebro._reals(var);
END
$$;
COMMENT ON FUNCTION cerebro._convert_bytea_to_real_array(bytea) IS
'Converts little-endian float32 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro._convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro._require_whole(var, 2);
    RETURN cerebro._smallints(var);
END
$$;
COMMENT ON FUNCTION cerebro._convert_bytea_to_smallint_array(bytea) IS
'Converts little-endian int16 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro._require_whole(bytes bytea, size integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF COALESCE(size < 1, true) THEN
        RAISE EXCEPTION 'size must be at least 1, not %', size USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF pg_catalog.octet_length(bytes) % size <> 0 THEN
        RAISE EXCEPTION 'convert_bytea: % bytes are not a whole number of values of % bytes.',
                        pg_catalog.octet_length(bytes), size
            USING ERRCODE = 'data_exception', HINT = 'Convert the bytes of one variable of one buffer.';
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro._require_whole(bytea, integer) IS
'Raises an error unless the bytes are a whole number of values of this size.';

-- sql/api/70_doctor.sql
-- Looking after the installation.

CREATE OR REPLACE FUNCTION cerebro.warm_up(engine text DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.warm_up(text) IS
'Has every server import a framework now, so that the next call starts its trainers in an instant, and returns at
once. Packing a table does the same, and so does a call that trains, on PostgreSQL. Frameworks that nobody uses are
dropped after half an hour, or after the seconds that keep_ready in install.json says.

- engine: tensorflow, jax or torch. NULL: the default engine, which is tensorflow if it is installed, and else jax.';

CREATE OR REPLACE FUNCTION cerebro.doctor(segments integer DEFAULT NULL)
RETURNS TABLE (component text, check_name text, status text, found text, advice text)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.doctor(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.doctor(integer) IS
'Checks the installation, the roles, the worker logins, and a trainer on every segment. Returns one row per check:
status is ok, warning or problem, found says what was found, advice says what to do. Takes some seconds, because it
starts trainers.

- segments: number of segments to check. NULL: all segments.';

-- sql/api/80_greenplum.sql
-- Functions, views and settings that Greenplum needs besides, or in another form.  On PostgreSQL this does nothing.

DO $greenplum$
DECLARE
    judging record;
    shown   record;
BEGIN
    IF pg_catalog.version() NOT LIKE '%Greenplum%' THEN
        RETURN;
    END IF;

    EXECUTE 'GRANT SELECT ON cerebro.place TO cerebro_user';

    -- The sessions to list are the coordinator's. On a segment the same query would list the sessions of that segment.
    EXECUTE 'ALTER FUNCTION cerebro._sessions() EXECUTE ON COORDINATOR';

    -- It runs queries of its own. In a query that joins its rows with a table, Greenplum would run it in a process that
    -- cannot; as an initial plan it runs before the query, in the caller's session. Greenplum 7.0.0 takes the columns of
    -- an initial plan for one another, or crashes, if the query does not use all of them in their order. So the function
    -- that has the body of predict has one column, and OFFSET keeps the planner from computing in its place.
    EXECUTE pg_catalog.format($sql$
        CREATE OR REPLACE FUNCTION cerebro._predictions(
            model_table text, query text, key text, configuration integer, top integer)
        RETURNS SETOF text EXECUTE ON INITPLAN
        LANGUAGE sql
        SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $f$
        SELECT pg_catalog.row_to_json(p)::text
          FROM (%s) p (key_value, target, value, class, probability, rank)
        $f$
    $sql$, (SELECT prosrc FROM pg_catalog.pg_proc
             WHERE oid = 'cerebro.predict(text, text, text, integer, integer)'::regprocedure));
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._predictions(text, text, text, integer, integer) IS
        'The predictions for the rows of a query, as JSON.'$sql$;
    -- STABLE and without settings, it becomes a part of the query that calls it.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro.predict(
            model_table text, query text, key text DEFAULT NULL, configuration integer DEFAULT NULL,
            top integer DEFAULT 1
        ) RETURNS TABLE (key_value text, target text, value double precision, class text,
                         probability double precision, rank integer)
        LANGUAGE sql STABLE AS $f$
        SELECT j ->> 'key_value', j ->> 'target', (j ->> 'value')::double precision, j ->> 'class',
               (j ->> 'probability')::double precision, (j ->> 'rank')::integer
          FROM (SELECT line::json AS j
                  FROM (SELECT p AS line FROM cerebro._predictions($1, $2, $3, $4, $5) p OFFSET 0) l) r
        $f$
    $sql$;

    -- What judges a model has the same needs. Its body goes to a function of its own, whose rows another one returns as JSON.
    FOR judging IN
        SELECT p.proname AS name, pg_catalog.pg_get_functiondef(p.oid) AS definition,
               pg_catalog.pg_get_function_arguments(p.oid) AS declared,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given,
               (SELECT pg_catalog.string_agg(pg_catalog.format('(j ->> %L)::%s', c.name, c.type::regtype), ', ' ORDER BY place)
                  FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargmodes), unnest(p.proallargtypes))
                       WITH ORDINALITY AS c (name, mode, type, place)
                 WHERE c.mode = 't') AS columns
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro'::regnamespace
           AND p.proname IN ('evaluate', 'confusion_matrix', 'roc_curve', 'precision_recall', 'calibration', 'residuals',
                             'importance', 'prepared_columns')
    LOOP
        EXECUTE pg_catalog.replace(judging.definition, ' FUNCTION cerebro.' || judging.name || '(',
                                   ' FUNCTION cerebro._' || judging.name || '_rows(');
        EXECUTE pg_catalog.format($sql$
            CREATE OR REPLACE FUNCTION cerebro._%1$s_lines(%2$s) RETURNS SETOF text EXECUTE ON INITPLAN
            LANGUAGE sql SET extra_float_digits = 1 AS
            'SELECT pg_catalog.row_to_json(r)::text FROM cerebro._%1$s_rows(%3$s) r'
        $sql$, judging.name, judging.arguments, judging.given);
        EXECUTE pg_catalog.format($sql$
            CREATE OR REPLACE FUNCTION cerebro.%1$s(%2$s) RETURNS %3$s LANGUAGE sql STABLE AS $f$
            SELECT %4$s
              FROM (SELECT line::json AS j
                      FROM (SELECT p AS line FROM cerebro._%1$s_lines(%5$s) p OFFSET 0) l) r
            $f$
        $sql$, judging.name, judging.declared, judging.result, judging.columns, judging.given);
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro._%s_rows(%s) IS %L', judging.name, judging.arguments,
                                  'The body of cerebro.' || judging.name || '.');
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro._%s_lines(%s) IS %L', judging.name, judging.arguments,
                                  'The rows of cerebro.' || judging.name || ', as JSON.');
    END LOOP;

    -- It reads tables, too, as predict does.
    EXECUTE 'ALTER FUNCTION cerebro._models() EXECUTE ON INITPLAN';

    -- Every segment reports the size of its own tables. On the coordinator, pg_total_relation_size() sends queries to the
    -- segments, which it cannot do within another query. Tables that somebody has locked exclusively count as in
    -- 60_limits.sql. It is a function, which runs before the query, as an initial plan: joined with other tables, Greenplum
    -- 7.0.0 would read pg_class in processes that take what a subtransaction has written for aborted, and any user's new
    -- tables could be lost (docs/greenplum.md).
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._state_bytes(whose name) RETURNS SETOF bigint EXECUTE ON INITPLAN
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
        BEGIN
            RETURN QUERY
            SELECT COALESCE(sum(CASE WHEN c.oid = ANY (ARRAY(
                                          SELECT relation FROM pg_lock_status()
                                           WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'))
                                     THEN c.relpages::bigint * current_setting('block_size')::bigint
                                     ELSE pg_total_relation_size(c.oid)
                                END), 0)::bigint
              FROM gp_dist_random('pg_catalog.pg_class') c
             WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace
               AND pg_get_userbyid(c.relowner) = whose;
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._state_bytes(name) IS
        'The disk space of the state tables of all runs of a user, on all segments.'$sql$;
    EXECUTE $sql$
        CREATE OR REPLACE VIEW cerebro._state_size AS
        SELECT current_user AS owner, b AS bytes FROM cerebro._state_bytes(current_user) b
    $sql$;

    -- PL/Python functions block the cancel signal here. These functions run a statement that may take long, with the
    -- signal let through, and block it again at their end. plpy/cerebro_plpy/database/cancellation.py says why.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._hold() RETURNS void LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.hold(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._scan(query text, labels text[]) RETURNS SETOF text LANGUAGE plpgsql AS $f$
        DECLARE
            found record;
        BEGIN
            FOR found IN EXECUTE query USING labels LOOP
                RETURN NEXT pg_catalog.row_to_json(found)::text;
            END LOOP;
            PERFORM cerebro._hold();
        END
        $f$
    $sql$;
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._await(command text, labels text[]) RETURNS text LANGUAGE plpgsql AS $f$
        BEGIN
            EXECUTE command USING labels;
            PERFORM cerebro._hold();
            RETURN 'true';
        END
        $f$
    $sql$;
    -- Not a loop over the rows, which Greenplum would compute in other processes of the segments, without the trainers.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._perform(commands text, answers boolean) RETURNS SETOF text
        LANGUAGE plpgsql SET optimizer = off AS $f$
        DECLARE
            found record;
            rows bigint := 0;
        BEGIN
            IF answers THEN
                EXECUTE commands INTO found;
                GET DIAGNOSTICS rows = ROW_COUNT;
            ELSE
                EXECUTE commands;
            END IF;
            IF rows > 0 THEN
                RETURN NEXT pg_catalog.row_to_json(found)::text;
            END IF;
            PERFORM cerebro._hold();
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._hold() IS
        'Blocks the cancel signal again after a statement that may take long.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._scan(text, text[]) IS
        'Runs a query that may take long, and returns its rows as JSON. A cancel interrupts it.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._await(text, text[]) IS
        'Runs a command that may take long. A cancel interrupts it.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._perform(text, boolean) IS
        'Runs commands that may take long, and returns the first row of the last one as JSON if it answers. A cancel '
        'interrupts them.'$sql$;

    -- A query may call our functions with runs and models that it reads from a view: SELECT cerebro.cancel(run) FROM
    -- cerebro.runs. On a segment they could do nothing. A function that runs on the coordinator, once for each row, keeps
    -- what follows there, and the conditions of the query still reach the tables.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._on_coordinator(bigint, bigint) RETURNS SETOF bigint EXECUTE ON COORDINATOR
        LANGUAGE internal IMMUTABLE STRICT ROWS 1 AS 'generate_series_int8'
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._on_coordinator(bigint, bigint) IS
        'The numbers between two numbers. The views on runs join it, so that their rows are on the coordinator.'$sql$;
    FOR shown IN
        SELECT c.oid, c.relname AS name, pg_catalog.rtrim(pg_catalog.pg_get_viewdef(c.oid), ';') AS query
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'v' AND c.relname !~ '^_'
           AND EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'run')
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE OR REPLACE VIEW cerebro.%I WITH (security_barrier) AS SELECT v.* FROM (%s) v'
            ' CROSS JOIN LATERAL cerebro._on_coordinator(COALESCE(v.run, 0), COALESCE(v.run, 0)) here',
            shown.name, shown.query);
    END LOOP;
END
$greenplum$;

-- sql/api/90_grants.sql
-- Who may use what.  PUBLIC has no rights. Functions that only the server itself calls are granted to no user.
-- tests/sql/rights/privileges.txt is the complete matrix; a test compares it with the database.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON TYPE cerebro._chunk, cerebro._prediction FROM PUBLIC;

-- Users insert and read rows about their own runs; row-level security keeps them from other rows. Nobody needs UPDATE,
-- and only cerebro._forget() needs DELETE.
GRANT SELECT, INSERT
   ON cerebro.run, cerebro.architecture, cerebro.configuration, cerebro.model, cerebro.event, cerebro.attempt,
      cerebro.hop, cerebro.evaluation, cerebro.objective, cerebro.decision, cerebro.heartbeat, cerebro.request,
      cerebro.added_architecture
   TO cerebro_user;
GRANT USAGE ON SEQUENCE cerebro.run_id, cerebro.event_id, cerebro.decision_id, cerebro.request_id TO cerebro_user;
GRANT USAGE ON TYPE cerebro._chunk, cerebro._prediction TO cerebro_user;

GRANT SELECT
   ON cerebro.run_plan, cerebro.runs, cerebro.models, cerebro.learning_curve, cerebro.leaderboard, cerebro.cross_validation, cerebro.metrics,
      cerebro.run_progress,
      cerebro.decisions, cerebro.requests, cerebro.hop_timeline, cerebro.segments_now, cerebro.run_time, cerebro.custom_functions, cerebro.custom_function
   TO cerebro_user, cerebro_monitor;
GRANT SELECT ON cerebro._own_limits, cerebro.limits, cerebro.architectures TO cerebro_user;

-- Administrators register functions and set limits. The database fills in registered_by, registered_at, set_by and
-- set_at, so these columns are not granted.
GRANT INSERT (name, version, kind, source, sha256, description) ON cerebro.custom_function TO cerebro_admin;
GRANT SELECT, DELETE ON cerebro.role_limit TO cerebro_admin;
GRANT INSERT (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
              max_waiting_seconds, max_trainer_mb)
   ON cerebro.role_limit TO cerebro_admin;

GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cerebro TO cerebro_user;
REVOKE ALL ON FUNCTION cerebro._enrol(oid, text), cerebro._close_login(name), cerebro._drop_worker_roles(),
                       cerebro._setup_logins(), cerebro._bytes_array(bytea), cerebro._bytes_smallints(bytea),
                       cerebro._dependants(oid)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro._enrol(oid, text), cerebro._close_login(name) TO cerebro_enrol;
GRANT EXECUTE ON FUNCTION cerebro._sessions(), cerebro._models(), cerebro._code_folder() TO cerebro_monitor;
REVOKE ALL ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                       cerebro._forget(bigint, name),
                       cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                          cerebro._forget(bigint, name),
                          cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer)
   TO cerebro_admin;

-- The password is computed from a secret of the server, so repeating this keeps the login working.
SELECT cerebro._setup_logins();

-- sql/api/95_greenplum_calls.sql
-- How queries may call our functions on Greenplum.  On PostgreSQL this does nothing.
--
-- A query over distributed tables calls a function on the segments, where it can do nothing, or on the coordinator while
-- the segments work on the query. Then no function can send them a statement: "query plan with multiple segworker groups
-- is not supported". PL/Python sends one before each statement of a function, for its subtransaction, where it does not
-- expect an error: the error leaves Python's frames behind, and a later function of the session crashes the coordinator.
--
-- So no query calls Python here. The functions of the schema cerebro are in PL/pgSQL, and their bodies in Python are in
-- the schema cerebro_python. Before a body, cerebro._begin_call() sends the segments such a statement, from PL/pgSQL,
-- which bears the error. What steers a run works in any query on the coordinator: if the segments are at work,
-- cerebro_python._elsewhere() has another session of the same user call it.
--
-- What a worker session calls on its segment is not among them. Those functions, and the bodies, look themselves whether
-- they were called like that, and refuse it (database/entry.py).

DO $greenplum$
DECLARE
    on_segments CONSTANT name[] := ARRAY['_worker_open', '_worker_close', '_data_in', '_state_in', '_state_out', '_work',
                                         '_predict', '_gpus', '_gpu_texts', '_warm_up', '_hold'];
    -- They begin with the number of a run. Their effects do not depend on the caller's transaction.
    steering    CONSTANT name[] := ARRAY['wait', 'cancel', 'resume', 'forget', 'materialize', 'stop_model', 'go_on',
                                         'clone_model', 'add_configuration', 'extend', 'set_budget'];
    made        record;
    granted     record;
BEGIN
    IF pg_catalog.version() NOT LIKE '%Greenplum%' THEN
        RETURN;
    END IF;

    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._begin_call(called text) RETURNS void LANGUAGE plpgsql AS $f$
        DECLARE
            busy    boolean := false;
            refused boolean := true;  -- on a segment
        BEGIN
            IF pg_catalog.current_setting('gp_role') = 'dispatch' THEN
                busy := cerebro_python._is_dispatching();
                -- Open cursors keep segments busy, too, and do no harm.
                refused := busy AND NOT EXISTS (SELECT FROM pg_catalog.pg_cursors);
            END IF;
            IF refused THEN
                RAISE EXCEPTION '%: a query over a table or a view calls it, while the segments work on this query. It cannot run'
                                ' statements there.', called
                    USING ERRCODE = 'feature_not_supported',
                          HINT = 'Give it one value, as in SELECT ' || called || '((SELECT …)); or call it in a loop: DO '
                                 '$$ DECLARE r record; BEGIN FOR r IN SELECT … LOOP PERFORM ' || called || '(r.…); END LOOP; '
                                 'END $$;';
            END IF;
            -- EXCEPTION begins a subtransaction on the segments. Where that is not possible, this is the error.
            BEGIN
                NULL;
            EXCEPTION
                WHEN division_by_zero THEN
                    NULL;
            END;
            IF busy THEN
                PERFORM cerebro_python._admit();
            END IF;
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._begin_call(text) IS
        'Refuses to call a function of ours where it cannot run statements: in a query that the segments work on. '
        'called: the name of the function.'$sql$;

    FOR made IN SELECT proname AS name, pg_catalog.pg_get_function_identity_arguments(oid) AS arguments
                  FROM pg_catalog.pg_proc WHERE pronamespace = 'cerebro_python'::regnamespace LOOP
        EXECUTE pg_catalog.format('DROP FUNCTION cerebro_python.%I(%s)', made.name, made.arguments);
    END LOOP;

    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._is_dispatching() RETURNS boolean LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.is_dispatching(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._admit() RETURNS void LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.admit(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._elsewhere(called text, arguments text[], caller jsonb) RETURNS text
        LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.elsewhere(plpy, *args)
        $py$
    $sql$;
    -- What Python would have to ask with statements, from catalogs of the coordinator.
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._caller(path text) RETURNS jsonb LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp AS $f$
        BEGIN
            RETURN (
                SELECT jsonb_build_object(
                           'name', r.rolname, 'database', current_database(), 'search_path', path,
                           'queue', q.rsqname, 'statements', q.rsqcountlimit::integer,
                           'queued', current_setting('gp_resource_manager') = 'queue',
                           'checks', current_setting('client_connection_check_interval') <> '0')
                  FROM pg_roles r
                  LEFT JOIN pg_resqueue q
                         ON q.oid = r.rolresqueue AND NOT r.rolsuper AND q.rsqcountlimit >= 0
                            AND current_setting('gp_resource_manager') = 'queue'
                 WHERE r.rolname = current_user);
        END
        $f$
    $sql$;

    FOR made IN
        SELECT p.proname AS name, p.prosrc AS body, p.proretset AS returns_rows,
               pg_catalog.format_type(p.prorettype, NULL) AS result, l.lanname AS language,
               pg_catalog.pg_get_functiondef(p.oid) AS definition, p.proname = ANY (steering) AS steers,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS parameters,
               CASE WHEN p.proname ~ '^_madlib_' THEN 'madlib.' || pg_catalog.substr(p.proname, 9)
                    ELSE 'cerebro.' || pg_catalog.regexp_replace(pg_catalog.ltrim(p.proname, '_'), '_rows$', '')
               END AS called,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS arguments,
               (SELECT pg_catalog.string_agg('$' || n || '::pg_catalog.text', ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS texts
          FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'cerebro'::regnamespace
           AND (l.lanname = 'plpython3u' AND p.proname <> ALL (on_segments) OR p.proname = ANY (steering))
    LOOP
        -- A cancel that meets the statement of such a body would crash the server.
        IF pg_catalog.strpos(made.body, '_code_folder()') > 0 THEN
            RAISE EXCEPTION 'this script of cerebro_db was made for PostgreSQL, and not for Greenplum'
                USING ERRCODE = 'feature_not_supported',
                      HINT = 'Run make install with PG_CONFIG=$GPHOME/bin/pg_config on every host.';
        END IF;
        EXECUTE pg_catalog.replace(made.definition, ' FUNCTION cerebro.', ' FUNCTION cerebro_python.');
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro_python.%I(%s) IS %L', made.name, made.parameters,
                                  'The body of cerebro.' || made.name || '.');
        -- Not RETURN QUERY in PL/pgSQL, which would take another place in a resource queue.
        EXECUTE pg_catalog.replace(
            pg_catalog.replace(made.definition, ' LANGUAGE ' || made.language,
                               CASE WHEN made.returns_rows THEN ' LANGUAGE sql' ELSE ' LANGUAGE plpgsql' END),
            made.body,
            CASE WHEN made.returns_rows THEN pg_catalog.format(
                $t$
    SELECT cerebro._begin_call(%L);
    SELECT * FROM cerebro_python.%I(%s);
$t$,
                made.called, made.name, made.arguments)
            ELSE pg_catalog.concat(
                $t$
BEGIN
$t$,
                CASE WHEN made.steers THEN pg_catalog.format(
                    $t$    IF pg_catalog.current_setting('gp_role') = 'dispatch' AND cerebro_python._is_dispatching() THEN
        %s cerebro_python._elsewhere(%L, ARRAY[%s],
                                     cerebro_python._caller(pg_catalog.current_setting('search_path')))%s;
    END IF;
$t$,
                    CASE made.result WHEN 'void' THEN 'PERFORM' ELSE 'RETURN' END, made.name, made.texts,
                    CASE made.result WHEN 'void' THEN '; RETURN' ELSE '::' || made.result END)
                END,
                pg_catalog.format(
                    $t$    PERFORM cerebro._begin_call(%L);
    %s cerebro_python.%I(%s);
END
$t$,
                    made.called, CASE made.result WHEN 'void' THEN 'PERFORM' ELSE 'RETURN' END, made.name,
                    made.arguments))
            END);
    END LOOP;

    -- Whoever may call a function may also call its body.
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro_python FROM PUBLIC;
    REVOKE ALL ON FUNCTION cerebro._begin_call(text), cerebro._on_coordinator(bigint, bigint) FROM PUBLIC;
    FOR granted IN
        SELECT p.proname AS name, pg_catalog.pg_get_function_identity_arguments(p.oid) AS parameters,
               a.grantee::regrole AS grantee
          FROM pg_catalog.pg_proc p
          JOIN pg_catalog.pg_proc body
            ON body.pronamespace = 'cerebro_python'::regnamespace AND body.proname = p.proname
               AND body.proargtypes = p.proargtypes
         CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a
         WHERE p.pronamespace = 'cerebro'::regnamespace AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION cerebro_python.%I(%s) TO %s',
                                  granted.name, granted.parameters, granted.grantee);
    END LOOP;
    FOR granted IN
        SELECT a.grantee::regrole AS grantee FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) a
         WHERE n.nspname = 'cerebro' AND a.privilege_type = 'USAGE' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA cerebro_python TO %s', granted.grantee);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION cerebro_python._is_dispatching(), cerebro_python._admit(),'
                                  ' cerebro_python._elsewhere(text, text[], jsonb), cerebro_python._caller(text),'
                                  ' cerebro._begin_call(text), cerebro._on_coordinator(bigint, bigint) TO %s',
                                  granted.grantee);
    END LOOP;
END
$greenplum$;
