-- What runs have measured.  The head of 10_runs.sql says which rules hold for this table, but its rows are no part of a
-- run's log: they stay when the run is forgotten, and old ones are deleted when new ones are written.

CREATE TABLE cerebro.profile (
    run          bigint           NOT NULL,
    owner        regrole          NOT NULL DEFAULT quote_ident(current_user)::regrole,
    at           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    engine       text             NOT NULL,
    shapes       text             NOT NULL, -- a hash of what the speed of a model depends on; with the precision
    batch_size   integer          NOT NULL,
    parallel     text             NOT NULL,
    threads      integer          NOT NULL,
    trainers     integer          NOT NULL, -- that worked at the same time
    machine      text             NOT NULL,
    visits       bigint           NOT NULL, -- that were measured; 0: a trial of an engine, or a rehearsal
    train_row    double precision NOT NULL, -- seconds
    evaluate_row double precision,
    build        double precision,          -- seconds of a trainer for all models of these shapes
    hop          double precision,          -- seconds of a visit beside training
    state_bytes  bigint,
    memory_mb    integer,
    fused        integer,                   -- members that a rehearsal has fused
    fused_share  double precision,          -- what each of them costs, compared with a model alone
    CHECK (at BETWEEN '2000-01-01 00:00+00' AND '3000-01-01 00:00+00'),
    CHECK (octet_length(engine) <= 100 AND octet_length(parallel) <= 100 AND octet_length(machine) <= 400),
    CHECK (octet_length(shapes) <= 100),
    CHECK (batch_size > 0 AND threads BETWEEN 1 AND 256 AND trainers BETWEEN 1 AND 10000),
    CHECK (visits BETWEEN 0 AND 1e12::bigint AND state_bytes BETWEEN 0 AND 1e15::bigint AND memory_mb >= 0 AND fused > 0),
    CHECK (train_row = 0 OR train_row BETWEEN 1e-12 AND 1e6),
    CHECK (evaluate_row = 0 OR evaluate_row BETWEEN 1e-12 AND 1e6),
    CHECK (build = 0 OR build BETWEEN 1e-12 AND 1e9),
    CHECK (hop = 0 OR hop BETWEEN 1e-12 AND 1e9),
    CHECK (fused_share = 0 OR fused_share BETWEEN 1e-9 AND 1e6)
);
COMMENT ON TABLE cerebro.profile IS
'What runs have measured of models with the same shapes: seconds of training, of evaluating, of building and of a hop. '
'The plans of later runs of the same user read it. A user has the last three rows of each sort, and at most 2,000.';
