-- What runs have measured, and the plans that follow from it.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.profiles WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, at, engine, batch_size, parallel, threads, trainers, machine, visits,
       train_row AS seconds_of_row, evaluate_row AS seconds_of_evaluated_row, build AS seconds_building,
       hop AS seconds_of_hop, state_bytes, memory_mb, fused, fused_share, shapes
  FROM cerebro_internal._visible_profile;
COMMENT ON VIEW cerebro.profiles IS
'What runs have measured of models with the same shapes, for the plans of later runs: the last three rows of each sort, '
'and at most 2,000 for a user. They stay when the run is forgotten.';
COMMENT ON COLUMN cerebro.profiles.run IS 'Number of the run that has measured it.';
COMMENT ON COLUMN cerebro.profiles.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.profiles.at IS 'When it was measured.';
COMMENT ON COLUMN cerebro.profiles.engine IS 'Engine that trained: tensorflow, jax or torch.';
COMMENT ON COLUMN cerebro.profiles.batch_size IS 'Batch size of the models.';
COMMENT ON COLUMN cerebro.profiles.parallel IS 'How they trained: hopping or gradients (option parallel).';
COMMENT ON COLUMN cerebro.profiles.threads IS 'Processor threads of each trainer.';
COMMENT ON COLUMN cerebro.profiles.trainers IS 'Number of trainers that worked at the same time.';
COMMENT ON COLUMN cerebro.profiles.machine IS 'Processors and GPU. Measurements of another machine are not used.';
COMMENT ON COLUMN cerebro.profiles.visits IS
'Number of visits that were measured; 0: a trial of an engine, or a rehearsal of fusion.';
COMMENT ON COLUMN cerebro.profiles.seconds_of_row IS 'Seconds of training on a row.';
COMMENT ON COLUMN cerebro.profiles.seconds_of_evaluated_row IS 'Seconds of evaluating a row; NULL: not measured.';
COMMENT ON COLUMN cerebro.profiles.seconds_building IS
'Seconds in which a trainer built and compiled the models of these shapes, in their visits; NULL: not measured.';
COMMENT ON COLUMN cerebro.profiles.seconds_of_hop IS
'Seconds of a visit beside training and building: its state, its rows and its record; NULL: not measured.';
COMMENT ON COLUMN cerebro.profiles.state_bytes IS 'Size of the state of such a model in bytes; NULL: not measured.';
COMMENT ON COLUMN cerebro.profiles.memory_mb IS
'Megabytes of memory that a trainer needs for such a model, estimated; NULL: not known.';
COMMENT ON COLUMN cerebro.profiles.fused IS 'Number of models that a rehearsal has fused; NULL: none.';
COMMENT ON COLUMN cerebro.profiles.fused_share IS
'What each of the fused models costs, compared with a model alone; NULL: not rehearsed.';
COMMENT ON COLUMN cerebro.profiles.shapes IS
'Hash of architecture, optimizer, loss, metrics and columns, without names, seeds, initial weights and rates.';

CREATE OR REPLACE FUNCTION cerebro_internal._trim_profile(whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- It deletes what is too much, whoever calls it: users may not delete, for they could lock the table then.
    DELETE FROM cerebro.profile p
     USING (SELECT engine, shapes, batch_size, parallel, threads, trainers, machine, visits = 0 AS tried, at,
                   row_number() OVER (PARTITION BY engine, shapes, batch_size, parallel, threads, trainers, machine,
                                                   visits = 0 ORDER BY at DESC) AS place,
                   row_number() OVER (ORDER BY at DESC) AS in_all
              FROM cerebro.profile
             WHERE pg_get_userbyid(owner) = whose) o
     WHERE pg_get_userbyid(p.owner) = whose AND p.at <= o.at
           AND (o.in_all = 2001
                OR o.place = 4 AND p.engine = o.engine AND p.shapes = o.shapes AND p.batch_size = o.batch_size
                   AND p.parallel = o.parallel AND p.threads = o.threads AND p.trainers = o.trainers
                   AND p.machine = o.machine AND (p.visits = 0) = o.tried);
END
$$;
COMMENT ON FUNCTION cerebro_internal._trim_profile(@types@) IS
'Deletes what is too much of a user''s profile: it keeps the last three rows of each sort, and at most 2,000.';

CREATE OR REPLACE FUNCTION cerebro.plan(run bigint)
RETURNS TABLE (selected boolean, engine text, threads integer, segments integer, parallel text, seconds double precision,
               share double precision, why text, took double precision)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.plan(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.plan(@types@) IS
'The plan of a run of yours: the shape in which it trains, and then the other shapes that were compared with it.

- selected: whether the run trains in this shape.
- engine: tensorflow, jax, torch, or auto (for each configuration the faster one).
- threads: processor threads of the trainer on each segment.
- segments: segments that the rows lie on.
- parallel: hopping or gradients.
- seconds: what the training was expected to take, from the first visit to the last evaluation. NULL: no earlier run has
  measured a model of these shapes.
- share: of what the plain rules take.
- why: why the run trains in it, or does not.
- took: seconds that the training took, or has taken so far, if the run trains in this shape.';
