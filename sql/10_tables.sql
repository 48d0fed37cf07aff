-- What is known about runs.  Rows are only ever added, "current" is a view: a run's history cannot be
-- half-updated, and on Greenplum nothing takes a table-wide lock.  Every row carries its owner, and
-- row-level security lets a user write and read only their own.
--
-- Since users write them, the views must be able to compute with any row: what could be no number, or too
-- large a one, is refused here, or one user's row would end the queries of all others.

-- Without a cache, the order of the numbers is the order of the events; Greenplum's default has one.
CREATE SEQUENCE cerebro.run_id CACHE 1;
CREATE SEQUENCE cerebro.event_id CACHE 1;

CREATE TABLE cerebro.run (
    run               bigint      NOT NULL DEFAULT nextval('cerebro.run_id'),
    owner             name        NOT NULL DEFAULT current_user,
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
    PRIMARY KEY (run, owner)
);
COMMENT ON TABLE cerebro.run IS 'One row per run: what was asked for. What became of it is in cerebro.event.';

CREATE TABLE cerebro.architecture (
    run          bigint  NOT NULL,
    owner        name    NOT NULL DEFAULT current_user,
    model_id     integer NOT NULL,
    name         text,
    given        json    NOT NULL,
    architecture json    NOT NULL,
    PRIMARY KEY (run, owner, model_id)
);
COMMENT ON TABLE cerebro.architecture IS 'The architectures of a run, as the user gave them and as they were trained.';

CREATE TABLE cerebro.configuration (
    run            bigint  NOT NULL,
    owner          name    NOT NULL DEFAULT current_user,
    mst_key        integer NOT NULL,
    place          integer NOT NULL,
    model_id       integer NOT NULL,
    compile_params text    NOT NULL,
    fit_params     text    NOT NULL,
    compile        jsonb   NOT NULL,
    fit            jsonb   NOT NULL,
    seed           bigint  NOT NULL,
    initial        text    NOT NULL,
    initial_sha256 text,
    PRIMARY KEY (run, owner, mst_key)
);
COMMENT ON TABLE cerebro.configuration IS 'The configurations of a run.';

CREATE TABLE cerebro.event (
    event_id bigint      NOT NULL DEFAULT nextval('cerebro.event_id'),
    run      bigint      NOT NULL,
    owner    name        NOT NULL DEFAULT current_user,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    event    text        NOT NULL,
    mst_key  integer,
    detail   jsonb       NOT NULL DEFAULT '{}',
    CHECK (isfinite(at)),
    CHECK (COALESCE((detail ->> 'pid')::integer, 1) > 0),
    -- As JSON has it, which every DateStyle reads.
    CHECK (detail ->> 'backend_start' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d){0,2}$'
           AND isfinite((detail ->> 'backend_start')::timestamptz)),
    CHECK (COALESCE((detail ->> 'epochs')::integer, 1) > 0),
    CHECK (COALESCE((detail ->> 'parameters')::bigint, 0) >= 0),
    PRIMARY KEY (run, owner, event_id)
);
COMMENT ON TABLE cerebro.event IS 'What happened to a run and its configurations: created, started, finished, failed, cancelled, …';

CREATE TABLE cerebro.attempt (
    run        bigint      NOT NULL,
    owner      name        NOT NULL DEFAULT current_user,
    mst_key    integer     NOT NULL,
    hop        integer     NOT NULL,
    segment    integer     NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    worker_pid integer     NOT NULL DEFAULT pg_backend_pid(),
    CHECK (hop > 0 AND isfinite(started_at))
);
CREATE INDEX attempt_run ON cerebro.attempt (run);
COMMENT ON TABLE cerebro.attempt IS 'Every attempt at a hop, on record before it starts.';

CREATE TABLE cerebro.hop (
    run            bigint           NOT NULL,
    owner          name             NOT NULL DEFAULT current_user,
    mst_key        integer          NOT NULL,
    hop            integer          NOT NULL,
    epoch          integer          NOT NULL,
    segment        integer          NOT NULL,
    started_at     timestamptz      NOT NULL,
    finished_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    worker_pid     integer          NOT NULL DEFAULT pg_backend_pid(),
    trainer_pid    integer          NOT NULL,
    rows           bigint           NOT NULL,
    steps          bigint           NOT NULL,
    loss           double precision NOT NULL,
    metric         double precision,
    metrics        jsonb            NOT NULL,
    state_bytes    bigint           NOT NULL,
    state_sha256   text             NOT NULL,
    weights_offset bigint           NOT NULL,
    weights_bytes  bigint           NOT NULL,
    seconds        jsonb            NOT NULL,
    CHECK (hop > 0),
    PRIMARY KEY (run, owner, mst_key, hop)
);
COMMENT ON TABLE cerebro.hop IS 'Every committed hop: one configuration trained on one segment, and the state that came of it.';

CREATE TABLE cerebro.evaluation (
    run         bigint           NOT NULL,
    owner       name             NOT NULL DEFAULT current_user,
    mst_key     integer          NOT NULL,
    epoch       integer          NOT NULL,
    dataset     text             NOT NULL,
    part        integer          NOT NULL,
    segment     integer          NOT NULL,
    started_at  timestamptz      NOT NULL,
    finished_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    worker_pid  integer          NOT NULL DEFAULT pg_backend_pid(),
    rows        bigint           NOT NULL,
    loss        double precision NOT NULL,
    metric      double precision,
    metrics     jsonb            NOT NULL,
    seconds     jsonb            NOT NULL,
    PRIMARY KEY (run, owner, mst_key, epoch, dataset, part)
);
COMMENT ON TABLE cerebro.evaluation IS 'Every evaluation of one configuration on one part of a data set.';

-- With the views in mind, as above.
DO $computable$
DECLARE
    named text;
    stage text;
BEGIN
    FOREACH named IN ARRAY ARRAY['hop', 'evaluation']
    LOOP
        EXECUTE format(
            $sql$
            ALTER TABLE cerebro.%I
                ADD CHECK (isfinite(started_at) AND isfinite(finished_at) AND rows BETWEEN 0 AND 1e12::bigint),
                ADD CHECK (abs(loss) < 1e290 OR loss IN ('NaN', 'Infinity', '-Infinity')),
                ADD CHECK (abs(metric) < 1e290 OR metric IN ('NaN', 'Infinity', '-Infinity'))
            $sql$, named);
        FOREACH stage IN ARRAY ARRAY['data', 'build', 'load', 'train', 'evaluate', 'save', 'behind']
        LOOP
            EXECUTE format(
                'ALTER TABLE cerebro.%I ADD CHECK (abs(COALESCE((seconds ->> %L)::double precision, 0)) < 1e12)',
                named, stage);
        END LOOP;
    END LOOP;
END
$computable$;

CREATE TABLE cerebro.heartbeat (
    run        bigint      NOT NULL,
    owner      name        NOT NULL DEFAULT current_user,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows_done  bigint      NOT NULL,
    rows_total bigint      NOT NULL,
    CHECK (isfinite(at) AND rows_done BETWEEN 0 AND 1e18::bigint AND rows_total BETWEEN 0 AND 1e18::bigint)
);
CREATE INDEX heartbeat_run ON cerebro.heartbeat (run, at);
COMMENT ON TABLE cerebro.heartbeat IS 'How far a run is, hops under way included; a row every second or so while it runs.';

DO $security$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'event', 'attempt', 'hop', 'evaluation', 'heartbeat']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY own_rows ON cerebro.%I USING (owner = current_user) WITH CHECK (owner = current_user)', named);
        -- DELETE is for cerebro.forget(); nothing is ever updated.
        EXECUTE format('GRANT SELECT, INSERT, DELETE ON cerebro.%I TO cerebro_user', named);
        PERFORM pg_catalog.pg_extension_config_dump(format('cerebro.%I', named)::regclass, '');
    END LOOP;
END
$security$;

-- An admin may ask anybody's run to end.
CREATE POLICY admin_cancels ON cerebro.event FOR INSERT
    WITH CHECK (event = 'cancel requested' AND pg_has_role(current_user, 'cerebro_admin', 'USAGE'));

SELECT pg_catalog.pg_extension_config_dump('cerebro.run_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.event_id', '');
GRANT USAGE ON SEQUENCE cerebro.run_id, cerebro.event_id TO cerebro_user;
