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

    -- Each segment says what it stores: asked of the coordinator, the size of a table is a query of its own, which
    -- cannot run within another.
    EXECUTE $sql$
        CREATE OR REPLACE VIEW cerebro._state_size AS
        SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner, pg_catalog.pg_total_relation_size(c.oid) AS bytes
          FROM gp_dist_random('pg_catalog.pg_class') c
         WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace
    $sql$;

    -- What may take long: while it runs, a cancel is let in (plpy/cerebro_plpy/interrupts.py).
    EXECUTE $sql$
        CREATE FUNCTION cerebro._hold() RETURNS void LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.hold(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE FUNCTION cerebro._scan(query text, labels text[]) RETURNS SETOF text LANGUAGE plpgsql AS $f$
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
        CREATE FUNCTION cerebro._await(command text, labels text[]) RETURNS text LANGUAGE plpgsql AS $f$
        BEGIN
            EXECUTE command USING labels;
            PERFORM cerebro._hold();
            RETURN 'true';
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._hold() IS 'The end of what may take long: a cancel waits again.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._scan(text, text[]) IS 'The rows of a query, as JSON.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._await(text, text[]) IS 'Runs a command.'$sql$;

    -- The log of a run lies together, so that what is asked about it is joined where it lies. Tables without a
    -- primary key are distributed by their first column as it is.
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'event', 'hop', 'evaluation']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I SET DISTRIBUTED BY (run)', named);
    END LOOP;
END
$greenplum$;
