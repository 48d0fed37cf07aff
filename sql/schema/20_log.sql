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
        'materialized', 'not materialized', 'followed', 'waits', 'goes on', 'built', 'fused', 'not fused', 'unit failed',
        'model failed', 'model revived', 'forgotten')),
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
'Every attempt at a visit, committed before the visit starts. If an order has several visits of a model, only the first.';

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
    state_sha256   text,                      -- NULL: it was not stored, for the next visit followed in the same order
    weights_offset bigint           NOT NULL,
    weights_bytes  bigint           NOT NULL,
    seconds        jsonb            NOT NULL,
    frozen         jsonb,                     -- the bytes of the state that are in a table of their own; NULL: none
    CHECK (hop > 0),
    CHECK (octet_length(state_sha256) <= 100),
    CONSTRAINT frozen_is_a_part CHECK (jsonb_typeof(frozen) = 'object' AND octet_length(frozen::text) <= 300),
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
    -- Of a model on all rows, for each group of this part an array of numbers: its number, its rows, the loss, and the value,
    -- the total and the count of the objective's metric. Total and count are null if the metric is no mean over rows.
    of_groups   jsonb,
    sampled     bigint CHECK (sampled BETWEEN 1 AND 1e12::bigint), -- how many of the rows were evaluated; NULL: all
    -- What the loss weighs beside those of other parts: the steps with a label, or the weights of the rows; NULL: the rows.
    weight      double precision CHECK (weight BETWEEN 0 AND 1e100),
    CONSTRAINT groups_are_arrays_of_numbers CHECK (
        jsonb_typeof(of_groups) = 'array' AND octet_length(of_groups::text) <= 2e7
        AND NOT jsonb_path_exists(of_groups, 'strict $[*] ? (@.type() != "array" || @.size() != 6)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][0 to 1] ? (@.type() != "number" || @ < 0 || @ > 2147483647)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][2 to 5] ? (@.type() != "null" && (@.type() != "number"
                                                 || @ > 1e100 || @ < -1e100 || (@ != 0 && @ > -1e-100 && @ < 1e-100)))')),
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
-- there are. cerebro_db/core/models/metrics.py keeps what trainers measure within the same bounds.
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
                -- A number, null, or a list of them for each metric (cerebro_db/core/models/metrics.py: MOST_ON_RECORD).
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
    queue      jsonb,  -- what other drivers have to know of the run (cerebro_db/core/scheduling/fair_queue.py: QueueEntry)
    CONSTRAINT queue_is_a_standing CHECK (jsonb_typeof(queue) = 'object' AND octet_length(queue::text) <= 1000),
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (seconds_left BETWEEN 0 AND 1e18),
    CHECK (rows_done BETWEEN 0 AND 1e18::bigint AND rows_total BETWEEN 0 AND 1e18::bigint)
);
CREATE INDEX heartbeat_run ON cerebro.heartbeat (run, owner, at);
COMMENT ON TABLE cerebro.heartbeat IS
'How many rows a run has trained on so far, including visits that are not committed yet, and the estimated seconds '
'until it ends. About one row per second '
'while the run is driven.';
