-- What Greenplum needs beyond what PostgreSQL has: all of it is here, and here only.

DO $greenplum$
DECLARE
    named text;
BEGIN
    IF pg_catalog.version() NOT LIKE '%Greenplum%' THEN
        RETURN;
    END IF;

    -- SELECT f() FROM cerebro.place WHERE __dist_key__ = <constant> runs f on one segment. Which key is where is up to
    -- Greenplum's hash, so there are enough of them to find some on each segment, and to place several trainers there.
    EXECUTE 'CREATE TABLE cerebro.place (__dist_key__ integer PRIMARY KEY) DISTRIBUTED BY (__dist_key__)';
    EXECUTE $sql$COMMENT ON TABLE cerebro.place IS 'Distribution keys: by them statements get to a segment.'$sql$;
    EXECUTE 'GRANT SELECT ON cerebro.place TO cerebro_user';
    INSERT INTO cerebro.place
    SELECT pg_catalog.generate_series(0, GREATEST(4096, 64 * count(*)::integer))
      FROM pg_catalog.gp_segment_configuration WHERE role = 'p' AND content >= 0;

    -- Sessions are the coordinator's: on a segment the same query would list that segment's.
    EXECUTE 'ALTER FUNCTION cerebro._sessions() EXECUTE ON COORDINATOR';

    -- Trainers on the segments need the source of what they are told to use: every segment has all of it.
    EXECUTE 'ALTER TABLE cerebro.custom_function SET DISTRIBUTED REPLICATED';

    -- The log of a run lies together, so that what is asked about it is joined where it lies. Tables without a
    -- primary key are distributed by their first column as it is.
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'event', 'hop', 'evaluation']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I SET DISTRIBUTED BY (run)', named);
    END LOOP;
END
$greenplum$;
