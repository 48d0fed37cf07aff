-- What Greenplum needs beyond what PostgreSQL has: all of it is here, and here only.

DO $greenplum$
DECLARE
    named text;
BEGIN
    IF pg_catalog.version() NOT LIKE '%Greenplum%' THEN
        RETURN;
    END IF;

    -- One row on each segment. SELECT f() FROM cerebro.place WHERE __dist_key__ = <constant> runs f there.
    EXECUTE 'CREATE TABLE cerebro.place (__dist_key__ integer NOT NULL) DISTRIBUTED BY (__dist_key__)';
    EXECUTE $sql$COMMENT ON TABLE cerebro.place IS 'Per segment, the distribution key by which statements get there.'$sql$;
    EXECUTE 'GRANT SELECT ON cerebro.place TO cerebro_user';
    EXECUTE $sql$
        CREATE FUNCTION cerebro._find_places() RETURNS void LANGUAGE plpgsql AS $body$
        BEGIN
            -- The hash is Greenplum's own, so keys are found by trial; 64 per segment leave none without.
            TRUNCATE cerebro.place;
            INSERT INTO cerebro.place
            SELECT pg_catalog.generate_series(0, 64 * count(*)::integer)
              FROM pg_catalog.gp_segment_configuration WHERE role = 'p' AND content >= 0;
            DELETE FROM cerebro.place
             WHERE __dist_key__ NOT IN (SELECT min(__dist_key__) FROM cerebro.place GROUP BY gp_segment_id);
        END
        $body$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._find_places() IS
        'Fills cerebro.place. Run by CREATE EXTENSION; again by a superuser when segments were added.'$sql$;
    PERFORM cerebro._find_places();

    -- Sessions are the coordinator's: on a segment the same query would list that segment's.
    EXECUTE 'ALTER FUNCTION cerebro._sessions() EXECUTE ON COORDINATOR';

    -- The log of a run lies together, so that what is asked about it is joined where it lies. Tables without a
    -- primary key are distributed by their first column as it is.
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'event', 'hop', 'evaluation']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I SET DISTRIBUTED BY (run)', named);
    END LOOP;
END
$greenplum$;
