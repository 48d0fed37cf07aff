-- Tables that Greenplum needs besides, and how the others are distributed.  On PostgreSQL this does nothing.
-- Greenplum and its forks have the setting gp_role; version() has the name of the fork alone.

DO $greenplum$
DECLARE
    named text;
BEGIN
    IF pg_catalog.current_setting('gp_role', true) IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('gp_role') = 'utility' THEN
        RAISE EXCEPTION 'cerebro_db trains on the segments of a cluster, and this session has none (gp_role is utility)'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Connect to the coordinator of a cluster that has segments, without gp_role in PGOPTIONS.';
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
